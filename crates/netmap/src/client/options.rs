//! Options of a request: the list is walked in the program's memory, and each status written back
//! there (netmap-abi.md 1.7). The limits are those of the buffer into which the kernel copies all of it.

use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::UserMemory;
use crate::abi::{OptionHeader, option};
use crate::wire;

/// Bytes of the kernel's buffer that are used before the options, beside the body.
const BEFORE: u64 = 16 + 48;
/// Bytes of that buffer.
const ROOM: u64 = 4208;
/// Bytes that an option takes in it, beside its body.
const EACH: u64 = 8 + 24;
/// Most bytes of body and options (`NETMAP_REQ_MAXSIZE`).
const MOST: u64 = 4096;
/// Bytes of an option before its own fields.
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
    /// Where each known option is in `given`.
    known: [Option<usize>; option::MAX as usize],
}

/// Why a list was refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) errno: Errno,
    /// What is to be written back, if anything.
    pub(super) list: Option<Box<List>>,
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self { errno, list: None }
    }
}

impl List {
    /// Reads the list that starts at `first`, of a request with `body` bytes.
    pub(super) fn read(user: &dyn UserMemory, first: u64, body: u64) -> Result<Self, Refused> {
        let options = wire::Options::none();
        let mut list = Self { given: Vec::new(), options, known: Default::default() };
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

    /// Keeps in mind where the last option read is; false if it has no type, or was given before.
    fn index(&mut self, reqtype: u32) -> bool {
        let last = self.given.len() - 1;
        let invalid = Errno::INVAL.raw_os_error().unsigned_abs();
        if reqtype == 0 {
            self.given[last].header.status = invalid;
            return false;
        }
        let Some(place) = self.known.get_mut(reqtype as usize) else {
            // One that is not known: the request fails, if it is one that fails for that.
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

    /// Reads an option's own fields, as far as the daemon is told of them; returns how many bytes they are.
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
        if header.reqtype == option::OFFSETS {
            let offsets = crate::abi::Offsets::read_from_bytes(&bytes);
            self.options.offsets = offsets.unwrap_or_else(|_| crate::abi::Offsets::new_zeroed());
        }
        Ok(own)
    }

    /// Takes over what the daemon said of each option.
    pub(super) fn answer(&mut self, options: &wire::Options) {
        for (place, status) in self.known.iter().zip(options.status) {
            if let Some(at) = place {
                self.given[*at].header.status = status;
            }
        }
    }

    /// Writes all headers back.
    pub(super) fn write_back(&self, user: &dyn UserMemory) -> Result<(), Errno> {
        self.given.iter().try_for_each(|given| user.write(given.at, given.header.as_bytes()))
    }
}
