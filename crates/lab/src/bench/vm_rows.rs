//! The rows of `toklat bench vm`, and the bars that they must clear.

use anyhow::Result;

use super::bar::Bar;
use super::guests::{Coalescing, Figure, PathKind, figure};
use super::lab::Lab;
use super::peer::Peer;
use super::rows::{Better, Row, less, more};
use super::vhost::{self, Front};

const FRONT: &str = "core 0: testpmd with two virtio-user front ends, which sends back what it gets \
    (2 x 1,024 frames in flight); core 1: the switch's worker, polling";
const PEER: &str = "core 0: testpmd with two virtio-user front ends, which sends back what it gets (2 x \
    1,024 frames in flight); core 1: the switch's worker, polling. Peer: the same front ends, its switch \
    on core 1";
const GUESTS: &str = "two Linux guests with a virtual processor each, and the switch (auto; without KVM, \
    interrupts wait for up to 0.5 ms under heavy traffic, as by toklat vm run), on all cores. Peer: the same guests";

const KICKS: &str = "as vm.tcp; one guest floods the other with UDP of 64 bytes; kicks or interrupts, \
    whichever are more, for each frame delivered, with interrupts as toklat vm run sets them";

/// A row of signals per frame.
const fn kicks(
    id: &'static str,
    bar: Bar,
    how: &'static str,
    ours: fn(&Lab) -> Result<f64>,
) -> Row {
    less(id, "1/frame", bar, how, ours, Peer::None)
}

fn kicks_of(lab: &Lab, held: Coalescing) -> Result<f64> {
    figure(lab, PathKind::Toklat, Figure::Kicks(held))
}

const fn front(len: usize, queues: &'static str, flows: &'static str) -> Front {
    Front { len, queues, flows }
}

/// All rows.
pub const ROWS: &[Row] = &[
    less(
        "vm.vhost.64.ns.split",
        "ns/frame",
        Bar::most(50.0),
        FRONT,
        |lab| vhost::ns_per_frame(lab, front(64, "split", "one")),
        Peer::None,
    ),
    less(
        "vm.vhost.64.ns.packed",
        "ns/frame",
        Bar::most(50.0),
        FRONT,
        |lab| vhost::ns_per_frame(lab, front(64, "packed", "one")),
        Peer::None,
    ),
    more(
        "vm.vhost.64",
        Bar::ratio(1.35),
        PEER,
        |lab| vhost::rate(lab, front(64, "split", "one")),
        Peer::Runner("ovs", "64"),
    ),
    more(
        "vm.vhost.64.many",
        Bar::ratio(3.0),
        "core 0: testpmd with two virtio-user front ends, which generate 1,024 flows, to an address \
         that nobody has, and throw away what they get; core 1: the switch's worker, polling. Peer: the same front ends, its switch on core 1",
        |lab| vhost::rate(lab, front(64, "split", "many")),
        Peer::Runner("ovs", "many"),
    ),
    more(
        "vm.vhost.64.testpmd",
        Bar::ratio(0.97),
        PEER,
        |lab| vhost::rate(lab, front(64, "split", "one")),
        Peer::Runner("testpmd", "64"),
    ),
    more(
        "vm.vhost.1500",
        Bar::least(5.42).and_ratio(1.5),
        PEER,
        |lab| vhost::rate(lab, front(1500, "split", "one")),
        Peer::Runner("ovs", "1500"),
    ),
    Row {
        id: "vm.tcp",
        unit: "Gb/s",
        bar: Bar::ratio(1.5).with_kvm(),
        better: Better::More,
        how: GUESTS,
        ours: |lab| figure(lab, PathKind::Toklat, Figure::Tcp),
        peer: Peer::Toklat("tap+bridge", |lab| figure(lab, PathKind::Bridge, Figure::Tcp)),
    },
    Row {
        id: "vm.tcp.stream",
        unit: "Gb/s",
        bar: Bar::ratio(1.5).with_kvm(),
        better: Better::More,
        how: GUESTS,
        ours: |lab| figure(lab, PathKind::Toklat, Figure::Tcp),
        peer: Peer::Toklat("QEMU stream", |lab| figure(lab, PathKind::Stream, Figure::Tcp)),
    },
    less(
        "vm.tcp.host",
        "ns/byte",
        Bar::ratio(2.0),
        "as vm.tcp; processor time of QEMU's other threads than virtual processors and of the data process, \
         for each byte of TCP",
        |lab| figure(lab, PathKind::Toklat, Figure::HostTime),
        Peer::Toklat("tap+bridge", |lab| figure(lab, PathKind::Bridge, Figure::HostTime)),
    ),
    less(
        "vm.rtt",
        "us",
        Bar::ratio(1.43),
        "as vm.tcp; UDP, 64 bytes of payload, one at a time",
        |lab| figure(lab, PathKind::Toklat, Figure::RoundTrip),
        Peer::Toklat("tap+bridge", |lab| figure(lab, PathKind::Bridge, Figure::RoundTrip)),
    ),
    kicks("vm.kicks", Bar::most(0.05), KICKS, |lab| kicks_of(lab, Coalescing::Usually)),
    kicks(
        "vm.kicks.held",
        Bar::most(0.05),
        "as vm.kicks, with interrupts held back for up to 1000 us (adaptive)",
        |lab| kicks_of(lab, Coalescing::Long),
    ),
    kicks("vm.kicks.off", Bar::NONE, "as vm.kicks, with interrupts not held back", |lab| {
        kicks_of(lab, Coalescing::Not)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_begin_alike() {
        let mut ids: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), ROWS.len());
        assert!(ids.iter().all(|id| id.starts_with("vm.")));
    }
}
