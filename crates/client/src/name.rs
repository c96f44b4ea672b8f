//! Names as netmap writes them: `vale0`, `vale0:p1`.

use std::fmt;
use std::str::FromStr;

/// Text that is not a name of a switch or a port. The error says what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The switch's name is too long or has invalid characters.
    #[error("a switch is called with up to 15 letters, digits, '-', '_' or '.', as in vale0")]
    Switch,
    /// The port's name is too long or has invalid characters.
    #[error(
        "a port is called SWITCH:PORT, as in vale0:p1, with up to 31 letters, digits, '-', '_' or \
         '.' after the colon"
    )]
    Port,
}

fn is_name(text: &str, longest: usize) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.len() <= longest
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(allowed)
}

/// The name of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchName(String);

impl SwitchName {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The switch's path in the control API.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/v1/switches/{}", self.0)
    }
}

impl FromStr for SwitchName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_name(text, 15) { Ok(Self(text.into())) } else { Err(NameError::Switch) }
    }
}

impl fmt::Display for SwitchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a port, including its switch's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// Its switch.
    pub switch: SwitchName,
    /// The port's name within the switch.
    pub port: String,
}

impl PortName {
    /// The port's path in the control API.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/ports/{}", self.switch.path(), self.port)
    }
}

impl FromStr for PortName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (switch, port) = text.split_once(':').ok_or(NameError::Port)?;
        let switch = switch.parse()?;
        if is_name(port, 31) {
            Ok(Self { switch, port: port.into() })
        } else {
            Err(NameError::Port)
        }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.switch, self.port)
    }
}

/// The name of a switch or a port, for arguments that accept either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A whole switch.
    Switch(SwitchName),
    /// One port.
    Port(PortName),
}

impl Name {
    /// The switch itself, or the port's switch.
    #[must_use]
    pub fn switch(&self) -> &SwitchName {
        match self {
            Self::Switch(switch) => switch,
            Self::Port(port) => &port.switch,
        }
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains(':') {
            text.parse().map(Self::Port)
        } else {
            text.parse().map(Self::Switch)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_netmap_writes_them() {
        let port: PortName = "vale0:p1".parse().unwrap();
        assert_eq!((port.switch.as_str(), port.port.as_str()), ("vale0", "p1"));
        assert_eq!(port.path(), "/v1/switches/vale0/ports/p1");
        assert_eq!(port.to_string(), "vale0:p1");
        assert!(matches!("vale0".parse(), Ok(Name::Switch(_))));
        assert!(matches!("vale0:p1".parse(), Ok(Name::Port(_))));
    }

    #[test]
    fn what_could_leave_its_place_in_a_path_is_no_name() {
        for bad in ["", "..", "-x", "a/b", "a?b", "a b", "a%2f", "vale0123456789ab", "vale0:p", "é"]
        {
            assert!(bad.parse::<SwitchName>().is_err(), "{bad:?}");
        }
        for bad in ["vale0", "vale0:", ":p1", "vale0:p1:2", "vale0:x{1", "vale0:../x y"] {
            assert!(bad.parse::<PortName>().is_err(), "{bad:?}");
        }
        assert!(format!("v:{}", "p".repeat(31)).parse::<PortName>().is_ok());
        assert!(format!("v:{}", "p".repeat(32)).parse::<PortName>().is_err());
    }
}
