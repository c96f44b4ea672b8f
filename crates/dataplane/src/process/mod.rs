//! The data process of a switch: its control thread.
//!
//! It listens on a socket that the supervisor made and carries out [`Command`]s. No other thread
//! maps, attaches, detaches or unmaps. It may block; workers never wait for it.

mod error;
mod filters;
mod greeting;
mod guests;
mod kept;
mod links;
mod memory;
mod ports;
mod remakes;
mod threads;
mod trusted;
mod tunnels;
mod users;
mod watch;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::{Fdb, PortSpec};
use jail::strangers::{self, Descriptor};
use jail::{Inside, Wall};
use port::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};
use shmem::Memfd;
use shmem::budget::{Account, Budget};
use turn::attach::{Bells, Exit};
use turn::board::Board;
use turn::clock;
use turn::port_link::{Files, PortLinks};
use turn::serve::Served;
use turn::state::{self, Activity, State};
use turn::user::Users;

pub use self::error::ProcessError;
use self::error::system;
use self::filters::Filtering;
use self::greeting::accept;
use self::guests::Guest;
use self::kept::Restored;
use self::ports::{AddedPort, RemovedPort};
use self::remakes::Remakes;
use self::threads::{pin, run_or_abort};
use self::trusted::Trusted;
use self::watch::Told;
use crate::attach::card::ServeRequests;
use crate::attach::vxlan::Handle;
use crate::config::{Limits, PortConfig, PortId, SwitchConfig};
use crate::control::{self, Answer, ChannelError, Command};
use crate::sandbox;
use crate::suspicion::Suspicion;
use crate::worker::{Common, Job, Worker, WorkerSettings};

/// The maximum number of supervisors that are served at a time; others wait to be accepted.
const MAX_CONNECTIONS: usize = 8;

/// Reads what a confined process cannot read any more. Call it first.
pub fn prepare() {
    strangers::prepare();
    memory::max_map_count();
    sandbox::be_punctual();
}

/// Runs the switch `switch` until a command stops it. It listens on `listener` (SEQPACKET) and
/// keeps its state in `state`, a sealed memory file of [`state::file_size`] bytes. From the first
/// command on, all threads of the process are confined for good (see [`sandbox`]).
///
/// # Errors
/// [`ProcessError`] when it cannot start.
#[expect(clippy::needless_pass_by_value, reason = "the sockets are this process's, to its end")]
pub fn run(
    listener: OwnedFd,
    state: OwnedFd,
    switch: String,
    config: SwitchConfig,
    inside: Inside,
) -> Result<(), ProcessError> {
    shmem::guard::install();
    prepare();
    let mut process = Process::start(Memfd::adopt(state)?, switch, config)?;
    process.inside = inside;
    process.state.note_deaths();
    process.state.switch().control.set_writer();
    let walls = &mut process.inside.walls;
    if sandbox::is_wanted() {
        sandbox::enter()?;
        walls.note(Wall::SystemCalls, Ok(()));
    } else {
        walls.note(Wall::SystemCalls, Err(format!("{} is off", sandbox::SWITCH)));
    }
    process.serve(&listener).map_err(system("wait for commands"))?;
    process.finish();
    Ok(())
}

/// A port, as the control thread records it.
struct Record {
    config: PortConfig,
    spec: PortSpec<Exit>,
    /// Duplicates of the port's descriptors, for a supervisor that was restarted.
    descriptors: Vec<Descriptor>,
    bells: Bells,
    worker: u16,
    /// The mappings for this port.
    account: Arc<Account>,
    /// How much of this thread's time the port's front end has used.
    remakes: Remakes,
    /// The front end of a guest's port.
    guest: Option<Guest>,
    /// The tunnel of the port, if the port is a tunnel.
    tunnel: Option<Handle>,
    /// On a trusted switch, its rings, which no worker serves.
    idle: Option<Box<Served>>,
    /// The port's links.
    links: PortLinks,
}

struct Process {
    switch: String,
    /// The confinement of the process, and the users that it trusts.
    inside: Inside,
    config: SwitchConfig,
    /// The limits of each user.
    limits: Limits,
    /// The budget for mapped memory of peers.
    budget: Arc<Budget>,
    /// The maximum number of mappings that the kernel allows.
    most_mappings: u64,
    state_file: Memfd,
    state: State,
    common: Arc<Common>,
    threads: Vec<JoinHandle<()>>,
    /// By number.
    ports: Vec<Option<Record>>,
    /// The largest IP packet that fits all tunnels.
    inner_mtu: u16,
    instances: u32,
    /// The connection of the supervisor that greeted last. It keeps the persistent state of ports.
    supervisor: Option<OwnedFd>,
    /// The supervisor did not take all of the state; the rest is sent later.
    behind: bool,
    restored: Restored,
    /// How workers ask this thread to serve ports.
    summons: Arc<ServeRequests>,
    /// Ports whose front ends have sent messages and must wait.
    resting: Vec<PortId>,
    /// The users of ports, and the kernel's work for them on our threads.
    users: Arc<Users>,
    /// Finds the port whose memory delays workers.
    suspicion: Suspicion,
    told: Told,
    /// What files that links name hold.
    files: Files,
    /// Deliveries to the receive queues of watched ports are being timed.
    timed: bool,
    /// Set on a trusted switch.
    trusted: Option<Trusted>,
    filtering: Filtering,
    stopping: bool,
}

impl Process {
    fn start(
        state_file: Memfd,
        switch: String,
        config: SwitchConfig,
    ) -> Result<Self, ProcessError> {
        let workers = config.workers.len();
        if workers == 0 || workers > state::MAX_WORKERS {
            return Err(ProcessError::Config("a switch has 1 to 64 workers"));
        }
        let state = State::take_over(&state_file, &config)?;
        // A predecessor that died as the holder left the lock to us.
        let board = Board::of(&state);
        let _held = board.as_ref().and_then(trusted::take_over);
        let fdb = state.open_fdb();
        let fdb: Fdb = fdb.ok_or(ProcessError::Config("the forwarding table does not fit"))?;
        let common = Common::new(fdb, workers).map_err(system("make an eventfd"))?;
        if state.is_used() {
            state.switch().restarts.add(1);
            state.count_lost();
            state.forget_memory();
            // A predecessor's receivers are not all in the table yet.
            common.draining.store(true, Ordering::Relaxed);
        }
        state.set_used();
        state.recorder().clear();
        let most_mappings = memory::most_mappings();
        let mut process = Self {
            switch,
            inside: Inside::outside(),
            limits: Limits::default(),
            budget: Budget::new(memory::limits(&config, most_mappings)),
            most_mappings,
            state_file,
            state,
            common: Arc::new(common),
            threads: Vec::new(),
            ports: Vec::new(),
            inner_mtu: u16::MAX,
            instances: 0,
            supervisor: None,
            behind: false,
            restored: Restored::new(),
            summons: Arc::new(ServeRequests::new().map_err(system("make an eventfd"))?),
            resting: Vec::new(),
            users: Arc::new(
                Users::new(config.workers.iter().filter_map(|worker| worker.cpu))
                    .map_err(system("make an eventfd"))?,
            ),
            suspicion: Suspicion::default(),
            files: Files::new(),
            told: Told::default(),
            timed: false,
            trusted: None,
            filtering: Filtering::default(),
            stopping: false,
            config,
        };
        process.trusted = board.clone().map(Trusted::new);
        for number in 0..workers {
            process.start_worker(number)?;
        }
        Ok(process)
    }

    /// Starts a worker, pinned to its CPU if possible. The state memory names the CPU before the
    /// first command is answered.
    fn start_worker(&mut self, number: usize) -> Result<(), ProcessError> {
        let state = self.state.worker(number).ok_or(ProcessError::Config("too many workers"))?;
        let cpu = self.config.workers[number].cpu;
        let noted = state.clone();
        let (common, recorder) = (Arc::clone(&self.common), self.state.recorder().clone());
        let worker = Worker::new(common, number, state, self.settings(), recorder)
            .map_err(system("make a worker's epoll"))?;
        let thread = std::thread::Builder::new().name(format!("worker {number}"));
        let (reply, pinned) = sync_channel(1);
        let run = move || {
            let _ = reply.send(cpu.filter(|cpu| pin(*cpu)));
            run_or_abort(worker);
        };
        let thread = thread.spawn(run);
        let failed = |source| ProcessError::System { what: "start a worker", source };
        self.threads.push(thread.map_err(failed)?);
        let cpu = pinned.recv().ok().flatten();
        noted.cpu.set(cpu.map_or(0, |cpu| u64::from(cpu) + 1));
        Ok(())
    }

    fn settings(&self) -> WorkerSettings {
        let stall_timeout = u64::from(self.config.stall_timeout_ms) * Nanos::MILLI;
        WorkerSettings { idle: self.config.idle, batch: self.config.batch, stall_timeout }
    }

    /// Takes changed settings into use.
    fn apply_settings(&self) {
        let settings = self.settings();
        self.common.workers.iter().for_each(|w| w.send(Job::Settings(settings)));
        self.budget.set_limits(memory::limits(&self.config, self.most_mappings));
    }

    /// Answers supervisors, of which several may be connected, and ages the table.
    fn serve(&mut self, listener: &OwnedFd) -> rustix::io::Result<()> {
        let mut connections: Vec<OwnedFd> = Vec::new();
        let mut aged = clock();
        while !self.stopping {
            let room = connections.len() < MAX_CONNECTIONS;
            let polled = connections.iter().chain(room.then_some(listener));
            let mut fds: Vec<_> = polled.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let (others, mut guests) = (fds.len(), Vec::new());
            let now = clock();
            let rested = self.poll_guests(&mut fds, &mut guests, now);
            let patience = rested.map_or(Nanos::SECOND, |until| (until - now).min(Nanos::SECOND));
            let summons = Arc::clone(&self.summons);
            let users = Arc::clone(&self.users);
            fds.push(PollFd::from_borrowed_fd(users.doorbell(), PollFlags::IN));
            fds.push(PollFd::from_borrowed_fd(summons.doorbell(), PollFlags::IN));
            let patience = Duration::from_nanos(patience);
            let patience = Timespec::try_from(patience).unwrap_or_default();
            match rustix::event::poll(&mut fds, Some(&patience)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => (),
                Err(error) => return Err(error),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            self.take_out_failed();
            self.wake_rested();
            let talking = guests.into_iter().zip(&ready[others..]).filter(|(_, ready)| **ready);
            for (id, _) in talking {
                self.state.switch().control.serve(id, Activity::Message);
                self.serve_guest(id);
            }
            let [.., news, summoned] = ready[..] else { unreachable!("two doorbells are polled") };
            if news {
                self.users.reset_doorbell();
                self.look_after_users();
            }
            if summoned {
                self.serve_summoned();
            }
            self.state.switch().control.rest();
            let mut ready = ready[..others].iter().copied();
            // After a stop command no other command could be answered.
            connections.retain(|connection| {
                let goes_on = ready.next() != Some(true)
                    || !self.stopping && self.answer(connection.as_fd()).is_ok();
                if !goes_on {
                    // `supervisor` is a duplicate of the connection. Without a shutdown, the peer
                    // would wait for an answer forever.
                    let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
                }
                goes_on
            });
            if ready.next() == Some(true) {
                connections.extend(accept(listener, &self.inside.creators));
            }
            let now = clock();
            if now - aged >= Nanos::SECOND {
                aged = now;
                self.resume();
                if self.trusted.is_some() {
                    self.look_after_board(now);
                } else {
                    self.common.fdb.age(self.config.fdb_ageing_s, now);
                }
                self.filtering.sweep(now);
                self.look_after_guests();
                self.look_after_users();
                self.look_for_held_up_turns(now);
            }
        }
        Ok(())
    }

    /// Lets workers gather frames: all ports of a predecessor are back, or have been waited for
    /// long enough.
    fn resume(&self) {
        self.common.draining.store(self.stopping, Ordering::Relaxed);
    }

    /// Takes ports whose code panicked out of the table. Frames to them are dropped as `down`, and
    /// floods skip them. That lasts until they are removed (as a guest's port is when its front end
    /// goes) or another data process serves them.
    fn take_out_failed(&mut self) {
        let failed = self.common.take_failed();
        if !failed.is_empty() {
            self.take_out(&failed);
        }
    }

    /// Takes ports that no worker serves any more out of the table, and marks them as failed.
    fn take_out(&mut self, ids: &[PortId]) {
        for id in ids {
            let Some(record) = self.ports.get_mut(usize::from(*id)).and_then(Option::as_mut) else {
                continue;
            };
            record.spec.egresses.clear();
            record.spec.linked.clear();
            // Without this, the port's front end would wait for answers forever.
            record.guest.iter_mut().for_each(|guest| guest.front_end_mut().lost_worker());
            if let Some(state) = self.state.port(*id) {
                state.set_failed(true);
            }
        }
        self.publish();
    }

    /// True if no worker serves the port, because its code panicked or its user is at fault.
    fn has_failed(&self, id: PortId) -> bool {
        self.state.port(id).is_some_and(|state| state.has_failed())
    }

    /// Carries out one message, or several in a row that add or remove ports. Those take effect
    /// together, so that a switch with thousands of ports is back, or empty, at once.
    fn answer(&mut self, from: BorrowedFd<'_>) -> Result<(), ChannelError> {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        let board = self.board();
        let _held = self.hold(board.as_ref());
        loop {
            let next = control::receive::<Command>(from);
            if !matches!(next, Ok((Command::AddPort { .. }, _))) {
                self.publish_added(&mut added, from)?;
            }
            if !matches!(next, Ok((Command::RemovePort { .. }, _))) {
                self.publish_removed(&mut removed, from)?;
            }
            match next? {
                (Command::AddPort { id, config, resume }, descriptors) => {
                    self.state.switch().control.serve(id, Activity::Message);
                    let resume = resume && !self.state.is_fresh();
                    let free = self.check_lock();
                    added.push(free.and_then(|()| self.add_port(id, config, descriptors, resume)));
                }
                (Command::RemovePort { id }, _) => {
                    removed.push(match self.check_lock() {
                        Ok(()) => self.take_port(id).map(Some),
                        // Its owner is gone, so nothing would ask again.
                        Err(_) => self.remove_later(id).map(|()| None),
                    });
                }
                (other, fds) => return self.execute(other, fds, from),
            }
            if added.len() + removed.len() == TOGETHER || !is_readable(from) {
                self.publish_added(&mut added, from)?;
                return self.publish_removed(&mut removed, from);
            }
        }
    }

    /// Puts added ports into the table, has workers serve them, then answers each command.
    fn publish_added(
        &mut self,
        added: &mut Vec<AddedPort>,
        to: BorrowedFd<'_>,
    ) -> Result<(), ChannelError> {
        if added.is_empty() {
            return Ok(());
        }
        self.publish();
        self.measure_tunnels();
        let mut serve = |(worker, served)| {
            self.give_out(worker, served);
            Answer::Added { worker }
        };
        let answers: Vec<_> = added.drain(..).map(|port| answer_of(port.map(&mut serve))).collect();
        self.write_board();
        answers.iter().try_for_each(|answer| control::send(to, answer, &[]))
    }

    /// Puts a table without the removed ports into use, drops what belonged to them, then answers
    /// each command.
    fn publish_removed(
        &mut self,
        removed: &mut Vec<Result<Option<RemovedPort>, String>>,
        to: BorrowedFd<'_>,
    ) -> Result<(), ChannelError> {
        if removed.is_empty() {
            return Ok(());
        }
        self.publish();
        let retire = |port: Option<RemovedPort>| {
            port.into_iter().for_each(|port| self.retire_port(port));
            Answer::Done
        };
        let answers: Vec<_> = removed.drain(..).map(|port| answer_of(port.map(retire))).collect();
        self.write_board();
        self.measure_tunnels();
        answers.iter().try_for_each(|answer| control::send(to, answer, &[]))
    }

    /// Carries out a command other than `AddPort` and `RemovePort`.
    fn execute(
        &mut self,
        command: Command,
        descriptors: Vec<Descriptor>,
        from: BorrowedFd<'_>,
    ) -> Result<(), ChannelError> {
        let answer = match command {
            Command::Hello { version } => return self.greet(version, from),
            Command::Resume => {
                self.resume();
                self.write_board();
                Ok(Answer::Done)
            }
            Command::ListPorts => {
                self.list_ports(from)?;
                // Only a supervisor that finds a running process lists its ports. It restores none,
                // so frames may flow.
                self.resume();
                self.write_board();
                Ok(Answer::Done)
            }
            Command::AddPort { .. } | Command::RemovePort { .. } => {
                Err("Ports are added and removed before other commands".to_owned())
            }
            Command::Restore { id, uid, key, value } => {
                self.restore(id, uid, key, value, descriptors)
            }
            Command::SetPolicy { .. }
            | Command::ReadFormat { .. }
            | Command::FlushFdb { .. }
            | Command::AddFdb { .. }
            | Command::DeleteFdb { .. }
                if self.check_lock().is_err() =>
            {
                self.check_lock().map(|()| Answer::Done)
            }
            Command::SetPolicy { id, policy } => self.set_policy(id, &policy),
            Command::ReadFormat { id } => self.read_format(id),
            Command::MovePort { id, worker } => self.move_port(id, worker),
            Command::SetLimits { limits } => {
                self.limits = limits;
                self.limit_addresses();
                self.budget.set_user_limits(memory::user_limits(&self.limits));
                Ok(Answer::Done)
            }
            Command::SetSwitch {
                idle,
                batch,
                fdb_ageing_s,
                stall_timeout_ms,
                max_guest_memory,
                max_mapped_memory,
            } => {
                self.config = SwitchConfig {
                    idle,
                    batch,
                    fdb_ageing_s,
                    stall_timeout_ms,
                    max_guest_memory,
                    max_mapped_memory,
                    ..std::mem::take(&mut self.config)
                };
                self.apply_settings();
                Ok(Answer::Done)
            }
            Command::FlushFdb { port, vlan } => {
                self.common.fdb.flush(port, vlan.map(frame::VlanId::get));
                Ok(Answer::Done)
            }
            Command::AddFdb { mac, vlan, port } => self.add_fdb(mac, vlan, port),
            Command::DeleteFdb { mac, vlan } => {
                let filter = vlan.map_or(0, frame::VlanId::get);
                let removed = self.common.fdb.remove(filter, mac);
                removed.then_some(Answer::Done).ok_or_else(|| format!("{mac} is not in the table"))
            }
            Command::SetHosts { id, hosts } => self.set_hosts(id, hosts),
            Command::SetStations { id, segment, stations } => {
                self.set_stations((id, segment), &stations)
            }
            Command::SetOwners { id, segment, owners } => self.set_owners((id, segment), &owners),
            Command::TakeClaims { id, segment, all } => self.take_claims((id, segment), all),
            Command::LinkFile { name } => self.take_link_file(name, descriptors),
            Command::LinkStats { id } => self.link_stats(id),
            Command::SetRules => self.set_rules(descriptors),
            Command::ChangeTable { table, add, remove } => {
                self.filtering.change_table(table, &add, &remove)
            }
            Command::ReadHits { program, from } => Ok(self.filtering.hits(program, from)),
            Command::ZeroHits => Ok(self.filtering.zero()),
            Command::ReadConnections => Ok(self.filtering.list(clock())),
            Command::ReadLog => Ok(self.filtering.log()),
            Command::Stop => self.stop(),
        };
        control::send(from, &answer_of(answer), &[])
    }

    /// Tells the table how many addresses each port's user may learn.
    fn limit_addresses(&self) {
        for (id, record) in self.ports.iter().enumerate() {
            let Some(uid) = record.as_ref().map(|record| record.config.uid) else { continue };
            self.common.fdb.set_user(id as PortId, uid, self.limits.of(uid).addresses);
        }
    }

    fn list_ports(&mut self, to: BorrowedFd<'_>) -> Result<(), ChannelError> {
        for (id, record) in self.ports.iter().enumerate() {
            let Some(record) = record else { continue };
            let (id, worker) = (id as PortId, Some(record.worker));
            let port = Answer::Port { id, config: record.config.clone().into(), worker };
            let descriptors: Vec<_> = record.descriptors.iter().map(AsFd::as_fd).collect();
            control::send(to, &port, &descriptors)?;
        }
        self.list_kept(to)
    }

    /// Lets the workers finish what they have gathered, and ends them.
    fn drain(&mut self) {
        self.common.draining.store(true, Ordering::Relaxed);
        self.common.workers.iter().for_each(|worker| worker.send(Job::Finish));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }

    fn finish(mut self) {
        self.drain();
    }
}

/// The maximum number of ports that take effect together: their answers must fit a socket's buffer.
const TOGETHER: usize = 64;

fn answer_of(done: Result<Answer, String>) -> Answer {
    done.unwrap_or_else(|reason| Answer::Failed { reason })
}

/// True if a message is waiting.
fn is_readable(from: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&now)), Ok(1))
}

#[cfg(test)]
mod tests;
