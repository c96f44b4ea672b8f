//! The ledger, as the broker charges users on it.

use std::sync::Arc;

use netmap::broker::{self, Charge, Held};
use rustix::io::Errno;

use crate::daemon::quota::{self, File, Item, Ledger};

/// The accounts of users.
#[derive(Debug)]
pub struct Accounts(Arc<Ledger>);

impl Accounts {
    /// The accounts in this ledger.
    pub fn of(ledger: &Arc<Ledger>) -> Self {
        Self(Arc::clone(ledger))
    }

    fn one(&self, uid: u32, item: Item) -> Result<quota::Charge, Errno> {
        let errno = if item == Item::NetmapDescriptor { Errno::MFILE } else { Errno::NOMEM };
        self.0.charge(uid, item).map_err(|error| {
            tracing::info!(uid, %error, "netmap object refused");
            errno
        })
    }
}

impl broker::Accounts for Accounts {
    fn charge(&self, uid: u32, held: Held<'_>) -> Result<Charge, Errno> {
        Ok(match held {
            Held::Opened => Box::new(self.one(uid, Item::NetmapDescriptor)?),
            Held::Adapter => Box::new(self.one(uid, Item::NetmapAdapter)?),
            Held::PersistentPort => Box::new(self.one(uid, Item::NetmapPort)?),
            Held::Region(memory) => {
                let file = File::of(memory).map_err(|_| Errno::IO)?;
                let region = self.one(uid, Item::NetmapRegion)?;
                Box::new([region, self.one(uid, Item::Memory(file))?])
            }
        })
    }
}
