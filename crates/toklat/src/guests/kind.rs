//! Guests of a kind: their program, and the process that copies itself for each of them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow};
use frame::OffloadSet;
use guest::{OTHER_DESCRIPTORS, OTHER_PROCESSES, Order, Passed, Place};
use jail::cell::{Cell, Program};
use netring::Open;
use rustix::io::Errno;
use topology::GuestSpec;

use super::groups::Member;
use super::log::Log;
use super::process::{Ends, Process, Said};
use super::programs;

/// The most orders to copy that may be unanswered. Their descriptors count towards the kernel's
/// limit of descriptors in flight.
pub const MAX_COPYING: usize = 16;

/// Bytes that a process may have beside its private memory: tables, stacks, and pages of its rings
/// that it touches first.
const BESIDE: u64 = 2 << 20;
/// Bytes of a slot's buffer, at most.
const BUFFER: u64 = 2048;

/// Guests of a kind.
pub struct Kind {
    pub name: String,
    pub spec: GuestSpec,
    program: Program,
    cell: Cell,
    /// The process that copies itself, if there are several guests.
    pub template: Option<Process>,
    pub log: Log,
    pub since: Instant,
    /// Guests to be copied.
    pub queue: VecDeque<usize>,
    /// The guests whose copies are being made, in the order of the orders.
    pub copying: VecDeque<usize>,
}

/// The ports of a guest, and how they are opened.
pub struct Ports<'a> {
    pub directory: &'a Path,
    pub ports: &'a [(String, Place)],
}

impl Kind {
    /// `grouped`: a cgroup will limit its guests' memory.
    pub fn new(name: &str, spec: GuestSpec, log: Log, grouped: bool) -> anyhow::Result<Self> {
        spec.check()?;
        let (path, first) = programs::find(&spec.app);
        let words = first.iter().chain(&spec.args).map(String::as_bytes);
        let args: Vec<&[u8]> = words.collect();
        // No RUST_BACKTRACE: a backtrace opens files.
        let kept = ["TZ", "LANG"].into_iter();
        let kept: Vec<(&str, String)> =
            kept.filter_map(|name| Some((name, std::env::var(name).ok()?))).collect();
        let temporary = ("TMPDIR", jail::cell::TEMPORARY);
        let kept = kept.iter().map(|(name, value)| (*name, value.as_str()));
        let environment: Vec<(&str, &str)> = kept.chain([temporary]).collect();
        let program = Program::new(&path, &args, &environment).map_err(|error| {
            let remedy = "name a file, or one that is built in: toklat guest programs";
            anyhow!("{name}: cannot open the program {}: {error}; {remedy}", path.display())
        })?;
        let copies = spec.count > spec.threads;
        let cell = Cell {
            memory: Some(match grouped {
                // Counted here is also what is asked for and never used.
                true => spec.memory.saturating_mul(2).saturating_add(BESIDE),
                false => spec.memory,
            }),
            descriptors: OTHER_DESCRIPTORS + 2 * u64::from(spec.threads),
            processes: Some(match copies {
                // Copies are counted with the process that they are copied from.
                true => (1 + u64::from(spec.count)) * (OTHER_PROCESSES + u64::from(spec.threads)),
                false => OTHER_PROCESSES + u64::from(spec.threads),
            }),
            copies,
            ..Cell::new(&format!("toklat guest {name}"))
        };
        let (queue, copying) = (VecDeque::new(), VecDeque::new());
        let (name, since) = (name.to_owned(), Instant::now());
        Ok(Self { name, spec, program, cell, template: None, log, since, queue, copying })
    }

    /// Bytes of all memory that a process with this many ports may have.
    pub fn memory(&self, ports: usize) -> u64 {
        let rings = ports as u64 * 2 * u64::from(self.spec.slots) * BUFFER;
        self.spec.memory.saturating_add(rings).saturating_add(BESIDE)
    }

    /// True if these guests are copies of one process.
    pub fn copies(&self) -> bool {
        self.cell.copies
    }

    /// Starts a process of the program, without an order.
    pub fn start(&mut self) -> anyhow::Result<Process> {
        let Ends { control, output, theirs: [socket, words] } = Ends::new()?;
        let child = self.cell.start(&mut self.program, socket.as_fd(), words.as_fd())?;
        let child = Some(child.ending_with_this());
        Ok(Process { child, control, output, said: Said::default(), member: Member::new() })
    }

    /// Starts the process of a guest that is alone.
    pub fn start_alone(&mut self, ports: &Ports<'_>) -> anyhow::Result<Process> {
        let order = Order { copy: None, waits: self.spec.require_walls, ports: self.open(ports)? };
        let process = self.start()?;
        match order.send(process.control.as_fd()) {
            // The reason for the guest's end is collected later, and says more than a broken pipe.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(process),
            Err(error) => Err(error.into()),
        }
    }

    /// Orders a copy. The new process is known only by its first report.
    pub fn order_copy(&mut self, ports: &Ports<'_>) -> anyhow::Result<(OwnedFd, OwnedFd)> {
        let ports = self.open(ports)?;
        let Ends { control, output, theirs } = Ends::new()?;
        let template = self.template.as_ref().context("the program does not run")?;
        let order = Order { copy: Some(theirs), waits: self.spec.require_walls, ports };
        order.send(template.control.as_fd())?;
        Ok((control, output))
    }

    /// Opens the ports at the daemon, and takes them apart for the guest.
    fn open(&self, ports: &Ports<'_>) -> anyhow::Result<Vec<Passed>> {
        let open = |(name, place): &(String, Place)| {
            let open = Open::new(name).slots(self.spec.slots).offloads(OffloadSet::ALL);
            let port = open.directory(ports.directory).existing().open()?;
            anyhow::Ok(Passed::new(port, *place)?)
        };
        ports.ports.iter().map(open).collect()
    }
}

/// Where a manager keeps its socket and its guests' logs.
pub fn home(directory: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let mut candidates = vec![directory.join("guests")];
    candidates.extend(fallback());
    let own = rustix::process::geteuid().as_raw();
    for path in &candidates {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        let is_own = std::fs::symlink_metadata(path)
            .is_ok_and(|data| data.is_dir() && data.uid() == own && data.mode() & 0o077 == 0);
        if is_own && (made.is_ok() || path.is_dir()) {
            return Ok(path.clone());
        }
    }
    anyhow::bail!(
        "{} cannot hold the guests' logs; set XDG_RUNTIME_DIR to a directory of your own",
        candidates[0].display()
    )
}

/// A user's own place, where the daemon's directory is another user's.
pub fn fallback() -> Option<PathBuf> {
    let directory = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty())?;
    Some(Path::new(&directory).join("toklat-guests"))
}
