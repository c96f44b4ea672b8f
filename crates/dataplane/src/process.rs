//! The data process of a switch: its control thread.
//!
//! It listens on a socket that the supervisor made, does what [`Command`]s say, and is the only one
//! that maps, attaches, detaches and unmaps. It may block; workers never wait for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::{Fdb, Monitor, Policy, PortSpec, Ports};
use port::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;
use shmem::Memfd;

use crate::attach::{self, AttachError, Attached};
use crate::config::{Attachment, Idle, PortConfig, PortId, SwitchConfig};
use crate::control::{self, Answer, ChannelError, Command};
use crate::inline::set_addresses;
use crate::sandbox;
use crate::serve::Served;
use crate::state::{self, PortState, State};
use crate::worker::{Common, Job, Table, Worker, clock};

/// Most supervisors that are talked to at a time; others wait to be accepted.
const MAX_CONNECTIONS: usize = 8;
/// How long a supervisor may leave answers unread before its connection is closed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a data process ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The state memory cannot be used.
    #[error("The state memory of the switch cannot be used")]
    State(#[from] shmem::RegionError),
    /// The configuration cannot be used.
    #[error("The configuration of the switch cannot be used: {0}")]
    Config(&'static str),
    /// It cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] crate::sandbox::SandboxError),
    /// A worker was given a CPU that it cannot run on.
    #[error(
        "Worker {worker} cannot run on CPU {cpu}: name a CPU that this machine has and this process \
         may use, or leave it out"
    )]
    Cpu {
        /// The worker.
        worker: usize,
        /// The CPU.
        cpu: u16,
    },
    /// The operating system refused something.
    #[error("Cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> ProcessError {
    move |errno| ProcessError::System { what, source: errno.into() }
}

/// Runs the switch `switch` until it is told to stop: listens on `listener` (SEQPACKET), keeps its
/// state in `state`, a sealed memory file of [`state::file_size`] bytes. From the first command on the
/// process is confined (see [`sandbox`]), all its threads, for good.
///
/// # Errors
/// [`ProcessError`] when it cannot start.
#[expect(clippy::needless_pass_by_value, reason = "the sockets are this process's, to its end")]
pub fn run(
    listener: OwnedFd,
    state: OwnedFd,
    switch: String,
    config: SwitchConfig,
) -> Result<(), ProcessError> {
    shmem::guard::install();
    let mut process = Process::start(Memfd::adopt(state)?, switch, config)?;
    if sandbox::is_wanted() {
        sandbox::enter()?;
    }
    process.serve(&listener).map_err(system("wait for commands"))?;
    process.finish();
    Ok(())
}

/// A port as the control thread knows it.
struct Record {
    config: PortConfig,
    spec: PortSpec,
    /// Duplicates of what came with it, for a supervisor that was restarted.
    descriptors: Vec<OwnedFd>,
    token: Option<Arc<OwnedFd>>,
    worker: u16,
}

struct Process {
    switch: String,
    config: SwitchConfig,
    state_file: Memfd,
    state: State,
    common: Arc<Common>,
    threads: Vec<JoinHandle<()>>,
    /// By number.
    ports: Vec<Option<Record>>,
    instances: u32,
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
        let fdb = state.open_fdb();
        let fdb: Fdb = fdb.ok_or(ProcessError::Config("the forwarding table does not fit"))?;
        if state.is_used() {
            state.switch().restarts.add(1);
            state.count_lost();
        }
        state.set_used();
        let common = Common::new(fdb, workers).map_err(system("make an eventfd"))?;
        let mut process = Self {
            switch,
            state_file,
            state,
            common: Arc::new(common),
            threads: Vec::new(),
            ports: Vec::new(),
            instances: 0,
            stopping: false,
            config,
        };
        for number in 0..workers {
            process.start_worker(number)?;
        }
        Ok(process)
    }

    fn start_worker(&mut self, number: usize) -> Result<(), ProcessError> {
        let state = self.state.worker(number).ok_or(ProcessError::Config("too many workers"))?;
        let cpu = self.config.workers[number].cpu;
        state.cpu.set(cpu.map_or(0, |cpu| u64::from(cpu) + 1));
        let worker = Worker::new(Arc::clone(&self.common), number, state, self.settings())
            .map_err(system("make a worker's epoll"))?;
        let thread = std::thread::Builder::new().name(format!("worker {number}"));
        let (reply, pinned) = sync_channel(1);
        let run = move || {
            let here = cpu.is_none_or(pin);
            let _ = reply.send(here);
            if here {
                run_or_abort(worker);
            }
        };
        let thread = thread.spawn(run);
        let failed = |source| ProcessError::System { what: "start a worker", source };
        self.threads.push(thread.map_err(failed)?);
        match (cpu, pinned.recv()) {
            (Some(cpu), Ok(false)) => Err(ProcessError::Cpu { worker: number, cpu }),
            _ => Ok(()),
        }
    }

    fn settings(&self) -> (Idle, u16, u64) {
        let timeout = u64::from(self.config.stall_timeout_ms) * Nanos::MILLI;
        (self.config.idle, self.config.batch, timeout)
    }

    /// Answers supervisors, one after the other or several at once, and ages the table.
    fn serve(&mut self, listener: &OwnedFd) -> rustix::io::Result<()> {
        let mut connections: Vec<OwnedFd> = Vec::new();
        let mut aged = clock();
        while !self.stopping {
            let room = connections.len() < MAX_CONNECTIONS;
            let polled = connections.iter().chain(room.then_some(listener));
            let mut fds: Vec<_> = polled.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            match rustix::event::poll(&mut fds, Some(&second)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => (),
                Err(error) => return Err(error),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut ready = ready.into_iter();
            // Once stopped, nobody could answer any more.
            connections.retain(|connection| {
                ready.next() != Some(true)
                    || !self.stopping && self.answer(connection.as_fd()).is_ok()
            });
            if ready.next() == Some(true) {
                connections.extend(accept(listener));
            }
            let now = clock();
            if now - aged >= Nanos::SECOND {
                aged = now;
                self.common.fdb.age(self.config.fdb_ageing_s, now);
            }
        }
        Ok(())
    }

    /// Does what one message says, or several in a row that add ports: those are published together,
    /// so that a switch of thousands is back at once.
    fn answer(&mut self, from: BorrowedFd<'_>) -> Result<(), ChannelError> {
        let mut message = control::receive::<Command>(from);
        let mut added = Vec::new();
        while let Ok((Command::AddPort { id, config, resume }, descriptors)) = message {
            added.push(self.add_port(id, config, descriptors, resume && !self.state.is_fresh()));
            if added.len() == ADDED_TOGETHER || !is_readable(from) {
                return self.publish_added(added, from);
            }
            message = control::receive(from);
        }
        if !added.is_empty() {
            self.publish_added(added, from)?;
        }
        let (command, _) = message?;
        self.execute(command, from)
    }

    /// Puts added ports into the table and has them served, then answers for each.
    fn publish_added(
        &mut self,
        added: Vec<AddedPort>,
        to: BorrowedFd<'_>,
    ) -> Result<(), ChannelError> {
        self.publish();
        let serve = |(worker, served)| {
            self.common.workers[usize::from(worker)].send(Job::Serve(served));
            Answer::Added { worker }
        };
        let answers = added.into_iter().map(|port| port.map(serve));
        let answers: Vec<_> =
            answers.map(|a| a.unwrap_or_else(|reason| Answer::Failed { reason })).collect();
        answers.iter().try_for_each(|answer| control::send(to, answer, &[]))
    }

    /// Does what a command other than `AddPort` says.
    fn execute(&mut self, command: Command, from: BorrowedFd<'_>) -> Result<(), ChannelError> {
        let answer = match command {
            Command::Hello { version } => {
                let pid = std::process::id();
                let switch = self.switch.clone();
                let hello = Answer::Hello { version: control::VERSION, pid, switch };
                control::send(from, &hello, &[self.state_file.as_fd()])?;
                // Told our version, a supervisor of another one knows why it is left.
                let same = version == control::VERSION;
                return same.then_some(()).ok_or(ChannelError::Closed);
            }
            Command::ListPorts => {
                self.list_ports(from)?;
                Ok(Answer::Done)
            }
            Command::AddPort { .. } => Err("Ports are added before other commands".to_owned()),
            Command::RemovePort { id } => self.remove_port(id),
            Command::SetPolicy { id, policy } => self.set_policy(id, &policy),
            Command::MovePort { id, worker } => self.move_port(id, worker),
            Command::SetSwitch { idle, batch, fdb_ageing_s, stall_timeout_ms } => {
                let config = std::mem::take(&mut self.config);
                self.config =
                    SwitchConfig { idle, batch, fdb_ageing_s, stall_timeout_ms, ..config };
                let (idle, batch, timeout) = self.settings();
                self.common
                    .workers
                    .iter()
                    .for_each(|w| w.send(Job::Settings(idle, batch, timeout)));
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
            Command::Stop => {
                self.stopping = true;
                self.drain();
                Ok(Answer::Done)
            }
        };
        let answer = answer.unwrap_or_else(|reason| Answer::Failed { reason });
        control::send(from, &answer, &[])
    }

    fn list_ports(&self, to: BorrowedFd<'_>) -> Result<(), ChannelError> {
        for (id, record) in self.ports.iter().enumerate() {
            let Some(record) = record else { continue };
            let port = Answer::Port { id: id as PortId, config: record.config.clone() };
            let descriptors: Vec<_> = record.descriptors.iter().map(AsFd::as_fd).collect();
            control::send(to, &port, &descriptors)?;
        }
        Ok(())
    }

    fn record(&mut self, id: PortId) -> Result<&mut Record, String> {
        let record = self.ports.get_mut(usize::from(id)).and_then(Option::as_mut);
        record.ok_or_else(|| format!("There is no port number {id}"))
    }

    fn add_port(
        &mut self,
        id: PortId,
        config: PortConfig,
        descriptors: Vec<OwnedFd>,
        resume: bool,
    ) -> AddedPort {
        if self.ports.get(usize::from(id)).is_some_and(Option::is_some) {
            return Err(format!("Port number {id} is in use"));
        }
        let state =
            self.state.port(id).ok_or_else(|| format!("The switch has no port number {id}"))?;
        if !resume {
            // What the number's last holder left, if it went while no data process ran.
            self.common.fdb.detach(id);
            if self.state.switch().has_port(id) {
                state.retire(self.state.switch());
                self.state.switch().set_port(id, false);
            }
        }
        let kept =
            duplicate(&descriptors).map_err(|e| format!("Cannot duplicate descriptors: {e}"))?;
        let (attached, monitor) =
            attach(&config.attachment, descriptors, &state, resume).map_err(|e| explain(&e))?;
        let Attached { source, egresses, token } = attached;
        let counters = state.ingress().ok_or("The port's counters are missing")?;
        let worker = self.choose_worker(config.worker);
        self.instances += 1;
        let spec = PortSpec {
            id,
            instance: self.instances,
            name: config.name.clone(),
            policy: config.policy.clone(),
            send_queues: source.queues() as u16,
            counters: counters.clone(),
            egresses,
            monitor,
        };
        if self.ports.len() <= usize::from(id) {
            self.ports.resize_with(usize::from(id) + 1, || None);
        }
        self.state.switch().set_port(id, true);
        self.set_addresses(id, &config.policy, &Policy::default());
        let record = Record { config, spec, descriptors: kept, token, worker };
        self.ports[usize::from(id)] = Some(record);
        Ok((worker, Box::new(Served::new(id, source, counters, clock()))))
    }

    /// The worker asked for, or the one with the fewest ports.
    fn choose_worker(&self, wanted: Option<u16>) -> u16 {
        let workers = self.common.workers.len() as u16;
        let ports =
            |worker: &u16| self.ports.iter().flatten().filter(|p| p.worker == *worker).count();
        wanted.filter(|w| *w < workers).or_else(|| (0..workers).min_by_key(ports)).unwrap_or(0)
    }

    /// Enters a port's configured addresses into the table and takes earlier ones out.
    fn set_addresses(&self, id: PortId, policy: &Policy, earlier: &Policy) {
        set_addresses(&self.common.fdb, id, policy, earlier, clock());
    }

    /// Swaps in a table of the present ports; returns when no worker uses the old one.
    fn publish(&self) {
        let tokens = self.ports.iter().map(|p| p.as_ref().and_then(|p| p.token.clone())).collect();
        let specs = self.ports.iter().flatten().map(|record| &record.spec);
        self.common.replace_table(Table { ports: Ports::build(specs), tokens });
    }

    /// Takes a port from its worker.
    fn release(&self, id: PortId, worker: u16) -> Option<Box<Served>> {
        let (reply, answer) = sync_channel(1);
        self.common.workers[usize::from(worker)].send(Job::Release(id, reply));
        answer.recv().ok().flatten()
    }

    fn remove_port(&mut self, id: PortId) -> Result<Answer, String> {
        let worker = self.record(id)?.worker;
        let served = self.release(id, worker);
        let record = self.ports[usize::from(id)].take();
        self.publish();
        self.common.fdb.detach(id);
        if let Some(mut served) = served {
            served.abandon();
        }
        // Only now, with no worker in its rings, is the port's memory unmapped.
        drop(record);
        if let Some(state) = self.state.port(id) {
            state.retire(self.state.switch());
            self.state.switch().set_port(id, false);
        }
        Ok(Answer::Done)
    }

    fn set_policy(&mut self, id: PortId, policy: &Policy) -> Result<Answer, String> {
        let record = self.record(id)?;
        record.spec.policy = policy.clone();
        let earlier = std::mem::replace(&mut record.config.policy, policy.clone());
        self.set_addresses(id, policy, &earlier);
        self.publish();
        if policy.vlan != earlier.vlan {
            self.common.fdb.flush(Some(id), None);
        }
        Ok(Answer::Done)
    }

    fn move_port(&mut self, id: PortId, worker: u16) -> Result<Answer, String> {
        let workers = self.common.workers.len();
        if usize::from(worker) >= workers {
            return Err(format!("The switch has workers 0 to {}", workers - 1));
        }
        let from = std::mem::replace(&mut self.record(id)?.worker, worker);
        self.record(id)?.config.worker = Some(worker);
        match self.release(id, from) {
            Some(served) => self.common.workers[usize::from(worker)].send(Job::Serve(served)),
            None => return Err(format!("Port number {id} failed and is not served; remove it")),
        }
        Ok(Answer::Done)
    }

    fn add_fdb(
        &mut self,
        mac: frame::Mac,
        vlan: Option<frame::VlanId>,
        port: PortId,
    ) -> Result<Answer, String> {
        self.record(port)?;
        if mac.is_group() || mac.word() == 0 {
            return Err(format!("{mac} is no unicast address; only those are at a port"));
        }
        let filter = vlan.map_or(0, frame::VlanId::get);
        let added = self.common.fdb.add_static(filter, mac, port, clock());
        added.then_some(Answer::Done).ok_or_else(|| "The forwarding table is full".to_owned())
    }

    /// Has the workers finish what they gathered, and ends them.
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

/// Most ports that are published together: as many as their answers fit a socket's buffer.
const ADDED_TOGETHER: usize = 64;

/// The worker a port will be served by and what it serves, or why the port was not added.
type AddedPort = Result<(u16, Box<Served>), String>;

/// True if a message is there.
fn is_readable(from: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&now)), Ok(1))
}

/// Makes a port's halves of an attachment and its descriptors.
fn attach(
    attachment: &Attachment,
    descriptors: Vec<OwnedFd>,
    state: &PortState,
    resume: bool,
) -> Result<(Attached, Option<Monitor>), AttachError> {
    let ring = |rings, descriptors: Vec<OwnedFd>| {
        let expected = "a memory file and a token";
        let pair: Result<[OwnedFd; 2], _> = descriptors.try_into();
        let [memory, token] = pair.map_err(|_| AttachError::Descriptors { expected })?;
        attach::ring::attach(memory, token, rings, state, resume)
    };
    match attachment {
        Attachment::Ring(rings) => Ok((ring(rings, descriptors)?, None)),
        Attachment::Monitor { ring: rings, of, tx, rx } => {
            if rings.tx.rings != 0 {
                return Err(AttachError::MonitorSends);
            }
            let monitor = Monitor { of: *of, sent: *tx, received: *rx };
            Ok((ring(rings, descriptors)?, Some(monitor)))
        }
        Attachment::Null => Ok((attach::null::attach(state)?, None)),
        Attachment::Vacant => Ok((attach::null::vacant(), None)),
        Attachment::Tap => {
            let queue = one(descriptors, "a tap interface's queue")?;
            Ok((attach::tap::attach(queue, state)?, None))
        }
        Attachment::PcapRead { repeat, speed_percent } => {
            let file = one(descriptors, "a capture file")?;
            let pcap = attach::pcap::attach_read(&file, *repeat, *speed_percent, state, resume)?;
            Ok((pcap, None))
        }
        Attachment::PcapWrite => {
            let file = one(descriptors, "a file for frames")?;
            Ok((attach::pcap::attach_write(file, state)?, None))
        }
    }
}

fn one(descriptors: Vec<OwnedFd>, expected: &'static str) -> Result<OwnedFd, AttachError> {
    let one: Result<[OwnedFd; 1], _> = descriptors.try_into();
    one.map(|[fd]| fd).map_err(|_| AttachError::Descriptors { expected })
}

fn duplicate(descriptors: &[OwnedFd]) -> std::io::Result<Vec<OwnedFd>> {
    descriptors.iter().map(OwnedFd::try_clone).collect()
}

/// An error with its causes, in one line.
fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A connection from our own user or root.
fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let connection = rustix::net::accept_with(listener, flags).ok()?;
    let peer = sockopt::socket_peercred(&connection).ok()?;
    sockopt::set_socket_timeout(&connection, sockopt::Timeout::Send, Some(PATIENCE)).ok()?;
    let trusted = peer.uid.is_root() || peer.uid == rustix::process::geteuid();
    trusted.then_some(connection)
}

/// Keeps the calling thread on a CPU; false if it cannot be there.
fn pin(cpu: u16) -> bool {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let cpu = usize::from(cpu);
    let mut set = CpuSet::new();
    cpu < CpuSet::MAX_CPU && {
        set.set(cpu);
        sched_setaffinity(None, &set).is_ok()
    }
}

/// Runs a worker. One that panics beyond a port's turn would leave the control thread waiting for it,
/// and its ports without service: the process ends instead, and its successor goes on with them.
fn run_or_abort(worker: Worker) {
    let run = std::panic::AssertUnwindSafe(|| worker.run());
    if std::panic::catch_unwind(run).is_err() {
        std::process::abort();
    }
}
