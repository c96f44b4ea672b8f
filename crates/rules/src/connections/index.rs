//! Where entries are: two buckets of eight for each tuple, at places that cannot be foreseen; free
//! entries; and for each port, its unanswered entries from the oldest on.

use super::Tuple;

const WAYS: usize = 8;
/// The end of a list.
const END: u32 = u32::MAX;

/// Eight places: tags, and entries and one; 0 is free.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; WAYS],
    entries: [u32; WAYS],
}

impl Bucket {
    /// The places with this tag, a bit each. All are compared at once.
    #[inline]
    fn with(&self, tag: u32) -> u32 {
        let mut found = 0;
        for way in 0..WAYS {
            found |= u32::from(self.tags[way] == tag && self.entries[way] != 0) << way;
        }
        found
    }
}

#[derive(Clone, Copy, Debug)]
struct Port {
    /// Entries that it began.
    count: usize,
    /// Unanswered ones.
    oldest: u32,
    newest: u32,
    unanswered: usize,
}

#[derive(Debug)]
pub(super) struct Index {
    key: u64,
    buckets: Vec<Bucket>,
    free: Vec<u32>,
    /// The entries before and after an unanswered one.
    links: Vec<(u32, u32)>,
    ports: Vec<Port>,
}

impl Index {
    pub fn new(capacity: usize, key: u64) -> Self {
        let buckets = (capacity / 4).max(2).next_power_of_two();
        Self {
            key,
            buckets: vec![Bucket::default(); buckets],
            free: Vec::with_capacity(capacity),
            links: vec![(END, END); capacity],
            ports: Vec::new(),
        }
    }

    pub fn capacity(&self) -> u32 {
        self.links.len() as u32
    }

    pub fn len(&self) -> usize {
        self.links.len() - self.free.len()
    }

    /// The two buckets of a tuple and its tag.
    #[inline]
    fn places(&self, tuple: &Tuple) -> ([usize; 2], u32) {
        let hash = tuple.hash(self.key);
        let (mask, tag) = (self.buckets.len() - 1, (hash >> 40) as u32);
        let other = (hash as usize >> 20 ^ tag as usize) & mask;
        ([hash as usize & mask, other], tag)
    }

    /// Entries that may be of this tuple.
    #[inline]
    pub fn candidates(&self, tuple: &Tuple) -> impl Iterator<Item = u32> + '_ {
        let mut found = 0;
        let mut places = [0; 2];
        if self.len() > 0 {
            let tag;
            (places, tag) = self.places(tuple);
            found = self.buckets[places[0]].with(tag);
            if places[0] != places[1] {
                found |= self.buckets[places[1]].with(tag) << WAYS;
            }
        }
        std::iter::from_fn(move || {
            let at = (found != 0).then(|| found.trailing_zeros() as usize)?;
            found &= found - 1;
            Some(self.buckets[places[at / WAYS % 2]].entries[at % WAYS] - 1)
        })
    }

    /// Notes an entry; `None` if both buckets are full.
    pub fn insert(&mut self, tuple: &Tuple, number: u32, port: u16) -> Option<()> {
        let (places, tag) = self.places(tuple);
        let used =
            |place: usize| self.buckets[place].entries.iter().filter(|own| **own != 0).count();
        let emptier = if used(places[0]) <= used(places[1]) { places[0] } else { places[1] };
        let bucket = &mut self.buckets[emptier];
        let way = bucket.entries.iter().position(|own| *own == 0)?;
        (bucket.tags[way], bucket.entries[way]) = (tag, number + 1);
        self.port(port).count += 1;
        Some(())
    }

    pub fn remove(&mut self, tuple: &Tuple, number: u32, port: u16) {
        let (places, _) = self.places(tuple);
        for place in places {
            for own in &mut self.buckets[place].entries {
                if *own == number + 1 {
                    *own = 0;
                    let port = self.port(port);
                    port.count = port.count.saturating_sub(1);
                    return;
                }
            }
        }
    }

    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    fn port(&mut self, port: u16) -> &mut Port {
        let none = Port { count: 0, oldest: END, newest: END, unanswered: 0 };
        if self.ports.len() <= usize::from(port) {
            self.ports.resize(usize::from(port) + 1, none);
        }
        &mut self.ports[usize::from(port)]
    }

    /// How many entries a port has begun.
    pub fn count(&self, port: u16) -> usize {
        self.ports.get(usize::from(port)).map_or(0, |port| port.count)
    }

    /// A port's oldest unanswered entry.
    pub fn oldest(&self, port: u16) -> Option<u32> {
        let oldest = self.ports.get(usize::from(port))?.oldest;
        (oldest != END).then_some(oldest)
    }

    /// The port with the most unanswered entries.
    pub fn crowded(&self) -> Option<u16> {
        let ports = self.ports.iter().enumerate().filter(|(_, port)| port.unanswered > 0);
        ports.max_by_key(|(_, port)| port.unanswered).map(|(number, _)| number as u16)
    }

    /// Appends an unanswered entry to its port's list.
    pub fn append(&mut self, number: u32, port: u16) {
        let list = self.port(port);
        let before = std::mem::replace(&mut list.newest, number);
        list.unanswered += 1;
        match before {
            END => list.oldest = number,
            before => self.links[before as usize].1 = number,
        }
        self.links[number as usize] = (before, END);
    }

    pub fn remove_from_list(&mut self, number: u32, port: u16) {
        let (before, after) = self.links[number as usize];
        let list = self.port(port);
        if before == END && list.oldest != number {
            return;
        }
        list.unanswered -= 1;
        match before {
            END => list.oldest = after,
            before => self.links[before as usize].1 = after,
        }
        match after {
            END => self.port(port).newest = before,
            after => self.links[after as usize].0 = before,
        }
        self.links[number as usize] = (END, END);
    }
}
