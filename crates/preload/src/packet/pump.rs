//! The thread that carries frames between a port and the far end of a packet socket.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use frame::bpf::{self, Ancillary, Packet};
use pcap::{Failure, Frame, Interface, Reader};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::options::Choice;

/// Maximum length of a frame that is passed on, in bytes.
const LONGEST: usize = 65_536;
/// Memory for queued frames, in bytes.
const MEMORY: usize = 1 << 20;
/// `ETH_P_ALL`.
const ALL: u16 = 3;
/// Bytes of an Ethernet header.
const HEADER: usize = 14;

/// Which frames a socket gets, and in which form.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The Ethernet type, or [`ALL`].
    pub protocol: u16,
    /// Without headers.
    pub cooked: bool,
    /// What the program chooses, at any time.
    pub choice: Arc<Choice>,
}

/// What a filter sees of a frame: the part that is passed on.
struct Seen<'a> {
    part: &'a [u8],
    frame: &'a [u8],
    sent: bool,
    interface: u32,
}

impl Packet for Seen<'_> {
    fn len(&self) -> u32 {
        self.part.len() as u32
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.part.get(at..)?.first_chunk().copied()
    }

    fn ancillary(&self, what: Ancillary) -> u32 {
        bpf::ancillary(self.frame, what, self.interface, self.sent)
    }
}

impl Wanted {
    /// Returns the part of a frame that is passed on.
    fn part<'a>(&self, frame: Frame<'a>, interface: u32) -> Option<&'a [u8]> {
        let Frame { bytes: frame, sent, .. } = frame;
        if sent && self.choice.ignores_sent.load(Ordering::Relaxed) {
            return None;
        }
        let kind = frame.get(12..HEADER).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
        let passes = self.protocol == ALL || kind == Some(self.protocol);
        let part = if self.cooked { frame.get(HEADER..)? } else { frame };
        let seen = Seen { part, frame, sent, interface };
        let filter = self.choice.filter.lock();
        let kept = filter
            .as_ref()
            .filter(|_| passes)
            .map_or(part.len(), |filter| part.len().min(filter.run(&seen) as usize));
        // An empty message would read as the end of the stream.
        part.get(..kept).filter(|part| passes && !part.is_empty())
    }
}

/// Starts a thread. It ends when the program has closed its socket.
///
/// # Errors
/// The system has no thread or descriptor left.
pub fn start(interface: &Arc<Interface>, far: OwnedFd, wanted: Wanted) -> Result<(), Failure> {
    let mut reader = Reader::new(interface, LONGEST, MEMORY)?;
    reader.descriptor()?;
    let run = move || {
        run(&mut reader, &far, &wanted);
        crate::marks::lower(std::iter::once(&far));
    };
    let started = quietly(|| std::thread::Builder::new().name("toklat-packets".into()).spawn(run));
    let failed = |_| Failure::new(pcap::Code::Error, Errno::AGAIN, "No thread can be started");
    started.map(drop).map_err(failed)
}

/// Starts a thread that blocks all signals of the program.
fn quietly<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: the signal sets are ours; the thread's mask is restored.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started
    }
}

fn run(reader: &mut Reader, far: &OwnedFd, wanted: &Wanted) {
    let mut frame = vec![MaybeUninit::uninit(); LONGEST];
    let interface = reader.interface().index();
    loop {
        let Ok(descriptor) = reader.descriptor() else { return };
        let mut fds = [PollFd::new(&descriptor, PollFlags::IN), PollFd::new(far, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => (),
            Err(_) => return,
        }
        let from_program = !fds[1].revents().is_empty();
        if from_program && !send_on(reader.interface(), far, &mut frame) {
            return;
        }
        loop {
            match reader.fetch() {
                Ok(true) => (),
                Ok(false) => break,
                Err(_) => return,
            }
            while let Some(frame) = reader.take() {
                let Some(part) = wanted.part(frame, interface) else { continue };
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                match rustix::net::send(far.as_fd(), part, flags) {
                    // A program that does not read loses frames, as with the kernel.
                    Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => (),
                    Err(_) => return,
                }
            }
        }
        reader.settle();
    }
}

/// Sends what another process of the program wrote to its end. Returns false if the program has
/// closed it.
fn send_on(interface: &Interface, far: &OwnedFd, room: &mut [MaybeUninit<u8>]) -> bool {
    match rustix::net::recv(far.as_fd(), room, RecvFlags::DONTWAIT) {
        Ok(((bytes, _), _)) if !bytes.is_empty() => {
            let _ = interface.send(bytes);
            true
        }
        Err(Errno::AGAIN | Errno::INTR) => true,
        Ok(_) | Err(_) => false,
    }
}
