//! A user-space driver of the PCnet family. It brings the chip up as Linux's pcnet32 does, with
//! descriptors of software style 2, and counts its traps.

mod lent;
mod placed;
mod ring;

use core::sync::atomic::{Ordering, fence};

use abi::csb::{Direction, NONE, PAGE, Version};
use frame::Mac;
use shmem::Bytes;

use self::ring::{Ring, low};
use crate::csb;
use crate::dma::within_a_page;
use crate::{Chunk, Dma, Regs};

/// Bytes of a buffer, as in pcnet32.
pub const BUFFER: u32 = 1544;
/// Bytes of the initialization block and of a descriptor, which are also their alignment.
const INIT_BLOCK: usize = 28;
const DESCRIPTOR: usize = 16;
/// Bytes of a check sequence.
const CHECK: u32 = 4;

const OWN: u32 = 1 << 31;
const ERR: u32 = 1 << 30;
const STP: u32 = 1 << 25;
const ENP: u32 = 1 << 24;
/// The four bits above a byte count.
const ONES: u32 = 0xf000;

/// CSR0.
const INIT: u16 = 1;
const STRT: u16 = 2;
const STOP: u16 = 4;
const TDMD: u16 = 8;
const IENA: u16 = 0x40;
const IDON: u16 = 0x100;
const MISS: u16 = 0x1000;
/// The bits that make an interrupt worth handling: ERR, MISS to TINT, INTR.
const WORTH_A_LOOK: u16 = 0x8f00;
/// The lowest quarter of the status block's address.
const CSBA: u16 = 96;
/// CSR4: pad short frames; mask counters, collisions, starts.
const FEATURES: u16 = 0x0915;
/// CSR3: all causes.
const MASKS: u16 = 0x5f00;

/// Register windows (Am79C970A, "I/O Resources").
const DATA: u64 = 0x10;
const ADDRESS: u64 = 0x12;
const RESET: u64 = 0x14;
const BUS: u64 = 0x16;

/// The reason why a device cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The registers do not behave like a PCnet's after a reset.
    #[error("There is no PCnet behind these registers: after a reset, CSR0 is {0:#06x}")]
    NotThere(u16),
    /// The chip id is of another maker or kind.
    #[error("This is not a PCnet: its chip id is {0:#010x}")]
    ChipId(u32),
    /// The device did not read the initialization block.
    #[error("The controller does not initialize: CSR0 is {0:#06x}")]
    Init(u16),
    /// The device does not support the requested shared status block.
    #[error("The controller does not understand the status block")]
    Block,
    /// There is not enough memory, or not all of it below 4 GiB.
    #[error("There is no memory below 4 GiB for the rings and buffers of a PCnet")]
    Memory,
}

/// Counts of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Register reads.
    pub reads: u64,
    /// Register writes.
    pub writes: u64,
    /// Transmit demands.
    pub demands: u64,
    /// Interrupts that were worth handling.
    pub interrupts: u64,
    /// Transmit demands that the status block made unnecessary.
    pub left_out: u64,
    /// Frames that were received with an error, or could not be sent.
    pub errors: u64,
}

/// How many descriptors a driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Transmit descriptors, as a power of two: at most 9.
    pub transmit: u8,
    /// Receive descriptors, as a power of two.
    pub receive: u8,
}

impl Default for Sizes {
    /// The sizes of pcnet32: 16 and 32.
    fn default() -> Self {
        Self { transmit: 4, receive: 5 }
    }
}

/// A shared status block, in a page of the driver's memory.
#[derive(Debug)]
struct Block {
    page: u64,
    block: csb::Block,
    send: csb::BlockQueue,
    receive: csb::BlockQueue,
}

impl Block {
    fn new(dma: &mut Dma, version: Version, sizes: Sizes) -> Option<Self> {
        let page = dma.take(PAGE as usize, PAGE as usize)?;
        let block = match version {
            Version::One => csb::Block::one(page.words(1)?, 1, false),
            Version::Two => csb::Block::two(page.words(1)?, 1, 1, 0),
        };
        let send = block.queue(Direction::Send, 0, 1 << sizes.transmit)?;
        let receive = block.queue(Direction::Receive, 0, 1 << sizes.receive)?;
        Some(Self { page: page.device(), block, send, receive })
    }
}

/// A driver that uses the I/O window (base address register 0), as pcnet32 does.
#[derive(Debug)]
pub struct Driver<R> {
    regs: R,
    sizes: Sizes,
    init_block: Chunk,
    transmit: Ring,
    receive: Ring,
    mac: Mac,
    chip: u32,
    counts: Counts,
    block: Option<Block>,
    /// How often the chip said that it missed frames, since that was asked for.
    missed: u64,
    /// The position up to which the chip was told of frames.
    demanded: u32,
    /// The caller gives receive buffers one by one.
    one_by_one: bool,
    /// Sent frames that were reclaimed, and whose buffers a caller has not taken back yet
    /// ([`Lent`](crate::Lent)).
    returned: u32,
}

impl<R: Regs> Driver<R> {
    /// Finds the chip and resets it.
    ///
    /// # Errors
    /// [`DriverError`] when there is none, or no memory.
    pub fn new(regs: R, dma: &mut Dma, sizes: Sizes) -> Result<Self, DriverError> {
        Self::build(regs, dma, sizes, None)
    }

    /// Works as [`new`](Self::new), with all frames in buffers of the caller's, which change hands
    /// by [`Lent`](crate::Lent). The receive descriptors begin with those at the device's addresses
    /// `lent`, of [`BUFFER`] bytes each, or without any if there are none.
    ///
    /// # Errors
    /// [`DriverError`]; [`DriverError::Memory`] if there are some, but fewer than descriptors.
    pub fn over(regs: R, dma: &mut Dma, sizes: Sizes, lent: &[u64]) -> Result<Self, DriverError> {
        let enough = lent.len() >> sizes.receive.min(9) > 0;
        if !enough && !lent.is_empty() {
            return Err(DriverError::Memory);
        }
        Self::build(regs, dma, sizes, Some(lent))
    }

    fn build(
        regs: R,
        dma: &mut Dma,
        sizes: Sizes,
        lent: Option<&[u64]>,
    ) -> Result<Self, DriverError> {
        let sizes = Sizes { transmit: sizes.transmit.min(9), receive: sizes.receive.min(9) };
        let mut parts = || {
            let init_block = dma.take(INIT_BLOCK, within_a_page(INIT_BLOCK))?;
            let send = Ring::new(dma, sizes.transmit, lent.map(|_| &[][..]))?;
            Some((init_block, (send, Ring::new(dma, sizes.receive, lent)?)))
        };
        let (init_block, (transmit, receive)) = parts().ok_or(DriverError::Memory)?;
        let (mac, counts) = (Mac::new([0; 6]), Counts::default());
        let mut driver = Self {
            regs,
            sizes,
            init_block,
            transmit,
            receive,
            mac,
            chip: 0,
            counts,
            block: None,
            missed: 0,
            demanded: 0,
            one_by_one: lent.is_some_and(<[u64]>::is_empty),
            returned: 0,
        };
        driver.probe()?;
        Ok(driver)
    }

    /// Uses a shared status block from the next [`start`](Self::start) on. Only controllers whose
    /// subsystem id says so have one.
    ///
    /// # Errors
    /// [`DriverError::Memory`].
    pub fn with_block(self, dma: &mut Dma, version: Version) -> Result<Self, DriverError> {
        let block = Block::new(dma, version, self.sizes).ok_or(DriverError::Memory)?;
        Ok(Self { block: Some(block), ..self })
    }

    /// Announces the status block to the controller.
    fn announce(&mut self) -> Result<(), DriverError> {
        let Some(block) = &mut self.block else { return Ok(()) };
        block.send.restart(self.transmit.len);
        block.receive.restart(self.receive.len);
        let page = block.page;
        for quarter in (0..4).rev() {
            self.set_csr(CSBA + quarter, (page >> (16 * quarter)) as u16);
        }
        let accepted = self.block.as_ref().and_then(|block| block.block.accepted());
        if accepted == Some([1, 1]) { Ok(()) } else { Err(DriverError::Block) }
    }

    /// Switches the queues to the block. The first received frame is worth an interrupt.
    fn turn_on(&mut self) {
        let Some(block) = &mut self.block else { return };
        block.send.turn(true);
        block.receive.turn(true);
        block.receive.sleep(NONE);
        self.set_csr(0, IENA | TDMD);
    }

    /// Prepares to sleep without frames: asks for an interrupt. Returns true if there are frames
    /// already; then it asks for nothing. Without a status block, interrupts come anyway.
    pub fn wait_for_frames(&mut self) -> bool {
        self.ask(false, true);
        let frames = self.receive.has_frames();
        if let (true, Some(block)) = (frames, &mut self.block) {
            block.receive.wake();
        }
        frames
    }

    /// Prepares to sleep without room: asks for an interrupt when something was sent. Returns true
    /// if there is room already; then it asks for nothing. Without a status block, interrupts come
    /// anyway.
    pub fn wait_for_room(&mut self) -> bool {
        self.ask(true, false);
        self.reap();
        let room = self.room() > 0;
        if let (true, Some(block)) = (room, &mut self.block) {
            block.send.wake();
        }
        room
    }

    /// Asks for an interrupt when something was sent (`room`), and when a frame has come
    /// (`frames`). The caller looks at both once more before it sleeps. Without a status block,
    /// interrupts come anyway.
    pub fn ask(&mut self, room: bool, frames: bool) {
        let Some(block) = &mut self.block else { return };
        if room {
            block.send.sleep(NONE);
        }
        if frames {
            block.receive.sleep(NONE);
        }
    }

    /// The status block's fault; 0 if there is no fault or no block.
    #[must_use]
    pub fn block_fault(&self) -> u32 {
        self.block.as_ref().map_or(0, |block| block.block.fault())
    }

    fn probe(&mut self) -> Result<(), DriverError> {
        self.reset();
        let status = self.csr(0);
        self.write(ADDRESS, 88);
        if status != STOP || self.read(ADDRESS) != 88 {
            return Err(DriverError::NotThere(status));
        }
        let chip = u32::from(self.csr(88)) | u32::from(self.csr(89)) << 16;
        if chip & 0xfff != 3 {
            return Err(DriverError::ChipId(chip));
        }
        let mut octets = [0; 6];
        for (half, octets) in octets.chunks_exact_mut(2).enumerate() {
            octets.copy_from_slice(&self.read(2 * half as u64).to_le_bytes());
        }
        (self.chip, self.mac) = (chip, Mac::new(octets));
        Ok(())
    }

    /// The station address in the chip's PROM.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// CSR88 and CSR89.
    pub fn chip(&self) -> u32 {
        self.chip
    }

    /// The driver's counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The registers.
    pub fn regs(&mut self) -> &mut R {
        &mut self.regs
    }

    fn read(&mut self, at: u64) -> u16 {
        self.counts.reads += 1;
        self.regs.read16(0, at)
    }

    fn write(&mut self, at: u64, value: u16) {
        self.counts.writes += 1;
        self.regs.write16(0, at, value);
    }

    /// Reads a CSR.
    pub fn csr(&mut self, number: u16) -> u16 {
        self.write(ADDRESS, number);
        self.read(DATA)
    }

    /// Writes a CSR.
    pub fn set_csr(&mut self, number: u16, value: u16) {
        self.write(ADDRESS, number);
        self.write(DATA, value);
    }

    /// Reads a BCR.
    pub fn bcr(&mut self, number: u16) -> u16 {
        self.write(ADDRESS, number);
        self.read(BUS)
    }

    /// Writes a BCR.
    pub fn set_bcr(&mut self, number: u16, value: u16) {
        self.write(ADDRESS, number);
        self.write(BUS, value);
    }

    /// Resets the chip: nothing is sent or received until [`start`](Self::start).
    pub fn reset(&mut self) {
        self.read(RESET);
    }

    /// Brings the chip up with empty rings, and with or without interrupts.
    ///
    /// # Errors
    /// [`DriverError::Init`] when it does not read its initialization block.
    pub fn start(&mut self, interrupts: bool, promiscuous: bool) -> Result<(), DriverError> {
        self.reset();
        self.set_bcr(20, 2);
        for ring in [&mut self.transmit, &mut self.receive] {
            (ring.ours, ring.back) = (0, 0);
            ring.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        (self.demanded, self.returned) = (0, 0);
        self.announce()?;
        self.refill();
        self.write_init_block(promiscuous);
        let at = self.init_block.device();
        self.set_csr(1, at as u16);
        self.set_csr(2, (at >> 16) as u16);
        self.set_csr(4, FEATURES);
        self.set_csr(0, INIT);
        let mut status = 0;
        for _ in 0..100 {
            status = self.csr(0);
            if status & IDON != 0 {
                self.set_csr(0, STRT | if interrupts { IENA } else { 0 });
                self.turn_on();
                return Ok(());
            }
        }
        Err(DriverError::Init(status))
    }

    fn write_init_block(&self, promiscuous: bool) {
        let mut block = [0; INIT_BLOCK];
        block[1] = if promiscuous { 0x80 } else { 0 };
        (block[2], block[3]) = (self.sizes.receive << 4, self.sizes.transmit << 4);
        block[4..10].copy_from_slice(&self.mac.octets());
        block[20..24].copy_from_slice(&self.receive.device.to_le_bytes());
        block[24..28].copy_from_slice(&self.transmit.device.to_le_bytes());
        self.init_block.bytes().copy_in(&block);
    }

    /// Hands over empty buffers, as many as there are.
    fn refill(&mut self) {
        if self.one_by_one {
            return;
        }
        let ring = &mut self.receive;
        // With a status block, one descriptor stays unused: positions must not be ambiguous.
        let spare = u32::from(self.block.is_some());
        while ring.room() > spare {
            ring.give(ring.ours, BUFFER, OWN);
            ring.ours = ring.ours.wrapping_add(1);
        }
    }

    /// Queues a frame, in pieces of at most `piece` bytes. Returns false without room, or for a
    /// frame that is too long. The frame leaves at the next [demand](Self::demand), or when the
    /// chip polls.
    pub fn send(&mut self, frame: &[u8], piece: usize) -> bool {
        let pieces = frame.chunks(piece.clamp(1, BUFFER as usize));
        let (count, ring) = (pieces.len() as u32, &mut self.transmit);
        let spare = u32::from(self.block.is_some());
        if count == 0 || count + spare > ring.room() {
            return false;
        }
        // The first piece is handed over last.
        for (place, piece) in pieces.enumerate().rev() {
            let number = ring.ours.wrapping_add(place as u32);
            ring.buffer(number).copy_in(piece);
            let first = if place == 0 { STP } else { 0 };
            let last = if place as u32 + 1 == count { ENP } else { 0 };
            ring.give(number, piece.len() as u32, OWN | first | last);
        }
        ring.ours = ring.ours.wrapping_add(count);
        true
    }

    /// Makes the chip look at the transmit ring: two traps, unless the status block says that it
    /// polls.
    pub fn demand(&mut self) {
        self.demanded = self.transmit.ours;
        let tail = self.transmit.ours & (self.transmit.len - 1);
        if let Some(block) = &mut self.block {
            if !block.send.publish(tail) {
                self.counts.left_out += 1;
                return;
            }
        } else {
            fence(Ordering::SeqCst);
        }
        self.counts.demands += 1;
        self.set_csr(0, IENA | TDMD);
    }

    /// Reclaims sent descriptors. Returns how many.
    pub fn reap(&mut self) -> u32 {
        let ring = &mut self.transmit;
        let before = ring.back;
        while ring.back != ring.ours {
            let status = ring.status(ring.back);
            if status & OWN != 0 {
                break;
            }
            self.counts.errors += u64::from(status & ERR != 0);
            ring.back = ring.back.wrapping_add(1);
        }
        let reaped = ring.back.wrapping_sub(before);
        self.returned = self.returned.wrapping_add(reaped);
        reaped
    }

    /// How many descriptors of the transmit ring are free.
    pub fn room(&self) -> u32 {
        self.transmit.room().saturating_sub(u32::from(self.block.is_some()))
    }

    /// Shows received frames to `visit`, at most `most`, without their check sequences. Hands their
    /// buffers over again. Returns how many frames there were.
    pub fn receive(&mut self, most: usize, mut visit: impl FnMut(Bytes<'_>)) -> usize {
        let mut seen = 0;
        while seen < most {
            let ring = &mut self.receive;
            let number = ring.back;
            let Some(len) = ring.whole(number) else { break };
            ring.back = number.wrapping_add(1);
            seen += 1;
            match len {
                Some(len) => visit(ring.buffer(number).prefix(len as usize)),
                None => self.counts.errors += 1,
            }
        }
        self.refill();
        seen
    }

    /// Does what pcnet32's interrupt routine does first: takes the causes, and masks all of them
    /// until [`unmask`](Self::unmask). False if there were none.
    pub fn acknowledge(&mut self) -> bool {
        let status = self.csr(0);
        if status & WORTH_A_LOOK == 0 {
            return false;
        }
        self.counts.interrupts += 1;
        self.missed += u64::from(status & MISS != 0);
        self.set_csr(0, status & !(INIT | STRT | STOP | TDMD | IENA));
        let masks = self.csr(3);
        self.set_csr(3, masks | MASKS);
        true
    }

    /// Does what pcnet32's poll does last.
    pub fn unmask(&mut self) {
        let masks = self.csr(3);
        self.set_csr(3, masks & !MASKS);
        self.set_csr(0, IENA);
    }

    /// Stops the chip.
    pub fn stop(&mut self) {
        self.set_csr(0, STOP);
    }
}
