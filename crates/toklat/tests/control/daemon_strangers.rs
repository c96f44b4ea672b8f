//! A stranger sends descriptors whose close lasts as long as it likes. No one else waits.
//!
//! Each test leaves the peer of a lingering socket unread while it watches the other ports. So the
//! thread that closes that socket waits meanwhile.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use card::vfio_user::Client;
use dataplane::attach::virtio::message::code;
use netring::Port;
use netring::attach::{Request, op};
use netring::layout::{Geometry, RingSpec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal};
use zerocopy::IntoBytes;

use harness::frames::until_traffic_flows;
use harness::front_end::{reply, say, words};
use harness::strangers::{SlowFiles, lingering, send_with};
use harness::users::as_user;
use harness::{Daemon, descriptors, is_alive, kill_process, small, wait_until};

const GEOMETRY: Geometry = Geometry {
    if_size: 1024,
    if_num: 1,
    ring_size: 4352,
    ring_num: 2,
    buf_size: 2112,
    buf_num: 600,
};

/// A daemon that a stranger attacks, and other clients that must not notice.
struct Others {
    daemon: Daemon,
    a: Port,
    b: Port,
    number: u64,
    /// The front end of another virtual machine.
    guest: UnixStream,
    /// The numbers of descriptors that the supervisor and the data process had before the attack.
    before: [usize; 2],
}

impl Others {
    fn start(passrights: &str) -> Self {
        Self::beside(Daemon::start_with_environment(&[], &[("TOKLAT_PASSRIGHTS", passrights)]))
    }

    fn beside(daemon: Daemon) -> Self {
        let dir = daemon.dir().display().to_string();
        daemon.apply(&format!(
            "[switch.vale0.port.other]\nkind.vhost_user = {{}}\n\
             [switch.vale0.port.guest]\nkind.vhost_user = {{}}\n\
             [switch.vale0.port.card]\nkind.vfio_user.nic.model = '82540em'\n\
             [switch.vale0.port.stream]\nkind.stream = {{}}\n\
             [switch.vale0.port.dgram]\n\
             kind.dgram = {{ local = '{dir}/local.sock', remote = '{dir}/remote.sock' }}\n"
        ));
        let guest = UnixStream::connect(daemon.dir().join("vale0-other.sock")).unwrap();
        let (a, b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
        let mut others = Self { daemon, a, b, number: 0, guest, before: [0; 2] };
        others.go_on();
        others.before = others.descriptors();
        others
    }

    /// Checks that the API answers, another front end is answered, and frames cross.
    fn go_on(&mut self) {
        self.daemon.get("/v1/switches/vale0");
        assert!(say(&self.guest, code::GET_FEATURES, &[], &[]));
        assert!(reply(&self.guest).is_some());
        until_traffic_flows(&mut self.a, &mut self.b, &mut self.number);
    }

    fn descriptors(&self) -> [usize; 2] {
        [self.daemon.pid(), self.daemon.data_process("vale0") as u32].map(descriptors)
    }

    fn socket(&self, port: &str) -> PathBuf {
        self.daemon.dir().join(format!("vale0-{port}.sock"))
    }

    /// Checks that, once the stranger's connections are gone, nothing of what the stranger sent is
    /// left.
    fn nothing_is_left(mut self) {
        self.go_on();
        while self.descriptors().iter().zip(self.before).any(|(now, before)| *now > before) {
            self.go_on();
        }
    }
}

/// Attacks with one lingering descriptor, on kernels that can refuse descriptors and on those that
/// cannot.
fn attack(with: impl Fn(&Others, OwnedFd)) {
    for passrights in ["on", "off"] {
        let mut others = Others::start(passrights);
        let (descriptor, peer) = lingering();
        with(&others, descriptor);
        others.go_on();
        drop(peer);
        others.nothing_is_left();
    }
}

/// Closes a copy of a descriptor, which is the last copy if nobody else took one.
fn let_go(descriptor: OwnedFd) {
    std::thread::spawn(|| drop(descriptor));
}

fn connect(others: &Others) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let address = SocketAddrUnix::new(others.daemon.dir().join(netring::attach::SOCKET)).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

/// Opens a port and returns its token.
fn open(others: &Others, name: &str) -> OwnedFd {
    let socket = connect(others);
    let request = Request {
        geometry: GEOMETRY,
        tx: RingSpec { first: 0, rings: 1, slots: 256 },
        rx: RingSpec { first: 1, rings: 1, slots: 256 },
        buf_usable: 2048,
        ..Request::new(op::OPEN, name)
    };
    let len = GEOMETRY.file_size() as usize;
    let region = shmem::Memfd::create("region", len, netring::Pages::Small).unwrap().into_fd();
    send_with(&socket, request.as_bytes(), &[region.as_fd()]).unwrap();
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let token = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    token.expect("a port")
}

#[test]
fn regression_a_lingering_socket_with_a_request_delays_no_one_else() {
    attack(|others, descriptor| {
        let socket = connect(others);
        send_with(&socket, b"no request", &[descriptor.as_fd()]).unwrap();
        let_go(descriptor);
        rustix::net::recv(&socket, &mut [0; 4096][..], RecvFlags::empty()).unwrap();
    });
}

/// The connection is closed while a message in it has not been read.
#[test]
fn regression_a_lingering_socket_in_an_unread_queue_delays_no_one_else() {
    attack(|others, descriptor| {
        let daemon = Pid::from_raw(others.daemon.pid() as i32).unwrap();
        rustix::process::kill_process(daemon, Signal::STOP).unwrap();
        let socket = connect(others);
        send_with(&socket, b"", &[]).unwrap();
        send_with(&socket, b"more", &[descriptor.as_fd()]).unwrap();
        let_go(descriptor);
        rustix::process::kill_process(daemon, Signal::CONT).unwrap();
        // An empty message asked the daemon to end the connection: this reads the end.
        let end = rustix::net::recv(&socket, &mut [0; 16][..], RecvFlags::empty());
        assert!(!matches!(end, Ok((_, 1..))), "{end:?}");
    });
}

#[test]
fn regression_a_lingering_socket_as_a_kick_delays_no_one_else() {
    attack(|others, descriptor| {
        let token = open(others, "vale0:c");
        let sent = send_with(&token, b"kick", &[descriptor.as_fd()]);
        let_go(descriptor);
        let refused = sent == Err(rustix::io::Errno::PERM);
        assert!(refused || sent == Ok(4), "{sent:?}");
        // The worker reads arriving frames, before or after this.
        let _ = send_with(&token, b"kick", &[]);
    });
}

/// Objective: refused memory, and a lingering socket in place of each other descriptor that comes
/// with requests.
#[test]
fn regression_a_lingering_socket_as_memory_of_a_guest_delays_no_one_else() {
    let region: Vec<u8> = words(&[0, 0, 4096, 1 << 40, 0]);
    let table =
        [&[1, 0].map(u32::to_ne_bytes).concat()[..], &words(&[0, 4096, 1 << 40, 0])].concat();
    for (request, payload) in [
        (code::SET_MEM_TABLE, table),
        (code::ADD_MEM_REG, region),
        (code::SET_VRING_CALL, words(&[0])),
        (code::SET_LOG_BASE, words(&[4096, 0])),
        // This request carries no descriptor.
        (code::GET_FEATURES, Vec::new()),
    ] {
        attack(|others, descriptor| {
            let guest = UnixStream::connect(others.socket("guest")).unwrap();
            assert!(say(&guest, code::SET_OWNER, &[], &[]));
            assert!(say(&guest, request, &payload, &[descriptor.as_fd()]));
            let_go(descriptor);
            // The front end is answered, or its connection is closed.
            let _ = say(&guest, code::GET_FEATURES, &[], &[]);
            let _ = reply(&guest);
        });
    }
}

#[test]
fn regression_a_lingering_socket_as_memory_of_a_card_delays_no_one_else() {
    attack(|others, descriptor| {
        let mut card = Client::connect(&others.socket("card")).unwrap();
        // For the card, a range that cannot be mapped is a range without memory.
        card.dma_map(Some(descriptor.as_fd()), 0, 0x10_0000, 4096, true).unwrap();
        assert!(card.set_irqs(0, &[&descriptor]).is_err());
        let_go(descriptor);
    });
}

#[test]
fn regression_a_lingering_socket_with_frames_of_a_stream_delays_no_one_else() {
    attack(|others, descriptor| {
        let stream = UnixStream::connect(others.socket("stream")).unwrap();
        let sent = send_with(&stream, &[0, 0, 0, 60], &[descriptor.as_fd()]);
        let_go(descriptor);
        assert!(matches!(sent, Ok(4) | Err(rustix::io::Errno::PERM)), "{sent:?}");
        let _ = send_with(&stream, &[0; 60], &[]);
    });
}

#[test]
fn regression_a_lingering_socket_with_a_datagram_delays_no_one_else() {
    attack(|others, descriptor| {
        let dir = others.daemon.dir();
        let socket = UnixDatagram::bind(dir.join("remote.sock")).unwrap();
        socket.connect(dir.join("local.sock")).unwrap();
        let sent = send_with(&socket, &[0; 60], &[descriptor.as_fd()]);
        let_go(descriptor);
        assert!(matches!(sent, Ok(60) | Err(rustix::io::Errno::PERM)), "{sent:?}");
        let _ = send_with(&socket, &[0; 60], &[]);
    });
}

/// Objective: files of a slow file system, sent in place of every kind of descriptor, delay no one
/// else. That file system does not even answer for their attributes.
#[test]
fn regression_a_file_that_is_never_closed_delays_no_one_else() {
    let test = "regression_a_file_that_is_never_closed_delays_no_one_else";
    let Some(files) = SlowFiles::alone(test) else { return };
    let mut others = Others::start("on");
    let file = files.open();
    let request = connect(&others);
    send_with(&request, b"no request", &[file.as_fd()]).unwrap();
    others.go_on();
    let guest = UnixStream::connect(others.socket("guest")).unwrap();
    let table = words(&[1, 0, 4096, 1 << 40, 0]);
    assert!(say(&guest, code::SET_MEM_TABLE, &table, &[file.as_fd()]));
    others.go_on();
    let mut card = Client::connect(&others.socket("card")).unwrap();
    card.dma_map(Some(file.as_fd()), 0, 0x10_0000, 4096, true).unwrap();
    others.go_on();
    drop((request, guest, card, file));
    others.nothing_is_left();
}

/// Objective: while the daemon holds a file whose closes wait, it starts children and takes
/// requests. (A child had a copy of the file, and closed that before it ran its program.)
#[test]
fn regression_a_close_that_waits_holds_up_no_start_of_a_child() {
    const STRANGER: u32 = 4001;
    const OTHER: u32 = 4002;
    /// For all that is asked together, on a machine that has other things to do.
    const LIMIT: Duration = Duration::from_secs(10);
    let test = "regression_a_close_that_waits_holds_up_no_start_of_a_child";
    let Some(files) = SlowFiles::alone(test) else { return };
    let mut others = Others::beside(Daemon::start_for_all(&[]));
    let request = as_user(STRANGER, || connect(&others));
    // Children of this process would wait, too, so it starts none while it has the file.
    let file = files.open();
    send_with(&request, b"no request", &[file.as_fd()]).unwrap();
    others.daemon.wait_for("a close that waits", |_| files.closes() > 0);
    let began = Instant::now();
    let another = serde_json::json!({ "name": "another" });
    assert_eq!(others.daemon.ask("POST", "/v1/switches", &another).0, 201);
    let port = serde_json::json!({ "name": "added" });
    assert_eq!(others.daemon.ask("POST", "/v1/switches/another/ports", &port).0, 201);
    let opened = others.daemon.open_as(OTHER, "vale0:other-user").unwrap();
    let old = others.daemon.data_process("vale0");
    kill_process(old);
    others.daemon.wait_for("a successor", |daemon| {
        let pid = daemon.get("/v1/switches/vale0")["pid"].as_i64();
        pid.is_some_and(|pid| pid != i64::from(old))
    });
    let all = others.daemon.ask("POST", "/v1/upgrade", &serde_json::Value::Null);
    assert_eq!(all.0, 200, "{all:?}");
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    assert!(files.closes() > 0, "the file was closed meanwhile");
    let removed = others.daemon.ask("DELETE", "/v1/switches/another", &serde_json::Value::Null);
    assert_eq!(removed.0, 204, "{removed:?}");
    drop((request, file, opened));
    others.nothing_is_left();
}

/// Objective: a data process whose close of a file never ends is succeeded when it is killed,
/// though the kernel keeps it.
#[test]
fn regression_a_process_that_cannot_end_has_a_successor() {
    let test = "regression_a_process_that_cannot_end_has_a_successor";
    let Some(files) = SlowFiles::alone(test) else { return };
    let mut others = Others::start("on");
    let guest = UnixStream::connect(others.socket("guest")).unwrap();
    let table = words(&[1, 0, 4096, 1 << 40, 0]);
    // The data process closes the file last, and each close of such a file asks the file system.
    let file = files.open();
    assert!(say(&guest, code::SET_MEM_TABLE, &table, &[file.as_fd()]));
    others.daemon.wait_for("the close", |_| files.closes() > 0);
    let old = others.daemon.data_process("vale0");
    kill_process(old);
    others.daemon.wait_for("a successor", |daemon| {
        let pid = daemon.get("/v1/switches/vale0")["pid"].as_i64();
        pid.is_some_and(|pid| pid != i64::from(old))
    });
    until_traffic_flows(&mut others.a, &mut others.b, &mut others.number);
    assert_eq!(others.daemon.gaps_in_time("vale0"), 1, "it is not waited for");
    let threads = std::fs::read_dir(format!("/proc/{old}/task")).unwrap().count();
    assert!(!is_alive(old) && threads > 1, "it was to be kept by a close that does not end");
    drop(file);
    others.daemon.wait_for("its end", |_| !std::path::Path::new(&format!("/proc/{old}")).exists());
}

/// Objective: a daemon that was killed while a close waited has a successor, though the kernel
/// keeps its process, and its lock.
#[test]
fn regression_a_daemon_that_cannot_end_has_a_successor() {
    let test = "regression_a_daemon_that_cannot_end_has_a_successor";
    let Some(files) = SlowFiles::alone(test) else { return };
    let mut others = Others::start("on");
    let old = Pid::from_raw(others.daemon.pid() as i32).unwrap();
    // This process must not have the file when it starts the next daemon.
    rustix::process::kill_process(old, Signal::STOP).unwrap();
    files.answer();
    let (request, file) = (connect(&others), files.open());
    send_with(&request, b"no request", &[file.as_fd()]).unwrap();
    drop(file);
    files.hold();
    rustix::process::kill_process(old, Signal::CONT).unwrap();
    others.daemon.wait_for("a close that waits", |_| files.closes() > 0);
    let mut process = others.daemon.take_process();
    process.kill().unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{old}/stat")).unwrap();
    wait_until("its end, but for one thread", || state().contains(") Z "));
    let began = Instant::now();
    // Who connects before the next daemon listens waits for one that does not answer.
    std::fs::remove_file(others.daemon.dir().join("control.sock")).unwrap();
    others.daemon.start_again();
    others.go_on();
    for port in ["guest", "card", "stream"] {
        let path = others.socket(port);
        wait_until("a socket of the next daemon's", || {
            let peer = |socket| rustix::net::sockopt::socket_peercred(&socket).unwrap().pid;
            UnixStream::connect(&path).is_ok_and(|socket| peer(socket) != old)
        });
    }
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}: {}",
        began.elapsed(),
        others.daemon.log()
    );
    assert!(files.closes() > 0 && process.try_wait().unwrap().is_none(), "it has ended");
    // The lock that took that one's place is one: no other user can take it, and no other daemon.
    let lock = std::fs::metadata(others.daemon.dir().join("lock")).unwrap();
    assert_eq!(lock.permissions().mode() & 0o777, 0o600);
    let mut another = Command::new(harness::program());
    let another = another.arg("daemon").env("TOKLAT_DIR", others.daemon.dir()).output().unwrap();
    let said = String::from_utf8_lossy(&another.stderr).into_owned();
    assert!(!another.status.success() && said.contains("A daemon runs in"), "{said}");
    files.answer();
    process.wait().unwrap();
}

/// Objective: a user whose descriptors cannot be closed is refused until they are. Other users are
/// served.
#[test]
fn regression_a_user_whose_descriptors_cannot_be_closed_waits_alone() {
    const STRANGER: u32 = 4001;
    let test = "regression_a_user_whose_descriptors_cannot_be_closed_waits_alone";
    let Some(files) = SlowFiles::alone(test) else { return };
    let mut others = Others::beside(Daemon::start_for_all(&[]));
    let copies: Vec<_> = (0..3).map(|_| files.open()).collect();
    let connection = as_user(STRANGER, || connect(&others));
    for copy in &copies {
        // The daemon closes the connection when it cannot close two descriptors.
        let _ = send_with(&connection, b"no request", &[copy.as_fd()]);
    }
    let open = |others: &Others, number: usize| {
        let dir = others.daemon.dir();
        as_user(STRANGER, || small(&format!("vale0:s{number}")).directory(dir).open())
    };
    let mut opened = Vec::new();
    others.daemon.wait_for("the closes", |_| files.closes() == 2);
    while let Ok(port) = open(&others, opened.len()) {
        opened.push(port);
    }
    others.go_on();
    drop(copies);
    while open(&others, opened.len()).is_err() {
        others.go_on();
    }
    drop((connection, opened));
    others.nothing_is_left();
}
