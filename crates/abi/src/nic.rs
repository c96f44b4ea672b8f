//! The models of NICs that a port can emulate: their names, and what a port may ask of each.
//!
//! The models themselves are in the crate `nic`, whose table has a row for each of these.

/// A model, by its names.
#[derive(Debug)]
pub struct NicName {
    /// The NIC's name on the command line and in files.
    pub name: &'static str,
    /// The maker's name for the NIC.
    pub title: &'static str,
    /// True if the NIC can offer a shared status block ([`crate::csb`]).
    pub csb: bool,
    /// True if a driver may write doorbells as plain memory.
    pub shared_doorbells: bool,
}

/// Intel 82540EM: the `e1000` of most guests.
pub static I82540EM: NicName =
    NicName { name: "82540em", title: "82540EM", csb: true, shared_doorbells: true };

/// Intel 82574L: `e1000e`.
pub static I82574L: NicName =
    NicName { name: "82574l", title: "82574L", csb: true, shared_doorbells: true };

/// AMD Am79C970A, PCnet-PCI II: `pcnet32`.
pub static AM79C970A: NicName =
    NicName { name: "am79c970a", title: "Am79C970A", csb: true, shared_doorbells: false };

/// AMD Am79C973, PCnet-FAST III.
pub static AM79C973: NicName =
    NicName { name: "am79c973", title: "Am79C973", csb: true, shared_doorbells: false };

/// Denali's one-access NIC, the template for others: no guest has a driver for it.
pub static ONE_ACCESS: NicName =
    NicName { name: "one-access", title: "one-access", csb: false, shared_doorbells: false };

/// All models.
pub static NAMES: [&NicName; 5] = [&I82540EM, &I82574L, &AM79C970A, &AM79C973, &ONE_ACCESS];
