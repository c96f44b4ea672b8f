//! Memory of the program as a region (option `NETMAP_REQ_OPT_EXTMEM` of `net/netmap.h`).
//!
//! The library replaces the program's pages by a memory file, so that the daemon and the data
//! process can map it. Both sides compute the layout with [`geometry`].

use netring::layout::{Geometry, RESERVED_BUFFERS};
use rustix::io::Errno;

use crate::abi::PoolsInfo;

/// The minimum numbers and sizes of objects, where the program specifies none.
const LEAST: Geometry = Geometry {
    if_size: 1024,
    if_num: 2,
    ring_size: 20_480,
    ring_num: 4,
    buf_size: 2048,
    buf_num: 4098,
};
/// Bytes of a page.
const PAGE: u64 = 4096;
/// The maximum number of buffers of a region.
const MOST_BUFFERS: u64 = 1_000_000;

/// Returns the layout of memory for the numbers that the program wants. The remaining space becomes
/// buffers, and so does the rest of the last page.
///
/// # Errors
/// `EINVAL` for a size out of range, `ENOMEM` if there is not enough memory.
pub fn geometry(wanted: &PoolsInfo) -> Result<Geometry, Errno> {
    let or = |value: u32, least: u32| if value == 0 { least } else { value };
    let size = |value: u32, least: u32, step: u32| {
        or(value, least).checked_next_multiple_of(step).ok_or(Errno::INVAL)
    };
    let mut geometry = Geometry {
        if_size: size(wanted.if_size, LEAST.if_size, 64)?,
        if_num: or(wanted.if_total, LEAST.if_num),
        ring_size: size(wanted.ring_size, LEAST.ring_size, 128)?,
        ring_num: or(wanted.ring_total, LEAST.ring_num),
        buf_size: size(wanted.buf_size, LEAST.buf_size, 64)?,
        buf_num: or(wanted.buf_total, LEAST.buf_num).max(RESERVED_BUFFERS + 1),
    };
    geometry.check(usize::MAX).map_err(|_| Errno::INVAL)?;
    let memory = wanted.memsize.checked_next_multiple_of(PAGE).ok_or(Errno::INVAL)?;
    let room = memory.checked_sub(geometry.buf_offset()).ok_or(Errno::NOMEM)?;
    let buffers = room / u64::from(geometry.buf_size);
    if buffers < u64::from(geometry.buf_num) {
        return Err(Errno::NOMEM);
    }
    geometry.buf_num = buffers.min(MOST_BUFFERS) as u32;
    geometry.check(usize::MAX).map_err(|_| Errno::INVAL)?;
    Ok(geometry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_is_buffers() {
        let wanted = PoolsInfo { memsize: 1 << 22, buf_total: 100, ..PoolsInfo::default() };
        let got = geometry(&wanted).unwrap();
        assert_eq!((got.if_num, got.ring_num, got.buf_size), (2, 4, 2048));
        assert_eq!(got.region_size(), 1 << 22);
        assert!(got.file_size() > 1 << 22, "control blocks are beyond the program's memory");
    }

    #[test]
    fn a_page_that_is_begun_counts_as_a_whole_one() {
        let sizes =
            PoolsInfo { ring_total: 64, ring_size: 512, if_total: 2, ..PoolsInfo::default() };
        let wanted = PoolsInfo { memsize: 8_423_424, buf_total: 4096, ..sizes };
        assert_eq!(geometry(&wanted).map(|got| got.buf_num), Ok(4096));
        assert_eq!(geometry(&PoolsInfo { memsize: 8_421_376, ..wanted }), Err(Errno::NOMEM));
        assert_eq!(geometry(&PoolsInfo { memsize: u64::MAX, ..wanted }), Err(Errno::INVAL));
    }

    #[test]
    fn too_little_and_nonsense_are_refused() {
        let none = PoolsInfo::default();
        assert_eq!(geometry(&none), Err(Errno::NOMEM));
        assert_eq!(geometry(&PoolsInfo { memsize: 1 << 22, ..none }), Err(Errno::NOMEM));
        for wrong in [
            PoolsInfo { if_size: u32::MAX, ..none },
            PoolsInfo { ring_total: u32::MAX, ..none },
            PoolsInfo { buf_size: 1 << 20, ..none },
        ] {
            assert_eq!(geometry(&PoolsInfo { memsize: 1 << 30, ..wrong }), Err(Errno::INVAL));
        }
    }
}
