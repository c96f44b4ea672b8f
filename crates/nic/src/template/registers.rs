//! The registers: one row each, and the state behind them.

use std::sync::atomic::{AtomicU32, Ordering};

use shmem::Shareable;

use super::Core;
use crate::device::Impossible;
use crate::model::fault::faults;
use crate::model::regs::{Access, RegisterTable, Row};

/// Buffers in each direction.
pub const FRAMES: u32 = 256;
/// Bytes of a buffer.
pub const BUFFER: u32 = 2048;
/// Bytes of the area: the buffers to send from, then those to receive into.
pub const AREA: u64 = 2 * FRAMES as u64 * BUFFER as u64;

/// Offsets in base address register 0.
pub mod reg {
    #![allow(missing_docs, reason = "the table says what they are")]
    pub const ID: u64 = 0x00;
    pub const STATUS: u64 = 0x04;
    pub const CONTROL: u64 = 0x08;
    pub const AREA_LOW: u64 = 0x0c;
    pub const AREA_HIGH: u64 = 0x10;
    pub const MAC_LOW: u64 = 0x14;
    pub const MAC_HIGH: u64 = 0x18;
    pub const SEND: u64 = 0x1c;
    pub const RECEIVE: u64 = 0x20;
    pub const SENT: u64 = 0x24;
}

/// What ID reads as: "ONE1".
pub const ID: u32 = u32::from_le_bytes(*b"ONE1");
/// Bits of STATUS: the cable is connected; frames wait; the driver has caused a fault.
pub const STATUS_LINK: u32 = 1 << 0;
pub const STATUS_WAITING: u32 = 1 << 1;
pub const STATUS_FAULT: u32 = 1 << 2;
/// CONTROL: frames pass; the pin is raised while frames wait; frames for other stations are
/// received, too.
pub const ENABLE: u32 = 1 << 0;
pub const INTERRUPT: u32 = 1 << 1;
pub const PROMISCUOUS: u32 = 1 << 2;
const SETTABLE: u32 = ENABLE | INTERRUPT | PROMISCUOUS;
/// CONTROL, written: restores the power-on state.
pub const RESET: u32 = 1 << 31;

/// The effects of accesses.
#[derive(Clone, Copy)]
pub struct Act {
    /// Gives the value of a read; `None` where it reads as 0.
    read: Option<fn(&Core) -> u32>,
    /// Does what a write does; `None` where that is nothing.
    write: Option<fn(&Core, u32)>,
}

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Act(reads: {}, writes: {})", self.read.is_some(), self.write.is_some())
    }
}

/// A register: `at` is an offset.
pub type Register = Row<Act>;

/// A register that can only be read.
const fn ro(at: u64, name: &'static str, read: fn(&Core) -> u32) -> Register {
    let row = Row::new(at as u32, name, 0, 0, Act { read: Some(read), write: None });
    Register { access: Access::ReadOnly, ..row }
}

/// A register that keeps the written bits in `mask`.
const fn rw(
    at: u64,
    name: &'static str,
    mask: u32,
    read: fn(&Core) -> u32,
    write: fn(&Core, u32),
) -> Register {
    Row::new(at as u32, name, mask, 0, Act { read: Some(read), write: Some(write) })
}

/// All registers, in order.
pub const REGISTERS: &[Register] = &[
    Register { reset: [ID; 2], ..ro(reg::ID, "ID", |_| ID) },
    ro(reg::STATUS, "STATUS", Core::status),
    rw(
        reg::CONTROL,
        "CONTROL",
        SETTABLE | RESET,
        |core| core.registers.control.load(Ordering::Relaxed),
        Core::set_control,
    ),
    rw(
        reg::AREA_LOW,
        "AREA_LOW",
        u32::MAX,
        |core| core.registers.area[0].load(Ordering::Relaxed),
        |core, value| core.set_area(0, value),
    ),
    rw(
        reg::AREA_HIGH,
        "AREA_HIGH",
        u32::MAX,
        |core| core.registers.area[1].load(Ordering::Relaxed),
        |core, value| core.set_area(1, value),
    ),
    ro(reg::MAC_LOW, "MAC_LOW", |core| core.mac_word(0)),
    ro(reg::MAC_HIGH, "MAC_HIGH", |core| core.mac_word(4)),
    Register {
        access: Access::WriteOnly,
        ..Row::new(
            reg::SEND as u32,
            "SEND",
            u32::MAX,
            0,
            Act { read: None, write: Some(Core::send) },
        )
    },
    ro(reg::RECEIVE, "RECEIVE", Core::receive),
    ro(reg::SENT, "SENT", |core| core.registers.sent_done.load(Ordering::Relaxed)),
];

/// The table, for documentation.
pub(crate) fn table() -> RegisterTable {
    let text = |name: &str| match name {
        "ID" => "says what it is",
        "STATUS" => "bit 0: the cable is connected; bit 1: frames wait; bit 2: a fault",
        "CONTROL" => {
            "bit 0: on; bit 1: the pin tells of frames; bit 2: promiscuous; bit 31: resets"
        }
        "AREA_LOW" | "AREA_HIGH" => "moves the area",
        "MAC_LOW" | "MAC_HIGH" => "the station address",
        "SEND" => "sends the buffer of this number (low half), of this length (high half)",
        "RECEIVE" => {
            "gives the next frame's buffer and length, or 0, and takes back the one before"
        }
        _ => "frames that are done",
    };
    RegisterTable {
        title: "One-access NIC: offsets in base address register 0",
        chips: &["one-access"],
        step: 4,
        rows: REGISTERS.iter().map(|row| row.described(|_| text(row.name).to_owned())).collect(),
    }
}

/// Reads the register at an offset; 0 where there is none.
pub(super) fn read(core: &Core, at: u64) -> u32 {
    let register = REGISTERS.get((at / 4) as usize);
    register.and_then(|register| register.effect.read).map_or(0, |read| read(core))
}

/// Writes the register at an offset.
pub(super) fn write(core: &Core, at: u64, value: u32) {
    let register = REGISTERS.get((at / 4) as usize);
    if let Some(write) = register.and_then(|register| register.effect.write) {
        write(core, value);
    }
}

faults! {
    /// Errors of the driver. The device stops until the driver resets it.
    Fault {
        /// The length or place in SEND is not valid.
        Send = 1, "SEND names another buffer than the next, or a length that no frame has";
        /// More frames in flight than there are buffers.
        Overrun = 2, "SEND was written with all buffers in flight";
        /// The area lies outside of the guest's memory.
        Area = 3, "the area lies outside of the guest's memory";
        /// Pages of the guest's memory are gone.
        Memory = 4, "the guest's memory was taken away";
        /// The guest's memory comes by messages.
        Copy = 5, "the guest's memory comes by messages, which this NIC does not do";
    }
}

/// The state of the device, in memory that outlives a data process. Zeros are a device that was
/// never powered on.
#[derive(Debug)]
#[repr(C)]
pub struct Registers {
    pub(super) control: AtomicU32,
    /// The guest's address of the area, low word first.
    pub(super) area: [AtomicU32; 2],
    pub(super) fault: AtomicU32,
    pub(super) bus_master: AtomicU32,
    pub(super) link: AtomicU32,
    /// Counts resets and moves of the area: buffers lent before one are not given back.
    pub(super) epoch: AtomicU32,
    /// Frames that the driver has sent, that were gathered, and that are done; modulo 2^32. Only
    /// one thread uses them.
    pub(super) sent: AtomicU32,
    pub(super) sent_taken: AtomicU32,
    pub(super) sent_done: AtomicU32,
    /// Frames that were received, modulo 2^32.
    ///
    /// # Protocol: template: `Registers.received`
    /// - Writer: holder of the receive lock
    /// - Reader: home worker, when the driver reads RECEIVE
    /// - Ordering: store release / load acquire
    /// - Partner: the buffer, `received_len`
    /// - Without it: the driver reads a frame before its bytes
    /// - Shown by: `nic` tests `template`
    pub(super) received: AtomicU32,
    /// Frames that the driver has read.
    pub(super) received_taken: AtomicU32,
    /// Buffers that the driver has given back.
    ///
    /// # Protocol: template: `Registers.received_freed`
    /// - Writer: home worker, when the driver reads RECEIVE
    /// - Reader: holder of the receive lock
    /// - Ordering: store release / load acquire
    /// - Partner: the buffer
    /// - Without it: a buffer is overwritten that the driver still reads
    /// - Shown by: `nic` tests `template`
    pub(super) received_freed: AtomicU32,
    /// What the driver wrote to SEND, by frame number.
    pub(super) sends: [AtomicU32; FRAMES as usize],
    /// Lengths of received frames, by frame number.
    pub(super) received_len: [AtomicU32; FRAMES as usize],
}

// SAFETY: the type consists of atomic words only, without padding between them.
#[allow(unsafe_code, reason = "the registers lie in shared memory")]
unsafe impl Shareable for Registers {}

impl Registers {
    /// Words that a reset clears.
    fn cleared(&self) -> [&AtomicU32; 10] {
        let [low, high] = &self.area;
        let sending = [&self.sent, &self.sent_taken, &self.sent_done];
        let [sent, taken, done] = sending;
        let (received, read, freed) = (&self.received, &self.received_taken, &self.received_freed);
        [&self.control, low, high, &self.fault, sent, taken, done, received, read, freed]
    }

    /// Resets the state as power-on does. Lent buffers are lost to the driver.
    pub(super) fn reset(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.cleared().into_iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// A predecessor may have delivered what it gathered, so that counts as done.
    pub(super) fn take_over_lent(&self, link: bool) {
        self.sent_done.store(self.sent_taken.load(Ordering::Relaxed), Ordering::Relaxed);
        self.link.store(u32::from(link), Ordering::Relaxed);
    }

    /// The guest's address of the area.
    pub(super) fn area(&self) -> u64 {
        let [low, high] = self.area.each_ref().map(|word| u64::from(word.load(Ordering::Acquire)));
        low | high << 32
    }

    /// True if frames pass.
    pub(super) fn is_ready(&self) -> bool {
        let on = |word: &AtomicU32| word.load(Ordering::Acquire) != 0;
        let enabled = self.control.load(Ordering::Acquire) & ENABLE != 0;
        enabled && on(&self.bus_master) && on(&self.link) && !on(&self.fault)
    }

    /// Refuses a state that no driver's accesses can produce.
    ///
    /// # Errors
    /// [`Impossible`] names the register.
    pub fn take_over(&self) -> Result<(), Impossible> {
        let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
        Impossible::check("CONTROL", word(&self.control), (0u64, u64::from(SETTABLE)))?;
        Impossible::limit("the fault", word(&self.fault), Fault::LAST)?;
        let ahead = |of: &AtomicU32, what| word(of).wrapping_sub(word(what));
        Impossible::limit("frames in flight", ahead(&self.sent, &self.sent_done), FRAMES)?;
        Impossible::limit("frames gathered", ahead(&self.sent_taken, &self.sent_done), FRAMES)?;
        Impossible::limit("frames to gather", ahead(&self.sent, &self.sent_taken), FRAMES)?;
        Impossible::limit("buffers filled", ahead(&self.received, &self.received_freed), FRAMES)?;
        Impossible::limit("frames to read", ahead(&self.received, &self.received_taken), FRAMES)?;
        Impossible::limit("buffers kept", ahead(&self.received_taken, &self.received_freed), 1)?;
        let long = |lens: &[AtomicU32]| lens.iter().map(word).find(|len| *len > BUFFER);
        match long(&self.received_len) {
            Some(value) => Err(Impossible { what: "a length", value: value.into() }),
            None => Ok(()),
        }
    }
}
