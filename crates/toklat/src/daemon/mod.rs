//! The supervisor: holds the topology, starts the data processes, and keeps what they need to go
//! on.
//!
//! ```text
//!   view.sock -----HTTP--> view --------+
//!   control.sock --HTTP--> api_server --+                     +--> switch --SEQPACKET--> data process
//!   attach.sock --SEQPACKET--> attach --+--> supervisor ------+--> switch --SEQPACKET--> data process
//!   hang-ups (epoll, EPOLLRDHUP only) --+    configure        |
//!                                            topology.json    +--> pipes
//! ```
//! One thread runs many tasks. It maps state memory, but never a client's region. It reads
//! counters, but frames never wait for it. When it is killed, data processes run on, and the next
//! daemon finds them.

mod answers;
mod api_server;
pub mod apply;
pub mod attach;
mod bound;
mod caller;
pub mod cards;
mod change;
mod changed_file;
mod children;
mod clients;
mod configure;
mod descriptors;
mod directory;
mod events;
pub(crate) mod evpn;
pub mod file;
mod firewall;
mod front_ends;
mod guest_entries;
mod guests;
mod hangups;
mod interfaces;
pub mod log;
mod metrics;
mod mistake;
mod namespace;
mod netlink;
mod netmap;
mod objects;
pub(crate) mod open;
mod options;
mod overview;
mod pipes;
mod process;
mod quota;
mod read;
mod readers;
mod routes;
mod seqpacket;
pub mod sflow;
mod shape;
mod shared;
mod store;
mod supervisor;
mod switch;
mod tcp_server;
mod trusted;
mod tunnels;
mod view;
mod who;
mod words;

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use dataplane::config::SwitchConfig;
use jail::strangers::{self, Descriptor};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use self::bound::BoundFile;
use self::directory::Directory;
use self::events::Journal;
use self::hangups::Hangups;
use self::quota::{Ledger, Machine};
use self::store::Configured;
use self::supervisor::Supervisor;
use self::switch::Environment;
use self::tcp_server::Tokens;
use crate::api::{self, Quota, Stop, system};

/// How the daemon runs.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// The runtime directory, which holds the daemon's sockets
    /// ([`netring::attach::runtime_directory`]).
    pub dir: PathBuf,
    /// A topology file that is applied at each start if it has changed since.
    pub topology: Option<PathBuf>,
    /// A changed topology file also removes what it no longer names and is in use.
    pub topology_prune: bool,
    /// Where the applied topology is kept; `None` for `dir`.
    pub state_dir: Option<PathBuf>,
    /// The group whose members may open ports (the attach socket), by name or number; `None` for
    /// the daemon's user only.
    pub group: Option<String>,
    /// The group whose members may do everything the API can (the control socket).
    pub control_group: Option<String>,
    /// The group whose members may read everything (the view socket).
    pub view_group: Option<String>,
    /// A TCP address to serve the API at as well; needs `token_file` or `view_token_file`.
    pub listen: Option<SocketAddr>,
    /// That address may be another than a loopback address.
    pub tcp_in_clear: bool,
    /// A file with the token that TCP clients send (`Authorization: Bearer`).
    pub token_file: Option<PathBuf>,
    /// A file with the token that TCP clients send who may read only.
    pub view_token_file: Option<PathBuf>,
    /// How the log is written.
    pub log: log::Format,
    /// Opening a port of a switch that does not exist makes the switch.
    pub auto_switch: bool,
    /// A data process that cannot be confined in every way does not start.
    pub require_walls: bool,
    /// The quotas of users for which the topology sets none.
    pub quota: Quota,
    /// Data processes run on when the daemon is told to stop by a signal.
    pub leave_data_processes: bool,
}

impl DaemonOptions {
    /// The directory that keeps what outlives the daemon.
    #[must_use]
    pub fn state_directory(&self) -> &Path {
        self.state_dir.as_ref().unwrap_or(&self.dir)
    }
}

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// A daemon runs in this directory already, or its sockets cannot be made.
pub fn run(options: DaemonOptions) -> anyhow::Result<()> {
    let activated = inherited_sockets()?;
    let directory = Directory::lock(&options.dir)?;
    let journal = log::start(options.log)?;
    // Sockets of data processes are for this user only. Sockets for other users get their
    // permissions below.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let descriptor_limit = raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("Cannot start the reactor")?;
    let (own_sockets, ready) = (activated.is_empty(), AtomicBool::new(false));
    let done = runtime.block_on(supervise(options, activated, descriptor_limit, journal, &ready));
    dataplane::log::flush();
    if done.is_err() && !ready.load(Ordering::Relaxed) {
        directory.undo(own_sockets);
    }
    done
}

/// Runs the data process of a switch in this process: the hidden command that the supervisor
/// starts. `listener` and `state` are descriptors that it left open.
///
/// # Errors
/// The descriptors or the configuration cannot be used.
pub fn data_process(
    switch: String,
    config: &str,
    listener: RawFd,
    state: RawFd,
    require_walls: bool,
) -> anyhow::Result<()> {
    let (listener, state) = (descriptors::take(listener)?, descriptors::take(state)?);
    let config: SwitchConfig = serde_json::from_str(config).context("The switch's settings")?;
    dataplane::process::prepare();
    let own = jail::user::dedicated(&format!("toklat {switch}"));
    let keep = [&listener, &state].map(AsRawFd::as_raw_fd);
    let mut inside = jail::Jail::new(own).enter(&keep)?;
    if own.is_none() {
        inside.walls.note(jail::Wall::User, Err(jail::user::NOT_ROOT.into()));
    }
    // The supervisor listens on the socket already. Listening again makes SO_PEERCRED name this
    // process to every supervisor, even if this process stops answering.
    rustix::net::listen(&listener, seqpacket::BACKLOG).context("Cannot listen for the daemon")?;
    if let (true, Some(refused)) = (require_walls, inside.walls.refused.first()) {
        bail!("{} cannot be raised, and all walls are required: {}", refused.wall, refused.reason);
    }
    if require_walls && !dataplane::sandbox::is_wanted() {
        bail!("{} is off, and all walls are required", dataplane::sandbox::SWITCH);
    }
    // Leaves the supervisor's terminal. It fails only for the leader of a process group, which a
    // supervisor does not start.
    let _ = rustix::process::setsid();
    dataplane::log::start(|| ()).context("Cannot start a thread for the log")?;
    dataplane::log::catch_panics();
    let done = dataplane::process::run(listener, state, switch, config, inside);
    dataplane::log::flush();
    Ok(done?)
}

/// Prints the version of the control messages. The supervisor runs this with a new program before
/// it replaces data processes.
pub fn print_control_version() {
    println!("{}", dataplane::control::VERSION);
}

/// The sockets that systemd opened for us: control and attach, in either order.
fn inherited_sockets() -> anyhow::Result<Vec<OwnedFd>> {
    let numbers: Vec<RawFd> = sd_notify::listen_fds().context("LISTEN_FDS")?.collect();
    let take = |number| descriptors::take(number).context("A socket of LISTEN_FDS is not open");
    numbers.into_iter().map(take).collect()
}

/// Raises the soft limit of descriptors to the hard limit; returns the limit.
fn raise_descriptor_limit() -> u64 {
    let Rlimit { maximum, current } = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(_) => current.unwrap_or(u64::MAX),
    }
}

/// Bytes of the machine's memory.
fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.mem_unit) * info.totalram
}

async fn supervise(
    options: DaemonOptions,
    activated: Vec<OwnedFd>,
    descriptor_limit: u64,
    journal: Arc<Journal>,
    ready: &AtomicBool,
) -> anyhow::Result<()> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let own_sockets = activated.is_empty();
    // A data process in namespaces of its own is a grandchild whose parent has ended. This makes it
    // a child of this process.
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        tracing::warn!(%error, "data processes that end are left to the first process of the machine");
    }
    jail::child::reap_orphans().context("Cannot start a thread for ended children")?;
    // Before any client can send a descriptor.
    jail::child::start_apart().context("Cannot start a thread that starts children")?;
    let sockets = Sockets::open(&options, activated).await?;
    let own_uid = rustix::process::geteuid().as_raw();
    let machine = Machine { descriptors: descriptor_limit, memory: machine_memory() };
    let (arrivals, arriving) = tokio::sync::mpsc::channel(front_ends::MAX_ARRIVALS);
    let (notices, noticed) = tokio::sync::mpsc::channel(objects::MAX_NOTICES);
    let environment = Environment {
        dir: options.dir.clone(),
        exe: std::env::current_exe().context("Cannot tell which program this is")?,
        hangups: Hangups::new().context("Cannot make an epoll set")?,
        arrivals,
        notices,
        group: options.group.clone(),
        ledger: Ledger::new(own_uid, options.quota, machine),
        require_walls: options.require_walls,
        captures: caller::captures(options.state_directory()),
        tunnels: Arc::default(),
        agents: Arc::default(),
        links: switch::Links::default(),
        rules: std::sync::Mutex::default(),
    };
    let by_signal = Stop { leave_data_processes: options.leave_data_processes };
    let supervisor =
        Arc::new(Supervisor::new(options.clone(), environment, journal, descriptor_limit));
    let wanted = wanted_topology(&supervisor, &options)?;
    let evpn = wanted.evpn.clone();
    supervisor.environment.tunnels.set_evpn(evpn.clone());
    supervisor.begin(wanted).await;
    // EVPN starts after the tunnels are back, because it withdraws the routes of tunnels that it
    // does not find.
    if let Err(error) = supervisor.set_evpn(evpn.as_ref()) {
        tracing::error!(%error, "EVPN was not started");
    }
    if let Some(file) = &options.topology {
        changed_file::apply_changed(&supervisor, file, options.topology_prune).await;
    }
    let watching = tokio::spawn(Arc::clone(&supervisor).watch_hangups());
    tokio::spawn(Arc::clone(&supervisor).receive_front_ends(arriving));
    tokio::spawn(Arc::clone(&supervisor).look_after_objects(noticed));
    let lives = || notify(sd_notify::NotifyState::Watchdog);
    tokio::spawn(Arc::clone(&supervisor).look_after_workers(lives));
    tokio::spawn(Arc::clone(&supervisor).log_frames());
    tokio::spawn(Arc::clone(&supervisor).export_samples());
    let control = sockets.serve(&supervisor);
    // The guests' managers need the attach socket.
    tokio::spawn(Arc::clone(&supervisor.guests).serve());
    ready.store(true, Ordering::Relaxed);
    notify(sd_notify::NotifyState::Ready);
    tracing::info!(event = "daemon", dir = %options.dir.display(), pid = std::process::id(), "ready");
    tokio::select! {
        _ = interrupt.recv() => supervisor.ask_to_stop(by_signal),
        _ = terminate.recv() => supervisor.ask_to_stop(by_signal),
        _ = supervisor.asked_to_stop() => (),
        ended = watching => bail!("Cannot watch for hang-ups: {ended:?}"),
    }
    let how = supervisor.asked_to_stop().await;
    notify(sd_notify::NotifyState::Stopping);
    tracing::info!(event = "daemon", ?how, "stopping");
    if !how.leave_data_processes {
        supervisor.stop_evpn();
        supervisor.stop_all().await;
        interfaces::clsact::swept().await;
    }
    // The client that requested the stop gets its reply. A client that does not read is not waited
    // for.
    let _ = tokio::time::timeout(Duration::from_secs(1), control).await;
    let activated = if own_sockets { &[api::SOCKET, netring::attach::SOCKET][..] } else { &[] };
    for name in activated.iter().chain([&api::VIEW_SOCKET]) {
        // A failure is harmless: the next daemon replaces the file.
        let _ = std::fs::remove_file(options.dir.join(name));
    }
    Ok(())
}

fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}

/// Reads the saved topology, else the topology file, else an empty one.
fn wanted_topology(supervisor: &Supervisor, options: &DaemonOptions) -> anyhow::Result<Configured> {
    let store = supervisor.store();
    let saved = store.load().with_context(|| {
        format!("Cannot read {}; remove it to start without switches", store.path().display())
    })?;
    match (saved, &options.topology) {
        (Some(saved), _) => Ok(saved),
        (None, Some(file)) => Ok(Configured::made(file::read_file(file)?, &apply::name_of(file))),
        (None, None) => Ok(Configured::default()),
    }
}

/// The sockets the daemon listens on.
struct Sockets {
    control: tokio::net::UnixListener,
    attach: seqpacket::Listener,
    view: (tokio::net::UnixListener, view::Groups),
    tcp: Option<(tokio::net::TcpListener, Arc<Tokens>)>,
}

impl Sockets {
    async fn open(options: &DaemonOptions, activated: Vec<OwnedFd>) -> anyhow::Result<Self> {
        let (mut control, mut attach) = (None, None);
        for socket in activated {
            let kind = rustix::net::sockopt::socket_type(&socket)?;
            *(if kind == SocketType::SEQPACKET { &mut attach } else { &mut control }) =
                Some(socket);
        }
        let attach = match attach {
            Some(socket) => socket,
            None => {
                let group = options.group.as_deref();
                open_up(&options.dir.join(netring::attach::SOCKET), group, seqpacket::listen)?
            }
        };
        let control = match control {
            Some(socket) => socket,
            None => {
                let group = options.control_group.as_deref();
                open_up(&options.dir.join(api::SOCKET), group, listen_stream)?
            }
        };
        let control = std::os::unix::net::UnixListener::from(control);
        control.set_nonblocking(true)?;
        let groups = view::Groups::of(options)?;
        Ok(Self {
            control: tokio::net::UnixListener::from_std(control)?,
            attach: seqpacket::Listener::new(attach)?,
            view: (view::listen(&options.dir, &groups)?, groups),
            tcp: listen_tcp(options).await?,
        })
    }

    /// Serves all sockets; returns the task of the control socket.
    fn serve(self, supervisor: &Arc<Supervisor>) -> JoinHandle<()> {
        let to = || Arc::clone(supervisor);
        tokio::spawn(attach::serve(self.attach, to()));
        tokio::spawn(view::serve(self.view.0, to(), self.view.1));
        if let Some((listener, tokens)) = self.tcp {
            tokio::spawn(tcp_server::serve_tcp(listener, to(), tokens));
        }
        tokio::spawn(api_server::serve_unix(self.control, to()))
    }
}

fn listen_stream(path: &Path) -> io::Result<OwnedFd> {
    // Removes the sockets of a dead daemon: the lock says that it is dead.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => {
            let listener = std::os::unix::net::UnixListener::bind(path)?;
            // API requests carry no descriptors, so the kernel is told to refuse them.
            strangers::refuse(&listener);
            Ok(listener.into())
        }
    }
}

/// Listens on a socket for the daemon's user and, if one is named, a group.
fn open_up(
    path: &Path,
    group: Option<&str>,
    listen: fn(&Path) -> io::Result<OwnedFd>,
) -> anyhow::Result<OwnedFd> {
    let shown = path.display();
    // Until the group is set, the umask admits no other user.
    let socket = listen(path).with_context(|| format!("Cannot listen on {shown}"))?;
    if let Some(group) = group {
        let number = group_number(group)?;
        BoundFile::of(&socket, path)
            .and_then(|file| file.share(None, Some(number)))
            .with_context(|| format!("Cannot give {shown} to group {group}; be a member of it"))?;
    }
    Ok(socket)
}

fn group_number(group: &str) -> anyhow::Result<u32> {
    Ok(crate::users::gid(group)?)
}

async fn listen_tcp(
    options: &DaemonOptions,
) -> anyhow::Result<Option<(tokio::net::TcpListener, Arc<Tokens>)>> {
    let Some(address) = options.listen else { return Ok(None) };
    let token = |file: &Option<PathBuf>| file.as_deref().map(token_in).transpose();
    let (control, view) = (token(&options.token_file)?, token(&options.view_token_file)?);
    if control.is_none() && view.is_none() {
        bail!(
            "Serving {address} needs --token-file, for clients that may change switches, or \
             --view-token-file, for those that may read"
        );
    }
    ensure!(control != view, "The two tokens are the same; make another one for those who read");
    let is_loopback = address.ip().to_canonical().is_loopback();
    if !is_loopback && !options.tcp_in_clear {
        bail!(
            "{address} is not a loopback address, and the API over TCP is not encrypted: who is on \
             the way reads the token; listen on 127.0.0.1 and lead clients there by ssh -L or a \
             proxy with TLS, or add --tcp-in-clear"
        );
    }
    let listener = tokio::net::TcpListener::bind(address);
    let listener = listener.await.with_context(|| format!("Cannot listen on {address}"))?;
    tracing::warn!(%address, "the control API is served over TCP in clear, without encryption");
    Ok(Some((listener, Arc::new(Tokens { control, view }))))
}

/// The token in a file.
fn token_in(file: &Path) -> anyhow::Result<String> {
    let token = read_token(file)
        .with_context(|| format!("Cannot read the token file {}", file.display()))?;
    let token = token.trim();
    if token.len() < 16 {
        bail!("The token in {} is shorter than 16 characters; make a longer one", file.display());
    }
    Ok(token.to_owned())
}

/// Reads the token from a file that other users can neither read nor change.
fn read_token(file: &Path) -> anyhow::Result<String> {
    let mut file = std::fs::File::open(file)?;
    // The permissions are those of the opened file: the name may lead to another file a moment
    // later.
    let mode = file.metadata()?.permissions().mode();
    ensure!(mode & 0o026 == 0, "Its mode is {:03o}: others may use it; chmod 600", mode & 0o777);
    let mut token = String::new();
    file.read_to_string(&mut token)?;
    Ok(token)
}

/// Locks, even if another thread panicked: the data behind these locks is consistent at any time.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a token for a user: the client's end, and the switch's end, to which no descriptors can be
/// sent.
fn token_pair(uid: u32) -> io::Result<(OwnedFd, Descriptor)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let (theirs, ours) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    strangers::refuse(&ours);
    Ok((theirs, Descriptor::of(uid, ours)))
}
