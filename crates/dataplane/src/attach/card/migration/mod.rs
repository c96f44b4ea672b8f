//! The migration of a card to another server (vfio-user, `DEVICE_FEATURE` and `MIG_DATA_*`; Linux's
//! `vfio.h`, "migration v2").
//!
//! ```text
//!   RUNNING <--> STOP <--> STOP_COPY: the state is read        ERROR: a reset leads to RUNNING
//!                 ^  `--> RESUMING: it is written --.
//!                 `------ taken over, or: ERROR <---'
//! ```
//!
//! The state is what a successor of this process finds in state memory: configuration space and
//! registers, after a header that identifies them. It is read from there and written there; no code
//! uses it before it is validated. The front end sets up interrupts and memory again. Written pages
//! are not logged: all of the guest's memory follows after the card is stopped.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::message::{Fields, longs, words};
use super::models::{Card, StateError};
pub use abi::vfio_user::{DeviceState, MAX_TRANSFER};
use abi::vfio_user::{feature, flag};

/// The supported features, and the operations on each.
const FEATURES: [(u32, u32); 2] =
    [(feature::MIGRATION, flag::GET), (feature::DEVICE_STATE, flag::GET | flag::SET)];
/// In [`feature::MIGRATION`]: the state can be read while the device is stopped.
const STOP_COPY: u64 = 1;

/// The body of a reply, or an error number.
type Answer = Result<Vec<u8>, Errno>;

/// A device's move.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Migration {
    state: DeviceState,
    /// The number of bytes of the state that were read or written.
    at: usize,
    /// The maximum number of bytes of the state in one message.
    transfer: u32,
    /// The reason why the last state was refused.
    #[serde(skip)]
    pub refused: Option<StateError>,
}

impl Default for Migration {
    fn default() -> Self {
        Self { state: DeviceState::Running, at: 0, transfer: MAX_TRANSFER, refused: None }
    }
}

/// True if no worker may use the device while this is carried out.
pub fn needs_quiet(flags: u32) -> bool {
    flags & (flag::SET | flag::PROBE) == flag::SET
}

impl Migration {
    /// The state of the migration.
    pub fn state(&self) -> DeviceState {
        self.state
    }

    /// Notes how many bytes the front end accepts in a message.
    pub fn negotiate(&mut self, transfer: u64) {
        self.transfer = transfer.min(MAX_TRANSFER.into()) as u32;
    }

    /// The maximum number of bytes of a message's data.
    pub fn transfer(&self) -> usize {
        self.transfer as usize
    }

    /// Resets the device, as a power cycle does.
    pub fn reset(&mut self, card: &Card<'_>) -> Answer {
        card.power_on();
        (self.state, self.at) = (DeviceState::Running, 0);
        Ok(Vec::new())
    }

    /// Carries out an operation on a feature. The reply has at most `room` bytes.
    pub fn feature(&mut self, card: &Card<'_>, room: u32, flags: u32, data: &[u8]) -> Answer {
        const ALL: u32 = flag::NUMBER | flag::GET | flag::SET | flag::PROBE;
        let (number, methods) = (flags & flag::NUMBER, flags & (flag::GET | flag::SET));
        let known = FEATURES.iter().find(|(known, _)| *known == number);
        let (_, offered) = *known.ok_or(Errno::NOTTY)?;
        let probes = flags & flag::PROBE != 0;
        if flags & !ALL != 0 || methods & !offered != 0 || !probes && methods.count_ones() != 1 {
            return Err(Errno::INVAL);
        }
        let got = match (number, methods) {
            _ if probes => None,
            (feature::MIGRATION, _) => Some(longs(&[STOP_COPY])),
            (_, flag::GET) => Some(words(&[self.state as u32, u32::MAX])),
            _ => {
                if data.len() != 8 {
                    return Err(Errno::INVAL);
                }
                self.change(card, Fields(data).u32())?;
                None
            }
        };
        let Some(got) = got else { return Ok([&words(&[room, flags])[..], data].concat()) };
        let size = 8 + got.len() as u32;
        let got = if room < size { &[][..] } else { &got };
        Ok([&words(&[size, flags])[..], got].concat())
    }

    /// Changes the state, through STOP as all transitions do.
    fn change(&mut self, card: &Card<'_>, to: u32) -> Result<(), Errno> {
        let to = DeviceState::wanted(to).ok_or(Errno::INVAL)?;
        if self.state == DeviceState::Error {
            return Err(Errno::INVAL);
        }
        while self.state != to {
            let next = if self.state == DeviceState::Stop { to } else { DeviceState::Stop };
            match (self.state, next) {
                (DeviceState::Resuming, _) => {
                    let whole = self.at == card.state_len();
                    let taken = if whole { card.take_over() } else { Err(StateError::Length) };
                    taken.map_err(|why| self.fail(card, why))?;
                }
                (_, DeviceState::StopCopy) => card.write_header(),
                _ => {}
            }
            (self.state, self.at) = (next, 0);
        }
        Ok(())
    }

    /// Refuses the written state and erases it.
    fn fail(&mut self, card: &Card<'_>, why: StateError) -> Errno {
        card.power_on();
        (self.state, self.at, self.refused) = (DeviceState::Error, 0, Some(why));
        Errno::INVAL
    }

    /// The next `size` bytes of the state; fewer at its end.
    pub fn read(&mut self, card: &Card<'_>, room: u32, size: u32) -> Answer {
        let fits = size <= self.transfer && room.checked_sub(8).is_some_and(|room| size <= room);
        if self.state != DeviceState::StopCopy || !fits {
            return Err(Errno::INVAL);
        }
        let mut data = Vec::with_capacity(8 + size as usize);
        let len = (card.state_len() - self.at).min(size as usize) as u32;
        data.extend(words(&[8 + len, len]));
        card.state(self.at, len as usize).for_each(|bytes| data.extend(bytes.to_vec()));
        self.at += len as usize;
        Ok(data)
    }

    /// Writes the next bytes of a state.
    pub fn write(&mut self, card: &Card<'_>, data: &[u8]) -> Answer {
        if self.state != DeviceState::Resuming || data.len() > self.transfer as usize {
            return Err(Errno::INVAL);
        }
        if data.len() > card.state_len() - self.at {
            return Err(self.fail(card, StateError::Length));
        }
        let mut left = data;
        for bytes in card.state(self.at, data.len()) {
            left = &left[bytes.copy_in(left)..];
        }
        self.at += data.len();
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests;
