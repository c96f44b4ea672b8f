//! What the control thread and the workers share: the table of ports, the workers' mailboxes.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Wake;

use fabric::{Fdb, Ports};
use port::Nanos;
use rustix::event::EventfdFlags;
use turn::attach::{Bells, Exit};
use turn::port_link::Change;
use turn::serve::Served;

use crate::config::{Idle, PortId};

/// In place of an epoch: the worker sleeps and uses no table.
pub(super) const ASLEEP: u64 = u64::MAX;

/// The objects that workers use and the control thread replaces.
#[derive(Default)]
pub(crate) struct Table {
    pub ports: Ports<Exit>,
    /// For each port: how to wake its owner.
    pub bells: Vec<Bells>,
}

/// What the control thread and the workers share.
pub(crate) struct Common {
    /// # Protocol: `Common.table`, `Common.epoch`
    /// - Writer: control thread of the data process
    /// - Reader: workers, once a pass
    /// - Ordering: swap and add `SeqCst` / load
    /// - Partner: `Mailbox.passed`
    /// - Without it: a worker uses a table, and the mappings it keeps, after they were freed
    /// - Shown by: data process tests
    pub(super) table: AtomicPtr<Table>,
    pub(super) epoch: AtomicU64,
    pub fdb: Fdb,
    pub workers: Vec<Mailbox>,
    /// Ports whose code panicked, until the control thread takes them.
    pub(super) failed: Mutex<Vec<PortId>>,
    /// Passes with long waits, counted while workers measure. Relaxed: read once a second.
    pub(super) waited: AtomicU64,
    /// While set, workers gather nothing new.
    ///
    /// # Protocol: `Common.draining`
    /// - Writer: control thread: as it stops, and until all ports of a predecessor are back
    /// - Reader: workers, once a pass
    /// - Ordering: relaxed
    /// - Partner: `Job::Finish` in the mailbox, later
    /// - Without it: a batch more is gathered, or dropped before its receiver is back
    /// - Shown by: upgrade tests
    pub draining: AtomicBool,
}

impl Common {
    pub fn new(fdb: Fdb, workers: usize) -> rustix::io::Result<Self> {
        let workers = (0..workers).map(|_| Mailbox::new()).collect::<Result<_, _>>()?;
        Ok(Self {
            table: AtomicPtr::new(Box::into_raw(Box::default())),
            epoch: AtomicU64::new(1),
            fdb,
            workers,
            failed: Mutex::default(),
            waited: AtomicU64::new(0),
            draining: AtomicBool::new(false),
        })
    }

    /// Takes the ports whose code has panicked since the last call.
    pub fn take_failed(&self) -> Vec<PortId> {
        std::mem::take(&mut *self.failed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of passes with long waits.
    pub fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    /// Swaps in a new table, and returns once no worker uses the old one. For the control thread
    /// only.
    pub fn replace_table(&self, table: Table) {
        let old = self.table.swap(Box::into_raw(Box::new(table)), Ordering::SeqCst);
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        fence(Ordering::SeqCst);
        for worker in &self.workers {
            while worker.passed.load(Ordering::Acquire) < epoch {
                std::thread::yield_now();
            }
        }
        // SAFETY: `old` came from Box::into_raw, and only this call takes it out. Since then every
        // worker has started a pass, which loads the pointer again, or sleeps without it.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        // SAFETY: as in `replace_table`; the workers are gone with their shares of self.
        drop(unsafe { Box::from_raw(*self.table.get_mut()) });
    }
}

/// Settings that a running worker can change.
#[derive(Clone, Copy)]
pub(crate) struct WorkerSettings {
    /// What to do when idle.
    pub idle: Idle,
    /// Maximum number of frames taken from a port per turn.
    pub batch: u16,
    /// The stall timeout in nanoseconds.
    pub stall_timeout: u64,
}

/// A job for a worker.
pub(crate) enum Job {
    /// Serve this port.
    Serve(Box<Served>),
    /// Serve this port, which may be armed.
    Wake(PortId),
    /// Give this port back.
    Release(PortId, SyncSender<Option<Box<Served>>>),
    /// Change this port's link.
    Link(PortId, Change),
    /// Measure until this time whether passes wait.
    Measure(Nanos),
    /// Take these settings into use.
    Settings(WorkerSettings),
    /// End once no frames are stalled.
    Finish,
}

/// Rings a worker's doorbell, if there is one any more.
pub(super) struct Ring(pub Weak<Common>, pub usize);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        if let Some(common) = self.0.upgrade() {
            common.workers[self.1].ring();
        }
    }
}

/// How a worker is reached.
pub(crate) struct Mailbox {
    pub(super) jobs: Mutex<Vec<Job>>,
    /// # Protocol: `Mailbox.pending`
    /// - Writer: the thread that leaves a job
    /// - Reader: worker
    /// - Ordering: store release / load acquire
    /// - Partner: the jobs' mutex, the eventfd
    /// - Without it: a job waits until the next wake-up
    /// - Shown by: data process tests
    pub(super) pending: AtomicBool,
    pub(super) doorbell: OwnedFd,
    /// The epoch of its last pass, or [`ASLEEP`].
    ///
    /// # Protocol: `Mailbox.passed`
    /// - Writer: worker: the epoch of its pass, or asleep
    /// - Reader: control thread
    /// - Ordering: store, fence / load acquire
    /// - Partner: `Common.epoch`
    /// - Without it: a worker uses a table after it was freed, or a detach never ends
    /// - Shown by: data process tests
    pub(super) passed: AtomicU64,
}

impl Mailbox {
    fn new() -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            jobs: Mutex::new(Vec::new()),
            pending: AtomicBool::new(false),
            doorbell: rustix::event::eventfd(0, flags)?,
            passed: AtomicU64::new(ASLEEP),
        })
    }

    /// Puts a job into the mailbox and wakes the worker.
    pub fn send(&self, job: Job) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        self.pending.store(true, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }
}
