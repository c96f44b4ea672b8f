//! An existing port that a machine is plugged into. It stays when the machine ends.

use std::path::PathBuf;

use anyhow::bail;
use clap::ValueEnum;
use frame::Mac;
use topology::{VfioUser, VhostUser};

use crate::api::{ErrorCode, PortInfo, PortKind, PortState};
use ::vm::Model;
use client::name::PortName;
use client::{Client, ClientError, Global, Result};

/// The requirements of an existing port on a machine.
#[derive(Debug)]
pub struct Given {
    /// The NIC.
    pub model: Model,
    /// The socket at which the port's back end listens.
    pub socket: PathBuf,
    /// The maximum number of pairs of queues.
    pub queues: u16,
    /// The machine's address, if the port has one.
    pub mac: Option<Mac>,
    /// Another machine is plugged in.
    pub taken: bool,
}

impl Given {
    /// Looks a port up; `None` if there is none of this name.
    ///
    /// # Errors
    /// The port is not of a kind that a machine connects to, or the daemon cannot be asked.
    pub fn find(global: &Global, port: &PortName) -> Result<Option<Self>> {
        let info: PortInfo = match Client::connect(global)?.get(&port.path()) {
            Err(ClientError::Refused(refused)) if refused.code == ErrorCode::NotFound => {
                return Ok(None);
            }
            found => found?,
        };
        let (path, model, queues) = match info.spec.kind {
            PortKind::VhostUser(VhostUser { client: true, .. }) => bail!(
                "{port} connects to its front end, and so does the QEMU that this would run; make it without --client"
            ),
            PortKind::VhostUser(VhostUser { path, queues, .. }) => (path, Model::Virtio, queues),
            PortKind::VfioUser(VfioUser { path, nic }) => {
                let model =
                    Model::value_variants().iter().find(|m| m.emulated() == Some(nic.model));
                let Some(model) = model else { bail!("No QEMU is known that runs {port}'s NIC") };
                (path, *model, 1)
            }
            _ => bail!("{port} exists, and is not a virtual machine's port; name another --port"),
        };
        let default = || global.dir().join(format!("{}-{}.sock", port.switch, port.port));
        Ok(Some(Self {
            model,
            socket: path.map_or_else(default, PathBuf::from),
            queues,
            mac: info.spec.policy.macs.first().copied(),
            taken: info.state == PortState::Attached,
        }))
    }
}
