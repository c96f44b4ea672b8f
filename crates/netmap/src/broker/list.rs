//! Numbers of switches and of their ports, in the order in which `VALE_LIST` returns them.

use rustix::io::Errno;

/// The port number that stands for a switch without such a port.
pub(super) const NO_PORT: u32 = 255;

#[derive(Debug, Default)]
pub(super) struct List {
    switches: Vec<Option<Switch>>,
}

#[derive(Debug)]
struct Switch {
    name: String,
    ports: Vec<Option<String>>,
}

/// Puts `value` at the first free place, or appends it; returns the index.
fn place<T>(places: &mut Vec<Option<T>>, value: T) -> usize {
    let at = places.iter().position(Option::is_none).unwrap_or(places.len());
    if at == places.len() {
        places.push(None);
    }
    places[at] = Some(value);
    at
}

impl List {
    fn position(&self, switch: &str) -> Option<usize> {
        self.switches.iter().position(|s| s.as_ref().is_some_and(|s| s.name == switch))
    }

    fn port(&self, at: usize, port: &str) -> Option<usize> {
        let switch = self.switches.get(at)?.as_ref()?;
        switch.ports.iter().position(|p| p.as_deref() == Some(port))
    }

    /// Adds a port to a switch; returns its number there.
    pub(super) fn add(&mut self, switch: &str, port: &str) -> u32 {
        let at = self.position(switch).unwrap_or_else(|| {
            place(&mut self.switches, Switch { name: switch.into(), ports: Vec::new() })
        });
        let known = self.port(at, port);
        let Some(Some(switch)) = self.switches.get_mut(at) else { return NO_PORT };
        known.unwrap_or_else(|| place(&mut switch.ports, port.to_owned())) as u32
    }

    /// Removes a port from its switch; returns its number. A switch without ports is removed.
    pub(super) fn remove(&mut self, switch: &str, port: &str) -> Option<u32> {
        let at = self.position(switch)?;
        let number = self.port(at, port)?;
        let place = self.switches.get_mut(at)?;
        let ports = &mut place.as_mut()?.ports;
        ports[number] = None;
        if ports.iter().all(Option::is_none) {
            *place = None;
        }
        Some(number as u32)
    }

    /// Removes the ports that are not there.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str, &str) -> bool) {
        let all: Vec<_> = self.switches.iter().flatten().collect();
        let names = all.iter().flat_map(|switch| {
            switch.ports.iter().flatten().map(|port| (switch.name.clone(), port.clone()))
        });
        let gone: Vec<_> = names.filter(|(switch, port)| !is_there(switch, port)).collect();
        for (switch, port) in gone {
            self.remove(&switch, &port);
        }
    }

    /// Returns the numbers of a switch and a port.
    pub(super) fn find(&self, switch: &str, port: &str) -> Result<(u16, u32), Errno> {
        let at = self.position(switch).ok_or(Errno::NOENT)?;
        Ok((at as u16, self.port(at, port).map_or(NO_PORT, |number| number as u32)))
    }

    /// Returns the first port at or after these numbers, and its name.
    pub(super) fn next(&self, bridge: u16, port: u32) -> Option<(u16, u32, String)> {
        let from = usize::from(bridge);
        let switches = self.switches.iter().enumerate().skip(from);
        switches.filter_map(|(at, switch)| Some((at, switch.as_ref()?))).find_map(|(at, switch)| {
            let skip = if at == from { port as usize } else { 0 };
            let mut ports = switch.ports.iter().enumerate().skip(skip);
            let (number, name) = ports.find_map(|(n, name)| Some((n, name.as_ref()?)))?;
            Some((at as u16, number as u32, format!("{}:{name}", switch.name)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_and_walked_in_order() {
        let mut list = List::default();
        assert_eq!(
            [list.add("vale0", "a"), list.add("vale0", "b"), list.add("vale1", "c")],
            [0, 1, 0]
        );
        assert_eq!(list.add("vale0", "b"), 1, "known already");
        assert_eq!(list.find("vale0", "b"), Ok((0, 1)));
        assert_eq!(list.find("vale1", "x"), Ok((1, NO_PORT)));
        assert_eq!(list.find("vale2", "x"), Err(Errno::NOENT));
        let walk = |list: &List| {
            let (mut at, mut names) = (Some((0, 0)), Vec::new());
            while let Some((bridge, port, name)) = at.and_then(|(b, p)| list.next(b, p)) {
                names.push(name);
                at = Some((bridge, port + 1));
            }
            names
        };
        assert_eq!(walk(&list), ["vale0:a", "vale0:b", "vale1:c"]);
        assert_eq!(list.remove("vale0", "a"), Some(0));
        assert_eq!(list.remove("vale1", "c"), Some(0));
        assert_eq!((walk(&list), list.add("vale7", "d")), (vec!["vale0:b".to_owned()], 0));
        assert_eq!(list.find("vale7", "d"), Ok((1, 0)), "the free number is used again");
    }
}
