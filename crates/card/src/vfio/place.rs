//! Where a card is: its group and its driver, from sysfs
//! (`Documentation/ABI/testing/sysfs-bus-pci`).

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// The kernel's driver for user space.
const DRIVER: &str = "vfio-pci";
/// A group's name where there is no IOMMU (`CONFIG_VFIO_NOIOMMU`).
const UNPROTECTED: &str = "vfio-noiommu";

/// The reason why a card cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceError {
    /// The text is no PCI address.
    #[error("{0:?} is not a PCI address such as 0000:03:00.0")]
    Address(String),
    /// There is no card at the address.
    #[error("There is no PCI device {0}; lspci -D lists them")]
    Absent(String),
    /// The card is not behind an IOMMU.
    #[error(
        "{0} is behind no IOMMU, and could write anywhere; switch the IOMMU on in the firmware, and in the \
         kernel (intel_iommu=on)"
    )]
    NoIommu(String),
    /// Another driver owns the card, or none does.
    #[error(
        "{} has {address}, not vfio-pci; as root: modprobe vfio-pci; cd /sys/bus/pci/devices/{address}; \
         echo vfio-pci >driver_override; {}echo {address} >/sys/bus/pci/drivers_probe",
        .driver.as_ref().map_or_else(|| "No driver".to_owned(), |driver| format!("The driver {driver}")),
        if .driver.is_some() { format!("echo {address} >driver/unbind; ") } else { String::new() }
    )]
    Driver {
        /// The card's address.
        address: String,
        /// Its driver.
        driver: Option<String>,
    },
}

impl PlaceError {
    /// The error without its remedy, and the remedy.
    #[must_use]
    pub fn advice(&self) -> (String, String) {
        let text = self.to_string();
        let (reason, remedy) = text.split_once("; ").unwrap_or((&text, "name another card"));
        (reason.to_owned(), remedy.to_owned())
    }
}

/// A card that user space may use.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// The full address, with its domain.
    pub address: String,
    /// The number of the card's IOMMU group.
    pub group: u32,
    /// The other devices of the group.
    pub neighbours: Vec<String>,
    /// Vendor and device.
    pub identity: (u16, u16),
}

impl Place {
    /// Finds the card at an address, in the file system under `root`.
    pub fn find(root: &Path, address: &str) -> Result<Self, PlaceError> {
        let address = in_full(address).ok_or_else(|| PlaceError::Address(address.to_owned()))?;
        let device = root.join("sys/bus/pci/devices").join(&address);
        if !device.exists() {
            return Err(PlaceError::Absent(address));
        }
        let driver = target(&device.join("driver"));
        if driver.as_deref() != Some(DRIVER) {
            return Err(PlaceError::Driver { address, driver });
        }
        let group = device.join("iommu_group");
        let name = fs::read_to_string(group.join("name")).unwrap_or_default();
        let number = target(&group).and_then(|number| number.parse().ok());
        let Some(number) = number.filter(|_| name.trim_end() != UNPROTECTED) else {
            return Err(PlaceError::NoIommu(address));
        };
        let devices = fs::read_dir(group.join("devices")).into_iter().flatten().flatten();
        let names = devices.map(|device| device.file_name().to_string_lossy().into_owned());
        let neighbours = names.filter(|name| *name != address).collect();
        let identity = ["vendor", "device"].map(|name| number_in(&device.join(name)));
        Ok(Self { address, group: number, neighbours, identity: identity.into() })
    }
}

/// The hexadecimal number in a file; all ones if there is none, as of a card that was removed.
fn number_in(file: &Path) -> u16 {
    let text = fs::read_to_string(file).unwrap_or_default();
    u16::from_str_radix(text.trim_end().trim_start_matches("0x"), 16).unwrap_or(u16::MAX)
}

/// The last component of a link's target.
fn target(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    target.file_name().and_then(OsStr::to_str).map(str::to_owned)
}

/// Returns the address with its domain; `None` for other texts, which must not become file names.
fn in_full(address: &str) -> Option<String> {
    let full = match address.matches(':').count() {
        1 => format!("0000:{address}"),
        _ => address.to_owned(),
    };
    let (domain, rest) = full.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let is_hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let good = (is_hex(domain, 4) || is_hex(domain, 5))
        && is_hex(bus, 2)
        && is_hex(device, 2)
        && is_hex(function, 1);
    good.then(|| full.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A card at 0000:03:00.0. If it has a group, that is 7, with a neighbour.
    fn machine(driver: Option<&str>, group: Option<&str>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:03:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("vendor"), "0x8086\n").unwrap();
        fs::write(device.join("device"), "0x100e\n").unwrap();
        if let Some(driver) = driver {
            symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
        }
        if let Some(name) = group {
            let group = root.path().join("groups/7");
            fs::create_dir_all(group.join("devices/0000:03:00.0")).unwrap();
            fs::create_dir(group.join("devices/0000:03:00.1")).unwrap();
            fs::write(group.join("name"), name).unwrap();
            symlink(group, device.join("iommu_group")).unwrap();
        }
        root
    }

    fn find(driver: Option<&str>, group: Option<&str>, at: &str) -> Result<Place, PlaceError> {
        Place::find(machine(driver, group).path(), at)
    }

    #[test]
    fn a_card_for_programs_is_found_with_its_group() {
        for address in ["0000:03:00.0", "03:00.0"] {
            let place = find(Some("vfio-pci"), Some("\n"), address).unwrap();
            assert_eq!((place.group, place.address.as_str()), (7, "0000:03:00.0"));
            assert_eq!(place.neighbours, ["0000:03:00.1"]);
            assert_eq!(place.identity, (0x8086, 0x100e));
        }
    }

    #[test]
    fn what_is_in_the_way_is_said_with_its_remedy() {
        let vfio = Some("vfio-pci");
        let address = "0000:03:00.0".to_owned();
        assert_eq!(find(vfio, None, &address), Err(PlaceError::NoIommu(address.clone())));
        // A group without an IOMMU.
        let noiommu = find(vfio, Some("vfio-noiommu\n"), &address);
        assert_eq!(noiommu, Err(PlaceError::NoIommu(address.clone())));
        let absent = PlaceError::Absent("0000:04:00.0".into());
        assert_eq!(find(vfio, Some(""), "04:00.0"), Err(absent));
        let error = find(Some("e1000e"), Some(""), &address).unwrap_err().to_string();
        assert!(
            error.starts_with("The driver e1000e has 0000:03:00.0") && error.contains("unbind")
        );
        let error = find(None, Some(""), &address).unwrap_err().to_string();
        assert!(error.starts_with("No driver has 0000:03:00.0") && !error.contains("unbind"));
        for text in ["", "eth0", "../../../x", "3:0.0", "0000:03:00", "0000:03:00.0/.."] {
            assert_eq!(find(vfio, None, text), Err(PlaceError::Address(text.into())), "{text}");
        }
    }
}
