//! The manager: starts guests, hears what they report, collects them, and starts them again.

mod copies;
mod limits;
mod sweep;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use guest::Place;
use jail::cell::Report;
use jail::child::Strangers;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use topology::GuestSpec;

use super::groups::Groups;
use super::kept::{self, Kept};
use super::kind::{self, Kind, Ports};
use super::log::{self, Log};
use super::process::{self, End};
use super::talk::{Listener, Request};
use super::unit::{GuestInfo, State, Unit};

/// How long a program may take until it is confined and serves.
const BOOT: Duration = Duration::from_secs(30);
/// Reports that are read in a turn.
const REPORTS: usize = 8;
/// Events of a turn.
const EVENTS: usize = 64;

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum What {
    Control,
    Output,
    End,
    TemplateControl,
    TemplateOutput,
    TemplateEnd,
    Listener,
    Signal,
    Groups,
}

impl What {
    const ALL: [Self; 9] = [
        Self::Control,
        Self::Output,
        Self::End,
        Self::TemplateControl,
        Self::TemplateOutput,
        Self::TemplateEnd,
        Self::Listener,
        Self::Signal,
        Self::Groups,
    ];

    fn data(self, index: usize) -> EventData {
        EventData::new_u64((index as u64) << 4 | self as u64)
    }
}

/// An action that is due at a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The guest is started again, if it still waits.
    Start { unit: usize, turn: u32 },
    /// The guest is killed, if it is still not up.
    Boot { unit: usize, turn: u32 },
    /// The template is killed, if it has not loaded.
    Load { kind: usize },
    /// The guest's output is to be read again.
    Unmute { unit: usize },
    /// Children that are no guests are killed.
    Sweep,
}

/// The options of a manager.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemon's directory.
    pub directory: PathBuf,
    /// Prints what guests print, and what happens to them.
    pub echo: bool,
    /// Called once, when every guest serves or has ended.
    pub announce: bool,
    /// The entry of the topology that the daemon has started it for. Such a manager runs on when
    /// its guests have ended.
    pub kept: Option<Kept>,
}

/// Guests and their processes.
pub struct Manager {
    options: Options,
    home: PathBuf,
    listener: Listener,
    epoll: OwnedFd,
    signals: UnixStream,
    groups: Groups,
    kinds: Vec<Kind>,
    units: Vec<Unit>,
    timers: BinaryHeap<Reverse<(Instant, Due)>>,
    announced: bool,
    strangers: Strangers,
    /// Strangers will be looked for.
    sweeps: bool,
    /// The manager ends when its guests have ended.
    leaving: bool,
}

impl Manager {
    /// A manager without guests. Call it in the thread that lives longest: guests end with it.
    ///
    /// # Errors
    /// There is no place for its socket, or the kernel refuses something.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let home = kind::home(&options.directory)?;
        let listener = Listener::new(&home)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (signals, sender) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        epoll::add(&epoll, &listener, What::Listener.data(0), EventFlags::IN)?;
        epoll::add(&epoll, &signals, What::Signal.data(0), EventFlags::IN)?;
        let groups = Groups::new()?;
        epoll::add(&epoll, &groups, What::Groups.data(0), EventFlags::IN)?;
        raise_descriptors();
        jail::child::reap_orphans()?;
        // Without this, orphans of a program that has no process namespace go to another parent.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Ok(Self {
            options,
            home,
            listener,
            epoll,
            signals,
            groups,
            kinds: Vec::new(),
            units: Vec::new(),
            timers: BinaryHeap::new(),
            announced: false,
            strangers: Strangers::from_now_on(),
            sweeps: false,
            leaving: false,
        })
    }

    /// Adds the guests of an entry, and starts them.
    ///
    /// # Errors
    /// A setting is wrong, the program is missing, or a guest of this name runs.
    pub fn add(&mut self, name: &str, spec: &GuestSpec) -> anyhow::Result<()> {
        let mut hosts = spec.hosts(name)?;
        topology::check_name(name, topology::PORT_NAME)?;
        let taken = super::talk::names(&self.options.directory, Some(std::process::id()));
        if let Some((taken, ..)) = hosts.iter().find(|host| taken.contains(&host.0)) {
            bail!("A guest with the name {taken} runs already; use --name, or stop that one");
        }
        let own = self.units.iter().filter(|unit| unit.state != State::Ended);
        if let Some(unit) =
            own.into_iter().find(|unit| hosts.iter().any(|host| host.0 == unit.name))
        {
            bail!("A guest with the name {} runs already", unit.name);
        }
        let index = self.kinds.len();
        let log = Log::new(&self.home, name);
        self.kinds.push(Kind::new(name, spec.clone(), log, self.groups.are_there())?);
        if self.options.kept.is_some() {
            // Before a port is opened: the daemon may be waiting for this line.
            kept::say(kept::ADDED);
        }
        while !hosts.is_empty() {
            let rest = hosts.split_off(hosts.len().min(spec.threads as usize));
            let unit_name = hosts[0].0.clone();
            let place = |(_, port, addresses): (String, String, String)| {
                let mut place = Place::new(&port, &addresses)?;
                place.gateway = spec.gateway;
                place.v6.iter_mut().for_each(|v6| v6.gateway = spec.gateway6);
                Ok((port, place))
            };
            let ports = hosts.into_iter().map(place).collect::<anyhow::Result<_>>()?;
            let log = Log::new(&self.home, &unit_name);
            self.units.push(Unit::new(unit_name, index, ports, log));
            self.start(self.units.len() - 1);
            hosts = rest;
        }
        Ok(())
    }

    /// Runs until all guests have ended. Returns true if none of them failed.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn run(&mut self) -> anyhow::Result<bool> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            self.announce();
            let ended = self.units.iter().all(|unit| unit.state == State::Ended);
            if ended && (self.leaving || self.options.kept.is_none()) {
                self.sweep_all();
                break;
            }
            let now = Instant::now();
            self.run_timers(now);
            let timeout =
                self.timers.peek().map(|Reverse((due, _))| due.saturating_duration_since(now));
            let timeout = timeout.map(|time| rustix::event::Timespec {
                tv_sec: time.as_secs() as i64,
                tv_nsec: i64::from(time.subsec_nanos()),
            });
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => bail!("Cannot wait for guests: {error}"),
            }
            for event in &events {
                let data = { event.data }.u64();
                let what = What::ALL.get((data & 15) as usize);
                what.into_iter().for_each(|what| self.happened(*what, (data >> 4) as usize));
            }
        }
        Ok(self.units.iter().all(|unit| {
            unit.last_end.as_deref().is_none_or(|end| end == "ended" || end == "stopped")
        }))
    }

    /// Returns the rows that `toklat guest list` shows.
    #[must_use]
    pub fn list(&self) -> Vec<GuestInfo> {
        let now = Instant::now();
        let info = |unit: &Unit| {
            let log = log::path(&self.home, &unit.name).display().to_string();
            unit.info(&self.kinds[unit.kind].spec.app, now, log)
        };
        self.units.iter().map(info).collect()
    }

    fn announce(&mut self) {
        let settled = |unit: &Unit| matches!(unit.state, State::Running | State::Ended);
        if self.options.announce && !self.announced && self.units.iter().all(settled) {
            self.announced = true;
            let mut out = std::io::stdout().lock();
            // The command that waits for the announcement may be gone.
            let _ = out.write_all(b"up\n").and_then(|()| out.flush());
        }
    }

    fn tell(&self, words: &str) {
        if self.options.echo {
            // A terminal that is gone is no reason to end.
            let _ = writeln!(std::io::stderr().lock(), "{words}");
        }
    }

    fn after(&mut self, time: Duration, due: Due) {
        self.timers.push(Reverse((Instant::now() + time, due)));
    }

    fn run_timers(&mut self, now: Instant) {
        while let Some(Reverse((at, due))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            match due {
                Due::Start { unit, turn } => {
                    let waits = &self.units[unit];
                    if waits.state == State::Waiting && waits.turn == turn {
                        self.start(unit);
                    }
                }
                Due::Boot { unit, turn } => self.end_start(unit, turn),
                Due::Load { kind } => {
                    let kind = &self.kinds[kind];
                    if let Some(template) = kind.template.as_ref()
                        && !template.said.loaded
                        && now.duration_since(kind.since) >= BOOT
                    {
                        template.kill();
                    }
                }
                Due::Unmute { unit } => self.unmute(unit),
                Due::Sweep => self.sweep(),
            }
        }
    }

    /// Ends a guest that is still not up.
    fn end_start(&mut self, index: usize, turn: u32) {
        let unit = &self.units[index];
        if unit.state != State::Starting || unit.turn != turn {
            return;
        }
        let name = &unit.name;
        self.tell(&format!(
            "{name}: does not serve after {BOOT:?} (does it call guest::Host::run?)"
        ));
        if unit.waits_for_copy() {
            self.kill_template(unit.kind);
            return self.ended(index, End::failed(format!("no copy came within {BOOT:?}")));
        }
        unit.process.as_ref().inspect(|process| process.kill());
    }

    /// Starts a guest, or queues it for a copy.
    fn start(&mut self, index: usize) {
        let kind = self.units[index].kind;
        if self.kinds[kind].copies() {
            self.units[index].enter(State::Queued, Instant::now());
            self.kinds[kind].queue.push_back(index);
            return self.copy(kind);
        }
        let unit = &mut self.units[index];
        unit.enter(State::Starting, Instant::now());
        let ports = Ports { directory: &self.options.directory, ports: &unit.ports };
        match self.kinds[kind].start_alone(&ports) {
            Ok(process) => {
                unit.process = Some(process);
                self.watch(index);
                self.limit(index);
            }
            Err(error) => self.ended(index, End::not_started(&error)),
        }
    }

    /// Adds a new process's descriptors to those that the manager waits for.
    fn watch(&mut self, index: usize) {
        let unit = &self.units[index];
        let turn = unit.turn;
        let Some(process) = &unit.process else { return };
        let sources = [
            (What::Control, Some(process.control.as_fd())),
            (What::Output, Some(process.output.as_fd())),
            (What::End, process.child.as_ref().map(AsFd::as_fd)),
        ];
        if let Err(error) = listen(&self.epoll, index, sources) {
            process.kill();
            return self.ended(index, End::failed(format!("cannot be watched: {error}")));
        }
        self.after(BOOT, Due::Boot { unit: index, turn });
    }

    fn happened(&mut self, what: What, index: usize) {
        match what {
            What::Control => self.hear(index),
            What::Output => self.read(index),
            What::End => self.collect(index),
            What::TemplateControl => self.hear_template(index),
            What::TemplateOutput => self.read_template(index),
            What::TemplateEnd => self.collect_template(index),
            What::Listener => self.answer(),
            What::Groups => self.limited(),
            What::Signal => {
                let _ = (&self.signals).read(&mut [0; 64]);
                self.leaving = true;
                self.stop(&|_| true);
            }
        }
    }

    /// Reads a guest's reports.
    fn hear(&mut self, index: usize) {
        for _ in 0..REPORTS {
            let unit = &mut self.units[index];
            let Some(process) = &mut unit.process else { return };
            match process::receive(process.control.as_fd()) {
                Ok(None) => return,
                Ok(Some((report, sender))) => {
                    let sealed = process.said.is_sealed();
                    let goes_on = process.said.note(report);
                    if process.child.is_none() && !self.identify(index, sender) {
                        return;
                    }
                    let Some(process) = &self.units[index].process else { return };
                    if !goes_on {
                        process.kill();
                    }
                    if process.said.is_sealed() && !sealed {
                        self.judge(index);
                    }
                }
                Err(why) => {
                    // The process's socket must not wake this thread again.
                    let _ = epoll::delete(&self.epoll, &process.control);
                    if why == process::Why::Malformed {
                        process.kill();
                    }
                    return;
                }
            }
            let unit = &mut self.units[index];
            if unit.state == State::Starting
                && unit.process.as_ref().is_some_and(|process| process.said.up)
            {
                unit.is_up(Instant::now());
                let took = unit.start_us.unwrap_or(0) as f64 / 1000.0;
                let walls = unit.walls.standing.len();
                let words = format!("{}: up in {took:.1} ms, {walls} walls", unit.name);
                self.tell(&words);
            }
        }
    }

    /// Decides whether a guest that has raised its walls may serve.
    fn judge(&mut self, index: usize) {
        let unit = &mut self.units[index];
        let Some(process) = &mut unit.process else { return };
        if let Some(template) = &self.kinds[unit.kind].template {
            process.said.inherit_user(&template.said);
        }
        unit.walls = process.said.walls();
        let strict = self.kinds[unit.kind].spec.require_walls;
        let missing: Vec<String> = unit
            .walls
            .refused
            .iter()
            .map(|refused| format!("{}: {}", refused.wall, refused.reason))
            .collect();
        if strict && let Some(first) = missing.first() {
            let why = format!("all walls are required, and one is missing ({first})");
            process.said.note(Report::Failed(why));
            // The same wall would be missing after a restart.
            unit.stopped = true;
            process.kill();
        } else if strict {
            let _ = rustix::net::send(&process.control, b"g", rustix::net::SendFlags::NOSIGNAL);
        }
        self.units[index].note_group();
        for wall in missing {
            self.tell(&format!("{}: a wall is missing, {wall}", self.units[index].name));
        }
    }

    /// Reads a piece of a guest's output.
    fn read(&mut self, index: usize) {
        let unit = &mut self.units[index];
        let Some(process) = &unit.process else { return };
        let mut piece = [0; log::PIECE];
        let len = match rustix::io::read(&process.output, &mut piece[..]) {
            Ok(0) | Err(Errno::IO) => {
                let _ = epoll::delete(&self.epoll, &process.output);
                return;
            }
            Ok(len) => len,
            Err(_) => return,
        };
        let goes_on = unit.log.write(&piece[..len], Instant::now());
        if self.options.echo && self.options.kept.is_none() {
            unit.log.print(&unit.name, &piece[..len]);
        }
        if !goes_on && !unit.muted {
            unit.muted = true;
            let _ = epoll::delete(&self.epoll, &process.output);
            self.after(log::INTERVAL, Due::Unmute { unit: index });
        }
    }

    fn unmute(&mut self, index: usize) {
        let unit = &mut self.units[index];
        unit.muted = false;
        if let Some(process) = &unit.process {
            let data = What::Output.data(index);
            // The output is registered already if it is a new process's.
            let _ = epoll::add(&self.epoll, &process.output, data, EventFlags::IN);
        }
    }

    /// Collects a guest's process, after its last words.
    fn collect(&mut self, index: usize) {
        self.hear(index);
        self.read(index);
        let Some(process) = &self.units[index].process else { return };
        let Some(child) = &process.child else { return };
        let reap = || process::collect(child, &process.said);
        if let Some(end) = process.member.reap(reap) {
            let end = self.end_by_limit(index, end);
            self.ended(index, end);
        }
    }

    fn ended(&mut self, index: usize, mut end: End) {
        // What the topology lacks may come with the next file.
        end.refused &= self.options.kept.is_none();
        let restart = self.kinds[self.units[index].kind].spec.restart;
        let unit = &mut self.units[index];
        // A process that could not be watched may still run. Its number is of no use any more.
        if let Some(process) = &unit.process {
            process.kill();
            process.member.reap(|| Some(()));
        }
        let strict = unit.stopped && end.how.starts_with("all walls");
        let how = end.how.clone();
        let pause = unit.ended(end, restart, Instant::now());
        if strict {
            unit.last_end = Some(how.clone());
        }
        let (turn, name) = (unit.turn, unit.name.clone());
        match pause {
            Some(pause) => {
                self.tell(&format!("{name}: {how}; starts again in {pause:?}"));
                self.after(pause, Due::Start { unit: index, turn });
            }
            None => self.tell(&format!("{name}: {how}")),
        }
        self.dismiss(self.units[index].kind);
        self.sweep_soon();
    }

    /// Answers a command.
    fn answer(&mut self) {
        let Some((request, reply)) = self.listener.accept() else { return };
        match request {
            Request::List => reply.send(&self.list()),
            Request::Kept => reply.send(&self.options.kept),
            Request::Stop { names } => {
                let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
                self.stop(&wanted);
                reply.send(&self.list());
            }
        }
    }

    /// Stops guests by name.
    fn stop(&mut self, wanted: &dyn Fn(&str) -> bool) {
        for index in 0..self.units.len() {
            let unit = &mut self.units[index];
            if unit.state == State::Ended || !wanted(&unit.name) {
                continue;
            }
            unit.stopped = true;
            match &unit.process {
                Some(process) if process.child.is_some() => process.kill(),
                // A copy that comes later finds its socket closed, and is a stranger.
                _ => self.ended(index, End::failed("stopped")),
            }
        }
        let kinds = 0..self.kinds.len();
        kinds.into_iter().for_each(|kind| self.dismiss(kind));
    }
}

fn listen(
    epoll: &OwnedFd,
    index: usize,
    sources: [(What, Option<BorrowedFd<'_>>); 3],
) -> Result<(), Errno> {
    for (what, source) in sources {
        if let Some(source) = source {
            epoll::add(epoll, source, what.data(index), EventFlags::IN)?;
        }
    }
    Ok(())
}

/// Raises the limit of descriptors: each guest takes three, and the soft limit is often 1,024.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, starting guests fails with the kernel's error.
    let _ =
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// Reads a manifest: guests by name.
///
/// # Errors
/// It cannot be read or understood.
pub fn manifest(path: &Path) -> anyhow::Result<BTreeMap<String, GuestSpec>> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Manifest {
        guest: BTreeMap<String, GuestSpec>,
    }
    let text =
        std::fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let manifest: Manifest =
        toml::from_str(&text).with_context(|| format!("{} is not right", path.display()))?;
    Ok(manifest.guest)
}
