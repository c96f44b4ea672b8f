//! The supervisor and a data process, fuzzed as processes: peers that send anything to each of
//! their sockets, with descriptors of every kind, and change memory while it is read, while honest
//! traffic flows.
//!
//! A generator chooses what the peers send: other things in each run. A run prints its seed;
//! `TOKLAT_FUZZ_SEED` repeats those of a seed, and `TOKLAT_FUZZ_STEPS` sets the number of steps.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netring::attach::{Request, op};
use netring::layout::{Geometry, RingSpec};
use netring::{Pages, Port};
use nic::virtio::Features;
use rustix::event::EventfdFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use zerocopy::IntoBytes;

use harness::Daemon;
use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::front_end::{FrontEnd, say};
use harness::strangers::{SlowFiles, lingering, send_with};

/// How many steps a run has. Each step is one peer.
const STEPS: u64 = 150;
/// How long a step may take on a busy machine. Closing a lingering socket would take an hour.
const ANSWER: Duration = Duration::from_secs(20);
/// Bytes of addresses that a process may have more at the end than before.
const MORE_ADDRESSES: u64 = 4 << 30;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.next() as u8).collect()
    }
}

/// A file whose file system delays every close, if the test has one.
static SLOW_FILE: OnceLock<PathBuf> = OnceLock::new();

/// A descriptor of any kind. A lingering socket comes with its peer, because its last close waits
/// as long as the peer is there.
struct Stranger {
    peer: Option<TcpStream>,
    fd: OwnedFd,
    is_slow: bool,
}

impl Stranger {
    fn new(random: &mut Random) -> Self {
        let fd = match random.below(10) {
            0 => {
                let (fd, peer) = lingering();
                return Self { peer: Some(peer), fd, is_slow: false };
            }
            9 if SLOW_FILE.get().is_some() => {
                let path = SLOW_FILE.get().unwrap();
                let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
                return Self { peer: None, fd: file.into(), is_slow: true };
            }
            1 => rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
            // A descriptor whose next write blocks forever.
            2 => {
                let full = rustix::event::eventfd(0, EventfdFlags::empty()).unwrap();
                rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
                full
            }
            3 => rustix::pipe::pipe().unwrap().0,
            4 => rustix::pipe::pipe().unwrap().1,
            5 => tempfile::tempfile().unwrap().into(),
            6 => rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap(),
            7 => UnixStream::pair().unwrap().0.into(),
            _ => harness::front_end::memfd(random.below(1 << 20)),
        };
        Self { peer: None, fd, is_slow: false }
    }

    fn some(random: &mut Random) -> Vec<Self> {
        (0..random.below(5)).map(|_| Self::new(random)).collect()
    }

    /// Closes this test's copy of the descriptor. If a copy was sent, the peer of a lingering
    /// socket must stay. Otherwise the peer goes first, or the test itself would wait.
    fn let_go(self, was_sent: bool) -> Option<TcpStream> {
        let peer = self.peer.filter(|_| was_sent);
        // Closing a slow file may wait, so another thread does it.
        if self.is_slow {
            std::thread::spawn(|| drop(self.fd));
        }
        peer
    }
}

fn numbers(process: i32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The resources that a process uses.
#[derive(Clone, Copy, Debug)]
struct Has {
    threads: u64,
    descriptors: u64,
    addresses: u64,
}

impl Has {
    fn of(process: i32) -> Self {
        Self {
            threads: numbers(process, "Threads:"),
            descriptors: harness::descriptors(process as u32) as u64,
            addresses: numbers(process, "VmSize:") * 1024,
        }
    }

    fn is_within(self, before: Self) -> bool {
        self.threads <= before.threads
            && self.descriptors <= before.descriptors
            && self.addresses <= before.addresses + MORE_ADDRESSES
    }
}

/// A client of the attach socket: any request, mostly with one field changed, and anything with it.
fn attach(dir: &Path, random: &mut Random, linger: &mut Vec<TcpStream>) {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None).unwrap();
    let address = SocketAddrUnix::new(dir.join(netring::attach::SOCKET)).unwrap();
    if rustix::net::connect(&socket, &address).is_err() {
        return;
    }
    let geometry = Geometry {
        if_size: 1024,
        if_num: 1,
        ring_size: 4352,
        ring_num: 2,
        buf_size: 2112,
        buf_num: 600,
    };
    for _ in 0..=random.below(3) {
        let ops = [op::OPEN, random.next() as u16 % 16];
        let request = Request {
            geometry,
            tx: RingSpec { first: 0, rings: 1, slots: 256 },
            rx: RingSpec { first: 1, rings: 1, slots: 256 },
            buf_usable: 2048,
            ..Request::new(ops[random.below(2) as usize], &format!("vale0:z{}", random.below(4)))
        };
        let mut bytes = request.as_bytes().to_vec();
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        if random.below(8) == 0 {
            bytes.truncate(random.below(bytes.len() as u64) as usize);
        }
        let len = geometry.file_size() as usize;
        let region = shmem::Memfd::create("region", len, Pages::Small).unwrap().into_fd();
        let others = Stranger::some(random);
        let own = (random.below(2) == 0).then(|| region.as_fd());
        let fds: Vec<_> =
            own.into_iter().chain(others.iter().map(|other| other.fd.as_fd())).collect();
        let sent = send_with(&socket, &bytes, &fds).is_ok();
        linger.extend(others.into_iter().filter_map(|other| other.let_go(sent)));
        let _ = rustix::net::recv(&socket, &mut [0u8; 4096], rustix::net::RecvFlags::DONTWAIT);
    }
}

/// A front end: any messages in any order, with anything, while its memory changes. Returns false
/// if it was refused from the start.
fn front_end(dir: &Path, random: &mut Random, linger: &mut Vec<TcpStream>) -> bool {
    let path = dir.join("vale0-vm.sock");
    // If the user is at fault, its front ends are refused for a while.
    let begun = std::panic::catch_unwind(|| FrontEnd::start(&path, Features::VERSION_1));
    let Ok(front_end) = begun else { return false };
    let (stop, seed) = (AtomicBool::new(false), random.next());
    std::thread::scope(|scope| {
        scope.spawn(|| scribble(&front_end.file, seed, &stop));
        for _ in 0..random.below(24) {
            let others = Stranger::some(random);
            let fds: Vec<_> = others.iter().map(|other| other.fd.as_fd()).collect();
            let payload = random.bytes(200);
            let sent = say(&front_end.socket, random.below(48) as u32, &payload, &fds);
            linger.extend(others.into_iter().filter_map(|other| other.let_go(sent)));
            if !sent {
                break;
            }
            let queue = random.below(2) as usize;
            let _ = rustix::io::write(&front_end.queues[queue].kick, &1u64.to_ne_bytes());
        }
        stop.store(true, Ordering::Relaxed);
    });
    true
}

/// Changes memory while other processes read it.
fn scribble(file: &OwnedFd, seed: u64, stop: &AtomicBool) {
    let mut random = Random(seed);
    while !stop.load(Ordering::Relaxed) {
        let (at, value) = (random.below(1 << 16), random.next() >> random.below(64));
        let _ = rustix::io::pwrite(file, &value.to_le_bytes(), at & !1);
    }
}

/// An operator's program that has gone mad: it may be believed, but not crash anything.
fn control(dir: &Path, random: &mut Random) {
    let mut socket = UnixStream::connect(dir.join("control.sock")).unwrap();
    let paths = ["/v1/switches/vale0/ports", "/v1/stats", "/v1/switches/vale0", "/v1/quota", "/"];
    let methods = ["GET", "PATCH", "OPTIONS", "BREW"];
    let body = match random.below(3) {
        0 => random.bytes(300),
        1 => format!("{{\"batch\":{}}}", random.next()).into_bytes(),
        _ => format!("{{\"name\":\"{}\",\"kind\":{{\"null\":{{}}}}}}", random.next()).into_bytes(),
    };
    let head = format!(
        "{} {} HTTP/1.1\r\nHost: toklat\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        methods[random.below(4) as usize],
        paths[random.below(5) as usize],
        body.len() as u64 + random.below(2),
    );
    let _ = socket.write_all(&[head.as_bytes(), &body].concat());
    let _ = socket.shutdown(std::net::Shutdown::Write);
    socket.set_read_timeout(Some(ANSWER)).unwrap();
    let answered = socket.read(&mut [0; 64]);
    assert!(answered.is_ok(), "an answer, or the connection's end: {answered:?}");
}

/// Honest traffic, a frame at a time, so that each that is lost is seen.
fn exchange(daemon: &mut Daemon, (a, b): (&mut Port, &mut Port), number: &mut u64) {
    *number += 1;
    assert!(send(a, &frame(1, 2, *number)), "its slots come back");
    daemon.wait_for("an honest frame", |_| receive(b).contains(number));
    receive(a);
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().map_or(usual, |value| value.parse().unwrap())
}

/// Objective: whatever peers send, no process ends, waits, leaks or floods the log, and no honest
/// frame is lost.
#[test]
fn peers_that_send_anything_do_no_harm() {
    let files = SlowFiles::mount("peers_that_send_anything_do_no_harm: files of slow file systems");
    files.iter().for_each(|files| SLOW_FILE.set(files.path()).unwrap());
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.vm]\nkind.vhost_user = {}\n");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let processes = [daemon.pid() as i32, daemon.data_process("vale0")];
    // One run of each peer comes first, so that threads and buffers that are made once exist before
    // anything is counted.
    attach(daemon.dir(), &mut Random(1), &mut Vec::new());
    control(daemon.dir(), &mut Random(1));
    let before = processes.map(Has::of);
    let (seed, steps) = (u64::from(harness::seed()), setting("TOKLAT_FUZZ_STEPS", STEPS));
    let (mut sessions, mut stuck) = (0, 0);
    let began = Instant::now();
    for step in 0..steps {
        let mut random = Random(seed.wrapping_mul(1 << 32).wrapping_add(step));
        let dir = daemon.dir().to_owned();
        let asked = Instant::now();
        // The last closes of these descriptors wait while `linger` holds them, and those of slow
        // files until this step ends.
        let mut linger = Vec::new();
        files.iter().for_each(SlowFiles::hold);
        match step % 3 {
            0 => attach(&dir, &mut random, &mut linger),
            1 => sessions += u64::from(front_end(&dir, &mut random, &mut linger)),
            _ => control(&dir, &mut random),
        }
        assert!(asked.elapsed() < ANSWER, "step {step} of seed {seed}");
        exchange(&mut daemon, (&mut a, &mut b), &mut number);
        assert_eq!(daemon.data_process("vale0"), processes[1], "step {step} of seed {seed}");
        stuck += files.as_ref().map_or(0, SlowFiles::closes);
        files.iter().for_each(SlowFiles::answer);
    }
    assert!(files.is_none() || stuck > 0, "no close of a slow file was waited for");
    assert!(sessions > steps / 12, "{sessions} front ends came to speak in {steps} steps");
    daemon.wait_for("threads and descriptors to be as before", |_| {
        processes.map(Has::of).into_iter().zip(before).all(|(now, before)| now.is_within(before))
    });
    quiet_log(&daemon, began.elapsed());
}

/// Checks the log: for each reason and port it has at most a line a second, besides lines about
/// operators' commands.
fn quiet_log(daemon: &Daemon, took: Duration) {
    let log = daemon.log();
    assert!(!log.contains("panicked"), "{log}");
    let reason = |line: &str| line.split_whitespace().skip(1).take(5).collect::<Vec<_>>().join(" ");
    let reasons: BTreeSet<_> = log.lines().map(reason).collect();
    let most = (reasons.len() as u64 + 8) * (took.as_secs() + 2);
    assert!((log.lines().count() as u64) < most, "{} lines of {most}", log.lines().count());
}
