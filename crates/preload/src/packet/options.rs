//! What a program sets on a packet socket, before and after it is bound to a port.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use frame::bpf::{Instruction, InvalidProgram, Program};
use libc::{SOL_PACKET, SOL_SOCKET, socklen_t};
use pcap::lock::Lock;
use rustix::io::Errno;

use crate::real;

/// Options that a socket on a port cannot have, and what the program asked for. Others of
/// `SOL_PACKET` are about rings alone, or change nothing at a port.
const REFUSED: [(c_int, &str); 8] = [
    (libc::PACKET_RX_RING, "a ring (PACKET_RX_RING)"),
    (libc::PACKET_TX_RING, "a ring (PACKET_TX_RING)"),
    (libc::PACKET_VNET_HDR, "virtio-net headers (PACKET_VNET_HDR)"),
    (24, "virtio-net headers (PACKET_VNET_HDR_SZ)"),
    (libc::PACKET_TIMESTAMP, "time stamps of the card (PACKET_TIMESTAMP)"),
    (libc::PACKET_FANOUT, "a share of the frames (PACKET_FANOUT)"),
    (19, "frames at offsets (PACKET_TX_HAS_OFF)"),
    (22, "a share of the frames (PACKET_FANOUT_DATA)"),
];
/// `PACKET_IGNORE_OUTGOING`.
const IGNORE_OUTGOING: c_int = 23;
/// Bytes of the longest option that is kept.
const LONGEST: usize = 128;
/// Kept options of a socket.
const MOST: usize = 64;

/// Which frames a socket gets, as its thread asks for each.
#[derive(Debug, Default)]
pub struct Choice {
    /// The socket's classic BPF filter.
    pub filter: Lock<Option<Program>>,
    /// Frames that the port has sent are left out.
    pub ignores_sent: AtomicBool,
}

/// What a program has set.
#[derive(Debug, Default)]
pub struct Options {
    choice: Arc<Choice>,
    kept: Lock<Kept>,
}

/// What was set while the socket was the kernel's.
#[derive(Debug, Default)]
struct Kept {
    /// The last filter is one that ports cannot run.
    invalid: Option<InvalidProgram>,
    /// What ports cannot have.
    refused: Option<&'static str>,
    /// Options of `SOL_SOCKET`, and their values.
    values: Vec<(c_int, Vec<u8>)>,
}

impl Options {
    /// Which frames the socket gets.
    pub fn choice(&self) -> Arc<Choice> {
        Arc::clone(&self.choice)
    }

    /// Sets an option of a socket that is no more, or never was, the kernel's. `None` if the pair
    /// that takes its place has the option, too.
    pub fn set(&self, level: c_int, option: c_int, value: &[u8]) -> Option<Result<(), Errno>> {
        match (level, option) {
            (SOL_SOCKET, libc::SO_ATTACH_FILTER) => Some(self.set_filter(value)),
            (SOL_SOCKET, libc::SO_DETACH_FILTER) => {
                *self.choice.filter.lock() = None;
                Some(Ok(()))
            }
            (SOL_PACKET, IGNORE_OUTGOING) => {
                self.choice.ignores_sent.store(is_set(value), Ordering::Relaxed);
                Some(Ok(()))
            }
            (SOL_PACKET, _) => {
                Some(refused(option, value).map_or(Ok(()), |what| Err(refuse(what))))
            }
            _ => None,
        }
    }

    fn set_filter(&self, value: &[u8]) -> Result<(), Errno> {
        let program = program(value)?.map_err(|invalid| refuse(&invalid.to_string()))?;
        *self.choice.filter.lock() = Some(program);
        Ok(())
    }

    /// Keeps an option that the kernel has taken, for [`carry_over`](Self::carry_over).
    pub fn keep(&self, level: c_int, option: c_int, value: &[u8]) {
        let mut kept = self.kept.lock();
        match (level, option) {
            (SOL_SOCKET, libc::SO_ATTACH_FILTER) => match program(value) {
                Ok(Ok(program)) => {
                    *self.choice.filter.lock() = Some(program);
                    kept.invalid = None;
                }
                Ok(Err(invalid)) => kept.invalid = Some(invalid),
                Err(_) => (),
            },
            (SOL_SOCKET, libc::SO_DETACH_FILTER) => {
                *self.choice.filter.lock() = None;
                kept.invalid = None;
            }
            (SOL_SOCKET, libc::SO_ATTACH_BPF) => kept.refused = Some("a filter in eBPF"),
            (SOL_SOCKET, _) => {
                kept.values.retain(|(other, _)| *other != option);
                kept.values.push((option, value.to_vec()));
                if value.len() > LONGEST || kept.values.len() > MOST {
                    kept.refused = Some("too many or too long options of SOL_SOCKET");
                    kept.values.pop();
                }
            }
            (SOL_PACKET, IGNORE_OUTGOING) => {
                self.choice.ignores_sent.store(is_set(value), Ordering::Relaxed);
            }
            (SOL_PACKET, _) => kept.refused = refused(option, value).or(kept.refused),
            _ => (),
        }
    }

    /// Checks that a port can have all that was set.
    ///
    /// # Errors
    /// `EOPNOTSUPP`; standard error says what it is.
    pub fn check(&self) -> Result<(), Errno> {
        let kept = self.kept.lock();
        let invalid = kept.invalid.map(|invalid| invalid.to_string());
        let what = invalid.as_deref().or(kept.refused);
        what.map_or(Ok(()), |what| Err(refuse(what)))
    }

    /// Sets on the socket that takes the kernel's place what was set there.
    pub fn carry_over(&self, to: RawFd) -> Result<(), Errno> {
        for (option, value) in &self.kept.lock().values {
            let (at, len) = (value.as_ptr().cast(), value.len() as socklen_t);
            // SAFETY: a value of this length, which lives as long as the call.
            crate::result(unsafe { real::setsockopt(to, SOL_SOCKET, *option, at, len) })?;
        }
        Ok(())
    }
}

/// What an option asks for that a port cannot have; nothing, if it is switched off.
fn refused(option: c_int, value: &[u8]) -> Option<&'static str> {
    let found = REFUSED.iter().find(|(refused, _)| *refused == option);
    found.filter(|_| is_set(value)).map(|(_, what)| *what)
}

fn is_set(value: &[u8]) -> bool {
    value.iter().any(|byte| *byte != 0)
}

/// Says what a port cannot have. The error's number alone would not tell.
fn refuse(what: &str) -> Errno {
    eprintln!("toklat: a packet socket on a port cannot have this: {what}");
    Errno::OPNOTSUPP
}

/// The filter that a `struct sock_fprog` names.
fn program(value: &[u8]) -> Result<Result<Program, InvalidProgram>, Errno> {
    let len = value.first_chunk().copied().map_or(0, u16::from_ne_bytes);
    let at = value.get(8..16).and_then(|at| at.first_chunk()).ok_or(Errno::INVAL)?;
    let mut bytes = vec![0; usize::from(len) * 8];
    if crate::user::read_some(u64::from_ne_bytes(*at), &mut bytes)? != bytes.len() {
        return Err(Errno::FAULT);
    }
    let instructions = bytes.as_chunks().0.iter().copied().map(Instruction::from_ne_bytes);
    Ok(Program::new(instructions.collect()))
}

/// The bytes of an option's value, as far as they can be read.
pub fn value_of(value: *const c_void, len: socklen_t) -> Vec<u8> {
    let mut bytes = vec![0; (len as usize).min(LONGEST + 1)];
    let read = crate::user::read_some(value.expose_provenance() as u64, &mut bytes);
    bytes.truncate(read.unwrap_or(0));
    bytes
}
