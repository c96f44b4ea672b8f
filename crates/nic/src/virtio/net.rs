//! The header before each frame (virtio 1.2, 5.1.6).

use frame::{OFFLOAD_HEADER, Offload, OffloadSet};
use shmem::Bytes;

use super::Fault;

/// The maximum number of bytes of a header.
pub(super) const MAX_HEADER: usize = 12;
/// The header of a frame in one buffer that requests no offload.
pub(super) const PLAIN: [u8; MAX_HEADER] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// Writes the header of a frame in one buffer that requests no offload.
#[inline(always)]
pub(super) fn write_plain(to: Bytes<'_>, len: usize) {
    if len == MAX_HEADER {
        to.write(0, PLAIN);
    } else {
        to.copy_in(&PLAIN[..len]);
    }
}

/// The request in a header from a guest that may make the requests in `allowed`.
pub(super) fn request(header: Bytes<'_>, allowed: &OffloadSet) -> Result<Offload, Fault> {
    let header = header.read::<[u8; OFFLOAD_HEADER]>(0).ok_or(Fault::BadLength)?;
    Offload::from_header(&header).from_sender(allowed).ok_or(Fault::BadOffload)
}

/// The header of a frame with this request in `buffers` buffers, for a guest that accepts the
/// requests in `taken`.
pub(super) fn header(offload: &Offload, taken: &OffloadSet, buffers: u16) -> [u8; MAX_HEADER] {
    let mut header = [0; MAX_HEADER];
    if taken.checksum {
        header[..OFFLOAD_HEADER].copy_from_slice(&offload.header());
    }
    header[OFFLOAD_HEADER..].copy_from_slice(&buffers.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    const TSO: Offload = Offload {
        flags: Offload::NEEDS_CHECKSUM,
        gso_type: Offload::GSO_TCP4,
        header_len: 54,
        gso_size: 1448,
        checksum_start: 34,
        checksum_offset: 16,
    };

    fn request_of(offload: Offload, allowed: OffloadSet) -> Result<Offload, Fault> {
        request(Bytes::of(&mut offload.header()), &allowed)
    }

    #[test]
    fn only_what_was_negotiated_may_be_asked_for() {
        let checksums = OffloadSet { checksum: true, ..OffloadSet::NONE };
        assert_eq!(request_of(TSO, OffloadSet::ALL), Ok(TSO));
        assert_eq!(request_of(TSO, checksums), Err(Fault::BadOffload));
        let checksum = Offload { gso_type: 0, ..TSO };
        assert_eq!(request_of(checksum, checksums), Ok(checksum));
        assert_eq!(request_of(checksum, OffloadSet::NONE), Err(Fault::BadOffload));
        let empty = Offload { gso_size: 0, ..TSO };
        assert_eq!(request_of(empty, OffloadSet::ALL), Err(Fault::BadOffload));
    }

    #[test]
    fn a_guest_cannot_vouch_for_its_own_checksums() {
        let said = Offload { flags: Offload::DATA_VALID, ..Offload::NONE };
        assert_eq!(request_of(said, OffloadSet::ALL), Ok(Offload::NONE));
    }

    #[test]
    fn headers_say_what_the_guest_takes() {
        assert_eq!(header(&Offload::NONE, &OffloadSet::ALL, 1), PLAIN);
        assert_eq!(header(&TSO, &OffloadSet::ALL, 3)[..10], TSO.header());
        assert_eq!(header(&TSO, &OffloadSet::ALL, 0x301)[10..], [1, 3]);
        let good = Offload { flags: Offload::DATA_VALID, ..Offload::NONE };
        assert_eq!(header(&good, &OffloadSet::NONE, 1), PLAIN);
    }
}
