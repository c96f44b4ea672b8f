//! A client of vfio-user, for tests, benchmarks and drivers in their own processes. It does what a
//! front end does, without a virtual machine.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::vfio_user::{
    DeviceState, Fields, HEADER, MAX_MESSAGE, MAX_TRANSFER, command, feature, flag, flags, irq,
    longs, version, words, write_header,
};
use driver::Regs;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde_json::json;
use shmem::sync::AtomicU32;
use shmem::{Mapping, Shared};

/// How long to wait for a reply: as long as QEMU waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// No command is waiting for a reply.
const NONE: u16 = 0;

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket failed, or no reply came in time.
    #[error("The vfio-user server does not answer")]
    Io(#[from] std::io::Error),
    /// The device refused the request.
    #[error("The vfio-user server refused")]
    Refused(#[source] Errno),
    /// The reply does not match the request.
    #[error("The vfio-user server's reply is malformed")]
    Malformed,
}

/// A region's memory, and those parts of it that hold registers: offset and bytes.
pub type MappedRegion = (Arc<Mapping>, Vec<(u64, u64)>);

/// A connection to a device.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    id: u16,
    buffer: Vec<u8>,
    /// File descriptors of the last reply.
    fds: Vec<OwnedFd>,
    /// Memory without a file, with its device address. The device accesses it by messages.
    memory: Vec<(u64, Arc<Mapping>)>,
    /// True to answer the device's requests to read or write memory.
    pub answers: bool,
    /// How many accesses were made. In a virtual machine, each would be a trap.
    pub traps: Traps,
    /// The first error of accesses whose callers get no result.
    failed: Option<ClientError>,
}

/// Register accesses, by their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traps {
    /// Accesses that wait for an answer.
    pub synchronous: u64,
    /// Writes without a reply.
    pub posted: u64,
}

impl Client {
    /// Connects, and negotiates the version.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::on(UnixStream::connect(path)?)
    }

    /// Like [`connect`](Self::connect), on a connected socket.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn on(socket: UnixStream) -> Result<Self, ClientError> {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut client = Self {
            socket,
            id: 0,
            buffer: Vec::new(),
            fds: Vec::new(),
            memory: Vec::new(),
            answers: true,
            traps: Traps::default(),
            failed: None,
        };
        let capabilities = json!({ "max_msg_fds": 16, "write_multiple": true, "migration": {} });
        client.ask(command::VERSION, &version(&capabilities.to_string()), &[])?;
        Ok(client)
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn say(
        &mut self,
        command: u16,
        posted: bool,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        self.id = self.id.wrapping_add(1);
        self.buffer.clear();
        let flags = if posted { flags::NO_REPLY } else { 0 };
        write_header(&mut self.buffer, self.id, command, body.len(), flags);
        self.buffer.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let parts = [IoSlice::new(&self.buffer)];
        let sent = rustix::net::sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL);
        match sent.map_err(std::io::Error::from)? {
            sent if sent == self.buffer.len() => Ok(()),
            _ => Err(ClientError::Malformed),
        }
    }

    /// Waits for the reply to the last message. Returns its body.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn reply(&mut self, command: u16) -> Result<Vec<u8>, ClientError> {
        loop {
            if let Some(reply) = self.next_reply(command)? {
                return Ok(reply);
            }
        }
    }

    /// As `reply`, but returns `None` for a message that is no reply, and for a repeat of an
    /// earlier reply. A server repeats a reply when it does not know whether its predecessor had
    /// sent it.
    fn next_reply(&mut self, command: u16) -> Result<Option<Vec<u8>>, ClientError> {
        let header = self.header()?;
        let mut fields = Fields(&header);
        let (id, of, size) = (fields.u16(), fields.u16(), fields.u32() as usize);
        let (flags, error) = (fields.u32(), fields.u32());
        if flags & flags::REPLY == 0 {
            return self.answer(id, of, size).map(|()| None);
        }
        let again = size == HEADER && flags & flags::ERROR != 0;
        let again = again && (id != self.id || command == NONE);
        if again && self.id.wrapping_sub(id) < 1 << 12 {
            return Ok(None);
        }
        if id != self.id || of != command || flags & flags::REPLY == 0 {
            return Err(ClientError::Malformed);
        }
        let body = size.checked_sub(HEADER).filter(|_| size <= MAX_MESSAGE);
        let mut body = vec![0; body.ok_or(ClientError::Malformed)?];
        self.socket.read_exact(&mut body)?;
        match flags & flags::ERROR {
            0 => Ok(Some(body)),
            _ => Err(ClientError::Refused(Errno::from_raw_os_error(error as i32))),
        }
    }

    /// Answers a request of the device for memory without a file, if there is one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn serve(&mut self) -> Result<(), ClientError> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        while rustix::net::recv(&self.socket, &mut [0; 1][..], flags) != Err(Errno::AGAIN) {
            if self.next_reply(NONE)?.is_some() {
                return Err(ClientError::Malformed);
            }
        }
        Ok(())
    }

    /// Answers a message from the device that reads or writes memory.
    fn answer(&mut self, id: u16, command: u16, size: usize) -> Result<(), ClientError> {
        let mut body = vec![0; size.checked_sub(HEADER).ok_or(ClientError::Malformed)?];
        self.socket.read_exact(&mut body)?;
        let (mut fields, from) = (Fields(&body), 16.min(body.len()));
        let (at, len) = (fields.u64(), fields.u64() as usize);
        let inside = |(base, mapping): &(u64, Arc<Mapping>)| {
            let offset = usize::try_from(at.checked_sub(*base)?).ok()?;
            mapping.bytes(offset, len).map(|_| (Arc::clone(mapping), offset))
        };
        let found = self.memory.iter().find_map(inside).ok_or(ClientError::Malformed)?;
        let window = found.0.bytes(found.1, len).ok_or(ClientError::Malformed)?;
        match command {
            command::DMA_READ => body.extend(window.to_vec()),
            command::DMA_WRITE if body.len() == from + len => {
                window.copy_in(&body[from..]);
                body.clear();
            }
            _ => return Err(ClientError::Malformed),
        }
        if self.answers {
            let mut reply = Vec::new();
            write_header(&mut reply, id, command, body.len(), flags::REPLY);
            reply.extend(body);
            std::io::Write::write_all(&mut &self.socket, &reply)?;
        }
        Ok(())
    }

    /// Reads a header, and the file descriptors that came with it.
    fn header(&mut self) -> Result<[u8; HEADER], ClientError> {
        let mut header = [0; HEADER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(&mut header)];
        let got = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags);
        let got = got.map_err(std::io::Error::from)?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds = fds.collect();
            }
        }
        if got == 0 {
            return Err(ClientError::Io(std::io::ErrorKind::UnexpectedEof.into()));
        }
        self.socket.read_exact(&mut header[got..])?;
        Ok(header)
    }

    /// Maps the parts of a region that can be mapped; `None` if there are none.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn map_region(&mut self, region: u32) -> Result<Option<MappedRegion>, ClientError> {
        let body = words(&[1024, 0, region, 0, 0, 0, 0, 0]);
        let info = self.ask(command::DEVICE_GET_REGION_INFO, &body, &[])?;
        let Some(file) = self.fds.pop() else { return Ok(None) };
        let mut head = Fields(&info);
        let (_argsz, flags, _index, at) = (head.u32(), head.u32(), head.u32(), head.u32());
        let (size, _offset) = (head.u64(), head.u64());
        let mut caps = Fields(info.get(at as usize..).unwrap_or_default());
        let (sparse, _next, count, _) = (caps.u32(), caps.u32(), caps.u32(), caps.u32());
        if flags & 0b1100 != 0b1100 || sparse != 0x1_0001 || count > 64 {
            return Err(ClientError::Malformed);
        }
        let areas = (0..count).map(|_| (caps.u64(), caps.u64())).collect();
        let mapping = Mapping::unsealed(file.as_fd(), size as usize);
        Ok(Some((mapping.map_err(|_| ClientError::Malformed)?, areas)))
    }

    /// Sends a message and waits for its reply.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn ask(
        &mut self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, ClientError> {
        self.say(command, false, body, fds)?;
        self.reply(command)
    }

    /// Maps `size` bytes of `file`, from `offset` on, for the device at guest-physical `address`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dma_map(
        &mut self,
        file: Option<BorrowedFd<'_>>,
        offset: u64,
        address: u64,
        size: u64,
        writable: bool,
    ) -> Result<(), ClientError> {
        let flags: u32 = if writable { 3 } else { 1 };
        let body = [&words(&[32, flags])[..], &longs(&[offset, address, size])].concat();
        let fds: Vec<_> = file.into_iter().collect();
        self.ask(command::DMA_MAP, &body, &fds).map(drop)
    }

    /// Shares a mapping without a file with the device, at `address`. The device accesses it by
    /// messages.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dma_map_own(&mut self, memory: &Arc<Mapping>, address: u64) -> Result<(), ClientError> {
        self.memory.push((address, Arc::clone(memory)));
        self.dma_map(None, 0, address, memory.len() as u64, true)
    }

    /// Unmaps memory: after the reply, the device does not touch it any more.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dma_unmap(&mut self, address: u64, size: u64) -> Result<(), ClientError> {
        self.memory.retain(|(at, _)| !(address..address.saturating_add(size)).contains(at));
        let body = [&words(&[24, 0])[..], &longs(&[address, size])].concat();
        self.ask(command::DMA_UNMAP, &body, &[]).map(drop)
    }

    /// Signals interrupts of a kind (0: pin, 1: MSI, 2: MSI-X) through these eventfds. No eventfds
    /// disable them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set_irqs(&mut self, kind: u32, eventfds: &[&OwnedFd]) -> Result<(), ClientError> {
        let data = if eventfds.is_empty() { irq::DATA_NONE } else { irq::DATA_EVENTFD };
        let body = words(&[20, data | irq::TRIGGER, kind, 0, eventfds.len() as u32]);
        let fds: Vec<_> = eventfds.iter().map(|fd| fd.as_fd()).collect();
        self.ask(command::DEVICE_SET_IRQS, &body, &fds).map(drop)
    }

    /// Unmasks the pin's interrupt after handling it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn unmask(&mut self) -> Result<(), ClientError> {
        self.traps.synchronous += 1;
        let body = words(&[20, irq::DATA_NONE | irq::UNMASK, 0, 0, 1]);
        self.ask(command::DEVICE_SET_IRQS, &body, &[]).map(drop)
    }

    /// Resets the device.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.ask(command::DEVICE_RESET, &[], &[]).map(drop)
    }

    /// The device's migration state.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn device_state(&mut self) -> Result<u32, ClientError> {
        let answer = self.ask(
            command::DEVICE_FEATURE,
            &words(&[16, flag::GET | feature::DEVICE_STATE]),
            &[],
        )?;
        Ok(Fields(answer.get(8..).unwrap_or_default()).u32())
    }

    /// Changes the device's migration state.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set_device_state(&mut self, state: DeviceState) -> Result<(), ClientError> {
        let body = words(&[16, flag::SET | feature::DEVICE_STATE, state as u32, 0]);
        self.ask(command::DEVICE_FEATURE, &body, &[]).map(drop)
    }

    /// Stops the device, and reads its state.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn save(&mut self) -> Result<Vec<u8>, ClientError> {
        self.set_device_state(DeviceState::StopCopy)?;
        let mut state = Vec::new();
        loop {
            let body = words(&[8 + MAX_TRANSFER, MAX_TRANSFER]);
            let answer = self.ask(command::MIG_DATA_READ, &body, &[])?;
            let data = answer.get(8..).ok_or(ClientError::Malformed)?;
            state.extend(data);
            if data.len() < MAX_TRANSFER as usize {
                return Ok(state);
            }
        }
    }

    /// Stops the device and loads a state that was [saved](Self::save). The device resumes from it
    /// once it runs.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn load(&mut self, state: &[u8]) -> Result<(), ClientError> {
        self.set_device_state(DeviceState::Resuming)?;
        for part in state.chunks(MAX_TRANSFER as usize) {
            let size = part.len() as u32;
            let body = [&words(&[8 + size, size])[..], part].concat();
            self.ask(command::MIG_DATA_WRITE, &body, &[])?;
        }
        self.set_device_state(DeviceState::Stop)
    }

    /// The size of a region in bytes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn region_size(&mut self, region: u32) -> Result<u64, ClientError> {
        let body = words(&[32, 0, region, 0, 0, 0, 0, 0]);
        let info = self.ask(command::DEVICE_GET_REGION_INFO, &body, &[])?;
        Ok(Fields(info.get(16..).unwrap_or_default()).u64())
    }

    /// Reads `data.len()` bytes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read(&mut self, region: u32, at: u64, data: &mut [u8]) -> Result<(), ClientError> {
        self.traps.synchronous += 1;
        let body = access(region, at, data.len());
        let reply = self.ask(command::REGION_READ, &body, &[])?;
        let read = reply.get(body.len()..).filter(|read| read.len() == data.len());
        data.copy_from_slice(read.ok_or(ClientError::Malformed)?);
        Ok(())
    }

    /// Writes. Waits for the reply unless the write is `posted`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn write(
        &mut self,
        region: u32,
        at: u64,
        data: &[u8],
        posted: bool,
    ) -> Result<(), ClientError> {
        let mut body = [0; 24];
        let len = 16 + data.len();
        let Some(body) = body.get_mut(..len) else { return Err(ClientError::Malformed) };
        body[..16].copy_from_slice(&access(region, at, data.len()));
        body[16..].copy_from_slice(data);
        if posted {
            self.traps.posted += 1;
            return self.say(command::REGION_WRITE, true, body, &[]);
        }
        self.traps.synchronous += 1;
        self.ask(command::REGION_WRITE, body, &[]).map(drop)
    }

    /// The first error of accesses through [`Regs`] since the last call.
    pub fn take_failure(&mut self) -> Option<ClientError> {
        self.failed.take()
    }

    fn note(&mut self, done: Result<(), ClientError>) {
        if let Err(error) = done {
            self.failed.get_or_insert(error);
        }
    }
}

/// A driver's register accesses. Writes to memory are posted, those to ports are not, as in QEMU. A
/// read that fails gives all ones.
#[derive(Debug)]
pub struct Registers {
    /// The connection.
    pub client: Client,
    /// Base address registers with I/O ports, a bit each.
    ports: u32,
    /// The memory for registers of base address register 0, if it is shared.
    shared: Option<MappedRegion>,
}

impl Registers {
    /// Accesses over a connection, to a device that is then allowed to use memory.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(mut client: Client) -> Result<Self, ClientError> {
        const CONFIG: u32 = 7;
        /// Enables ports, memory and bus mastering.
        const COMMAND: (u64, [u8; 2]) = (4, [7, 0]);
        let mut bars = [0; 24];
        client.read(CONFIG, 0x10, &mut bars)?;
        client.write(CONFIG, COMMAND.0, &COMMAND.1, false)?;
        client.traps = Traps::default();
        let is_port = |(bar, bytes): (usize, &[u8])| u32::from(bytes[0] & 1) << bar;
        let ports = bars.chunks(4).enumerate().map(is_port).sum();
        Ok(Self { client, ports, shared: None })
    }

    /// Writes registers through shared memory where the device allows it. Returns false if the
    /// device has no such memory.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn share(&mut self) -> Result<bool, ClientError> {
        self.shared = self.client.map_region(0)?;
        Ok(self.shared.is_some())
    }

    /// The register, if it lies in shared memory.
    fn word(&self, bar: usize, at: u64) -> Option<Shared<AtomicU32>> {
        let (mapping, areas) = self.shared.as_ref().filter(|_| bar == 0)?;
        let inside = |(from, size): &(u64, u64)| at >= *from && at < from + size;
        mapping.shared(at as usize).filter(|_| areas.iter().any(inside))
    }

    fn read<const N: usize>(&mut self, bar: usize, at: u64) -> [u8; N] {
        let mut data = [0xff; N];
        let done = self.client.read(bar as u32, at, &mut data);
        self.client.note(done);
        data
    }

    fn write(&mut self, bar: usize, at: u64, data: &[u8]) {
        let posted = self.ports >> bar & 1 == 0;
        let done = self.client.write(bar as u32, at, data, posted);
        self.client.note(done);
    }
}

impl Regs for Registers {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        if let Some(word) = self.word(bar, at) {
            return word.load(Ordering::Acquire);
        }
        u32::from_le_bytes(self.read(bar, at))
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        if let Some(word) = self.word(bar, at) {
            return word.store(value, Ordering::Release);
        }
        self.write(bar, at, &value.to_le_bytes());
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        u16::from_le_bytes(self.read(bar, at))
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        self.write(bar, at, &value.to_le_bytes());
    }
}

fn access(region: u32, at: u64, count: usize) -> [u8; 16] {
    let mut body = [0; 16];
    body[..8].copy_from_slice(&at.to_ne_bytes());
    body[8..12].copy_from_slice(&region.to_ne_bytes());
    body[12..].copy_from_slice(&(count as u32).to_ne_bytes());
    body
}
