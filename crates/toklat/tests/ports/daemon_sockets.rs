//! Ports over sockets, as QEMU's `-netdev stream` and `-netdev dgram` use them: who listens, who
//! connects, and that either side may go and come back. The tests play QEMU.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use harness::Daemon;
use harness::frames::frame;
use serde_json::json;

/// The time within which a frame that was sent arrives, if it arrives at all.
const MOMENT: Duration = Duration::from_millis(50);

/// Sends a frame until it arrives at the other end, because a connected peer may not be attached
/// yet.
fn crosses(daemon: &mut Daemon, number: u64, from: &mut dyn Peer, to: &mut dyn Peer) {
    let sent = frame(1, 2, number);
    daemon.wait_for("a frame to cross", |_| {
        from.send(&sent);
        to.receive().is_some_and(|got| got == sent)
    });
}

trait Peer {
    fn send(&mut self, frame: &[u8]);
    /// Returns a frame, if one arrives within a moment.
    fn receive(&mut self) -> Option<Vec<u8>>;
}

impl<S: Read + Write> Peer for S {
    fn send(&mut self, frame: &[u8]) {
        let bytes = [&(frame.len() as u32).to_be_bytes(), frame].concat();
        self.write_all(&bytes).unwrap();
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut prefix = [0; 4];
        self.read_exact(&mut prefix).ok()?;
        let mut bytes = vec![0; u32::from_be_bytes(prefix) as usize];
        self.read_exact(&mut bytes).unwrap();
        Some(bytes)
    }
}

/// A datagram socket, and the path of the port's socket.
struct Datagrams<T, A>(T, A);

macro_rules! datagrams {
    ($socket:ty, $address:ty) => {
        impl Peer for Datagrams<$socket, $address> {
            fn send(&mut self, frame: &[u8]) {
                // The kernel refuses this while no peer listens, or while the port is connected to
                // an earlier peer.
                let _ = self.0.send_to(frame, &self.1);
            }

            fn receive(&mut self) -> Option<Vec<u8>> {
                let mut bytes = vec![0; 10_000];
                let len = self.0.recv(&mut bytes).ok()?;
                Some(bytes[..len].to_vec())
            }
        }
    };
}
datagrams!(UnixDatagram, PathBuf);
datagrams!(UdpSocket, SocketAddr);

fn unix(stream: UnixStream) -> UnixStream {
    stream.set_read_timeout(Some(MOMENT)).unwrap();
    stream.set_write_timeout(Some(harness::PATIENCE)).unwrap();
    stream
}

fn tcp(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(MOMENT)).unwrap();
    stream.set_write_timeout(Some(harness::PATIENCE)).unwrap();
    stream
}

fn state(daemon: &Daemon, port: &str) -> String {
    let info = daemon.get(&format!("/v1/switches/vale0/ports/{port}"));
    harness::text(&info["state"]).to_owned()
}

#[test]
fn peers_connect_to_ports_and_ports_to_peers() {
    let mut daemon = Daemon::start();
    let socket = daemon.dir().join("peer.sock");
    daemon.apply(&format!(
        "[switch.vale0.port.server]\nkind = {{ stream = {{}} }}\n\
         [switch.vale0.port.client]\nkind = {{ stream = {{ address = '{}', client = true }} }}",
        socket.display()
    ));
    assert_eq!(state(&daemon, "server"), "vacant");
    let mut a = unix(UnixStream::connect(daemon.dir().join("vale0-server.sock")).unwrap());
    let listener = UnixListener::bind(&socket).unwrap();
    let mut b = unix(listener.accept().unwrap().0);
    crosses(&mut daemon, 1, &mut a, &mut b);
    let info = daemon.get("/v1/switches/vale0/ports/server");
    assert_eq!(info["state"], "attached");
    assert_eq!(info["client"]["pid"], std::process::id());

    // Either port can be closed, and the next one connects.
    drop(a);
    daemon.wait_for("the port to be vacant", |d| state(d, "server") == "vacant");
    a = unix(UnixStream::connect(daemon.dir().join("vale0-server.sock")).unwrap());
    crosses(&mut daemon, 2, &mut b, &mut a);
    drop(b);
    b = unix(listener.accept().unwrap().0);
    crosses(&mut daemon, 3, &mut a, &mut b);

    // A second peer is turned away, and the first is not disturbed.
    let mut second = unix(UnixStream::connect(daemon.dir().join("vale0-server.sock")).unwrap());
    daemon.wait_for("the end", |_| matches!(second.read(&mut [0; 10]), Ok(0)));
    crosses(&mut daemon, 4, &mut b, &mut a);

    // The supervisor dies: frames keep flowing, and its successor takes over the connections.
    daemon.kill();
    let sent = frame(1, 2, 5);
    a.send(&sent);
    while b.receive().is_none_or(|got| got != sent) {}
    daemon.start_again();
    crosses(&mut daemon, 6, &mut a, &mut b);
    assert_eq!(state(&daemon, "server"), "attached");
    drop(a);
    daemon.wait_for("the port to be vacant", |d| state(d, "server") == "vacant");
    a = unix(UnixStream::connect(daemon.dir().join("vale0-server.sock")).unwrap());
    crosses(&mut daemon, 7, &mut a, &mut b);
    assert_eq!(daemon.ask("DELETE", "/v1/switches/vale0/ports/server", &json!(null)).0, 204);
    assert!(!daemon.dir().join("vale0-server.sock").exists());
}

#[test]
fn streams_outlive_a_data_process() {
    let mut daemon = Daemon::start();
    let socket = daemon.dir().join("peer.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    daemon.apply(&format!(
        "[switch.vale0.port.client]\nkind = {{ stream = {{ address = '{}', client = true }} }}\n\
         [switch.vale0.port.server]\nkind = {{ stream = {{}} }}",
        socket.display()
    ));
    let mut b = unix(listener.accept().unwrap().0);
    let mut a = unix(UnixStream::connect(daemon.dir().join("vale0-server.sock")).unwrap());
    crosses(&mut daemon, 1, &mut a, &mut b);
    // The data process dies between the halves of a frame.
    let sent = frame(1, 2, 2);
    let bytes = [&64u32.to_be_bytes(), &sent[..]].concat();
    a.write_all(&bytes[..30]).unwrap();
    std::thread::sleep(MOMENT);
    harness::kill_process(daemon.data_process("vale0"));
    a.write_all(&bytes[30..]).unwrap();
    daemon.wait_for("the frame", |_| b.receive().is_some_and(|got| got == sent));
    for number in 3..7 {
        crosses(&mut daemon, number, &mut b, &mut a);
        // The data process dies while it sleeps. If it died within a call of the stream's, its
        // successor would have to end the connection.
        std::thread::sleep(MOMENT);
        harness::kill_process(daemon.data_process("vale0"));
        daemon.wait_for("the next one", |d| d.get("/v1/switches/vale0")["restarts"] == number - 1);
    }
    crosses(&mut daemon, 7, &mut a, &mut b);
}

#[test]
fn peers_may_be_on_tcp_of_this_machine() {
    let mut daemon = Daemon::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Another process could take the port number meanwhile, but none does.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    daemon.apply(&format!(
        "[switch.vale0.port.server]\nkind = {{ stream = {{ address = '{free}' }} }}\n\
         [switch.vale0.port.client]\nkind = {{ stream = {{ address = '{}', client = true }} }}",
        listener.local_addr().unwrap()
    ));
    let (mut a, mut b) =
        (tcp(TcpStream::connect(free).unwrap()), tcp(listener.accept().unwrap().0));
    crosses(&mut daemon, 1, &mut a, &mut b);
    let kind = json!({ "stream": { "address": "192.0.2.1:5000" } });
    let body = json!({ "name": "far", "kind": kind });
    let (status, refused) = daemon.ask("POST", "/v1/switches/vale0/ports", &body);
    assert_eq!((status, &refused["error"]), (400, &json!("bad_request")), "{refused}");
}

/// Objective: a port that cannot connect, because its peer is missing or its socket is not
/// permitted, reports that in `port show`, in the log and in metrics until it is connected.
#[test]
fn a_port_that_cannot_connect_says_why_and_since_when() {
    let mut daemon = Daemon::start();
    let path = daemon.dir().join("away.sock");
    daemon.apply(&format!(
        "[switch.vale0.port.up]\nkind = {{ stream = {{ address = '{}', client = true }} }}",
        path.display()
    ));
    let why = |daemon: &Daemon| {
        let info = daemon.get("/v1/switches/vale0/ports/up");
        info["unconnected"].as_str().unwrap_or_default().to_owned()
    };
    daemon.wait_for("the reason", |daemon| why(daemon).contains("No such file"));
    let shown = daemon.done(&["port", "show", "vale0:up"]);
    let expected = format!("waiting: cannot connect to {}: No such file", path.display());
    assert!(shown.contains(&expected), "{shown}");
    let page = daemon.get("/metrics");
    let metric = "toklat_port_unconnected_seconds{switch=\"vale0\",port=\"up\"}";
    assert!(harness::text(&page).contains(metric));
    assert_eq!(daemon.log().matches("cannot connect").count(), 1, "{}", daemon.log());
    let listener = UnixListener::bind(&path).unwrap();
    let _peer = listener.accept().unwrap();
    daemon.wait_for("the connection", |daemon| state(daemon, "up") == "attached");
    assert_eq!(why(&daemon), "");
}

/// Objective: a TCP peer has no user, so it may not open a port that has an owner.
#[test]
fn a_port_with_an_owner_refuses_tcp() {
    let mut daemon = Daemon::start();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let own = rustix::process::geteuid().as_raw();
    daemon.apply(&format!(
        "[switch.vale0.port.mine]\nowner = {own}\nkind = {{ stream = {{ address = '{free}' }} }}"
    ));
    let mut stranger = TcpStream::connect(free).unwrap();
    let frame = [0, 0, 0, 60].into_iter().chain(frame(1, 2, 3)).collect::<Vec<u8>>();
    // The daemon may hang up before the stranger has spoken.
    let _ = stranger.write_all(&frame);
    let ended = stranger.read(&mut [0; 64]);
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert_eq!(state(&daemon, "mine"), "vacant");
    assert_eq!(daemon.counters("mine")["in_frames"], 0);
    daemon.wait_for("the reason", |daemon| daemon.log().contains("belongs to user"));
}

#[test]
fn datagrams_find_their_peer_whenever_it_comes() {
    let mut daemon = Daemon::start();
    let [local, remote] = ["port.sock", "peer.sock"].map(|name| daemon.dir().join(name));
    let free = || UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (udp_local, udp) = (free(), UdpSocket::bind("127.0.0.1:0").unwrap());
    daemon.apply(&format!(
        "[switch.vale0.port.unix]\nkind = {{ dgram = {{ local = '{}', remote = '{}' }} }}\n\
         [switch.vale0.port.udp]\nkind = {{ dgram = {{ local = '{udp_local}', remote = '{}' }} }}",
        local.display(),
        remote.display(),
        udp.local_addr().unwrap()
    ));
    udp.set_read_timeout(Some(MOMENT)).unwrap();
    let mut b = Datagrams(udp, udp_local);
    let peer = || {
        let peer = UnixDatagram::bind(&remote).unwrap();
        peer.set_read_timeout(Some(MOMENT)).unwrap();
        Datagrams(peer, local.clone())
    };
    let mut a = peer();
    crosses(&mut daemon, 1, &mut a, &mut b);
    crosses(&mut daemon, 2, &mut b, &mut a);
    drop(a);
    std::fs::remove_file(&remote).unwrap();
    a = peer();
    crosses(&mut daemon, 3, &mut b, &mut a);
    // The socket outlives its data process.
    harness::kill_process(daemon.data_process("vale0"));
    crosses(&mut daemon, 4, &mut b, &mut a);
    crosses(&mut daemon, 5, &mut a, &mut b);
    assert_eq!(daemon.ask("DELETE", "/v1/switches/vale0/ports/unix", &json!(null)).0, 204);
    assert!(!local.exists());
}
