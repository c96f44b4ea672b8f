//! The attach socket of the real daemon: clients that behave, and clients that do not.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::{Daemon, small, text};
use netring::attach::{Reply, Request, op};
use netring::layout::{Geometry, RingSpec};
use netring::{Monitor, OpenError};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use zerocopy::{FromBytes, IntoBytes};

const GEOMETRY: Geometry = Geometry {
    if_size: 1024,
    if_num: 1,
    ring_size: 4352,
    ring_num: 2,
    buf_size: 2112,
    buf_num: 600,
};

fn request(name: &str) -> Request {
    Request {
        geometry: GEOMETRY,
        tx: RingSpec { first: 0, rings: 1, slots: 256 },
        rx: RingSpec { first: 1, rings: 1, slots: 256 },
        buf_usable: 2048,
        ..Request::new(op::OPEN, name)
    }
}

fn region() -> OwnedFd {
    let len = GEOMETRY.file_size() as usize;
    shmem::Memfd::create("region", len, netring::Pages::Small).unwrap().into_fd()
}

fn connect(dir: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let address = SocketAddrUnix::new(dir.join(netring::attach::SOCKET)).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let wait = Some(harness::PATIENCE);
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, wait).unwrap();
    socket
}

fn say(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let bytes = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Reads a reply, and drops its descriptors.
fn read_reply(socket: &OwnedFd) -> Reply {
    let mut bytes = [0; size_of::<Reply>()];
    let got = rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap().1;
    assert_eq!(got, size_of::<Reply>());
    Reply::read_from_bytes(&bytes).unwrap()
}

fn errno(result: Result<netring::Port, OpenError>) -> Errno {
    match result {
        Err(OpenError::Refused { errno, message, .. }) => {
            assert!(message.contains("; "), "{message} has no remedy");
            Errno::from_raw_os_error(errno)
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn frames_cross_and_ports_go_with_their_clients() {
    let mut daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    until_traffic_flows(&mut a, &mut b, &mut 0);
    let info = daemon.get("/v1/switches/vale0/ports/a");
    assert_eq!(info["client"]["pid"], std::process::id());
    assert_eq!((&info["ephemeral"], &info["state"]), (&true.into(), &"attached".into()));
    let stats = daemon.get("/v1/stats");
    assert!(stats["switches"][0]["ports"][0]["in_frames"].as_u64().unwrap() > 0, "{stats}");
    let pid = daemon.data_process("vale0");
    drop(a);
    daemon.wait_for("the port to go", |daemon| daemon.ports("vale0").len() == 1);
    drop(b);
    daemon.wait_for("the switch to go", |daemon| {
        daemon.get("/v1/switches").as_array().unwrap().is_empty()
    });
    daemon.wait_for("its process to go", |_| !harness::is_alive(pid));
}

#[test]
fn a_switch_can_be_opened_again_while_it_goes() {
    let daemon = Daemon::start();
    for _ in 0..30 {
        // A child that another test starts has a copy of the token until it runs a program of its
        // own.
        let open = |name| loop {
            match daemon.open(name) {
                Err(OpenError::Refused { errno, .. }) if errno == Errno::BUSY.raw_os_error() => {
                    std::thread::yield_now();
                }
                port => break port.unwrap(),
            }
        };
        let (mut a, mut b) = (open("v:a"), open("v:b"));
        until_traffic_flows(&mut a, &mut b, &mut 0);
    }
}

#[test]
fn a_configured_port_waits_for_the_next_client() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.p1]\nmtu = 3000");
    for _ in 0..3 {
        // Opening succeeds even if the daemon has not yet noticed that the previous client is gone.
        let port = daemon.open("vale0:p1").unwrap();
        assert_eq!(port.max_frame(), 3022);
        assert_eq!(errno(daemon.open("vale0:p1")), Errno::BUSY);
    }
    daemon.wait_for("the port to be vacant", |daemon| {
        daemon.ports("vale0") == [("p1".to_owned(), "vacant".to_owned())]
    });
}

#[test]
fn without_auto_switch_names_must_be_known() {
    let daemon = Daemon::start_with(&["--no-auto-switch"]);
    assert_eq!(errno(daemon.open("vale0:p1")), Errno::NOENT);
    daemon.apply("[switch.vale0]");
    daemon.open("vale0:p1").unwrap();
}

#[test]
fn a_monitor_sees_what_a_port_sends_and_goes_with_its_client() {
    let mut daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    assert_eq!(errno(daemon.open("vale0:none/r")), Errno::NOENT);
    let watch = small("vale0:a").monitor(Monitor::Sent).directory(daemon.dir()).open();
    let mut watch = watch.unwrap();
    until_traffic_flows(&mut a, &mut b, &mut 0);
    assert!(receive(&mut watch).last().is_some_and(|last| *last > 0));
    let monitor = daemon.get("/v1/switches/vale0/ports")[2].clone();
    assert_eq!((text(&monitor["name"]), text(&monitor["monitors"])), ("a/t#0", "a"));
    drop(watch);
    daemon.wait_for("the monitor to go", |daemon| daemon.ports("vale0").len() == 2);
    let _again = daemon.open("vale0:a/rt").unwrap();
    drop(a);
    daemon.wait_for("the monitor to go with its port", |daemon| {
        daemon.ports("vale0") == [("b".to_owned(), "attached".to_owned())]
    });
}

#[test]
fn pipes_connect_two_clients_without_a_data_process() {
    let mut daemon = Daemon::start();
    let mut left = daemon.open("vale0:p{1").unwrap();
    let mut right = daemon.open("vale0:p}1").unwrap();
    assert!(send(&mut left, &frame(1, 2, 7)));
    daemon.wait_for("the frame", |_| receive(&mut right) == [7]);
    let pipes = daemon.get("/v1/pipes");
    assert_eq!((text(&pipes[0]["parent"]), text(&pipes[0]["id"])), ("vale0:p", "1"));
    assert_eq!(daemon.get("/v1/switches"), serde_json::json!([]));
    assert_eq!(errno(daemon.open("vale0:p}1")), Errno::BUSY);
    drop((left, right));
    daemon.wait_for("the pipe to go", |daemon| daemon.get("/v1/pipes") == serde_json::json!([]));
}

#[test]
fn a_pipe_outlives_the_daemon_and_keeps_its_name() {
    let mut daemon = Daemon::start();
    let mut left = daemon.open("vale0:p{1").unwrap();
    let mut right = daemon.open("vale0:p}1").unwrap();
    daemon.kill();
    daemon.start_again();
    assert!(send(&mut left, &frame(1, 2, 7)));
    daemon.wait_for("the frame", |_| receive(&mut right) == [7]);
    drop(right);
    // If the right end could be opened again, it would wait forever for frames of the left one.
    assert_eq!(errno(daemon.open("vale0:p}1")), Errno::BUSY);
    drop(left);
    let mut right = daemon.open("vale0:p}1").unwrap();
    let mut left = daemon.open("vale0:p{1").unwrap();
    assert!(send(&mut left, &frame(1, 2, 8)));
    daemon.wait_for("the frame", |_| receive(&mut right) == [8]);
}

#[test]
fn malformed_requests_are_refused_and_cost_others_nothing() {
    let mut daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let good = request("vale0:c");
    let (memory, fifo) = (region(), rustix::pipe::pipe().unwrap().0);
    let unsealed = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, GEOMETRY.file_size()).unwrap();
    let small = shmem::Memfd::create("x", 4096, netring::Pages::Small).unwrap().into_fd();
    let six = [memory.as_fd(); 6];
    let sixteen = [memory.as_fd(); 16];
    let socket = connect(daemon.dir());
    for (what, bytes, fds) in [
        ("a byte", &[1u8][..], &[][..]),
        ("a byte too few", &good.as_bytes()[..151], &[memory.as_fd()][..]),
        ("a byte too many", &[0; 153], &[memory.as_fd()]),
        ("far too many", &[0; 50_000], &[memory.as_fd()]),
        ("no memory", good.as_bytes(), &[]),
        ("six descriptors", good.as_bytes(), &six),
        ("sixteen descriptors", good.as_bytes(), &sixteen),
        ("a pipe for memory", good.as_bytes(), &[fifo.as_fd()]),
        ("memory that can shrink", good.as_bytes(), &[unsealed.as_fd()]),
        ("memory that is too small", good.as_bytes(), &[small.as_fd()]),
        ("random bytes", &[0xa5; 152], &[memory.as_fd()]),
    ] {
        say(&socket, bytes, fds);
        let reply = read_reply(&socket);
        assert_eq!(reply.status, Errno::INVAL.raw_os_error(), "{what}: {}", reply.message());
        assert!(reply.message().contains("; "), "{what}: {} has no remedy", reply.message());
    }
    // A malformed request does not harm the connection.
    say(&socket, good.as_bytes(), &[memory.as_fd()]);
    let reply = read_reply(&socket);
    assert_eq!(reply.status, 0, "{}", reply.message());
    daemon.wait_for("the port whose token was dropped to go", |d| d.ports("vale0").len() == 2);
    until_traffic_flows(&mut a, &mut b, &mut 0);
}

#[test]
fn silent_clients_and_hang_ups_delay_no_other_client() {
    let mut daemon = Daemon::start();
    let before = daemon.get("/v1/status")["descriptors"].as_u64().unwrap();
    let silent: Vec<_> = (0..200).map(|_| connect(daemon.dir())).collect();
    for _ in 0..50 {
        let socket = connect(daemon.dir());
        say(&socket, request("vale0:x").as_bytes(), &[region().as_fd()]);
        // The client is gone before the reply, so the daemon's token reaches no client.
    }
    let waits = |silent: &OwnedFd| {
        let mut byte = [0; 1];
        rustix::net::recv(silent, &mut byte, RecvFlags::DONTWAIT).is_err()
    };
    let port = daemon.open("vale0:p").unwrap();
    assert!(silent.iter().any(waits), "waited until others were given up");
    drop((silent, port));
    daemon.wait_for("everything to be as before", |daemon| {
        daemon.get("/v1/status")["descriptors"].as_u64().unwrap() <= before
            && daemon.get("/v1/switches") == serde_json::json!([])
    });
}

#[test]
fn a_port_costs_three_descriptors_at_most_and_gives_them_back() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0]");
    let used = |daemon: &Daemon| daemon.get("/v1/status")["descriptors"].as_u64().unwrap();
    let before = used(&daemon);
    let ports: Vec<_> = (0..100)
        .map(|i| {
            let name = format!("vale0:p{i}");
            netring::Open::new(&name)
                .slots(8)
                .pages(netring::Pages::Small)
                .directory(daemon.dir())
                .open()
        })
        .map(Result::unwrap)
        .collect();
    daemon.wait_for("connections to close", |daemon| used(daemon) <= before + 300);
    drop(ports);
    daemon.wait_for("descriptors to come back", |daemon| used(daemon) <= before);
}

#[test]
fn a_full_switch_says_so_and_is_started_again_whole() {
    const PORTS: usize = 300;
    let mut daemon = Daemon::start();
    daemon.apply(&format!("[switch.vale0]\nmax_ports = {PORTS}"));
    let open = |daemon: &Daemon, i: usize| {
        let name = format!("vale0:p{i}");
        netring::Open::new(&name)
            .slots(4)
            .pages(netring::Pages::Small)
            .directory(daemon.dir())
            .open()
    };
    let mut ports: Vec<_> = (0..PORTS).map(|i| open(&daemon, i).unwrap()).collect();
    assert_eq!(errno(open(&daemon, PORTS)), Errno::NOSPC);
    harness::kill_process(daemon.data_process("vale0"));
    let (a, b) = ports.split_at_mut(1);
    until_traffic_flows(&mut a[0], &mut b[PORTS - 2], &mut 0);
    assert_eq!(daemon.get("/v1/switches/vale0")["restarts"], 1);
    drop(ports);
    daemon.wait_for("all ports to go", |daemon| daemon.get("/v1/status")["ports"] == 0);
    open(&daemon, 0).unwrap();
}

#[test]
fn only_an_owner_opens_an_owned_port() {
    if !rustix::process::geteuid().is_root() {
        return harness::skip(
            "only_an_owner_opens_an_owned_port",
            "only root may become another user",
        );
    }
    let daemon = Daemon::start_with(&["--group", "65534"]);
    std::fs::set_permissions(daemon.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    daemon.apply(
        "[switch.vale0.port.theirs]\nowner = 65534\n[switch.vale0.port.ours]\nowner = 12345\n\
         [switch.vale1]\nowner = 12345",
    );
    // Other users may be unable to reach the directory where the program was built.
    let program = daemon.dir().join("toklat");
    std::fs::copy(env!("CARGO_BIN_EXE_toklat"), &program).unwrap();
    let as_nobody = |port: &str| {
        let mut command = Command::new(&program);
        command.args(["sink", port, "--duration", "10ms", "--quiet"]).stdin(Stdio::null());
        command.env("TOKLAT_DIR", daemon.dir()).uid(65534).gid(65534);
        let output = loop {
            match command.output() {
                // The child of another test may still hold the copied program open, until that
                // child runs its own program.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now();
                }
                output => break output.unwrap(),
            }
        };
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (good, complaint) = as_nobody("vale0:theirs");
    assert!(good, "{complaint}");
    for port in ["vale0:ours", "vale1:new"] {
        let (good, complaint) = as_nobody(port);
        assert!(!good && complaint.contains("belongs to user 12345"), "{port}: {complaint}");
    }
    let _ours = daemon.open("vale0:ours").unwrap();
    let (good, complaint) = as_nobody("vale0:ours/r");
    assert!(!good && complaint.contains("belongs to"), "{complaint}");
}
