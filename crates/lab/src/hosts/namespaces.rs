//! The end of network namespaces and of what runs in them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::programs::ip;

/// Where `ip` has the names of namespaces.
const NAMES: &str = "/run/netns";
/// How long killed programs may take to end.
const END: Duration = Duration::from_secs(5);

/// Kills all that runs in a namespace, and removes the namespace. A program that has changed its
/// user, as routers do, does not end with the process that started it.
pub fn remove(name: &str) {
    let begun = Instant::now();
    while kill_all(name) > 0 && begun.elapsed() < END {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = ip(&format!("netns del {name}"));
}

/// Removes all namespaces whose names begin with `prefix`.
pub fn remove_all(prefix: &str) {
    names().filter(|name| name.starts_with(prefix)).for_each(|name| remove(&name));
}

/// Removes namespaces called `<prefix><pid>-...` whose process is gone.
pub fn remove_abandoned(prefix: &str) {
    for name in names() {
        if maker(&name, prefix).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&name);
        }
    }
}

fn names() -> impl Iterator<Item = String> {
    let all = std::fs::read_dir(NAMES).into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().into_string().ok())
}

/// The number of the process that made a namespace of this name.
fn maker(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.split_once('-')?.0.parse().ok()
}

/// Sends SIGKILL to all processes in a namespace; returns how many there were.
fn kill_all(name: &str) -> usize {
    let of = |path: String| Some(std::fs::metadata(path).ok()?).map(|m| (m.dev(), m.ino()));
    let Some(namespace) = of(format!("{NAMES}/{name}")) else { return 0 };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let killed = pids.filter_map(Pid::from_raw).filter(|pid| {
        // While the descriptor is open, the number belongs to the same process.
        let Ok(held) = pidfd_open(*pid, PidfdFlags::empty()) else { return false };
        let is_in = of(format!("/proc/{}/ns/net", pid.as_raw_nonzero())) == Some(namespace);
        is_in && pidfd_send_signal(held, Signal::KILL).is_ok()
    });
    killed.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_of_a_namespace_is_read_from_its_name() {
        assert_eq!(maker("toklat-hosts-12-h1", "toklat-hosts-"), Some(12));
        for other in ["toklat-hosts-12", "toklat-hosts-x-h1", "toklat-demo-12-h1", "-12-"] {
            assert_eq!(maker(other, "toklat-hosts-"), None, "{other}");
        }
    }
}
