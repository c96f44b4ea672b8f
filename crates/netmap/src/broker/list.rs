//! Numbers of switches and of their ports, in the order in which `VALE_LIST` returns them. Each
//! user sees own names and root's; root sees all. Every operation takes logarithmic time.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use super::lowest::Lowest;

/// The port number that stands for a switch without such a port.
pub(super) const NO_PORT: u32 = 255;

/// Whose name an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// An interface of the host in a switch, which all users see.
    Host,
    /// A user's adapter.
    User(u32),
}

impl Owner {
    /// The user whose name it is.
    const fn uid(self) -> u32 {
        match self {
            Self::Host => 0,
            Self::User(uid) => uid,
        }
    }
}

/// The numbers of a switch and of a port in it.
type Place = (u16, u32);

/// The numbers of switches and ports.
#[derive(Debug)]
pub(super) struct List {
    numbers: Lowest,
    by_name: BTreeMap<String, u16>,
    switches: BTreeMap<u16, Switch>,
    /// The entries of each user.
    of: BTreeMap<u32, BTreeSet<Place>>,
    all: BTreeSet<Place>,
}

#[derive(Debug)]
struct Switch {
    name: String,
    numbers: Lowest,
    by_name: BTreeMap<(String, Owner), u32>,
    ports: BTreeMap<u32, String>,
}

impl Default for List {
    fn default() -> Self {
        Self {
            numbers: Lowest::new(0, u16::MAX.into()),
            by_name: BTreeMap::new(),
            switches: BTreeMap::new(),
            of: BTreeMap::new(),
            all: BTreeSet::new(),
        }
    }
}

impl List {
    /// Adds a port to a switch; returns its number there. [`NO_PORT`] if all numbers are in use.
    pub(super) fn add(&mut self, switch: &str, port: &str, owner: Owner) -> u32 {
        let Some(at) = self.number_of(switch) else { return NO_PORT };
        let Some(entry) = self.switches.get_mut(&at) else { return NO_PORT };
        let key = (port.to_owned(), owner);
        if let Some(known) = entry.by_name.get(&key) {
            return *known;
        }
        let Some(number) = entry.numbers.take() else { return NO_PORT };
        entry.by_name.insert(key, number);
        entry.ports.insert(number, port.to_owned());
        self.of.entry(owner.uid()).or_default().insert((at, number));
        self.all.insert((at, number));
        number
    }

    /// The number of a switch, which is added if there is none.
    fn number_of(&mut self, switch: &str) -> Option<u16> {
        if let Some(at) = self.by_name.get(switch) {
            return Some(*at);
        }
        let at = u16::try_from(self.numbers.take()?).ok()?;
        let name = switch.to_owned();
        self.by_name.insert(name.clone(), at);
        let (numbers, by_name, ports) =
            (Lowest::new(0, u32::MAX - 1), <_>::default(), <_>::default());
        self.switches.insert(at, Switch { name, numbers, by_name, ports });
        Some(at)
    }

    /// Removes a port from its switch; returns its number. A switch without ports is removed.
    pub(super) fn remove(&mut self, switch: &str, port: &str, owner: Owner) -> Option<u32> {
        let at = *self.by_name.get(switch)?;
        let entry = self.switches.get_mut(&at)?;
        let number = entry.by_name.remove(&(port.to_owned(), owner))?;
        entry.ports.remove(&number);
        entry.numbers.give(number);
        if entry.ports.is_empty() {
            self.switches.remove(&at);
            self.by_name.remove(switch);
            self.numbers.give(at.into());
        }
        self.all.remove(&(at, number));
        if let Some(own) = self.of.get_mut(&owner.uid()) {
            own.remove(&(at, number));
            if own.is_empty() {
                self.of.remove(&owner.uid());
            }
        }
        Some(number)
    }

    /// The sets of entries that a user sees.
    fn seen_by(&self, uid: u32) -> [Option<&BTreeSet<Place>>; 2] {
        match uid {
            0 => [Some(&self.all), None],
            uid => [self.of.get(&0), self.of.get(&uid)],
        }
    }

    /// The first entry at or after these numbers that a user sees.
    fn first_from(&self, uid: u32, from: Place) -> Option<Place> {
        let sets = self.seen_by(uid).into_iter().flatten();
        sets.filter_map(|set| set.range(from..).next().copied()).min()
    }

    /// Returns the numbers of a switch and a port, as far as a user sees them: own names first.
    pub(super) fn find(&self, uid: u32, switch: &str, port: &str) -> Result<Place, Errno> {
        let at = *self.by_name.get(switch).ok_or(Errno::NOENT)?;
        let sees = self.first_from(uid, (at, 0)).is_some_and(|(first, _)| first == at);
        let entry = self.switches.get(&at).filter(|_| sees).ok_or(Errno::NOENT)?;
        let named = |owner: Owner| entry.by_name.get(&(port.to_owned(), owner)).copied();
        let own = [Owner::User(uid), Owner::Host, Owner::User(0)].into_iter().find_map(named);
        let others = || {
            let from = (port.to_owned(), Owner::Host);
            let (key, number) = entry.by_name.range(from..).next()?;
            (uid == 0 && key.0 == port).then_some(*number)
        };
        Ok((at, own.or_else(others).unwrap_or(NO_PORT)))
    }

    /// Returns the first port at or after these numbers that a user sees, and its name.
    pub(super) fn next(&self, uid: u32, bridge: u16, port: u32) -> Option<(u16, u32, String)> {
        let (at, number) = self.first_from(uid, (bridge, port))?;
        let switch = self.switches.get(&at)?;
        let port = switch.ports.get(&number)?;
        Some((at, number, format!("{}:{port}", switch.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Owner = Owner::User(0);

    fn walk(list: &List, uid: u32) -> Vec<String> {
        let (mut at, mut names) = (Some((0, 0)), Vec::new());
        while let Some((bridge, port, name)) = at.and_then(|(b, p)| list.next(uid, b, p)) {
            names.push(name);
            at = Some((bridge, port + 1));
        }
        names
    }

    #[test]
    fn ports_are_found_and_walked_in_order() {
        let mut list = List::default();
        let [a, b, c] = [("vale0", "a"), ("vale0", "b"), ("vale1", "c")];
        assert_eq!([a, b, c].map(|(switch, port)| list.add(switch, port, ROOT)), [0, 1, 0]);
        assert_eq!(list.add("vale0", "b", ROOT), 1, "known already");
        assert_eq!(list.find(0, "vale0", "b"), Ok((0, 1)));
        assert_eq!(list.find(0, "vale1", "x"), Ok((1, NO_PORT)));
        assert_eq!(list.find(0, "vale2", "x"), Err(Errno::NOENT));
        assert_eq!(walk(&list, 0), ["vale0:a", "vale0:b", "vale1:c"]);
        assert_eq!(list.remove("vale0", "a", ROOT), Some(0));
        assert_eq!(list.remove("vale1", "c", ROOT), Some(0));
        assert_eq!((walk(&list, 0), list.add("vale7", "d", ROOT)), (vec!["vale0:b".to_owned()], 0));
        assert_eq!(list.find(0, "vale7", "d"), Ok((1, 0)), "the free number is used again");
    }

    #[test]
    fn users_see_their_own_names_and_roots_and_root_sees_all() {
        let mut list = List::default();
        list.add("vale0", "root", ROOT);
        list.add("vale0", "eth0", Owner::Host);
        list.add("vale0", "mine", Owner::User(7));
        list.add("vale1", "p", Owner::User(8));
        let p = list.add("vale1", "p", Owner::User(7));
        assert_eq!(p, 1, "another user's port of the same name");
        assert_eq!(walk(&list, 7), ["vale0:root", "vale0:eth0", "vale0:mine", "vale1:p"]);
        assert_eq!(walk(&list, 9), ["vale0:root", "vale0:eth0"]);
        assert_eq!(walk(&list, 0).len(), 5);
        assert_eq!([7, 8].map(|uid| list.find(uid, "vale1", "p")), [Ok((1, 1)), Ok((1, 0))]);
        assert_eq!(list.find(9, "vale1", "p"), Err(Errno::NOENT), "nothing there is theirs");
        assert_eq!(list.find(9, "vale0", "mine"), Ok((0, NO_PORT)));
        assert!(list.find(0, "vale1", "p").is_ok_and(|(_, port)| port != NO_PORT));
        assert_eq!(list.remove("vale1", "p", Owner::User(9)), None);
    }
}
