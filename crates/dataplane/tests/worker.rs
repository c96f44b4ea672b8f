//! The work of a data process's worker for each batch: one publish for each receiver and one for
//! the sender, one byte on the token of a sleeping receiver, and no other system call.
#![allow(unsafe_code, reason = "leaving a process with the one call that is left to it")]

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use frame::Mac;
use link::{RateLimiter, TokenBucket};
use netring::Interest;
use netring::layout::RingMemory;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use toklat_dataplane::config::{Idle, Policy, SwitchConfig, WorkerConfig};
use toklat_dataplane::control::{Answer, Command};
use toklat_dataplane::sandbox;

use process::client::{self, Client, SLOTS, serve, serve_by, wait};
use process::{ask, in_child, in_child_with};

mod process;

const BATCH: u32 = 64;

/// Ports with the addresses `Mac::local(0)` and on, without a limit of floods.
fn clients<const N: usize>() -> [Client; N] {
    std::array::from_fn(|i| {
        let macs = vec![Mac::local(i as u32)];
        Client::new(i as u16, Policy { macs, flood_limit: None, ..Policy::default() })
    })
}

/// Lets `client` publish these many frames at once, which go to `to` in turn. Waits with `idle`
/// until the worker has returned their slots.
fn send(client: &mut Client, frames: u32, to: &[Mac], idle: fn()) {
    let mut to = to.iter().cycle();
    let filled = client.port.send(frames as usize).fill(frames as usize, |window| {
        window.copy_in(&to.next().unwrap().octets());
        60
    });
    assert_eq!(filled, frames as usize);
    client.port.flush().unwrap();
    let control = client.ring(false).control;
    let end = Instant::now() + Duration::from_secs(60);
    while control.core.0.observe() != control.owner.0.own() {
        assert!(Instant::now() < end, "the worker takes what was sent");
        idle();
    }
}

/// Sends a batch, and waits for the end of the worker's turn, which wakes sleepers: a frame from
/// the port to itself takes a later turn.
fn send_batch_and_wait(client: &mut Client, to: &[Mac]) {
    send(client, BATCH, to, std::thread::yield_now);
    send(client, 1, &client.config.policy.macs.clone(), std::thread::yield_now);
}

/// Takes the received frames. Returns how many.
fn drain(client: &mut Client) -> usize {
    let got = client.port.receive(usize::MAX).count();
    client.port.flush().unwrap();
    got
}

/// Bytes on a client's token.
fn kicks(client: &Client) -> usize {
    let flags = rustix::net::RecvFlags::DONTWAIT;
    rustix::net::recv(&client.token, &mut [0u8; 64], flags).map_or(0, |(_, bytes)| bytes)
}

#[test]
fn a_sleeper_is_kicked_once_per_batch_and_one_that_polls_never() {
    if let Some(status) = in_child("a_sleeper_is_kicked_once_per_batch_and_one_that_polls_never") {
        return assert!(status.success(), "{status}");
    }
    let [mut a, mut b, mut c] = clients();
    let (thread, connection) = serve(&[&a, &b, &c], 10);
    let (one, both) = (Mac::local(1), [Mac::local(1), Mac::local(2)]);
    for round in 0..10 {
        send_batch_and_wait(&mut a, &both);
        assert_eq!([&a, &b, &c].map(kicks), [0, 0, 0], "all poll, round {round}");
        assert_eq!((drain(&mut b), drain(&mut c)), (32, 32));
        assert!(!b.port.arm(Interest::READ).any() && !c.port.arm(Interest::READ).any());
        send_batch_and_wait(&mut a, &both);
        assert_eq!([&a, &b, &c].map(kicks), [0, 1, 1], "both sleep, round {round}");
        send_batch_and_wait(&mut a, &[one]);
        assert_eq!([&a, &b, &c].map(kicks), [0, 0, 0], "woken already, round {round}");
        assert_eq!((drain(&mut b), drain(&mut c)), (96, 32));
        assert!(!b.port.arm(Interest::READ).any());
        send_batch_and_wait(&mut a, &[Mac::BROADCAST]);
        assert_eq!([&a, &b, &c].map(kicks), [0, 1, 0], "sleeps again, round {round}");
        assert_eq!((drain(&mut b), drain(&mut c)), (64, 64));
        b.port.disarm().unwrap();
        c.port.disarm().unwrap();
    }
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

#[test]
fn a_batch_is_published_at_once_to_its_receiver_and_back_to_its_sender() {
    let name = "a_batch_is_published_at_once_to_its_receiver_and_back_to_its_sender";
    if let Some(status) = in_child(name) {
        return assert!(status.success(), "{status}");
    }
    let [mut a, mut b] = clients();
    let (thread, connection) = serve(&[&a, &b], 10);
    let (sent, received, done) = (a.ring(false), b.ring(true), AtomicBool::new(false));
    // The distance from `first` to the published cursor, modulo the batch size: zero if whole
    // batches were published.
    let whole =
        |ring: &RingMemory, first: u32| (ring.control.core.0.observe() + SLOTS - first) % BATCH;
    let (given, filled) = (sent.control.core.0.observe(), received.control.core.0.observe());
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(whole(&sent, given), 0, "slots are given back by the batch");
                assert_eq!(whole(&received, filled), 0, "frames are delivered by the batch");
            }
        });
        for _ in 0..100 {
            send(&mut a, BATCH, &[Mac::local(1)], std::thread::yield_now);
            assert_eq!(drain(&mut b), BATCH as usize);
        }
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

/// Receive livelock: at any load a receiver gets what it can take, and its neighbours get all of
/// their frames.
#[test]
fn offered_ten_times_what_can_be_taken_a_port_gets_what_it_can_take() {
    let name = "offered_ten_times_what_can_be_taken_a_port_gets_what_it_can_take";
    if let Some(status) = in_child(name) {
        return assert!(status.success(), "{status}");
    }
    const ROUNDS: usize = 200;
    let [mut flooder, mut slow, mut sender, mut neighbour] = clients();
    let (thread, connection) = serve(&[&flooder, &slow, &sender, &neighbour], 10);
    let mut goodput = |offered: u32| {
        let mut got = 0;
        for _ in 0..ROUNDS {
            for _ in 0..offered {
                send(&mut flooder, BATCH, &[Mac::local(1)], std::thread::yield_now);
            }
            send(&mut sender, BATCH, &[Mac::local(3)], std::thread::yield_now);
            assert_eq!(drain(&mut neighbour), BATCH as usize, "{offered} batches offered");
            got += slow.port.receive(BATCH as usize).count();
            slow.port.flush().unwrap();
        }
        let behind = drain(&mut slow);
        (got, behind)
    };
    let whole = ROUNDS * BATCH as usize;
    assert_eq!(goodput(1), (whole, 0), "offered what it takes, it gets that");
    let (got, behind) = goodput(10);
    assert_eq!(got, whole, "it gets that in a flood");
    // The flooder has half of the ring; the rest is for senders that keep to their shares.
    assert!(behind + BATCH as usize >= SLOTS as usize / 2, "{behind} are left in its ring");
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

/// As above, in an open loop: the flooder does not wait for the worker, and what its ring does not
/// take is gone. The receiver looks again whenever the worker has taken ten batches of the flood;
/// it then finds a whole one. (A receiver that looks before the worker has run finds less; that is
/// no loss, and no property of the switch.)
#[test]
fn in_a_flood_that_does_not_wait_a_port_gets_what_it_can_take() {
    let name = "in_a_flood_that_does_not_wait_a_port_gets_what_it_can_take";
    if let Some(status) = in_child(name) {
        return assert!(status.success(), "{status}");
    }
    const ROUNDS: usize = 20;
    let [mut flooder, mut slow, mut sender, mut neighbour] = clients();
    let (thread, connection) = serve(&[&flooder, &slow, &sender, &neighbour], 10);
    let (taken, done) = (flooder.ring(false), AtomicBool::new(false));
    let mut got = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                flooder.port.send(BATCH as usize).fill(BATCH as usize, |window| {
                    window.copy_in(&Mac::local(1).octets());
                    60
                });
                flooder.port.flush().unwrap();
            }
        });
        for _ in 0..ROUNDS {
            wait_until_taken(&taken, 10 * BATCH);
            send(&mut sender, BATCH, &[Mac::local(3)], std::thread::yield_now);
            assert_eq!(drain(&mut neighbour), BATCH as usize);
            got += slow.port.receive(BATCH as usize).count();
            slow.port.flush().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(got, ROUNDS * BATCH as usize);
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

/// Waits until the worker has taken so many frames from a ring, or more.
fn wait_until_taken(ring: &RingMemory, frames: u32) {
    let end = Instant::now() + Duration::from_secs(60);
    let (mut last, mut seen) = (ring.control.core.0.observe(), 0);
    while seen < frames {
        assert!(Instant::now() < end, "the worker takes what was sent");
        std::thread::yield_now();
        let now = ring.control.core.0.observe();
        seen += (now + SLOTS - last) % SLOTS;
        last = now;
    }
}

/// The worker reads its clock again after sleep, because frames that woke it have just arrived.
#[test]
fn regression_a_frame_that_woke_the_worker_waits_for_its_receiver() {
    let name = "regression_a_frame_that_woke_the_worker_waits_for_its_receiver";
    if let Some(status) = in_child(name) {
        return assert!(status.success(), "{status}");
    }
    const TIMEOUT: Duration = Duration::from_secs(2);
    let [mut a, mut b] = clients();
    b.config.policy.lossless = true;
    let (thread, connection) = serve(&[&a, &b], TIMEOUT.as_millis() as u32);
    let (sent, full) = (a.ring(false).control, SLOTS - 1);
    send(&mut a, full, &[Mac::local(1)], std::thread::yield_now);
    let auto = Command::set_switch(&SwitchConfig {
        idle: Idle::Auto,
        stall_timeout_ms: TIMEOUT.as_millis() as u32,
        ..SwitchConfig::default()
    });
    assert_eq!(ask(&connection, &auto, &[]), Answer::Done);
    // Sleeps for longer than a frame may wait.
    std::thread::sleep(TIMEOUT + TIMEOUT / 4);
    assert_eq!(a.port.send(1).fill(1, |window| window.copy_in(&client::frame(1, 0))), 1);
    a.port.flush().unwrap();
    rustix::net::send(&a.token, &[1], rustix::net::SendFlags::DONTWAIT).unwrap();
    let looked = Instant::now();
    while looked.elapsed() < TIMEOUT / 4 {
        assert_ne!(
            sent.core.0.observe(),
            sent.owner.0.own(),
            "given up after {:?}",
            looked.elapsed()
        );
        std::thread::yield_now();
    }
    assert_eq!(b.receive(SLOTS as usize), SLOTS as usize);
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

/// Lets `client`, host `from`, send numbered frames to host 2, one to three at a time.
fn send_numbered(client: &mut Client, from: u32, frames: u32) {
    let mut number = 0;
    while number < frames {
        let batch = (1 + number % 3).min(frames - number) as usize;
        let sent = client.port.send(batch).fill(batch, |window| {
            number += 1;
            let mut frame = client::frame(2, from);
            frame[16..]
                .chunks_exact_mut(4)
                .for_each(|at| at.copy_from_slice(&number.to_le_bytes()));
            window.copy_in(&frame)
        });
        client.port.flush().unwrap();
        if sent == 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn two_workers_fill_one_ring_by_turns() {
    const FRAMES: u32 = 100_000;
    if let Some(status) = in_child("two_workers_fill_one_ring_by_turns") {
        return assert!(status.success(), "{status}");
    }
    let [mut a, mut b, mut c] = clients();
    (a.config.worker, b.config.worker) = (Some(0), Some(1));
    c.config.policy.lossless = true;
    let (thread, connection) = serve_by(2, &[&a, &b, &c], 20_000);
    std::thread::scope(|scope| {
        scope.spawn(|| send_numbered(&mut a, 0, FRAMES));
        scope.spawn(|| send_numbered(&mut b, 1, FRAMES));
        let (mut last, mut heard) = ([0; 2], Instant::now());
        while last != [FRAMES; 2] {
            for frame in c.port.receive(usize::MAX) {
                let frame = frame.to_vec();
                let from = usize::from(frame[6..12] == Mac::local(1).octets());
                last[from] += 1;
                let whole = frame[16..].chunks_exact(4).all(|at| at == last[from].to_le_bytes());
                assert!(whole && frame.len() == 60, "{from} {last:?}: {frame:?}");
                heard = Instant::now();
            }
            c.port.flush().unwrap();
            assert!(heard.elapsed() < Duration::from_secs(60), "{last:?}");
            std::thread::yield_now();
        }
    });
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

/// From here on, any thread that makes a system call other than these ends the process. The control
/// thread needs some to wait for commands. A polling worker uses `recv` once in a millisecond to
/// peek at its ports' tokens. On a busy machine a turn may take long. Then the control thread has
/// the worker measure for a second whether it waited (`write`, `getrusage`, `clock_gettime`).
fn allow_next_to_nothing() {
    let calls = [
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_recvfrom,
        libc::SYS_write,
        libc::SYS_getrusage,
        libc::SYS_clock_gettime,
        libc::SYS_exit_group,
    ];
    let rules = calls.map(|call| (call, Vec::new())).into();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let (others, these) = (SeccompAction::KillProcess, SeccompAction::Allow);
    let filter: BpfProgram =
        SeccompFilter::new(rules, others, these, arch).unwrap().try_into().unwrap();
    seccompiler::apply_filter_all_threads(&filter).unwrap();
}

/// Waits for the threads that close the descriptors that came with the ports.
fn until_closers_have_ended() {
    let is_closer = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default();
        name.trim() == "closer"
    };
    let began = Instant::now();
    while std::fs::read_dir("/proc/self/task").unwrap().any(is_closer) {
        assert!(began.elapsed() < Duration::from_secs(60), "a closer does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Moves batches in both directions through a worker to warm up, then again under that filter. With
/// `kick`, the receiver of the last batch sleeps.
fn run_without_calls(kick: bool) -> ! {
    let [mut a, mut b] = clients();
    let _running = serve(&[&a, &b], 10);
    let round = |a: &mut Client, b: &mut Client| {
        // The second round makes no call either.
        send(a, BATCH, &[Mac::local(1), Mac::BROADCAST], std::hint::spin_loop);
        send(b, BATCH, &[Mac::local(0), Mac::local(7)], std::hint::spin_loop);
        drain(a) + drain(b) == 2 * BATCH as usize
    };
    let warm = (0..20).all(|_| round(&mut a, &mut b));
    if kick {
        assert!(!b.port.arm(Interest::READ).any());
    }
    until_closers_have_ended();
    allow_next_to_nothing();
    let good = (0..200).all(|_| round(&mut a, &mut b));
    // SAFETY: ends the process, without anything that ends with it having to run.
    unsafe { libc::_exit(i32::from(!(warm && good))) }
}

#[test]
fn a_hot_worker_makes_no_system_call() {
    match in_child_with("a_hot_worker_makes_no_system_call", &[(sandbox::SWITCH, "off")]) {
        None => run_without_calls(false),
        Some(status) => assert!(status.success(), "{status}"),
    }
}

/// The filter of the test above sees a call of the worker: the byte that wakes a sleeper.
#[test]
fn a_call_of_the_worker_would_have_been_seen() {
    match in_child_with("a_call_of_the_worker_would_have_been_seen", &[(sandbox::SWITCH, "off")]) {
        None => run_without_calls(true),
        Some(status) => assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}"),
    }
}

/// Frames beyond a rate limit cost the worker almost nothing, and are sent once the limit is
/// lifted.
#[test]
fn a_worker_sleeps_while_a_port_waits_for_tokens() {
    if let Some(status) = in_child("a_worker_sleeps_while_a_port_waits_for_tokens") {
        return assert!(status.success(), "{status}");
    }
    let limit = |size, refill_time| Policy {
        macs: vec![Mac::local(0)],
        tx_rate_limiter: Some(RateLimiter {
            ops: Some(TokenBucket { size, one_time_burst: 0, refill_time }),
            bandwidth: None,
        }),
        ..Policy::default()
    };
    let [mut a, mut b] = clients();
    // A hundred a second.
    a.config.policy = limit(10, 100);
    let workers = vec![WorkerConfig::default()];
    let config = SwitchConfig { max_ports: 4, workers, ..SwitchConfig::default() };
    let (thread, connection, state) = process::start_as(config);
    [&a, &b].iter().for_each(|client| client.attach(&connection, false));
    let publish = |a: &mut Client| {
        for _ in 0..SLOTS - 1 {
            assert!(a.port.send(1).push(&client::frame(1, 0)));
        }
        a.port.flush().unwrap();
        rustix::net::send(&a.token, &[1], rustix::net::SendFlags::DONTWAIT).unwrap();
    };
    let passes = || state.workers(1)[0].passes;
    let (began, before) = (Instant::now(), passes());
    publish(&mut a);
    assert_eq!(b.receive(SLOTS as usize - 1), SLOTS as usize - 1);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1150), "{took:?}");
    let made = passes() - before;
    assert!(made < 1000 + 10 * took.as_millis() as u64, "{made} passes in {took:?}");
    // The limit is one token an hour: one frame takes the token that is there, one goes into debt,
    // and no more pass.
    let set = |policy: Policy| Command::SetPolicy { id: 0, policy };
    assert_eq!(ask(&connection, &set(limit(1, 3_600_000)), &[]), Answer::Done);
    publish(&mut a);
    assert_eq!(b.receive(2), 2);
    let unlimited = Policy { tx_rate_limiter: None, ..limit(1, 1) };
    assert_eq!(ask(&connection, &set(unlimited), &[]), Answer::Done);
    assert_eq!(b.receive(SLOTS as usize - 3), SLOTS as usize - 3);
    assert!(wait(|| a.has_drained()));
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}
