//! Messages of vfio-user: numbers and fields that both ends use.
//!
//! ```text
//!   id u16 | command u16 | size u32, of all of it | flags u32 | error u32 | body ...
//! ```
//!
//! All fields are in the machine's byte order.

use alloc::format;
use alloc::vec::Vec;

/// Bytes of a header.
pub const HEADER: usize = 16;
/// The maximum number of bytes of a message, header and body.
pub const MAX_MESSAGE: usize = 8000;
/// The maximum number of bytes of a message's data.
pub const MAX_TRANSFER: u32 = 4096;
/// The commands of messages.
pub mod command {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DMA_READ: u16 = 11;
    pub const DMA_WRITE: u16 = 12;
    pub const DEVICE_RESET: u16 = 13;
    pub const REGION_WRITE_MULTI: u16 = 15;
    pub const DEVICE_FEATURE: u16 = 16;
    pub const MIG_DATA_READ: u16 = 17;
    pub const MIG_DATA_WRITE: u16 = 18;
}

/// Bits of a header's flags.
pub mod flags {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const REPLY: u32 = 1;
    pub const NO_REPLY: u32 = 1 << 4;
    pub const ERROR: u32 = 1 << 5;
}

/// Bits of `SET_IRQS`: the kind of data, and the action.
pub mod irq {
    #![allow(missing_docs, reason = "the names are VFIO's")]
    pub const DATA_NONE: u32 = 1;
    pub const DATA_BOOL: u32 = 2;
    pub const DATA_EVENTFD: u32 = 4;
    pub const MASK: u32 = 8;
    pub const UNMASK: u32 = 16;
    pub const TRIGGER: u32 = 32;
}

/// Bits of a feature's flags: its number, and the operation.
pub mod flag {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const NUMBER: u32 = 0xffff;
    pub const GET: u32 = 1 << 16;
    pub const SET: u32 = 1 << 17;
    pub const PROBE: u32 = 1 << 18;
}

/// Feature numbers.
pub mod feature {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub const MIGRATION: u32 = 1;
    pub const DEVICE_STATE: u32 = 2;
}

/// The state of a device during migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u32)]
pub enum DeviceState {
    /// The device was given data that is no valid state. It must be reset.
    Error = 0,
    /// The device is stopped.
    Stop = 1,
    /// The device is running.
    #[default]
    Running = 2,
    /// The device is stopped, and its state can be read.
    StopCopy = 3,
    /// The device is stopped, and receives a state.
    Resuming = 4,
}

impl DeviceState {
    /// The state with this number, if a client may ask for it.
    #[must_use]
    pub fn wanted(number: u32) -> Option<Self> {
        let all = [Self::Stop, Self::Running, Self::StopCopy, Self::Resuming];
        all.into_iter().find(|state| *state as u32 == number)
    }
}

/// The fields of a message, in order; zero after its end.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk::<N>() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = rest;
        *field
    }

    /// A 16-bit field.
    pub fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    /// A 32-bit field.
    pub fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    /// A 64-bit field.
    pub fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }
}

/// Encodes consecutive 32-bit fields.
#[must_use]
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Encodes consecutive 64-bit fields.
#[must_use]
pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

/// Appends the header of a message with a body of `body` bytes.
pub fn write_header(to: &mut Vec<u8>, id: u16, command: u16, body: usize, flags: u32) {
    to.extend(id.to_ne_bytes());
    to.extend(command.to_ne_bytes());
    to.extend(((HEADER + body) as u32).to_ne_bytes());
    to.extend(flags.to_ne_bytes());
    to.extend([0; 4]);
}

/// Encodes a version reply: 0.0, and the capabilities as JSON.
#[must_use]
pub fn version(capabilities: &str) -> Vec<u8> {
    let text = format!("{{\"capabilities\":{capabilities}}}");
    [&[0; 4], text.as_bytes(), &[0]].concat()
}
