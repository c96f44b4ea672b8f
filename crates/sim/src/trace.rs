//! What hosts sent and received: a hash of all of it, and the last frames.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::hash::Hasher;
use std::path::Path;
use std::time::Duration;

use guest::Nanos;
pub use pcap::file::Direction;
use pcap::file::{self, Captured};
use siphasher::sip::SipHasher13;
use smoltcp::wire::{EthernetFrame, PrettyPrinter};

/// Frames that are kept, unless a world captures.
const KEPT: usize = 4096;
/// Frames that a failed world prints.
pub(crate) const SHOWN: usize = 20;

/// A host of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(crate) usize);

impl HostId {
    /// Its place among the hosts of its world, in the order in which they were added.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A frame that a host sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When.
    pub at: Nanos,
    /// By which host.
    pub host: HostId,
    /// Which way it went, from the host's point of view.
    pub direction: Direction,
    /// The whole frame. One that the receiver or the switch is to cut into segments is uncut.
    pub bytes: Box<[u8]>,
}

/// The frames of a world.
#[derive(Debug)]
pub(crate) struct Trace {
    pub now: Nanos,
    hasher: SipHasher13,
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that were sent or received.
    pub seen: u64,
    last: VecDeque<Seen>,
    /// All frames are kept.
    pub keeps_all: bool,
    /// The hash after each frame, for comparisons.
    pub steps: Option<Vec<u64>>,
}

impl Trace {
    pub fn new(now: Nanos) -> Self {
        Self {
            now,
            hasher: SipHasher13::new_with_keys(0, 0),
            sent: 0,
            seen: 0,
            last: VecDeque::new(),
            keeps_all: false,
            steps: None,
        }
    }

    /// Notes a frame, which consists of these pieces.
    pub fn note(&mut self, host: HostId, direction: Direction, pieces: &[&[u8]]) {
        let sent = direction == Direction::Sent;
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.hasher.write_u64(self.now.0);
        self.hasher.write_u64((host.0 as u64) << 1 | u64::from(sent));
        self.hasher.write_u64(len as u64);
        pieces.iter().for_each(|piece| self.hasher.write(piece));
        self.sent += u64::from(sent);
        self.seen += 1;
        if self.last.len() == KEPT && !self.keeps_all {
            self.last.pop_front();
        }
        let bytes = pieces.concat().into();
        self.last.push_back(Seen { at: self.now, host, direction, bytes });
        if let Some(steps) = &mut self.steps {
            steps.push(self.hasher.finish());
        }
    }

    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    pub fn frames(&self) -> impl Iterator<Item = &Seen> {
        self.last.iter()
    }

    /// The frames as pcapng, with an interface for each host of `names`. Times are the world's.
    pub fn pcapng(&self, names: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        file::section(&mut bytes);
        names.iter().for_each(|name| file::interface(&mut bytes, Some(name), 0));
        for seen in &self.last {
            let frame = Captured {
                at: Duration::from_nanos(seen.at.0),
                port: names.get(seen.host.0).copied().unwrap_or_default(),
                direction: seen.direction,
                len: seen.bytes.len(),
                bytes: &seen.bytes,
                comment: None,
            };
            file::packet(&mut bytes, seen.host.0 as u32, &frame, usize::MAX);
        }
        bytes
    }

    /// The last `most` frames, a line each.
    pub fn told(&self, names: &[&str], most: usize) -> String {
        let mut text = String::new();
        let from = self.last.len().saturating_sub(most);
        for seen in self.last.iter().skip(from) {
            let name = names.get(seen.host.0).copied().unwrap_or_default();
            let _ = writeln!(text, "{}", Self::decoded(seen, name));
        }
        text
    }

    /// A frame in a line: when, who, which way, its headers.
    pub fn decoded(seen: &Seen, name: &str) -> String {
        let arrow = match seen.direction {
            Direction::Sent => "->",
            Direction::Received => "<-",
        };
        let at = (seen.at.0.saturating_sub(Nanos::SECOND)) as f64 / Nanos::SECOND as f64;
        let headers = PrettyPrinter::<EthernetFrame<&[u8]>>::new("", &&*seen.bytes).to_string();
        let headers: Vec<&str> =
            headers.lines().map(|line| line.trim_matches([' ', '\\', '└', '─'])).collect();
        format!("{at:>14.6} s {name} {arrow} {}", headers.join(", "))
    }

    /// Writes the frames beside the test's name. Returns where.
    pub fn save(&self, names: &[&str], seed: u64) -> std::io::Result<std::path::PathBuf> {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("world").replace(|c: char| !c.is_alphanumeric(), "_");
        // Beside the test's program, where no other user writes.
        let program = std::env::current_exe()?;
        let dir = program.parent().unwrap_or_else(|| Path::new(".")).join("sim");
        std::fs::create_dir_all(&dir)?;
        let path = dir.join(format!("{test}-{seed}.pcapng"));
        write_file(&path, &self.pcapng(names))?;
        Ok(path)
    }
}

/// Writes a file in one piece: another test of this name never sees half of it.
fn write_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&part, bytes)?;
    std::fs::rename(part, path)
}
