//! Data processes: starts one, finds one that outlived an earlier supervisor, and sends it
//! commands.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dataplane::config::{PortConfig, PortId, SwitchConfig};
use dataplane::control::{Answer, Command, VERSION, is_taken_over};
use jail::Walls;
use jail::child::{ChildSetup, Confinement, Supervised};
use jail::strangers::Descriptor;
use rustix::net::Shutdown;
use serde::de::DeserializeOwned;
use shmem::Memfd;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinHandle;

use self::exit::Exit;
use super::seqpacket::{self, Seqpacket};
use super::{children, locked};

mod exit;
mod greeting;

/// Longest message in either direction.
const MAX_MESSAGE: usize = dataplane::control::MAX_MESSAGE;
/// Time limit for an answer. A data process that takes longer hangs, and is killed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Added to a data process's OOM score, in thousandths of the machine's memory. A data process that
/// leaks can still be chosen.
const OOM_SCORE_ADJ: i32 = -900;
/// The maximum number of commands sent before their first answer arrives.
pub const MAX_PENDING: usize = 64;
/// The suffix of a data process's socket name.
pub const SOCKET_SUFFIX: &str = ".data.sock";

/// The reason why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The data process refused, and runs on.
    #[error("{0}")]
    Refused(String),
    /// The data process died, or hung and was killed. It gets the recorded state when it is
    /// restarted.
    #[error("The data process does not answer")]
    Dead(#[source] io::Error),
}

/// The socket path of a switch's data process.
#[must_use]
pub fn socket_path(dir: &Path, switch: &str) -> PathBuf {
    dir.join(format!("{switch}{SOCKET_SUFFIX}"))
}

/// A port as reported by a data process that outlived its supervisor.
#[derive(Debug)]
pub struct FoundPort {
    /// Its number.
    pub id: PortId,
    /// The configuration of the port.
    pub config: PortConfig,
    /// The worker that serves it, if the data process says so.
    pub worker: Option<u16>,
    /// The port's descriptors, in the order that its attachment defines.
    pub fds: Vec<Descriptor>,
}

/// The maximum number of items that are kept for one port.
const MAX_KEPT: usize = 1024;

/// The items that a port keeps for the next data process, by name: a value and a descriptor.
pub type KeptThings = BTreeMap<String, (serde_json::Value, Option<Descriptor>)>;

/// The kept items of all ports of a switch.
pub type Keeper = Arc<Mutex<BTreeMap<PortId, KeptThings>>>;

type Received = (Answer, Vec<Descriptor>);

/// The supervisor's side of a data process.
#[derive(Debug)]
pub struct DataProcess {
    channel: Arc<Seqpacket>,
    answers: AsyncMutex<mpsc::Receiver<Received>>,
    reader: JoinHandle<()>,
    pid: u32,
    exit: Arc<Exit>,
    /// The version of its messages.
    pub version: u32,
    /// How the data process is confined.
    pub walls: Walls,
}

impl DataProcess {
    /// Starts a data process for `switch` from the program at `exe`, and exchanges greetings.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub async fn start(
        exe: &Path,
        require_walls: bool,
        dir: &Path,
        switch: &str,
        config: &SwitchConfig,
        memory: &Memfd,
        keeper: &Keeper,
    ) -> io::Result<Self> {
        let path = socket_path(dir, switch);
        let listener = seqpacket::listen(&path)?;
        // It ends by itself, and the daemon's reaper reaps it, once the data process lives in
        // namespaces of its own.
        let memory = memory.as_fd().try_clone_to_owned()?;
        let launcher = spawn(exe, require_walls, switch, config, listener, memory).await?;
        let greeted = async {
            let (process, _) =
                Self::handshake(Seqpacket::connect(&path)?, &path, switch, keeper).await?;
            let version = process.version;
            let same = (version == VERSION).then_some(process);
            same.ok_or_else(|| unexpected(&format!("version {version} instead of {VERSION}")))
        };
        let greeted = greeted.await;
        match &greeted {
            Ok(process) => spare(process.pid),
            Err(_) => {
                // A data process with namespaces of its own is a grandchild, so it is killed
                // separately.
                launcher.kill();
                let found = Seqpacket::connect(&path).ok();
                let started = found.and_then(|channel| listening(&channel, switch));
                started.inspect(Exit::kill);
            }
        }
        greeted
    }

    /// Connects to the data process of `switch` that an earlier supervisor left; also returns its
    /// state memory, if it can be taken over. If its greeting is wrong, it is killed. One of
    /// another [version](Self::version) understands only what never changes: [`ports`](Self::ports)
    /// and [`stop`](Self::stop).
    ///
    /// # Errors
    /// `ConnectionRefused` or `NotFound` if there is none.
    pub async fn find(
        dir: &Path,
        switch: &str,
        keeper: &Keeper,
    ) -> io::Result<(Self, Option<Memfd>)> {
        let path = socket_path(dir, switch);
        let channel = Seqpacket::connect(&path)?;
        let listening = listening(&channel, switch);
        let greeted = async {
            let (process, memory) = Self::handshake(channel, &path, switch, keeper).await?;
            if !is_taken_over(process.version) {
                return Ok((process, None));
            }
            let memory = memory.ok_or_else(|| unexpected("no state memory"))?;
            Ok((process, Some(Memfd::adopt(memory).map_err(io::Error::other)?)))
        };
        let greeted = greeted.await;
        if let (Err(error), Some(exit)) = (&greeted, listening) {
            tracing::warn!(switch, %error, "killing a data process that does not greet");
            exit.kill();
            ended(&exit).await?;
        }
        greeted
    }

    async fn handshake(
        channel: Seqpacket,
        path: &Path,
        expected: &str,
        keeper: &Keeper,
    ) -> io::Result<(Self, Option<OwnedFd>)> {
        let (channel, greeting, mut fds) = greeting::exchange(channel, path).await?;
        if greeting.switch != expected {
            return Err(unexpected(&format!("a greeting of switch {:?}", greeting.switch)));
        }
        let (version, walls) = (greeting.version, greeting::walls(&greeting)?);
        // The process answered, so it lives and listens. In a PID namespace it does not know its
        // own number, but the kernel does.
        let number = rustix::net::sockopt::socket_peercred(Seqpacket::connect(path)?)?.pid;
        let (exit, pid) =
            (Arc::new(Exit::of(number)?), number.as_raw_nonzero().get().unsigned_abs());
        let channel = Arc::new(channel);
        let (to, answers) = mpsc::channel(4 * MAX_PENDING);
        let said = read(Arc::clone(&channel), Arc::clone(&exit), Arc::clone(keeper), to);
        let reader = tokio::spawn(said);
        let answers = AsyncMutex::new(answers);
        Ok((
            Self { channel, answers, reader, pid, exit, version, walls },
            fds.pop().map(Descriptor::into_ours),
        ))
    }

    /// Disconnects from the data process. The returned task finishes once the process has ended and
    /// its last messages are kept.
    pub fn into_reader(self) -> JoinHandle<()> {
        self.reader
    }

    async fn exchange(
        &self,
        command: &Command,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<Received> {
        send(&self.channel, command, fds, limit).await?;
        self.answer(limit).await
    }

    async fn answer(&self, limit: Duration) -> io::Result<Received> {
        let mut answers = self.answers.lock().await;
        let got = tokio::time::timeout(limit, answers.recv()).await;
        let got = got.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
        got.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// The data process's id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a command, and waits for the answer. Must not be cancelled: the answer would be taken
    /// for that of the next command.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn ask(&self, command: &Command, fds: &[BorrowedFd<'_>]) -> Result<Answer, AskError> {
        self.interpret(self.exchange(command, fds, ANSWER_TIMEOUT).await)
    }

    /// Tells the data process to stop, and waits until it has delivered the frames it holds. These
    /// may wait for `stall_timeout` if the port is lossless.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn stop(&self, stall_timeout: Duration) -> Result<(), AskError> {
        let limit = stall_timeout + ANSWER_TIMEOUT;
        self.interpret(self.exchange(&Command::Stop, &[], limit).await).map(drop)
    }

    /// Sends at most [`MAX_PENDING`] commands at once; returns the answers in order. Must not be
    /// cancelled.
    pub async fn ask_all(
        &self,
        commands: &[(Command, Vec<BorrowedFd<'_>>)],
    ) -> Vec<Result<Answer, AskError>> {
        let mut sent = Vec::with_capacity(commands.len());
        for (command, fds) in commands {
            sent.push(send(&self.channel, command, fds, ANSWER_TIMEOUT).await);
        }
        let mut answers = Vec::with_capacity(commands.len());
        for sent in sent {
            let answer = match sent {
                Ok(()) => self.answer(ANSWER_TIMEOUT).await,
                Err(error) => Err(error),
            };
            answers.push(self.interpret(answer));
        }
        answers
    }

    /// Interprets an answer, or its absence.
    fn interpret(&self, got: io::Result<Received>) -> Result<Answer, AskError> {
        match got {
            Ok((Answer::Failed { reason }, _)) => Err(AskError::Refused(reason)),
            Ok((answer, _)) => Ok(answer),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(AskError::Refused(error.to_string()))
            }
            Err(error) => {
                self.kill();
                Err(AskError::Dead(error))
            }
        }
    }

    /// Lists all ports of the data process.
    ///
    /// # Errors
    /// What went wrong on the channel.
    pub async fn ports(&self) -> io::Result<Vec<FoundPort>> {
        let mut found = Vec::new();
        let mut next = self.exchange(&Command::ListPorts, &[], ANSWER_TIMEOUT).await?;
        loop {
            match next {
                (Answer::Done, _) => return Ok(found),
                (Answer::Port { id, config, worker }, fds) => {
                    found.push(FoundPort { id, config: *config, worker, fds })
                }
                (answer, _) => return Err(unexpected(&format!("{answer:?} in a list of ports"))),
            }
            next = self.answer(ANSWER_TIMEOUT).await?;
        }
    }

    /// Kills the data process. Its end is noticed like any other.
    pub fn kill(&self) {
        self.exit.kill();
    }

    /// Waits until the data process has ended, and kills it after a time limit.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn ended(&self) -> io::Result<()> {
        ended(&self.exit).await
    }
}

async fn ended(exit: &Exit) -> io::Result<()> {
    if let Ok(ended) = tokio::time::timeout(ANSWER_TIMEOUT, exit.wait()).await {
        return ended;
    }
    exit.kill();
    exit.wait().await
}

/// Finds the data process of `switch` that listens at the other end. Each data process calls listen
/// again when it starts, so the kernel names it and not the supervisor that made the socket.
fn listening(channel: &Seqpacket, switch: &str) -> Option<Exit> {
    let pid = rustix::net::sockopt::socket_peercred(channel).ok()?.pid;
    let exit = Exit::of(pid).ok()?;
    // The number may be another process's by now. The descriptor is open and cannot change to
    // another process.
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
    is_data_process(&line, switch).then_some(exit)
}

/// Whether a command line (words that end with a zero byte) is the one that [`spawn`] made for
/// `switch`.
fn is_data_process(line: &[u8], switch: &str) -> bool {
    let words = line.split(|byte| *byte == 0).skip(1);
    words.take(3).eq([&b"data-process"[..], b"--switch", switch.as_bytes()])
}

/// Asks the program at `exe` which control messages it speaks.
///
/// # Errors
/// It cannot be run, or speaks another version than this supervisor.
pub async fn check_version(exe: &Path) -> io::Result<()> {
    let mut command = std::process::Command::new(exe);
    command.arg("control-version");
    let answered = children::answer(command, Confinement::new(), ANSWER_TIMEOUT);
    let (status, said) = answered.await?;
    let version = said.trim().parse::<u32>().ok().filter(|_| status.success());
    if version == Some(VERSION) {
        return Ok(());
    }
    let exe = exe.display();
    let remedy = match version {
        Some(version) if version > VERSION => {
            "Restart the daemon: the new one takes the ports over"
        }
        _ => "Restart the daemon instead, and clients open their ports anew",
    };
    Err(io::Error::other(format!(
        "{exe} does not speak version {VERSION} of the control messages; nothing was replaced. \
         {remedy}"
    )))
}

impl AsFd for DataProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Starts the program in its hidden role. It has a session of its own, so it does not die with the
/// supervisor's terminal. Nothing else waits for the start, however long the kernel takes.
async fn spawn(
    exe: &Path,
    require_walls: bool,
    switch: &str,
    config: &SwitchConfig,
    listener: OwnedFd,
    memory: OwnedFd,
) -> io::Result<Supervised> {
    let mut command = std::process::Command::new(exe);
    command
        .args(["data-process", "--switch", switch])
        .args(["--config", &serde_json::to_string(config)?])
        .args(["--listener", &listener.as_raw_fd().to_string()])
        .args(["--state", &memory.as_raw_fd().to_string()])
        .args(require_walls.then_some("--require-walls"))
        .envs(dataplane::log::is_json().then_some((dataplane::log::FORMAT, "json")))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let starting = tokio::task::spawn_blocking(move || {
        let setup = ChildSetup::new().with(listener.as_fd()).with(memory.as_fd());
        Supervised::start(&mut command, &setup)
    });
    Ok(starting.await.map_err(io::Error::other)??.0)
}

/// Makes the kernel kill other processes first when memory runs out. The kernel counts mapped guest
/// pages as the data process's own, so it looks like the largest process; but killing it frees none
/// of them. Only root (CAP_SYS_RESOURCE) may set this. Otherwise the process is as likely to be
/// killed as the daemon.
fn spare(pid: u32) {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj");
    let own = own.ok().and_then(|own| own.trim().parse().ok()).unwrap_or(0);
    if own > OOM_SCORE_ADJ {
        let path = format!("/proc/{pid}/oom_score_adj");
        if let Err(error) = std::fs::write(path, OOM_SCORE_ADJ.to_string()) {
            tracing::debug!(pid, %error, "a data process is not spared when memory runs out");
        }
    }
}

/// Reads messages of a data process until its end: stores items to keep, and passes answers on.
async fn read(
    channel: Arc<Seqpacket>,
    exit: Arc<Exit>,
    keeper: Keeper,
    answers: mpsc::Sender<Received>,
) {
    let mut ended = pin!(exit.wait());
    let mut lives = true;
    loop {
        let got = tokio::select! {
            got = receive(&channel) => got,
            end = &mut ended, if lives => {
                lives = false;
                if let Err(error) = end {
                    tracing::error!(%error, "the end of a data process is not seen");
                }
                // The channel's other end may still be open. All messages were read, and no more
                // come.
                let _ = rustix::net::shutdown(&channel, Shutdown::Both);
                continue;
            }
        };
        match got {
            Ok((Answer::Keep { id, uid, key, value }, mut fds)) => {
                let mut kept = locked(&keeper);
                let things = kept.entry(id).or_default();
                if things.len() >= MAX_KEPT && !things.contains_key(&key) {
                    return tracing::error!(id, "a port keeps too many things");
                }
                let fd = fds.pop().map(|fd| fd.charged_to(uid));
                things.insert(key, (value, fd));
            }
            Ok((Answer::Forget { id, key }, _)) => {
                locked(&keeper).get_mut(&id).and_then(|things| things.remove(&key));
            }
            Ok(answer) => {
                // The receiver of answers is gone if the supervisor has disconnected from the
                // process.
                let _ = answers.send(answer).await;
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return,
            Err(error) => return tracing::error!(%error, "the channel to a data process failed"),
        }
    }
}

async fn send(
    channel: &Seqpacket,
    command: &Command,
    fds: &[BorrowedFd<'_>],
    limit: Duration,
) -> io::Result<()> {
    let message = serde_json::to_vec(command)?;
    if message.len() > MAX_MESSAGE {
        let reason = format!("{} bytes of settings are too many for a port", message.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let sent = tokio::time::timeout(limit, channel.send(&message, fds)).await;
    sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn receive(channel: &Seqpacket) -> io::Result<Received> {
    receive_as(channel).await
}

async fn receive_as<T: DeserializeOwned>(channel: &Seqpacket) -> io::Result<(T, Vec<Descriptor>)> {
    let got = channel.receive(MAX_MESSAGE).await?;
    if got.bytes.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let answer = serde_json::from_slice(&got.bytes).ok().filter(|_| !got.truncated);
    Ok((answer.ok_or_else(|| unexpected("a message that is none"))?, got.fds))
}

fn unexpected(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("The data process sent {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_process_is_known_by_its_command_line() {
        let line = b"/usr/bin/toklat\0data-process\0--switch\0vale0\0--config\0{}\0";
        assert!(is_data_process(line, "vale0"));
        assert!(!is_data_process(line, "vale1"));
        assert!(!is_data_process(b"/usr/bin/toklat\0daemon\0", "vale0"));
        assert!(!is_data_process(b"", "vale0"));
    }
}
