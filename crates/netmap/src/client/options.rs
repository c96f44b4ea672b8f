//! Options of a request: reads the list from the program's memory, and writes each status back
//! (`struct nmreq_option` in `net/netmap.h`). The limits are those of the kernel's buffer for a
//! request.

use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::UserMemory;
use crate::abi::{OptionHeader, option};
use crate::wire;

/// Bytes of the kernel's buffer before the options, without the body.
const BEFORE: u64 = 16 + 48;
/// Bytes of that buffer.
const ROOM: u64 = 4208;
/// Bytes that an option takes in that buffer, without its body.
const EACH: u64 = 8 + 24;
/// Limit of body and options together, in bytes (`NETMAP_REQ_MAXSIZE`).
const MOST: u64 = 4096;
/// Length of an option's header.
const HEADER: u64 = 24;

/// An option in the program's memory.
#[derive(Clone, Copy, Debug)]
struct Given {
    at: u64,
    header: OptionHeader,
}

/// The options of a request.
#[derive(Debug)]
pub(super) struct List {
    given: Vec<Given>,
    /// For the daemon.
    pub(super) options: wire::Options,
    /// For the library itself.
    pub(super) local: Local,
    /// Index in `given` of each known option.
    known: [Option<usize>; option::MAX as usize],
}

/// Values of the options that the daemon does not need.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// Addresses of the blocks that the program writes, and of those that it reads.
    pub csb: Option<(u64, u64)>,
    /// For each ring, the descriptor that the program signals, and the one that is signalled. The
    /// inner `None` stands for a size that does not fit whole pairs.
    pub events: Option<Option<Vec<(i32, i32)>>>,
    /// Mode of a sync loop.
    pub mode: Option<u32>,
    /// Address of the program's memory.
    pub extmem: Option<u64>,
}

/// Parses pairs of descriptors; `None` if the length does not fit.
fn pairs(bytes: &[u8]) -> Option<Vec<(i32, i32)>> {
    if !bytes.len().is_multiple_of(8) {
        return None;
    }
    let word = |bytes: &[u8]| i32::read_from_bytes(bytes).unwrap_or(-1);
    Some(bytes.chunks_exact(8).map(|pair| (word(&pair[..4]), word(&pair[4..]))).collect())
}

/// The reason why a list was refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) errno: Errno,
    /// The list to write back, if there is one.
    pub(super) list: Option<Box<List>>,
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self { errno, list: None }
    }
}

impl List {
    /// Reads the list that starts at `first`, of a request with `body` bytes of body.
    pub(super) fn read(user: &dyn UserMemory, first: u64, body: u64) -> Result<Self, Refused> {
        let options = wire::Options::none();
        let (local, known) = Default::default();
        let mut list = Self { given: Vec::new(), options, local, known };
        let (mut at, mut used, mut asked) = (first, BEFORE + body, body);
        while at != 0 {
            used += EACH;
            asked += HEADER;
            if used > ROOM || asked > MOST {
                return Err(Errno::MSGSIZE.into());
            }
            let mut bytes = [0; size_of::<OptionHeader>()];
            user.read(at, &mut bytes)?;
            let mut header = OptionHeader::read_from_bytes(&bytes).map_err(|_| Errno::INVAL)?;
            header.status = 0;
            list.given.push(Given { at, header });
            if !list.index(header.reqtype) {
                return Err(Refused { errno: Errno::INVAL, list: Some(Box::new(list)) });
            }
            let own = list.read_body(user, at, &header)?;
            used += own;
            asked += own;
            if used > ROOM || asked > MOST {
                return Err(Errno::MSGSIZE.into());
            }
            at = header.next;
        }
        let not_supported = Errno::OPNOTSUPP.raw_os_error().unsigned_abs();
        list.given.iter_mut().for_each(|given| given.header.status = not_supported);
        Ok(list)
    }

    /// Indexes the last option read; returns false if it has no type, or occurs twice.
    fn index(&mut self, reqtype: u32) -> bool {
        let last = self.given.len() - 1;
        let invalid = Errno::INVAL.raw_os_error().unsigned_abs();
        if reqtype == 0 {
            self.given[last].header.status = invalid;
            return false;
        }
        let Some(place) = self.known.get_mut(reqtype as usize) else {
            // An unknown option. It fails those requests that reject unsupported options.
            self.options.given |= 1;
            return true;
        };
        if let Some(first) = *place {
            self.given[last].header.status = invalid;
            self.given[first].header.status = invalid;
            return false;
        }
        *place = Some(last);
        self.options.given |= 1 << reqtype;
        true
    }

    /// Reads the option's own fields that the daemon needs; returns their length in bytes.
    fn read_body(
        &mut self,
        user: &dyn UserMemory,
        at: u64,
        header: &OptionHeader,
    ) -> Result<u64, Errno> {
        let own = match header.reqtype {
            option::EXTMEM => 72,
            option::SYNC_KLOOP_EVENTFDS if header.size > MOST => return Err(Errno::MSGSIZE),
            option::SYNC_KLOOP_EVENTFDS => header.size.saturating_sub(HEADER),
            option::CSB => 16,
            option::SYNC_KLOOP_MODE => 8,
            option::OFFSETS => 32,
            _ => return Ok(0),
        };
        let mut bytes = vec![0; own as usize];
        user.read(at.wrapping_add(HEADER), &mut bytes)?;
        let word = |at: usize| u64::read_from_bytes(&bytes[at..at + 8]).unwrap_or(0);
        match header.reqtype {
            option::OFFSETS => {
                let offsets = crate::abi::Offsets::read_from_bytes(&bytes);
                self.options.offsets =
                    offsets.unwrap_or_else(|_| crate::abi::Offsets::new_zeroed());
            }
            option::EXTMEM => {
                self.local.extmem = Some(word(0));
                let info = crate::abi::PoolsInfo::read_from_bytes(&bytes[8..]);
                self.options.extmem = info.unwrap_or_default();
            }
            option::CSB => self.local.csb = Some((word(0), word(8))),
            option::SYNC_KLOOP_MODE => self.local.mode = Some(word(0) as u32),
            option::SYNC_KLOOP_EVENTFDS => self.local.events = Some(pairs(&bytes)),
            _ => {}
        }
        Ok(own)
    }

    /// Applies the daemon's status of each option.
    pub(super) fn answer(&mut self, options: &wire::Options) {
        (self.options.extmem, self.options.offsets) = (options.extmem, options.offsets);
        for (place, status) in self.known.iter().zip(options.status) {
            if let Some(at) = place {
                self.given[*at].header.status = status;
            }
        }
    }

    /// Writes back the result fields of the options, after a request that succeeded.
    pub(super) fn write_bodies(&self, user: &dyn UserMemory) -> Result<(), Errno> {
        let done = |option: u32| {
            let given = self.known[option as usize].map(|at| self.given[at]);
            given.filter(|given| given.header.status == 0)
        };
        if let Some(given) = done(option::EXTMEM) {
            user.write(given.at.wrapping_add(HEADER + 8), self.options.extmem.as_bytes())?;
        }
        if let Some(given) = done(option::OFFSETS) {
            user.write(given.at.wrapping_add(HEADER), self.options.offsets.max.as_bytes())?;
        }
        Ok(())
    }

    /// Writes all headers back.
    pub(super) fn write_back(&self, user: &dyn UserMemory) -> Result<(), Errno> {
        self.given.iter().try_for_each(|given| user.write(given.at, given.header.as_bytes()))
    }
}
