//! Routes through ports: nmap asks the kernel by netlink for the route to a target.
//!
//! This module answers questions about routes through a port, or to an address in a port's network:
//! the target is on that port.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;

use pcap::Device;
use pcap::lock::Lock;

use super::names;
use crate::capture::INTERFACES;
use crate::marks::Bits;

/// Sockets for which an answer is stored.
pub static ASKED: Bits = Bits::new();
static ANSWERS: Lock<BTreeMap<RawFd, Vec<u8>>> = Lock::new(BTreeMap::new());

/// Length of `struct nlmsghdr` and `struct rtmsg`, in bytes.
const HEADER: usize = 16 + 12;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The value of an attribute of four bytes.
fn attribute(question: &[u8], wanted: u16) -> Option<u32> {
    let mut at = HEADER;
    while let (Some(len), Some(kind)) = (u16_at(question, at), u16_at(question, at + 2)) {
        if kind == wanted && len == 8 {
            return u32_at(question, at + 4);
        }
        at += usize::from(len.max(4)).next_multiple_of(4);
    }
    None
}

/// Returns the port that a question is about.
fn port(question: &[u8]) -> Option<u32> {
    let is_route = u16_at(question, 4)? == RTM_GETROUTE && question.len() >= HEADER;
    let flags = u16_at(question, 6)?;
    // The kernel answers a dump of all routes.
    if !is_route || flags & 0x300 != 0 {
        return None;
    }
    if let Some(index) = attribute(question, RTA_OIF) {
        return super::device(index.cast_signed()).map(|_| index);
    }
    let target = Ipv4Addr::from(attribute(question, RTA_DST)?.to_ne_bytes());
    let is_near = |device: &Device| {
        names::address(device).is_some_and(|(own, mask)| own & mask == target & mask)
    };
    let device = names::named().iter().map(|known| &known.device).find(|device| is_near(device))?;
    Some(INTERFACES.lock().index(device))
}

fn push(answer: &mut Vec<u8>, kind: u16, value: u32) {
    answer.extend_from_slice(&8_u16.to_ne_bytes());
    answer.extend_from_slice(&kind.to_ne_bytes());
    answer.extend_from_slice(&value.to_ne_bytes());
}

/// Stores an answer for the next receiving call; returns false if the kernel must answer.
pub fn asked(fd: RawFd, question: &[u8]) -> bool {
    let Some(index) = port(question) else { return false };
    let mut answer = question.get(..HEADER).map(<[u8]>::to_vec).unwrap_or_default();
    answer[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
    answer[6..8].fill(0);
    // `struct rtmsg`: main table, link scope, unicast.
    (answer[16 + 4], answer[16 + 6], answer[16 + 7]) = (254, 253, 1);
    if let Some(target) = attribute(question, RTA_DST) {
        push(&mut answer, RTA_DST, target);
    }
    push(&mut answer, RTA_OIF, index);
    let own = super::device(index.cast_signed()).and_then(|device| names::address(&device));
    let own = own.map(|(address, _)| u32::from_ne_bytes(address.octets()));
    if let Some(source) = attribute(question, RTA_SRC).or(own) {
        push(&mut answer, RTA_PREFSRC, source);
    }
    // The attribute that nmap does not need comes last, because nmap 7 ignores the last four bytes
    // of an answer.
    push(&mut answer, RTA_TABLE, 254);
    let len = answer.len() as u32;
    answer[..4].copy_from_slice(&len.to_ne_bytes());
    ANSWERS.lock().insert(fd, answer);
    ASKED.set(fd)
}

/// Takes the stored answer of a socket.
pub fn answer(fd: RawFd) -> Option<Vec<u8>> {
    if !ASKED.clear(fd) {
        return None;
    }
    ANSWERS.lock().remove(&fd)
}

/// Locks the table before a fork; [`release`] unlocks it.
pub fn hold() {
    ANSWERS.hold();
}

/// Unlocks what [`hold`] locked.
pub fn release() {
    ANSWERS.release();
}
