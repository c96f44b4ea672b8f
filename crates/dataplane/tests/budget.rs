//! Mapped memory of front ends and clients is bounded, for each and for all. A client that asks for
//! more harms no other.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use frame::Mac;
use port::stats::LimitOf;
use rustix::fs::{MemfdFlags, SealFlags};
use toklat_dataplane::SwitchConfig;
use toklat_dataplane::attach::virtio::VhostUserConfig;
use toklat_dataplane::attach::virtio::message::{self, code};
use toklat_dataplane::config::{Idle, Policy, PortConfig};
use toklat_dataplane::control::{Answer, Command};
use toklat_dataplane::state::State;

use process::client::{self, Client};
use process::{ask, in_child, start_as};

mod process;

const TIB: u64 = 1 << 40;
const GIB: u64 = 1 << 30;

/// A sparse file of this length, without pages.
fn sparse(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("guest", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file
}

/// A front end, the switch's end of its socket, and its port.
struct FrontEnd {
    socket: UnixStream,
    switch_end: OwnedFd,
    uid: u32,
    file: OwnedFd,
}

impl FrontEnd {
    /// Made before the process is confined, with a sparse file of this length.
    fn new(uid: u32, len: u64) -> Self {
        let (socket, switch_end) = UnixStream::pair().unwrap();
        Self { socket, switch_end: switch_end.into(), uid, file: sparse(len) }
    }

    fn attach(&mut self, connection: &OwnedFd, id: u16) {
        let (name, policy) = (format!("guest{id}"), Policy::default());
        let attachment = VhostUserConfig { queue_pairs: 1 }.into();
        let config =
            PortConfig { name, policy, worker: None, attachment, uid: self.uid, pid: None };
        let command = Command::AddPort { id, config, resume: false };
        let answer = ask(connection, &command, &[self.switch_end.as_fd()]);
        assert!(matches!(answer, Answer::Added { .. }), "{answer:?}");
        // REPLY_ACK and CONFIGURE_MEM_SLOTS.
        let features = (1u64 << 3 | 1 << 15).to_ne_bytes();
        message::send(&self.socket, code::SET_PROTOCOL_FEATURES, false, &features, &[]).unwrap();
    }

    /// Shares `len` bytes at `offset` of its file as guest memory at `guest`; true if that was
    /// accepted.
    fn share(&mut self, guest: u64, offset: u64, len: u64) -> bool {
        let words = [0, guest, len, guest + (1 << 46), offset];
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let sent =
            message::send(&self.socket, code::ADD_MEM_REG, true, &body, &[self.file.as_fd()]);
        sent.unwrap();
        let mut reply = [0; 20];
        self.socket.read_exact(&mut reply).unwrap();
        reply[12..] == [0; 8]
    }
}

/// The size of this process's address space, from `/proc/self/statm`, which was opened before.
fn address_space(statm: &OwnedFd) -> u64 {
    let mut text = [0; 128];
    let got = rustix::io::pread(statm, &mut text, 0).unwrap();
    let pages = std::str::from_utf8(&text[..got]).unwrap().split(' ').next().unwrap();
    pages.parse::<u64>().unwrap() * 4096
}

fn statm() -> OwnedFd {
    std::fs::File::open("/proc/self/statm").unwrap().into()
}

/// A switch with default settings, whose worker polls.
fn start() -> (std::thread::JoinHandle<()>, OwnedFd, State) {
    start_as(SwitchConfig { idle: Idle::Poll, ..SwitchConfig::default() })
}

fn stop((thread, connection): (std::thread::JoinHandle<()>, OwnedFd)) {
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

/// The front end's 10 MB are at the ends of files of 4 TiB.
#[test]
fn regression_a_front_end_of_ten_megabytes_takes_no_more() {
    let name = "regression_a_front_end_of_ten_megabytes_takes_no_more";
    if let Some(status) = in_child(name) {
        return assert!(status.success(), "{status}");
    }
    const MIB: u64 = 1 << 20;
    let (mut front_end, statm) = (FrontEnd::new(1000, 4 * TIB), statm());
    let (thread, connection, state) = start();
    front_end.attach(&connection, 0);
    let before = address_space(&statm);
    for at in 0..10 {
        // Each region's window ends further into the file than the previous one.
        assert!(front_end.share(at * MIB, 4 * TIB - 40 * MIB + 2 * at * MIB, MIB), "{at}");
    }
    let taken = address_space(&statm) - before;
    assert!((10 * MIB..GIB).contains(&taken), "{taken}");
    assert!(client::wait(|| state.port(0).unwrap().memory().mappings == 10));
    assert!(state.port(0).unwrap().memory().bytes <= 40 * MIB);
    stop((thread, connection));
}

/// Half of the front ends use offsets; the other half ask for windows of the greatest size. Ring
/// clients bring files of 60 TiB.
#[test]
fn regression_sixty_four_greedy_front_ends_do_no_harm() {
    let name = "regression_sixty_four_greedy_front_ends_do_no_harm";
    if let Some(status) = in_child(name) {
        return assert!(status.success(), "{status}");
    }
    let mut greedy: Vec<_> = (0..64).map(|n| FrontEnd::new(1000 + n, 4 * TIB)).collect();
    let mut honest = FrontEnd::new(2000, 6 * GIB);
    let files = [sparse(60 * TIB), sparse(60 * TIB), sparse(60 * TIB)];
    for file in &files {
        rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    }
    let policy = |n| Policy { macs: vec![Mac::local(n)], ..Policy::default() };
    let [mut a, mut b, other] = [100, 101, 102].map(|n| Client::new(n, policy(n.into())));
    let statm = statm();
    let (thread, connection, state) = start();
    let before = address_space(&statm);

    for (file, id) in files.iter().zip(110..) {
        let command = Command::AddPort { id, config: other.config.clone(), resume: false };
        let answer = ask(&connection, &command, &[file.as_fd(), other.switch_end.as_fd()]);
        assert!(matches!(answer, Answer::Added { .. }), "{answer:?}");
    }
    let (mut taken, mut refused) = (0, 0);
    for (id, front_end) in greedy.iter_mut().enumerate() {
        front_end.attach(&connection, id as u16);
        for at in 0..8 {
            let good = match id % 2 {
                0 => front_end.share(at * GIB, 3 * TIB + at * GIB, 4096),
                _ => front_end.share(at * 4 * TIB, 0, 4 * TIB - at * 4096),
            };
            if good { taken += 1 } else { refused += 1 }
        }
    }
    assert!(taken >= 32 * 8 && refused > 20 * 8, "{taken} taken, {refused} refused");

    honest.attach(&connection, 70);
    assert!(honest.share(0, 0, 2 * GIB), "another guest is served");
    assert!(honest.share(4 * GIB, 2 * GIB, 4 * GIB));
    a.attach(&connection, false);
    b.attach(&connection, false);
    a.send(&client::frame(101, 100)).unwrap();
    // With this many ports a worker sleeps, so it needs a kick.
    rustix::net::send(&a.token, &[1], rustix::net::SendFlags::DONTWAIT).unwrap();
    assert_eq!(b.receive(1), 1);

    let used = address_space(&statm) - before;
    assert!(used <= 64 * TIB, "{} TiB", used / TIB);
    let memory = |id| state.port(id).unwrap().memory();
    assert!(client::wait(|| memory(63).refused == 8 && memory(70).mappings == 2));
    assert_eq!(memory(63).refused_by, Some(LimitOf::Switch));
    assert_eq!(memory(70).bytes, 6 * GIB);
    assert_eq!((memory(70).refused, memory(62).refused), (0, 0));
    stop((thread, connection));
}
