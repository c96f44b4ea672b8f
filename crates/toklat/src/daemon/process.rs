//! Data processes: starting one, finding one that outlived an earlier supervisor, and asking it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use dataplane::config::{PortConfig, PortId, SwitchConfig};
use dataplane::control::{Answer, Command, VERSION};
use rustix::process::{Pid, PidfdFlags, Signal};
use shmem::Memfd;

use super::descriptors;
use super::seqpacket::{self, Seqpacket};

/// Longest message in either direction.
const MAX_MESSAGE: usize = dataplane::control::MAX_MESSAGE;
/// A data process that takes longer to answer hangs, and is killed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// What the name of a data process's socket ends with.
pub const SOCKET_SUFFIX: &str = ".data.sock";

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The data process refused; it runs on.
    #[error("{0}")]
    Refused(String),
    /// It died, or hung and was killed; what is recorded is carried out when it is started again.
    #[error("The data process does not answer")]
    Dead(#[source] io::Error),
}

/// Where the socket of a switch's data process is.
#[must_use]
pub fn socket_path(dir: &Path, switch: &str) -> PathBuf {
    dir.join(format!("{switch}{SOCKET_SUFFIX}"))
}

/// A port as a data process that outlived its supervisor knows it.
#[derive(Debug)]
pub struct FoundPort {
    /// Its number.
    pub id: PortId,
    /// What it is.
    pub config: PortConfig,
    /// Its descriptors, as its attachment says.
    pub fds: Vec<OwnedFd>,
}

/// The supervisor's side of a data process.
#[derive(Debug)]
pub struct DataProcess {
    channel: Seqpacket,
    pid: u32,
    pidfd: OwnedFd,
}

impl DataProcess {
    /// Starts one for `switch` from the program at `exe`, and greets it.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub async fn start(
        exe: &Path,
        dir: &Path,
        switch: &str,
        config: &SwitchConfig,
        memory: &Memfd,
    ) -> io::Result<Self> {
        let path = socket_path(dir, switch);
        let listener = seqpacket::listen(&path)?;
        let mut child = spawn(exe, switch, config, &listener, memory.as_fd())?;
        drop(listener);
        let greeted = async {
            let (process, _) = Self::greet(Seqpacket::connect(&path)?, switch).await?;
            Ok(process)
        };
        let greeted = greeted.await;
        if greeted.is_err() {
            // Fails only if it is dead already.
            let _ = child.start_kill();
        }
        greeted
    }

    /// Connects to the data process of `switch` that an earlier supervisor left; gives its state
    /// memory too.
    ///
    /// # Errors
    /// `ConnectionRefused` or `NotFound` if there is none.
    pub async fn find(dir: &Path, switch: &str) -> io::Result<(Self, Memfd)> {
        let channel = Seqpacket::connect(&socket_path(dir, switch))?;
        let (process, memory) = Self::greet(channel, switch).await?;
        let memory = memory.ok_or_else(|| unexpected("no state memory"))?;
        Ok((process, Memfd::adopt(memory).map_err(io::Error::other)?))
    }

    async fn greet(channel: Seqpacket, expected: &str) -> io::Result<(Self, Option<OwnedFd>)> {
        let (answer, mut fds) =
            exchange(&channel, &Command::Hello { version: VERSION }, &[]).await?;
        let Answer::Hello { version, pid, switch } = answer else {
            return Err(unexpected(&format!("{answer:?} for a greeting")));
        };
        if version != VERSION || switch != expected {
            return Err(unexpected(&format!("version {version}, switch {switch:?}")));
        }
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| unexpected(&format!("process id {pid}")))?;
        // It answered, so it lives, and this is it.
        let pidfd = rustix::process::pidfd_open(number, PidfdFlags::empty())?;
        Ok((Self { channel, pid, pidfd }, fds.pop()))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks for something, and waits for the answer. Not to be cancelled: the answer would be taken
    /// for that of the next command.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn ask(&self, command: &Command, fds: &[BorrowedFd<'_>]) -> Result<Answer, AskError> {
        match exchange(&self.channel, command, fds).await {
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

    /// All its ports.
    ///
    /// # Errors
    /// What went wrong on the channel.
    pub async fn ports(&self) -> io::Result<Vec<FoundPort>> {
        let mut found = Vec::new();
        let mut next = exchange(&self.channel, &Command::ListPorts, &[]).await?;
        loop {
            match next {
                (Answer::Done, _) => return Ok(found),
                (Answer::Port { id, config }, fds) => found.push(FoundPort { id, config, fds }),
                (answer, _) => return Err(unexpected(&format!("{answer:?} in a list of ports"))),
            }
            next = receive(&self.channel).await?;
        }
    }

    /// Ends it at once. Its end is noticed as any other.
    pub fn kill(&self) {
        // Fails only if it is dead already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits until it has ended, and kills it if it takes too long.
    ///
    /// # Errors
    /// What the kernel said.
    pub async fn ended(&self) -> io::Result<()> {
        let pidfd = descriptors::register(self.pidfd.try_clone()?, tokio::io::Interest::READABLE)?;
        if tokio::time::timeout(ANSWER_TIMEOUT, pidfd.readable()).await.is_err() {
            self.kill();
            let _ = pidfd.readable().await?;
        }
        Ok(())
    }
}

impl AsFd for DataProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Starts the program in its hidden role. It makes a session of its own, so that it does not die with
/// our terminal.
fn spawn(
    exe: &Path,
    switch: &str,
    config: &SwitchConfig,
    listener: &OwnedFd,
    memory: BorrowedFd<'_>,
) -> io::Result<tokio::process::Child> {
    let inherited = |fd: BorrowedFd<'_>| -> io::Result<OwnedFd> {
        let copy = fd.try_clone_to_owned()?;
        // Seen by no other child: this thread alone starts processes, and not before this one runs.
        rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty())?;
        Ok(copy)
    };
    let (listener, memory) = (inherited(listener.as_fd())?, inherited(memory)?);
    tokio::process::Command::new(exe)
        .args(["data-process", "--switch", switch])
        .args(["--config", &serde_json::to_string(config)?])
        .args(["--listener", &listener.as_raw_fd().to_string()])
        .args(["--state", &memory.as_raw_fd().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
}

async fn exchange(
    channel: &Seqpacket,
    command: &Command,
    fds: &[BorrowedFd<'_>],
) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let message = serde_json::to_vec(command)?;
    if message.len() > MAX_MESSAGE {
        let reason = format!("{} bytes of settings are too many for a port", message.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let sent = tokio::time::timeout(ANSWER_TIMEOUT, channel.send(&message, fds)).await;
    sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    receive(channel).await
}

async fn receive(channel: &Seqpacket) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let got = tokio::time::timeout(ANSWER_TIMEOUT, channel.receive(MAX_MESSAGE)).await;
    let got = got.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if got.bytes.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let answer = serde_json::from_slice(&got.bytes).ok().filter(|_| !got.truncated);
    Ok((answer.ok_or_else(|| unexpected("a message that is none"))?, got.fds))
}

fn unexpected(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("The data process sent {what}"))
}
