//! All regions, by their numbers and by their files. Every look-up takes logarithmic time.

use std::collections::BTreeMap;

use netring::layout::Geometry;
use rustix::io::Errno;

use super::lowest::Lowest;
use super::region::{GLOBAL, Region, global};
use super::{Accounts, Held};

/// Limit of a region's size for users other than root: its pages are written, and freed, in one go.
const MOST_MEMORY: u64 = 256 << 20;

/// The regions.
#[derive(Debug)]
pub(super) struct Regions {
    accounts: Box<dyn Accounts>,
    numbers: Lowest,
    by_id: BTreeMap<u16, Region>,
    /// The regions in memory of programs, by what identifies the file.
    by_file: BTreeMap<(u64, u64), u16>,
}

impl Regions {
    pub(super) fn new(accounts: Box<dyn Accounts>) -> Self {
        let numbers = Lowest::new(u32::from(GLOBAL) + 1, u32::from(u16::MAX) - 1);
        Self { accounts, numbers, by_id: BTreeMap::new(), by_file: BTreeMap::new() }
    }

    pub(super) fn accounts(&self) -> &dyn Accounts {
        &*self.accounts
    }

    pub(super) fn get(&self, id: u16) -> Option<&Region> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u16) -> Option<&mut Region> {
        self.by_id.get_mut(&id)
    }

    /// The region in this file.
    pub(super) fn in_file(&self, identity: (u64, u64)) -> Option<&Region> {
        self.by_file.get(&identity).and_then(|id| self.get(*id))
    }

    /// The number that the next region gets.
    pub(super) fn free_id(&self) -> Option<u16> {
        self.numbers.peek().and_then(|id| u16::try_from(id).ok())
    }

    /// Returns the region for a new port of a user: the requested one, or one of its own. The
    /// number of the region that would be made next may be requested, too. Only root may ask for
    /// another user's region, by its number.
    pub(super) fn for_port(
        &mut self,
        uid: u32,
        wanted: u16,
        geometry: impl FnOnce() -> Geometry,
    ) -> Result<u16, Errno> {
        if wanted != 0 {
            if wanted == GLOBAL && !self.by_id.contains_key(&wanted) {
                self.admit(Region::create(wanted, uid, global())?)?;
            }
            if let Some(region) = self.get(wanted) {
                let may = region.uid == uid || uid == 0;
                return if may { Ok(wanted) } else { Err(Errno::ACCESS) };
            }
        }
        let id = self.free_id().ok_or(Errno::NOMEM)?;
        // `PORT_INFO_GET` answers which region a port that is not there would get.
        if ![0, id].contains(&wanted) {
            return Err(Errno::INVAL);
        }
        self.admit(Region::create(id, uid, geometry())?)?;
        Ok(id)
    }

    /// Adds a new region, whose number is [`free_id`](Self::free_id), and charges its user for it.
    pub(super) fn admit(&mut self, mut region: Region) -> Result<(), Errno> {
        let most = if region.uid == 0 { u64::MAX } else { MOST_MEMORY };
        if region.geometry.file_size() > most {
            return Err(Errno::NOMEM);
        }
        region.charge = Some(self.accounts.charge(region.uid, Held::Region(region.file()))?);
        if region.id != GLOBAL {
            self.numbers.take();
        }
        if let Some(identity) = region.identity() {
            self.by_file.insert(identity, region.id);
        }
        self.by_id.insert(region.id, region);
        Ok(())
    }

    /// Notes that one more adapter uses a region.
    pub(super) fn use_by_adapter(&mut self, id: u16) {
        if let Some(region) = self.get_mut(id) {
            region.adapters += 1;
        }
    }

    /// Notes that an adapter does not use a region any more.
    pub(super) fn leave_by_adapter(&mut self, id: u16) {
        if let Some(region) = self.get_mut(id) {
            region.adapters = region.adapters.saturating_sub(1);
        }
        self.drop_unused(id);
    }

    /// Drops a region that no adapter uses.
    pub(super) fn drop_unused(&mut self, id: u16) {
        let Some(region) = self.by_id.get(&id).filter(|region| region.adapters == 0) else {
            return;
        };
        if let Some(identity) = region.identity() {
            self.by_file.remove(&identity);
        }
        self.by_id.remove(&id);
        if id != GLOBAL {
            self.numbers.give(id.into());
        }
    }

    /// True if there is none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.by_file.is_empty()
    }
}
