//! The test guest by itself, and what virtual machines are compared with: two guests between which there is no toklat.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use toklat::vm::{Backend, Between, Bridge, Pair, Qemu, guest};

use self::daemon::skip;

mod daemon;

/// QEMU, if it and the guest are here.
fn qemu(test: &str) -> Option<Qemu> {
    let found = Qemu::find(None).map_err(anyhow::Error::from);
    let found = found.and_then(|qemu| Ok(guest::find().map(|_| qemu)?));
    found.inspect_err(|error| skip(test, &format!("{error:#}"))).ok()
}

fn reach_each_other(qemu: &Qemu, between: &Between) {
    let stop = AtomicBool::new(false);
    let mut pair = Pair::boot(qemu, between, 1, &stop).unwrap();
    let us = pair.round_trip(&stop).unwrap();
    let tcp = pair.tcp(|| Duration::ZERO, &stop).unwrap();
    eprintln!("round trip {us} us, {:.0} Mb/s, {:.2} ns/B", tcp.bits / 1e6, tcp.ns_per_byte);
    assert!(us > 1.0 && tcp.bits > 1e6, "{us} us, {tcp:?}");
}

#[test]
fn guests_reach_each_other_over_qemu_s_own_socket() {
    let Some(qemu) = qemu("guests_reach_each_other_over_qemu_s_own_socket") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let backends = [true, false].map(|listen| Backend::Peer { path: path.clone(), listen });
    reach_each_other(&qemu, &Between { backends, prefix: Vec::new() });
}

#[test]
fn guests_reach_each_other_over_tap_and_bridge() {
    let test = "guests_reach_each_other_over_tap_and_bridge";
    let Some(qemu) = qemu(test) else { return };
    let bridge = match Bridge::new() {
        Ok(bridge) => bridge,
        Err(why) => return skip(test, &format!("{why:#}")),
    };
    let backends = bridge.taps().map(|ifname| Backend::Tap { ifname: ifname.into(), vhost: false });
    reach_each_other(&qemu, &Between { backends, prefix: bridge.prefix() });
}
