//! Unused user numbers, one for each process that is confined.

use std::io;

use rustix::thread::CapabilitySet;

/// The ranges that user numbers are taken from: start and length. The first one is assigned to
/// nothing (systemd's list of users, and those of distributions, end below). The second is that of
/// systemd's dynamic users: containers often have 65,536 users, and no systemd.
const RANGES: [(u32, u32); 2] = [(0x7000_0000, 1 << 24), (61_184, 4096)];

/// Why a process does not get a user of its own.
pub const NOT_ROOT: &str = "only root may choose another user, and the daemon does not run as root";

/// The user number for `name`: always the same, and almost always different for another name.
/// `None` if this process may not change users, or has no such users.
#[must_use]
pub fn dedicated(name: &str) -> Option<u32> {
    may_change().then_some(())?;
    let maps = ["/proc/self/uid_map", "/proc/self/gid_map"].map(std::fs::read_to_string);
    let maps: io::Result<Vec<String>> = maps.into_iter().collect();
    choose(name, &maps.ok()?)
}

/// True if this process may change the user and group of itself and its children.
#[must_use]
pub fn may_change() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    super::privileges::holds(needed)
}

/// The user number for `name`, with the users and groups of these maps (`/proc/PID/uid_map`).
fn choose(name: &str, maps: &[String]) -> Option<u32> {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let candidates = RANGES.map(|(first, count)| first + (hash % u64::from(count)) as u32);
    candidates.into_iter().find(|user| maps.iter().all(|map| has(map, *user)))
}

fn has(map: &str, user: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u32> = line.split_whitespace().flat_map(str::parse).collect();
        let [first, _, count] = numbers[..] else { return false };
        user >= first && user - first < count
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_users_of_their_own_among_those_that_are_there() {
        let all = ["0 0 4294967295\n".to_owned(), "0 0 4294967295\n".to_owned()];
        let user = choose("/run/toklat vale0", &all).unwrap();
        assert!((0x7000_0000..0x7100_0000).contains(&user), "{user}");
        assert_eq!(choose("/run/toklat vale0", &all), Some(user));
        assert_ne!(choose("/run/toklat vale1", &all), Some(user));
        // A container that an unprivileged user started.
        let few = ["0 1000 1\n1 100000 65535\n".to_owned(), all[1].clone()];
        let user = choose("/run/toklat vale0", &few).unwrap();
        assert!((61_184..65_280).contains(&user), "{user}");
        assert_eq!(choose("/run/toklat vale0", &["0 1000 1\n".to_owned(), all[1].clone()]), None);
    }
}
