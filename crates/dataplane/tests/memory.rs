//! Memory that fails while the switch uses it costs its owner the port, and others nothing.

use std::os::fd::AsFd;
use std::process::Command;

use frame::Mac;
use inline::Inline;
use netring::layout::{Control, Geometry, RingMemory, RingSpec, SlotWord};
use netring::{Port, Region, RegionConfig, Rings};
use port::Nanos;
use rustix::fs::MemfdFlags;
use shmem::Mapping;
use toklat_dataplane::SwitchConfig;

const CHILD: &str = "TOKLAT_MEMORY_TEST_CHILD";

/// A frame from one local station to another.
fn frame(to: u32, from: u32) -> Vec<u8> {
    let mut frame = vec![0x55; 60];
    frame[..6].copy_from_slice(&Mac::local(to).octets());
    frame[6..12].copy_from_slice(&Mac::local(from).octets());
    frame
}

fn add(switch: &mut Inline, region: &std::sync::Arc<Region>) -> Port {
    let port = Port::inline(region, "good", 1, 1, 256).unwrap();
    switch.add_rings("good", toklat_dataplane::config::Policy::default(), &port.rings()).unwrap();
    port
}

fn send(port: &mut Port, frame: &[u8]) {
    assert_eq!(port.send(1).fill(1, |window| window.copy_in(frame)), 1);
    port.flush().unwrap();
}

#[test]
fn a_truncated_region_fails_its_port_alone() {
    // Runs in a process of its own, because it installs a signal handler and dies of a signal.
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", "a_truncated_region_fails_its_port_alone"]);
        let child = child.env(CHILD, "1").stdout(std::process::Stdio::null());
        assert!(child.status().unwrap().success());
        return;
    }
    shmem::guard::install();
    let geometry = Geometry {
        if_size: 64,
        if_num: 1,
        ring_size: 1024,
        ring_num: 2,
        buf_size: 2048,
        buf_num: 64,
    };
    let file = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, geometry.file_size()).unwrap();
    let map = Mapping::unsealed(file.as_fd(), geometry.file_size() as usize).unwrap();
    let spec = |first| RingSpec { first, rings: 1, slots: 16 };
    let mapping = std::sync::Arc::clone(&map);
    let (buf_usable, offloads) = (2048, port::OffloadSet::NONE);
    let rings = Rings { mapping, geometry, tx: spec(0), rx: spec(1), buf_usable, offloads };

    let mut switch = Inline::new(SwitchConfig { max_ports: 4, ..Default::default() }).unwrap();
    let region = Region::private(RegionConfig::ports(2, 1, 256)).unwrap();
    let (mut a, mut b) = (add(&mut switch, &region), add(&mut switch, &region));
    let bad = switch.add_rings("bad", toklat_dataplane::config::Policy::default(), &rings).unwrap();

    let ring = RingMemory::of(&map, &geometry, 0, 16).unwrap();
    let at = geometry.buf_offset() as usize + 2 * 2048;
    map.bytes(at, 60).unwrap().copy_in(&frame(1, 3));
    ring.slots[0].store(SlotWord { buf: 2, len: 60, flags: 0 });
    let control: &Control = &ring.control;
    control.owner.0.publish(1);
    assert_eq!(switch.turn(Nanos(0)), 1);

    rustix::fs::ftruncate(&file, 0).unwrap();
    send(&mut a, &frame(3, 1));
    send(&mut b, &frame(1, 2));
    switch.turn(Nanos(1));
    send(&mut a, &frame(2, 1));
    switch.turn(Nanos(2));
    assert!(map.has_failed());
    assert_eq!(switch.stats(bad).faults, 1, "{:?}", switch.stats(bad));
    let received = |port: &mut Port| port.receive(16).count();
    // Each port received one frame from the bad port, which was flooded, and one from the other
    // port.
    assert_eq!((received(&mut a), received(&mut b)), (2, 2), "nobody else has lost a frame");
    let unaccounted: i128 = (0..3).map(|id| switch.stats(id).unaccounted()).sum();
    assert_eq!(unaccounted, 0);
}
