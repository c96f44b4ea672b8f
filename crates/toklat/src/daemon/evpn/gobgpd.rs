//! The routing daemon, as a child: GoBGP's `gobgpd`, started again when it ends.
//!
//! It outlives this daemon, so that its neighbours notice nothing when this one is replaced. The
//! next one finds it by its socket. It runs as a user of its own, if the daemon is root, and
//! listens nowhere but at that socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use host::part::Part;
use jail::Walls;
use jail::child::{Backoff, ChildSetup, Confinement, Supervised};
use rustix::process::{Pid, Signal};
use tokio::net::UnixStream;
use topology::Evpn;

use super::super::{children, locked, namespace};
use super::own_socket;
use crate::api::{ApiError, ChildInfo, ErrorCode, system};

/// The oldest version that can be used.
const OLDEST: u32 = 4;
/// How often the daemon's state is checked.
const LOOK: Duration = Duration::from_millis(200);
/// Pauses before the daemon is started again.
const PAUSES: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5), Duration::from_secs(10));
/// How long the daemon may take to make its socket, and to name its version.
const PATIENCE: Duration = Duration::from_secs(5);
/// The option that says where its API listens.
const API: &str = "--api-hosts";
/// The maximum number of descriptors that it may have.
const MAX_DESCRIPTORS: u64 = 4096;

/// Looks after the routing daemon.
#[derive(Debug)]
pub struct Keeper {
    program: String,
    netns: Option<String>,
    socket: PathBuf,
    /// Another program runs the daemon, so this one does not start it.
    found: bool,
    /// The user that the routing daemon runs as, if this daemon may choose one.
    user: Option<u32>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The daemon: this one's child, or what an earlier one has left.
    process: Option<Supervised>,
    /// The walls around it.
    walls: Walls,
    trouble: Option<String>,
    /// No daemon is to be started any more.
    ended: bool,
}

impl Keeper {
    pub fn new(settings: &Evpn, dir: &Path) -> Self {
        let found = settings.socket().map(PathBuf::from);
        Self {
            program: settings.program.clone(),
            netns: settings.netns.clone(),
            found: found.is_some(),
            socket: found.unwrap_or_else(|| own_socket(dir)),
            user: jail::user::dedicated(&format!("toklat evpn {}", dir.display())),
            state: Mutex::default(),
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The reason why the daemon does not run.
    pub fn trouble(&self) -> Option<String> {
        locked(&self.state).trouble.clone()
    }

    /// The daemon as a child, with the walls around it.
    pub fn child(&self) -> Option<ChildInfo> {
        let state = locked(&self.state);
        let pid = Some(state.process.as_ref()?.id());
        Some(ChildInfo { name: "gobgpd".into(), pid, walls: state.walls.clone() })
    }

    /// Ends the daemon, if it is this one's.
    pub fn end(&self) {
        let mut state = locked(&self.state);
        state.ended = true;
        if let Some(process) = state.process.take() {
            process.send(Signal::TERM);
        }
    }

    /// Keeps the daemon running forever.
    pub async fn keep(&self) {
        if self.found {
            return;
        }
        let mut pauses = PAUSES;
        loop {
            if locked(&self.state).ended {
                return;
            }
            let began = Instant::now();
            if let Ok(there) = UnixStream::connect(&self.socket).await {
                self.adopt(&there);
                drop(there);
                self.watch().await;
            }
            if locked(&self.state).ended {
                return;
            }
            let pause = pauses.after(began.elapsed());
            match self.start().await {
                Ok((process, walls)) => {
                    self.record(&process, &walls);
                    let mut state = locked(&self.state);
                    state.walls = walls;
                    match state.ended {
                        true => process.send(Signal::TERM),
                        false => state.process = Some(process),
                    }
                }
                Err(error) => {
                    let trouble = error.to_string();
                    if locked(&self.state).trouble.replace(trouble.clone()) != Some(trouble) {
                        tracing::error!(%error, "the routing daemon was not started");
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Notes which process is the routing daemon. A child is known by its pidfd. What an earlier
    /// supervisor has left is what listens at the socket, if it is a process that may be ended.
    fn adopt(&self, there: &UnixStream) {
        let mut state = locked(&self.state);
        state.trouble = None;
        if state.process.is_some() {
            return;
        }
        let peer = there.peer_cred().ok().and_then(|peer| peer.pid());
        state.process = peer.and_then(Pid::from_raw).and_then(|pid| self.recognise(pid));
        match &state.process {
            Some(process) => {
                tracing::info!(pid = process.id(), "found the routing daemon");
                state.walls = self.recorded(process);
            }
            None => tracing::warn!(
                pid = peer,
                "what listens at the routing daemon's socket is not the routing daemon: it is used, and never \
                 ended"
            ),
        }
    }

    /// The file that tells a later supervisor how the routing daemon is confined. It is outside of
    /// the routing daemon's directory.
    fn record_file(&self) -> Option<PathBuf> {
        Some(self.socket.parent()?.parent()?.join("gobgpd.json"))
    }

    fn record(&self, process: &Supervised, walls: &Walls) {
        for jail::Refused { wall, reason } in &walls.refused {
            tracing::warn!(target: crate::daemon::log::ACTION, %wall, reason, "a wall of the routing daemon does not stand");
        }
        let text = serde_json::to_vec(&(process.id(), walls)).unwrap_or_default();
        if let Some(Err(error)) = self.record_file().map(|file| std::fs::write(file, text)) {
            tracing::warn!(%error, "a later daemon will not know the routing daemon's walls");
        }
    }

    /// The walls that an earlier supervisor has recorded for this process; none if it has not.
    fn recorded(&self, process: &Supervised) -> Walls {
        let text = self.record_file().and_then(|file| std::fs::read(file).ok());
        let record = text.and_then(|text| serde_json::from_slice::<(u32, Walls)>(&text).ok());
        record.filter(|(pid, _)| *pid == process.id()).map(|(_, walls)| walls).unwrap_or_default()
    }

    /// Finds the routing daemon that has this number. The number comes from a socket in a directory
    /// of the routing daemon's user, which may lie, or be outdated. So the process must be that
    /// user's, or, where it has no user of its own, have the command line of a routing daemon.
    fn recognise(&self, pid: Pid) -> Option<Supervised> {
        // The descriptor is open before the look, so that it is the process that was looked at, or
        // one that has ended.
        let process = Supervised::found(pid).ok()?;
        let place = PathBuf::from(format!("/proc/{pid}"));
        let uid = std::fs::metadata(&place).ok()?.uid();
        let is_it = match self.user {
            Some(user) => uid == user,
            None => {
                let line = std::fs::read(place.join("cmdline")).ok()?;
                let mut words = line.split(|byte| *byte == 0);
                uid == rustix::process::geteuid().as_raw()
                    && words.any(|word| word == API.as_bytes())
            }
        };
        is_it.then_some(process)
    }

    /// Waits until the daemon is gone.
    async fn watch(&self) {
        while UnixStream::connect(&self.socket).await.is_ok() {
            tokio::time::sleep(LOOK).await;
        }
        // A child that still runs without its socket is of no use.
        if let Some(process) = locked(&self.state).process.take() {
            process.kill();
        }
    }

    /// Starts the daemon, and waits until its socket is there.
    async fn start(&self) -> Result<(Supervised, Walls), ApiError> {
        self.check_version().await?;
        self.make_room().map_err(|e| system("Cannot prepare the routing daemon's directory", e))?;
        let (program, socket, user) = (self.program.clone(), self.socket.clone(), self.user);
        let netns = self.netns.clone();
        let (process, walls) = namespace::in_namespace(self.netns.clone(), move || {
            let netns = netns.as_deref().map(host::tap::open_namespace).transpose()?;
            let started = spawn(&program, &socket, user, netns.as_ref());
            started.map_err(|e| cannot(&format!("start {program}"), &e))
        })
        .await?;
        let process = process.ending_with_this();
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            tokio::time::sleep(LOOK / 4).await;
            if UnixStream::connect(&self.socket).await.is_ok() {
                tracing::info!(pid = process.id(), "the routing daemon runs");
                return Ok((process.outliving_this(), walls));
            }
            if let Ok(Some(status)) = process.ended() {
                let reason = format!("{} ended at once: {status}", self.program);
                return Err(ApiError::new(ErrorCode::Busy, reason, "see the daemon's log"));
            }
        }
        let reason = format!("{} made no socket", self.program);
        Err(ApiError::new(ErrorCode::Busy, reason, "see the daemon's log"))
    }

    /// Makes a directory that only the daemon's user can use, without an earlier socket in it: a
    /// daemon that finds one runs on without an API.
    fn make_room(&self) -> io::Result<()> {
        let dir = self.socket.parent().ok_or(io::ErrorKind::InvalidInput)?;
        std::fs::create_dir_all(dir)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
        if let Some(user) = self.user {
            chown(dir, Some(user), Some(user))?;
        }
        match std::fs::remove_file(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Refuses a program that is too old, or none.
    async fn check_version(&self) -> Result<(), ApiError> {
        let program = found(&self.program);
        let mut command = Command::new(&program);
        command.arg("--version");
        let confinement = confinement(&program, &[], self.user);
        let said = children::answer(command, confinement, PATIENCE).await;
        let (_, text) = said.map_err(|e| cannot(&format!("run {}", self.program), &e))?;
        is_new_enough(&text).then_some(()).ok_or_else(|| {
            let reason = format!(
                "{} is {:?}, and GoBGP {OLDEST} is needed: earlier ones have another API, and are slow with \
                 many stations",
                self.program,
                text.trim()
            );
            ApiError::new(ErrorCode::BadRequest, reason, INSTALL)
        })
    }
}

/// The advice if there is no usable gobgpd.
pub const INSTALL: &str = "install it: go install github.com/osrg/gobgp/v4/cmd/gobgpd@latest, and name it in [evpn]: program; the recipe: /usr/share/doc/toklat/examples/evpn.toml";

fn cannot(what: &str, error: &io::Error) -> ApiError {
    let remedy = Part::Evpn.remedy(error, INSTALL);
    ApiError::new(ErrorCode::BadRequest, format!("Cannot {what}: {error}"), remedy)
}

/// True for the answer of a program that can be used to `--version`.
#[must_use]
pub fn is_new_enough(said: &str) -> bool {
    said.contains("gobgpd") && version_of(said).is_some_and(|version| version >= OLDEST)
}

/// The major number of `gobgpd version 4.8.0`.
fn version_of(text: &str) -> Option<u32> {
    let version =
        text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    version.split('.').next()?.parse().ok()
}

/// Starts the program, in a network namespace if one is given.
fn spawn(
    program: &str,
    socket: &Path,
    user: Option<u32>,
    netns: Option<&OwnedFd>,
) -> io::Result<(Supervised, Walls)> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
    let (dir, name) = socket.parent().zip(socket.file_name()).ok_or_else(wrong)?;
    let program = found(program);
    let confinement = confinement(&program, &[dir], user);
    // The user of the routing daemon may be unable to walk to the directory.
    let dir = std::fs::File::open(dir)?;
    let mut command = Command::new(&program);
    let place = format!("unix:///proc/self/fd/{}/{}", dir.as_raw_fd(), name.display());
    command
        .args([API, &place])
        .args(["--pprof-disable", "--log-plain", "--log-level", "warn"])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0);
    let setup = ChildSetup::new().with(dir.as_fd()).with_descriptors(MAX_DESCRIPTORS);
    let setup = match netns {
        Some(netns) => setup.in_network(netns.as_fd()),
        None => setup,
    };
    let (process, _, walls) = Supervised::start_confined(&mut command, &setup, confinement)?;
    Ok((process, walls))
}

/// What the routing daemon may read beside its own program: libraries, settings of the resolver,
/// and what its run time asks of the machine.
const READS: [&str; 7] = ["/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/sys"];

/// The walls around the routing daemon, which writes in these directories only. It needs the
/// network of its namespace.
fn confinement(program: &Path, writes: &[&Path], user: Option<u32>) -> Confinement {
    let reads: Vec<&Path> = READS.iter().map(Path::new).chain([program]).collect();
    let confinement = Confinement::new().as_user(user).without_capabilities();
    let confinement = confinement.in_namespaces(false).with_own_processes();
    confinement.with_files(&reads, writes).with_calls(false)
}

/// The file of a program, as a shell would find it.
fn found(program: &str) -> PathBuf {
    let name = Path::new(program);
    let all = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&all).map(|dir| dir.join(name));
    let file =
        if name.components().count() > 1 { None } else { places.find(|file| file.is_file()) };
    let file = file.unwrap_or_else(|| name.to_owned());
    std::fs::canonicalize(&file).unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let table =
            [("gobgpd version 4.8.0\n", Some(4)), ("gobgpd version 3.10.0", Some(3)), ("", None)];
        for (text, version) in table {
            assert_eq!(version_of(text), version);
        }
    }
}
