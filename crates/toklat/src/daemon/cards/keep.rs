//! Keeps a card's process running, and reads its reports. The process may have been taken over by
//! what the card sent it, so it is not trusted.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jail::Walls;
use jail::child::{Backoff, ChildSetup, Confinement, Pipes, Supervised};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::ChildStdout;

use super::super::children;
use super::super::front_ends::{Trouble, Waiting};
use super::driven::{Driven, MAX_REPORT, Report};
use crate::guests::printable;

/// Pauses before a process is started again.
const PAUSES: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5), Duration::from_secs(10));
/// The least time between two reports. What comes sooner waits in the pipe, or is lost.
const BETWEEN: Duration = Duration::from_millis(50);
/// How long a process may take to end after its last report.
const ENDING: Duration = Duration::from_secs(2);

/// How a card's process is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The installed program.
    pub exe: &'a Path,
    /// The runtime directory.
    pub dir: &'a Path,
    /// A process that cannot be confined in every way does not start.
    pub require_walls: bool,
}

/// Keeps a process running that drives the card at `address`, with payloads of up to `mtu` bytes,
/// for the port called `name`, as long as the port waits. `occupied` if an earlier supervisor's
/// process has the port: then it goes on until that has ended.
#[must_use]
pub fn keep(
    name: (String, String),
    (address, mtu): (&str, u16),
    start: Start<'_>,
    occupied: bool,
) -> Waiting {
    let driven = Arc::new(Driven::default());
    let here = Arc::clone(&driven);
    let kept = Kept {
        exe: start.exe.to_owned(),
        dir: start.dir.to_owned(),
        require_walls: start.require_walls,
        address: address.to_owned(),
        mtu,
        name,
    };
    let waiting = Waiting::new(None, |_, vacant, trouble| {
        vacant.send_replace(!occupied);
        tokio::spawn(async move {
            let mut look = vacant.subscribe();
            let mut pauses = PAUSES;
            while look.wait_for(|vacant| *vacant).await.is_ok() {
                let began = Instant::now();
                let why = kept.serve(&driven, &trouble).await;
                driven.ended();
                trouble.note(&kept.name, &why);
                tokio::time::sleep(pauses.after(began.elapsed())).await;
            }
        })
    });
    waiting.of_card(here)
}

/// What a process is started with.
struct Kept {
    exe: PathBuf,
    dir: PathBuf,
    require_walls: bool,
    address: String,
    mtu: u16,
    name: (String, String),
}

impl Kept {
    /// Runs a process to its end. Returns the reason of its end, for people.
    async fn serve(&self, driven: &Driven, trouble: &Trouble) -> String {
        let address = &self.address;
        let (child, pipes, walls) = match self.spawn() {
            Ok(started) => started,
            Err(error) => return format!("the driver of card {address} cannot start: {error}"),
        };
        driven.confined(walls);
        driven.began(child.id());
        let said = match pipes.stdout.map(ChildStdout::from_std) {
            Some(Ok(reports)) => self.listen(reports, driven, trouble).await,
            Some(Err(_)) | None => None,
        };
        let how = match tokio::time::timeout(ENDING, children::ended(&child)).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            // It is killed when it is dropped.
            Err(_) => "it did not end, and was killed".to_owned(),
        };
        let why = said.unwrap_or(how);
        format!("the driver of card {address} has ended: {why}")
    }

    /// Reads reports until the process closes its end, or says something malformed. Returns its
    /// last words.
    async fn listen(
        &self,
        reports: impl AsyncRead + Unpin,
        driven: &Driven,
        trouble: &Trouble,
    ) -> Option<String> {
        let (switch, port) = &self.name;
        let mut reports = BufReader::with_capacity(MAX_REPORT, reports);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut one = (&mut reports).take(MAX_REPORT as u64);
            let read = one.read_until(b'\n', &mut line).await;
            if !matches!(read, Ok(len) if len > 0) {
                return None;
            }
            let report = serde_json::from_slice(&line);
            match report {
                Ok(Report::State(mut state)) => {
                    state.model = printable(state.model.as_bytes());
                    match state.carrier {
                        true => trouble.end(),
                        false => {
                            let why = format!("card {} has no carrier", self.address);
                            trouble.note(&self.name, &why);
                        }
                    }
                    driven.note(state);
                }
                Ok(Report::Walls(walls)) => {
                    for refused in &walls.refused {
                        let reason = printable(refused.reason.as_bytes());
                        let wall = refused.wall;
                        tracing::warn!(target: crate::daemon::log::ACTION, switch, port, %wall, reason, "a wall of the card's process does not stand");
                    }
                    driven.confined(walls);
                }
                Ok(Report::Failed(why)) => return Some(printable(why.as_bytes())),
                Err(error) => return Some(format!("its report is malformed: {error}")),
            }
            tokio::time::sleep(BETWEEN).await;
        }
    }

    /// Starts a process, which is killed when the result is dropped.
    fn spawn(&self) -> io::Result<(Supervised, Pipes, Walls)> {
        let (switch, port) = &self.name;
        let mut command = std::process::Command::new(&self.exe);
        command.arg("--dir").arg(&self.dir).args(["card-process", "--card", &self.address]);
        command.args(["--port", &format!("{switch}:{port}"), "--mtu", &self.mtu.to_string()]);
        if self.require_walls {
            command.arg("--require-walls");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        jail::parent_death::in_its_own_session(&mut command);
        // It raises the other walls when it has the card: VFIO needs files and capabilities first.
        let confinement = Confinement::new().in_namespaces(true);
        let (child, pipes, walls) =
            Supervised::start_confined(&mut command, &ChildSetup::new(), confinement)?;
        let child = child.ending_with_this();
        match walls.refused.first().filter(|_| self.require_walls) {
            Some(jail::Refused { wall, reason }) => Err(io::Error::other(format!(
                "{wall} cannot be raised, and all walls are required: {reason}"
            ))),
            None => Ok((child, pipes, walls)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::cards::driven::State;

    fn kept() -> Kept {
        Kept {
            exe: "/nowhere".into(),
            dir: "/nowhere".into(),
            require_walls: false,
            address: "0000:03:00.0".into(),
            mtu: 9000,
            name: ("vale0".into(), "up".into()),
        }
    }

    fn state(carrier: bool) -> State {
        State {
            model: "82574L\u{1b}[2J".into(),
            mac: frame::Mac::local(1),
            carrier,
            mtu: 9000,
            sent: 1,
            received: 2,
            unsendable: 3,
            damaged: 4,
            missed: 5,
            interrupts: 6,
        }
    }

    fn line(report: &Report) -> String {
        serde_json::to_string(report).unwrap() + "\n"
    }

    async fn listen(said: &str) -> (Option<String>, Driven, Trouble) {
        let (driven, trouble) = (Driven::default(), Trouble::default());
        let last = kept().listen(said.as_bytes(), &driven, &trouble).await;
        (last, driven, trouble)
    }

    #[tokio::test]
    async fn reports_become_the_port_s_state() {
        let (last, driven, _) = listen(&line(&Report::State(state(true)))).await;
        assert_eq!(last, None);
        let info = driven.info().unwrap();
        let link = info.link.unwrap();
        assert!(link.carrier && !link.kind.as_ref().unwrap().contains('\u{1b}'), "{link:?}");
        assert_eq!((link.statistics["rx_missed_errors"], info.lost), (5, 5));
        assert_eq!(link.mtu, 9000);
        let (last, ..) = listen(&line(&Report::Failed("no card".into()))).await;
        assert_eq!(last.as_deref(), Some("no card"));
    }

    #[tokio::test]
    async fn a_process_that_reports_garbage_is_heard_no_more() {
        let long = "x".repeat(2 * MAX_REPORT);
        for garbage in ["\n", "{}\n", "{\"state\":{}}\n", "{\"failed\":1}\n", &long] {
            let said = format!("{garbage}{}", line(&Report::State(state(true))));
            let (last, driven, _) = listen(&said).await;
            assert!(last.unwrap().contains("malformed"), "{garbage:.20}");
            assert!(driven.info().is_none());
        }
    }

    #[tokio::test]
    async fn a_program_that_does_not_start_is_a_reason() {
        let why = kept().serve(&Driven::default(), &Trouble::default()).await;
        assert!(why.contains("0000:03:00.0") && why.contains("cannot start"), "{why}");
    }
}
