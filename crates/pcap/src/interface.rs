//! One port, shared by all captures and senders of a process.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use frame::bpf::{self, Ancillary, Packet, Program};
use netring::layout::MAX_FRAGS;
use netring::{FrameClock, Interest, Monitor, Open, OpenError, Port, PortError, Received};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use shmem::Bytes;

use crate::failure::{Code, Failure};
use crate::lock::Lock;
use crate::name::Device;
use crate::queue::FrameQueue;
use crate::waker::ReaderWaker;

/// A frame as a filter sees it. The bytes are still in shared memory, which others may change.
struct Seen<'a> {
    bytes: Bytes<'a>,
    interface: u32,
    sent: bool,
}

impl Packet for Seen<'_> {
    fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.read(at)
    }

    fn ancillary(&self, what: Ancillary) -> u32 {
        bpf::ancillary(self, what, self.interface, self.sent)
    }
}

/// Maximum number of frames that are taken from the port at a time.
const BATCH: usize = 256;
/// How long a waiter stays awake before it sleeps: waking a sleeper takes longer.
pub(crate) const AWAKE: Duration = Duration::from_micros(20);
/// Maximum time that a frame waits for room in the port.
const ROOM_TIME: Duration = Duration::from_secs(1);
/// How long the switch may take to fetch the last sent frames before the port is closed.
const LAST_TIME: Duration = Duration::from_secs(2);
/// The first interface number. It is far above those of the kernel.
const FIRST_INDEX: u32 = 0x7e00_0000;

/// Hooks that hide the library's descriptors from a program, which must not close them.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors {
    /// Hides a descriptor from the program.
    pub raise: fn(OwnedFd) -> OwnedFd,
    /// Allows the program to close a descriptor again.
    pub lower: fn(RawFd),
}

/// The open ports of this process, and the numbers of all that it has named.
#[derive(Debug, Default)]
pub struct Interfaces {
    open: Vec<Weak<Interface>>,
    named: Vec<Device>,
}

impl Interfaces {
    /// Makes an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { open: Vec::new(), named: Vec::new() }
    }

    /// Returns the number of a port. It stays the same within a process.
    pub fn index(&mut self, device: &Device) -> u32 {
        let at = self.named.iter().position(|named| named == device).unwrap_or_else(|| {
            self.named.push(device.clone());
            self.named.len() - 1
        });
        FIRST_INDEX + at as u32
    }

    /// Returns the port with this number.
    #[must_use]
    pub fn named(&self, index: u32) -> Option<&Device> {
        self.named.get(index.checked_sub(FIRST_INDEX)? as usize)
    }

    /// Returns all ports that the process has named.
    #[must_use]
    pub fn names(&self) -> &[Device] {
        &self.named
    }

    /// Returns the open ports.
    pub fn opened(&self) -> impl Iterator<Item = Arc<Interface>> + '_ {
        self.open.iter().filter_map(Weak::upgrade)
    }

    /// Returns the port, and opens it if necessary. A port that another process has is opened as a
    /// monitor of it.
    ///
    /// # Errors
    /// There is no daemon, the user has no right to the port, or the daemon refuses.
    pub fn open(
        &mut self,
        device: &Device,
        descriptors: Descriptors,
    ) -> Result<Arc<Interface>, Failure> {
        self.open.retain(|known| known.strong_count() > 0);
        let known = self.opened().find(|known| known.device == *device);
        if let Some(known) = known {
            return Ok(known);
        }
        let index = self.index(device);
        let opened = Arc::new(Interface::open(device.clone(), index, descriptors)?);
        self.open.push(Arc::downgrade(&opened));
        Ok(opened)
    }
}

/// An open port.
pub struct Interface {
    device: Device,
    token: RawFd,
    pub(crate) descriptors: Descriptors,
    /// Its number in this process.
    index: u32,
    /// Number of slots of the send ring. All are free once the switch has taken everything.
    room: usize,
    sends: bool,
    pub(crate) inner: Lock<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub port: Port,
    pub places: Vec<Place>,
    pub next: u64,
    /// The port was asked to wake this process.
    armed: bool,
    gone: Option<Failure>,
}

/// A reader's state in its interface.
pub(crate) struct Place {
    pub id: u64,
    pub queue: FrameQueue,
    pub filter: Option<Program>,
    pub keep: usize,
    pub limit: usize,
    /// The interface's number.
    pub interface: u32,
    pub counts: Counts,
    pub bell: Arc<ReaderWaker>,
}

/// How many frames a reader received and lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that passed its filter.
    pub received: u64,
    /// Received frames that were dropped because the reader's queue was full.
    pub dropped: u64,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, queue, counts, .. } = self;
        let mut place = f.debug_struct("Place");
        place.field("id", id).field("queue", queue).field("counts", counts).finish_non_exhaustive()
    }
}

fn broken(error: &PortError) -> Failure {
    let errno = match error {
        PortError::Gone => Errno::NETDOWN,
        PortError::Io(errno) => *errno,
        _ => Errno::IO,
    };
    Failure::new(Code::Error, errno, error.to_string())
}

fn refused(device: &Device, error: &OpenError) -> Failure {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    let said = format!("{error}{}", source.unwrap_or_default());
    let (code, errno) = match error {
        OpenError::Denied { .. } => (Code::PermissionDenied, Errno::ACCESS),
        OpenError::NoDaemon { .. } => (Code::NoSuchDevice, Errno::NETDOWN),
        OpenError::Name(_) => {
            let said = format!("{device} is not a port; write switch:port, such as vale0:p1");
            return Failure::new(Code::NoSuchDevice, Errno::NODEV, said);
        }
        OpenError::Refused { errno, .. } => {
            (Code::NoSuchDevice, Errno::from_raw_os_error((*errno).clamp(1, 4095)))
        }
        _ => (Code::Error, Errno::IO),
    };
    Failure::new(code, errno, said)
}

/// Opens the port, or a monitor of it if it is taken. The flag says whether it can send.
fn open_port(device: &Device) -> Result<(Port, bool), Failure> {
    let open = || Open::new(device.port()).unlimited();
    match open().open() {
        Ok(port) => {
            let sends = port.queues().0 > 0;
            Ok((port, sends))
        }
        Err(OpenError::Refused { errno, .. })
            if errno == Errno::BUSY.raw_os_error() && !device.is_pipe() =>
        {
            let opened = open().monitor(Monitor::Both).open();
            Ok((opened.map_err(|error| refused(device, &error))?, false))
        }
        Err(error) => Err(refused(device, &error)),
    }
}

impl Interface {
    fn open(device: Device, index: u32, descriptors: Descriptors) -> Result<Self, Failure> {
        let (port, sends) = open_port(&device)?;
        let mut interface = Self::over(device, port, sends, descriptors);
        interface.index = index;
        Ok(interface)
    }

    /// Makes an interface from a port that is open.
    #[must_use]
    pub fn over(device: Device, mut port: Port, sends: bool, descriptors: Descriptors) -> Self {
        // A descriptor that cannot be moved keeps its number.
        let _ = port.map_descriptors(descriptors.raise);
        let (token, room) = (port.as_raw_fd(), port.send(usize::MAX).room());
        let inner = Inner { port, places: Vec::new(), next: 0, armed: false, gone: None };
        Self {
            device,
            token,
            descriptors,
            index: FIRST_INDEX,
            room,
            sends,
            inner: Lock::new(inner),
        }
    }

    /// Its number in this process.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Its name.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn token(&self) -> BorrowedFd<'_> {
        // SAFETY: the port's own descriptor, which stays open as long as the port that is in
        // `inner`.
        unsafe { BorrowedFd::borrow_raw(self.token) }
    }

    /// Locks the state during a fork.
    pub fn hold(&self) {
        self.inner.hold();
    }

    /// Unlocks what [`hold`](Self::hold) locked.
    pub fn release(&self) {
        self.inner.release();
    }

    /// Sends a frame; waits for room if there is none.
    ///
    /// # Errors
    /// `EMSGSIZE` for an invalid length, `EBUSY` for a monitor, `ENOBUFS` if the switch takes
    /// nothing, `ENETDOWN` if it is gone.
    pub fn send(&self, frame: &[u8]) -> Result<(), Failure> {
        if !self.sends {
            let said = format!(
                "{} belongs to another program, so frames are only copied from it; name another port \
                 of the switch to send",
                self.device
            );
            return Err(Failure::new(Code::Error, Errno::BUSY, said));
        }
        let started = Instant::now();
        loop {
            let mut inner = self.inner.lock();
            if frame.is_empty() || frame.len() > inner.port.max_frame() {
                let most = inner.port.max_frame();
                let said = format!("A frame has 1 to {most} bytes, not {}", frame.len());
                return Err(Failure::new(Code::Error, Errno::MSGSIZE, said));
            }
            let is_in = inner.port.send(MAX_FRAGS).push(frame);
            inner.flush()?;
            if is_in {
                return Ok(());
            }
            let waited = started.elapsed();
            if waited > ROOM_TIME {
                let said = format!("The switch takes no frames from {}", self.device);
                return Err(Failure::new(Code::Error, Errno::NOBUFS, said));
            }
            if waited > AWAKE {
                inner.wait_for_room();
                drop(inner);
                self.sleep(None, Some(Duration::from_millis(1)))?;
            } else {
                drop(inner);
                std::thread::yield_now();
            }
        }
    }

    /// Waits, for a bounded time, until the switch has taken the sent frames.
    pub fn finish(&self) {
        let started = Instant::now();
        while self.sends && started.elapsed() < LAST_TIME {
            let mut inner = self.inner.lock();
            if inner.flush().is_err() || inner.port.send(usize::MAX).room() >= self.room {
                return;
            }
            drop(inner);
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Sleeps until the port or the bell wakes it, or the time is over.
    pub(crate) fn sleep(
        &self,
        bell: Option<&ReaderWaker>,
        time: Option<Duration>,
    ) -> Result<(), Failure> {
        let token = self.token();
        let mut fds = vec![PollFd::new(&token, PollFlags::IN)];
        fds.extend(bell.map(|bell| PollFd::new(bell, PollFlags::IN)));
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match rustix::event::poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Failure::io(errno)),
        }
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        self.finish();
        let lower = self.descriptors.lower;
        let mut inner = self.inner.lock();
        let _ = inner.port.map_descriptors(|fd| {
            lower(fd.as_raw_fd());
            fd
        });
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Inner {
    /// Publishes the sent frames. A port in the error state is reset, and the frames in it are
    /// lost.
    fn flush(&mut self) -> Result<(), Failure> {
        let done = match self.port.flush() {
            Err(PortError::Fault(_)) => self.port.reset(),
            done => done,
        };
        done.map_err(|error| self.fails(&error))
    }

    /// Marks the port as unusable.
    fn fails(&mut self, error: &PortError) -> Failure {
        let failure = broken(error);
        self.gone.get_or_insert_with(|| failure.clone());
        // Tells all readers.
        self.places.iter().for_each(|place| place.bell.ring());
        failure
    }

    fn wait_for_room(&mut self) {
        if self.places.is_empty() {
            // With no reader, unread frames would keep the sender from sleeping.
            let _ = self.port.disarm();
        }
        let _ = self.port.arm(Interest::WRITE);
    }

    /// Passes received frames to all readers. If there are none, arms the port's wake-up and
    /// returns false.
    pub(crate) fn take(&mut self, own: u64) -> Result<bool, Failure> {
        if let Some(gone) = &self.gone {
            return Err(gone.clone());
        }
        loop {
            if std::mem::take(&mut self.armed) {
                self.port.disarm().map_err(|error| self.fails(&error))?;
            }
            let clock = FrameClock::now();
            let Self { port, places, .. } = self;
            let mut came = false;
            for frame in port.receive(BATCH) {
                came = true;
                let time = clock.time(&frame);
                places.iter_mut().for_each(|place| place.offer(&frame, time, own));
            }
            self.flush()?;
            if came {
                return Ok(true);
            }
            self.armed = true;
            if !self.port.arm(Interest::READ).readable {
                return Ok(false);
            }
        }
    }
}

impl Place {
    /// How many bytes of a frame the reader wants; 0 if its filter refuses the frame.
    fn wanted(&self, frame: &Received<'_>) -> usize {
        let Some(filter) = &self.filter else { return self.keep };
        let (interface, sent) = (self.interface, frame.was_sent());
        let kept = if frame.slot_count() == 1 {
            filter.run(&Seen { bytes: frame.window(), interface, sent })
        } else {
            filter.run(&Seen { bytes: Bytes::of(&mut frame.to_vec()), interface, sent })
        };
        self.keep.min(kept as usize)
    }

    /// Copies a frame to each reader whose filter it passes.
    fn offer(&mut self, frame: &Received<'_>, time: Duration, own: u64) {
        let wanted = self.wanted(frame);
        if wanted == 0 {
            return;
        }
        self.counts.received += 1;
        let (was_empty, keep) = (self.queue.is_empty(), wanted.min(frame.len()));
        if !was_empty && self.queue.size() + keep > self.limit {
            self.counts.dropped += 1;
            return;
        }
        self.queue.push(frame, keep, time);
        if was_empty && self.id != own {
            self.bell.ring();
        }
    }
}
