//! The part of a device that its worker serves: its registers, as messages from the socket, and its
//! transmit queues.
//!
//! Register accesses are carried out and answered at once. Any other message stays in the socket
//! until the control thread has carried it out: the worker [parks](Wire::park) the wire and does
//! not read until it gets the wire back. Where messages carry memory, the [`DmaProxy`] runs after
//! each read of the socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jail::strangers::Descriptor;
use nic::device::{Device, Identity, Transmit};
use nic::pci::Config;
use port::{Ingress, Nanos};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use shmem::Shared;
use turn::attach::{Attended, RegisterAccess, Source};
use turn::state::BusCounters;

use super::dma_proxy::DmaProxy;
use super::line::Line;
use super::message::{self, Access, HEADER, Header, MAX_READ, MULTI, ProtocolError};
use super::mirror::Mirror;
use super::session::{CONFIG, region_size};
use crate::attach::guest::vectors::{Pin, Vectors};
use crate::config::PortId;

/// Nanoseconds between reads of the socket of a polled port, and after a message.
const READ_NS: (u64, u64) = (20_000, 4_000);
/// For how long a sleeping worker does not check doorbells in memory, at first and at most.
const NAP_NS: (u64, u64) = (50_000, 1_000_000);
/// For how long after a message more messages are expected.
const LIVELY_NS: u64 = 50_000;

/// How workers ask the control thread to serve ports.
#[derive(Debug)]
pub struct ServeRequests {
    ports: Mutex<Vec<PortId>>,
    doorbell: OwnedFd,
}

impl ServeRequests {
    /// Makes the summons of a process.
    ///
    /// # Errors
    /// The kernel has no eventfd left.
    pub fn new() -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { ports: Mutex::default(), doorbell: rustix::event::eventfd(0, flags)? })
    }

    /// Asks for a port.
    pub fn ask(&self, id: PortId) {
        self.lock().push(id);
        turn::signal(self.doorbell.as_fd());
    }

    /// The descriptor that becomes readable when a worker asks.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Takes the ports that were asked for.
    #[must_use]
    pub fn take(&self) -> Vec<PortId> {
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        let mut ports = std::mem::take(&mut *self.lock());
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PortId>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The socket, which worker and control thread pass to each other.
#[derive(Debug)]
pub struct Wire {
    line: Mutex<Line>,
    socket: Arc<Descriptor>,
    /// Set while the wire belongs to the control thread.
    ///
    /// # Protocol: `Wire.parked` (vfio-user)
    /// - Writer: worker: set, as it gives the socket away; control thread: cleared, as it gives it
    ///   back
    /// - Reader: worker
    /// - Ordering: store release / load acquire
    /// - Partner: `ServeRequests`: its mutex and eventfd; then a job in the worker's mailbox
    /// - Without it: two threads read one socket, or none does
    /// - Shown by: data process tests `devices`
    parked: AtomicBool,
    /// The reason why the worker parked it, if the session is over.
    failed: Mutex<Option<ProtocolError>>,
    summons: Arc<ServeRequests>,
    id: PortId,
}

impl Wire {
    /// A wire that belongs to the worker.
    #[must_use]
    pub fn new(
        line: Line,
        socket: Arc<Descriptor>,
        summons: Arc<ServeRequests>,
        id: PortId,
    ) -> Self {
        let (line, failed) = (Mutex::new(line), Mutex::default());
        Self { line, socket, parked: AtomicBool::new(false), failed, summons, id }
    }

    /// Locks the line, for the thread that the wire belongs to.
    pub fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire)
    }

    /// Passes the wire to the control thread.
    fn park(&self, failed: Option<ProtocolError>) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = failed;
        self.parked.store(true, Ordering::Release);
        self.summons.ask(self.id);
    }

    /// Passes the wire back to the worker, which the caller must wake.
    pub fn unpark(&self) {
        self.parked.store(false, Ordering::Release);
    }

    /// The reason why the worker parked it, if the session is over.
    pub fn take_failure(&self) -> Option<ProtocolError> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A device's registers, behind a socket.
struct Registers {
    wire: Arc<Wire>,
    device: Arc<dyn Device>,
    identity: Identity,
    config: Arc<Config>,
    vectors: Arc<Vectors>,
    pin: Arc<Pin>,
    counters: Shared<BusCounters>,
    reply: Vec<u8>,
    /// When the socket was last read, and when it last had a message.
    read_at: Nanos,
    access_at: Nanos,
    access: Option<RegisterAccess>,
    /// When to ask the device for interrupts.
    ask_at: Option<Nanos>,
    /// Registers in memory, which the driver writes without a message.
    mirror: Option<Mirror>,
    /// For how long a sleeping worker does not check the doorbells in memory.
    nap: u64,
    /// The DMA proxy, if the guest's memory cannot be mapped.
    dma_proxy: Option<DmaProxy>,
}

/// A device that a worker serves.
pub struct Bus {
    registers: Registers,
    transmit: Vec<Box<dyn Transmit>>,
}

impl Bus {
    /// Serves a device whose interrupts go to `vectors`.
    #[must_use]
    pub fn new(
        wire: Arc<Wire>,
        device: Arc<dyn Device>,
        transmit: Vec<Box<dyn Transmit>>,
        config: Arc<Config>,
        vectors: Arc<Vectors>,
        pin: Arc<Pin>,
        counters: Shared<BusCounters>,
    ) -> Self {
        let registers = Registers {
            wire,
            identity: device.identity(),
            device,
            config,
            vectors,
            pin,
            counters,
            reply: Vec::with_capacity(HEADER + 16 + MAX_READ),
            read_at: Nanos(0),
            access_at: Nanos(0),
            access: None,
            ask_at: None,
            mirror: None,
            nap: NAP_NS.0,
            dma_proxy: None,
        };
        Self { registers, transmit }
    }

    /// Adds registers in memory, and memory by messages.
    #[must_use]
    pub fn with(mut self, mirror: Option<Mirror>, dma_proxy: Option<DmaProxy>) -> Self {
        (self.registers.mirror, self.registers.dma_proxy) = (mirror, dma_proxy);
        self
    }
}

impl Source for Bus {
    fn queues(&self) -> usize {
        self.transmit.len()
    }

    #[inline]
    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        Some(&mut **self.transmit.get_mut(queue)?)
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        let nudge = self.registers.vectors.nudge().map(AsFd::as_fd);
        nudge.into_iter().chain([self.registers.wire.socket.as_fd()]).collect()
    }

    fn begin(&mut self) {
        // A predecessor may have left an interrupt to raise, or the link has changed.
        self.registers.ask_at = Some(Nanos(0));
    }

    fn attends(&self) -> bool {
        true
    }

    fn attend(&mut self, now: Nanos) -> Attended {
        self.registers.attend(now)
    }

    fn arm(&mut self, now: Nanos) -> bool {
        self.registers.run_dma_proxy(now);
        // Later changes of the socket are seen by epoll.
        let work = self.registers.is_rung()
            || self.transmit.iter_mut().any(|t| t.arm())
            || self.registers.has_message();
        if work {
            self.disarm();
        }
        work
    }

    fn deadline(&self, now: Nanos) -> Option<Nanos> {
        let frames = self.transmit.iter().filter_map(|transmit| transmit.deadline());
        let registers = &self.registers;
        let looks = [registers.ask_at, registers.look_at(now), registers.carry_at(now)];
        frames.chain(looks.into_iter().flatten()).min()
    }

    fn disarm(&mut self) {
        self.transmit.iter_mut().for_each(|transmit| transmit.disarm());
        self.registers.read_at = Nanos(0);
    }
}

impl Registers {
    /// Reads the socket, checks doorbells and asks for interrupts, each when it is due.
    fn attend(&mut self, now: Nanos) -> Attended {
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = self.vectors.ask(now).due;
        }
        if self.mirror.as_ref().is_some_and(Mirror::is_rung) {
            self.be_rung(now);
        }
        if now - self.read_at >= self.gap(now) && !self.wire.is_parked() {
            self.read_at = now;
            self.read(now);
        }
        Attended { again: self.next_poll(now), access: self.access.take() }
    }

    /// Nanoseconds between two reads of the socket.
    fn gap(&self, now: Nanos) -> u64 {
        if now - self.access_at < LIVELY_NS { READ_NS.1 } else { READ_NS.0 }
    }

    /// When there may be work, while the port is polled. Doorbells in memory are checked in each
    /// turn.
    fn next_poll(&self, now: Nanos) -> Nanos {
        if self.mirror.is_some() {
            return now;
        }
        let read_at = self.read_at + self.gap(now);
        self.ask_at.map_or(read_at, |at| at.min(read_at))
    }

    /// True if a doorbell in memory was rung. Called before the worker sleeps: if none was rung,
    /// the next sleep is longer.
    fn is_rung(&mut self) -> bool {
        let rung = self.mirror.as_ref().is_some_and(Mirror::is_rung);
        self.nap = if rung { NAP_NS.0 } else { (2 * self.nap).min(NAP_NS.1) };
        rung
    }

    /// When to check the doorbells that do not wake the worker.
    fn look_at(&self, now: Nanos) -> Option<Nanos> {
        self.mirror.as_ref().map(|_| now + self.nap)
    }

    fn be_rung(&mut self, now: Nanos) {
        (self.access, self.access_at) = (Some(RegisterAccess::Posted), now);
        if let Some(mirror) = &mut self.mirror {
            mirror.forward(now);
        }
        self.ask_at = self.vectors.ask(now).due;
    }

    /// True if a message waits to be carried out. The control thread announces its own messages
    /// differently.
    fn has_message(&self) -> bool {
        if self.wire.is_parked() {
            return false;
        }
        let mut line = self.wire.line();
        // A line with an error counts, too: the error shows when the message is read.
        !matches!(line.look(), Ok(false)) && !matches!(line.front(), Ok(None))
    }

    /// Carries out the messages in the socket, up to one for the control thread.
    fn read(&mut self, now: Nanos) {
        let wire = Arc::clone(&self.wire);
        let mut line = wire.line();
        match self.carry_out(&mut line, now) {
            Ok(true) => {
                drop(line);
                self.run_dma_proxy(now);
            }
            Ok(false) => wire.park(None),
            Err(error) => wire.park(Some(error)),
        }
    }

    /// Runs the DMA proxy, if there is one and the socket belongs to the worker.
    #[inline]
    fn run_dma_proxy(&mut self, now: Nanos) {
        if self.dma_proxy.is_some() && !self.wire.is_parked() {
            self.carry(now);
        }
    }

    #[cold]
    fn carry(&mut self, now: Nanos) {
        let Some(dma_proxy) = &mut self.dma_proxy else { return };
        dma_proxy.run(now);
        let line = self.wire.line();
        while let Some(letter) = dma_proxy.letter() {
            match line.say(letter) {
                Ok(true) => dma_proxy.sent(),
                Ok(false) => break,
                Err(error) => return self.wire.park(Some(error)),
            }
        }
        drop(line);
        self.ask_at = self.vectors.ask(now).due;
    }

    /// When the DMA proxy has to run while the worker sleeps.
    fn carry_at(&self, now: Nanos) -> Option<Nanos> {
        // While the control thread has the wire, nothing can be sent. The worker is woken when it
        // gets the wire back.
        self.dma_proxy.as_ref().filter(|_| !self.wire.is_parked())?.deadline(now)
    }

    /// As `read`; false if the rest is for the control thread.
    fn carry_out(&mut self, line: &mut Line, now: Nanos) -> Result<bool, ProtocolError> {
        if !line.look()? {
            return Ok(true);
        }
        (self.access, self.access_at) = (Some(RegisterAccess::Posted), now);
        if let Some(mirror) = &mut self.mirror {
            // The driver wrote the registers in memory before it caused this message.
            mirror.forward(now);
        }
        let mut mine = true;
        while let Some(front) = line.front()? {
            let header = front.header;
            // A worker must not receive descriptors, and must not close them either.
            let access = message::access(header, front.body).filter(|_| !front.has_fds);
            let Some(access) = access else {
                mine = false;
                break;
            };
            match (access, &mut self.dma_proxy) {
                (Access::Answer(body), Some(dma_proxy)) => dma_proxy.answered(header, body)?,
                // This is a reply to a request from when there was a DMA proxy.
                (Access::Answer(_), None) => {}
                _ => self.answer(header, access, now),
            }
            if header.reply {
                self.access = Some(RegisterAccess::AwaitsReply);
            }
            line.did(header, if header.reply { &self.reply } else { &[] })?;
        }
        line.take()?;
        if let Some(mirror) = &mut self.mirror {
            mirror.follow();
        }
        self.ask_at = self.vectors.ask(now).due;
        Ok(mine)
    }

    /// Carries out an access and writes its reply. A posted write outside of the registers has no
    /// effect.
    fn answer(&mut self, header: Header, access: Access<'_>, now: Nanos) {
        self.reply.clear();
        self.reply.resize(HEADER, 0);
        self.count(header, access);
        let done = match access {
            Access::Read { region, at, count } => self.read_region(region, at, count, now),
            Access::Write { region, at, data } => self.write_region(region, at, data, now),
            Access::Multi(entries) => self.write_several(entries, now),
            Access::Unmask(on) => {
                self.pin.set_masked(!on);
                Ok(())
            }
            Access::Answer(_) => Ok(()),
        };
        message::finish_reply(&mut self.reply, header, done);
    }

    /// Carries out all valid writes. Returns an error if one is not valid.
    fn write_several(&mut self, entries: &[u8], now: Nanos) -> Result<(), Errno> {
        self.reply.extend((entries.len() as u64 / MULTI as u64).to_ne_bytes());
        let one = |entry| {
            let (region, at, data) = message::one_of_several(entry).ok_or(Errno::INVAL)?;
            self.write_to(region, at, data, now)
        };
        entries.chunks_exact(MULTI).map(one).fold(Ok(()), Result::and)
    }

    fn count(&self, header: Header, access: Access<'_>) {
        let counters = &self.counters;
        let written = if header.reply { &counters.writes } else { &counters.posted };
        match access {
            Access::Read { .. } => counters.reads.add(1),
            Access::Write { .. } => written.add(1),
            Access::Multi(entries) => written.add((entries.len() / MULTI) as u64),
            Access::Unmask(_) => counters.acknowledgements.add(1),
            Access::Answer(_) => {}
        }
    }

    /// Carries out a read, and appends it to the reply.
    fn read_region(&mut self, region: u32, at: u64, count: u32, now: Nanos) -> Result<(), Errno> {
        self.reply.extend(at.to_ne_bytes());
        self.reply.extend([region, count].map(u32::to_ne_bytes).as_flattened());
        let bytes = count as usize;
        self.check(region, at, bytes)?;
        let from = self.reply.len();
        self.reply.resize(from + bytes, 0);
        let data = &mut self.reply[from..];
        if region == CONFIG {
            self.config.read(at as usize, data, self.vectors.wants_pin(now));
        } else {
            self.device.read(region as usize, at, data, now);
        }
        Ok(())
    }

    fn write_region(&mut self, region: u32, at: u64, data: &[u8], now: Nanos) -> Result<(), Errno> {
        self.reply.extend(at.to_ne_bytes());
        self.reply.extend([region, data.len() as u32].map(u32::to_ne_bytes).as_flattened());
        self.write_to(region, at, data, now)
    }

    fn write_to(&self, region: u32, at: u64, data: &[u8], now: Nanos) -> Result<(), Errno> {
        self.check(region, at, data.len())?;
        if region != CONFIG {
            self.device.write(region as usize, at, data, now);
        } else if let Some(on) = self.config.write(at as usize, data).bus_master {
            self.device.set_bus_master(on);
        }
        Ok(())
    }

    /// Checks that an access is within its region; an access to registers must have a register's
    /// width.
    fn check(&self, region: u32, at: u64, count: usize) -> Result<(), Errno> {
        let end = at.checked_add(count as u64).ok_or(Errno::INVAL)?;
        let inside = count > 0 && end <= region_size(&self.identity, region);
        let good = region == CONFIG || matches!(count, 1 | 2 | 4 | 8);
        if inside && good { Ok(()) } else { Err(Errno::INVAL) }
    }
}
