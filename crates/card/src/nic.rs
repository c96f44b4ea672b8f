//! The cards that there are drivers for, by their identity in configuration space.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use abi::csb::Version;
use driver::e1000::{Chip, Config, Doorbells, E1000Driver, Interrupts, Request, SetupError};
use driver::pcnet::{DriverError, Sizes};
use driver::{Dma, Lent, Piece, Regs, pcnet};
use frame::Mac;
use rustix::event::EventfdFlags;

use crate::vfio::{self, Card, Interrupt, VfioError};

/// The sizes of a PCnet's rings, as powers of two.
const SIZES: Sizes = Sizes { transmit: 8, receive: 8 };
/// Descriptors of an e1000's rings, each.
const DESCRIPTORS: u32 = 256;
/// The payload of a standard frame, in bytes.
const STANDARD: u16 = 1500;

/// A model of card.
#[derive(Debug)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// Vendor and device in configuration space.
    identity: (u16, u16),
    /// The chip, if it is of the e1000 family.
    chip: Option<Chip>,
    interrupt: Interrupt,
    /// The interrupts that its driver uses.
    vectors: usize,
    /// The largest payload of a frame, in bytes.
    mtu: u16,
}

const MODELS: [Model; 3] = [
    Model {
        name: "82540EM",
        identity: (0x8086, 0x100e),
        chip: Some(Chip::Em82540),
        interrupt: Interrupt::Pin,
        vectors: 1,
        // Frames of up to 16,110 bytes (8254x manual, 1.3).
        mtu: 9216,
    },
    Model {
        name: "82574L",
        identity: (0x8086, 0x10d3),
        chip: Some(Chip::L82574),
        interrupt: Interrupt::MsiX,
        vectors: 3,
        // Frames of up to 9,018 bytes (82574 datasheet, 1.3).
        mtu: 9000,
    },
    Model {
        name: "PCnet",
        identity: (0x1022, 0x2000),
        chip: None,
        interrupt: Interrupt::Pin,
        vectors: 1,
        mtu: STANDARD,
    },
];

impl Model {
    /// The model of a card.
    ///
    /// # Errors
    /// [`NicError::Unknown`] if no driver is for it, [`NicError::Card`].
    pub fn of(card: &Card) -> Result<&'static Self, NicError> {
        Self::with(card.identity()?)
    }

    /// The model of the card at a PCI address, which may not be open.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn at(address: &str) -> Result<&'static Self, NicError> {
        Self::with(vfio::identity(address)?)
    }

    fn with((vendor, device): (u16, u16)) -> Result<&'static Self, NicError> {
        let known = MODELS.iter().find(|model| model.identity == (vendor, device));
        known.ok_or(NicError::Unknown { vendor, device })
    }

    /// Has the card signal its interrupts by these event descriptors: by its pin, or one for each
    /// vector.
    ///
    /// # Errors
    /// [`NicError::Card`].
    pub fn signal(&self, card: &mut Card, calls: &[BorrowedFd<'_>]) -> Result<(), NicError> {
        Ok(card.signal(self.interrupt, calls)?)
    }

    /// How many interrupts the card's driver uses.
    #[must_use]
    pub fn vectors(&self) -> usize {
        self.vectors
    }

    /// The largest payload of a frame, in bytes.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// How many receive descriptors the card's driver has.
    #[must_use]
    pub fn receives(&self) -> u32 {
        if self.chip.is_some() { DESCRIPTORS } else { 1 << SIZES.receive }
    }

    /// How many frames the card's driver sends at a time.
    #[must_use]
    pub fn sends(&self) -> u32 {
        if self.chip.is_some() { DESCRIPTORS - 1 } else { 1 << SIZES.transmit }
    }
}

fn names() -> String {
    MODELS.each_ref().map(|model| model.name).join(", ")
}

/// The reason why a card cannot be driven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// There is no driver for it.
    #[error(
        "No driver here is for a card {vendor:04x}:{device:04x}; there are drivers for {}",
        names()
    )]
    Unknown {
        /// The card's vendor.
        vendor: u16,
        /// The vendor's number for the device.
        device: u16,
    },
    /// The card refuses.
    #[error(transparent)]
    Card(#[from] VfioError),
    /// It is of the e1000 family, and does not come up.
    #[error(transparent)]
    E1000(#[from] SetupError),
    /// It is a PCnet, and does not come up.
    #[error(transparent)]
    Pcnet(#[from] DriverError),
    /// An event descriptor cannot be made.
    #[error("Cannot make an event descriptor; check the limit of open files")]
    Event(#[source] rustix::io::Errno),
}

/// What a driver is given to work with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    /// The card interrupts; otherwise it is polled.
    pub interrupts: bool,
    /// The card receives all frames, whatever their address.
    pub promiscuous: bool,
    /// The card receives frames that are longer than standard ones, and sends them.
    pub long_frames: bool,
    /// The device's addresses of the caller's buffers, one for each receive descriptor, or none if
    /// they are given one by one; `None` for buffers of the driver's own.
    pub lent: Option<&'a [u64]>,
    /// The driver uses the shared status block, if the card has one.
    pub block: bool,
}

/// A card with its driver.
#[derive(Debug)]
pub enum Nic<R = Card> {
    /// Of the e1000 family.
    E1000(Box<E1000Driver<R>>),
    /// A PCnet.
    Pcnet(Box<pcnet::Driver<R>>),
}

macro_rules! either {
    ($nic:expr, $driver:ident => $what:expr) => {
        match $nic {
            Self::E1000($driver) => $what,
            Self::Pcnet($driver) => $what,
        }
    };
}

impl Nic {
    /// Brings a card up, with rings in `dma`. Returns its driver, and its interrupts if they are
    /// wanted: by its pin, or by one vector each for receive, transmit and the rest.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn bring_up(
        mut card: Card,
        dma: &mut Dma,
        given: Given<'_>,
    ) -> Result<(Self, Vec<OwnedFd>), NicError> {
        let model = Model::of(&card)?;
        let call = |_| rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let vectors = if given.interrupts { model.vectors } else { 0 };
        let calls: Result<Vec<_>, _> = (0..vectors).map(call).collect();
        let calls = calls.map_err(NicError::Event)?;
        if given.interrupts {
            model.signal(&mut card, &calls.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
        }
        let given = Given { block: given.block && card.has_block()?, ..given };
        Ok((Self::over(card, model, dma, given)?, calls))
    }

    /// Lets the card interrupt again, by its pin or, with several `vectors`, by messages.
    ///
    /// # Errors
    /// [`VfioError::Refused`].
    pub fn listen(&mut self, vectors: usize) -> Result<(), VfioError> {
        self.rearm();
        let card = either!(self, driver => driver.regs());
        if vectors == 1 { card.unmask() } else { Ok(()) }
    }
}

impl<R: Regs> Nic<R> {
    /// Brings a card of a model up over its registers. It must have a status block, if one is
    /// [wanted](Given::block).
    ///
    /// # Errors
    /// [`NicError::E1000`], [`NicError::Pcnet`].
    pub fn over(regs: R, model: &Model, dma: &mut Dma, given: Given<'_>) -> Result<Self, NicError> {
        let Some(chip) = model.chip else {
            let driver = match given.lent {
                Some(lent) => pcnet::Driver::over(regs, dma, SIZES, lent)?,
                None => pcnet::Driver::new(regs, dma, SIZES)?,
            };
            let mut driver =
                if given.block { driver.with_block(dma, Version::Two)? } else { driver };
            driver.start(given.interrupts, given.promiscuous)?;
            return Ok(Self::Pcnet(Box::new(driver)));
        };
        let mut config = Config::stock(chip);
        (config.transmit, config.receive) = (DESCRIPTORS, DESCRIPTORS);
        (config.promiscuous, config.long_frames) = (given.promiscuous, given.long_frames);
        if !given.interrupts {
            config.interrupts = Interrupts::None;
        }
        if given.block {
            config.doorbells = Doorbells::Block(Version::Two);
        }
        let driver = match given.lent {
            Some(lent) => E1000Driver::over(regs, dma, config, lent)?,
            None => E1000Driver::new(regs, dma, config)?,
        };
        Ok(Self::E1000(Box::new(driver)))
    }

    /// Brings the card up again, as after a reset: frames that it has are lost, and receive buffers
    /// that were given one by one are the caller's again.
    ///
    /// # Errors
    /// [`NicError::E1000`], [`NicError::Pcnet`].
    pub fn restart(&mut self, given: Given<'_>) -> Result<(), NicError> {
        match self {
            Self::E1000(driver) => driver.restart()?,
            Self::Pcnet(driver) => driver.start(given.interrupts, given.promiscuous)?,
        }
        Ok(())
    }

    /// Takes the causes of interrupts on these `vectors`, a bit each (bit 0 for the pin). The card
    /// interrupts no more until it is [rearmed](Self::rearm).
    pub fn interrupted(&mut self, vectors: u32) {
        match self {
            Self::E1000(driver) => _ = driver.interrupt(vectors),
            Self::Pcnet(driver) => _ = driver.acknowledge(),
        }
    }

    /// Lets the card interrupt again.
    pub fn rearm(&mut self) {
        match self {
            Self::E1000(driver) => driver.rearm(),
            Self::Pcnet(driver) => driver.unmask(),
        }
    }

    /// Asks for an interrupt when something was sent (`room`), and when a frame has come
    /// (`frames`). The caller looks at both once more before it sleeps. Without a status block,
    /// interrupts come anyway.
    pub fn ask(&mut self, room: bool, frames: bool) {
        either!(self, driver => driver.ask(room, frames));
    }

    /// True if the card has found a fault in its status block, and stopped.
    #[must_use]
    pub fn has_fault(&self) -> bool {
        either!(self, driver => driver.block_fault() != 0)
    }

    /// The card's station address.
    #[must_use]
    pub fn mac(&self) -> Mac {
        match self {
            Self::E1000(driver) => driver.mac(),
            Self::Pcnet(driver) => driver.mac(),
        }
    }

    /// Interrupts, register reads and register writes so far.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        match self {
            Self::E1000(driver) => {
                let counts = driver.counts();
                [counts.interrupts, counts.reads, counts.writes]
            }
            Self::Pcnet(driver) => {
                let counts = driver.counts();
                [counts.interrupts, counts.reads, counts.writes]
            }
        }
    }

    /// Queues a copy of a frame; returns false without room.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        match self {
            Self::E1000(driver) => {
                driver.reclaim();
                driver.send(frame, &Request::default())
            }
            Self::Pcnet(driver) => {
                driver.reap();
                driver.send(frame, frame.len())
            }
        }
    }

    /// Notifies the card of frames that were [sent](Self::send).
    pub fn flush(&mut self) {
        match self {
            Self::E1000(driver) => driver.flush(),
            Self::Pcnet(driver) => driver.demand(),
        }
    }

    /// Shows each received frame to `visit`.
    pub fn receive(&mut self, visit: &mut dyn FnMut(&[u8])) {
        match self {
            Self::E1000(driver) => {
                driver.receive(usize::MAX, |frame| visit(&frame.to_vec()));
            }
            Self::Pcnet(driver) => {
                driver.receive(usize::MAX, |frame| visit(&frame.to_vec()));
            }
        }
    }

    /// Stops the card.
    pub fn stop(&mut self) {
        match self {
            Self::E1000(driver) => driver.stop(),
            Self::Pcnet(driver) => driver.stop(),
        }
    }
}

impl<R: Regs> Lent for Nic<R> {
    fn room(&self) -> usize {
        either!(self, driver => Lent::room(&**driver))
    }

    fn most_pieces(&self) -> usize {
        either!(self, driver => driver.most_pieces())
    }

    fn send_lent(&mut self, pieces: &[(u64, u32)]) -> bool {
        either!(self, driver => driver.send_lent(pieces))
    }

    fn take_back(&mut self) -> usize {
        either!(self, driver => driver.take_back())
    }

    fn trade(
        &mut self,
        budget: usize,
        trade: impl FnMut(u32, Option<Piece>) -> Option<u64>,
    ) -> usize {
        either!(self, driver => driver.trade(budget, trade))
    }

    fn give(&mut self, at: u64) -> bool {
        either!(self, driver => driver.give(at))
    }

    fn take(&mut self, budget: usize, visit: impl FnMut(Option<u32>)) -> usize {
        either!(self, driver => Lent::take(&mut **driver, budget, visit))
    }

    fn publish(&mut self) {
        either!(self, driver => driver.publish());
    }

    fn has_frames(&self) -> bool {
        either!(self, driver => driver.has_frames())
    }

    fn carrier(&mut self) -> bool {
        either!(self, driver => driver.carrier())
    }

    fn missed(&mut self) -> u64 {
        either!(self, driver => driver.missed())
    }
}
