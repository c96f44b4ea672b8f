//! The oracle for a supervisor's children: none is a zombie, and no descriptor or thread stays.

use std::time::{Duration, Instant};

use crate::processes::descriptors;
use crate::waiting::PATIENCE;

/// How long a supervisor may take to reap a child.
const REAPED: Duration = Duration::from_secs(20);

/// What `/proc/PID/stat` says of a process: its number, its name, its state, and its parent.
#[derive(Clone, Debug)]
pub struct Child {
    /// Its number.
    pub pid: i32,
    /// The name of its program.
    pub name: String,
    /// Its state, as `Z` for a zombie.
    pub state: char,
}

/// The children of a process.
#[must_use]
pub fn of(parent: u32) -> Vec<Child> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?.chars().next()?;
        let is_child = fields.next()?.parse() == Ok(parent);
        is_child.then(|| Child { pid, name: name.to_owned(), state })
    })
    .collect()
}

/// The children of a process that have ended and were not reaped.
#[must_use]
pub fn zombies(parent: u32) -> Vec<Child> {
    of(parent).into_iter().filter(|child| child.state == 'Z').collect()
}

/// Waits until a process has reaped all children that have ended.
pub fn assert_no_zombie(parent: u32) {
    let started = Instant::now();
    loop {
        let zombies = zombies(parent);
        if zombies.is_empty() || is_stopped(parent) {
            return;
        }
        assert!(started.elapsed() < REAPED, "{parent} reaps no child: {zombies:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// True if a process is stopped, or is not there.
fn is_stopped(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_none_or(|state| state.trim().starts_with(['T', 't', 'Z', 'X']))
}

/// What a supervisor holds: descriptors, threads and children.
#[derive(Clone, Copy, Debug)]
pub struct Held([usize; 3]);

impl Held {
    /// What a process holds now.
    #[must_use]
    pub fn by(pid: u32) -> Self {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
        Self([descriptors(pid), threads, of(pid).len()])
    }

    /// Waits until the supervisor holds no more than this, and has no zombie.
    pub fn assert_no_more(self, pid: u32) {
        assert_no_zombie(pid);
        let started = Instant::now();
        loop {
            let now = Self::by(pid);
            if now.0.iter().zip(self.0).all(|(now, before)| *now <= before) {
                return;
            }
            let children = of(pid);
            assert!(
                started.elapsed() < PATIENCE,
                "descriptors, threads, children: {self:?} before, {now:?} now: {children:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
