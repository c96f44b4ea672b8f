//! Where samples of a switch's traffic go.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The UDP port of collectors.
const PORT: u16 = 6343;

/// Where an sFlow collector listens: an address, with a UDP port or with 6343. Names are not looked
/// up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Collector(pub SocketAddr);

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let with_port = text.parse::<SocketAddr>();
        let address = with_port.or_else(|_| text.parse::<IpAddr>().map(|ip| (ip, PORT).into()));
        match address {
            Ok(address) if address.port() != 0 && !address.ip().is_unspecified() => {
                Ok(Self(address))
            }
            _ => Err(format!(
                "{text} is not a collector's address: use 192.0.2.1, 192.0.2.1:6343 or [2001:db8::1]:6343"
            )),
        }
    }
}

impl TryFrom<String> for Collector {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Collector> for String {
    fn from(collector: Collector) -> Self {
        collector.to_string()
    }
}

impl std::fmt::Display for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_an_address_with_or_without_a_port() {
        let read = |text: &str| text.parse::<Collector>().map(|collector| collector.to_string());
        assert_eq!(read("192.0.2.1").unwrap(), "192.0.2.1:6343");
        assert_eq!(read("192.0.2.1:7000").unwrap(), "192.0.2.1:7000");
        assert_eq!(read("2001:db8::1").unwrap(), "[2001:db8::1]:6343");
        assert_eq!(read("[2001:db8::1]:7000").unwrap(), "[2001:db8::1]:7000");
        for bad in ["", "collector", "192.0.2.1:0", "0.0.0.0", "192.0.2.1:99999", "::"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
