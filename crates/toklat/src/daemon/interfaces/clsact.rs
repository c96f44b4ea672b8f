//! The programs of a host's end where the kernel has no tcx, before Linux 6.6: filters of the
//! queueing discipline clsact (tc-bpf(8)), by rtnetlink(7).
//!
//! Filters stay on an interface until somebody removes them, and that must not cut the host off. So
//! a filter only jumps into an array of programs:
//!
//! ```text
//!   egress of eth0 --> filter --> array[2]: redirect to the tap      while a process has the array
//!                           '--> array[2] is empty: pass it on       afterwards
//! ```
//!
//! The kernel empties the array when the last process has closed it, however it ended. Filters
//! without programs let everything pass. The supervisor removes them when the tap is gone
//! ([`Sweeper`]), and before it attaches others ([`attach`]). The discipline stays, empty: other
//! programs may have put filters there.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::LazyLock;
use std::time::Duration;

use tokio::io::Interest;
use tokio::sync::watch;

use super::super::descriptors;
use super::super::netlink::{
    self, Attributes, DUMP, ECHO, Message, Messages, NEW, REQUEST, attribute, word,
};
use super::bpf::{self, HostProgram};
use super::link::{self, Asker};

/// `RTM_NEWQDISC`, `RTM_GETQDISC`, `RTM_NEWTFILTER`, `RTM_DELTFILTER`, `RTM_GETTFILTER`.
const NEW_DISCIPLINE: u16 = 36;
const GET_DISCIPLINE: u16 = 38;
const NEW_FILTER: u16 = 44;
const REMOVE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;
/// Bytes of `struct tcmsg`.
const INFO: usize = 20;
/// `TC_H_CLSACT`, and its places `TC_H_MIN_INGRESS` and `TC_H_MIN_EGRESS`.
const CLSACT: u32 = 0xffff_fff1;
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;
/// The discipline's own number, and its name.
const DISCIPLINE: u32 = 0xffff_0000;
const CLSACT_NAME: &[u8] = b"clsact\0";
/// Our filters' preference, before all others, and `ETH_P_ALL` in network order.
const FIRST: u32 = 1 << 16 | (libc::ETH_P_ALL as u16).to_be() as u32;
/// `TCA_KIND`, `TCA_OPTIONS`, `TCA_BPF_FD`, `TCA_BPF_NAME`, `TCA_BPF_FLAGS`.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const PROGRAM: u16 = 6;
const NAME: u16 = 7;
const FLAGS: u16 = 8;
/// `TCA_BPF_FLAG_ACT_DIRECT`: the program's result is the verdict.
const DIRECT: u32 = 1;
/// The name of our filters.
const OURS: &[u8] = b"toklat host\0";

/// Attaches the programs of a host's end until all that hold the returned array have closed it.
/// `tap`, the number of the end's tap, is the number of the filters as well. Filters that earlier
/// ends have left are removed.
///
/// # Errors
/// The kernel's error. Filters that were added let everything pass.
pub(super) fn attach(programs: &[HostProgram], tap: u32) -> io::Result<OwnedFd> {
    let socket = netlink::open(None, 0)?;
    let array = bpf::program_array(programs)?;
    for (place, program) in (0..).zip(programs) {
        has_discipline(&socket, program.at)?;
        let at = if program.ingress { INGRESS } else { EGRESS };
        for number in ours(&socket, program.at, at)? {
            remove(&socket, (program.at, at), number)?;
        }
        let jump = bpf::jump(&array, place)?;
        let options = [
            attribute(PROGRAM, &jump.as_raw_fd().to_ne_bytes()),
            attribute(NAME, OURS),
            attribute(FLAGS, &DIRECT.to_ne_bytes()),
        ];
        let options = attribute(OPTIONS, &options.concat());
        let body = [message(program.at, tap, at, FIRST), kind(b"bpf\0"), options].concat();
        netlink::change(&socket, NEW_FILTER, NEW, &body)?;
    }
    // No packet has changed its way so far.
    bpf::fill(&array, programs)?;
    Ok(array)
}

/// Makes sure that an interface has the discipline.
fn has_discipline(socket: &OwnedFd, at: u32) -> io::Result<()> {
    let body = [message(at, DISCIPLINE, CLSACT, 0), kind(CLSACT_NAME)].concat();
    match netlink::change(socket, NEW_DISCIPLINE, NEW, &body) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => is_clsact(at),
        made => made,
    }
}

/// Checks that the discipline that an interface has is clsact. Another one, `ingress`, has the same
/// number, and no place for what leaves.
fn is_clsact(at: u32) -> io::Result<()> {
    let socket = netlink::open(None, 0)?;
    netlink::send(&socket, GET_DISCIPLINE, REQUEST | ECHO, &message(at, DISCIPLINE, CLSACT, 0))?;
    let answer = netlink::receive(&socket)?;
    let is = match Messages(&answer).next() {
        Some(Message::Data(_, found)) => {
            let mut attributes = Attributes(found.get(INFO..).unwrap_or_default());
            attributes.any(|attribute| attribute == (KIND, CLSACT_NAME))
        }
        Some(Message::Error(error)) => return Err(io::Error::from_raw_os_error(error)),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    if is { Ok(()) } else { Err(io::Error::other("it has the qdisc ingress, not clsact")) }
}

/// The numbers of our filters at a place.
fn ours(socket: &OwnedFd, at: u32, place: u32) -> io::Result<Vec<u32>> {
    netlink::send(socket, GET_FILTER, REQUEST | DUMP, &message(at, 0, place, 0))?;
    let mut found = Vec::new();
    loop {
        let answer = netlink::receive(socket)?;
        if answer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in Messages(&answer) {
            match message {
                Message::Done => return Ok(found),
                Message::Error(error) => return Err(io::Error::from_raw_os_error(error)),
                Message::Data(_, filter) => found.extend(our_number(filter)),
            }
        }
    }
}

/// The number of a filter if it is one of ours.
fn our_number(filter: &[u8]) -> Option<u32> {
    let mut attributes = Attributes(filter.get(INFO..)?);
    let (_, options) = attributes.find(|(kind, _)| *kind == OPTIONS)?;
    let (_, name) = Attributes(options).find(|(kind, _)| *kind == NAME)?;
    let is_ours = name == OURS && word(filter, 16) == Some(FIRST);
    is_ours.then(|| word(filter, 8)).flatten()
}

fn remove(socket: &OwnedFd, (at, place): (u32, u32), number: u32) -> io::Result<()> {
    let body = [message(at, number, place, FIRST), kind(b"bpf\0")].concat();
    netlink::change(socket, REMOVE_FILTER, 0, &body)
}

/// `struct tcmsg`.
fn message(at: u32, number: u32, parent: u32, info: u32) -> Vec<u8> {
    [0, at, number, parent, info].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn kind(name: &[u8]) -> Vec<u8> {
    attribute(KIND, name)
}

/// How many sweepers wait for the end of their taps.
static WAITING: LazyLock<watch::Sender<usize>> = LazyLock::new(watch::Sender::default);

/// Waits until the filters of all host's ends are removed, at most for a second.
pub async fn swept() {
    let mut waiting = WAITING.subscribe();
    let none = waiting.wait_for(|waiting| *waiting == 0);
    if tokio::time::timeout(Duration::from_secs(1), none).await.is_err() {
        tracing::warn!("filters that let everything pass stay on interfaces");
    }
}

/// Removes the filters of a host's end when its tap is gone: when no process has the tap any more,
/// none has the array.
#[derive(Debug)]
pub(super) struct Sweeper {
    changes: OwnedFd,
    asker: Asker,
    socket: OwnedFd,
}

impl Sweeper {
    /// A sweeper of this thread's namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        let (changes, asker) = (link::changes()?, Asker::open()?);
        Ok(Self { changes, asker, socket: netlink::open(None, 0)? })
    }

    /// Waits for the end of `tap`, known by its name and number, in a task of its own: it outlives
    /// the port, because the data process may have the tap for a while after that.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(self, interface: u32, (name, tap): (String, u32)) -> io::Result<()> {
        let Self { changes, asker, socket } = self;
        let changes = descriptors::register(changes, Interest::READABLE)?;
        WAITING.send_modify(|waiting| *waiting += 1);
        tokio::spawn(async move {
            let is_gone =
                || asker.ask(&name).is_ok_and(|found| found.is_none_or(|link| link.index != tap));
            while !is_gone() {
                let Ok(mut ready) = changes.readable().await else { break };
                link::forget(ready.get_inner());
                ready.clear_ready();
            }
            for place in [INGRESS, EGRESS] {
                // The interface may be gone, or the next end has removed them.
                if let Err(error) = remove(&socket, (interface, place), tap) {
                    tracing::debug!(tap = name, %error, "filters are gone already");
                }
            }
            WAITING.send_modify(|waiting| *waiting -= 1);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_others_are_not_ours() {
        let filter = |number: u32, info: u32, name: &[u8]| {
            let options = attribute(OPTIONS, &attribute(NAME, name));
            [message(3, number, EGRESS, info), kind(b"bpf\0"), options].concat()
        };
        assert_eq!(our_number(&filter(9, FIRST, OURS)), Some(9));
        assert_eq!(our_number(&filter(9, FIRST, b"another\0")), None);
        assert_eq!(our_number(&filter(9, FIRST + (1 << 16), OURS)), None);
        let whole = filter(9, FIRST, OURS);
        (0..whole.len()).for_each(|len| assert_eq!(our_number(&whole[..len]), None, "{len}"));
    }
}
