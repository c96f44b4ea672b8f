//! How much memory of peers this process may map, and how much it has mapped.

use std::sync::{Arc, OnceLock};

use shmem::budget::{self, Account, Extent};
use shmem::guard;

use super::Process;
use crate::config::{Limits, PortId, SwitchConfig};

/// Mappings reserved for the process: stacks, buffers, those of the C library. Once the guard has
/// replaced a page of a peer's mapping, the kernel counts three.
const OWN_MAPPINGS: u64 = 16 * 1024 + 2 * guard::MAX_SPLIT as u64;
/// The kernel's default of `vm.max_map_count`, for systems where it cannot be read.
const MAX_MAP_COUNT: u64 = 65_530;
/// The maximum number of mappings for one port: twice those for a front end's slots, logs and
/// areas, because a new memory table exists beside the old one for a while; and those for hundreds
/// of files or windows of ranges.
const MAPPINGS_OF_A_PORT: u64 = 600;

/// The maximum number of mappings of this process. It is read once, before the process is confined.
pub(super) fn max_map_count() -> u64 {
    static MAPPINGS: OnceLock<u64> = OnceLock::new();
    *MAPPINGS.get_or_init(|| {
        let said = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        said.ok().and_then(|said| said.trim().parse().ok()).unwrap_or(MAX_MAP_COUNT)
    })
}

/// The maximum number of mappings for all peers together.
pub(super) fn most_mappings() -> u64 {
    let kernel = max_map_count();
    // Some entries of the guard cover registers of cards, in our own files.
    kernel.saturating_sub(OWN_MAPPINGS).min(guard::MAPPINGS as u64 / 4 * 3)
}

/// Estimates the bytes of address space of a process: its stacks are at the end.
fn address_space() -> u64 {
    let here = 0u8;
    let stack = std::ptr::from_ref(&here).addr() as u64;
    stack.checked_next_power_of_two().unwrap_or(1 << 47)
}

/// The limits of a switch of this configuration.
pub(super) fn limits(config: &SwitchConfig, most_mappings: u64) -> budget::Limits {
    let bytes = config.max_mapped_memory.min(address_space() / 2);
    budget::Limits {
        port: Extent { bytes: config.max_guest_memory, mappings: MAPPINGS_OF_A_PORT },
        all: Extent { bytes, mappings: most_mappings },
        ports: config.max_ports.into(),
    }
}

/// The limits for what users may have mapped.
pub(super) fn user_limits(limits: &Limits) -> budget::UserLimits {
    let named = limits.users.iter().map(|(uid, limits)| (*uid, limits.memory));
    budget::UserLimits { each: limits.each.memory, named: named.collect() }
}

impl Process {
    /// Stores in the state memory what is mapped for a port.
    pub(super) fn note_memory(&self, id: PortId) {
        let record = self.ports.get(usize::from(id)).and_then(Option::as_ref);
        if let (Some(record), Some(state)) = (record, self.state.port(id)) {
            state.set_lent(&record.account);
        }
    }

    /// Opens an account for a port of this user.
    pub(super) fn open_account(&self, uid: u32) -> Arc<Account> {
        Account::new(&self.budget, uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_serve_large_guests_and_many() {
        let limits = limits(&SwitchConfig::default(), most_mappings());
        assert!(address_space() >= 1 << 38 && address_space().is_power_of_two());
        #[cfg(target_arch = "x86_64")]
        {
            assert_eq!(address_space(), 1 << 47);
            assert_eq!(limits.all.bytes, 64 << 40);
            assert_eq!(limits.guaranteed().bytes, 8 << 30, "each of 4,096 ports");
            assert!(limits.shared().bytes >= 8 * limits.port.bytes);
        }
        // Holds for the kernel's default; fewer mappings allow fewer.
        assert!(most_mappings() < 40_000 || limits.guaranteed().mappings >= 8);
    }

    #[test]
    fn limits_of_users_are_those_of_memory() {
        use crate::config::UserLimits;
        let of = |memory| UserLimits { memory, ..UserLimits::default() };
        let said =
            Limits { each: of(Some(7)), users: vec![(0, of(Some(u64::MAX))), (5, of(None))] };
        let limits = user_limits(&said);
        assert_eq!(
            (limits.each, limits.named[&0], limits.named[&5]),
            (Some(7), Some(u64::MAX), None)
        );
    }
}
