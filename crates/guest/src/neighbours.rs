//! Neighbours: the MAC addresses of next hops, by ARP (RFC 826; RFC 1122, 2.3.2) or by neighbour
//! discovery (RFC 4861, 7), and the packets that wait for them.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use frame::{Mac, Offload};
use tcp::Nanos;

/// How long an address is used before it is requested again.
const FRESH: u64 = 30 * Nanos::SECOND;
/// How long an address is used without a new answer (RFC 1122, 2.3.2.1).
const OLD: u64 = 60 * Nanos::SECOND;
/// Time between requests for one address (RFC 1122, 2.3.2.1: at most one a second).
const RETRY: u64 = Nanos::SECOND;
/// After this many unanswered requests, the neighbour counts as gone.
const TRIES: u8 = 3;
/// Limit of the frames that wait for one neighbour, in bytes (RFC 1122, 2.3.2.2): many SYNs, or a
/// window.
const WAIT_EACH: usize = 128 << 10;
/// Limit of the frames that wait for all neighbours together, in bytes.
const WAIT_ALL: usize = 512 << 10;
/// Memory that a frame takes beyond its bytes.
const OVERHEAD: usize = 64;

/// The state of a packet's next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// The hop's address. If `ask` is set, another request is due, to confirm the address.
    Known { mac: Mac, ask: bool },
    /// The hop's address is not known yet. If `ask` is set, a request is due.
    Unknown { ask: bool },
}

#[derive(Debug, Default)]
struct Neighbour {
    mac: Option<Mac>,
    /// Until then the address is used without a request.
    fresh: Nanos,
    /// From then on it is not used.
    old: Nanos,
    /// Requests since the last answer. Unless it is 0, an entry in `asked` waits for the answer.
    tries: u8,
    serial: u64,
    waiting: Vec<(Vec<u8>, Offload)>,
    bytes: usize,
}

/// The next step for an unanswered request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due<A> {
    /// Repeat the request.
    Ask(A),
    /// The neighbour is gone; this many packets waited for it.
    Gone(A, usize),
}

/// What a neighbour advertisement says beside the address (RFC 4861, 4.4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advertised {
    /// It answers a request.
    pub solicited: bool,
    /// It replaces another address that is known.
    pub overrides: bool,
}

/// Frames that waited for a neighbour's address.
pub(crate) type Kept = Vec<(Vec<u8>, Offload)>;

/// A bounded hash table with a keyed hash. All requests wait equally long, so a queue holds their
/// deadlines.
#[derive(Debug)]
pub(crate) struct Neighbours<A> {
    table: HashMap<A, Neighbour>,
    /// Oldest first, for eviction. An entry whose serial number has changed is stale.
    order: VecDeque<(A, u64)>,
    asked: VecDeque<(Nanos, A, u64)>,
    most: usize,
    serial: u64,
    /// Waiting frames of all neighbours, in bytes.
    bytes: usize,
    /// The result of the last lookup: most packets go to the same hop as the one before.
    last: Option<(A, Mac, Nanos)>,
}

impl<A: Copy + Eq + Hash> Neighbours<A> {
    pub fn new(most: usize) -> Self {
        Self {
            table: HashMap::new(),
            order: VecDeque::new(),
            asked: VecDeque::new(),
            most: most.max(1),
            serial: 0,
            bytes: 0,
            last: None,
        }
    }

    /// Returns the number of neighbours, and of the bytes that wait for them.
    pub fn usage(&self) -> (usize, usize) {
        (self.table.len(), self.bytes)
    }

    /// Returns the address of a next hop. If `ask` is set, the caller must send a request, which is
    /// already counted.
    pub fn find(&mut self, hop: A, now: Nanos) -> Hop {
        if let Some((last, mac, until)) = self.last
            && last == hop
            && now < until
        {
            return Hop::Known { mac, ask: false };
        }
        self.insert(hop);
        let Some(found) = self.table.get_mut(&hop) else { return Hop::Unknown { ask: false } };
        if now > found.old {
            found.mac = None;
        }
        let due = found.tries == 0 && (found.mac.is_none() || now > found.fresh);
        let ask = due && self.asked.len() < 2 * self.most;
        if ask {
            found.tries = 1;
            self.asked.push_back((now + RETRY, hop, found.serial));
        }
        match found.mac {
            Some(mac) => {
                if now <= found.fresh {
                    self.last = Some((hop, mac, found.fresh));
                }
                Hop::Known { mac, ask }
            }
            None => Hop::Unknown { ask },
        }
    }

    /// Keeps a frame until the neighbour's address is known; returns false if too much waits, or no
    /// request could be made.
    pub fn keep(&mut self, hop: A, frame: Vec<u8>, offload: Offload) -> bool {
        let bytes = frame.len() + OVERHEAD;
        let Some(found) = self.table.get_mut(&hop) else { return false };
        let full = self.bytes + bytes > WAIT_ALL || found.bytes + bytes > WAIT_EACH;
        // Without a request, nothing would ever end the wait.
        if full || found.tries == 0 {
            return false;
        }
        found.waiting.push((frame, offload));
        found.bytes += bytes;
        self.bytes += bytes;
        true
    }

    /// Notes a neighbour's address; returns the frames that waited for it.
    ///
    /// Only a neighbour that was asked for or is in use is noted. With `new`, others are noted if
    /// there is room. So unsolicited packets evict nothing.
    pub fn confirm(&mut self, hop: A, mac: Mac, new: bool, now: Nanos) -> Kept {
        if new && self.table.len() < self.most {
            self.insert(hop);
        }
        let Some(found) = self.table.get_mut(&hop) else { return Vec::new() };
        (found.mac, found.tries) = (Some(mac), 0);
        (found.fresh, found.old) = (now + FRESH, now + OLD);
        self.release(hop)
    }

    /// Notes an address that a neighbour states without having been asked: it is used, and a
    /// request confirms it at its first use (RFC 4861, 7.2.3). `new` is as for
    /// [`confirm`](Self::confirm).
    pub fn mention(&mut self, hop: A, mac: Mac, new: bool, now: Nanos) -> Kept {
        if new && self.table.len() < self.most {
            self.insert(hop);
        }
        match self.table.get_mut(&hop) {
            Some(found) if found.mac != Some(mac) => {
                (found.mac, found.fresh, found.old) = (Some(mac), now, now + OLD);
                self.release(hop)
            }
            _ => Vec::new(),
        }
    }

    /// Notes what a neighbour advertises (RFC 4861, 7.2.5). `mac` is missing if it is the one that
    /// is known.
    pub fn advertise(&mut self, hop: A, mac: Option<Mac>, how: Advertised, now: Nanos) -> Kept {
        let Some(found) = self.table.get_mut(&hop) else { return Vec::new() };
        let known = found.mac.filter(|_| now <= found.old);
        let Some(mac) = mac.or(known) else { return Vec::new() };
        if known.is_some_and(|known| known != mac) && !how.overrides {
            found.fresh = found.fresh.min(now);
            self.last = None;
            return Vec::new();
        }
        match how.solicited {
            true => self.confirm(hop, mac, false, now),
            false => self.mention(hop, mac, false, now),
        }
    }

    /// Takes the frames that wait for a neighbour whose address has become known.
    fn release(&mut self, hop: A) -> Kept {
        self.last = None;
        let Some(found) = self.table.get_mut(&hop) else { return Vec::new() };
        self.bytes -= std::mem::take(&mut found.bytes);
        std::mem::take(&mut found.waiting)
    }

    /// Forgets all neighbours. Returns how many frames waited for them.
    pub fn clear(&mut self) -> usize {
        let waiting = self.table.drain().map(|(_, gone)| gone.waiting.len()).sum();
        self.order.clear();
        self.asked.clear();
        (self.bytes, self.last) = (0, None);
        waiting
    }

    fn insert(&mut self, hop: A) {
        if self.table.contains_key(&hop) {
            return;
        }
        while self.table.len() >= self.most {
            let Some((oldest, serial)) = self.order.pop_front() else { return };
            if self.table.get(&oldest).is_some_and(|found| found.serial == serial) {
                self.remove(oldest);
            }
        }
        self.serial += 1;
        let serial = self.serial;
        self.table.insert(hop, Neighbour { serial, ..Neighbour::default() });
        self.order.push_back((hop, serial));
        if self.order.len() > 2 * self.most {
            let table = &self.table;
            self.order.retain(|(hop, serial)| table.get(hop).is_some_and(|n| n.serial == *serial));
        }
    }

    fn remove(&mut self, hop: A) -> usize {
        self.last = None;
        let Some(gone) = self.table.remove(&hop) else { return 0 };
        self.bytes -= gone.bytes;
        gone.waiting.len()
    }

    /// Returns when [`due`](Self::due) next has work.
    pub fn deadline(&self) -> Option<Nanos> {
        self.asked.front().map(|(due, ..)| *due)
    }

    /// Returns the next request that was not answered in time.
    pub fn due(&mut self, now: Nanos) -> Option<Due<A>> {
        loop {
            let (_, hop, serial) = *self.asked.front().filter(|(due, ..)| *due <= now)?;
            self.asked.pop_front();
            let Some(found) = self.table.get_mut(&hop).filter(|found| found.serial == serial)
            else {
                continue;
            };
            match found.tries {
                0 => {}
                TRIES.. => return Some(Due::Gone(hop, self.remove(hop))),
                _ => {
                    found.tries += 1;
                    self.asked.push_back((now + RETRY, hop, serial));
                    return Some(Due::Ask(hop));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HOP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
    const START: Nanos = Nanos(100 * Nanos::SECOND);

    #[test]
    fn what_waits_for_a_neighbour_is_sent_when_it_answers() {
        let mut neighbours = Neighbours::new(4);
        assert_eq!(neighbours.find(HOP, START), Hop::Unknown { ask: true });
        assert_eq!(neighbours.find(HOP, START), Hop::Unknown { ask: false }, "asked once");
        let mut kept = 0;
        while neighbours.keep(HOP, vec![0; 1500], Offload::NONE) {
            kept += 1;
        }
        assert!((50..100).contains(&kept), "{kept}");
        let mac = Mac::local(9);
        assert_eq!(neighbours.confirm(HOP, mac, false, START).len(), kept);
        assert_eq!(neighbours.usage(), (1, 0));
        assert_eq!(neighbours.find(HOP, START), Hop::Known { mac, ask: false });
    }

    #[test]
    fn a_silent_neighbour_is_asked_three_times_and_given_up() {
        let mut neighbours = Neighbours::new(4);
        neighbours.find(HOP, START);
        neighbours.keep(HOP, vec![1], Offload::NONE);
        let mut now = START;
        for _ in 1..TRIES {
            now = neighbours.deadline().unwrap();
            assert_eq!(neighbours.due(now), Some(Due::Ask(HOP)));
            assert_eq!(neighbours.due(now), None);
        }
        now = now + RETRY;
        assert_eq!(neighbours.due(now), Some(Due::Gone(HOP, 1)));
        assert_eq!((neighbours.usage(), neighbours.deadline()), ((0, 0), None));
    }

    #[test]
    fn an_old_address_is_asked_for_again_while_it_is_used() {
        let mut neighbours = Neighbours::new(4);
        let mac = Mac::local(9);
        neighbours.confirm(HOP, mac, true, START);
        let later = START + FRESH + 1;
        assert_eq!(neighbours.find(HOP, later), Hop::Known { mac, ask: true });
        assert_eq!(neighbours.find(HOP, later), Hop::Known { mac, ask: false });
        neighbours.confirm(HOP, mac, false, later);
        assert_eq!(neighbours.due(later + RETRY), None, "it has answered");
        assert_eq!(neighbours.find(HOP, later + OLD + 1), Hop::Unknown { ask: true });
    }

    #[test]
    fn the_table_stays_within_its_bounds() {
        let mut neighbours = Neighbours::new(8);
        for i in 0..10_000u32 {
            let hop = Ipv4Addr::from(0x0a00_0000 + i);
            neighbours.find(hop, START);
            neighbours.keep(hop, vec![0; 10], Offload::NONE);
        }
        let (hosts, bytes) = neighbours.usage();
        assert!(hosts == 8 && bytes <= 8 * (10 + OVERHEAD), "{bytes}");
        assert!(neighbours.order.len() <= 16 && neighbours.asked.len() <= 16);
        for seconds in 1..10 {
            while neighbours.due(START + seconds * RETRY).is_some() {}
        }
        assert_eq!(neighbours.usage().1, 0, "nothing waits for ever");
        while neighbours.due(START + 100 * RETRY).is_some() {}
        assert!(neighbours.confirm(Ipv4Addr::BROADCAST, Mac::local(1), false, START).is_empty());
    }

    #[test]
    fn a_stated_address_is_used_and_confirmed_and_does_not_replace_one_that_is_known() {
        let mut neighbours = Neighbours::new(4);
        let [first, second] = [Mac::local(1), Mac::local(2)];
        let unasked = |overrides| Advertised { solicited: false, overrides };
        assert!(neighbours.advertise(HOP, Some(first), unasked(true), START).is_empty());
        assert_eq!(neighbours.usage().0, 0, "an advertisement makes no neighbour");
        neighbours.mention(HOP, first, true, START);
        assert_eq!(neighbours.find(HOP, START + 1), Hop::Known { mac: first, ask: true });
        let answer = Advertised { solicited: true, overrides: false };
        neighbours.advertise(HOP, None, answer, START + 2);
        assert_eq!(neighbours.find(HOP, START + 3), Hop::Known { mac: first, ask: false });
        // Without the override flag, another address is a reason to ask, and no more.
        neighbours.advertise(HOP, Some(second), unasked(false), START + 4);
        assert_eq!(neighbours.find(HOP, START + 5), Hop::Known { mac: first, ask: true });
        neighbours.advertise(HOP, Some(second), unasked(true), START + 6);
        assert_eq!(neighbours.find(HOP, START + 7), Hop::Known { mac: second, ask: false });
        neighbours.keep(HOP, vec![1], Offload::NONE);
        neighbours.clear();
        assert_eq!((neighbours.usage(), neighbours.deadline()), ((0, 0), None));
    }
}
