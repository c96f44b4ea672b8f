//! Worker threads: how they poll ports, sleep and wake owners.
//!
//! ```text
//!   loop:  jobs, if any  ->  a turn of every hot port  ->  idle? spin, then arm every port and sleep
//! ```
//!
//! A port is either *hot*, polled in each pass, or *armed*: its owner is asked to wake us, and
//! epoll waits for it. Idle hot ports are armed after a while, so that ports without traffic cost a
//! busy worker nothing. An idle worker sleeps in epoll. A busy one reads the clock once per pass.
//! It takes the locks of egresses and of the forwarding table, each for a batch or an entry. It
//! makes system calls to kick sleepers, for each frame of a tap, to read and write sockets, and
//! every few microseconds to ask epoll while a port is armed.
//!
//! A panic in a port's turn takes that port out of service. It sends no more, and within a second
//! the control thread also takes it out of the table as a receiver. Frames of its last batch that
//! were not delivered are in no counter. A panic anywhere else ends the process; its successor
//! serves all ports.
//!
//! The control thread replaces the table of ports as a whole. In each pass a worker announces the
//! epoch that it has seen. The control thread frees an old table, and mappings that only that held,
//! once every worker has announced a later epoch or sleeps.

mod common;
mod jobs;
mod measure;
mod patience;

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use fabric::Recorder;
use port::{Effects, MapGuard, Nanos, SoleWorker};
use rustix::event::{Timespec, epoll};
use shmem::Shared;
use turn::attach::{Side, WakeOutcome};
use turn::clock;
use turn::serve::{Served, Switch, Tools};
use turn::state::{Activity, WorkerState};

use self::common::{ASLEEP, Ring};
pub(crate) use self::common::{Common, Job, Mailbox, Table, WorkerSettings};
use self::measure::Measure;
use self::patience::Patience;
use crate::config::{Idle, PortId};

/// For how long a port stays hot after its last frame.
const HOT_NS: u64 = 50_000;
/// With at most this many ports, a worker that never sleeps keeps polling idle ones, too.
const POLLED_IDLE: usize = 64;
/// How often a busy worker asks epoll for armed ports, and an idle one.
const ASK_BUSY_NS: u64 = 30_000;
const ASK_IDLE_NS: u64 = 4_000;
/// For how long a worker spins after the last frame or access before it yields its processor in
/// between.
const UNSHARED_NS: u64 = 3_000;
/// How long before a frame of a link is due a worker wakes. It polls for the rest of the time,
/// which is more exact than any timer.
const EARLY_NS: u64 = 30_000;
/// Nanoseconds between looks at a port that waits for tokens of its rate limiter, or receives over
/// a link.
const LIMITED_NS: u64 = 1_000_000;
/// Nanoseconds between looks at an idle port that is still polled, as if it had been woken.
const TEND_NS: u64 = 1_000_000;
/// The epoll data of the worker's own eventfd.
const JOBS: u64 = u64::MAX;

/// A wake-up that was deferred.
struct Late {
    due: Nanos,
    port: PortId,
    side: Side,
    /// The port's traffic is heavy, so kicks of its owner stay disabled until then.
    heavy: bool,
}

/// The state that belongs to one worker thread.
pub(crate) struct Worker {
    common: Arc<Common>,
    number: usize,
    state: Shared<WorkerState>,
    epoll: OwnedFd,
    /// By number.
    ports: Vec<Option<Box<Served>>>,
    /// The number of ports that this worker serves.
    serving: usize,
    /// The ports that are polled.
    hot: Vec<PortId>,
    /// Ports that epoll could not add. They are never armed.
    unwatched: Vec<PortId>,
    /// When armed ports will have work without a kick.
    timers: Vec<(Nanos, PortId)>,
    /// The ports that receive over a link.
    far: Vec<PortId>,
    /// Wakes this worker, if others may put frames onto the links of its ports.
    waker: Option<Waker>,
    /// The owners to wake later.
    late: Vec<Late>,
    tools: Tools,
    idle: Idle,
    patience: Patience,
    measure: Option<Measure>,
    finishing: bool,
    /// The time until which a worker that finishes waits for receivers over links.
    finishes_by: Nanos,
    busy_at: Nanos,
    asked_at: Nanos,
    tended_at: Nanos,
}

impl Worker {
    pub fn new(
        common: Arc<Common>,
        number: usize,
        state: Shared<WorkerState>,
        settings: WorkerSettings,
        recorder: Shared<Recorder>,
    ) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let doorbell = &common.workers[number].doorbell;
        epoll::add(&epoll, doorbell, epoll::EventData::new_u64(JOBS), epoll::EventFlags::IN)?;
        // If an old kernel or a filter of system calls refuses this call, the refusal shows here.
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 1];
        epoll::wait(&epoll, &mut space, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let now = clock();
        let ring = || Waker::from(Arc::new(Ring(Arc::downgrade(&common), number)));
        let waker = (common.workers.len() > 1).then(ring);
        // SAFETY: workers alone deliver to the ports of their switch, and this is the only one.
        let sole = (common.workers.len() == 1).then(|| unsafe { SoleWorker::new() });
        Ok(Self {
            common,
            number,
            state,
            epoll,
            ports: Vec::new(),
            serving: 0,
            hot: Vec::new(),
            unwatched: Vec::new(),
            timers: Vec::new(),
            far: Vec::new(),
            waker,
            late: Vec::new(),
            tools: Tools::new(settings.batch, settings.stall_timeout, sole, recorder),
            idle: settings.idle,
            patience: Patience::default(),
            measure: None,
            finishing: false,
            finishes_by: now,
            busy_at: now,
            asked_at: now,
            tended_at: now,
        })
    }

    /// Serves the worker's ports until it is asked to finish.
    pub fn run(mut self) {
        let common = Arc::clone(&self.common);
        let mailbox = &common.workers[self.number];
        let mut now = clock();
        self.state.work.set_writer();
        self.wake_up(mailbox);
        loop {
            mailbox.passed.store(common.epoch.load(Ordering::Acquire), Ordering::Release);
            if mailbox.pending.load(Ordering::Relaxed) {
                self.do_jobs(mailbox, now);
            }
            let frames = self.pass(&common, now);
            let then = std::mem::replace(&mut now, clock());
            self.count(frames, now - then);
            self.patience.passed(frames);
            if frames > 0 {
                self.busy_at = now;
            }
            if self.finishing && !self.any_stalled() && !self.any_under_way(now) {
                break;
            }
            now = self.look_around(mailbox, frames > 0, now);
        }
        mailbox.passed.store(ASLEEP, Ordering::Release);
    }

    fn count(&self, frames: usize, ns: u64) {
        self.state.passes.add(1);
        self.state.turns.add(ns);
        if frames > 0 {
            self.state.busy_passes.add(1);
            self.state.busy_ns.add(ns);
            self.state.frames.add(frames as u64);
        }
    }

    /// Gives each hot port a turn; returns the number of frames gathered.
    #[inline]
    fn pass(&mut self, common: &Common, now: Nanos) -> usize {
        // SAFETY: loaded after this pass's epoch was announced; the control thread frees a table
        // only after a later announcement.
        let table = unsafe { &*common.table.load(Ordering::Acquire) };
        // SAFETY: whatever frames point to is kept mapped by a port in this table or in
        // `self.ports`, or is a channel's own memory, kept until completed; both outlive the pass,
        // and stalled frames are given up before their port is dropped.
        let map = unsafe { MapGuard::assume_mapped() }.at(now);
        let switch = Switch {
            ports: &table.ports,
            fdb: &common.fdb,
            map: &map,
            now,
            draining: common.draining.load(Ordering::Relaxed),
            sleepless: false,
        };
        if !self.late.is_empty() {
            self.ring_late(table, now);
        }
        let mut frames = 0;
        if !self.far.is_empty() {
            frames += self.flush(table, &map, now);
        }
        self.tools.fair.begin();
        for at in 0..self.hot.len() {
            let Some(port) = port_at(&mut self.ports, self.hot[at]) else { continue };
            self.state.work.serve(port.id, Activity::Turn);
            let (tools, state, late) = (&mut self.tools, &self.state, &mut self.late);
            let wake = |id, side, effects: Effects| {
                if effects.kick {
                    wake_owner(table, state, late, id, side, now);
                }
            };
            let turn = || (port.attend(switch), port.turn(tools, switch, wake));
            match catch_unwind(AssertUnwindSafe(turn)) {
                Ok((access, gathered)) => {
                    frames += gathered;
                    if let Some(access) = access {
                        self.busy_at = now;
                        self.patience.note_access(access);
                    }
                }
                Err(_) => {
                    self.take_out_of_service(at);
                    // The tools may be inconsistent after the panic, so wake all owners that may
                    // have got frames.
                    table.bells.iter().for_each(|bells| bells.ring_all(clock()));
                    break;
                }
            }
        }
        self.state.work.rest();
        self.postpone_arming();
        frames
    }

    /// Delivers frames that have arrived over links; returns how many.
    #[cold]
    fn flush(&mut self, table: &Table, map: &MapGuard<'_>, now: Nanos) -> usize {
        let (ports, state, late) = (&mut self.ports, &self.state, &mut self.late);
        let draining = self.finishing;
        let mut frames = 0;
        self.far.retain(|id| {
            let Some(port) = port_at(ports, *id) else { return false };
            if draining {
                port.make_all_due();
            }
            frames += port.flush(map, now, |id, side, effects| {
                if effects.kick {
                    wake_owner(table, state, late, id, side, now);
                }
            });
            port.has_far_queues()
        });
        frames
    }

    /// Keeps ports with heavy traffic from being armed until their owners are to be woken.
    #[inline]
    fn postpone_arming(&mut self) {
        for late in self.late.iter().filter(|late| late.heavy) {
            if let Some(port) = port_at(&mut self.ports, late.port) {
                port.held_back_until = late.due;
            }
        }
    }

    /// Rings the deferred bells that are due.
    #[cold]
    fn ring_late(&mut self, table: &Table, now: Nanos) {
        let (state, ports) = (&self.state, &mut self.ports);
        self.late.retain_mut(|Late { due, port, side, heavy }| {
            let Some(bells) = table.bells.get(usize::from(*port)) else { return false };
            if *due > now {
                return true;
            }
            if let Side::Ingress(queue) = *side
                && port_at(ports, *port).is_some_and(|port| !port.source.is_awaited(queue.into()))
            {
                bells.forget(*side, now);
                return false;
            }
            match bells.ring_late(*side, now) {
                WakeOutcome::Yes { rests_until } => {
                    state.kicks.add(1);
                    (*due, *heavy) = (rests_until.unwrap_or(now), true);
                }
                WakeOutcome::Later { due: later, heavy: is } => (*due, *heavy) = (later, is),
                WakeOutcome::No => {}
            }
            *due > now
        });
    }

    /// Takes a port whose code panicked out of service. Other ports go on.
    #[cold]
    fn take_out_of_service(&mut self, at: usize) {
        self.state.panics.add(1);
        let id = self.hot.swap_remove(at);
        let abandon = || {
            if let Some(mut port) = self.release(id) {
                port.abandon();
            }
        };
        // Code that panicked once may panic again.
        let _ = catch_unwind(AssertUnwindSafe(abandon));
        self.tools.renew();
        self.common.failed.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    /// The work between passes: arms idle ports, asks epoll for armed ones, spins or sleeps.
    /// Returns the time, which is later if other threads had the processor.
    #[inline]
    fn look_around(&mut self, mailbox: &Mailbox, busy: bool, mut now: Nanos) -> Nanos {
        let interval = if busy { ASK_BUSY_NS } else { ASK_IDLE_NS };
        if now - self.asked_at < interval && (busy || self.idle != Idle::Sleep) {
            return if busy { now } else { self.spin_or_yield(now) };
        }
        self.asked_at = now;
        self.cool_down(now);
        let spin = match self.idle {
            Idle::Auto => self.patience.spin(),
            Idle::Poll => u64::MAX,
            Idle::Sleep => 0,
        };
        let stalled = self.any_stalled();
        if stalled && !busy {
            // Yields the processor, so that a receiver on the same CPU can run.
            std::thread::yield_now();
            now = clock();
        }
        let idle = !busy && !stalled && !self.finishing && now - self.busy_at >= spin;
        let sleep = idle && !self.any_due_soon(now);
        if sleep && self.idle == Idle::Auto && self.patience.start_nap() {
            return self.sleep(mailbox, Some(patience::NAP_NS), now);
        }
        if sleep && self.arm_all(now) {
            return self.sleep(mailbox, None, now);
        }
        if self.hot.len() < self.serving {
            self.take_events(Some(Duration::ZERO), now);
        }
        now
    }

    /// Spins, and yields the processor where that saves time. Returns the time.
    fn spin_or_yield(&self, now: Nanos) -> Nanos {
        let gives_way = self.idle == Idle::Auto && self.patience.gives_way();
        if gives_way && now - self.busy_at >= UNSHARED_NS {
            std::thread::yield_now();
            clock()
        } else {
            std::hint::spin_loop();
            now
        }
    }

    /// True if frames wait for a lossless receiver; their ports are hot.
    fn any_stalled(&mut self) -> bool {
        let ports = &mut self.ports;
        self.hot.iter().any(|id| port_at(ports, *id).is_some_and(|port| port.is_stalled()))
    }

    /// True if frames are in flight on a link. Makes them due.
    fn any_under_way(&mut self, now: Nanos) -> bool {
        let mut any = false;
        for port in self.ports.iter_mut().flatten().filter(|port| port.has_under_way()) {
            port.make_all_due();
            any = true;
            if !port.hot {
                port.hot = true;
                self.hot.push(port.id);
            }
        }
        any && now < self.finishes_by
    }

    /// True if a link has a frame that is due too soon to sleep until then.
    fn any_due_soon(&mut self, now: Nanos) -> bool {
        let soon = |due: Option<Nanos>| due.is_some_and(|due| due <= now + EARLY_NS);
        let ports = &self.ports;
        let port = |id: &PortId| ports.get(usize::from(*id))?.as_deref();
        self.far.iter().filter_map(port).any(|port| soon(port.flush_due()))
            || self.hot.iter().filter_map(port).any(|port| soon(port.due()))
    }

    /// When the worker wakes for the next frame that arrives over a link. Another worker that
    /// sends one rings.
    fn far_due(&self) -> Option<Nanos> {
        let ports = self.far.iter().filter_map(|id| self.ports.get(usize::from(*id))?.as_deref());
        let due = match &self.waker {
            Some(waker) => ports.filter_map(|port| port.flush_due_or_wake(waker)).min(),
            None => ports.filter_map(Served::flush_due).min(),
        };
        due.map(|due| Nanos(due.0.saturating_sub(EARLY_NS)))
    }

    /// True if an owner cannot send more before it is served.
    fn any_full(&mut self, now: Nanos) -> bool {
        let ports = &mut self.ports;
        self.hot.iter().any(|id| {
            let port = port_at(ports, *id);
            port.is_some_and(|port| port.source.is_full() && port.opens_at(now).is_none())
        })
    }

    /// Arms hot ports that have been idle for a while.
    fn cool_down(&mut self, now: Nanos) {
        let polls = self.idle == Idle::Poll;
        if polls && now - self.tended_at >= TEND_NS {
            self.tended_at = now;
            for id in &self.hot {
                if let Some(port) = port_at(&mut self.ports, *id) {
                    port.disarm();
                }
            }
        }
        let mut at = 0;
        while at < self.hot.len() {
            let Some(port) = port_at(&mut self.ports, self.hot[at]) else { break };
            let keep = port.is_stalled()
                || now - port.busy_at < HOT_NS && port.opens_at(now).is_none()
                || now < port.held_back_until
                || polls && self.serving <= POLLED_IDLE;
            if keep || !self.arm(at, now) {
                at += 1;
            }
        }
    }

    /// Arms the port at `hot[at]`, unless it has work.
    fn arm(&mut self, at: usize, now: Nanos) -> bool {
        let Some(port) = port_at(&mut self.ports, self.hot[at]) else { return false };
        let has_work = self.unwatched.contains(&port.id) || port.arm(now);
        // The port's frames wait for tokens. Its other work, if any, must not wait as long.
        let limit = port.opens_at(now).map(|at| at.min(now + LIMITED_NS)).filter(|_| has_work);
        if has_work && limit.is_none() {
            port.busy_at = now;
            return false;
        }
        port.hot = false;
        if let Some(deadline) = port.deadline(now, EARLY_NS).into_iter().chain(limit).min() {
            let id = port.id;
            self.timers.retain(|(_, timer)| *timer != id);
            self.timers.push((deadline, id));
        }
        self.hot.swap_remove(at);
        true
    }

    /// Arms all ports, except those whose owners are woken later because of heavy traffic. False if
    /// one has work.
    fn arm_all(&mut self, now: Nanos) -> bool {
        let mut at = 0;
        while let Some(id) = self.hot.get(at) {
            if port_at(&mut self.ports, *id).is_some_and(|port| now < port.held_back_until) {
                at += 1;
            } else if !self.arm(at, now) {
                return false;
            }
        }
        true
    }

    /// Sleeps until an owner, a job or a timer wakes the worker, or for `most` nanoseconds. Returns
    /// the time.
    fn sleep(&mut self, mailbox: &Mailbox, most: Option<u64>, now: Nanos) -> Nanos {
        self.state.sleeps.add(1);
        let timers = self.timers.iter().map(|(at, _)| *at);
        let timers = timers.chain(self.late.iter().map(|late| late.due)).chain(self.far_due());
        let timer = timers.map(|at| at - now).chain(most).min().map(Duration::from_nanos);
        mailbox.passed.store(ASLEEP, Ordering::Release);
        let (by_owner, woke) = self.take_events(timer, now);
        self.wake_up(mailbox);
        let then = std::mem::replace(&mut self.busy_at, clock());
        let slept = self.busy_at - now;
        match most {
            Some(_) if self.any_full(now) => self.patience.nap_was_too_long(),
            Some(most) if slept < most => self.patience.cut_short(by_owner),
            Some(_) => {}
            None => self.patience.woke(slept, self.busy_at - then),
        }
        // The time spent on the ports that woke the worker counts to the turn that follows.
        woke
    }

    /// Announces that this worker uses the table again.
    fn wake_up(&self, mailbox: &Mailbox) {
        mailbox.passed.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Waits for owners, jobs and timers, at most for `timeout`, and makes their ports hot. Returns
    /// whether an owner came, and when the wait ended.
    fn take_events(&mut self, timeout: Option<Duration>, mut now: Nanos) -> (bool, Nanos) {
        let mut by_owner = false;
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        let wait = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let events = epoll::wait(&self.epoll, &mut space, wait.as_ref());
        if timeout != Some(Duration::ZERO) {
            now = clock();
        }
        for event in events.iter().flat_map(|(events, _)| events.iter()) {
            match event.data.u64() {
                JOBS => {
                    let doorbell = &self.common.workers[self.number].doorbell;
                    let _ = rustix::io::read(doorbell, &mut [0; 8]);
                }
                id => {
                    by_owner = true;
                    self.wake_port(id as PortId, now, true);
                }
            }
        }
        while let Some(due) = self.timers.iter().position(|(at, _)| *at <= now) {
            let (_, id) = self.timers.swap_remove(due);
            self.wake_port(id, now, false);
        }
        (by_owner, now)
    }

    fn wake_port(&mut self, id: PortId, now: Nanos, by_owner: bool) {
        let Some(port) = port_at(&mut self.ports, id) else { return };
        self.state.work.serve(id, Activity::Wake);
        port.disarm();
        self.state.work.rest();
        port.busy_at = now;
        port.counters.wakeups.add(u64::from(by_owner));
        if !port.hot {
            port.hot = true;
            self.hot.push(id);
        }
    }
}

#[inline(always)]
fn port_at(ports: &mut [Option<Box<Served>>], id: PortId) -> Option<&mut Served> {
    ports.get_mut(usize::from(id))?.as_deref_mut()
}

/// Wakes the owner of a queue, at once or later.
#[inline]
fn wake_owner(
    table: &Table,
    state: &WorkerState,
    late: &mut Vec<Late>,
    port: PortId,
    side: Side,
    now: Nanos,
) {
    let Some(bells) = table.bells.get(usize::from(port)) else { return };
    match bells.ring(side, now) {
        WakeOutcome::Yes { rests_until } => {
            state.kicks.add(1);
            late.extend(rests_until.map(|due| Late { due, port, side, heavy: true }));
        }
        WakeOutcome::Later { due, heavy } => late.push(Late { due, port, side, heavy }),
        WakeOutcome::No => {}
    }
}
