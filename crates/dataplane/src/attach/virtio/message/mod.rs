//! Messages of the vhost-user protocol (QEMU, `docs/interop/vhost-user.rst`), from the front end's
//! bytes and descriptors to checked requests, and our replies to bytes.
//!
//! ```text
//!   code u32 | flags u32 | size u32 | payload (size bytes)        all in the machine's byte order
//! ```
//!
//! The front end is not trusted. The session ends if a message has a size or a number of
//! descriptors that its kind does not allow, or if its kind was never offered. Descriptors of a
//! refused message are closed.

mod receive;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

pub use abi::vhost_user::{HEADER, code};
use abi::vhost_user::{NEED_REPLY, REPLY, VERSION, VERSION_MASK};
use frame::Mac;
use jail::strangers::{Descriptor, TooMany};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};

pub use self::receive::Receiver;
use crate::attach::guest::memory::Region;

/// The size in bytes of the longest payload of any known request.
pub const MAX_PAYLOAD: usize = 12 + CONFIG_SPACE;
/// The size in bytes of the configuration space (`VHOST_USER_MAX_CONFIG_SIZE`).
pub const CONFIG_SPACE: usize = 256;
/// The maximum number of regions of one memory table (`VHOST_MEMORY_BASELINE_NREGIONS`), and of
/// descriptors with a message.
pub const MAX_REGIONS: usize = 8;

/// In the payload of messages that carry a ring's eventfd: no descriptor comes with it.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// The reason why a session cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The front end has gone.
    #[error("The front end closed its socket")]
    Closed,
    /// Too many of its descriptors wait to be closed.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// The socket failed.
    #[error("The front end's socket failed")]
    Io(#[from] Errno),
    /// The flags name another version, or mark a reply where a request belongs.
    #[error("Header flags {0:#x} are not those of a request of version 1")]
    Flags(u32),
    /// The size does not fit this kind of request.
    #[error("Request {code} with {size} bytes: not its size")]
    Size {
        /// The request.
        code: u32,
        /// Its bytes.
        size: usize,
    },
    /// The number of descriptors does not fit this kind of request.
    #[error("Request {code} with {got} descriptors: not as many as it has")]
    Descriptors {
        /// The request.
        code: u32,
        /// Its descriptors.
        got: usize,
    },
    /// A kind of request that was not offered to the front end.
    #[error("Request {0} is of a protocol feature that is not offered")]
    Unknown(u32),
    /// A queue beyond the last one.
    #[error("Queue {0} is beyond the port's queues")]
    Queue(u32),
    /// A request was refused, and the front end did not ask for an acknowledgement.
    #[error("What the front end asked for was refused")]
    Refused,
    /// The front end sends messages without reading the replies.
    #[error("The front end does not read its replies")]
    Unread,
}

/// The addresses of a ring's parts, in the front end's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingAddress {
    /// Descriptors (packed: the ring itself).
    pub descriptors: u64,
    /// Used ring (packed: the device's event suppression).
    pub used: u64,
    /// Available ring (packed: the driver's event suppression).
    pub available: u64,
    /// Where the used ring lies in the guest's memory, if writes to it are to be logged.
    pub log: Option<u64>,
}

/// The areas that record buffers in flight, one for each queue, back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InflightAreas {
    /// The number of bytes of all areas together.
    pub size: u64,
    /// Where the areas start in the memory file.
    pub offset: u64,
    /// How many queues have an area.
    pub queues: u16,
    /// Entries of each queue.
    pub queue_size: u16,
}

impl InflightAreas {
    /// Encodes the areas as they are in messages.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let sizes = [self.queues, self.queue_size, 0, 0].map(u16::to_ne_bytes).concat();
        [&self.size.to_ne_bytes()[..], &self.offset.to_ne_bytes(), &sizes].concat()
    }
}

/// A request, checked for form.
#[derive(Debug)]
#[allow(missing_docs, reason = "names of the specification")]
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemoryTable(Vec<(Region, Descriptor)>),
    GetMaxMemorySlots,
    AddMemoryRegion(Region, Descriptor),
    RemoveMemoryRegion(Region),
    SetLogBase { size: u64, offset: u64, file: Descriptor },
    SetLogFd,
    SetRingSize { queue: u32, size: u32 },
    SetRingAddress { queue: u32, address: RingAddress },
    SetRingBase { queue: u32, base: u32 },
    GetRingBase { queue: u32 },
    SetRingKick { queue: u32, fd: Option<Descriptor> },
    SetRingCall { queue: u32, fd: Option<Descriptor> },
    SetRingError { queue: u32, fd: Option<Descriptor> },
    SetRingEnable { queue: u32, on: bool },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNumber,
    SendRarp(Mac),
    SetMtu(u64),
    SetBackendChannel(Descriptor),
    GetConfig { offset: u32, size: u32, flags: u32 },
    SetConfig { offset: u32, size: u32 },
    GetInflight(InflightAreas),
    SetInflight(InflightAreas, Descriptor),
    ResetDevice,
    SetStatus(u64),
    GetStatus,
}

/// A request as it was received.
#[derive(Debug)]
pub struct Message {
    /// Its number.
    pub code: u32,
    /// The front end waits for an acknowledgement, if that was negotiated.
    pub need_reply: bool,
    /// The request in the message.
    pub request: Request,
}

/// Reads the fields of a payload in order. Reads beyond the end give zeros, but the check of the
/// size has ruled them out before.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        if let Some((first, rest)) = self.0.split_first_chunk() {
            (bytes, self.0) = (*first, rest);
        }
        bytes
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn region(&mut self) -> Region {
        let (guest, size) = (self.u64(), self.u64());
        Region { guest, size, user: self.u64(), offset: self.u64() }
    }
}

/// Validates a request and decodes it.
///
/// # Errors
/// [`ProtocolError`] when its form does not fit its kind.
pub fn decode(
    code: u32,
    flags: u32,
    payload: &[u8],
    fds: Vec<Descriptor>,
) -> Result<Message, ProtocolError> {
    if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
        return Err(ProtocolError::Flags(flags));
    }
    let need_reply = flags & NEED_REPLY != 0;
    let request = Parts { code, payload, fds }.request()?;
    Ok(Message { code, need_reply, request })
}

struct Parts<'a> {
    code: u32,
    payload: &'a [u8],
    fds: Vec<Descriptor>,
}

impl<'a> Parts<'a> {
    fn request(mut self) -> Result<Request, ProtocolError> {
        use Request as R;
        Ok(match self.code {
            code::GET_FEATURES => self.plain(R::GetFeatures)?,
            code::SET_FEATURES => R::SetFeatures(self.number()?),
            code::SET_OWNER => self.plain(R::SetOwner)?,
            code::RESET_OWNER => self.plain(R::ResetOwner)?,
            code::SET_MEM_TABLE => self.memory_table()?,
            code::GET_MAX_MEM_SLOTS => self.plain(R::GetMaxMemorySlots)?,
            code::ADD_MEM_REG => {
                let mut fields = self.sized(40)?;
                let (_padding, region) = (fields.u64(), fields.region());
                R::AddMemoryRegion(region, self.one()?)
            }
            code::REM_MEM_REG => {
                let mut fields = self.sized(40)?;
                let (_padding, region) = (fields.u64(), fields.region());
                // Some front ends send the region's file again.
                self.at_most_one()?;
                R::RemoveMemoryRegion(region)
            }
            code::SET_LOG_BASE => {
                let mut fields = self.sized(16)?;
                let (size, offset) = (fields.u64(), fields.u64());
                R::SetLogBase { size, offset, file: self.one()? }
            }
            code::SET_LOG_FD => {
                // Some front ends count the unused payload.
                if !matches!(self.payload.len(), 0 | 8) {
                    return Err(self.wrong_size());
                }
                self.at_most_one()?;
                R::SetLogFd
            }
            code::SET_VRING_ENABLE => {
                let (queue, on) = self.ring_number()?;
                R::SetRingEnable { queue, on: on != 0 }
            }
            code::SET_VRING_NUM => {
                let (queue, size) = self.ring_number()?;
                R::SetRingSize { queue, size }
            }
            code::SET_VRING_BASE => {
                let (queue, base) = self.ring_number()?;
                R::SetRingBase { queue, base }
            }
            code::GET_VRING_BASE => R::GetRingBase { queue: self.ring_number()?.0 },
            code::SET_VRING_ADDR => self.ring_address()?,
            code::SET_VRING_KICK => {
                let (queue, fd) = self.ring_descriptor()?;
                R::SetRingKick { queue, fd }
            }
            code::SET_VRING_CALL => {
                let (queue, fd) = self.ring_descriptor()?;
                R::SetRingCall { queue, fd }
            }
            code::SET_VRING_ERR => {
                let (queue, fd) = self.ring_descriptor()?;
                R::SetRingError { queue, fd }
            }
            code::GET_PROTOCOL_FEATURES => self.plain(R::GetProtocolFeatures)?,
            code::SET_PROTOCOL_FEATURES => R::SetProtocolFeatures(self.number()?),
            code::GET_QUEUE_NUM => self.plain(R::GetQueueNumber)?,
            code::SEND_RARP => {
                let [a, b, c, d, e, f, ..] = self.number()?.to_ne_bytes();
                R::SendRarp(Mac::new([a, b, c, d, e, f]))
            }
            code::NET_SET_MTU => R::SetMtu(self.number()?),
            code::SET_BACKEND_REQ_FD => {
                self.sized(0)?;
                R::SetBackendChannel(self.one()?)
            }
            code::GET_CONFIG => {
                let (offset, size, flags) = self.config()?;
                R::GetConfig { offset, size, flags }
            }
            code::SET_CONFIG => {
                let (offset, size, _flags) = self.config()?;
                R::SetConfig { offset, size }
            }
            code::GET_INFLIGHT_FD => {
                self.none()?;
                R::GetInflight(self.inflight_areas()?)
            }
            code::SET_INFLIGHT_FD => {
                let areas = self.inflight_areas()?;
                R::SetInflight(areas, self.one()?)
            }
            code::RESET_DEVICE => self.plain(R::ResetDevice)?,
            code::SET_STATUS => R::SetStatus(self.number()?),
            code::GET_STATUS => self.plain(R::GetStatus)?,
            unknown => return Err(ProtocolError::Unknown(unknown)),
        })
    }

    fn wrong_size(&self) -> ProtocolError {
        ProtocolError::Size { code: self.code, size: self.payload.len() }
    }

    fn wrong_descriptors(&self) -> ProtocolError {
        ProtocolError::Descriptors { code: self.code, got: self.fds.len() }
    }

    fn sized(&self, size: usize) -> Result<Fields<'a>, ProtocolError> {
        if self.payload.len() == size { Ok(Fields(self.payload)) } else { Err(self.wrong_size()) }
    }

    fn none(&self) -> Result<(), ProtocolError> {
        if self.fds.is_empty() { Ok(()) } else { Err(self.wrong_descriptors()) }
    }

    fn at_most_one(&self) -> Result<(), ProtocolError> {
        if self.fds.len() <= 1 { Ok(()) } else { Err(self.wrong_descriptors()) }
    }

    fn one(&mut self) -> Result<Descriptor, ProtocolError> {
        let wrong = self.wrong_descriptors();
        let only = self.fds.pop();
        only.filter(|_| self.fds.is_empty()).ok_or(wrong)
    }

    fn plain(&self, request: Request) -> Result<Request, ProtocolError> {
        self.sized(0)?;
        self.none().map(|()| request)
    }

    fn number(&self) -> Result<u64, ProtocolError> {
        self.none()?;
        Ok(self.sized(8)?.u64())
    }

    fn ring_number(&self) -> Result<(u32, u32), ProtocolError> {
        self.none()?;
        let mut fields = self.sized(8)?;
        Ok((fields.u32(), fields.u32()))
    }

    fn ring_address(&self) -> Result<Request, ProtocolError> {
        self.none()?;
        let mut fields = self.sized(40)?;
        let (queue, flags) = (fields.u32(), fields.u32());
        let (descriptors, used, available) = (fields.u64(), fields.u64(), fields.u64());
        let log = Some(fields.u64()).filter(|_| flags & 1 != 0);
        let address = RingAddress { descriptors, used, available, log };
        Ok(Request::SetRingAddress { queue, address })
    }

    fn ring_descriptor(&mut self) -> Result<(u32, Option<Descriptor>), ProtocolError> {
        let word = self.sized(8)?.u64();
        let fd = if word & NO_DESCRIPTOR == 0 {
            Some(self.one()?)
        } else {
            self.none()?;
            None
        };
        Ok((word as u32 & 0xff, fd))
    }

    fn memory_table(mut self) -> Result<Request, ProtocolError> {
        let mut fields = Fields(self.payload);
        let (regions, _padding) = (fields.u32() as usize, fields.u32());
        let exact = 8 + regions.min(MAX_REGIONS + 1) * 32;
        // Some front ends send the whole table, however many entries are in use.
        let sizes = [exact, 8 + MAX_REGIONS * 32];
        if regions > MAX_REGIONS || !sizes.contains(&self.payload.len()) {
            return Err(self.wrong_size());
        }
        if self.fds.len() != regions {
            return Err(self.wrong_descriptors());
        }
        let files = std::mem::take(&mut self.fds).into_iter();
        Ok(Request::SetMemoryTable(files.map(|file| (fields.region(), file)).collect()))
    }

    fn inflight_areas(&self) -> Result<InflightAreas, ProtocolError> {
        // Some front ends count the padding that their compilers add.
        if !matches!(self.payload.len(), 20 | 24) {
            return Err(self.wrong_size());
        }
        let mut fields = Fields(self.payload);
        let (size, offset) = (fields.u64(), fields.u64());
        Ok(InflightAreas { size, offset, queues: fields.u16(), queue_size: fields.u16() })
    }

    fn config(&self) -> Result<(u32, u32, u32), ProtocolError> {
        self.none()?;
        let mut fields = Fields(self.payload);
        let (offset, size, flags) = (fields.u32(), fields.u32(), fields.u32());
        // Front ends send the request with as many bytes as the reply will have.
        let fits = size as usize <= CONFIG_SPACE && self.payload.len() == 12 + size as usize;
        if fits { Ok((offset, size, flags)) } else { Err(self.wrong_size()) }
    }
}

/// A reply to request `code` with this payload.
#[must_use]
pub fn reply(code: u32, payload: &[u8]) -> Vec<u8> {
    packet(code, VERSION | REPLY, payload)
}

/// A request from us that the front end need not answer.
#[must_use]
pub fn notification(code: u32) -> Vec<u8> {
    packet(code, VERSION, &[])
}

fn packet(code: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let header = [code, flags, payload.len() as u32];
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(payload);
    bytes
}

/// Sends a request as a front end does: for tests and fuzzing.
///
/// # Errors
/// The kernel's error.
pub fn send(
    socket: impl AsFd,
    code: u32,
    need_reply: bool,
    payload: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let flags = VERSION | if need_reply { NEED_REPLY } else { 0 };
    send_with(&socket, &packet(code, flags, payload), fds, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Sends as many bytes as the socket has room for, with descriptors. Never waits; returns the
/// number of bytes sent.
pub(super) fn send_bytes(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    send_with(socket, bytes, fds, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * MAX_REGIONS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut control, flags)
}

#[cfg(test)]
mod tests;
