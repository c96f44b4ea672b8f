//! Drivers of the e1000 family in user space.
//!
//! ```text
//!   send, send, flush --> descriptors --> doorbell: at once | combined | by the status block --> NIC
//!   receive <-- descriptors <-- NIC;  refill --> doorbell, for many buffers at once
//!   interrupt(vectors) --> look --> rearm
//! ```
//!
//! Bring-up follows the manuals (8254x: chapter 14; 82574: section 4.6), in the order of stock
//! drivers. A driver that avoids most traps differs from a stock one in two places: how it
//! publishes a tail (`flush_tail`), and what it does before it sleeps.

mod receive;
pub mod regs;
mod setup;
mod transmit;

use core::sync::atomic::{Ordering, fence};

use frame::Mac;

use self::receive::Receive;
pub use self::receive::{Checked, Received};
use self::regs::cause;
pub use self::setup::SetupError;
pub use self::transmit::Request;
use self::transmit::Transmit;
use crate::csb;
use crate::{Chunk, Lent, MOST_PIECES, Piece, Regs};
use abi::csb::{Direction, NONE, Version};
pub use abi::e1000::Chip;

/// How the driver tells the NIC about new descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doorbells {
    /// Through the tail registers, at each flush.
    #[default]
    Each,
    /// Through the tail registers, but while an interrupt is expected, new frames wait for it (send
    /// combining). Needs interrupts.
    Combined,
    /// Through a shared status block.
    Block(Version),
}

/// How the driver learns of completed work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interrupts {
    /// The driver polls.
    #[default]
    None,
    /// Through the pin (or one message). The driver reads and clears the causes in ICR.
    Pin,
    /// Through one vector each for receive (0), transmit (1) and the rest (2), which clear their
    /// own causes. 82574L only.
    Msix,
}

/// Interrupt delays, in the units of their registers; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Least time between two interrupts, in 256 ns (ITR, EITR).
    pub interval: u16,
    /// Delay after the last received frame, in 1.024 us (RDTR).
    pub receive: u16,
    /// Longest delay after the first received frame (RADV).
    pub receive_most: u16,
    /// Delay after the last sent frame (TIDV).
    pub transmit: u16,
    /// Longest delay after the first sent frame (TADV).
    pub transmit_most: u16,
}

/// How a driver is configured.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The chip.
    pub chip: Chip,
    /// Transmit descriptors: a multiple of 8.
    pub transmit: u32,
    /// Receive descriptors: a multiple of 8.
    pub receive: u32,
    /// Bytes of a buffer: 256, 512, 1024, 2048, 4096, 8192 or 16384.
    pub buffer: u32,
    /// True to receive frames above 1,522 bytes, too.
    pub long_frames: bool,
    /// True to receive all frames, whatever their address.
    pub promiscuous: bool,
    /// True to strip and insert VLAN tags.
    pub vlan: bool,
    /// True to check checksums of received frames.
    pub checksum: bool,
    /// 82574L: true to give receive descriptors the extended form.
    pub extended: bool,
    /// How the driver tells the NIC about new descriptors.
    pub doorbells: Doorbells,
    /// How the driver learns of completed work.
    pub interrupts: Interrupts,
    /// Interrupt delays.
    pub moderation: Moderation,
    /// How many buffers to give back before the driver tells the NIC.
    pub refill: u32,
    /// With a status block: how long, in microseconds, the NIC should poll before it sleeps.
    pub spin_us: u32,
    /// True to read a register after writes that must not be late, as stock drivers do.
    pub flush_writes: bool,
}

impl Config {
    /// The configuration of a stock driver: rings of 256, the NIC's best kind of interrupt, refills
    /// of 16.
    #[must_use]
    pub fn stock(chip: Chip) -> Self {
        let is_574 = chip == Chip::L82574;
        Self {
            chip,
            transmit: 256,
            receive: 256,
            buffer: 2048,
            long_frames: false,
            promiscuous: false,
            vlan: false,
            checksum: true,
            extended: is_574,
            doorbells: Doorbells::Each,
            interrupts: if is_574 { Interrupts::Msix } else { Interrupts::Pin },
            moderation: Moderation::default(),
            refill: 16,
            spin_us: 0,
            flush_writes: true,
        }
    }
}

/// Counts of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames handed to the NIC.
    pub sent: u64,
    /// Frames that completed.
    pub done: u64,
    /// Frames received.
    pub received: u64,
    /// Register reads.
    pub reads: u64,
    /// Register writes, doorbells among them.
    pub writes: u64,
    /// Doorbells rung to send.
    pub send_doorbells: u64,
    /// Doorbells rung for new buffers.
    pub receive_doorbells: u64,
    /// Doorbells that were not rung, because they were unnecessary or deferred.
    pub left_out: u64,
    /// Interrupts.
    pub interrupts: u64,
}

/// Sending that waits for an interrupt (send combining).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Combining {
    /// No interrupt is expected: the driver rings doorbells.
    #[default]
    Idle,
    /// An interrupt is expected.
    Expected,
    /// An interrupt is expected, and there are more frames to send when it comes.
    Deferred,
}

/// The queues of a status block, and the block.
#[derive(Debug)]
struct Shared {
    block: csb::Block,
    page: Chunk,
    send: csb::BlockQueue,
    receive: csb::BlockQueue,
}

/// A driver of an 82540EM or 82574L.
#[derive(Debug)]
pub struct E1000Driver<R> {
    regs: R,
    config: Config,
    mac: Mac,
    transmit: Transmit,
    receive: Receive,
    shared: Option<Shared>,
    combining: Combining,
    counts: Counts,
    /// Completed frames whose buffers a caller has taken back ([`Lent`]).
    returned: u64,
}

/// Register accesses, counted.
impl<R: Regs> E1000Driver<R> {
    fn get(&mut self, at: u64) -> u32 {
        self.counts.reads += 1;
        self.regs.read32(0, at)
    }

    fn set(&mut self, at: u64, value: u32) {
        self.counts.writes += 1;
        self.regs.write32(0, at, value);
    }

    fn ring(&mut self, at: u64, value: u32) {
        // Publishes descriptors before the doorbell.
        fence(Ordering::Release);
        self.counts.writes += 1;
        self.regs.ring32(0, at, value);
    }

    /// Waits until earlier writes have arrived, if the configuration asks for that.
    fn flush_writes(&mut self) {
        if self.config.flush_writes {
            self.get(regs::STATUS);
        }
    }
}

impl<R: Regs> E1000Driver<R> {
    /// The NIC's station address.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// The driver's counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Its registers.
    pub fn regs(&mut self) -> &mut R {
        &mut self.regs
    }

    /// The status block's fault; 0 if there is no fault or no block. See
    /// [`abi::csb::Fault`].
    #[must_use]
    pub fn block_fault(&self) -> u32 {
        self.shared.as_ref().map_or(0, |shared| shared.block.fault())
    }

    /// True if the queues use a status block.
    #[must_use]
    pub fn uses_block(&self) -> bool {
        self.shared.is_some()
    }

    // --- sending ---

    /// How many descriptors are free. A frame takes one for each buffer that it fills, and
    /// sometimes one more for its request.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u32 {
        self.transmit.room()
    }

    /// How many transmit descriptors the ring has. Each has a buffer, and all can be
    /// [placed](Self::place) into while nothing is sent.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.transmit.size
    }

    /// Queues a copy of a frame; false without room. The NIC learns of it at the next
    /// [`flush`](Self::flush).
    #[inline]
    pub fn send(&mut self, frame: &[u8], request: &Request) -> bool {
        let Ok(len) = u32::try_from(frame.len()) else { return false };
        let sent = self.transmit.add_copied(Some(frame), len, request);
        self.counts.sent += u64::from(sent);
        sent
    }

    /// Like [`send`](Self::send), for a frame of `len` bytes that is already in the buffers of the
    /// next descriptors: from earlier, or written to [`place`](Self::place).
    #[inline]
    pub fn send_placed(&mut self, len: u32, request: &Request) -> bool {
        let sent = self.transmit.add_copied(None, len, request);
        self.counts.sent += u64::from(sent);
        sent
    }

    /// The buffer of the descriptor `ahead` places after the next one.
    #[inline]
    #[must_use]
    pub fn place(&self, ahead: u32) -> shmem::Bytes<'_> {
        self.transmit.place(ahead)
    }

    /// Like [`send`](Self::send), for a frame in the caller's memory, in pieces by device address.
    /// The NIC owns them until the frame is [reclaimed](Self::reclaim).
    pub fn send_pieces(&mut self, pieces: &[(u64, u32)], request: &Request) -> bool {
        let sent = self.transmit.add_pieces(pieces, request);
        self.counts.sent += u64::from(sent);
        sent
    }

    /// Hands the queued frames to the NIC, with a doorbell if it needs one.
    #[inline]
    pub fn flush(&mut self) {
        if !self.transmit.unpublished() {
            return;
        }
        let tail = self.transmit.next;
        self.transmit.published = tail;
        let rings = match (&mut self.shared, self.config.doorbells) {
            (Some(shared), _) => shared.send.publish(tail),
            (None, Doorbells::Combined) if self.combining != Combining::Idle => {
                self.combining = Combining::Deferred;
                false
            }
            (None, Doorbells::Combined) => {
                self.combining = Combining::Expected;
                true
            }
            (None, _) => true,
        };
        self.ring_send(rings);
    }

    #[inline]
    fn ring_send(&mut self, rings: bool) {
        if rings {
            self.counts.send_doorbells += 1;
            self.ring(regs::TDT, self.transmit.published);
        } else {
            self.counts.left_out += 1;
        }
    }

    /// Reclaims sent frames. Returns how many, oldest first.
    #[inline]
    pub fn reclaim(&mut self) -> usize {
        let done = match &self.shared {
            Some(shared) => self.transmit.reclaim_to(shared.send.head()),
            None => self.transmit.reclaim(),
        };
        self.counts.done += done as u64;
        done
    }

    /// Prepares to sleep without room, after all frames were flushed. Asks for an interrupt when
    /// half the ring is done, or, for many descriptors, when anything is. Returns true if there is
    /// room already; then it asks for nothing. Without a status block, interrupts come anyway.
    pub fn wait_for_room(&mut self, descriptors: u32) -> bool {
        let (oldest, size) = (self.transmit.oldest, self.transmit.size);
        if let Some(shared) = &mut self.shared {
            let half = oldest + size / 2;
            shared.send.sleep(match half >= size {
                _ if descriptors > size / 4 => NONE,
                true => half - size,
                false => half,
            });
        }
        self.reclaim();
        let room = self.room() >= descriptors;
        if room && let Some(shared) = &mut self.shared {
            shared.send.wake();
        }
        room
    }

    /// Ends a wait for an interrupt (send combining): deferred frames go out.
    fn combined(&mut self) {
        self.combining = match self.combining {
            Combining::Deferred => {
                self.ring_send(true);
                Combining::Expected
            }
            _ => Combining::Idle,
        };
    }

    // --- receiving ---

    /// Shows up to `budget` received frames to `visit`, and gives their buffers back. Tells the NIC
    /// once for [`Config::refill`] buffers. Returns how many frames there were.
    #[inline]
    pub fn receive(&mut self, budget: usize, visit: impl FnMut(Received<'_>)) -> usize {
        let frames = self.receive.poll(budget, visit);
        self.counts.received += frames as u64;
        if self.receive.unpublished() >= self.config.refill {
            self.refill();
        }
        frames
    }

    /// Tells the NIC of all buffers that were given back.
    #[inline]
    pub fn refill(&mut self) {
        if self.receive.unpublished() == 0 {
            return;
        }
        let tail = self.receive.tail();
        self.receive.published = tail;
        if self.shared.as_mut().is_none_or(|shared| shared.receive.publish(tail)) {
            self.counts.receive_doorbells += 1;
            self.ring(regs::RDT, tail);
        } else {
            self.counts.left_out += 1;
        }
    }

    /// Prepares to sleep without frames: asks for an interrupt. Returns true if there are frames
    /// already; then it asks for nothing. Without a status block, interrupts come anyway.
    pub fn wait_for_frames(&mut self) -> bool {
        self.ask(false, true);
        let frames = self.receive.has_frames();
        if frames && let Some(shared) = &mut self.shared {
            shared.receive.wake();
        }
        frames
    }

    /// Asks for an interrupt when something was sent (`room`), and when a frame has come
    /// (`frames`). The caller looks at both once more before it sleeps. Without a status block,
    /// interrupts come anyway.
    pub fn ask(&mut self, room: bool, frames: bool) {
        let Some(shared) = &mut self.shared else { return };
        if room {
            shared.send.sleep(NONE);
        }
        if frames {
            shared.receive.sleep(NONE);
        }
    }

    // --- interrupts ---

    /// Handles an interrupt on `vectors`, a bit each (for the pin, bit 0 alone). Returns the
    /// causes, in ICR's format; 0 if another device interrupted. [`rearm`](Self::rearm) unmasks
    /// what it masks.
    pub fn interrupt(&mut self, vectors: u32) -> u32 {
        self.counts.interrupts += 1;
        let causes = match self.config.interrupts {
            Interrupts::Msix => self.message_causes(vectors),
            _ => self.get(regs::ICR),
        };
        let sleeps_by_block = self.shared.is_some();
        if let Some(shared) = &mut self.shared {
            shared.send.wake();
            shared.receive.wake();
        } else if causes != 0 && self.config.interrupts == Interrupts::Pin {
            self.set(regs::IMC, u32::MAX);
            self.flush_writes();
        }
        if !sleeps_by_block && causes & (cause::TXDW | cause::TXQ0) != 0 {
            self.reclaim();
            if self.config.doorbells == Doorbells::Combined {
                self.combined();
            }
        }
        causes
    }

    /// The causes for which the vectors are used. Data vectors need no register read.
    fn message_causes(&mut self, vectors: u32) -> u32 {
        let flag = |vector: u32, cause: u32| if vectors >> vector & 1 != 0 { cause } else { 0 };
        let data = flag(0, cause::RXQ0) | flag(1, cause::TXQ0);
        if vectors >> 2 & 1 != 0 { data | self.get(regs::ICR) } else { data }
    }

    /// Allows interrupts again after the work is done. With a status block, nothing was masked.
    pub fn rearm(&mut self) {
        if self.shared.is_some() {
            return;
        }
        match self.config.interrupts {
            Interrupts::None => {}
            Interrupts::Pin => {
                self.set(regs::IMS, self.causes());
                self.flush_writes();
            }
            Interrupts::Msix => self.set(regs::IMS, self.causes()),
        }
    }

    /// The causes that the driver enables.
    fn causes(&self) -> u32 {
        let link = cause::LSC;
        match self.config.interrupts {
            Interrupts::None => 0,
            Interrupts::Pin => {
                cause::RXT0 | cause::TXDW | cause::RXDMT0 | cause::RXO | cause::RXSEQ | link
            }
            Interrupts::Msix => cause::RXQ0 | cause::TXQ0 | cause::OTHER | link,
        }
    }

    /// True if the link is up.
    pub fn link(&mut self) -> bool {
        self.get(regs::STATUS) & regs::status::LU != 0
    }
}

impl<R: Regs> Lent for E1000Driver<R> {
    fn room(&self) -> usize {
        self.transmit.room() as usize
    }

    fn most_pieces(&self) -> usize {
        if self.config.long_frames { MOST_PIECES } else { 1 }
    }

    #[inline]
    fn send_lent(&mut self, pieces: &[(u64, u32)]) -> bool {
        pieces.len() <= self.most_pieces() && self.send_pieces(pieces, &Request::default())
    }

    fn take_back(&mut self) -> usize {
        // An interrupt reclaims, too.
        self.reclaim();
        let back = self.counts.done - self.returned;
        self.returned = self.counts.done;
        back as usize
    }

    #[inline]
    fn trade(
        &mut self,
        budget: usize,
        mut trade: impl FnMut(u32, Option<Piece>) -> Option<u64>,
    ) -> usize {
        let mut frames = 0;
        let most = self.most_pieces();
        let traded = self.receive.trade((budget, most), |descriptor, piece| {
            let next = trade(descriptor, piece);
            let ends = piece.is_some_and(|piece| piece.after == 0 && piece.len > 0);
            frames += u64::from(next.is_some() && ends);
            next
        });
        self.counts.received += frames;
        if self.receive.unpublished() >= self.config.refill {
            self.refill();
        }
        traded
    }

    #[inline]
    fn give(&mut self, at: u64) -> bool {
        self.receive.give(at)
    }

    #[inline]
    fn take(&mut self, budget: usize, mut visit: impl FnMut(Option<u32>)) -> usize {
        let mut frames = 0;
        let taken = self.receive.take(budget, |len| {
            frames += u64::from(len.is_some());
            visit(len);
        });
        self.counts.received += frames;
        taken
    }

    fn publish(&mut self) {
        self.flush();
        self.refill();
    }

    fn has_frames(&self) -> bool {
        self.receive.has_whole(self.most_pieces())
    }

    fn carrier(&mut self) -> bool {
        self.link()
    }

    fn missed(&mut self) -> u64 {
        self.get(regs::MPC).into()
    }
}

/// Sets up a new block in a page that no device uses.
fn share(page: Chunk, config: &Config, version: Version) -> Option<Shared> {
    page.bytes().fill(0);
    let block = match version {
        Version::One => {
            let msix = config.interrupts == Interrupts::Msix;
            csb::Block::one(page.words(1)?, config.spin_us.saturating_add(1), msix)
        }
        Version::Two => csb::Block::two(page.words(1)?, 1, 1, config.spin_us),
    };
    let send = block.queue(Direction::Send, 0, config.transmit)?;
    let receive = block.queue(Direction::Receive, 0, config.receive)?;
    Some(Shared { block, page, send, receive })
}
