//! The kinds of ports, and what each provides.

use std::fmt;

use fabric::VlanMode;
use serde::{Deserialize, Serialize};

use crate::{Invalid, Policy};

/// Hands the list of kinds to a macro: those without settings, and those with a struct of settings.
#[macro_export]
macro_rules! with_kinds {
    ($with:ident) => {
        $with! {
            plain {
                #[doc = "A program that opens the port by its name."]
                #[default]
                Ring "ring",
                #[doc = "Accepts all frames and sends none."]
                Null "null",
            }
            set {
                Tap "tap",
                Interface "interface",
                Host "host",
                Card "card",
                PcapRead "pcap_read",
                PcapWrite "pcap_write",
                VhostUser "vhost_user",
                VfioUser "vfio_user",
                Stream "stream",
                Dgram "dgram",
                Vxlan "vxlan",
            }
        }
    };
}

/// What each kind of port provides for its settings.
pub trait Kind: std::fmt::Debug {
    /// Checks the settings; `port` and `policy` are the port's name and rules.
    ///
    /// # Errors
    /// Names the first invalid setting.
    fn check(&self, port: &str, policy: &Policy) -> Result<(), Invalid> {
        let _ = (port, policy);
        Ok(())
    }

    /// The resources that no other port may have.
    fn claim(&self) -> Option<Claim> {
        None
    }

    /// The same, for kinds with several.
    fn claims(&self) -> Vec<Claim> {
        self.claim().into_iter().collect()
    }

    /// The VLANs of the port, if the kind says them.
    fn vlans(&self) -> Option<VlanMode> {
        None
    }

    /// A short description for tables.
    fn describe(&self) -> String;

    /// Whether a guest sees the port as its network card, whose cable may be unplugged.
    fn is_guest(&self) -> bool {
        false
    }

    /// Whether the port makes a socket in the runtime directory, named after the port.
    fn has_default_socket(&self) -> bool {
        false
    }

    /// Fills in what the command line leaves out. `port` is the port's name without its switch.
    ///
    /// # Errors
    /// A path has no absolute form, or an address is invalid.
    fn complete(&mut self, port: &str) -> Result<(), Invalid> {
        let _ = port;
        Ok(())
    }
}

/// A resource that only one port may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The resource in words, as the beginning of a sentence.
    pub what: String,
    /// The remedy if two ports claim it.
    pub remedy: &'static str,
}

impl Claim {
    /// A socket of ours at `path`.
    pub(crate) fn socket(path: &str) -> Self {
        Self { what: format!("The socket {path}"), remedy: "give each port a socket of its own" }
    }
}

/// A kind without settings.
#[derive(Debug)]
struct Plain(&'static str);

impl Kind for Plain {
    fn describe(&self) -> String {
        self.0.into()
    }
}

macro_rules! define {
    (
        plain { $(#[doc = $about:literal] $(#[$default:meta])? $Plain:ident $plain:literal,)* }
        set { $($Set:ident $set:literal,)* }
    ) => {
        /// What a configured port is attached to.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub enum PortKind {
            $(
                #[doc = $about]
                $(#[$default])?
                #[serde(rename = $plain)]
                $Plain,
            )*
            $(
                #[doc = concat!("A [`", stringify!($Set), "`](crate::", stringify!($Set), ").")]
                #[serde(rename = $set)]
                $Set(crate::$Set),
            )*
        }

        impl PortKind {
            /// The word for it in files and in the API.
            #[must_use]
            pub const fn word(&self) -> &'static str {
                match self {
                    $(Self::$Plain => $plain,)*
                    $(Self::$Set(_) => $set,)*
                }
            }

            /// A short description for tables.
            #[must_use]
            pub fn settings(&self) -> &dyn Kind {
                match self {
                    $(Self::$Plain => &Plain($plain),)*
                    $(Self::$Set(settings) => settings,)*
                }
            }

            /// Fills in what the command line leaves out: see [`Kind::complete`].
            ///
            /// # Errors
            /// As there.
            pub fn complete(&mut self, port: &str) -> Result<(), Invalid> {
                match self {
                    $(Self::$Plain => Ok(()),)*
                    $(Self::$Set(settings) => settings.complete(port),)*
                }
            }
        }

        $(
            impl From<crate::$Set> for PortKind {
                fn from(settings: crate::$Set) -> Self {
                    Self::$Set(settings)
                }
            }
        )*
    };
}
with_kinds!(define);

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.settings().describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dgram, PcapRead, PcapWrite, Stream, Tap, VhostUser};
    use serde_json::{Value, json};

    #[test]
    fn words_and_settings_are_as_they_were() {
        for (text, kind) in [
            (json!("ring"), PortKind::Ring),
            (json!("null"), PortKind::Null),
            (json!({"tap": {"ifname": "t"}}), Tap::called("t").into()),
            (
                json!({"pcap_read": {"path": "/a"}}),
                PcapRead { path: "/a".into(), repeat: false, speed_percent: 100 }.into(),
            ),
            (json!({"pcap_write": {"path": "/a"}}), PcapWrite { path: "/a".into() }.into()),
            (json!({"stream": {}}), Stream { address: None, client: false }.into()),
            (json!({"vhost_user": {}}), VhostUser { path: None, client: false, queues: 16 }.into()),
            (
                json!({"dgram": {"local": "/a", "remote": "/b"}}),
                Dgram { local: "/a".into(), remote: "/b".into() }.into(),
            ),
        ] {
            assert_eq!(serde_json::from_value::<PortKind>(text.clone()).unwrap(), kind, "{text}");
            let written = serde_json::to_value(&kind).unwrap();
            let word = match &written {
                Value::String(word) => word,
                object => object.as_object().unwrap().keys().next().unwrap(),
            };
            assert_eq!(word, kind.word());
            assert_eq!(serde_json::from_value::<PortKind>(written).unwrap(), kind);
        }
        for wrong in [
            json!("tun"),
            json!({"tap": {}}),
            json!({"tap": {"ifname": "t", "mtu": 1}}),
            json!({"tap": {"ifname": "t"}, "stream": {}}),
        ] {
            assert!(serde_json::from_value::<PortKind>(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
