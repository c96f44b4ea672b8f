//! The far end of a virtual machine's NIC. It receives and sends frames over a port of the switch,
//! a stream socket or a tap, with as few calls as each allows.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use netring::{Interest, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// How long to wait for frames between clock reads.
const PATIENCE: Duration = Duration::from_millis(10);
/// Bytes read from a stream at a time.
const CHUNK: usize = 256 << 10;
/// Length of the header before each frame of a tap.
const TAP_HEADER: usize = 10;
/// Longest frame.
const LONGEST: usize = 65_536 + TAP_HEADER;

/// Where the frames come from and go to.
pub enum Wire {
    /// A client's port of the same switch.
    Port(Box<Port>),
    /// A connected stream: each frame follows its length.
    Stream {
        /// The socket.
        socket: UnixStream,
        /// Bytes read that are not yet a whole frame.
        unread: Vec<u8>,
    },
    /// A tap at the same bridge, nonblocking.
    Tap(OwnedFd),
}

impl Wire {
    /// The wire over a stream.
    pub fn stream(socket: UnixStream) -> Self {
        Self::Stream { socket, unread: Vec::new() }
    }

    /// Waits briefly for frames, and passes each to `see`.
    pub fn receive(&mut self, see: impl FnMut(&[u8])) -> Result<()> {
        match self {
            Self::Port(port) => drop(port.wait(Interest::READ, Some(PATIENCE))?),
            Self::Stream { socket, .. } => wait_for(socket)?,
            Self::Tap(tap) => wait_for(tap)?,
        }
        self.receive_now(see)
    }

    /// Passes each frame that is there to `see`.
    pub fn receive_now(&mut self, mut see: impl FnMut(&[u8])) -> Result<()> {
        match self {
            Self::Port(port) => {
                let mut space = [0; 2048];
                for frame in port.receive(usize::MAX) {
                    let len = frame.copy_out(&mut space);
                    see(&space[..len]);
                }
                Ok(port.flush()?)
            }
            Self::Stream { socket, unread } => {
                let had = unread.len();
                unread.resize(had + CHUNK, 0);
                let got = match rustix::net::recv(&*socket, &mut unread[had..], RecvFlags::DONTWAIT)
                {
                    Ok((0, _)) => bail!("QEMU closed its end"),
                    Ok((got, _)) => got,
                    Err(Errno::AGAIN | Errno::INTR) => 0,
                    Err(e) => return Err(e.into()),
                };
                unread.truncate(had + got);
                let seen = see_frames(unread, &mut see);
                unread.drain(..seen);
                Ok(())
            }
            Self::Tap(tap) => {
                let mut space = [0; LONGEST];
                loop {
                    match rustix::io::read(&*tap, &mut space) {
                        Ok(len) if len >= TAP_HEADER => see(&space[TAP_HEADER..len]),
                        Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                        Err(Errno::INTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
            }
        }
    }

    /// Sends a frame `times` times. If the receiver is full, frames are lost, except on a stream,
    /// which waits.
    pub fn send(&mut self, frame: &[u8], times: usize) -> Result<()> {
        match self {
            Self::Port(port) => {
                let mut room = port.send(times);
                for _ in 0..times {
                    if !room.push(frame) {
                        break;
                    }
                }
                Ok(port.flush()?)
            }
            Self::Stream { socket, .. } => {
                let length = u32::try_from(frame.len())?.to_be_bytes();
                let one = [&length[..], frame].concat();
                Ok(socket.write_all(&one.repeat(times))?)
            }
            Self::Tap(tap) => {
                let one = [&[0; TAP_HEADER][..], frame].concat();
                for _ in 0..times {
                    match rustix::io::write(&*tap, &one) {
                        Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns how many frames that match `counts` arrive per second, over `time`.
    pub fn rate(&mut self, time: Duration, counts: impl Fn(&[u8]) -> bool) -> Result<f64> {
        let (start, mut frames) = (Instant::now(), 0u64);
        while start.elapsed() < time {
            self.receive(|frame| frames += u64::from(counts(frame)))?;
        }
        Ok(frames as f64 / start.elapsed().as_secs_f64())
    }
}

fn wait_for(fd: &impl AsFd) -> Result<()> {
    let patience = Timespec::try_from(PATIENCE)?;
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&patience))?;
    Ok(())
}

/// Passes the whole frames in `bytes` to `see`, each after its length; returns the bytes they take.
fn see_frames(bytes: &[u8], see: &mut impl FnMut(&[u8])) -> usize {
    let mut at = 0;
    while let Some((length, rest)) = bytes[at..].split_first_chunk::<4>() {
        let Some(frame) = rest.get(..u32::from_be_bytes(*length) as usize) else { break };
        see(frame);
        at += 4 + frame.len();
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_stream_are_seen_when_they_are_whole() {
        let bytes = [0, 0, 0, 2, 1, 2, 0, 0, 0, 1, 3, 0, 0, 0, 4, 9];
        let mut seen = Vec::new();
        assert_eq!(see_frames(&bytes, &mut |frame| seen.push(frame.to_vec())), 11);
        assert_eq!(seen, [vec![1, 2], vec![3]]);
        assert_eq!(see_frames(&bytes[..3], &mut |_| panic!("it is not whole")), 0);
    }

    #[test]
    fn a_stream_carries_what_is_sent() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (Wire::stream(a), Wire::stream(b));
        a.send(b"frame", 3).unwrap();
        let mut got = Vec::new();
        b.receive(|frame| got.push(frame.to_vec())).unwrap();
        assert_eq!(got, vec![b"frame".to_vec(); 3]);
    }
}
