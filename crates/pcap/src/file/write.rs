//! Writing pcapng (draft-ietf-opsawg-pcapng), in the machine's byte order.

use std::time::Duration;

use super::ETHERNET;
use super::blocks::{ENHANCED_PACKET, INTERFACE_DESCRIPTION, SECTION_HEADER};

/// The size in bytes of an enhanced packet block without its frame and options (section 4.3).
pub const BLOCK: usize = 32;

/// Options of all blocks, interface descriptions and enhanced packet blocks (sections 3.5, 4.2,
/// 4.3).
mod options {
    pub(super) const COMMENT: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const RESOLUTION: u16 = 9;
    pub(super) const FLAGS: u16 = 2;
}

/// Which way a captured frame went, seen from the owner of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The port received it.
    Received,
    /// The port sent it.
    Sent,
}

/// A frame that was seen at a port.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// When, since 1970.
    pub at: Duration,
    /// The port's name, for writers of several interfaces.
    pub port: &'a str,
    /// The direction that the frame went.
    pub direction: Direction,
    /// The frame's length in bytes.
    pub len: usize,
    /// The frame's first bytes, as many as are available.
    pub bytes: &'a [u8],
    /// A comment on the frame, such as why it was dropped.
    pub comment: Option<&'a str>,
}

/// Appends a section header (section 4.1).
pub fn section(to: &mut Vec<u8>) {
    block(to, SECTION_HEADER, |to| {
        words(to, &[0x1a2b_3c4d]);
        to.extend([1_u16.to_ne_bytes(), 0_u16.to_ne_bytes()].concat());
        // The section's length is not known.
        words(to, &[u32::MAX, u32::MAX]);
    });
}

/// Appends the description of an Ethernet interface with times in nanoseconds (section 4.2).
/// `snaplen`: the bytes that are kept of each frame, 0 for all.
pub fn interface(to: &mut Vec<u8>, name: Option<&str>, snaplen: u32) {
    block(to, INTERFACE_DESCRIPTION, |to| {
        to.extend([(ETHERNET as u16).to_ne_bytes(), 0_u16.to_ne_bytes()].concat());
        words(to, &[snaplen]);
        if let Some(name) = name {
            option(to, options::NAME, name.as_bytes());
        }
        option(to, options::RESOLUTION, &[9]);
        words(to, &[0]);
    });
}

/// Appends an enhanced packet block of the section's interface `interface`; at most `snaplen` bytes
/// of the frame.
pub fn packet(to: &mut Vec<u8>, interface: u32, frame: &Captured<'_>, snaplen: usize) {
    let bytes = &frame.bytes[..frame.bytes.len().min(snaplen)];
    let start = begin_packet(to, interface, frame.at, frame.len, bytes.len());
    to.extend_from_slice(bytes);
    pad(to);
    if let Some(comment) = frame.comment {
        option(to, options::COMMENT, comment.as_bytes());
    }
    // Bits 0 and 1 of epb_flags: 01 inbound, 10 outbound (section 4.3.1).
    let flags: u32 = match frame.direction {
        Direction::Received => 1,
        Direction::Sent => 2,
    };
    option(to, options::FLAGS, &flags.to_ne_bytes());
    words(to, &[0]);
    end_packet(to, start);
}

/// Appends the fixed part of an enhanced packet block. `captured` bytes of the frame, padding and
/// options follow, then [`end_packet`] with what this returns.
pub fn begin_packet(
    to: &mut Vec<u8>,
    interface: u32,
    at: Duration,
    len: usize,
    captured: usize,
) -> usize {
    let start = to.len();
    let time = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    let (high, low) = ((time >> 32) as u32, time as u32);
    words(to, &[ENHANCED_PACKET, 0, interface, high, low, captured as u32, len as u32]);
    start
}

/// Ends the block that began at `start`: fills in its length.
pub fn end_packet(to: &mut Vec<u8>, start: usize) {
    pad(to);
    let len = (to.len() + 4 - start) as u32;
    words(to, &[len]);
    to[start + 4..start + 8].copy_from_slice(&len.to_ne_bytes());
}

fn block(to: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    words(to, &[kind, 0]);
    body(to);
    end_packet(to, start);
}

fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(u16::MAX.into())];
    to.extend(code.to_ne_bytes());
    to.extend((value.len() as u16).to_ne_bytes());
    to.extend_from_slice(value);
    pad(to);
}

/// Blocks and options end at multiples of 4 bytes.
fn pad(to: &mut Vec<u8>) {
    to.resize(to.len().next_multiple_of(4), 0);
}

fn words(to: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| to.extend(word.to_ne_bytes()));
}
