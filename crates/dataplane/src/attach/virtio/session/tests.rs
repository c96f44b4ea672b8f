use super::kept::SESSION;
use super::*;
use crate::attach::guest::kept::Kept;
use crate::attach::virtio::message::InflightAreas;
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;

const SIZE: u64 = 1 << 20;

fn new_session() -> Session {
    Session::new(offer(), &Account::unlimited())
}

fn restore(kept: &Kept) -> Option<Session> {
    Session::restore(offer(), kept, &Account::unlimited())
}

fn offer() -> Offer {
    Offer { queue_pairs: 1, mac: Some(Mac::local(7)), mtu: 1500, link: true }
}

fn memfd(len: u64) -> Descriptor {
    let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file.into()
}

fn eventfd() -> Descriptor {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap().into()
}

fn region(guest: u64, offset: u64) -> Region {
    Region { guest, size: SIZE, user: guest + (1 << 40), offset }
}

fn do_all(session: &mut Session, requests: impl IntoIterator<Item = Request>) {
    for request in requests {
        let said = format!("{request:?}");
        session.handle(request).unwrap().unwrap_or_else(|refused| panic!("{said}: {refused}"));
    }
}

fn ring_requests(queue: u32) -> Vec<Request> {
    let at = (1 << 40) + u64::from(queue) * 0x4000;
    let address =
        RingAddress { descriptors: at, available: at + 0x1000, used: at + 0x2000, log: None };
    vec![
        Request::SetRingSize { queue, size: 256 },
        Request::SetRingBase { queue, base: 0 },
        Request::SetRingAddress { queue, address },
        Request::SetRingKick { queue, fd: Some(eventfd()) },
        Request::SetRingCall { queue, fd: Some(eventfd()) },
    ]
}

/// A session after the first messages of QEMU 7 to 11.
fn qemu() -> Session {
    let mut session = new_session();
    let features = session.offered();
    do_all(
        &mut session,
        [
            Request::GetFeatures,
            Request::GetProtocolFeatures,
            Request::SetProtocolFeatures(OFFERED),
            Request::GetQueueNumber,
            Request::SetOwner,
            Request::SetRingEnable { queue: 0, on: true },
            Request::SetRingEnable { queue: 1, on: true },
            Request::SetFeatures(features & !LOG_ALL),
            Request::SetMemoryTable(vec![(region(0, 0), memfd(SIZE))]),
        ],
    );
    (0..2).for_each(|queue| do_all(&mut session, ring_requests(queue)));
    session
}

#[test]
fn rings_run_once_all_is_said_also_in_qemus_order() {
    let mut session = qemu();
    assert!(session.is_running(0) && session.is_running(1) && !session.is_running(2));
    assert_eq!(session.take_changes(), Changes { rings: true, calls: true });
    let call = Request::SetRingCall { queue: 1, fd: Some(eventfd()) };
    do_all(&mut session, [call, Request::SetRingEnable { queue: 1, on: true }]);
    assert_eq!(session.take_changes(), Changes { rings: false, calls: true });
    do_all(&mut session, [Request::SetRingEnable { queue: 1, on: false }]);
    assert!(session.is_running(0) && !session.is_running(1));
    let base = session.handle(Request::GetRingBase { queue: 0 }).unwrap().unwrap();
    assert!(matches!(base, Answer::Base(0)));
    assert!(!session.is_running(0), "a ring whose base was asked for stands still");
}

#[test]
fn without_protocol_features_rings_are_enabled_from_the_start() {
    let mut session = new_session();
    let table = Request::SetMemoryTable(vec![(region(0, 0), memfd(SIZE))]);
    do_all(&mut session, [table, Request::SetFeatures(0)]);
    do_all(&mut session, ring_requests(0));
    assert!(session.is_running(0));
    do_all(&mut session, [Request::SetFeatures(PROTOCOL_FEATURES)]);
    assert!(!session.is_running(0));
}

#[test]
fn what_cannot_be_had_is_refused_and_changes_nothing() {
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let overlapping = vec![(region(0, 0), memfd(SIZE)), (region(SIZE / 2, 0), memfd(SIZE))];
    let mut session = qemu();
    session.take_changes();
    let proc = std::fs::File::open("/proc/self/status").unwrap();
    for request in [
        Request::SetFeatures(1 << 33),
        Request::SetProtocolFeatures(1 << 11),
        Request::SetMemoryTable(overlapping),
        Request::SetMemoryTable(vec![(region(0, 0), memfd(SIZE - 1))]),
        Request::SetMemoryTable(vec![(region(0, u64::MAX), memfd(SIZE))]),
        Request::SetMemoryTable(vec![(region(0, 0), std::os::fd::OwnedFd::from(proc).into())]),
        Request::AddMemoryRegion(region(SIZE - 4096, 0), memfd(SIZE)),
        Request::AddMemoryRegion(region(SIZE, 1 << 62), memfd(SIZE)),
        Request::RemoveMemoryRegion(region(4096, 0)),
        Request::SetLogBase { size: 4096, offset: 4096, file: memfd(4096) },
        Request::SetLogBase { size: u64::MAX, offset: 1, file: memfd(4096) },
        Request::SetRingSize { queue: 0, size: 65536 },
        Request::SetRingKick { queue: 0, fd: None },
        Request::SetRingKick { queue: 0, fd: Some(pipe.into()) },
        Request::SetRingCall { queue: 0, fd: Some(memfd(8)) },
        Request::GetInflight(InflightAreas { queues: 3, ..AREAS }),
        Request::GetInflight(InflightAreas { queue_size: 0, ..AREAS }),
        Request::GetInflight(InflightAreas { queue_size: u16::MAX, ..AREAS }),
        Request::SetMtu(1501),
        Request::SetConfig { offset: 0, size: 6 },
    ] {
        let said = format!("{request:?}");
        assert!(session.handle(request).unwrap().is_err(), "{said}");
        assert!(session.is_running(0), "{said}");
        assert_eq!(session.take_changes(), Changes::default(), "{said}");
    }
    for beyond in [2, 255, u32::MAX] {
        let base = session.handle(Request::GetRingBase { queue: beyond });
        assert!(matches!(base, Err(ProtocolError::Queue(_))));
    }
}

const AREAS: InflightAreas = InflightAreas { size: 0, offset: 0, queues: 2, queue_size: 256 };

/// The areas that a session makes for its queues, and their file.
fn areas(session: &mut Session) -> (InflightAreas, Descriptor) {
    match session.handle(Request::GetInflight(AREAS)).unwrap().unwrap() {
        Answer::File(bytes, file) => {
            let size = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
            let said = InflightAreas { size, ..AREAS };
            assert_eq!(bytes, said.bytes());
            (said, file.try_clone().unwrap())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn areas_for_buffers_in_flight_are_made_and_taken_and_kept() {
    let mut session = qemu();
    let (said, file) = areas(&mut session);
    assert_eq!(said.size, 2 * (32 + 32 * 256_u64).next_multiple_of(64), "packed");
    let seals = rustix::fs::fcntl_get_seals(&file).unwrap();
    let fixed = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW;
    assert!(seals.contains(fixed), "nobody can cut it off");
    assert!(session.inflight(0).unwrap().is_none(), "it may be for another back end");
    session.take_changes();
    do_all(&mut session, [Request::SetInflight(said, file.try_clone().unwrap())]);
    assert!(session.take_changes().rings && session.inflight(1).unwrap().is_some());
    session.set_adopted(0);
    let kept = session.kept();
    let next = restore(&kept).unwrap();
    assert_eq!(next.kept()[SESSION].0, kept[SESSION].0);
    assert!(next.inflight(0).unwrap().is_some() && next.inflight(2).unwrap().is_none());
    let mut part = kept.clone();
    part.remove("inflight");
    assert!(restore(&part).is_none(), "without its file");
    do_all(&mut session, [Request::ResetDevice]);
    assert!(session.inflight(0).unwrap().is_none(), "a driver that begins anew has none");
}

#[test]
fn areas_that_are_not_what_is_said_are_refused() {
    let mut session = qemu();
    let (said, file) = areas(&mut session);
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let longer = InflightAreas { size: said.size + 4096, ..said };
    let refused = |session: &mut Session, said: InflightAreas, file: &Descriptor| {
        let request = Request::SetInflight(said, file.try_clone().unwrap());
        assert!(session.handle(request).unwrap().is_err(), "{said:?}");
        assert!(session.inflight(0).unwrap().is_none(), "{said:?}");
    };
    for wrong in [
        InflightAreas { size: said.size - 1, ..said },
        InflightAreas { size: u64::MAX, ..said },
        InflightAreas { offset: 64, ..longer },
        InflightAreas { offset: 4, ..said },
        InflightAreas { offset: u64::MAX - 63, ..said },
        InflightAreas { queues: 0, ..said },
        InflightAreas { queues: 3, ..said },
        InflightAreas { queue_size: 512, ..said },
        InflightAreas { queue_size: 0, ..said },
    ] {
        refused(&mut session, wrong, &file);
    }
    refused(&mut session, said, &pipe.into());
    rustix::io::pwrite(&file, &[2], 8).unwrap();
    refused(&mut session, said, &file);
    // The areas' version is right, but their queues have another size.
    rustix::io::pwrite(&file, &[1, 0, 255, 0], 8).unwrap();
    refused(&mut session, said, &file);
    rustix::io::pwrite(&file, &[1, 0, 0, 1], 8).unwrap();
    do_all(&mut session, [Request::SetInflight(said, file)]);
}

#[test]
fn memory_comes_and_goes_by_slots() {
    let mut session = qemu();
    let file = memfd(2 * SIZE);
    let second = || file.try_clone().unwrap();
    do_all(
        &mut session,
        [
            Request::AddMemoryRegion(region(2 * SIZE, SIZE), second()),
            Request::AddMemoryRegion(region(4 * SIZE, 0), second()),
        ],
    );
    let memory = session.memory();
    assert!(memory.bytes(2 * SIZE, SIZE as u32).is_some() && memory.bytes(SIZE, 1).is_none());
    // The last byte of the second file, written through its first region; no other region holds it.
    memory.bytes(3 * SIZE - 1, 1).unwrap().fill(7);
    let mut byte = [0];
    rustix::io::pread(&file, &mut byte, 2 * SIZE - 1).unwrap();
    assert_eq!(byte, [7]);
    do_all(&mut session, [Request::RemoveMemoryRegion(region(2 * SIZE, 0))]);
    assert!(session.memory().bytes(2 * SIZE, 1).is_none());
    assert!(session.memory().bytes(4 * SIZE, 1).is_some());
}

#[test]
fn memory_that_is_added_for_each_pair_of_queues_stays_until_the_last_has_removed_it() {
    let mut session = qemu();
    let file = memfd(2 * SIZE);
    let add = || Request::AddMemoryRegion(region(4 * SIZE, 0), file.try_clone().unwrap());
    let remove = || Request::RemoveMemoryRegion(region(4 * SIZE, 0));
    do_all(&mut session, [add(), add()]);
    // The same range in another file counts as another region.
    let other = Request::AddMemoryRegion(region(4 * SIZE, 0), memfd(2 * SIZE));
    assert!(session.handle(other).unwrap().is_err());
    let restored = restore(&session.kept()).unwrap();
    assert!(restored.memory().bytes(4 * SIZE, 1).is_some());
    do_all(&mut session, [remove()]);
    assert!(session.memory().bytes(4 * SIZE, 1).is_some());
    do_all(&mut session, [remove()]);
    assert!(session.memory().bytes(4 * SIZE, 1).is_none());
    assert!(session.handle(remove()).unwrap().is_err());
}

/// The message is still in the socket, and its sender gets one reply only.
#[test]
fn regression_a_region_counts_once_if_its_process_dies_before_it_takes_the_message() {
    let file = memfd(2 * SIZE);
    let add = || Request::AddMemoryRegion(region(4 * SIZE, 0), file.try_clone().unwrap());
    let remove = || Request::RemoveMemoryRegion(region(4 * SIZE, 0));
    let is_there = |session: &Session| session.memory().bytes(4 * SIZE, 1).is_some();
    let successor = |session: &Session| restore(&session.kept()).unwrap();
    let mut session = qemu();
    do_all(&mut session, [add()]);
    let mut next = successor(&session);
    do_all(&mut next, [add(), remove()]);
    assert!(!is_there(&next), "counted twice");
    // Another message proves that the first one was taken.
    let mut next = successor(&session);
    do_all(&mut next, [Request::GetFeatures, add(), remove()]);
    assert!(is_there(&next));
    session.taken();
    let mut next = successor(&session);
    do_all(&mut next, [add(), remove()]);
    assert!(is_there(&next), "a second time, for another pair of queues");
    next.taken();
    do_all(&mut next, [add(), remove()]);
    let mut next = successor(&next);
    do_all(&mut next, [remove()]);
    assert!(is_there(&next), "removed twice");
    do_all(&mut next, [remove()]);
    assert!(!is_there(&next));
}

#[test]
fn regression_memory_that_is_added_without_end_can_still_be_kept() {
    let mut session = qemu();
    let file = memfd(2 * SIZE);
    let add = |_| Request::AddMemoryRegion(region(4 * SIZE, 0), file.try_clone().unwrap());
    do_all(&mut session, (0..1000).map(add));
    let kept = session.kept();
    assert!(kept[SESSION].0.to_string().len() < crate::control::MAX_MESSAGE / 2);
    let mut session = restore(&kept).unwrap();
    let remove = |_| Request::RemoveMemoryRegion(region(4 * SIZE, 0));
    do_all(&mut session, (0..999).map(remove));
    assert!(session.memory().bytes(4 * SIZE, 1).is_some());
    do_all(&mut session, [remove(0)]);
    assert!(session.memory().bytes(4 * SIZE, 1).is_none());
}

#[test]
fn the_configuration_space_is_as_the_port() {
    let session = &mut qemu();
    let mut config = |offset, size| match session
        .handle(Request::GetConfig { offset, size, flags: 0 })
        .unwrap()
        .unwrap()
    {
        Answer::Bytes(bytes) => bytes,
        other => panic!("{other:?}"),
    };
    let mut want = Mac::local(7).octets().to_vec();
    want.extend([1, 0, 1, 0, 0xdc, 0x05]);
    assert_eq!(config(0, 12)[12..], want);
    assert_eq!(config(6, 2)[12..], [1, 0]);
    assert!(config(250, 7).is_empty() && config(u32::MAX, 2).is_empty());
    assert!(session.set_offer(Offer { link: false, ..offer() }));
    assert!(!session.set_offer(Offer { link: false, queue_pairs: 9, ..offer() }), "as before");
}

#[test]
fn a_successor_goes_on_with_what_was_kept() {
    let mut session = qemu();
    let all = session.offered();
    do_all(
        &mut session,
        [
            Request::AddMemoryRegion(region(2 * SIZE, 0), memfd(SIZE)),
            Request::SetLogBase { size: 4096, offset: 0, file: memfd(4096) },
            Request::SetFeatures(all),
            Request::SetStatus(15),
        ],
    );
    let kept = session.kept();
    assert!(kept.keys().all(|key| *key == SESSION || kept[key].1.is_some()));
    let next = restore(&kept).unwrap();
    assert!(next.is_running(0) && next.is_running(1) && next.dirty_log().is_some());
    assert!(next.memory().bytes(2 * SIZE, 1).is_some());
    let again = next.kept();
    assert_eq!(again.keys().collect::<Vec<_>>(), kept.keys().collect::<Vec<_>>());
    assert_eq!(again[SESSION].0, kept[SESSION].0);
    for missing in kept.keys().filter(|key| key.starts_with("memory") || *key == SESSION) {
        let mut part = kept.clone();
        part.remove(missing);
        assert!(restore(&part).is_none(), "without {missing}");
    }
}

#[test]
fn reset_stops_all_rings() {
    for reset in [Request::ResetDevice, Request::SetStatus(0), Request::ResetOwner] {
        let mut session = qemu();
        do_all(&mut session, [reset]);
        assert!(!session.is_running(0) && !session.is_running(1));
    }
}

#[test]
fn only_eventfds_are_taken_for_eventfds() {
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    for other in [epoll.into(), pipe.into(), memfd(SIZE)] {
        assert!(!is_event(&other), "{other:?}");
    }
    let event = eventfd();
    assert!(is_event(&event));
    assert!(rustix::io::read(&event, &mut [0; 8]).is_err(), "nobody was signalled, nobody waits");
}

#[test]
fn regression_a_split_ring_has_a_power_of_two_of_entries() {
    let features = Features::VERSION_1.bits();
    for (features, good) in [(features, false), (features | Features::RING_PACKED.bits(), true)] {
        let mut session = new_session();
        // Before the features are known, the size may be valid.
        do_all(&mut session, [Request::SetRingSize { queue: 0, size: 3 }]);
        do_all(&mut session, [Request::SetFeatures(features)]);
        let refused = session.handle(Request::SetRingSize { queue: 0, size: 3 }).unwrap().is_err();
        assert_eq!(refused, !good);
        do_all(&mut session, [Request::SetRingSize { queue: 0, size: 32_768 }]);
    }
}

#[test]
fn regression_a_ring_lies_in_guest_memory() {
    let user = 1 << 40;
    let address = |descriptors: u64, available: u64, used: u64| RingAddress {
        descriptors: user + descriptors,
        available: user + available,
        used: user + used,
        log: None,
    };
    let good = address(0, 0x1000, 0x2000);
    let mut session = new_session();
    let set = |address| Request::SetRingAddress { queue: 0, address };
    // Without memory, the address may become valid.
    do_all(&mut session, [set(address(SIZE, 0, 0))]);
    do_all(
        &mut session,
        [
            Request::SetFeatures(Features::VERSION_1.bits()),
            Request::SetMemoryTable(vec![(region(0, 0), memfd(SIZE))]),
            Request::SetRingSize { queue: 0, size: 256 },
            set(good),
        ],
    );
    for bad in [
        address(SIZE, 0x1000, 0x2000),
        address(u64::MAX - user, 0x1000, 0x2000),
        address(SIZE - 16 * 255, 0x1000, 0x2000),
        address(4, 0x1000, 0x2000),
        address(0, SIZE - 514, 0x2000),
        address(0, 0x1001, 0x2000),
        address(0, 0x1000, SIZE - 2050),
        address(0, 0x1000, 0x2002),
    ] {
        let refused = session.handle(set(bad)).unwrap().unwrap_err();
        assert!(refused.is_provisional(), "{refused}");
        do_all(&mut session, [set(good)]);
    }
    // The ring now ends with the last bytes of memory.
    do_all(&mut session, [set(address(SIZE - 4096, 0, 0x400))]);
    do_all(&mut session, [set(address(0, SIZE - 516, 0x2000))]);
    do_all(&mut session, [set(address(0, 0x1000, SIZE - 2052))]);
}

#[test]
fn logs_that_do_not_lie_in_their_file_are_refused() {
    let mut session = qemu();
    let set = |session: &mut Session, offset: u64, size: u64, file| {
        session.handle(Request::SetLogBase { size, offset, file }).unwrap().is_ok()
    };
    for (offset, size, len) in [
        (0, 4096, 4095),
        (4096, 8, 4096),
        (4, 4096, 8192),
        (0, 7, 4096),
        (0, 0, 4096),
        (u64::MAX, 8, 4096),
        (8, u64::MAX, 4096),
        (0, 1 << 40, 1 << 40),
    ] {
        assert!(!set(&mut session, offset, size, memfd(len)), "{size} at {offset} of {len}");
        assert!(session.log.is_none());
    }
    // An offset in the file costs no budget.
    let before = session.account.used().bytes;
    assert!(set(&mut session, (3 << 40) + 8, 4096, memfd(4 << 40)));
    assert_eq!(session.account.used().bytes - before, 8192);
    assert!(set(&mut session, 0, 16, memfd(4096)), "another takes its place");
    assert_eq!(session.account.used().bytes - before, 4096);
}

/// The windows of 64 regions at the end of a file of 4 TiB are mapped, each part of it once.
#[test]
fn regression_regions_are_mapped_by_their_windows() {
    let mut session = new_session();
    let file = memfd(4 << 40);
    let at = |slot: u64| Region {
        guest: slot * SIZE,
        size: 4096,
        user: (1 << 40) + slot * SIZE,
        offset: (3 << 40) + slot * SIZE,
    };
    for slot in 0..60 {
        let file = file.try_clone().unwrap();
        do_all(&mut session, [Request::AddMemoryRegion(at(slot), file)]);
    }
    let used = session.account.used();
    assert_eq!((used.bytes, used.mappings), (60 * 4096, 60));
    let inside = Region { guest: 1 << 45, user: 1 << 45, size: 100, offset: at(7).offset + 50 };
    do_all(&mut session, [Request::AddMemoryRegion(inside, file.try_clone().unwrap())]);
    assert_eq!(session.account.used(), used, "it is mapped already");
    session.memory().bytes(1 << 45, 4).unwrap().copy_in(b"here");
    assert_eq!(session.memory().bytes(7 * SIZE + 50, 4).unwrap().to_vec(), b"here");
    // A table of the same regions replaces the old table, and maps nothing twice.
    let same = (0..60).map(|slot| (at(slot), file.try_clone().unwrap())).collect();
    do_all(&mut session, [Request::SetMemoryTable(same)]);
    assert_eq!(session.account.used(), used);
    do_all(&mut session, [Request::SetMemoryTable(vec![(at(0), file)])]);
    assert_eq!(session.account.used().mappings, 1);
}
