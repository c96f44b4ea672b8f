//! Rows of `toklat bench nic`: Linux guests, and what their cards cost them.

use super::linux::{Card, Figure, QemuCard, figure};
use crate::bench::bar::Bar;
use crate::bench::peer::Peer;
use crate::bench::rows::{Better, Row};

const GUEST: &str = "a Linux guest with a virtual processor, a program at the far end of its wire, and what is \
    between them (the switch: auto; interrupts are held back as by \
    toklat vm run), on all cores. Peer: the same guest and program";
const VIRTIO_UDP: Peer = Peer::Toklat("virtio", |lab| figure(lab, Card::Virtio, Figure::Udp));
const VIRTIO_BURST: Peer = Peer::Toklat("virtio", |lab| figure(lab, Card::Virtio, Figure::Burst));
const VIRTIO_RECEIVE: Peer =
    Peer::Toklat("virtio", |lab| figure(lab, Card::Virtio, Figure::Receive));

macro_rules! card {
    ($id:literal, $unit:literal, $bar:expr, $better:ident, $card:ident, $what:ident, $peer:expr) => {
        Row {
            id: $id,
            unit: $unit,
            bar: $bar,
            better: Better::$better,
            how: GUEST,
            ours: |lab| figure(lab, Card::$card, Figure::$what),
            peer: $peer,
        }
    };
}

/// QEMU's own cards, on its stream socket and on a tap.
macro_rules! own {
    ($what:ident: $($name:literal $backend:ident $card:ident),+) => {
        Peer::BestOf(&[$(($name, |lab| figure(lab, Card::$backend(QemuCard::$card), Figure::$what))),+])
    };
    (e1000, $what:ident) => {
        own!($what: "e1000, stream" Stream E1000, "e1000e, stream" Stream E1000e,
            "e1000, tap" Tap E1000, "e1000e, tap" Tap E1000e)
    };
    (pcnet, $what:ident) => {
        own!($what: "pcnet, stream" Stream Pcnet, "pcnet, tap" Tap Pcnet)
    };
}

/// All rows.
pub const ROWS: &[Row] = &[
    card!("nic.guest.82574l.udp", "kpps", Bar::ratio(1.1), More, I82574l, Udp, own!(e1000, Udp)),
    card!(
        "nic.guest.82574l.burst",
        "kpps",
        Bar::ratio(1.3),
        More,
        I82574l,
        Burst,
        own!(e1000, Burst)
    ),
    card!(
        "nic.guest.82574l.receive",
        "kpps",
        Bar::ratio(1.1),
        More,
        I82574l,
        Receive,
        own!(e1000, Receive)
    ),
    card!(
        "nic.guest.82574l.rtt",
        "us",
        Bar::NONE,
        Less,
        I82574l,
        RoundTrip,
        own!(e1000, RoundTrip)
    ),
    card!(
        "nic.guest.82574l.rtt.99",
        "us",
        Bar::NONE,
        Less,
        I82574l,
        RoundTrip99,
        own!(e1000, RoundTrip99)
    ),
    card!("nic.guest.82540em.udp", "kpps", Bar::ratio(0.8), More, I82540em, Udp, own!(e1000, Udp)),
    card!(
        "nic.guest.82540em.burst",
        "kpps",
        Bar::ratio(1.1),
        More,
        I82540em,
        Burst,
        own!(e1000, Burst)
    ),
    card!(
        "nic.guest.82540em.receive",
        "kpps",
        Bar::ratio(0.8),
        More,
        I82540em,
        Receive,
        own!(e1000, Receive)
    ),
    card!(
        "nic.guest.82540em.rtt",
        "us",
        Bar::NONE,
        Less,
        I82540em,
        RoundTrip,
        own!(e1000, RoundTrip)
    ),
    card!("nic.guest.csb.udp", "kpps", Bar::ratio(0.9), More, Csb, Udp, VIRTIO_UDP),
    card!("nic.guest.csb.burst", "kpps", Bar::ratio(0.9), More, Csb, Burst, VIRTIO_BURST),
    card!("nic.guest.csb.receive", "kpps", Bar::ratio(0.9), More, Csb, Receive, VIRTIO_RECEIVE),
    card!("nic.guest.pcnet.udp", "kpps", Bar::ratio(0.8), More, Pcnet, Udp, own!(pcnet, Udp)),
    card!("nic.guest.pcnet.burst", "kpps", Bar::ratio(0.8), More, Pcnet, Burst, own!(pcnet, Burst)),
    card!(
        "nic.guest.pcnet.receive",
        "kpps",
        Bar::ratio(0.8),
        More,
        Pcnet,
        Receive,
        own!(pcnet, Receive)
    ),
    card!("nic.traps.82574l.sent", "1/frame", Bar::most(0.0), Less, I82574l, SyncSent, Peer::None),
    card!(
        "nic.traps.82574l.received",
        "1/frame",
        Bar::most(0.0),
        Less,
        I82574l,
        SyncReceived,
        Peer::None
    ),
    card!(
        "nic.traps.82540em.sent",
        "1/frame",
        Bar::most(0.3),
        Less,
        I82540em,
        SyncSent,
        Peer::None
    ),
    card!(
        "nic.traps.82540em.received",
        "1/frame",
        Bar::most(0.3),
        Less,
        I82540em,
        SyncReceived,
        Peer::None
    ),
    card!("nic.traps.pcnet.sent", "1/frame", Bar::NONE, Less, Pcnet, SyncSent, Peer::None),
    card!("nic.traps.csb.sent", "1/frame", Bar::NONE, Less, Csb, SyncSent, Peer::None),
    card!("nic.traps.csb.doorbells", "1/frame", Bar::most(0.01), Less, Csb, PostedSent, Peer::None),
    card!(
        "nic.traps.82574l.doorbells",
        "1/frame",
        Bar::NONE,
        Less,
        I82574l,
        PostedSent,
        Peer::None
    ),
];
