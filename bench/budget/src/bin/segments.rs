//! Sends a number of TCP segments from one guest to another, for `cargo xtask perf` to count
//! instructions: `segments SCENARIO SEGMENTS`. Only [`send_turn`] and [`receive_turn`] are counted,
//! which are a guest's whole turns: its application, TCP, IP, and the copy into send slots.
//! Checksums are left to the NIC, and no frame has more than one segment.

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use frame::{Mac, Offload, OffloadSet};
use guest::apps::bulk::Bulk;
use guest::tcp::Full;
use guest::{BATCH, Config, Frame, Guest, Ipv6Config, Nanos, Nic, Pieces, Stack};

type Error = Box<dyn std::error::Error>;
type End = Guest<Wire, Bulk>;

const SLOTS: usize = 256;
const MAX_FRAME: usize = 1514;
const PORT: u16 = 5001;

/// Frames from one end to the other, in slots that are used again.
struct Queue {
    slots: Vec<(Box<[u8]>, usize, Offload)>,
    first: usize,
    len: usize,
}

impl Queue {
    fn new() -> Rc<RefCell<Self>> {
        let slot = || (vec![0; MAX_FRAME].into(), 0, Offload::NONE);
        let slots = std::iter::repeat_with(slot).take(SLOTS).collect();
        Rc::new(RefCell::new(Self { slots, first: 0, len: 0 }))
    }
}

/// A NIC whose frames are in the other one at once.
struct Wire {
    out: Rc<RefCell<Queue>>,
    incoming: Rc<RefCell<Queue>>,
}

impl Nic for Wire {
    type Error = Infallible;

    fn max_frame(&self) -> usize {
        MAX_FRAME
    }

    fn offloads(&self) -> OffloadSet {
        OffloadSet { checksum: true, ..OffloadSet::NONE }
    }

    fn receive(&mut self, mut take: impl FnMut(&[Frame<'_>])) -> usize {
        let mut queue = self.incoming.borrow_mut();
        let (first, n) = (queue.first, queue.len.min(BATCH));
        if n == 0 {
            return 0;
        }
        let mut frames = [Frame::new(&[]); BATCH];
        for (i, place) in frames[..n].iter_mut().enumerate() {
            let (bytes, len, offload) = &queue.slots[(first + i) % SLOTS];
            *place = Frame { offload: *offload, ..Frame::new(&bytes[..*len]) };
        }
        take(&frames[..n]);
        (queue.first, queue.len) = ((first + n) % SLOTS, queue.len - n);
        n
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        offload: Offload,
    ) -> Result<(), Full> {
        let mut queue = self.out.borrow_mut();
        if queue.len == SLOTS {
            return Err(Full);
        }
        let at = (queue.first + queue.len) % SLOTS;
        let (slot, len, of) = &mut queue.slots[at];
        slot[..head.len()].copy_from_slice(head);
        *len = head.len();
        for piece in payload.pieces {
            slot[*len..*len + piece.len()].copy_from_slice(piece);
            *len += piece.len();
        }
        *of = offload;
        queue.len += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn wait(&mut self, _: bool, _: Option<Duration>) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A turn of the sender.
#[inline(never)]
fn send_turn(guest: &mut End, now: Nanos) -> Result<(), Infallible> {
    guest.poll(now).map(drop)
}

/// A turn of the receiver.
#[inline(never)]
fn receive_turn(guest: &mut End, now: Nanos) -> Result<(), Infallible> {
    guest.poll(now).map(drop)
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: segments guest.tcp4.tx|guest.tcp4.rx|guest.tcp6.tx|guest.tcp6.rx SEGMENTS";
    let [scenario, segments] = args.as_slice() else { return Err(usage.into()) };
    let segments: u64 = segments.parse()?;
    match scenario.as_str() {
        "guest.tcp4.tx" => run(false, segments, send_turn, |end, now| end.poll(now).map(drop)),
        "guest.tcp4.rx" => run(false, segments, |end, now| end.poll(now).map(drop), receive_turn),
        "guest.tcp6.tx" => run(true, segments, send_turn, |end, now| end.poll(now).map(drop)),
        "guest.tcp6.rx" => run(true, segments, |end, now| end.poll(now).map(drop), receive_turn),
        _ => Err(usage.into()),
    }
}

/// A host with an IPv4 and an IPv6 address.
fn host(number: u8, (out, incoming): (&Rc<RefCell<Queue>>, &Rc<RefCell<Queue>>)) -> Stack<Wire> {
    let ip = Ipv4Addr::new(10, 0, 0, number);
    let mut config = Config::new(Mac::local(number.into()), ip, 24);
    // Counts are the same on every run.
    config.secret = guest::tcp::Secret([1, number.into()]);
    let address = Some((Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()), 64));
    config.v6 = Some(Ipv6Config { address, probes: 0, ..Ipv6Config::default() });
    Stack::new(Wire { out: Rc::clone(out), incoming: Rc::clone(incoming) }, &config)
}

/// Runs turns until the receiver has so many frames.
fn run(
    v6: bool,
    segments: u64,
    send: impl Fn(&mut End, Nanos) -> Result<(), Infallible>,
    receive: impl Fn(&mut End, Nanos) -> Result<(), Infallible>,
) -> Result<(), Error> {
    let (there, back) = (Queue::new(), Queue::new());
    let mut sender = Guest::new(host(1, (&there, &back)), Bulk::source(false));
    let mut receiver = Guest::new(host(2, (&back, &there)), Bulk::sink(false));
    receiver.listen(PORT, 1)?;
    let to = match v6 {
        true => IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
        false => Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    let mut now = Nanos(Nanos::SECOND);
    sender.connect(SocketAddr::new(to, PORT), (), now)?;
    let mut turns = 0;
    while receiver.stack().counters().frames_in < segments {
        now = now + 20 * Nanos::MICRO;
        send(&mut sender, now)?;
        receive(&mut receiver, now)?;
        turns += 1;
        if turns > segments {
            return Err("the connection makes no progress".into());
        }
    }
    Ok(())
}
