//! A card as a guest's NIC.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abi::csb::Version;
use card::vfio_user::{Client, ClientError, Registers};
use driver::e1000::{Chip, Config, Doorbells, E1000Driver, Interrupts, SetupError};
use driver::{Dma, one_access, pcnet};
use frame::{MIN_FRAME, Mac, Offload};
use rustix::io::Errno;
use shmem::{Mapping, Memfd, Pages};
use tcp::Full;

use super::drive::{BLOCK, Drive};
use super::{Arena, bell, send_built, sleep};
use crate::nic::{BATCH, Frame, Nic, Pieces};

/// Bytes of a driver's memory, and its address for the device: low enough for a PCnet.
const MEMORY: usize = 4 << 20;
const AT: u64 = 1 << 20;
/// The configuration space, as a region of vfio-user.
const CONFIGURATION: u32 = 7;
/// The pin's interrupt.
const PIN: u32 = 0;
/// The sizes of a PCnet's rings, as powers of two.
const SIZES: pcnet::Sizes = pcnet::Sizes { transmit: 8, receive: 8 };

/// The reason why a card cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// The server of the device does not answer, or is gone.
    #[error(transparent)]
    Device(#[from] ClientError),
    /// There is no driver for the device.
    #[error("No driver here is for a device {vendor:04x}:{device:04x}")]
    Unknown {
        /// The device's vendor.
        vendor: u16,
        /// The vendor's number for it.
        device: u16,
    },
    /// It is of the e1000 family, and does not come up.
    #[error(transparent)]
    E1000(#[from] SetupError),
    /// It is a PCnet, and does not come up.
    #[error(transparent)]
    Pcnet(#[from] pcnet::DriverError),
    /// It is a one-access NIC, and does not come up.
    #[error(transparent)]
    OneAccess(#[from] one_access::DriverError),
    /// There is no memory for its driver.
    #[error("No memory can be shared with the device")]
    Memory(#[from] shmem::RegionError),
    /// An eventfd cannot be made or waited for, or the device's server hung up.
    #[error("Cannot wait for the device")]
    Wait(#[from] Errno),
}

/// A NIC that is driven by its registers.
pub struct CardNic<D = Box<dyn Drive + Send>> {
    driver: D,
    mac: Mac,
    arena: Arena,
    /// Private memory for frames that are built.
    scratch: Vec<u8>,
    wakes: Option<Wakes>,
}

/// What wakes a guest that sleeps.
struct Wakes {
    /// The device's interrupt.
    call: OwnedFd,
    /// A copy of the session's socket, which hangs up when the device goes.
    socket: UnixStream,
}

impl<D> fmt::Debug for CardNic<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CardNic").field("mac", &self.mac).finish_non_exhaustive()
    }
}

impl CardNic {
    /// Connects to a device of another process, such as a port of kind `vfio_user`: an 82540EM,
    /// 82574L, PCnet or one-access NIC. Shared status blocks and doorbells in memory are used where
    /// the device has them.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn connect(path: &Path) -> Result<Self, CardError> {
        Self::on(Client::connect(path)?)
    }

    /// Like [`connect`](Self::connect), over a session that has begun.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn on(mut client: Client) -> Result<Self, CardError> {
        let file = Memfd::create("nic", MEMORY, Pages::Small)?;
        let memory = file.map()?;
        client.dma_map(Some(file.as_fd()), 0, AT, MEMORY as u64, true)?;
        let call = bell()?;
        client.set_irqs(PIN, &[&call])?;
        let socket = client.socket().try_clone().map_err(ClientError::from)?;
        let mut identity = [0; 4];
        client.read(CONFIGURATION, 0, &mut identity)?;
        let mut registers = Registers::new(client)?;
        registers.share()?;
        let driver = bring_up(registers, &memory, identity)?;
        Ok(Self { wakes: Some(Wakes { call, socket }), ..Self::over(driver) })
    }
}

impl<D: Drive> CardNic<D> {
    /// A NIC over a driver whose interrupts the caller attends to: [`Nic::wait`] returns at once.
    pub fn over(mut driver: D) -> Self {
        let mac = driver.mac();
        let arena = Arena::new(BATCH * driver.max_frame());
        Self { mac, arena, scratch: Vec::new(), wakes: None, driver }
    }

    /// The card's station address. The stack's is to be the same.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// The driver.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }
}

impl Drive for Box<dyn Drive + Send> {
    fn mac(&mut self) -> Mac {
        (**self).mac()
    }

    fn max_frame(&self) -> usize {
        (**self).max_frame()
    }

    fn has_room(&mut self) -> bool {
        (**self).has_room()
    }

    fn place(&self) -> shmem::Bytes<'_> {
        (**self).place()
    }

    fn send_placed(&mut self, len: u32) -> bool {
        (**self).send_placed(len)
    }

    fn publish(&mut self) {
        (**self).publish();
    }

    fn receive(&mut self, most: usize, visit: &mut dyn FnMut(&[shmem::Bytes<'_>])) {
        (**self).receive(most, visit);
    }

    fn sleep(&mut self, room: bool) -> bool {
        (**self).sleep(room)
    }

    fn interrupted(&mut self) {
        (**self).interrupted();
    }

    fn failure(&mut self) -> Option<ClientError> {
        (**self).failure()
    }
}

/// Brings a device up, by the driver for its vendor and number.
fn bring_up(
    registers: Registers,
    memory: &Arc<Mapping>,
    [a, b, c, d]: [u8; 4],
) -> Result<Box<dyn Drive + Send>, CardError> {
    let mut dma = Dma::new(Arc::clone(memory), 0, MEMORY, AT).ok_or(ClientError::Malformed)?;
    let identity = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    Ok(match identity {
        (0x8086, 0x100e) => e1000(registers, &mut dma, Chip::Em82540)?,
        (0x8086, 0x10d3) => e1000(registers, &mut dma, Chip::L82574)?,
        (0x1022, 0x2000) => pcnet(registers, &mut dma)?,
        (0x1234, 0x0a11) => Box::new(one_access::Driver::new(registers, &mut dma, true, false)?),
        (vendor, device) => return Err(CardError::Unknown { vendor, device }),
    })
}

fn e1000(
    mut registers: Registers,
    dma: &mut Dma,
    chip: Chip,
) -> Result<Box<dyn Drive + Send>, CardError> {
    let config = |doorbells| Config {
        doorbells,
        interrupts: Interrupts::Pin,
        flush_writes: false,
        ..Config::stock(chip)
    };
    // A device without status blocks is found out by offering it one.
    let with_block = E1000Driver::new(&mut registers, &mut dma.clone(), config(BLOCK));
    let doorbells = match with_block {
        Ok(_) => BLOCK,
        Err(SetupError::Block) => Doorbells::Each,
        Err(error) => return Err(error.into()),
    };
    Ok(Box::new(E1000Driver::new(registers, dma, config(doorbells))?))
}

fn pcnet(mut registers: Registers, dma: &mut Dma) -> Result<Box<dyn Drive + Send>, CardError> {
    let mut spare = dma.clone();
    let tried = pcnet::Driver::new(&mut registers, &mut spare, SIZES)?;
    let mut tried = tried.with_block(&mut spare, Version::Two)?;
    let has_block = match tried.start(false, false) {
        Ok(()) => true,
        Err(pcnet::DriverError::Block) => false,
        Err(error) => return Err(error.into()),
    };
    let mut driver = pcnet::Driver::new(registers, dma, SIZES)?;
    if has_block {
        driver = driver.with_block(dma, Version::Two)?;
    }
    driver.start(true, false)?;
    Ok(Box::new(driver))
}

impl<D: Drive> Nic for CardNic<D> {
    type Error = CardError;

    fn max_frame(&self) -> usize {
        self.driver.max_frame()
    }

    fn receive(&mut self, take: impl FnMut(&[Frame<'_>])) -> usize {
        let arena = &mut self.arena;
        self.driver.receive(BATCH, &mut |pieces| {
            let mut len = 0;
            for piece in pieces {
                len += piece.copy_out(&mut arena.free()[len..]);
            }
            arena.keep(len, Offload::NONE);
        });
        arena.lend(take)
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        _: Offload,
    ) -> Result<(), Full> {
        if !self.driver.has_room() {
            return Err(Full);
        }
        let place = self.driver.place();
        let mut len = place.copy_in(head);
        for piece in payload.pieces {
            len += place.suffix(len).copy_in(piece);
        }
        if len < MIN_FRAME {
            place.suffix(len).prefix(MIN_FRAME - len).fill(0);
        }
        match self.driver.send_placed(len.max(MIN_FRAME) as u32) {
            true => Ok(()),
            false => Err(Full),
        }
    }

    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        if !self.driver.has_room() {
            return Err(Full);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let sent = send_built(self, &mut scratch, max, build);
        self.scratch = scratch;
        sent
    }

    fn flush(&mut self) -> Result<(), CardError> {
        self.driver.publish();
        self.driver.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }

    fn wait(&mut self, room: bool, timeout: Option<Duration>) -> Result<(), CardError> {
        self.flush()?;
        let Some(Wakes { call, socket }) = &self.wakes else { return Ok(()) };
        if self.driver.sleep(room) {
            return Ok(());
        }
        if sleep(&[call], socket, timeout)? {
            self.driver.interrupted();
        }
        Ok(())
    }
}
