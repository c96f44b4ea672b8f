//! What must outlive a data process: counters, the forwarding table, ring cursors.
//!
//! One sparse memory file for each switch. The supervisor makes and keeps it, the data process
//! writes it, clients never see it. Each process that maps it can read the counters; a successor
//! continues from the cursors.
//!
//! ```text
//!   header | workers (64) | records | journal | forwarding table | receive queue 0 | ... | receive queue 15 | port 0 | port 1 | ... | board
//!   receive queue:  egress counters and cursors of port 0, of port 1, ...
//!   port:           ingress counters, send-ring cursors | 16 x spare buffers (streams: what came, what waits to be sent)
//! ```
//!
//! The receive queues of different ports are adjacent, because traffic to many ports goes through
//! all of them. With sixteen in a page, they need a sixteenth of the address translations.

mod lent;
mod of_port;
mod positions;
mod stats;
mod turns;
mod work;

use std::sync::Arc;

use fabric::{Fdb, FdbEntry, Journal, Recorder};
use netring::layout::{MAX_RINGS, MAX_SLOTS};
use port::stats::WorkerStats;
use port::{Counter, EgressCounters, IngressCounters, Nanos, PortId};
use shmem::sync::{AtomicU32, AtomicU64};
use shmem::{Cursor, Mapping, Memfd, RegionError, Shareable, Shared, SharedSlice};
use topology::SwitchConfig;

use self::lent::LentMemory;
pub use self::of_port::PortState;
pub use self::turns::Turns;
pub use self::work::{Activity, Work};
use crate::user::{Conduct, Payer};

/// The maximum number of ports of a switch.
pub const MAX_PORTS: usize = 16_384;
/// The maximum number of workers of a switch.
pub const MAX_WORKERS: usize = 64;

/// "toklat" and a number that changes with the layout or the meaning of the types below.
const MAGIC: u64 = 0x746f_6b6c_6174_000d;
const PAGE: usize = 4096;
/// The maximum number of rings, or queues, of a port in each direction.
pub const RINGS: usize = MAX_RINGS as usize;

/// The switch's own numbers.
#[derive(Debug)]
#[repr(C)]
pub struct SwitchState {
    magic: Counter,
    /// How often a data process was started for this switch, less one.
    pub restarts: Counter,
    /// Frames that were in flight when a data process died.
    pub lost_in_restarts: Counter,
    /// The ingress counters of removed ports, so that the sums still agree.
    pub gone_ingress: IngressCounters,
    /// The egress counters of removed ports.
    pub gone_egress: EgressCounters,
    /// The ports that exist, a bit each. The state of other ports is not touched, so that it takes
    /// no memory.
    ///
    /// # Protocol: `SwitchState.ports`, `IngressPage.failed`
    /// - Writer: control thread
    /// - Reader: supervisor
    /// - Ordering: relaxed
    /// - Without it: a port is listed or shown as failed a little late
    /// - Shown by: `state`, data process tests
    ports: [AtomicU64; MAX_PORTS / 64],
    /// The work of the control thread.
    pub control: Work,
    /// The thread whose fatal signal ended a data process; 0 if none did.
    died_in: Counter,
}

const _: () = assert!(size_of::<SwitchState>() <= WORKERS_AT);

// SAFETY: the type consists of counters and atomic words only.
unsafe impl Shareable for SwitchState {}

/// The counters of a worker.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct WorkerState {
    /// Passes over the worker's hot ports.
    pub passes: Counter,
    /// Passes that moved a frame.
    pub busy_passes: Counter,
    /// Nanoseconds of the passes that moved a frame.
    pub busy_ns: Counter,
    /// Frames gathered.
    pub frames: Counter,
    /// How often the worker slept.
    pub sleeps: Counter,
    /// How often the worker woke a port's owner.
    pub kicks: Counter,
    /// How many ports the worker serves.
    pub ports: Counter,
    /// The CPU that the worker is pinned to, plus one; 0 for none.
    pub cpu: Counter,
    /// Ports that were taken out of service because their code panicked.
    pub panics: Counter,
    /// The work that the worker is doing.
    pub work: Work,
    /// How long its turns took, each from one look around to the next. Kicks, jobs and drained
    /// tokens are included, sleep is not.
    pub turns: Turns,
}

// SAFETY: the type consists of counters only.
unsafe impl Shareable for WorkerState {}

/// Words that a device keeps for a queue. What they mean is the device's business.
#[derive(Debug)]
#[repr(C)]
struct QueueWords([AtomicU64; 4]);

/// The cursors of a send ring or queue.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SendState {
    /// First slot that was never gathered. Stored before gathered frames are delivered, so that no
    /// frame is delivered twice, whenever the process dies.
    pub taken: Cursor,
    /// The position of a guest's transmit queue.
    queue: QueueWords,
}

// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for SendState {}

/// The counters and cursors of a receive ring or queue.
#[derive(Debug)]
#[repr(C, align(256))]
pub struct ReceiveState {
    /// First slot that is not filled yet. Storing it delivers a batch.
    pub published: Cursor,
    /// First slot that is not taken back from the client yet.
    pub released: Cursor,
    /// 1 once the spare buffers below have been read from the ring.
    ///
    /// # Protocol: `ReceiveState.primed`, spare buffers
    /// - Writer: holder of the egress lock
    /// - Reader: a successor, as it starts
    /// - Ordering: relaxed: no two processes at a time
    /// - Partner: `released`, `published`
    /// - Without it: spare buffers are read from the ring again, and handed out twice
    /// - Shown by: `daemon_survival` tests
    pub primed: AtomicU32,
    /// Frames delivered and dropped. The first counters share a cache line with the cursors.
    pub counters: EgressCounters,
    /// The position of a guest's receive queue.
    queue: QueueWords,
}

// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for ReceiveState {}
const _: () = assert!(size_of::<ReceiveState>() == 256, "sixteen to a page");

/// The accesses over the bus of an emulated network card, which cost its guest time.
#[derive(Debug, Default)]
#[repr(C)]
pub struct BusCounters {
    /// Reads of registers. A virtual processor waited for each.
    pub reads: Counter,
    /// Writes that a virtual processor waited for.
    pub writes: Counter,
    /// Register writes without a reply.
    pub posted: Counter,
    /// Ends of pin interrupts. A virtual processor waited for each.
    pub acknowledgements: Counter,
    /// Interrupts. By any worker.
    pub interrupts: Counter,
}

// SAFETY: the type consists of counters only.
unsafe impl Shareable for BusCounters {}

/// A port's counters and send cursors.
#[derive(Debug)]
#[repr(C, align(4096))]
struct IngressPage {
    counters: IngressCounters,
    send: [SendState; RINGS],
    /// 1 once the port's code has panicked.
    failed: Counter,
    bus: BusCounters,
    lent: LentMemory,
    conduct: Conduct,
    /// The errno that stopped writing the port's file; 0 if none did. The file's writer stores it.
    write_error: Counter,
}

// SAFETY: the type consists of shareable parts only.
unsafe impl Shareable for IngressPage {}

/// Bytes of a port's slot of the board.
pub(crate) const BOARD_SLOT: usize = 16 << 10;

const SPARES_AT: usize = PAGE;
const SPARES: usize = MAX_SLOTS as usize * size_of::<u32>();
/// Bytes of a port's state.
const PORT: usize = SPARES_AT + RINGS * SPARES;

const _: () = assert!(size_of::<IngressPage>() == PAGE);
const _: () = assert!(size_of::<SwitchState>() <= PAGE);
const _: () = assert!(PORT.is_multiple_of(PAGE));

const WORKERS_AT: usize = PAGE;
const RECORDER_AT: usize =
    (WORKERS_AT + MAX_WORKERS * size_of::<WorkerState>()).next_multiple_of(PAGE);
const JOURNAL_AT: usize = (RECORDER_AT + size_of::<Recorder>()).next_multiple_of(PAGE);
const FDB_AT: usize = (JOURNAL_AT + size_of::<Journal>()).next_multiple_of(PAGE);

fn queues_at(config: &SwitchConfig) -> usize {
    (FDB_AT + Fdb::bytes(config.fdb_entries)).next_multiple_of(PAGE)
}

fn ports_at(config: &SwitchConfig) -> usize {
    let queues = RINGS * usize::from(config.max_ports) * size_of::<ReceiveState>();
    (queues_at(config) + queues).next_multiple_of(PAGE)
}

fn board_at(config: &SwitchConfig) -> usize {
    ports_at(config) + usize::from(config.max_ports) * PORT
}

/// Bytes of the state file of a switch. It is sparse: a port that does not exist takes no memory.
#[must_use]
pub fn file_size(config: &SwitchConfig) -> usize {
    let board = PAGE + usize::from(config.max_ports) * BOARD_SLOT;
    board_at(config) + if config.trusted { board } else { 0 }
}

/// The mapped state of a switch.
#[derive(Clone, Debug)]
pub struct State {
    map: Arc<Mapping>,
    switch: Shared<SwitchState>,
    workers: SharedSlice<WorkerState>,
    recorder: Shared<Recorder>,
    journal: Shared<Journal>,
    fdb_entries: u32,
    max_ports: PortId,
    queues_at: usize,
    ports_at: usize,
    /// Where the board of a trusted switch is.
    board_at: Option<usize>,
    fresh: bool,
}

impl State {
    /// Maps the state file of a switch of this configuration, to read it.
    ///
    /// # Errors
    /// [`RegionError`] when it cannot be mapped or is too small for the configuration.
    pub fn map(file: &Memfd, config: &SwitchConfig) -> Result<Self, RegionError> {
        Self::of(file.map()?, config)
    }

    /// Maps the file for a data process, which then marks it as [used](Self::set_used). A new file
    /// (all zero) is a new switch. A file of an earlier version keeps where
    /// ports stand; one of any other version is cleared and is a new switch, too.
    ///
    /// # Errors
    /// As for [`map`](Self::map); also [`RegionError::Map`] when it cannot be cleared.
    pub fn take_over(file: &Memfd, config: &SwitchConfig) -> Result<Self, RegionError> {
        Self::take_over_as(file, config, MAGIC)
    }

    /// Works as `take_over` does when the number of the layout is `now`.
    fn take_over_as(file: &Memfd, config: &SwitchConfig, now: u64) -> Result<Self, RegionError> {
        let state = Self::map(file, config)?;
        let fresh = match state.switch.magic.get() {
            magic if magic == now => false,
            // The board of a trusted switch is mapped by others, and is of their version.
            earlier if positions::are_kept(earlier, now) && !config.trusted => {
                state.keep_positions(file)?;
                false
            }
            other => {
                let len = if other == 0 { 0 } else { file.len() };
                let punched = if len == 0 { Ok(()) } else { file.punch(0, len) };
                punched.map_err(|source| RegionError::Map { len, source })?;
                true
            }
        };
        Ok(Self { fresh, ..state })
    }

    /// True if this state had no content when it was [taken over](Self::take_over).
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// State in memory of this process, for inline switches and tests.
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough memory.
    pub fn private(config: &SwitchConfig) -> Result<Self, RegionError> {
        Self::of(Mapping::private(file_size(config))?, config)
    }

    fn of(map: Arc<Mapping>, config: &SwitchConfig) -> Result<Self, RegionError> {
        let len = map.len();
        let too_small = || RegionError::TooSmall { len };
        if len < file_size(config) {
            return Err(too_small());
        }
        Ok(Self {
            switch: map.shared(0).ok_or_else(too_small)?,
            workers: map.shared_slice(WORKERS_AT, MAX_WORKERS).ok_or_else(too_small)?,
            recorder: map.shared(RECORDER_AT).ok_or_else(too_small)?,
            journal: map.shared(JOURNAL_AT).ok_or_else(too_small)?,
            fdb_entries: config.fdb_entries,
            max_ports: config.max_ports,
            queues_at: queues_at(config),
            ports_at: ports_at(config),
            board_at: config.trusted.then(|| board_at(config)),
            fresh: false,
            map,
        })
    }

    /// True if a data process of this version has written here.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.switch.magic.get() == MAGIC
    }

    /// Marks the state as written.
    pub fn set_used(&self) {
        self.switch.magic.set(MAGIC);
    }

    /// Counts the frames that were in flight when the last data process died: those that came in,
    /// and neither went out nor were dropped. If the process died between delivering and counting,
    /// the result is too high by up to a batch per port. Deliveries without a count are counted as
    /// copies of removed ports.
    pub fn count_lost(&self) {
        let switch = &self.switch;
        let ports = self.ports().filter_map(|id| self.port(id)).map(|port| port.snapshot());
        let all = ports.chain([switch.snapshot().gone]);
        let lost = all.fold(0i128, |lost, port| lost + port.unaccounted());
        let lost = lost - i128::from(switch.lost_in_restarts.get());
        let number = u64::try_from(lost.unsigned_abs()).unwrap_or(0);
        let counter = if lost < 0 { &switch.gone_ingress.copies } else { &switch.lost_in_restarts };
        counter.add(number);
    }

    /// Clears what the state says about mappings of a process that has ended.
    pub fn forget_memory(&self) {
        self.ports().filter_map(|id| self.port(id)).for_each(|port| port.page.lent.clear());
    }

    /// The switch's own numbers.
    #[must_use]
    pub fn switch(&self) -> &SwitchState {
        &self.switch
    }

    /// The counters of a worker; zero if it was never started.
    #[must_use]
    pub fn worker(&self, worker: usize) -> Option<Shared<WorkerState>> {
        self.map
            .shared(WORKERS_AT + worker * size_of::<WorkerState>())
            .filter(|_| worker < MAX_WORKERS)
    }

    /// Records of frames, for an observer.
    #[must_use]
    pub fn recorder(&self) -> &Shared<Recorder> {
        &self.recorder
    }

    /// The table's journal, for an observer.
    #[must_use]
    pub fn journal(&self) -> &Shared<Journal> {
        &self.journal
    }

    /// Where the [board](crate::board) of a trusted switch is: a page, then a slot for each port.
    pub(crate) fn board_room(&self) -> Option<(&Arc<Mapping>, usize, PortId)> {
        Some((&self.map, self.board_at?, self.max_ports))
    }

    /// The numbers of the ports that exist.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        (0..self.max_ports).filter(|id| self.switch.has_port(*id))
    }

    /// Chooses the key of the hash of the forwarding table, which is empty yet.
    pub fn seed_fdb(&self, seed: u64) {
        Fdb::seed(&self.map, FDB_AT, self.fdb_entries, seed);
    }

    /// The forwarding table, for the data process.
    #[must_use]
    pub fn open_fdb(&self) -> Option<Fdb> {
        let table = Fdb::open(&self.map, FDB_AT, self.fdb_entries, usize::from(self.max_ports))?;
        Some(table.with_journal(self.journal.clone()))
    }

    /// The entries of the forwarding table; `now` is the monotonic clock's time.
    #[must_use]
    pub fn fdb(&self, now: Nanos) -> Vec<FdbEntry> {
        Fdb::read(&self.map, FDB_AT, self.fdb_entries, now).unwrap_or_default()
    }

    /// Makes fatal signals of this process store their thread in the state.
    pub fn note_deaths(&self) {
        // A process has one state until it ends, so the mapping is never released.
        let switch: &'static Shared<SwitchState> = Box::leak(Box::new(self.switch.clone()));
        work::note_deaths(&switch.died_in);
    }

    /// The port and the work that killed the data process that wrote this state. `None` if it was
    /// not killed by a signal of its own, or served no port. The note is cleared, because the next
    /// death is another one.
    #[must_use]
    pub fn take_last_deed(&self, workers: usize) -> Option<(PortId, Activity)> {
        let thread = self.switch.died_in.get();
        self.switch.died_in.set(0);
        let workers = self.workers.iter().take(workers).map(|worker| &worker.work);
        let notes = std::iter::once(&self.switch.control).chain(workers).map(Work::read);
        notes.filter(|(its, _)| thread != 0 && *its == thread).find_map(|(_, deed)| deed)
    }

    /// For each of the first `count` workers: its passes so far, and the port that it currently
    /// serves.
    #[must_use]
    pub fn at_work(&self, count: usize) -> Vec<(u64, Option<PortId>)> {
        let port = |worker: &WorkerState| worker.work.read().1.map(|(port, _)| port);
        self.workers.iter().take(count).map(|worker| (worker.passes.get(), port(worker))).collect()
    }

    /// Blames this worker's current work for the death of the process, which is about to be killed.
    pub fn blame(&self, worker: usize) {
        if let Some(worker) = self.workers.get(worker) {
            self.switch.died_in.set(worker.work.read().0);
        }
    }

    /// The numbers of the first `count` workers.
    #[must_use]
    pub fn workers(&self, count: usize) -> Vec<WorkerStats> {
        self.workers.iter().take(count).map(WorkerState::snapshot).collect()
    }

    /// The state of port `id`; `None` beyond the switch's last port.
    #[must_use]
    pub fn port(&self, id: PortId) -> Option<PortState> {
        if id >= self.max_ports {
            return None;
        }
        let at = self.ports_at + usize::from(id) * PORT;
        let queue_at = self.queues_at + usize::from(id) * size_of::<ReceiveState>();
        let next_queue = usize::from(self.max_ports) * size_of::<ReceiveState>();
        let (page, map) = (self.map.shared(at)?, Arc::clone(&self.map));
        let payer = Payer::default();
        Some(PortState { page, at, queue_at, next_queue, map, payer })
    }
}

#[cfg(test)]
mod tests;
