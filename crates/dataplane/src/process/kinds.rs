//! The kinds of ports that do not need the process.

use std::sync::Arc;

use fabric::Monitor;
use jail::strangers::Descriptor;
use shmem::budget::Account;
use turn::attach::{AttachError, Attached, null, ring};
use turn::state::PortState;

use crate::attach::{buffered, interface};
use crate::config::Attachment;

/// Makes a port's halves from an attachment and its descriptors.
pub(super) fn attach(
    attachment: &Attachment,
    descriptors: Vec<Descriptor>,
    state: &PortState,
    account: &Arc<Account>,
    resume: bool,
) -> Result<(Attached, Option<Monitor>), AttachError> {
    let ring = |rings, descriptors: Vec<Descriptor>| {
        let expected = "a memory file and a token";
        let pair: Result<[Descriptor; 2], _> = descriptors.try_into();
        let [memory, token] = pair.map_err(|_| AttachError::Descriptors { expected })?;
        ring::attach(&memory, account, token, rings, state, resume)
    };
    match attachment {
        Attachment::Ring(rings) => Ok((ring(rings, descriptors)?, None)),
        Attachment::Monitor { ring: rings, of, tx, rx } => {
            if rings.tx.rings != 0 {
                return Err(AttachError::MonitorSends);
            }
            let monitor = Monitor { of: *of, sent: *tx, received: *rx };
            Ok((ring(rings, descriptors)?, Some(monitor)))
        }
        Attachment::Null => Ok((null::attach(state)?, None)),
        // The process makes ports of guests itself, because it serves their front ends, and
        // tunnels, because they need its table.
        Attachment::Vacant
        | Attachment::VhostUser { .. }
        | Attachment::VfioUser(_)
        | Attachment::Vxlan(_) => Ok((null::vacant(), None)),
        Attachment::Tap { uso } => {
            let queues = descriptors.into_iter().map(Descriptor::into_ours).collect();
            Ok((buffered::tap::attach(queues, *uso, state)?, None))
        }
        Attachment::Interface(config) => {
            let queues = descriptors.into_iter().map(Descriptor::into_ours).collect();
            Ok((interface::attach(config, queues, state)?, None))
        }
        Attachment::Stream => {
            let socket = one(descriptors, "a connected stream socket")?;
            Ok((buffered::stream::attach(socket, state, resume)?, None))
        }
        Attachment::Dgram => {
            let socket = one(descriptors, "a datagram socket")?;
            Ok((buffered::dgram::attach(socket, state)?, None))
        }
        Attachment::PcapRead { repeat, speed_percent } => {
            let file = one(descriptors, "a capture file")?.into_ours();
            let pcap = buffered::pcap::attach_read(&file, *repeat, *speed_percent, state, resume)?;
            Ok((pcap, None))
        }
        Attachment::PcapWrite => {
            let file = one(descriptors, "a file for frames")?.into_ours();
            Ok((buffered::pcap::attach_write(file, state)?, None))
        }
    }
}

/// The only one of them.
pub(super) fn one(
    descriptors: Vec<Descriptor>,
    expected: &'static str,
) -> Result<Descriptor, AttachError> {
    let one: Result<[Descriptor; 1], _> = descriptors.try_into();
    one.map(|[fd]| fd).map_err(|_| AttachError::Descriptors { expected })
}
