//! Two Linux guests on the switch, and the same guests connected without it.

use std::time::Duration;

use anyhow::Context;
use dataplane::config::Policy;
use hyper::Method;
use topology::VhostUser;

use super::{Demo, Outcome};
use crate::api::{NewPort, PortInfo, PortSpec};
use client::table::bps;
use client::units::interrupts;
use lab::{Between, Bridge, Pair};
use vm::{Accelerator, Backend, Model, Qemu, guest};

/// The table's text when no guests run.
pub const WHAT: &str = "two Linux guests";

/// The reason why guests cannot be run, and the remedy; `None` if they can.
pub fn obstacle() -> Option<String> {
    if let Err(error) = Qemu::find(None) {
        return Some(error.to_string());
    }
    guest::find().err().map(|error| error.to_string())
}

/// Runs the guests on the switch, then without it.
///
/// # Errors
/// If something that should work does not.
pub fn run(demo: &mut Demo, duration: Duration) -> anyhow::Result<Vec<Outcome>> {
    let qemu = Qemu::for_test_guests()?;
    let how = match Accelerator::choose() {
        (Accelerator::Kvm, _) => "",
        (Accelerator::Tcg, _) => ", without KVM",
    };
    let between = on_switch(demo)?;
    let mut outcomes = measure(demo, &qemu, &between, &format!("toklat{how}"), duration)?;
    let (beside, between, _keep) = beside(demo)?;
    match measure(demo, &qemu, &between, &format!("{beside}{how}"), duration) {
        Ok(more) => outcomes.extend(more),
        Err(error) => {
            outcomes.push(Outcome::skipped(format!("{WHAT}, {beside}"), format!("{error:#}")))
        }
    }
    Ok(outcomes)
}

/// Adds two ports to the switch.
fn on_switch(demo: &mut Demo) -> anyhow::Result<Between> {
    let sockets =
        ["vm-a", "vm-b"].map(|name| (name, demo.directory.path().join(format!("{name}.sock"))));
    let usual = Model::Virtio.usual_interrupts(Accelerator::choose().0).unwrap_or("off");
    let interrupts = interrupts(usual).map_err(anyhow::Error::msg)?;
    for (name, socket) in &sockets {
        let path = Some(socket.to_string_lossy().into_owned());
        let kind = VhostUser { path, client: false, queues: 1 }.into();
        let policy = Policy { interrupts, ..Policy::default() };
        let spec = PortSpec { kind, policy, ..PortSpec::default() };
        let port = NewPort { name: (*name).to_owned(), spec };
        let _: PortInfo = demo
            .client
            .send(Method::POST, "/v1/switches/demo/ports", &port)
            .context("Cannot add a vhost-user port")?;
    }
    Ok(Between {
        backends: sockets.map(|(_, socket)| Backend::VhostUser(socket)),
        prefix: Vec::new(),
    })
}

/// A tap and a bridge if this process may make them; else QEMU's own socket.
fn beside(demo: &Demo) -> anyhow::Result<(&'static str, Between, Option<Bridge>)> {
    if let Ok(bridge) = Bridge::new() {
        let backends =
            bridge.taps().map(|ifname| Backend::Tap { ifname: ifname.into(), vhost: false });
        return Ok(("tap and bridge", Between { backends, prefix: bridge.prefix() }, Some(bridge)));
    }
    let path = demo.directory.path().join("beside.sock");
    let backends = [true, false].map(|listen| Backend::Peer { path: path.clone(), listen });
    Ok(("QEMU's stream socket", Between { backends, prefix: Vec::new() }, None))
}

fn measure(
    demo: &Demo,
    qemu: &Qemu,
    between: &Between,
    name: &str,
    duration: Duration,
) -> anyhow::Result<Vec<Outcome>> {
    eprintln!("two Linux guests, {name}: booting ...");
    let seconds = u32::try_from(duration.as_secs().clamp(1, 60)).unwrap_or(1);
    let mut pair = Pair::boot(qemu, between, seconds, &demo.stop)?;
    eprintln!("  they reach each other; round trips, then {seconds} s of TCP ...");
    let us = pair.round_trip(&demo.stop)?;
    let tcp = pair.tcp(|| Duration::ZERO, &demo.stop)?;
    Ok(vec![
        Outcome::result(format!("guest to guest, {name}: TCP"), bps(tcp.bits)),
        Outcome::result("  round trip, UDP, 64 bytes", format!("{us:.0} us median")),
    ])
}
