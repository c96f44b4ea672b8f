//! The output of segments and routes: own routes, notices for operators, and counts.

use std::collections::HashMap;
use std::net::IpAddr;

use frame::Mac;

use crate::path::Update;
use crate::route::{Key, OwnRoute};

/// The known routes, by key.
pub(crate) type Routes = HashMap<Key, Stored>;

/// An event that an operator should know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A station moved too often, and stays where it is for a while.
    Duplicate {
        /// Its segment.
        vni: u32,
        /// The station.
        mac: Mac,
    },
    /// Another host claims a station that never leaves this one.
    Claimed {
        /// Its segment.
        vni: u32,
        /// The station.
        mac: Mac,
        /// The host.
        by: IpAddr,
    },
    /// A host withdraws more routes in a while than it may.
    Damped {
        /// The host.
        host: IpAddr,
    },
    /// A segment has more hosts than there are numbers.
    TooManyHosts {
        /// The segment.
        vni: u32,
    },
    /// A host advertises more stations than it may.
    TooMany {
        /// The host.
        host: IpAddr,
    },
}

/// Routes that were not taken, and other events, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Updates that were taken.
    pub updates: u64,
    /// Withdrawals of routes that were there.
    pub withdrawals: u64,
    /// Routes that are malformed.
    pub malformed: u64,
    /// Routes for another kind of tunnel.
    pub other_tunnel: u64,
    /// Routes whose host is not valid: this host, an address of another IP version, a group.
    pub bad_host: u64,
    /// Routes beyond a limit.
    pub over_limit: u64,
    /// New routes of hosts that had withdrawn too many.
    #[serde(default)]
    pub damped: u64,
    /// Choices of stations that did not get into the table, as their segment has too many hosts.
    #[serde(default)]
    pub no_number: u64,
    /// Moves of stations between this host and others.
    pub moves: u64,
    /// Stations that stayed where they were because they moved too often.
    pub duplicates: u64,
}

/// A route of another host.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub update: Update,
    /// Not confirmed since the daemon was lost.
    pub stale: bool,
}

/// The consequences of an event for other parts than the tables.
#[derive(Debug)]
pub(crate) struct Told {
    pub vtep: IpAddr,
    /// Own routes by key, and whether each is withdrawn.
    pub routes: HashMap<Key, (OwnRoute, bool)>,
    pub notices: Vec<Notice>,
    pub counters: Counters,
}

impl Told {
    pub fn advertise(&mut self, route: OwnRoute) {
        self.routes.insert(route.key, (route, false));
    }

    pub fn withdraw(&mut self, route: OwnRoute) {
        self.routes.insert(route.key, (route, true));
    }

    pub fn say(&mut self, notice: Notice) {
        /// The maximum number of notices that wait.
        const MOST: usize = 256;
        self.counters.duplicates += u64::from(matches!(notice, Notice::Duplicate { .. }));
        if self.notices.len() < MOST {
            self.notices.push(notice);
        }
    }

    pub fn count_move(&mut self) {
        self.counters.moves += 1;
    }
}
