//! A network card of this machine, by Linux's VFIO (`Documentation/driver-api/vfio.rst`):
//! registers, memory and interrupts for a driver in this process.
//!
//! ```text
//!   driver --> Card: Regs --> BARs: mapped (Mmio) where they are memory, else read and written by the kernel
//!     |          +--------> eventfds: pin, MSI, MSI-X
//!     +-----> Dma ---> memory that the IOMMU shows the card, and nothing else
//! ```
//!
//! The card's kernel driver must be `vfio-pci`, and the card must be behind an IOMMU: otherwise it
//! could write anywhere. Groups and containers are of the kind that every kernel with VFIO has
//! (type 1).

mod kernel;
mod place;

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::csb::SUBSYSTEM;
use driver::Regs;
use shmem::{Mapping, Mmio};

use self::kernel::{DeviceInfo, GroupStatus, IrqInfo, MapMemory, RegionInfo, SetIrqs, TYPE1V2};
use self::place::Place;
pub use self::place::PlaceError;

/// The number of a function's base address registers, and the region with its configuration space.
const BARS: u32 = 6;
const CONFIG: u32 = 7;
/// The command register in configuration space, with its bits for ports, memory and bus master; and
/// the offset of the first BAR.
const COMMAND: u64 = 4;
const ENABLED: u16 = 7;
const BUS_MASTER: u16 = 4;
const FIRST_BAR: u64 = 0x10;
/// The subsystem id in configuration space.
const SUBSYSTEM_ID: u64 = 0x2e;
/// How long to wait for a card that another process has just given up, and between two attempts.
const PATIENCE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(20);
/// Pauses of at least this length sleep instead of spinning.
const SLEEP: Duration = Duration::from_micros(100);

/// The system calls of a process that drives a [`Card`] which is open and has its memory: the
/// number of each, and the place and value of an argument. Interrupts are set; registers that
/// cannot be mapped, and configuration space, are read and written.
pub const CALLS: [(i64, Option<(u8, u32)>); 3] = [
    (libc::SYS_ioctl, Some((1, kernel::SET_IRQS as u32))),
    (libc::SYS_pread64, None),
    (libc::SYS_pwrite64, None),
];

/// The reason why a card cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioError {
    /// The device does not exist, or user space may not use it.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A file cannot be opened.
    #[error("{} cannot be opened: {}", .path.display(), advice(.source))]
    Open {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel uses other devices that the IOMMU cannot tell apart from the card.
    #[error("The IOMMU does not tell the card from {}; give them to vfio-pci, too, or unbind their drivers", .0.join(", "))]
    Shared(Vec<String>),
    /// The kernel has no IOMMU of a supported kind, or does not trust the one it has.
    #[error(
        "The IOMMU is not to be had (type1v2); modprobe vfio_iommu_type1, and if the kernel log says that \
         interrupts are not remapped, switch that on"
    )]
    Iommu(#[source] io::Error),
    /// Memory cannot be mapped for the card.
    #[error(
        "The card cannot be shown {size:#x} bytes of memory at {address:#x}; the limit of locked memory \
         (ulimit -l) may be too low, or the address one that the IOMMU keeps for itself"
    )]
    Memory {
        /// The address at which the card should see it.
        address: u64,
        /// The size in bytes.
        size: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// The card has fewer interrupts of this kind.
    #[error("The card has {has} interrupts of kind {kind:?}, not {asked}")]
    Interrupts {
        /// The kind.
        kind: Interrupt,
        /// How many interrupts the card has.
        has: u32,
        /// How many interrupts were requested.
        asked: usize,
    },
    /// The kernel refused another request.
    #[error("VFIO: {what} failed")]
    Refused {
        /// The request.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// How to fix a file that does not open.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "VFIO is not there; as root: modprobe vfio-pci",
        io::ErrorKind::PermissionDenied => "run as root, or have root give you the file (chown)",
        io::ErrorKind::ResourceBusy => "another program has the card, or one of its group",
        _ => "the kernel refuses",
    }
}

fn refused(what: &'static str) -> impl Fn(io::Error) -> VfioError {
    move |source| VfioError::Refused { what, source }
}

/// How a card interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The card interrupts through its pin, which each interrupt masks until [`Card::unmask`].
    Pin,
    /// The card interrupts by one message.
    Msi,
    /// The card interrupts by a message for each vector.
    MsiX,
}

/// How to access a base address register.
#[derive(Debug)]
enum Bar {
    Mapped(Mmio),
    /// Through the kernel: its start in the device's file, and its length; 0 if it does not exist.
    Called {
        at: u64,
        size: u64,
    },
}

/// A card that this process controls. When dropped, it stops writing memory and returns to the
/// kernel.
#[derive(Debug)]
pub struct Card {
    bars: Vec<Bar>,
    /// The first BAR after 0 with I/O ports; if there is none, a number that no BAR has.
    ports: usize,
    /// Where configuration space begins in the device's file, once this is known.
    config: Option<u64>,
    // The files close first, because the card may use memory until they are closed.
    files: Arc<Files>,
    memory: Vec<Arc<Mapping>>,
    /// Others may have the same files.
    shared: bool,
}

/// Checks that user space may drive the card at a PCI address. Opens nothing.
///
/// # Errors
/// [`PlaceError`].
pub fn check(address: &str) -> Result<(), PlaceError> {
    Place::find(Path::new("/"), address).map(drop)
}

/// Vendor and device of the card at a PCI address, if user space may drive it. Opens nothing of the
/// card's.
///
/// # Errors
/// [`PlaceError`].
pub fn identity(address: &str) -> Result<(u16, u16), VfioError> {
    Ok(Place::find(Path::new("/"), address)?.identity)
}

/// Takes bus mastering away from a card, by its file: it writes no memory any more.
///
/// # Errors
/// [`VfioError::Refused`].
pub fn stop(device: BorrowedFd<'_>) -> Result<(), VfioError> {
    let mut info = RegionInfo::of(CONFIG);
    kernel::ask(device, &mut info).map_err(refused("DEVICE_GET_REGION_INFO"))?;
    command(device, info.offset, |command| command & !BUS_MASTER)
}

/// Changes the command register of the card whose configuration space begins at `config` in its
/// file.
fn command(
    device: BorrowedFd<'_>,
    config: u64,
    change: impl Fn(u16) -> u16,
) -> Result<(), VfioError> {
    let (at, mut bytes) = (config + COMMAND, [0; 2]);
    let done = rustix::io::pread(device, &mut bytes, at).and_then(|_| {
        let command = change(u16::from_le_bytes(bytes));
        rustix::io::pwrite(device, &command.to_le_bytes(), at)
    });
    done.map(drop).map_err(|error| refused("a change of the command register")(error.into()))
}

/// The open files of a card: what a process needs to drive it. The card goes back to the kernel
/// with the last copies.
#[derive(Debug)]
pub struct Files {
    // These files close in this order, because the card may use memory until the container closes.
    /// Registers, interrupts, configuration space.
    pub device: File,
    /// The group, which must stay open.
    pub group: OwnedFd,
    /// What the card sees of memory.
    pub container: OwnedFd,
}

impl Files {
    /// Opens the card at a PCI address such as `0000:03:00.0`. The kernel resets it, which may take
    /// a second.
    ///
    /// # Errors
    /// [`VfioError`].
    pub fn open(address: &str) -> Result<Self, VfioError> {
        let place = Place::find(Path::new("/"), address)?;
        let container = open(Path::new("/dev/vfio/vfio"))?;
        let group = open_when_free(&Path::new("/dev/vfio").join(place.group.to_string()))?;
        let mut status = GroupStatus::default();
        kernel::ask(group.as_fd(), &mut status).map_err(refused("GROUP_GET_STATUS"))?;
        if !status.viable() {
            return Err(VfioError::Shared(place.neighbours));
        }
        kernel::set_container(group.as_fd(), container.as_fd())
            .map_err(refused("GROUP_SET_CONTAINER"))?;
        kernel::set_iommu(container.as_fd(), TYPE1V2).map_err(VfioError::Iommu)?;
        let device = kernel::device(group.as_fd(), &place.address)
            .map_err(refused("GROUP_GET_DEVICE_FD"))?;
        Ok(Self { device: device.into(), group: group.into(), container: container.into() })
    }
}

impl Card {
    /// Opens the card at a PCI address such as `0000:03:00.0`, resets it if possible, and enables
    /// it.
    ///
    /// # Errors
    /// [`VfioError`].
    pub fn open(address: &str) -> Result<Self, VfioError> {
        let mut card = Self::over(Arc::new(Files::open(address)?))?;
        card.shared = false;
        Ok(card)
    }

    /// Resets an open card if possible, and enables it. When it is dropped, the card goes on until
    /// all copies of its files are closed.
    ///
    /// # Errors
    /// [`VfioError`].
    pub fn over(files: Arc<Files>) -> Result<Self, VfioError> {
        let mut card = Self {
            bars: Vec::new(),
            ports: BARS as usize,
            config: None,
            files,
            memory: Vec::new(),
            shared: true,
        };
        card.begin()?;
        Ok(card)
    }

    /// Resets the card, and finds registers.
    fn begin(&mut self) -> Result<(), VfioError> {
        let mut info = DeviceInfo::default();
        kernel::ask(self.files.device.as_fd(), &mut info).map_err(refused("DEVICE_GET_INFO"))?;
        if info.resets() {
            kernel::reset(self.files.device.as_fd()).map_err(refused("DEVICE_RESET"))?;
        }
        self.config = Some(self.region(CONFIG)?.offset);
        // Accesses to memory registers fail while they are disabled.
        self.command(|command| command | ENABLED)?;
        for bar in 0..BARS {
            let region = self.region(bar)?;
            self.bars.push(self.bar(&region));
            let [low, ..] = self.configuration::<4>(FIRST_BAR + 4 * u64::from(bar))?;
            if bar > 0 && region.size > 0 && low & 1 != 0 {
                self.ports = self.ports.min(bar as usize);
            }
        }
        Ok(())
    }

    fn region(&self, index: u32) -> Result<RegionInfo, VfioError> {
        let mut info = RegionInfo::of(index);
        kernel::ask(self.files.device.as_fd(), &mut info)
            .map_err(refused("DEVICE_GET_REGION_INFO"))?;
        Ok(info)
    }

    /// Some kernels cannot map all of a BAR that contains an interrupt table.
    fn bar(&self, region: &RegionInfo) -> Bar {
        let (at, size) = (region.offset, region.size);
        let len = usize::try_from(size).ok().filter(|_| region.maps());
        let mapped = len.and_then(|len| Mmio::map(self.files.device.as_fd(), at, len).ok());
        mapped.map_or(Bar::Called { at, size }, Bar::Mapped)
    }

    /// Bytes of configuration space.
    fn configuration<const N: usize>(&self, at: u64) -> Result<[u8; N], VfioError> {
        let (mut bytes, config) = ([0xff; N], self.config.unwrap_or_default());
        let read = self.files.device.read_exact_at(&mut bytes, config + at);
        read.map(|()| bytes).map_err(refused("a read of configuration space"))
    }

    /// Changes the command register.
    fn command(&self, change: impl Fn(u16) -> u16) -> Result<(), VfioError> {
        let Some(config) = self.config else { return Ok(()) };
        command(self.files.device.as_fd(), config, change)
    }

    /// Vendor and device, from configuration space.
    ///
    /// # Errors
    /// [`VfioError::Refused`].
    pub fn identity(&self) -> Result<(u16, u16), VfioError> {
        let [a, b, c, d] = self.configuration(0)?;
        Ok((u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
    }

    /// True if the card says in configuration space that it knows the shared status block.
    ///
    /// # Errors
    /// [`VfioError::Refused`].
    pub fn has_block(&self) -> Result<bool, VfioError> {
        Ok(u16::from_le_bytes(self.configuration(SUBSYSTEM_ID)?) == SUBSYSTEM)
    }

    /// Maps all of `memory` for the card, with the first byte at `address`. Cards that reach no
    /// further need one below 4 GiB. The memory stays in place as long as the card is held.
    ///
    /// # Errors
    /// [`VfioError::Memory`].
    pub fn map(&mut self, memory: &Arc<Mapping>, address: u64) -> Result<(), VfioError> {
        self.map_part(memory, 0..memory.len(), address)
    }

    /// Works as [`map`](Self::map), for a part of `memory` that begins and ends with a page.
    ///
    /// # Errors
    /// [`VfioError::Memory`].
    pub fn map_part(
        &mut self,
        memory: &Arc<Mapping>,
        part: Range<usize>,
        address: u64,
    ) -> Result<(), VfioError> {
        let size = part.len();
        let failed = |source| VfioError::Memory { address, size, source };
        let map = MapMemory::new(memory, part, address);
        let mut map = map.ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        kernel::ask(self.files.container.as_fd(), &mut map).map_err(failed)?;
        self.memory.push(Arc::clone(memory));
        Ok(())
    }

    /// Signals interrupts through these eventfds, one for each vector. No eventfds disable them.
    ///
    /// # Errors
    /// [`VfioError::Interrupts`] if the card has fewer vectors, [`VfioError::Refused`].
    pub fn signal(&mut self, kind: Interrupt, calls: &[BorrowedFd<'_>]) -> Result<(), VfioError> {
        let mut info = IrqInfo::of(kind as u32);
        kernel::ask(self.files.device.as_fd(), &mut info)
            .map_err(refused("DEVICE_GET_IRQ_INFO"))?;
        let fds: Vec<i32> = calls.iter().map(AsRawFd::as_raw_fd).collect();
        let set = SetIrqs::signal(kind as u32, &fds).filter(|_| fds.len() <= info.count as usize);
        let (has, asked) = (info.count, fds.len());
        self.set_irqs(set.ok_or(VfioError::Interrupts { kind, has, asked })?)
    }

    /// Unmasks the pin's interrupt, after the caller has handled the cause and the card has lowered
    /// it.
    ///
    /// # Errors
    /// [`VfioError::Refused`].
    pub fn unmask(&mut self) -> Result<(), VfioError> {
        self.set_irqs(SetIrqs::unmask(Interrupt::Pin as u32))
    }

    fn set_irqs(&self, mut set: SetIrqs) -> Result<(), VfioError> {
        let done = kernel::ask(self.files.device.as_fd(), &mut set);
        done.map(drop).map_err(refused("DEVICE_SET_IRQS"))
    }

    /// The offset in the device's file of `len` bytes in a BAR that is not mapped.
    fn place(&self, bar: usize, at: u64, len: u64) -> Option<u64> {
        let Bar::Called { at: start, size } = self.bars.get(bar)? else { return None };
        let fits = at.checked_add(len).is_some_and(|end| end <= *size);
        fits.then(|| start + at)
    }

    fn read<const N: usize>(&self, bar: usize, at: u64) -> [u8; N] {
        let mut data = [0xff; N];
        if let Some(place) = self.place(bar, at, N as u64) {
            // A card that was removed reads as all ones, as on its bus.
            let _ = self.files.device.read_exact_at(&mut data, place);
        }
        data
    }

    fn write(&self, bar: usize, at: u64, data: &[u8]) {
        if let Some(place) = self.place(bar, at, data.len() as u64) {
            let _ = self.files.device.write_all_at(data, place);
        }
    }
}

/// Opens a file that a process which has just ended may still have.
fn open_when_free(path: &Path) -> Result<File, VfioError> {
    let since = Instant::now();
    loop {
        match open(path) {
            Err(VfioError::Open { source, .. })
                if source.kind() == io::ErrorKind::ResourceBusy && since.elapsed() < PATIENCE =>
            {
                std::thread::sleep(AGAIN);
            }
            opened => return opened,
        }
    }
}

fn open(path: &Path) -> Result<File, VfioError> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|source| VfioError::Open { path: path.to_owned(), source })
}

/// Missing registers, and those of a card that was removed, read as all ones.
impl Regs for Card {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        match self.bars.get(bar) {
            Some(Bar::Mapped(registers)) => registers.read32(at).unwrap_or(u32::MAX),
            _ => u32::from_le_bytes(self.read(bar, at)),
        }
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        match self.bars.get(bar) {
            Some(Bar::Mapped(registers)) => _ = registers.write32(at, value),
            _ => self.write(bar, at, &value.to_le_bytes()),
        }
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        match self.bars.get(bar) {
            Some(Bar::Mapped(registers)) => registers.read16(at).unwrap_or(u16::MAX),
            _ => u16::from_le_bytes(self.read(bar, at)),
        }
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        match self.bars.get(bar) {
            Some(Bar::Mapped(registers)) => _ = registers.write16(at, value),
            _ => self.write(bar, at, &value.to_le_bytes()),
        }
    }

    fn ports(&self) -> usize {
        self.ports
    }

    fn pause(&mut self, micros: u32) {
        let time = Duration::from_micros(micros.into());
        if time >= SLEEP {
            return std::thread::sleep(time);
        }
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if self.shared {
            return;
        }
        // The card must touch no memory from here on. The kernel resets it, if it can, when its
        // file closes.
        let _ = self.command(|command| command & !BUS_MASTER);
    }
}
