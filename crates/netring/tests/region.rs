//! Objective: regions are laid out as `net/netmap.h` says, and all that a port had is returned.
//! Steps: ports in private regions; numbers read from the memory byte by byte.

use netring::layout::Geometry;
use netring::{Open, PipeConfig, Port, Region, RegionConfig, RegionError, pipe};
use shmem::{Bytes, Mapping};

fn u32_at(map: &Mapping, at: u64) -> u32 {
    map.all().read(at as usize).unwrap()
}

fn u64_at(map: &Mapping, at: u64) -> u64 {
    map.all().read(at as usize).unwrap()
}

/// Offsets and values of netmap's layout, numbered 1.3, 2.2 and 2.5. None of them comes from our
/// own types.
#[test]
fn interfaces_and_rings_are_netmaps_to_the_byte() {
    let region = Region::private(RegionConfig::ports(2, 2, 16).buffers(200)).unwrap();
    let _first = Port::inline(&region, "vale0:first", 1, 1, 16).unwrap();
    let port = Port::inline(&region, "vale0:a-long-name-is-cut", 2, 1, 16).unwrap();
    let (map, geometry) = (region.mapping(), region.geometry());
    let Geometry { if_size, buf_size, ring_size, .. } = geometry;
    assert_eq!((if_size % 64, buf_size, ring_size), (0, 2112, 512));
    let nifp = u64::from(if_size);
    let mut name = [0; 16];
    map.bytes(nifp as usize, 16).unwrap().copy_out(&mut name);
    assert_eq!(&name, b"vale0:a-long-na\0");
    let counts = [16, 20, 24, 28, 32, 36, 40].map(|at| u32_at(map, nifp + at));
    assert_eq!(counts, [14, 1, 2, 1, 0, 1, 1], "version, flags, tx, rx, extra, host tx, host rx");
    let ring_ofs = [0, 1, 2, 3, 4].map(|i| u64_at(map, nifp + 56 + 8 * i));
    let rings = port.rings();
    let [tx0, tx1, rx0] =
        [rings.tx.first, rings.tx.first + 1, rings.rx.first].map(|ring| geometry.ring_offset(ring));
    assert_eq!(ring_ofs, [tx0 - nifp, tx1 - nifp, 0, rx0 - nifp, 0], "tx, tx host, rx, rx host");
    for (ring, id_dir, tail) in [(tx0, 0, 15), (tx1, 1, 15), (rx0, 0x1_0000, 0)] {
        assert_eq!(ring + u64_at(map, ring), geometry.buf_offset());
        let words = [8, 12, 16, 20, 24, 28, 32].map(|at| u32_at(map, ring + at));
        assert_eq!(words, [16, 2112, id_dir, 0, 0, tail, 0]);
        for slot in 0..16 {
            let at = ring + 256 + 16 * slot;
            assert!((2..geometry.buf_num).contains(&u32_at(map, at)));
            assert_eq!([u32_at(map, at + 4), u32_at(map, at + 8)], [2112, 0]);
        }
    }
    assert_eq!(geometry.region_size() % 4096, 0);
}

fn chain(map: &Mapping, geometry: &Geometry) -> Vec<u32> {
    let mut at = u32_at(map, 32);
    let mut chain = Vec::new();
    while at != 0 {
        chain.push(at);
        at = u32_at(map, geometry.buf_offset() + u64::from(at) * u64::from(geometry.buf_size));
    }
    chain
}

#[test]
fn a_closed_port_gives_everything_back() {
    let region = Region::private(RegionConfig::ports(2, 1, 16).buffers(64)).unwrap();
    let free = (region.free_buffers(), region.free_rings());
    assert_eq!(free, (64, 4));
    for _ in 0..10 {
        let one = Port::inline(&region, "a:1", 1, 1, 16).unwrap();
        let two = Port::inline(&region, "a:2", 1, 1, 16).unwrap();
        assert_eq!((region.free_buffers(), region.free_rings()), (0, 0));
        let third = Port::inline(&region, "a:3", 1, 1, 16);
        assert!(matches!(third, Err(RegionError::Exhausted("rings"))));
        drop((one, two));
        assert_eq!((region.free_buffers(), region.free_rings()), free);
    }
    let no_buffers = Port::inline(&region, "a:1", 2, 2, 17);
    assert!(matches!(no_buffers, Err(RegionError::Geometry(_))), "slots that do not fit a ring");
    assert_eq!(
        (region.free_buffers(), region.free_rings()),
        free,
        "half an opening leaves nothing"
    );
}

#[test]
fn the_twins_of_a_pipe_have_the_same_buffers() {
    let sizes = RegionConfig::default().interfaces(2).rings(4).slots(8).buffers(16);
    let region = Region::private(sizes).unwrap();
    let ends = pipe(&PipeConfig::default().slots(8).in_region(&region)).unwrap();
    let (one, two) = (ends.0.rings(), ends.1.rings());
    let geometry = region.geometry();
    for (send, receive) in [(one.tx, two.rx), (two.tx, one.rx)] {
        for slot in 0..8 {
            let at = |ring| geometry.ring_offset(ring) + 256 + 16 * slot;
            let [send, receive] =
                [send.first, receive.first].map(|ring| u32_at(region.mapping(), at(ring)));
            assert_eq!(send, receive);
        }
    }
    drop(ends.0);
    assert_eq!(region.free_buffers(), 0, "the other end is open");
    drop(ends.1);
    assert_eq!((region.free_buffers(), region.free_rings()), (16, 4));
}

#[test]
fn buffers_are_given_back_once() {
    let region = Region::private(RegionConfig::ports(1, 1, 8).buffers(20)).unwrap();
    let port = Port::inline(&region, "a:1", 1, 1, 8).unwrap();
    let buffer = region.buffer().unwrap();
    let in_a_ring = u32_at(region.mapping(), region.geometry().ring_offset(0) + 256);
    for bad in [0, 1, in_a_ring, buffer.number() + 1, 22, u32::MAX] {
        assert!(
            matches!(region.give_back(bad), Err(RegionError::NotTaken(n)) if n == bad),
            "{bad}"
        );
    }
    let number = buffer.number();
    drop(buffer);
    assert!(region.give_back(number).is_err(), "twice");
    assert_eq!(region.free_buffers(), 4);
    drop(port);
}

/// `ni_bufs_head` is returned at close. By then it may have any value.
#[test]
fn the_list_of_extra_buffers_ends_at_the_first_bad_number() {
    let open =
        |region: &_| Open::new("a:1").slots(8).extra_buffers(4).in_region(region).inline().unwrap();
    let region = Region::private(RegionConfig::ports(1, 1, 8).buffers(20)).unwrap();
    let mut port = open(&region);
    let geometry = region.geometry();
    let list = chain(region.mapping(), &geometry);
    assert_eq!((list.len(), region.free_buffers()), (4, 0));
    let taken = port.take_extra().unwrap();
    assert_eq!((taken.number(), chain(region.mapping(), &geometry)), (list[0], list[1..].to_vec()));
    drop((taken, port));
    assert_eq!(region.free_buffers(), 20);
    let scribbles: [fn(&[u32]) -> u32; 4] = [|_| 1, |_| u32::MAX, |list| list[0], |_| 0];
    for scribble in scribbles {
        let region = Region::private(RegionConfig::ports(1, 1, 8).buffers(20)).unwrap();
        let port = open(&region);
        let list = chain(region.mapping(), &geometry);
        let second = geometry.buf_offset() + u64::from(list[1]) * u64::from(geometry.buf_size);
        let window: Bytes<'_> = region.mapping().all();
        window.write(second as usize, scribble(&list));
        drop(port);
        assert_eq!(region.free_buffers(), 18, "two of the list, and those of the rings");
    }
}

#[test]
fn sizes_out_of_range_are_refused() {
    let bad = [
        RegionConfig::default().slots(1),
        RegionConfig::default().slots(4097),
        RegionConfig::default().rings(0),
        RegionConfig::default().rings(1025),
        RegionConfig::default().buffers(0),
        RegionConfig::default().buffers(u32::MAX),
        RegionConfig::default().buffer_stride(100),
        RegionConfig::default().buffer_usable(2113),
        RegionConfig::default().buffer_usable(0),
        RegionConfig::default().interfaces(0),
        RegionConfig::ports(u32::MAX, u32::MAX, 4096),
    ];
    for config in bad {
        assert!(matches!(Region::private(config), Err(RegionError::Geometry(_))), "{config:?}");
    }
}
