//! Objective: the client sends correct messages on the attach socket, and refuses wrong replies.
//! Steps: a thread plays the daemon, in a directory of its own.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use netring::attach::{Reply, Request, SOCKET, VERSION, flags, op};
use netring::{Interest, Monitor, Open, OpenError, Port, PortError, Region, RegionConfig};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use tempfile::TempDir;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// One reply of the played daemon, one for each connection. Gets the request.
type Answer = Box<dyn FnOnce(&Request, Vec<OwnedFd>) -> (Reply, Vec<OwnedFd>) + Send>;

fn daemon(answers: Vec<Answer>) -> (TempDir, JoinHandle<Vec<Request>>) {
    let directory = tempfile::tempdir().unwrap();
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let listener = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let address = SocketAddrUnix::new(directory.path().join(SOCKET)).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let serve = move || answers.into_iter().map(|answer| serve_one(&listener, answer)).collect();
    (directory, std::thread::spawn(serve))
}

fn serve_one(listener: &OwnedFd, answer: Answer) -> Request {
    let client = rustix::net::accept(listener).unwrap();
    let mut bytes = [0; size_of::<Request>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(&client, &mut parts, &mut control, flags).unwrap();
    assert_eq!(got.bytes, size_of::<Request>());
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some);
        }
    }
    let request = Request::read_from_bytes(&bytes).unwrap();
    let (reply, fds) = answer(&request, fds);
    let lent: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !lent.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&lent));
    }
    let bytes = [IoSlice::new(reply.as_bytes())];
    rustix::net::sendmsg(&client, &bytes, &mut control, SendFlags::empty()).unwrap();
    request
}

fn done() -> Reply {
    Reply { version: VERSION, max_frame: 1518, ..Reply::new_zeroed() }
}

fn socket_pair() -> (OwnedFd, OwnedFd) {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    rustix::net::socketpair(family, SocketType::STREAM, flags, None).unwrap()
}

/// Grants a port with a token; returns the token's other end.
fn granted() -> (Answer, OwnedFd) {
    let (theirs, ours) = socket_pair();
    (Box::new(move |_, _| (done(), vec![theirs])), ours)
}

fn refused(errno: rustix::io::Errno, why: &'static str) -> Answer {
    Box::new(move |_, _| (Reply::refused(errno.raw_os_error(), why), Vec::new()))
}

#[test]
fn a_port_is_lent_whole_and_its_token_carries_kicks() {
    let (answer, token) = granted();
    let (directory, daemon) = daemon(vec![answer]);
    let open = Open::new("vale0:p1").slots(64).rings(2).extra_buffers(3).exclusive();
    let mut port = open.directory(directory.path()).open().unwrap();
    let asked = daemon.join().unwrap().remove(0);
    assert_eq!((asked.version, asked.op, asked.flags), (VERSION, op::OPEN, flags::EXCLUSIVE));
    assert_eq!((asked.name(), asked.buf_usable), (Some("vale0:p1"), 2048));
    assert_eq!([asked.tx.rings, asked.tx.slots, asked.rx.rings, asked.rx.slots], [2, 64, 2, 64]);
    assert_eq!((port.max_frame(), port.queues()), (1518, (2, 2)));
    let rings = port.rings();
    let core = netring::layout::RingMemory::of(&rings.mapping, &rings.geometry, 0, 64).unwrap();
    let kicks = || {
        let mut bytes = [0; 9];
        rustix::net::recv(&token, &mut bytes[..], RecvFlags::DONTWAIT).map_or(0, |(_, len)| len)
    };
    assert!(port.send(1).push(b"frame"));
    port.flush().unwrap();
    assert_eq!(kicks(), 0, "nobody sleeps");
    core.control.core_flags.0.wake.arm();
    assert!((0..3).all(|_| port.send(1).push(b"frame") && port.flush().is_ok()));
    assert_eq!(kicks(), 1, "one kick an arming");
    core.control.core_flags.0.wake.arm();
    let first = rings.rx.first;
    let receive =
        netring::layout::RingMemory::of(&rings.mapping, &rings.geometry, first, 64).unwrap();
    let filled = netring::layout::SlotWord { len: 5, ..receive.slots[0].load() };
    receive.slots[0].store(filled);
    receive.control.core.0.publish(1);
    assert_eq!(port.receive(9).count(), 1);
    port.flush().unwrap();
    assert_eq!(kicks(), 0, "a frame read is not a reason to wake who waits for frames sent");
    rustix::net::send(&token, b"k", SendFlags::empty()).unwrap();
    assert!(!port.wait(Interest::READ, Some(Duration::ZERO)).unwrap().any(), "a kick for nothing");
    drop(token);
    let gone = port.wait(Interest::READ, Some(Duration::from_secs(60)));
    assert!(matches!(gone, Err(PortError::Gone)), "{gone:?}");
}

#[test]
fn a_port_is_reopened_when_the_daemon_is_back() {
    let (answers, tokens): (Vec<_>, Vec<_>) = (0..2).map(|_| granted()).unzip();
    let (directory, daemon) = daemon(answers);
    let open = Open::new("vale0:p1").slots(8).directory(directory.path());
    let mut port = open.open().unwrap();
    assert!(port.send(1).push(b"lost"));
    port.flush().unwrap();
    drop(tokens);
    assert!(matches!(port.disarm(), Err(PortError::Gone)));
    port.reopen().unwrap();
    let [first, second] = <[Request; 2]>::try_from(daemon.join().unwrap()).unwrap();
    assert_eq!(first.as_bytes(), second.as_bytes());
    assert_eq!(port.send(99).room(), 7, "as new");
}

#[test]
fn names_mean_what_they_mean_for_netmap() {
    let of = |name: &str, monitor: Option<Monitor>| {
        let (answer, _token) = granted();
        let (directory, daemon) = daemon(vec![answer]);
        let open = Open::new(name).slots(8).directory(directory.path());
        let open = monitor.into_iter().fold(open, Open::monitor);
        let port = open.open().unwrap();
        let asked = daemon.join().unwrap().remove(0);
        assert_eq!((asked.name(), asked.op), (Some("vale0:p1"), op::OPEN));
        assert_eq!(port.queues().0, asked.tx.rings as usize);
        (asked.flags, asked.tx.rings, asked.rx.rings)
    };
    assert_eq!(of("vale0:p1", None), (0, 1, 1));
    assert_eq!(of("vale0:p1/t", None), (flags::MONITOR_TX, 0, 1));
    assert_eq!(of("vale0:p1/r", None), (flags::MONITOR_RX, 0, 1));
    let both = flags::MONITOR_TX | flags::MONITOR_RX;
    assert_eq!(of("vale0:p1/rt", None), (both, 0, 1));
    assert_eq!(of("vale0:p1", Some(Monitor::Both)), (both, 0, 1));
    assert_eq!(of("vale0:p1/x", None), (flags::EXCLUSIVE, 1, 1));
    let long = format!("vale0:{}", "x".repeat(60));
    for bad in ["", "vale0", ":p", "vale0:", "vale0:p/", "vale0:p/q", "vale0:{1", "vale0:p{", &long]
    {
        let opened = Open::new(bad).directory("/nonexistent").open();
        assert!(matches!(opened, Err(OpenError::Name(_))), "{bad}: {opened:?}");
    }
}

#[test]
fn refusals_and_nonsense_are_errors() {
    let open = |answer: Answer| {
        let (directory, daemon) = daemon(vec![answer]);
        let error = Open::new("vale0:p1").slots(8).directory(directory.path()).open().unwrap_err();
        daemon.join().unwrap();
        error
    };
    let busy = open(refused(rustix::io::Errno::BUSY, "somebody has it; close it there"));
    assert!(busy.to_string().contains("somebody has it; close it there"), "{busy}");
    let too_few = open(Box::new(|_, _| (done(), Vec::new())));
    assert!(matches!(too_few, OpenError::Malformed(_)), "{too_few:?}");
    let other = open(Box::new(|_, _| (Reply { version: 9, ..done() }, Vec::new())));
    assert!(matches!(other, OpenError::Malformed("version")), "{other:?}");
    let nobody = Open::new("vale0:p1").slots(8).directory("/nonexistent").open().unwrap_err();
    assert!(nobody.to_string().contains("toklat daemon"), "{nobody}");
    let private = Region::private(RegionConfig::ports(1, 1, 8)).unwrap();
    let lent = Open::new("vale0:p1").slots(8).in_region(&private).directory("/nonexistent").open();
    assert!(matches!(lent, Err(OpenError::PrivateRegion)), "{lent:?}");
    assert_eq!(private.free_buffers(), 16);
}

/// A registry of one pipe: the first request makes it, the second joins it.
fn pipe_answers() -> Vec<Answer> {
    let eventfd = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let (one, two) = (eventfd(), eventfd());
    let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
    let first = [socket_pair().0, copy(&one), copy(&two)];
    let second = [socket_pair().0, two, one];
    let (tell, told) = std::sync::mpsc::channel::<(Request, OwnedFd)>();
    let make = move |request: &Request, mut fds: Vec<OwnedFd>| {
        assert_eq!((request.op, fds.len()), (op::MAKE_PIPE, 1));
        tell.send((*request, fds.remove(0))).unwrap();
        (done(), first.into())
    };
    let join = move |request: &Request, _| {
        assert_eq!((request.op, request.name()), (op::OPEN_PIPE, Some("vale0:x}1")));
        let (made, file) = told.recv().unwrap();
        let Request { geometry, peer_tx, peer_rx, rx, buf_usable, .. } = made;
        let rings = Reply { geometry, tx: peer_tx, rx: peer_rx, peer_rx: rx, buf_usable, ..done() };
        (rings, second.into_iter().chain([file]).collect())
    };
    let missing = refused(rustix::io::Errno::NOENT, "no such pipe");
    vec![missing, Box::new(make), Box::new(join)]
}

#[test]
fn the_second_to_open_a_pipe_finds_the_first() {
    let (directory, daemon) = daemon(pipe_answers());
    let open = |name| Open::new(name).slots(16).directory(directory.path()).open().unwrap();
    let (mut left, mut right) = (open("vale0:x{1"), open("vale0:x}1"));
    daemon.join().unwrap();
    let pass = |from: &mut Port, to: &mut Port| {
        for round in 0..40_u8 {
            assert!(from.send(1).push(&[round]));
            from.flush().unwrap();
            assert!(to.wait(Interest::READ, None).unwrap().readable);
            assert_eq!(to.receive(1).next().unwrap().to_vec(), [round]);
            to.flush().unwrap();
        }
    };
    pass(&mut left, &mut right);
    pass(&mut right, &mut left);
    let sleeper = std::thread::spawn(move || {
        let ready = right.wait(Interest::READ, Some(Duration::from_secs(60))).unwrap();
        assert!(ready.readable, "kicked across the two eventfds");
    });
    std::thread::sleep(Duration::from_millis(20));
    assert!(left.send(1).push(b"wake up"));
    left.flush().unwrap();
    sleeper.join().unwrap();
}
