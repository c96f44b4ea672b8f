//! What the table's writer knows besides the entries: how many each user has, and the home of
//! addresses that move.
//!
//! The ledger is private memory of the data process. A successor counts the entries again, and
//! takes each address's current place as its home.

use std::collections::HashMap;

use port::Nanos;

use super::{Origin, Station};

/// Moves of an address with less time than this between them belong to one spell of flapping.
const CALM_NS: u64 = 8 * Nanos::SECOND;
/// More moves than this in a spell indicate a loop or an attack.
const MAX_MOVES: u32 = 4;
/// The user of ports for which none was set.
const NO_USER: u32 = u32::MAX;

/// A port's entries.
#[derive(Clone, Copy, Debug)]
struct Share {
    entries: u32,
    learned: u32,
    user: u32,
}

/// A user's learned addresses, over all ports.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    learned: u32,
    quota: u32,
}

/// Where an address was before it began to move.
#[derive(Clone, Copy, Debug)]
struct FlapEpisode {
    home: Station,
    moves: u32,
    /// The last move, or attempted move.
    last: Nanos,
}

/// What to do with an address that is heard at another port than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// The address moves to the new place.
    There,
    /// The address moved too often: it goes back to the place where its series of moves began.
    Home(Station),
}

/// The writer's records.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: u32,
    /// The number of entries of each origin, and its limit.
    origins: [(u32, u32); Origin::COUNT],
    ports: Vec<Share>,
    users: Vec<User>,
    /// By key. Only addresses in the table have a record, so this map is no larger than the table.
    spells: HashMap<u64, FlapEpisode>,
    /// The bucket at which the next eviction starts.
    hand: u32,
}

impl Ledger {
    pub fn new(ports: usize, entries: u32) -> Self {
        Self {
            entries: 0,
            origins: [(0, u32::MAX); Origin::COUNT],
            ports: vec![Share { entries: 0, learned: 0, user: NO_USER }; ports],
            users: Vec::new(),
            spells: HashMap::with_capacity(entries.min(1024) as usize),
            hand: 0,
        }
    }

    /// Forgets how many entries there are; users and limits stay.
    pub fn forget_counts(&mut self) {
        self.entries = 0;
        self.origins.iter_mut().for_each(|(there, _)| *there = 0);
        self.ports.iter_mut().for_each(|share| (share.entries, share.learned) = (0, 0));
        self.users.iter_mut().for_each(|user| user.learned = 0);
    }

    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The number of entries of a port.
    pub fn of(&self, port: u16) -> u32 {
        self.ports.get(usize::from(port)).map_or(0, |share| share.entries)
    }

    pub fn set_capacity(&mut self, origin: Origin, entries: u32) {
        self.origins[origin as usize].1 = entries;
    }

    /// The user whose port an entry names.
    pub fn user_of(&self, station: Station) -> u32 {
        self.ports.get(usize::from(station.port())).map_or(NO_USER, |share| share.user)
    }

    fn user(&mut self, uid: u32) -> &mut User {
        let at = self.users.iter().position(|user| user.uid == uid).unwrap_or_else(|| {
            self.users.push(User { uid, learned: 0, quota: u32::MAX });
            self.users.len() - 1
        });
        &mut self.users[at]
    }

    pub fn count(&mut self, station: Station, by: i32) {
        self.entries = self.entries.saturating_add_signed(by);
        let (there, _) = &mut self.origins[station.origin() as usize];
        *there = there.saturating_add_signed(by);
        let learned = if station.origin().is_dynamic() { by } else { 0 };
        let Some(share) = self.ports.get_mut(usize::from(station.port())) else { return };
        share.entries = share.entries.saturating_add_signed(by);
        share.learned = share.learned.saturating_add_signed(learned);
        let user = share.user;
        let user = self.user(user);
        user.learned = user.learned.saturating_add_signed(learned);
    }

    pub fn set_user(&mut self, port: u16, uid: u32, quota: u32) {
        let Some(share) = self.ports.get_mut(usize::from(port)) else { return };
        let (before, learned) = (std::mem::replace(&mut share.user, uid), share.learned);
        let earlier = self.user(before);
        earlier.learned = earlier.learned.saturating_sub(learned);
        let user = self.user(uid);
        (user.learned, user.quota) = (user.learned + learned, quota);
        // Users without ports are forgotten.
        if before != uid && !self.ports.iter().any(|share| share.user == before) {
            self.users.retain(|user| user.uid != before);
        }
    }

    /// False if one more such entry would exceed the limit of its origin or its port's user.
    pub fn may_add(&mut self, station: Station) -> bool {
        let (there, capacity) = self.origins[station.origin() as usize];
        let uid = self.user_of(station);
        let user = self.user(uid);
        let in_quota = !station.origin().is_dynamic() || user.learned < user.quota;
        there < capacity && in_quota
    }

    /// The user with the most learned addresses, if evicting one of them for `station`'s user makes
    /// the shares more equal.
    pub fn heavier_than(&mut self, station: Station) -> Option<u32> {
        let uid = self.user_of(station);
        let dynamic = station.origin().is_dynamic();
        let own = if dynamic { self.user(uid).learned + 1 } else { 0 };
        let heaviest = self.users.iter().max_by_key(|user| user.learned)?;
        (heaviest.learned > own).then_some(heaviest.uid)
    }

    pub fn next_hand(&mut self) -> u32 {
        self.hand = self.hand.wrapping_add(1);
        self.hand
    }

    /// Decides about an address that is at `from` and heard at `to`.
    pub fn moves(&mut self, key: u64, from: Station, to: Station, now: Nanos) -> Moved {
        let begins = FlapEpisode { home: from, moves: 0, last: now };
        let spell = self.spells.entry(key).or_insert(begins);
        if now - spell.last >= CALM_NS {
            *spell = begins;
        }
        spell.last = now;
        if spell.moves >= MAX_MOVES {
            return Moved::Home(spell.home);
        }
        spell.moves += 1;
        // An address that returns home and stays has not moved.
        debug_assert!(!from.is_same_place(to), "that is no move");
        Moved::There
    }

    /// Forgets an address that left the table.
    pub fn forget(&mut self, key: u64) {
        self.spells.remove(&key);
    }
}
