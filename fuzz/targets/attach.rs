//! What a client sends to the attach socket: any bytes parse or are refused, and a geometry that
//! passes the checks describes rings that lie within a file of the size it was checked against.
#![no_main]

use jail::strangers::Descriptor;
use libfuzzer_sys::fuzz_target;
use netring::attach::{Reply, Request};
use netring::layout::RingMemory;
use shmem::Mapping;
use zerocopy::FromBytes;

/// Larger files would find nothing new and cost time.
const FILE: usize = 4 << 20;

/// The memory that a client sends with its request: a sparse file.
fn memory() -> Option<std::os::fd::OwnedFd> {
    shmem::Memfd::create("fuzz", FILE, shmem::Pages::Small).ok().map(shmem::Memfd::into_fd)
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok((reply, _)) = Reply::read_from_prefix(bytes) {
        assert!(reply.message().len() <= reply.message.len());
    }
    let fds = memory().into_iter().map(Descriptor::ours).collect();
    if let Err(refusal) = toklat::daemon::attach::request::parse_request(bytes, fds) {
        assert!(!refusal.reason.is_empty() && !refusal.remedy.is_empty());
    }
    let Ok((request, _)) = Request::read_from_prefix(bytes) else { return };
    assert!(request.name().is_none_or(|name| name.len() <= request.name.len()));
    if request.geometry.check(FILE).is_err() {
        return;
    }
    let Ok(map) = Mapping::private(FILE) else { return };
    for spec in [request.tx, request.rx, request.peer_tx, request.peer_rx] {
        if spec.check(&request.geometry).is_err() {
            continue;
        }
        for ring in spec.first..spec.first + spec.rings {
            let ring = RingMemory::of(&map, &request.geometry, ring, spec.slots);
            let ring = ring.expect("a checked ring lies within the file");
            assert_eq!(ring.slots.len(), spec.slots as usize);
        }
    }
    let last = request.geometry.buf_num - 1;
    let at = request.geometry.buf_offset() + u64::from(last) * u64::from(request.geometry.buf_size);
    assert!(map.bytes(at as usize, request.geometry.buf_size as usize).is_some());
});
