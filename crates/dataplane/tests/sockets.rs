//! Ports over sockets: frames arrive complete and in order, however their bytes are divided. A peer
//! that breaks the rules or leaves harms no other, and frames that do not fit are counted. The
//! tests play QEMU.

#![allow(unsafe_code, reason = "the tests vouch for their own frames")]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use bench::Bench;
use frame::Mac;
use link::{RateLimiter, TokenBucket};
use port::{DropReason, Egress, Limits, MapGuard, Nanos, Scratch};
use rustix::event::{PollFd, PollFlags, Timespec};
use shmem::Bytes;
use toklat_dataplane::SwitchConfig;
use toklat_dataplane::attach::buffered::{dgram, stream};
use toklat_dataplane::config::Policy;
use toklat_dataplane::control::{Answer, Command as Ask};
use toklat_dataplane::state::{PortState, State};
use turn::attach::Source;

mod bench;
mod process;

/// A frame from host `from` to host `to` (addresses 1, 2, ...) with `len` bytes derived from
/// `number`.
fn frame(from: u32, to: u32, len: usize, number: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i * 31 + number * 7) as u8).collect();
    bytes[..6].copy_from_slice(&Mac::local(to).octets());
    bytes[6..12].copy_from_slice(&Mac::local(from).octets());
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes
}

impl Bench {
    /// Adds a stream port; returns the other end of its socket.
    fn stream(&mut self, name: &str, policy: Policy) -> Peer {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let attach = |state: &PortState| stream::attach(OwnedFd::from(ours).into(), state, false);
        self.switch.add_attached(name, policy, attach).unwrap();
        Peer { socket: theirs, got: VecDeque::new() }
    }

    fn dgram(&mut self, name: &str, socket: impl Into<OwnedFd>) {
        let attach = |state: &PortState| dgram::attach(socket.into().into(), state);
        self.switch.add_attached(name, Policy::default(), attach).unwrap();
    }
}

/// The other end of a stream port.
struct Peer {
    socket: UnixStream,
    got: VecDeque<u8>,
}

impl Peer {
    fn send(&mut self, frame: &[u8]) {
        let bytes = [&(frame.len() as u32).to_be_bytes(), frame].concat();
        self.socket.write_all(&bytes).unwrap();
    }

    fn read(&mut self) {
        let mut bytes = [0; 1000];
        while let Ok(len @ 1..) = self.socket.read(&mut bytes) {
            self.got.extend(&bytes[..len]);
        }
    }

    /// The next whole frame.
    fn receive(&mut self) -> Option<Vec<u8>> {
        self.read();
        let prefix: Vec<u8> = self.got.iter().take(4).copied().collect();
        let len = u32::from_be_bytes(prefix.try_into().ok()?) as usize;
        (self.got.len() >= 4 + len).then(|| self.got.drain(..4 + len).skip(4).collect())
    }
}

#[test]
fn frames_arrive_whole_however_their_bytes_are_cut() {
    for cut in [1, 3, 5, 61, 100, 4096] {
        let mut bench = Bench::new();
        let (mut a, mut b) =
            (bench.stream("a", Policy::default()), bench.stream("b", Policy::default()));
        let lens = [60, 14, 1514, 61, 64, 128, 700, 1518];
        let frames: Vec<_> = lens.iter().enumerate().map(|(n, len)| frame(1, 2, *len, n)).collect();
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|frame| [&(frame.len() as u32).to_be_bytes(), &frame[..]].concat())
            .collect();
        for piece in bytes.chunks(cut) {
            a.socket.write_all(piece).unwrap();
            bench.turn();
            // Longer than an empty socket is left alone.
            std::thread::sleep(Duration::from_micros(30));
            bench.turn();
        }
        for frame in frames {
            assert_eq!(bench.until(|_| b.receive()), frame, "cut at {cut}");
        }
        bench.assert_sums_agree();
    }
}

#[test]
fn many_frames_move_with_few_calls_and_keep_their_order() {
    let mut bench = Bench::new();
    let (mut a, mut b) =
        (bench.stream("a", Policy::default()), bench.stream("b", Policy::default()));
    let frames = (0..300).map(|n| frame(1, 2, 60 + n, n));
    let bytes: Vec<u8> =
        frames.flat_map(|f| [&(f.len() as u32).to_be_bytes(), &f[..]].concat()).collect();
    a.socket.write_all(&bytes).unwrap();
    for n in 0..300 {
        assert_eq!(bench.until(|_| b.receive()), frame(1, 2, 60 + n, n));
    }
    let batches = bench.switch.stats(0).batches;
    assert!(batches[6] >= 3, "not gathered by 64: {batches:?}");
    bench.assert_sums_agree();
}

#[test]
fn a_peer_that_lost_its_place_is_disconnected_and_does_no_harm() {
    let mut bench = Bench::new();
    let mut peers = ["a", "b", "c"].map(|name| bench.stream(name, Policy::default()));
    peers[0].send(&frame(1, 2, 60, 1));
    peers[0].socket.write_all(&0x7fff_ffffu32.to_be_bytes()).unwrap();
    peers[0].send(&frame(1, 2, 60, 2));
    assert_eq!(bench.until(|_| peers[1].receive()), frame(1, 2, 60, 1));
    bench.until(|switch| (switch.stats(0).faults == 1).then_some(()));
    peers[1].send(&frame(2, 3, 60, 3));
    let first = bench.until(|_| peers[2].receive());
    assert_eq!(first, frame(1, 2, 60, 1), "nobody knew then where 2 is");
    assert_eq!(bench.until(|_| peers[2].receive()), frame(2, 3, 60, 3), "the others go on");
    peers[1].send(&frame(2, 1, 60, 4));
    bench.until(|switch| switch.stats(0).out_drops.get(&DropReason::Down).copied());
    peers[0].read();
    // Another thread ends the connection.
    bench.until(|_| matches!(peers[0].socket.read(&mut [0; 10]), Ok(0)).then_some(()));
    bench.assert_sums_agree();
}

/// Sends 2,000 frames to a peer that does not read, then lets it read. Returns what arrived.
fn flood(policy: Policy) -> (Bench, Vec<Vec<u8>>) {
    let mut bench = Bench::new();
    let (mut a, mut b) = (bench.stream("a", Policy::default()), bench.stream("b", policy));
    b.send(&frame(2, 9, 60, 0));
    bench.until(|switch| (switch.stats(1).in_frames == 1).then_some(()));
    a.read();
    a.got.clear();
    let mut sent = 0;
    let mut stuck = 0;
    while sent < 2000 && stuck < 1000 {
        let bytes = frame(1, 2, 1000, sent);
        let bytes = [&1000u32.to_be_bytes(), &bytes[..]].concat();
        match a.socket.write(&bytes) {
            Ok(n) => {
                assert_eq!(n, bytes.len(), "a part of a frame");
                (sent, stuck) = (sent + 1, 0);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                stuck += 1;
            }
        }
        bench.turn();
    }
    let mut got = Vec::new();
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(100) {
        bench.turn();
        if let Some(frame) = b.receive() {
            got.push(frame);
            quiet = Instant::now();
        }
    }
    assert_eq!(bench.switch.stats(0).in_frames as usize, sent);
    bench.assert_sums_agree();
    (bench, got)
}

#[test]
fn what_a_peer_does_not_read_is_dropped_whole_and_counted() {
    let (bench, got) = flood(Policy::default());
    let stats = bench.switch.stats(1);
    assert!(stats.out_drops[&DropReason::Full] > 0);
    assert_eq!(stats.out_frames as usize, got.len(), "what was delivered came");
    let numbers: Vec<_> =
        got.iter().map(|f| (0..2000).find(|n| frame(1, 2, 1000, *n) == *f)).collect();
    assert!(numbers.iter().all(Option::is_some), "a frame was damaged");
}

#[test]
fn senders_wait_for_a_lossless_peer() {
    let (bench, got) = flood(Policy { lossless: true, ..Policy::default() });
    let stats = bench.switch.stats(1);
    assert!(stats.out_drops.is_empty(), "{stats:?}");
    // Frames that waited longer than the stall timeout are lost; all others arrived.
    let lost = bench.switch.stats(0).in_drops.get(&DropReason::StallTimeout).copied();
    assert_eq!(got.len() as u64 + lost.unwrap_or(0), bench.switch.stats(0).in_frames);
}

/// Gathers everything that a source has, as complete frames of these lengths.
fn gathered(source: &mut dyn Source, lens: &mut Vec<usize>) {
    let mut scratch = Scratch::new(8);
    let _ = source.attend(Nanos(u64::MAX));
    let frames = source.queue(0).unwrap().gather(&mut scratch, 8, Nanos(u64::MAX));
    let mut all = vec![0; frames];
    scratch.judge(&guard(), &mut all, |_, len| len);
    lens.extend(all);
    source.queue(0).unwrap().complete(frames);
}

fn guard() -> MapGuard<'static> {
    // SAFETY: the tests' ports outlive their scratches.
    unsafe { MapGuard::assume_mapped() }
}

#[test]
fn a_successor_goes_on_in_the_middle_of_a_frame() {
    let config = SwitchConfig { max_ports: 1, ..SwitchConfig::default() };
    let state = State::private(&config).unwrap();
    let port = state.port(0).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut peer = Peer { socket: theirs, got: VecDeque::new() };
    let attach = |resume| {
        stream::attach(OwnedFd::from(ours.try_clone().unwrap()).into(), &port, resume).unwrap()
    };

    let mut bytes = [&60u32.to_be_bytes(), &frame(1, 2, 60, 0)[..]].concat().repeat(3);
    let rest = bytes.split_off(2 * 64 + 30);
    peer.socket.write_all(&bytes).unwrap();
    let mut lens = Vec::new();
    let mut first = attach(false);
    gathered(&mut *first.source, &mut lens);
    // More than the socket takes: some bytes wait, divided anywhere.
    let mut frames: Vec<_> = (0..300).map(|n| frame(2, 1, 1500, n)).collect();
    let mut sent = 0;
    for frames in frames.chunks_mut(8) {
        let mut scratch = Scratch::new(8);
        frames.iter_mut().for_each(|frame| scratch.push(Bytes::of(frame).span()));
        scratch.judge(&guard(), &mut [(); 8], |_, _| ());
        let list: Vec<_> = (0..frames.len() as u16).collect();
        let limits = Limits { max_frame: 1518, lossless: true };
        let map = guard();
        let taken = first.egresses[0].deliver(&scratch.batch(&map), &list, limits).finished;
        sent += taken;
        if taken < list.len() {
            break;
        }
    }
    assert!((50..300).contains(&sent), "{sent}");
    drop(first);

    let mut second = attach(true);
    peer.socket.write_all(&rest).unwrap();
    let mut got = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while (got.len() < sent || lens.len() < 3) && Instant::now() < until {
        gathered(&mut *second.source, &mut lens);
        got.extend(peer.receive());
    }
    assert_eq!(lens, [60, 60, 60]);
    assert!(got.iter().eq(frames[..sent].iter()), "{} of {sent} came, or others", got.len());
}

#[test]
fn regression_output_that_begins_to_wait_wakes_an_armed_stream() {
    let state = State::private(&SwitchConfig { max_ports: 1, ..SwitchConfig::default() }).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut peer = Peer { socket: theirs, got: VecDeque::new() };
    let port = stream::attach(OwnedFd::from(ours).into(), &state.port(0).unwrap(), false).unwrap();
    let (mut source, egress) = (port.source, &port.egresses[0]);
    let turn = |source: &mut dyn Source, now| {
        let _ = source.attend(now);
        assert_eq!(source.queue(0).unwrap().gather(&mut Scratch::new(1), 1, now), 0);
    };
    turn(&mut *source, Nanos(0));
    assert!(!source.arm(Nanos(0)));
    let is_woken = |source: &dyn Source| {
        let fds = source.wake_fds();
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    };
    let (mut frame, map) = (frame(2, 1, 1500, 0), guard());
    let mut scratch = Scratch::new(1);
    scratch.push(Bytes::of(&mut frame).span());
    scratch.judge(&map, &mut [()], |_, _| ());
    let (batch, limits) = (scratch.batch(&map), Limits { max_frame: 1518, lossless: true });
    let deliver = || egress.deliver(&batch, &[0], limits).finished;
    assert!(deliver() == 1 && !is_woken(&*source), "the socket took all of it");
    let sent = 1 + std::iter::repeat_with(deliver).take_while(|finished| *finished == 1).count();
    assert!(is_woken(&*source), "nobody would send what waits");
    source.disarm();
    let (mut got, mut now) = (0, Nanos(0));
    while got < sent {
        now = now + Nanos::SECOND;
        turn(&mut *source, now);
        got += std::iter::from_fn(|| peer.receive()).count();
        assert!(now < Nanos(1000 * Nanos::SECOND), "{got} of {sent}");
    }
}

#[test]
fn frames_cross_in_datagrams_and_long_ones_are_counted() {
    let mut bench = Bench::new();
    let (ours, unix) = UnixDatagram::pair().unwrap();
    let [here, udp] = [0, 0].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    here.connect(udp.local_addr().unwrap()).unwrap();
    udp.connect(here.local_addr().unwrap()).unwrap();
    unix.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    bench.dgram("a", ours);
    bench.dgram("b", here);
    let mut buffer = vec![0; 20_000];
    for n in 0..200 {
        let (there, back) = (frame(1, 2, 60 + n, n), frame(2, 1, 1514, n));
        unix.send(&there).unwrap();
        let len = bench.until(|_| udp.recv(&mut buffer).ok());
        assert!(buffer[..len] == there);
        udp.send(&back).unwrap();
        let len = bench.until(|_| unix.recv(&mut buffer).ok());
        assert!(buffer[..len] == back);
    }
    unix.send(&frame(1, 2, 12_000, 0)).unwrap();
    bench.until(|switch| switch.stats(0).in_drops.get(&DropReason::TooLong).copied());
    bench.assert_sums_agree();
}

#[test]
fn datagrams_to_a_peer_that_is_not_there_are_counted_and_it_may_come_back() {
    let mut bench = Bench::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("peer");
    let peer = UnixDatagram::bind(&path).unwrap();
    let ours = UnixDatagram::unbound().unwrap();
    ours.connect(&path).unwrap();
    let again = ours.try_clone().unwrap();
    bench.dgram("a", ours);
    let mut b = bench.stream("b", Policy::default());
    drop(peer);
    b.send(&frame(2, 1, 60, 0));
    bench.until(|switch| switch.stats(0).out_drops.get(&DropReason::Down).copied());
    std::fs::remove_file(&path).unwrap();
    let peer = UnixDatagram::bind(&path).unwrap();
    peer.set_nonblocking(true).unwrap();
    // Reconnects the socket, as the supervisor does.
    again.connect(&path).unwrap();
    b.send(&frame(2, 1, 60, 1));
    let mut buffer = [0; 100];
    assert_eq!(bench.until(|_| peer.recv(&mut buffer).ok()), 60);
    bench.assert_sums_agree();
}

/// Epoll wakes a sleeping worker for stream and datagram sockets, under the filters of a data
/// process.
#[test]
fn a_sleeping_data_process_is_woken_by_sockets() {
    if let Some(status) = process::in_child("a_sleeping_data_process_is_woken_by_sockets") {
        return assert!(status.success(), "{status}");
    }
    let (stream, theirs) = UnixStream::pair().unwrap();
    let (dgram, unix) = UnixDatagram::pair().unwrap();
    let mut peer = Peer { socket: theirs, got: VecDeque::new() };
    let wait = Some(Duration::from_secs(60));
    peer.socket.set_read_timeout(wait).unwrap();
    unix.set_read_timeout(wait).unwrap();
    let (thread, connection) = process::start();
    process::add(&connection, 0, stream::StreamConfig {}.into(), &stream.into());
    process::add(&connection, 1, dgram::DgramConfig {}.into(), &dgram.into());
    let mut buffer = [0; 100];
    for n in 0..50 {
        peer.send(&frame(1, 2, 60, n));
        assert_eq!(unix.recv(&mut buffer).unwrap(), 60);
        unix.send(&frame(2, 1, 70, n)).unwrap();
        let mut bytes = [0; 74];
        peer.socket.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[4..], frame(2, 1, 70, n));
        // Long enough for the worker to fall asleep, so that epoll brings the next frame.
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(process::ask(&connection, &Ask::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

/// Frames that a rate limit leaves in a port's own buffer count as work, just like those in its
/// socket.
#[test]
fn what_waits_for_tokens_in_a_buffer_is_not_forgotten_by_a_sleeping_worker() {
    let test = "what_waits_for_tokens_in_a_buffer_is_not_forgotten_by_a_sleeping_worker";
    if let Some(status) = process::in_child(test) {
        return assert!(status.success(), "{status}");
    }
    let (stream, theirs) = UnixStream::pair().unwrap();
    let (dgram, unix) = UnixDatagram::pair().unwrap();
    let mut peer = Peer { socket: theirs, got: VecDeque::new() };
    unix.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (thread, connection) = process::start();
    process::add(&connection, 0, stream::StreamConfig {}.into(), &stream.into());
    process::add(&connection, 1, dgram::DgramConfig {}.into(), &dgram.into());
    let ops = TokenBucket { size: 1, one_time_burst: 0, refill_time: 20 };
    let limiter = RateLimiter { ops: Some(ops), bandwidth: None };
    let policy = Policy { tx_rate_limiter: Some(limiter), ..Policy::default() };
    let set = Ask::SetPolicy { id: 0, policy };
    assert_eq!(process::ask(&connection, &set, &[]), Answer::Done);
    let frames: Vec<_> = (0..30).map(|n| frame(1, 2, 60, n)).collect();
    frames.iter().for_each(|frame| peer.send(frame));
    let mut buffer = [0; 100];
    for frame in frames {
        let len = unix.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..len], frame);
    }
    assert_eq!(process::ask(&connection, &Ask::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}
