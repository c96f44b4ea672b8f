//! Requests to the kernel, as in `linux/vfio.h`.

use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use abi::vfio_user::irq;
use shmem::Mapping;

/// `VFIO_TYPE1v2_IOMMU`.
pub const TYPE1V2: libc::c_ulong = 3;
/// The maximum number of vectors set in one request.
const VECTORS: usize = 8;

/// `_IO(VFIO_TYPE, VFIO_BASE + number)`.
const fn request(number: libc::Ioctl) -> libc::Ioctl {
    (b';' as libc::Ioctl) << 8 | (100 + number)
}

const SET_IOMMU: libc::Ioctl = request(2);
const SET_CONTAINER: libc::Ioctl = request(4);
const DEVICE_FD: libc::Ioctl = request(6);
/// `VFIO_DEVICE_SET_IRQS`.
pub const SET_IRQS: libc::Ioctl = request(10);
const RESET: libc::Ioctl = request(11);

/// A request's structure, which begins with its size.
///
/// # Safety
/// `REQUEST` reads and writes no more bytes than the first field says, which are the structure's.
/// It keeps no pointer to them.
pub unsafe trait Question {
    /// The request.
    const REQUEST: libc::Ioctl;
}

/// Issues the request. Afterwards, the structure holds what the kernel wrote.
pub fn ask<T: Question>(file: BorrowedFd<'_>, question: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the structure is the request's (`Question`), and borrowed exclusively for the call.
    said(unsafe { libc::ioctl(file.as_raw_fd(), T::REQUEST, std::ptr::from_mut(question)) })
}

fn said(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Chooses the IOMMU's driver for a container.
pub fn set_iommu(container: BorrowedFd<'_>, kind: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the request takes a number.
    said(unsafe { libc::ioctl(container.as_raw_fd(), SET_IOMMU, kind) }).map(drop)
}

/// Puts a group into a container.
pub fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let container = container.as_raw_fd();
    // SAFETY: the request reads an int, which lives until it is done.
    said(unsafe { libc::ioctl(group.as_raw_fd(), SET_CONTAINER, &raw const container) }).map(drop)
}

/// Opens the device of a group by its address.
pub fn device(group: BorrowedFd<'_>, address: &str) -> io::Result<OwnedFd> {
    let address = CString::new(address)?;
    // SAFETY: the request reads a string, which lives until it is done.
    let device = said(unsafe { libc::ioctl(group.as_raw_fd(), DEVICE_FD, address.as_ptr()) })?;
    // SAFETY: the kernel has just made the descriptor for this process; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(device) })
}

/// Resets a device.
pub fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    said(unsafe { libc::ioctl(device.as_raw_fd(), RESET) }).map(drop)
}

/// Structures that start as zero, except for the first field, their size.
macro_rules! sized {
    ($($name:ident)*) => { $(
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: fields are integers and arrays of them, for which zeros will do.
                let zeros: Self = unsafe { std::mem::zeroed() };
                Self { argsz: size_of::<Self>() as u32, ..zeros }
            }
        }
    )* };
}

sized!(GroupStatus DeviceInfo RegionInfo IrqInfo);

/// `struct vfio_group_status`.
#[derive(Debug)]
#[repr(C)]
pub struct GroupStatus {
    argsz: u32,
    flags: u32,
}

// SAFETY: `VFIO_GROUP_GET_STATUS` takes this structure.
unsafe impl Question for GroupStatus {
    const REQUEST: libc::Ioctl = request(3);
}

impl GroupStatus {
    /// True if every device of the group belongs to VFIO, or to no driver.
    pub fn viable(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// `struct vfio_device_info`, with the fields that every kernel has.
#[derive(Debug)]
#[repr(C)]
pub struct DeviceInfo {
    argsz: u32,
    flags: u32,
    regions: u32,
    irqs: u32,
}

// SAFETY: `VFIO_DEVICE_GET_INFO` takes this structure, and leaves out what it has no room for.
unsafe impl Question for DeviceInfo {
    const REQUEST: libc::Ioctl = request(7);
}

impl DeviceInfo {
    /// True if the device can be reset.
    pub fn resets(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// `struct vfio_region_info`, without capabilities.
#[derive(Debug)]
#[repr(C)]
pub struct RegionInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    cap_offset: u32,
    pub size: u64,
    pub offset: u64,
}

// SAFETY: `VFIO_DEVICE_GET_REGION_INFO` takes this structure, and leaves out what it has no room
// for.
unsafe impl Question for RegionInfo {
    const REQUEST: libc::Ioctl = request(8);
}

impl RegionInfo {
    /// A request for the information on a region.
    pub fn of(index: u32) -> Self {
        Self { index, ..Self::default() }
    }

    /// True if the region can be mapped.
    pub fn maps(&self) -> bool {
        self.flags & 4 != 0
    }
}

/// `struct vfio_irq_info`.
#[derive(Debug)]
#[repr(C)]
pub struct IrqInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    pub count: u32,
}

// SAFETY: `VFIO_DEVICE_GET_IRQ_INFO` takes this structure.
unsafe impl Question for IrqInfo {
    const REQUEST: libc::Ioctl = request(9);
}

impl IrqInfo {
    /// A request for the information on interrupts of a kind.
    pub fn of(index: u32) -> Self {
        Self { index, ..Self::default() }
    }
}

/// `struct vfio_irq_set`, with its data.
#[derive(Debug)]
#[repr(C)]
pub struct SetIrqs {
    argsz: u32,
    flags: u32,
    index: u32,
    start: u32,
    count: u32,
    fds: [i32; VECTORS],
}

// SAFETY: `VFIO_DEVICE_SET_IRQS` takes this structure, and reads `argsz` bytes of it at most.
unsafe impl Question for SetIrqs {
    const REQUEST: libc::Ioctl = SET_IRQS;
}

impl SetIrqs {
    /// Signals vectors of kind `index`, from the first on, through these eventfds. No eventfds
    /// disable them. `None` if these are more than one request can set.
    pub fn signal(index: u32, eventfds: &[i32]) -> Option<Self> {
        let data = if eventfds.is_empty() { irq::DATA_NONE } else { irq::DATA_EVENTFD };
        let mut set = Self::with_data(eventfds.len(), index, data | irq::TRIGGER);
        set.fds.get_mut(..eventfds.len())?.copy_from_slice(eventfds);
        Some(Self { count: eventfds.len() as u32, ..set })
    }

    /// Unmasks the first vector of kind `index`.
    pub fn unmask(index: u32) -> Self {
        Self { count: 1, ..Self::with_data(0, index, irq::DATA_NONE | irq::UNMASK) }
    }

    fn with_data(eventfds: usize, index: u32, flags: u32) -> Self {
        let argsz = std::mem::offset_of!(Self, fds) + 4 * eventfds;
        Self { argsz: argsz as u32, flags, index, start: 0, count: 0, fds: [-1; VECTORS] }
    }
}

/// `struct vfio_iommu_type1_dma_map`.
#[derive(Debug)]
#[repr(C)]
pub struct MapMemory {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

// SAFETY: `VFIO_IOMMU_MAP_DMA` takes this structure. The device may write the memory that it
// names, which others may write at any time (`Mapping`). The kernel keeps the pages while the
// device has them.
unsafe impl Question for MapMemory {
    const REQUEST: libc::Ioctl = request(13);
}

impl MapMemory {
    /// The part of a mapping that a device may read and write, from its address `device` on. `None`
    /// if it is not all mapped.
    pub fn new(memory: &Mapping, part: Range<usize>, device: u64) -> Option<Self> {
        let size = part.len();
        memory.bytes(part.start, size)?;
        let (vaddr, argsz) = (memory.address() + part.start, size_of::<Self>() as u32);
        Some(Self { argsz, flags: 3, vaddr: vaddr as u64, iova: device, size: size as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_s() {
        let sizes = [
            (size_of::<GroupStatus>(), 8),
            (size_of::<DeviceInfo>(), 16),
            (size_of::<RegionInfo>(), 32),
            (size_of::<IrqInfo>(), 16),
            (size_of::<MapMemory>(), 32),
        ];
        assert!(sizes.iter().all(|(ours, kernel_s)| ours == kernel_s), "{sizes:?}");
        assert_eq!((RegionInfo::default().argsz, request(2)), (32, 0x3b66));
        let set = |fds: &[i32]| SetIrqs::signal(2, fds).unwrap();
        assert_eq!((set(&[]).argsz, set(&[7, 8, 9]).argsz, set(&[7, 8]).count), (20, 32, 2));
        assert_eq!((set(&[]).flags, set(&[7]).flags, SetIrqs::unmask(0).argsz), (0x21, 0x24, 20));
        assert!(SetIrqs::signal(2, &[0; VECTORS + 1]).is_none());
    }
}
