//! One process in a cell: its descriptors, what it has reported, and how it ended.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;

use jail::cell::{ENTERED, Entered, MAX_REPORT, Report, STEPS};
use jail::child::Supervised;
use jail::{Wall, Walls, calls, peer};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use super::groups::Member;

/// Reports of a guest in all. It has no reason for more than a few.
const MAX_REPORTS: u32 = 32;

/// The manager's ends of a process's socket and output, and the other ends.
pub struct Ends {
    pub control: OwnedFd,
    pub output: OwnedFd,
    pub theirs: [OwnedFd; 2],
}

impl Ends {
    pub fn new() -> std::io::Result<Self> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (control, socket) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        peer::name_senders(&control)?;
        let (output, words) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let flags = rustix::fs::fcntl_getfl(&output)? | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&output, flags)?;
        Ok(Self { control, output, theirs: [socket, words] })
    }
}

/// The reports of a process.
#[derive(Debug, Default)]
pub struct Said {
    entered: Option<Entered>,
    sealed: Option<Walls>,
    pub loaded: bool,
    pub up: bool,
    /// The reason why the process ended, if it reported a reason.
    end: Option<String>,
    reports: u32,
}

/// A process in a cell.
#[derive(Debug)]
pub struct Process {
    /// The process itself. It is `None` for a copy until the copy's first report, whose sender the
    /// kernel names.
    pub child: Option<Supervised>,
    pub control: OwnedFd,
    pub output: OwnedFd,
    pub said: Said,
    /// The thread of [`Groups`](super::groups::Groups) uses the number of the process.
    pub member: Member,
}

impl Process {
    /// Kills the process. Its descriptor becomes readable when it has ended.
    pub fn kill(&self) {
        self.child.as_ref().inspect(|child| child.kill());
    }
}

/// Reads one report, and the number of the process that the kernel says has sent it. `Ok(None)` if
/// there is none.
pub fn receive(control: BorrowedFd<'_>) -> Result<Option<(Report, Option<i32>)>, Why> {
    let mut bytes = [0; MAX_REPORT];
    match peer::receive(control, &mut bytes) {
        Ok((0, _)) => Err(Why::Closed),
        Ok((len, sender)) => {
            let report = bytes.get(..len).and_then(Report::decode);
            report.map(|report| Some((report, sender))).ok_or(Why::Malformed)
        }
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Err(Why::Closed),
        Err(_) => Ok(None),
    }
}

/// The reason why no more reports come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Closed,
    Malformed,
}

impl Said {
    /// Takes in a report. Returns false if the process must be killed, because it reports too much.
    pub fn note(&mut self, report: Report) -> bool {
        self.reports += 1;
        match report {
            Report::Entered(entered) => self.entered = self.entered.or(Some(entered)),
            Report::Sealed(walls) if self.sealed.is_none() => self.sealed = Some(walls),
            Report::Loaded => self.loaded = true,
            Report::Up => self.up = true,
            Report::Stuck { step, errno } => {
                let step = STEPS.get(step as usize).unwrap_or(&"start");
                let error = Errno::from_raw_os_error(errno);
                self.end = Some(format!("cannot {step}: {error}"));
            }
            Report::Tried(call) => {
                let name = calls::name(call).unwrap_or("an unnamed one");
                self.end = Some(format!("tried a forbidden system call: {name} ({call})"));
            }
            Report::Failed(why) => self.end = Some(why),
            Report::Copied | Report::Sealed(_) => {}
        }
        self.reports <= MAX_REPORTS
    }

    /// The reason that the process reported for its end, if it reported one.
    pub fn last_words(&self) -> Option<&str> {
        self.end.as_deref()
    }

    /// The user of a copy is that of the process it was copied from.
    pub fn inherit_user(&mut self, of: &Self) {
        if let (Some(own), Some(of)) = (&mut self.entered, &of.entered) {
            own[0] = of[0];
        }
    }

    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// The walls that stand around the process, and those that are missing.
    pub fn walls(&self) -> Walls {
        let mut walls = self.sealed.clone().unwrap_or_default();
        // The process cannot judge what was raised before it ran.
        let judges = |wall: &Wall| {
            *wall == Wall::Root || !(ENTERED.contains(wall) || Wall::LIMITS.contains(wall))
        };
        walls.standing.retain(judges);
        walls.refused.retain(|refused| judges(&refused.wall));
        for (wall, errno) in ENTERED.into_iter().zip(self.entered.unwrap_or([-1; 8])) {
            match errno {
                // The old root is left only later, so this wall is reported by the process.
                _ if wall == Wall::Root => {}
                -1 => {}
                0 => walls.note(wall, Ok(())),
                errno => walls.note(wall, Err(Errno::from_raw_os_error(errno).to_string())),
            }
        }
        // The memory limit is a step that does not fail, before the program runs.
        walls.note(Wall::MemoryLimit, Ok(()));
        walls
    }
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// In words.
    pub how: String,
    pub success: bool,
    /// The daemon refused the guest's port, and would do so again, because the command is wrong.
    pub refused: bool,
}

impl End {
    pub fn failed(how: impl Into<String>) -> Self {
        Self { how: how.into(), success: false, refused: false }
    }

    /// The guest could not be started.
    pub fn not_started(error: &anyhow::Error) -> Self {
        // Other errors are temporary, as when a data process restarts or a limit is reached.
        const FINAL: [Errno; 4] = [Errno::NOENT, Errno::INVAL, Errno::ACCESS, Errno::PERM];
        let refused = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref() {
            Some(netring::OpenError::Refused { errno, .. }) => {
                FINAL.iter().any(|known| known.raw_os_error() == *errno)
            }
            _ => false,
        };
        let refused = error.chain().any(refused);
        Self { how: format!("{error:#}"), success: false, refused }
    }
}

/// Collects a process that has ended; `None` if it has not.
pub fn collect(child: &Supervised, said: &Said) -> Option<End> {
    let status = match child.ended() {
        Ok(status) => status?,
        Err(error) => return Some(End::failed(format!("cannot be waited for: {error}"))),
    };
    let own = said.end.clone();
    Some(match (status.code(), status.signal()) {
        (Some(0), _) if !said.up => {
            End::failed(own.unwrap_or_else(|| "ended before it served".to_owned()))
        }
        (Some(0), _) => {
            End { how: own.unwrap_or_else(|| "ended".into()), success: true, refused: false }
        }
        (Some(code), _) => End::failed(own.unwrap_or_else(|| format!("ended with status {code}"))),
        (_, Some(signal)) => {
            End::failed(own.unwrap_or_else(|| format!("killed by signal {signal}")))
        }
        _ => End::failed("ended"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_that_pass_are_told_from_those_that_stay() {
        for (errno, stays) in [
            (Errno::NOENT, true),
            (Errno::ACCESS, true),
            (Errno::NETDOWN, false),
            (Errno::NOSPC, false),
        ] {
            let (name, message) = ("vale0:a".to_owned(), "no".to_owned());
            let errno = errno.raw_os_error();
            let error = netring::OpenError::Refused { name, errno, message };
            assert_eq!(End::not_started(&error.into()).refused, stays, "{errno}");
        }
    }
}
