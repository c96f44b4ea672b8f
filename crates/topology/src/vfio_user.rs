//! Emulated network cards, by vfio-user.

use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::place::{self, make_absolute};
use crate::{Claim, Combine, Doorbell, Invalid, Kind, NicConfig, Policy};

/// A virtual machine's emulated network card, by the vfio-user protocol (QEMU since 10.1, Cloud
/// Hypervisor).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VfioUser {
    /// The socket that the front end connects to. Default: SWITCH-PORT.sock in the runtime
    /// directory.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(id = "socket", long = "socket", value_name = "SOCKET"))]
    #[cfg_attr(feature = "clap", arg(value_hint = clap::ValueHint::AnyPath))]
    pub path: Option<String>,
    /// The card that the guest sees, and its settings.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub nic: NicConfig,
}

impl Kind for VfioUser {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        place::check_named(port, self.path.as_ref())?;
        let nic = &self.nic;
        let names = nic.model.names();
        if nic.csb && !names.csb {
            let reason = format!("{port}: {} has no status block", names.title);
            return Err(Invalid::new(reason, "leave --csb out"));
        }
        if nic.doorbell == Doorbell::Shared && !names.shared_doorbells {
            let reason = format!("{port}: doorbells of {} cannot be shared", names.title);
            return Err(Invalid::new(reason, "use --nic 82574l, or leave out --doorbells shared"));
        }
        let Some(combine) = nic.combine else { return Ok(()) };
        let (frames, delay_us) = (combine.frames.into(), combine.delay_us.into());
        check_range(port, "frames to combine", frames, 1, Combine::MAX_FRAMES.into())?;
        check_range(port, "delay_us", delay_us, 1, Combine::MAX_DELAY_US.into())
    }

    fn claim(&self) -> Option<Claim> {
        self.path.as_ref().map(|path| Claim::socket(path))
    }

    fn describe(&self) -> String {
        let place = self.path.as_deref().unwrap_or("the default socket");
        format!("{} at {place}", self.nic.model.names().title)
    }

    fn has_default_socket(&self) -> bool {
        self.path.is_none()
    }

    fn is_guest(&self) -> bool {
        true
    }

    fn complete(&mut self, _: &str) -> Result<(), Invalid> {
        self.path.as_mut().map_or(Ok(()), make_absolute)
    }
}
