//! One passt, at a socket that only passt and this process have.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use anyhow::Context;
use jail::child::{ChildSetup, Confinement, Supervised};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::process::Signal;

/// Bytes of the length that precedes each frame (QEMU's `-netdev stream`), most significant byte
/// first.
const PREFIX: usize = 4;
/// Bytes of the longest frame. passt's buffers hold 64 KiB; this is larger.
const MAX_FRAME: usize = 65_550;
/// The maximum number of bytes that wait to be sent. Frames beyond it are lost, as at any full
/// queue.
const MAX_WAITING: usize = 1 << 20;
/// passt's limit of descriptors: one socket for each of its guest's connections, and some more.
const MAX_DESCRIPTORS: u64 = 16_384;
/// Bytes read at once.
const READ: usize = 1 << 18;

/// A running passt, confined by what it inherits ([`jail::child`]) and by its own namespaces.
/// Dropping this ends it.
#[derive(Debug)]
pub struct Passt {
    child: Supervised,
    socket: UnixStream,
    /// Bytes that were received from passt. Those before `taken` have been used.
    came: Vec<u8>,
    taken: usize,
    /// Bytes that wait to be sent to passt.
    waits: Vec<u8>,
    /// The pipe with the error messages that passt prints.
    words: OwnedFd,
}

impl Passt {
    /// Starts `program` with these arguments.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(program: &str, arguments: &[OsString]) -> anyhow::Result<Self> {
        let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
        let (ours, theirs) = rustix::net::socketpair(kind.0, kind.1, kind.2, None)?;
        let socket = UnixStream::from(ours);
        socket.set_nonblocking(true)?;
        // If passt writes more log than is read here, passt loses messages instead of blocking.
        let (words, said) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let child = spawn(program, arguments, theirs.as_fd(), said)?;
        Ok(Self { child, socket, came: Vec::new(), taken: 0, waits: Vec::new(), words })
    }

    /// Queues a frame for passt, or drops it if too much waits.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let fits = self.waits.len() + PREFIX + frame.len() <= MAX_WAITING;
        if fits {
            self.waits.extend((frame.len() as u32).to_be_bytes());
            self.waits.extend(frame);
        }
        fits
    }

    /// Sends queued bytes, up to the number that the socket accepts.
    ///
    /// # Errors
    /// passt is gone.
    pub fn flush(&mut self) -> std::io::Result<()> {
        let mut sent = 0;
        while sent < self.waits.len() {
            match self.socket.write(&self.waits[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.waits.drain(..sent);
        Ok(())
    }

    /// Returns true if queued bytes wait for the socket.
    pub fn is_full(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Reads the bytes that have arrived. Returns false if there are none.
    ///
    /// # Errors
    /// passt is gone.
    pub fn read(&mut self) -> std::io::Result<bool> {
        self.came.drain(..std::mem::take(&mut self.taken));
        let had = self.came.len();
        self.came.resize(had + READ, 0);
        let got = self.socket.read(&mut self.came[had..]);
        self.came.truncate(had + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until passt has ended, after it closed its socket, and says why.
    pub fn end(self) -> String {
        let status = self.child.end().map_or_else(|e| e.to_string(), |status| status.to_string());
        let mut bytes = [0; 4096];
        let said = rustix::io::read(&self.words, &mut bytes).unwrap_or(0);
        let said = String::from_utf8_lossy(&bytes[..said]);
        let last = said.lines().rfind(|line| !line.contains("syslog") && !line.trim().is_empty());
        last.map_or(status, |line| line.trim().to_owned())
    }

    /// Takes the next complete frame.
    ///
    /// # Errors
    /// The length is invalid, so the start of the next frame is unknown.
    pub fn next_frame(&mut self) -> std::io::Result<Option<&mut [u8]>> {
        let rest = &mut self.came[self.taken..];
        let Some((prefix, rest)) = rest.split_first_chunk_mut::<PREFIX>() else { return Ok(None) };
        let len = u32::from_be_bytes(*prefix) as usize;
        if len > MAX_FRAME {
            return Err(ErrorKind::InvalidData.into());
        }
        let Some(frame) = rest.get_mut(..len) else { return Ok(None) };
        self.taken += PREFIX + len;
        Ok(Some(frame))
    }
}

impl AsFd for Passt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Starts passt with its end of the socket, which only passt may have open.
fn spawn(
    program: &str,
    arguments: &[OsString],
    theirs: BorrowedFd<'_>,
    said: OwnedFd,
) -> anyhow::Result<Supervised> {
    let mut command = Command::new(program);
    command.args(["--foreground", "--quiet", "--fd"]).arg(theirs.as_raw_fd().to_string());
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    let outfit = ChildSetup::new().with(theirs).with_descriptors(MAX_DESCRIPTORS);
    // passt makes its own namespaces, and an empty root, in which Landlock would hinder it.
    let confinement = Confinement::new().with_calls(true);
    let outfit = outfit.ending_by(Signal::KILL);
    let started = Supervised::start_confined(&mut command, &outfit, confinement);
    let (child, _, walls) = started.with_context(|| {
        format!("Cannot start {program}; install it (apt install passt, https://passt.top)")
    })?;
    for jail::Refused { wall, reason } in walls.refused {
        eprintln!("toklat: a wall of {program} is missing, {wall}: {reason}");
    }
    Ok(child.ending_with_this())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake passt, played by `sh`, with the socket as its descriptor number `$4`.
    fn played(script: &str) -> (Passt, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("passt");
        std::fs::write(&program, format!("#!/bin/bash\nfd=$4\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        // Another test's child may hold the file open for a moment.
        (until(|| Passt::start(program.to_str().unwrap(), &[]).ok()), dir)
    }

    fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let began = std::time::Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(began.elapsed().as_secs() < 60, "nothing came");
            std::thread::yield_now();
        }
    }

    #[test]
    fn frames_come_whole_and_a_length_that_cannot_be_is_its_end() {
        let (mut passt, _dir) = played(
            r"printf '\0\0\0\3abc\0\0' >&$fd; read -n 1 -u $fd; printf '\0\2de\xff\xff\xff\xff' >&$fd; cat <&$fd",
        );
        let mut frames = Vec::new();
        until(|| {
            passt.read().unwrap();
            frames.extend(passt.next_frame().unwrap().map(|frame| frame.to_vec()));
            (frames.len() == 1).then_some(())
        });
        assert!(passt.push(b"xy"));
        passt.flush().unwrap();
        let error = until(|| {
            passt.read().unwrap();
            match passt.next_frame() {
                Ok(frame) => {
                    frames.extend(frame.map(|frame| frame.to_vec()));
                    None
                }
                Err(error) => Some(error),
            }
        });
        assert_eq!(frames, [b"abc".to_vec(), b"de".to_vec()]);
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn one_that_ends_says_why_and_one_that_does_not_read_costs_frames_alone() {
        let (mut passt, _dir) =
            played("echo 'Failed to send 3 bytes to syslog' >&2; echo no route >&2");
        until(|| passt.read().is_err().then_some(()));
        assert_eq!(passt.end(), "no route");
        let (mut passt, _dir) = played("exec sleep 1000");
        let mut pushed = 0;
        while passt.push(&[0; 1500]) {
            pushed += 1;
            passt.flush().unwrap();
        }
        assert!(pushed >= MAX_WAITING / 1504);
        assert!(passt.is_full());
    }
}
