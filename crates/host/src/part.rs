//! Parts of the packaged service that are off until the operator switches them on: what a kind of
//! port needs that the unit and AppArmor's profile do not allow the daemon.

use std::io;

use clap::ValueEnum;
use rustix::thread::CapabilitySet;
use serde::Serialize;

/// The variable by which the packaged unit tells the daemon that it runs there.
pub const SERVICE: &str = "TOKLAT_SERVICE";

/// A part of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Interfaces of the host as ports (--interface), and the host behind one (--host)
    Interfaces,
    /// Ports in other network namespaces (--netns, taps of CNI)
    Containers,
    /// Cards that toklat drives itself (--card)
    Cards,
    /// A routing daemon beside the switches (gobgpd)
    Evpn,
}

impl Part {
    /// The name, as the command line has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interfaces => "interfaces",
            Self::Containers => "containers",
            Self::Cards => "cards",
            Self::Evpn => "evpn",
        }
    }

    /// The capabilities that the daemon needs for it.
    #[must_use]
    pub const fn capabilities(self) -> CapabilitySet {
        match self {
            Self::Interfaces => CapabilitySet::NET_RAW.union(CapabilitySet::BPF),
            Self::Containers => CapabilitySet::SYS_ADMIN,
            Self::Cards | Self::Evpn => CapabilitySet::empty(),
        }
    }

    /// The remedy for an error of what needs this part: the command that switches it on, if the
    /// daemon runs in the packaged service and is not allowed to; what confines the daemon, if it
    /// has the capabilities and is still not allowed to; `otherwise` for all else.
    #[must_use]
    pub fn remedy(self, error: &io::Error, otherwise: &str) -> String {
        let packaged = std::env::var_os(SERVICE).is_some();
        self.remedy_of(error, otherwise, packaged, jail::holds(self.capabilities()))
    }

    fn remedy_of(self, error: &io::Error, otherwise: &str, packaged: bool, holds: bool) -> String {
        let name = self.name();
        match is_forbidden(error) {
            // No capability makes an address family.
            Some(by_wall) if packaged || by_wall || (holds && !self.capabilities().is_empty()) => {
                match packaged {
                    true => {
                        format!("as root: toklat service enable {name}; systemctl restart toklat")
                    }
                    false => format!(
                        "what confines the daemon forbids it (seccomp, AppArmor, a unit of systemd); \
                         for the packaged service: toklat service enable {name}"
                    ),
                }
            }
            _ => otherwise.to_owned(),
        }
    }
}

/// `None` if the error is not that it is not allowed; else true if it is one of a wall
/// (`RestrictAddressFamilies=`), not of a capability that is missing.
fn is_forbidden(error: &io::Error) -> Option<bool> {
    match error.raw_os_error()? {
        libc::EAFNOSUPPORT => Some(true),
        libc::EPERM | libc::EACCES => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_what_helps() {
        let of = |number, packaged, holds| {
            let error = io::Error::from_raw_os_error(number);
            Part::Interfaces.remedy_of(&error, "give it the capability", packaged, holds)
        };
        let enable = "as root: toklat service enable interfaces; systemctl restart toklat";
        for number in [libc::EPERM, libc::EACCES, libc::EAFNOSUPPORT] {
            assert_eq!(of(number, true, true), enable);
            assert_eq!(of(number, true, false), enable);
            assert!(of(number, false, true).starts_with("what confines the daemon"));
        }
        assert_eq!(of(libc::EPERM, false, false), "give it the capability");
        assert!(of(libc::EAFNOSUPPORT, false, false).starts_with("what confines the daemon"));
        assert_eq!(of(libc::ENODEV, true, true), "give it the capability");
        // A card's file is a matter of permissions, and of no capability.
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(Part::Cards.remedy_of(&denied, "chown", false, true), "chown");
    }

    #[test]
    fn parts_are_named_as_the_command_line_names_them() {
        for part in Part::value_variants() {
            assert_eq!(part.to_possible_value().unwrap().get_name(), part.name());
            assert_eq!(serde_json::to_value(part).unwrap(), part.name());
        }
    }
}
