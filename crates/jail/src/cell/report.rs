//! What a process in a cell tells its creator: one message each, on a socket that keeps their
//! borders.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{ENTERED, Entered};
use crate::{Wall, Walls};

/// Bytes of the longest report.
pub const MAX_REPORT: usize = 4096;
/// The maximum number of bytes of a reason.
const MAX_REASON: usize = 200;

/// A report. Its sender may be an intruder, so it is a claim about the sender, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The walls that were raised before the program ran.
    Entered(Entered),
    /// A step of [`STEPS`](super::STEPS) failed.
    Stuck {
        /// Which.
        step: u32,
        /// Why.
        errno: i32,
    },
    /// The program is set up and makes copies of itself from now on.
    Loaded,
    /// A copy has started. Its number is not said: the kernel names the copy as the sender of its
    /// own first report.
    Copied,
    /// The cell is sealed: what the program has raised.
    Sealed(Walls),
    /// The program serves.
    Up,
    /// The program tried a system call that is forbidden, and ends.
    Tried(u32),
    /// The program gives up: why.
    Failed(String),
}

impl Report {
    /// Encodes the report into `space`, and returns its length. Allocates nothing for the kinds
    /// that new processes and signal handlers send: `Entered`, `Stuck`, `Tried`.
    fn encode(&self, space: &mut [u8; MAX_REPORT]) -> usize {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            let len = bytes.len().min(space.len() - at);
            space[at..at + len].copy_from_slice(&bytes[..len]);
            at += len;
        };
        match self {
            Self::Entered(errors) => {
                put(b"E");
                errors.iter().for_each(|errno| put(&errno.to_le_bytes()));
            }
            Self::Stuck { step, errno } => {
                put(b"S");
                put(&step.to_le_bytes());
                put(&errno.to_le_bytes());
            }
            Self::Loaded => put(b"L"),
            Self::Copied => put(b"C"),
            Self::Sealed(walls) => {
                put(b"W");
                walls.standing.iter().for_each(|wall| put(format!("{wall}\n").as_bytes()));
                for refused in &walls.refused {
                    let reason = cut(&refused.reason).replace('\n', " ");
                    put(format!("{}={reason}\n", refused.wall).as_bytes());
                }
            }
            Self::Up => put(b"U"),
            Self::Tried(call) => {
                put(b"T");
                put(&call.to_le_bytes());
            }
            Self::Failed(why) => {
                put(b"F");
                put(cut(why).as_bytes());
            }
        }
        at
    }

    /// Reads a report; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
        Some(match kind {
            b'E' => {
                let mut errors = [0; ENTERED.len()];
                if rest.len() != 4 * errors.len() {
                    return None;
                }
                for (place, bytes) in errors.iter_mut().zip(rest.chunks_exact(4)) {
                    *place = number(bytes)?.cast_signed();
                }
                Self::Entered(errors)
            }
            b'S' => {
                let (step, errno) = rest.split_at_checked(4)?;
                Self::Stuck { step: number(step)?, errno: number(errno)?.cast_signed() }
            }
            b'L' if rest.is_empty() => Self::Loaded,
            b'C' if rest.is_empty() => Self::Copied,
            b'W' => Self::Sealed(walls(std::str::from_utf8(rest).ok()?)?),
            b'U' if rest.is_empty() => Self::Up,
            b'T' => Self::Tried(number(rest)?),
            b'F' if rest.len() <= MAX_REASON => {
                let text = std::str::from_utf8(rest).ok()?;
                // The text is printed on terminals and written to logs.
                Self::Failed(text.replace(char::is_control, " "))
            }
            _ => return None,
        })
    }
}

/// Parses the walls of a report. Each may occur once.
fn walls(text: &str) -> Option<Walls> {
    let mut walls = Walls::default();
    for line in text.lines() {
        let (name, reason) = match line.split_once('=') {
            Some((name, reason)) => (name, Some(reason)),
            None => (line, None),
        };
        let wall = Wall::ALL.into_iter().find(|wall| wall.name() == name)?;
        let is_known = walls.stands(wall) || walls.refused.iter().any(|known| known.wall == wall);
        if is_known || reason.is_some_and(|reason| reason.len() > MAX_REASON) {
            return None;
        }
        walls
            .note(wall, reason.map_or(Ok(()), |reason| Err(reason.replace(char::is_control, " "))));
    }
    Some(walls)
}

/// The start of a text.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_REASON);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Sends a report; false if it could not be sent: the creator is gone, or does not read.
pub fn send(control: BorrowedFd<'_>, report: &Report) -> bool {
    let mut space = [0; MAX_REPORT];
    let len = report.encode(&mut space);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    #[allow(unsafe_code, reason = "in a handler of signals: one system call, which sets no errno")]
    // SAFETY: the bytes exist.
    let sent = unsafe { libc::send(control.as_raw_fd(), space.as_ptr().cast(), len, flags) };
    usize::try_from(sent) == Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(report: &Report) -> Option<Report> {
        let mut space = [0; MAX_REPORT];
        let len = report.encode(&mut space);
        Report::decode(&space[..len])
    }

    #[test]
    fn reports_arrive_as_they_were_sent() {
        let mut walls = Walls::default();
        Wall::ALL.into_iter().skip(2).for_each(|wall| walls.note(wall, Ok(())));
        walls.note(Wall::User, Err("not root".into()));
        let all = [
            Report::Entered([0, -1, 1, 2, 3, 4, 5, 6]),
            Report::Stuck { step: 3, errno: 13 },
            Report::Loaded,
            Report::Copied,
            Report::Sealed(walls),
            Report::Up,
            Report::Tried(41),
            Report::Failed("no port".into()),
        ];
        for report in all {
            assert_eq!(through(&report).as_ref(), Some(&report));
        }
    }

    #[test]
    fn long_texts_are_cut_and_control_characters_never_reach_a_terminal() {
        let walls = Walls {
            standing: Vec::new(),
            refused: vec![crate::Refused { wall: Wall::Root, reason: "é".repeat(1000) }],
        };
        let Some(Report::Sealed(walls)) = through(&Report::Sealed(walls)) else { panic!() };
        assert_eq!(walls.refused[0].reason.chars().count(), 100);
        assert_eq!(
            through(&Report::Failed("\x1b[2Jx".into())),
            Some(Report::Failed(" [2Jx".into()))
        );
    }

    #[test]
    fn malformed_reports_are_refused() {
        let bad: [&[u8]; 11] = [
            b"",
            b"E",
            b"E1234",
            b"S123",
            b"Lx",
            b"C1",
            b"Wnothing\n",
            b"Wroot\nroot=x\n",
            b"Ux",
            b"T12345",
            b"\xff",
        ];
        for bytes in bad {
            assert_eq!(Report::decode(bytes), None, "{bytes:?}");
        }
        assert_eq!(Report::decode(&[b'F'; MAX_REPORT]), None);
    }
}
