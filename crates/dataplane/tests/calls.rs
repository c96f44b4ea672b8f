//! The work of a busy switch for each batch: no system call, one publish for each receiver and one
//! for the sender.
#![allow(unsafe_code, reason = "leaving a process with the one call that is left to it")]

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use frame::Mac;
use inline::Inline;
use netring::{Port, Region, RegionConfig};
use port::{
    Batch, Delivered, Effects, Egress, FrameIdx, Ingress, Limits, Nanos, OffloadSet, Scratch,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use toklat_dataplane::SwitchConfig;
use turn::attach::{Attached, Exit, Source};

mod process;

const BATCH: usize = 64;

/// The number of calls that the switch has made.
#[derive(Default)]
struct Calls {
    delivers: AtomicUsize,
    settles: AtomicUsize,
    completes: AtomicUsize,
}

impl Calls {
    /// The counts since the last call: deliveries, checks for wake-ups, completions.
    fn take(&self) -> (usize, usize, usize) {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::Relaxed);
        (take(&self.delivers), take(&self.settles), take(&self.completes))
    }
}

fn count(calls: &AtomicUsize) {
    calls.fetch_add(1, Ordering::Relaxed);
}

struct CountedEgress(Exit, Arc<Calls>);

impl Egress for CountedEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        count(&self.1.delivers);
        self.0.deliver(batch, list, limits)
    }

    fn settle(&self, now: Nanos) -> Effects {
        count(&self.1.settles);
        self.0.settle(now)
    }

    fn takes(&self) -> OffloadSet {
        self.0.takes()
    }

    fn prefetch(&self) {
        self.0.prefetch();
    }
}

/// A source of one queue.
struct CountedSource(Box<dyn Source>, Arc<Calls>);

impl Source for CountedSource {
    fn queues(&self) -> usize {
        self.0.queues()
    }

    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        assert_eq!(queue, 0);
        Some(self)
    }
}

impl Ingress for CountedSource {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        self.0.queue(0).unwrap().gather(scratch, max, now)
    }

    fn complete(&mut self, frames: usize) {
        count(&self.1.completes);
        self.0.queue(0).unwrap().complete(frames);
    }

    fn settle(&mut self, now: Nanos) -> Effects {
        self.0.queue(0).unwrap().settle(now)
    }
}

/// A port with the address `Mac::local(i)`.
fn plug(switch: &mut Inline, i: u32) -> (Port, Arc<Calls>) {
    let region = Region::private(RegionConfig::ports(1, 1, 512)).unwrap();
    let port = Port::inline(&region, "port", 1, 1, 512).unwrap();
    let rings = port.rings();
    let policy = toklat_dataplane::config::Policy {
        macs: vec![Mac::local(i)],
        flood_limit: None,
        ..Default::default()
    };
    let calls = Arc::new(Calls::default());
    let counted = |state: &_| {
        let inner = turn::attach::ring::attach_mapped(
            &rings.mapping,
            None,
            &(&rings).into(),
            state,
            false,
        )?;
        let counted = |egress| Exit::from(Arc::new(CountedEgress(egress, Arc::clone(&calls))));
        Ok(Attached {
            source: Box::new(CountedSource(inner.source, Arc::clone(&calls))),
            egresses: inner.egresses.into_iter().map(counted).collect(),
            bells: inner.bells,
        })
    };
    switch.add_attached("port", policy, counted).unwrap();
    (port, calls)
}

fn switch_of(ports: u32) -> (Inline, Vec<Port>, Vec<Arc<Calls>>) {
    let config = SwitchConfig { max_ports: 8, ..Default::default() };
    let mut switch = Inline::new(config).unwrap();
    let (ports, calls) = (0..ports).map(|i| plug(&mut switch, i)).unzip();
    (switch, ports, calls)
}

/// Port 0 sends a batch whose frames go to `to` in turn; returns what each port has received.
fn batch<const N: usize>(
    switch: &mut Inline,
    ports: &mut [Port],
    to: &[Mac],
    now: u64,
) -> [usize; N] {
    let mut next = 0;
    ports[0].send(BATCH).fill(BATCH, |window| {
        let mut header = [0; 14];
        header[..6].copy_from_slice(&to[next % to.len()].octets());
        header[6..12].copy_from_slice(&Mac::local(0).octets());
        next += 1;
        window.copy_in(&header);
        100
    });
    ports[0].flush().unwrap();
    assert_eq!(switch.turn(Nanos(now)), BATCH);
    std::array::from_fn(|i| {
        let got = ports[i].receive(usize::MAX).count();
        ports[i].flush().unwrap();
        got
    })
}

/// There is one delivery for each receiver and one completion. Nothing is settled, because no owner
/// of an inline port sleeps.
#[test]
fn a_batch_is_published_once_to_each_receiver_and_given_back_once() {
    let (mut switch, mut ports, calls) = switch_of(4);
    for round in 0..20 {
        // The frames alternate between the two receivers.
        let to = [Mac::local(1), Mac::local(2)];
        assert_eq!(batch(&mut switch, &mut ports, &to, round * 1000), [0, BATCH / 2, BATCH / 2, 0]);
        let seen: Vec<_> = calls.iter().map(|calls| calls.take()).collect();
        assert_eq!(seen, [(0, 0, 1), (1, 0, 0), (1, 0, 0), (0, 0, 0)], "unicast, round {round}");
        let to = [Mac::BROADCAST];
        assert_eq!(batch(&mut switch, &mut ports, &to, round * 1000 + 1), [0, BATCH, BATCH, BATCH]);
        let seen: Vec<_> = calls.iter().map(|calls| calls.take()).collect();
        assert_eq!(seen, [(0, 0, 1), (1, 0, 0), (1, 0, 0), (1, 0, 0)], "flood, round {round}");
    }
}

/// From here on any system call kills this thread, except the one that ends the process.
fn allow_nothing() {
    let rules = [(libc::SYS_exit_group, Vec::new())].into();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let (others, these) = (SeccompAction::KillProcess, SeccompAction::Allow);
    let filter: BpfProgram =
        SeccompFilter::new(rules, others, these, arch).unwrap().try_into().unwrap();
    seccompiler::apply_filter(&filter).unwrap();
}

/// Sends, forwards and receives to warm up, then again under a filter that allows no system call.
fn run_without_calls(then: impl FnOnce()) -> ! {
    let (mut switch, mut ports, _) = switch_of(4);
    let to = [Mac::local(1), Mac::BROADCAST, Mac::local(7), Mac::local(2)];
    let mut turn = |now| batch::<4>(&mut switch, &mut ports, &to, now).iter().sum::<usize>();
    let expected = turn(0);
    (1..100).for_each(|now| assert_eq!(turn(now * 1000), expected));
    allow_nothing();
    let good = (100..1000).all(|now| turn(now * 1000) == expected);
    then();
    // SAFETY: ends the process, without anything that ends with it having to run.
    unsafe { libc::_exit(i32::from(!good)) }
}

#[test]
fn a_warm_batch_takes_no_system_call() {
    match process::in_child("a_warm_batch_takes_no_system_call") {
        None => run_without_calls(|| ()),
        Some(status) => assert!(status.success(), "{status}"),
    }
}

/// Proves that the filter of the test above notices a call.
#[test]
fn a_system_call_would_have_been_seen() {
    match process::in_child("a_system_call_would_have_been_seen") {
        None => run_without_calls(|| _ = rustix::process::getppid()),
        Some(status) => assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}"),
    }
}
