//! Cards that toklat's own drivers drive by VFIO: a process for each, outside the data process.
//!
//! ```text
//!   supervisor             card process                                 card
//!     starts       ------>   opens card and port, then raises walls       |
//!     serves ring  <------   is the port's client: its region is what ----+ reads and writes,
//!     reads lines  <------   reports state and counts                       and nothing else
//! ```
//!
//! Its end closes the card's file: the kernel takes the card's bus mastering away and resets it.
//! The port then waits, and the process is started again.

pub mod driven;
mod keep;
pub mod process;

use std::fs;
use std::path::Path;

pub use self::keep::{Start, keep};

/// Where the kernel shows the devices that user space may drive.
const GIVEN: &str = "/sys/bus/pci/drivers/vfio-pci";

/// The PCI address of a card that netmap programs name. `card03.00.0` is at 0000:03:00.0; `card0`,
/// `card1` and so on are the cards that vfio-pci has, in the order of their addresses.
#[must_use]
pub fn address_of(name: &str) -> Option<String> {
    pick(given(Path::new(GIVEN)), name)
}

/// The card of these that has a name.
fn pick(cards: Vec<String>, name: &str) -> Option<String> {
    let text = name.strip_prefix("card")?;
    let is = |(number, address): &(usize, String)| {
        number.to_string() == text || name_of(address).as_deref() == Some(name)
    };
    cards.into_iter().enumerate().find(is).map(|(_, address)| address)
}

/// The name of a card that stays when other cards come and go; `None` outside of PCI domain 0, for
/// want of room in netmap's names.
#[must_use]
pub fn name_of(address: &str) -> Option<String> {
    Some(format!("card{}", address.strip_prefix("0000:")?.replace(':', ".")))
}

/// The addresses of the network cards in this directory of a driver, in their order.
fn given(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_card = |address: &String| {
        let class = fs::read_to_string(directory.join(address).join("class"));
        address.contains(':') && class.is_ok_and(|class| class.starts_with("0x02"))
    };
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut addresses: Vec<_> = names.filter(is_card).collect();
    addresses.sort_unstable();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_numbered_in_the_order_of_their_addresses() {
        let here = tempfile::tempdir().unwrap();
        for (name, class) in [
            ("0000:05:00.0", "0x020000"),
            ("0000:03:00.1", "0x020000"),
            ("0000:03:00.0", "0x010802"),
            ("module", "0x020000"),
        ] {
            fs::create_dir(here.path().join(name)).unwrap();
            fs::write(here.path().join(name).join("class"), format!("{class}\n")).unwrap();
        }
        fs::write(here.path().join("bind"), "").unwrap();
        assert_eq!(given(here.path()), ["0000:03:00.1", "0000:05:00.0"]);
        assert!(given(&here.path().join("none")).is_empty());
        let cards = || given(here.path());
        for (name, address) in [
            ("card0", "0000:03:00.1"),
            ("card1", "0000:05:00.0"),
            ("card03.00.1", "0000:03:00.1"),
            ("card05.00.0", "0000:05:00.0"),
        ] {
            assert_eq!(pick(cards(), name).as_deref(), Some(address), "{name}");
        }
        // The first card leaves: one name stays with the other card.
        fs::remove_dir_all(here.path().join("0000:03:00.1")).unwrap();
        for name in ["card0", "card05.00.0"] {
            assert_eq!(pick(cards(), name).as_deref(), Some("0000:05:00.0"), "{name}");
        }
        for none in [
            "card",
            "card00",
            "card+0",
            "card-0",
            "cards0",
            "card1",
            "eth0",
            "card03.00.1",
            "card5.0.0",
            "card05:00.0",
            "card0000.05.00.0",
        ] {
            assert_eq!(pick(cards(), none), None, "{none}");
        }
        assert_eq!(name_of("10000:e1:00.0"), None);
    }
}
