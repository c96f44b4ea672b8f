//! Names of devices: decides which of them are ports.

use std::fmt;

/// The longest name of a port, with its switch and suffix.
const LONGEST: usize = netring::attach::NAME - 1;
/// Prefixes that mark a name as ours. They are not part of the port's name.
const PREFIXES: [&str; 2] = ["toklat:", "netmap:"];

/// The name of a port, such as `vale0:p1`, `netmap:vale0:p1` or `toklat:lan:p1`.
///
/// A suffix `/t`, `/r` or `/rt` names a monitor; `{` and `}` name the ends of a pipe. Programs that
/// take a colon for an interface's alias can use `vale0.p1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device(String);

impl Device {
    /// Returns the port that a device's name means; `None` for names that are not ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let bare = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        let is_ours = bare.is_some() || name.starts_with("vale");
        let port = bare.unwrap_or(name);
        let dotted = (bare.is_none() && !port.contains(':')).then(|| port.replacen('.', ":", 1));
        let port = dotted.as_deref().unwrap_or(port);
        let fits = port.len() <= LONGEST && !port.contains('\0');
        // `valencia` may be the name of an interface.
        let is_port = port.split_once(':').is_some_and(|(switch, port)| {
            !switch.is_empty() && !port.is_empty() && !switch.contains('/')
        });
        (is_ours && fits && (is_port || bare.is_some())).then(|| Self(port.to_owned()))
    }

    /// Like [`parse`](Self::parse), for a C string: the bytes up to the first zero.
    #[must_use]
    pub fn parse_bytes(name: &[u8]) -> Option<Self> {
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Self::parse(std::str::from_utf8(name.get(..end)?).ok()?)
    }

    /// The name of the port, as `switch:port` and its suffix.
    #[must_use]
    pub fn port(&self) -> &str {
        &self.0
    }

    /// Returns the device's name as an interface: without a colon, and cut to the length of
    /// interface names.
    #[must_use]
    pub fn interface(&self) -> String {
        self.0.replacen(':', ".", 1).chars().take(15).collect()
    }

    /// Returns true for the end of a pipe, which has no monitors.
    #[must_use]
    pub fn is_pipe(&self) -> bool {
        self.0.contains(['{', '}'])
    }

    /// Returns a locally administered Ethernet address that depends only on the name.
    #[must_use]
    pub fn address(&self) -> [u8; 6] {
        // FNV-1a: the hash need not be secret, but must be the same in every process.
        let hash = self.0.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let [a, b, c, d, e, ..] = hash.to_le_bytes();
        [0x02, a, b, c, d, e]
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str) -> Option<String> {
        Device::parse(name).map(|device| device.port().to_owned())
    }

    #[test]
    fn ports_are_told_from_interfaces() {
        assert_eq!(port("vale0:1").as_deref(), Some("vale0:1"));
        assert_eq!(port("vale0:1/rt").as_deref(), Some("vale0:1/rt"));
        assert_eq!(port("netmap:vale0:a{1").as_deref(), Some("vale0:a{1"));
        assert_eq!(port("toklat:lan:p").as_deref(), Some("lan:p"));
        assert_eq!(port("vale0.1").as_deref(), Some("vale0:1"));
        assert_eq!(Device::parse("vale0:1").unwrap().interface(), "vale0.1");
        // Names of NICs are refused here: libpcap would try to open the kernel's netmap.
        assert_eq!(port("netmap:eth0").as_deref(), Some("eth0"));
        for name in ["eth0", "eth0:1", "any", "vale0", "lan.x", "valencia", "", "vale0:", ":1"] {
            assert_eq!(port(name), None, "{name}");
        }
        assert_eq!(port(&format!("vale0:{}", "p".repeat(60))), None, "too long");
        assert_eq!(Device::parse_bytes(b"vale0:1\0junk"), Device::parse("vale0:1"));
        assert_eq!(Device::parse_bytes(b"vale0:\xff"), None);
    }

    #[test]
    fn addresses_are_local_and_differ() {
        let address = |name| Device::parse(name).unwrap().address();
        assert_eq!(address("vale0:1"), address("netmap:vale0:1"));
        assert_ne!(address("vale0:1"), address("vale0:2"));
        assert_eq!(address("vale0:1")[0] & 3, 2, "no group's, and locally administered");
    }
}
