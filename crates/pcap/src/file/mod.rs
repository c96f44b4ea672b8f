//! Capture files: pcap and pcapng, read for replay and written. The author of a file is not
//! trusted.
//!
//! A file is read as far as it goes: frames that cannot be replayed are left out and counted, and
//! a cut or broken end says where it is ([`LeftOut`]).
//!
//! pcap: draft-ietf-opsawg-pcap. pcapng: draft-ietf-opsawg-pcapng.

mod clock;
mod ng;
mod old;
mod parse;
mod recording;
mod write;

use std::fmt;

pub use parse::{is_capture, parse};
pub use recording::{Recorded, Recording};
pub use write::{BLOCK, Captured, Direction, begin_packet, end_packet, interface, packet, section};

/// The bytes of an Ethernet header: a shorter frame cannot be sent.
const ETHERNET_HEADER: usize = 14;
/// The bytes of the longest frame.
const MAX_FRAME: usize = 65_535;
/// The link type of Ethernet (LINKTYPE_ETHERNET).
const ETHERNET: u32 = 1;

/// Block types (pcapng, section 11.1).
mod blocks {
    pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    pub(super) const INTERFACE_DESCRIPTION: u32 = 1;
    pub(super) const OBSOLETE_PACKET: u32 = 2;
    pub(super) const SIMPLE_PACKET: u32 = 3;
    pub(super) const ENHANCED_PACKET: u32 = 6;
}

/// The reason why a capture cannot be used at all.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureError {
    /// It is neither pcap nor pcapng.
    Unknown {
        /// What the first bytes say.
        reason: &'static str,
    },
    /// All frames are of another link type than Ethernet; its number.
    LinkType(u32),
    /// It holds no frame that can be replayed.
    Empty(LeftOut),
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { reason } => write!(f, "Not a pcap or pcapng capture: {reason}"),
            Self::LinkType(kind) => {
                write!(f, "The capture is of link type {kind}; only Ethernet (1) can be sent")
            }
            Self::Empty(left_out) if *left_out == LeftOut::default() => {
                write!(f, "The capture has no frames")
            }
            Self::Empty(left_out) => {
                write!(f, "The capture has no frame that can be sent: {left_out}")
            }
        }
    }
}

impl std::error::Error for CaptureError {}

/// What a recording lacks of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Frames of which only the first bytes were captured.
    pub cut_short: u64,
    /// Frames shorter than an Ethernet header.
    pub too_short: u64,
    /// Frames longer than 65,535 bytes.
    pub too_long: u64,
    /// Frames of another link type than Ethernet.
    pub other_links: u64,
    /// Frames of an interface that the file does not describe.
    pub no_interface: u64,
    /// How often the clock jumped: more than a day ahead, or more than a second back. The frames
    /// are there; the time between them is left out.
    pub clock_jumps: u64,
    /// Where the file stops making sense, if it does.
    pub end: Option<BrokenEnd>,
}

/// A cut or damaged end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenEnd {
    /// The offset of the first byte that is left out.
    pub at: u64,
    /// How many bytes are left out.
    pub bytes: u64,
    /// What is wrong there.
    pub reason: &'static str,
}

impl LeftOut {
    /// Returns true if the recording has all of its file, with its times.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The number of frames that are left out. How many the broken end had is not known.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.cut_short + self.too_short + self.too_long + self.other_links + self.no_interface
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frames = [
            (self.cut_short, "not captured whole"),
            (self.too_short, "shorter than an Ethernet header"),
            (self.too_long, "longer than 65535 bytes"),
            (self.other_links, "of another link type"),
            (self.no_interface, "of an unknown interface"),
        ];
        let frames = frames.into_iter().filter(|(count, _)| *count > 0);
        let mut parts: Vec<String> =
            frames.map(|(count, what)| format!("{} {what}", plural(count, "frame"))).collect();
        if self.clock_jumps > 0 {
            parts.push(format!("{} of the clock", plural(self.clock_jumps, "jump")));
        }
        if let Some(BrokenEnd { at, bytes, reason }) = self.end {
            parts.push(format!("the last {} ({reason} at byte {at})", plural(bytes, "byte")));
        }
        write!(f, "{}", if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") })
    }
}

fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The order of the bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    /// The 16-bit number at an offset, if it is there.
    fn half(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(*bytes),
            Self::Big => u16::from_be_bytes(*bytes),
        })
    }

    /// The 32-bit number at an offset, if it is there.
    fn word(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(*bytes),
            Self::Big => u32::from_be_bytes(*bytes),
        })
    }
}
