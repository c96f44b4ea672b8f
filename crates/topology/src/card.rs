//! Network cards that toklat's own drivers drive.

use serde::{Deserialize, Serialize};

use crate::{Claim, Invalid, Kind, Policy};

/// A network card that toklat's own driver drives by VFIO, in a process of its own (the daemon
/// needs /dev/vfio).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Its PCI address as `lspci -D` prints it, such as 0000:03:00.0. Its driver in the kernel has
    /// to be vfio-pci.
    #[cfg_attr(feature = "clap", arg(id = "card", long = "card", value_name = "ADDRESS"))]
    #[cfg_attr(feature = "schemars", schemars(regex(pattern = PCI_ADDRESS)))]
    pub address: String,
}

/// What a PCI address looks like, as a regular expression.
pub const PCI_ADDRESS: &str = "^[0-9a-f]{4,5}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]$";

/// True for a text that [`PCI_ADDRESS`] matches.
fn is_address(text: &str) -> bool {
    let hex = |text: &str, lens: &[usize]| {
        lens.contains(&text.len())
            && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let parts: Vec<_> = text.split([':', '.']).collect();
    let [domain, bus, device, function] = parts[..] else { return false };
    text == format!("{domain}:{bus}:{device}.{function}")
        && hex(domain, &[4, 5])
        && hex(bus, &[2])
        && hex(device, &[2])
        && matches!(function.as_bytes(), [b'0'..=b'7'])
}

impl Kind for Card {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        if !is_address(&self.address) {
            let reason = format!("{port}: {:?} is not a PCI address", self.address);
            return Err(Invalid::new(
                reason,
                "use one that `lspci -D` prints, such as 0000:03:00.0",
            ));
        }
        Ok(())
    }

    fn claim(&self) -> Option<Claim> {
        let what = format!("Card {}", self.address);
        Some(Claim { what, remedy: "give each port a card of its own" })
    }

    fn describe(&self) -> String {
        format!("card {}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_whole() {
        let check = |address: &str| {
            Card { address: address.into() }.check("vale0:up", &Policy::default()).is_ok()
        };
        for good in ["0000:03:00.0", "10000:e1:1f.7"] {
            assert!(check(good), "{good}");
        }
        for bad in [
            "",
            "eth0",
            "03:00.0",
            "0000:03:00.8",
            "0000:03:00",
            "0000.03:00:0",
            "0000:3:00.0",
            "0000:03:0A.0",
        ] {
            assert!(!check(bad), "{bad}");
        }
    }
}
