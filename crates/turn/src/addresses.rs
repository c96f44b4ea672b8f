//! The addresses that a port was given.

use fabric::{Fdb, Filter, VlanMode};
use frame::Mac;
use port::{Nanos, PortId};
use topology::Policy;

use crate::attach::AttachError;

/// Enters a port's configured addresses into the table, and removes earlier ones.
///
/// # Errors
/// [`AttachError::TableFull`]: the earlier ones are restored.
pub fn set_addresses(
    fdb: &Fdb,
    id: PortId,
    policy: &Policy,
    earlier: &Policy,
    now: Nanos,
) -> Result<(), AttachError> {
    let entries = |policy: &Policy| -> Vec<(Filter, Mac)> {
        let macs: Vec<_> =
            policy.macs.iter().filter(|mac| !mac.is_group() && mac.word() != 0).collect();
        let filters = filters_of(&policy.vlan).into_iter();
        filters.flat_map(|filter| macs.iter().map(move |mac| (filter, **mac))).collect()
    };
    let remove = |entries: &[(Filter, Mac)]| {
        for (filter, mac) in entries {
            fdb.remove(*filter, *mac);
        }
    };
    let (wanted, earlier) = (entries(policy), entries(earlier));
    remove(&earlier);
    let no_room = |(filter, mac): &(Filter, Mac)| !fdb.add_static(*filter, *mac, id, now);
    let Some(full) = wanted.iter().position(no_room) else { return Ok(()) };
    remove(&wanted[..full]);
    for (filter, mac) in earlier {
        fdb.add_static(filter, mac, id, now);
    }
    Err(AttachError::TableFull(wanted[full].1))
}

/// The filters in which a port's configured addresses are looked up. For a trunk with all VLANs it
/// is only the native one.
fn filters_of(vlan: &VlanMode) -> Vec<Filter> {
    match vlan {
        VlanMode::Unaware => vec![0],
        VlanMode::Access(id) => vec![id.get()],
        VlanMode::Trunk { allowed, native } => {
            let mut filters: Vec<_> = allowed.iter().chain(native).map(|id| id.get()).collect();
            filters.sort_unstable();
            filters.dedup();
            filters
        }
    }
}
