//! The daemon's children, in the reactor: waiting for their ends and their answers.
//!
//! All are [`Supervised`], and the thread of [`jail::child::reap_orphans`] reaps what nothing waits
//! for. So no error path and no task that was dropped leaves a zombie.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use jail::child::{ChildSetup, Confinement, Supervised};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, Interest};
use tokio::process::ChildStdout;

use super::descriptors;

/// Bytes that are read of a program's answer.
const MAX_ANSWER: u64 = 4096;

/// Waits until a process has ended. It may be cancelled.
///
/// # Errors
/// The kernel's error.
pub async fn gone(process: &Supervised) -> io::Result<()> {
    let pidfd: OwnedFd = process.as_fd().try_clone_to_owned()?;
    descriptors::register(pidfd, Interest::READABLE)?.readable().await.map(drop)
}

/// Waits until a child has ended, and says how. It may be cancelled.
///
/// # Errors
/// The kernel's error.
pub async fn ended(child: &Supervised) -> io::Result<ExitStatus> {
    gone(child).await?;
    child.ended()?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

/// Tells a process to end, and kills it if it does not within this time.
pub async fn end(process: &Supervised, patience: Duration) {
    process.send(Signal::TERM);
    if tokio::time::timeout(patience, gone(process)).await.is_err() {
        process.kill();
        if let Err(error) = gone(process).await {
            tracing::error!(%error, pid = process.id(), "cannot wait for a process");
        }
    }
}

/// Runs a program within walls that answers on its standard output and ends. Returns how it ended,
/// and the answer.
///
/// # Errors
/// It cannot be started, or takes longer than `patience`.
pub async fn answer(
    mut command: Command,
    confinement: Confinement,
    patience: Duration,
) -> io::Result<(ExitStatus, String)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let setup = ChildSetup::new();
    let (child, pipes, _) = Supervised::start_confined(&mut command, &setup, confinement)?;
    let child = child.ending_with_this();
    let stdout = pipes.stdout.ok_or(io::ErrorKind::BrokenPipe)?;
    let answered = async {
        let mut answer = Vec::new();
        ChildStdout::from_std(stdout)?.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        Ok((ended(&child).await?, String::from_utf8_lossy(&answer).into_owned()))
    };
    let answered = tokio::time::timeout(patience, answered).await;
    answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn programs_answer_or_are_killed_when_their_time_is_over() {
        let (status, said) =
            answer(shell("echo 7; exit 3"), Confinement::new(), PATIENCE).await.unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(3), "7\n"));
        let late = answer(shell("exec sleep 1000"), Confinement::new(), Duration::from_millis(20));
        let late = late.await;
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let none = answer(Command::new("/no/program"), Confinement::new(), PATIENCE).await;
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_child_that_does_not_obey_is_killed() {
        let mut command = shell("trap '' TERM; echo ready; while :; do sleep 1; done");
        command.stdout(Stdio::piped());
        let (child, pipes) = Supervised::start(&mut command, &ChildSetup::new()).unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(&mut pipes.stdout.unwrap(), &mut ready).unwrap();
        end(&child, Duration::from_millis(20)).await;
        let signal = std::os::unix::process::ExitStatusExt::signal(&ended(&child).await.unwrap());
        assert_eq!(signal, Some(9));
    }
}
