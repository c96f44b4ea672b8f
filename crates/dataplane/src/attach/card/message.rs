//! vfio-user messages: their bytes, validated.
//!
//! ```text
//!   id u16 | command u16 | size u32, of all of it | flags u32 | error u32 | body ...
//! ```
//!
//! All fields are in the byte order of the machine. If the header says where the next message
//! begins, the message is answered: with an error number if its body does not fit its command.
//! Otherwise the session ends.

pub use abi::vfio_user::{
    Fields, HEADER, MAX_MESSAGE, command, flags, irq, longs, words, write_header,
};
use jail::strangers::TooMany;
use rustix::io::Errno;
use serde_json::Value;

/// The maximum number of descriptors with a message. Front ends are told 16, because QEMU refuses a
/// larger number.
pub const MAX_FDS: usize = 32;
/// The maximum number of bytes in a read of configuration space.
pub const MAX_READ: usize = nic::pci::EXTENDED_SIZE;
/// Bytes of one write in a message of several writes.
pub const MULTI: usize = 24;

/// The reason why a session ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The front end hung up.
    #[error("The front end hung up")]
    Closed,
    /// A reply that does not match its request.
    #[error("A reply to command {0} is not one to what was asked")]
    Answer(u16),
    /// Too many of the front end's descriptors wait to be closed.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// The socket failed.
    #[error("The socket failed")]
    Io(#[from] Errno),
    /// A size that the message cannot have.
    #[error("A message of command {command} cannot have {size} bytes")]
    Size {
        /// Its command.
        command: u16,
        /// The size in the message's header.
        size: usize,
    },
    /// Descriptors came with a message that has none.
    #[error("A message of command {command} came with {got} descriptors")]
    Descriptors {
        /// Its command.
        command: u16,
        /// How many descriptors came.
        got: usize,
    },
    /// A message with descriptors came in pieces.
    #[error("A message with descriptors came in pieces")]
    Pieces,
    /// The front end does not read our replies.
    #[error("The front end does not read what it is answered")]
    Unread,
    /// The worker failed to serve its part of the session.
    #[error("The device model failed")]
    Failed,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of the message; its reply has the same.
    pub id: u16,
    /// The command.
    pub command: u16,
    /// Bytes of the message.
    pub size: usize,
    /// The sender wants a reply.
    pub reply: bool,
    /// Set for a reply to a request of ours: whether it succeeded.
    pub answers: Option<bool>,
    /// False for flags that no command has, as of a reply that was not asked for. Such a message
    /// is answered with an error.
    pub is_known: bool,
}

/// The flags of a reply that reports an error.
const FAILED: u32 = flags::REPLY | flags::ERROR;

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    /// [`ProtocolError`] when it does not say where the next message begins.
    pub fn of(bytes: &[u8; HEADER]) -> Result<Self, ProtocolError> {
        let mut fields = Fields(bytes);
        let (id, command) = (fields.u16(), fields.u16());
        let (size, flags) = (fields.u32() as usize, fields.u32());
        if !(HEADER..=MAX_MESSAGE).contains(&size) {
            return Err(ProtocolError::Size { command, size });
        }
        let (reply, answers) = match flags {
            0 => (true, None),
            flags::NO_REPLY => (false, None),
            flags::REPLY | FAILED if matches!(command, command::DMA_READ | command::DMA_WRITE) => {
                (false, Some(flags != FAILED))
            }
            other => (other & flags::NO_REPLY == 0, None),
        };
        let is_known = answers.is_some() || flags & !flags::NO_REPLY == 0;
        Ok(Self { id, command, size, reply, answers, is_known })
    }
}

/// A message that a worker carries out at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access<'a> {
    /// A read of this many bytes.
    Read {
        /// The region.
        region: u32,
        /// The offset in the region.
        at: u64,
        /// Bytes.
        count: u32,
    },
    /// A write.
    Write {
        /// The region.
        region: u32,
        /// The offset in the region.
        at: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Several writes in one message, [`MULTI`] bytes for each.
    Multi(&'a [u8]),
    /// Unmasks the pin's interrupt, or masks it.
    Unmask(bool),
    /// A reply to a request of ours.
    Answer(&'a [u8]),
}

/// Region, offset and bytes of one write of an [`Access::Multi`]; `None` if it claims more bytes
/// than its entry has.
#[must_use]
pub fn one_of_several(entry: &[u8]) -> Option<(u32, u64, &[u8])> {
    let mut fields = Fields(entry);
    let (at, region, count) = (fields.u64(), fields.u32(), fields.u32() as usize);
    Some((region, at, fields.0.get(..count)?))
}

/// Decodes an access for a worker. `None` if the message is for the control thread, which also
/// answers malformed ones.
#[must_use]
pub fn access(header: Header, body: &[u8]) -> Option<Access<'_>> {
    let mut fields = Fields(body);
    Some(match header.command {
        _ if !header.is_known => return None,
        _ if header.answers.is_some() => Access::Answer(body),
        command::REGION_READ if body.len() == 16 => {
            let (at, region, count) = (fields.u64(), fields.u32(), fields.u32());
            Access::Read { region, at, count }
        }
        command::REGION_WRITE if body.len() > 16 => {
            let (at, region, count) = (fields.u64(), fields.u32(), fields.u32());
            let data = Some(fields.0).filter(|data| data.len() == count as usize)?;
            Access::Write { region, at, data }
        }
        command::REGION_WRITE_MULTI if body.len() > 8 => {
            let bytes = usize::try_from(fields.u64().saturating_mul(MULTI as u64));
            Access::Multi(Some(fields.0).filter(|entries| bytes == Ok(entries.len()))?)
        }
        command::DEVICE_SET_IRQS if body.len() == 20 => {
            let (argsz, action, index) = (fields.u32(), fields.u32(), fields.u32());
            match (action, index, fields.u32(), fields.u32()) {
                _ if argsz < 20 => return None,
                (UNMASK, 0, 0, 1) => Access::Unmask(true),
                (MASK, 0, 0, 1) => Access::Unmask(false),
                _ => return None,
            }
        }
        _ => return None,
    })
}

const UNMASK: u32 = irq::DATA_NONE | irq::UNMASK;
const MASK: u32 = irq::DATA_NONE | irq::MASK;

/// A message for the control thread.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// The versions and capabilities that the front end supports.
    Version {
        /// The protocol's version.
        major: u16,
        /// The maximum number of bytes of a message's data that the front end accepts or sends.
        transfer: u64,
        /// The front end supports migration.
        migration: bool,
    },
    /// A range of the guest's memory.
    DmaMap {
        /// Whether the device may read it (1) and write it (2).
        flags: u32,
        /// Where the range starts in the memory file.
        offset: u64,
        /// The range's guest-physical address.
        address: u64,
        /// Its bytes.
        size: u64,
    },
    /// Removes ranges of the guest's memory.
    DmaUnmap {
        /// Flags: 1 asks for the pages that were written, 2 means all ranges.
        flags: u32,
        /// Where the ranges start.
        address: u64,
        /// Their bytes.
        size: u64,
    },
    /// Asks for the device's regions and interrupts.
    GetInfo,
    /// The description of a region, in a reply of at most this many bytes.
    GetRegionInfo {
        /// The region.
        index: u32,
        /// Room for the reply, in bytes.
        room: u32,
    },
    /// The description of a kind of interrupts.
    GetIrqInfo(u32),
    /// Sets up interrupts.
    SetIrqs {
        /// The action, and the kind of data that comes with the message.
        flags: u32,
        /// The kind.
        index: u32,
        /// The first vector.
        start: u32,
        /// How many.
        count: u32,
        /// The data that follows in the message, except descriptors.
        data: Vec<u8>,
    },
    /// Reset the device to its power-on state.
    Reset,
    /// A request about a feature of the device.
    Feature {
        /// Room for the reply, in bytes.
        room: u32,
        /// The number of the feature, and the operation on it.
        flags: u32,
        /// The data of the operation.
        data: Vec<u8>,
    },
    /// A read of the device's state.
    StateRead {
        /// Room for the reply, in bytes.
        room: u32,
        /// How many.
        size: u32,
    },
    /// Bytes of a state.
    StateWrite(Vec<u8>),
    /// A request for something that is not offered.
    Other(u16),
    /// A body that does not fit its command.
    Malformed,
}

/// Decodes a message for the control thread.
#[must_use]
pub fn request(header: Header, body: &[u8]) -> Request {
    let decoded = match header.command {
        _ if !header.is_known => None,
        command::VERSION => offered(body),
        command => well_formed(command, body),
    };
    decoded.unwrap_or(Request::Malformed)
}

/// The version that a front end offers.
fn offered(body: &[u8]) -> Option<Request> {
    let mut fields = Fields(Some(body).filter(|body| body.len() >= 4)?);
    let (major, _minor) = (fields.u16(), fields.u16());
    let spoken = spoken(fields.0)?;
    let spoken = &spoken["capabilities"];
    let transfer = spoken["max_data_xfer_size"].as_u64().unwrap_or(1 << 20);
    Some(Request::Version { major, transfer, migration: spoken["migration"].is_object() })
}

/// Decodes a message for the control thread if its body fits its command. The size that it states,
/// or the room for a reply (`argsz`), must suffice.
fn well_formed(command: u16, body: &[u8]) -> Option<Request> {
    let mut fields = Fields(body);
    let (argsz, word) = (fields.u32(), fields.u32());
    let size = |good: bool, least: usize| (good && argsz as usize >= least).then_some(());
    Some(match command {
        command::DMA_MAP => {
            size(body.len() == 32, 32)?;
            let (offset, address, size) = (fields.u64(), fields.u64(), fields.u64());
            Request::DmaMap { flags: word, offset, address, size }
        }
        command::DMA_UNMAP => {
            size(body.len() == 24, 24)?;
            Request::DmaUnmap { flags: word, address: fields.u64(), size: fields.u64() }
        }
        command::DEVICE_GET_INFO => {
            size((16..=32).contains(&body.len()), 16)?;
            Request::GetInfo
        }
        command::DEVICE_GET_REGION_INFO => {
            size(body.len() >= 32, 32)?;
            Request::GetRegionInfo { index: fields.u32(), room: argsz }
        }
        command::DEVICE_GET_IRQ_INFO => {
            size(body.len() == 16, 16)?;
            Request::GetIrqInfo(fields.u32())
        }
        command::DEVICE_SET_IRQS => {
            size(body.len() >= 20, body.len())?;
            let (index, start, count) = (fields.u32(), fields.u32(), fields.u32());
            Request::SetIrqs { flags: word, index, start, count, data: fields.0.to_vec() }
        }
        command::DEVICE_RESET if body.is_empty() => Request::Reset,
        command::DEVICE_FEATURE | command::MIG_DATA_READ | command::MIG_DATA_WRITE => {
            return about_state(command, body);
        }
        command::DEVICE_RESET
        | command::REGION_READ
        | command::REGION_WRITE
        | command::REGION_WRITE_MULTI => return None,
        other => Request::Other(other),
    })
}

/// The description that a front end gives of itself: JSON with a terminating zero, or nothing.
fn spoken(bytes: &[u8]) -> Option<Value> {
    match bytes {
        [] => Some(Value::Null),
        [text @ .., 0] => serde_json::from_slice(text).ok().filter(Value::is_object),
        _ => None,
    }
}

/// A message about a feature of the device, or its state.
fn about_state(command: u16, body: &[u8]) -> Option<Request> {
    let mut fields = Fields(body);
    let (room, word) = (fields.u32(), fields.u32());
    let rest = body.get(8..)?;
    Some(match command {
        command::DEVICE_FEATURE => Request::Feature { room, flags: word, data: rest.to_vec() },
        command::MIG_DATA_READ if rest.is_empty() => Request::StateRead { room, size: word },
        command::MIG_DATA_WRITE if rest.len() == word as usize => {
            Request::StateWrite(rest.to_vec())
        }
        _ => return None,
    })
}

/// A reply with this body, or with an error number.
#[must_use]
pub fn reply(header: Header, body: Result<&[u8], Errno>) -> Vec<u8> {
    let done = body.map(|_| ());
    let mut bytes = [&[0; HEADER], body.unwrap_or_default()].concat();
    finish_reply(&mut bytes, header, done);
    bytes
}

/// Writes the header of a reply whose body follows the room left for it. For an error, writes the
/// error number and no body.
pub fn finish_reply(bytes: &mut Vec<u8>, header: Header, done: Result<(), Errno>) {
    if done.is_err() {
        bytes.truncate(HEADER);
    }
    let error = done.err().map_or(0, |error| error.raw_os_error() as u32);
    let flags = if error == 0 { flags::REPLY } else { flags::REPLY | flags::ERROR };
    let size = bytes.len() as u32;
    let Some(room) = bytes.first_chunk_mut::<HEADER>() else { return };
    room[..2].copy_from_slice(&header.id.to_ne_bytes());
    room[2..4].copy_from_slice(&header.command.to_ne_bytes());
    room[4..8].copy_from_slice(&size.to_ne_bytes());
    room[8..12].copy_from_slice(&flags.to_ne_bytes());
    room[12..].copy_from_slice(&error.to_ne_bytes());
}

/// The reply to a version: 0.0, with these capabilities.
#[must_use]
pub fn version(capabilities: &Value) -> Vec<u8> {
    abi::vfio_user::version(&capabilities.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u16, body: &[u8]) -> Header {
        Header {
            id: 1,
            command,
            size: HEADER + body.len(),
            reply: true,
            answers: None,
            is_known: true,
        }
    }

    #[test]
    fn headers_are_those_of_commands() {
        let bytes = |size: u32, flags: u32| {
            let mut bytes = [0; HEADER];
            (bytes[0], bytes[2]) = (7, 9);
            bytes[4..8].copy_from_slice(&size.to_ne_bytes());
            bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
            bytes
        };
        let good =
            Header { id: 7, command: 9, size: 16, reply: true, answers: None, is_known: true };
        assert_eq!(Header::of(&bytes(16, 0)).unwrap(), good);
        assert!(!Header::of(&bytes(MAX_MESSAGE as u32, flags::NO_REPLY)).unwrap().reply);
        for size in [0, 15, 8001, u32::MAX] {
            assert!(Header::of(&bytes(size, 0)).is_err(), "{size}");
        }
        let answers = |command: u16, flags| {
            let mut bytes = bytes(16, flags);
            bytes[2] = command as u8;
            let header = Header::of(&bytes).unwrap();
            assert!(header.is_known || access(header, &[]).is_none());
            header.is_known.then_some((header.reply, header.answers))
        };
        for command in [command::DMA_READ, command::DMA_WRITE] {
            assert_eq!(answers(command, 1), Some((false, Some(true))));
            assert_eq!(answers(command, 0x21), Some((false, Some(false))));
            assert_eq!(answers(command, 0x11), None);
        }
        for flags in [1, 2, 0x20, 0x21, 0x80] {
            assert_eq!(answers(command::REGION_READ, flags), None, "{flags:#x}");
        }
    }

    #[test]
    fn every_command_has_its_sizes() {
        for (command, good) in [
            (command::VERSION, vec![4]),
            (command::DMA_MAP, vec![32]),
            (command::DMA_UNMAP, vec![24]),
            (command::DEVICE_GET_INFO, (16..=32).collect()),
            (command::DEVICE_GET_REGION_INFO, (32..40).collect()),
            (command::DEVICE_GET_IRQ_INFO, vec![16]),
            (command::DEVICE_SET_IRQS, (20..40).collect()),
            (command::REGION_READ, vec![16]),
            (command::REGION_WRITE, vec![]),
            (command::REGION_WRITE_MULTI, vec![]),
            (command::DEVICE_RESET, vec![0]),
            (command::DEVICE_FEATURE, (8..40).collect()),
            (command::MIG_DATA_READ, vec![8]),
            (command::MIG_DATA_WRITE, vec![8]),
        ] {
            let is_good = |size: usize| {
                let mut body = vec![0; size];
                // The message states this size as its own (`argsz`).
                body.iter_mut().take(1).for_each(|first| *first = size as u8);
                if command == command::VERSION {
                    body.fill(0);
                }
                let header = header(command, &body);
                access(header, &body).is_some() || request(header, &body) != Request::Malformed
            };
            let found: Vec<_> = (0..40).filter(|size| is_good(*size)).collect();
            assert_eq!(found, good, "command {command}");
        }
    }

    #[test]
    fn writes_have_the_bytes_that_they_announce() {
        let body = |count: u32, len: usize| {
            [&[0; 8], &3u32.to_ne_bytes()[..], &count.to_ne_bytes(), &vec![5; len]].concat()
        };
        let write = |count, len| {
            let body = body(count, len);
            access(header(command::REGION_WRITE, &body), &body).is_some()
        };
        assert!(write(4, 4) && !write(4, 3) && !write(4, 5) && !write(u32::MAX, 4));
        let several = |count: u64, len: usize| {
            let body = [&count.to_ne_bytes()[..], &vec![0; len]].concat();
            access(header(command::REGION_WRITE_MULTI, &body), &body).is_some()
        };
        assert!(several(2, 48) && !several(0, 0) && !several(u64::MAX, 24) && !several(1, 25));
        assert!(one_of_several(&body(8, 8)).is_some() && one_of_several(&body(9, 8)).is_none());
    }

    #[test]
    fn regression_messages_say_that_they_are_as_large_as_they_are() {
        for (command, size) in [
            (command::DMA_MAP, 32),
            (command::DMA_UNMAP, 24),
            (command::DEVICE_GET_INFO, 16),
            (command::DEVICE_GET_REGION_INFO, 32),
            (command::DEVICE_GET_IRQ_INFO, 16),
            (command::DEVICE_SET_IRQS, 20),
        ] {
            let is_good = |argsz: u32| {
                let mut body = vec![0; size];
                body[..4].copy_from_slice(&argsz.to_ne_bytes());
                request(header(command, &body), &body) != Request::Malformed
            };
            let size = size as u32;
            assert!(is_good(size) && is_good(size + 12) && is_good(u32::MAX), "{command}");
            assert!(!is_good(size - 1) && !is_good(0), "{command}");
        }
        // Once with data that follows, and once as a worker reads the message.
        let body = [words(&[21, 34, 2, 0, 2]), vec![1, 1]].concat();
        let set_irqs = header(command::DEVICE_SET_IRQS, &body);
        assert_eq!(request(set_irqs, &body), Request::Malformed);
        let unmask = |argsz| words(&[argsz, irq::DATA_NONE | irq::UNMASK, 0, 0, 1]);
        let is_access =
            |body: &[u8]| access(header(command::DEVICE_SET_IRQS, body), body).is_some();
        assert!(is_access(&unmask(20)) && !is_access(&unmask(19)));
    }

    #[test]
    fn capabilities_are_json_that_ends() {
        let version = |text: &[u8]| {
            let body = [&[0; 4], text].concat();
            request(header(command::VERSION, &body), &body) != Request::Malformed
        };
        assert!(version(b"") && version(b"{\"capabilities\":{}}\0"));
        for bad in [&b"\0"[..], b"{", b"{}", b"{}\0\0", b"{\0", b"[]\0", b"\xff\0"] {
            assert!(!version(bad), "{bad:?}");
        }
    }
}
