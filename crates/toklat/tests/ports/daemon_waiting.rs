//! Ports whose objects others delete: they wait, and come back with their objects.

use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};

use harness::frames::frame;
use harness::namespace::Namespace;
use harness::{Daemon, skip};

/// A port, its kind with `@` for the directory of objects, and a word of the reason why it waits.
const PORTS: [(&str, &str, &str); 11] = [
    ("tap", "{ tap = { ifname = 'tktap0', netns = '@/netns' } }", "netns is gone"),
    ("interface", "{ interface = { ifname = 'tkif0', netns = '@/netns' } }", "netns is gone"),
    (
        "tunnel",
        "{ vxlan = { vni = 9, local = '10.99.0.1', peers = ['10.99.0.2'], netns = '@/netns' } }",
        "netns is gone",
    ),
    ("reader", "{ pcap_read = { path = '@/in.pcap' } }", "/in.pcap"),
    ("writer", "{ pcap_write = { path = '@/out.pcap' } }", "/out.pcap"),
    ("stream", "{ stream = { address = '@/stream.sock' } }", "/stream.sock"),
    ("vhost", "{ vhost_user = { path = '@/vhost.sock' } }", "/vhost.sock"),
    ("vfio", "{ vfio_user = { path = '@/vfio.sock', nic = { model = '82574l' } } }", "/vfio.sock"),
    ("dgram", "{ dgram = { local = '@/dgram.sock', remote = '@/remote.sock' } }", "dgram.sock"),
    ("client", "{ stream = { address = '@/peer.sock', client = true } }", "/peer.sock"),
    ("front", "{ vhost_user = { path = '@/qemu.sock', client = true } }", "/qemu.sock"),
];

/// What the ports are attached to.
struct Objects {
    dir: PathBuf,
    namespace: Namespace,
    _listeners: [UnixListener; 2],
    _remote: UnixDatagram,
}

impl Objects {
    fn make(dir: &Path) -> Result<Self, &'static str> {
        let namespace = Namespace::new()?;
        std::fs::create_dir(dir).unwrap();
        let pair = "ip link add tkif0 type veth peer name tkif1 && ip link set tkif1 up";
        namespace.run(&["sh", "-c", pair]);
        namespace.run(&["ip", "addr", "add", "10.99.0.1/24", "dev", "tkif0"]);
        namespace.run(&["ip", "link", "set", "tkif0", "up"]);
        std::fs::write(dir.join("in.pcap"), a_capture()).unwrap();
        let listen = |name: &str| UnixListener::bind(dir.join(name)).unwrap();
        let _listeners = ["peer.sock", "qemu.sock"].map(listen);
        let _remote = UnixDatagram::bind(dir.join("remote.sock")).unwrap();
        symlink(format!("/proc/{}/ns/net", namespace.id()), dir.join("netns")).unwrap();
        Ok(Self { dir: dir.into(), namespace, _listeners, _remote })
    }

    fn remove(self) {
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

/// A capture of one frame: magic, version 2.4, Ethernet; then time and lengths.
fn a_capture() -> Vec<u8> {
    let head = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1, 0, 0, 64, 64];
    head.iter().flat_map(|word| word.to_le_bytes()).chain(frame(1, 2, 1)).collect()
}

/// A switch with all ports, whose objects are in `dir`.
fn all_ports(dir: &Path) -> String {
    let port = |(port, kind, _): &(&str, &str, &str)| {
        format!("[switch.vale0.port.{port}]\nkind = {kind}\n")
    };
    PORTS.iter().map(port).collect::<String>().replace('@', dir.to_str().unwrap())
}

/// The port's state, and the reason for it.
fn state(daemon: &Daemon, port: &str) -> (String, String) {
    let info = daemon.get(&format!("/v1/switches/vale0/ports/{port}"));
    let text = |field: &str| info[field].as_str().unwrap_or_default().to_owned();
    (text("state"), text("unconnected") + &text("failure"))
}

fn until_back(daemon: &mut Daemon) {
    for (port, ..) in PORTS {
        let expected = match port {
            "stream" | "vhost" | "vfio" => "vacant",
            _ => "attached",
        };
        daemon.wait_for(&format!("{port} to be there"), |daemon| {
            state(daemon, port) == (expected.to_owned(), String::new())
        });
    }
}

fn until_waiting(daemon: &mut Daemon) {
    for (port, _, word) in PORTS {
        daemon.wait_for(&format!("{port} to wait"), |daemon| {
            let (state, why) = state(daemon, port);
            state == "waiting" && why.contains(word)
        });
    }
}

/// Objective: a port of any kind that is bound to an object waits while the object is gone, says
/// why, and comes back with it.
///
/// Steps: remove the objects of ports of all such kinds, and make them again, twice.
#[test]
fn ports_of_all_kinds_wait_for_their_objects_and_come_back_with_them() {
    let test = "ports_of_all_kinds_wait_for_their_objects_and_come_back_with_them";
    let mut daemon = Daemon::start();
    let dir = daemon.dir().join("objects");
    let mut objects = match Objects::make(&dir) {
        Ok(objects) => objects,
        Err(why) => return skip(test, why),
    };
    daemon.apply(&all_ports(&dir));
    for _ in 0..2 {
        until_back(&mut daemon);
        objects.remove();
        until_waiting(&mut daemon);
        objects = Objects::make(&dir).unwrap();
    }
    until_back(&mut daemon);
    assert!(dir.join("out.pcap").exists() && dir.join("vhost.sock").exists());
    assert!(objects.namespace.run(&["ip", "link", "show", "tktap0"]).contains("UP"));
}

/// Objective: a port whose object was removed while no supervisor ran waits, as if one had run, and
/// comes back with its object.
///
/// Steps: kill the supervisor; remove the objects of ports of all kinds; start it; make them again.
#[test]
fn ports_wait_for_objects_that_went_while_no_supervisor_ran() {
    let test = "ports_wait_for_objects_that_went_while_no_supervisor_ran";
    let mut daemon = Daemon::start();
    let dir = daemon.dir().join("objects");
    let objects = match Objects::make(&dir) {
        Ok(objects) => objects,
        Err(why) => return skip(test, why),
    };
    daemon.apply(&all_ports(&dir));
    until_back(&mut daemon);
    daemon.kill();
    objects.remove();
    daemon.start_again();
    until_waiting(&mut daemon);
    let _objects = Objects::make(&dir).unwrap();
    until_back(&mut daemon);
}

/// Objective: a start with a changed topology file does what it can: a port whose object is missing
/// waits, with the reason, and what the file names besides is there.
#[test]
fn regression_a_start_adds_what_it_can_of_a_changed_topology_file() {
    let place = tempfile::tempdir().unwrap();
    let (file, capture) = (place.path().join("net.toml"), place.path().join("in.pcap"));
    std::fs::write(&file, "[switch.vale0.port.old]\n").unwrap();
    let mut daemon = Daemon::start_with(&["--topology", file.to_str().unwrap()]);
    // What the daemon keeps is saved with the first change.
    daemon.done(&["switch", "add", "vale2"]);
    daemon.kill();
    let kind = format!("{{ pcap_read = {{ path = {capture:?} }} }}");
    let more = "[switch.vale0.port.new]\nkind = \"null\"\n[switch.vale1.port.p]\n";
    let net = format!("[switch.vale0.port.old]\n[switch.vale0.port.reader]\nkind = {kind}\n{more}");
    std::fs::write(&file, net).unwrap();
    daemon.start_again();
    let names = |daemon: &Daemon| -> Vec<_> {
        daemon.ports("vale0").into_iter().map(|(name, _)| name).collect()
    };
    daemon.wait_for("the file to be applied", |daemon| names(daemon).len() == 3);
    daemon.wait_for("the other switch", |daemon| {
        daemon.ask("GET", "/v1/switches/vale1/ports/p", &serde_json::Value::Null).0 == 200
    });
    let (is, why) = state(&daemon, "reader");
    assert!(["failed", "waiting"].contains(&&*is) && why.contains("in.pcap"), "{is}: {why}");
    assert_eq!(state(&daemon, "new").0, "attached");
    assert!(daemon.log().contains("not done, the rest goes on"), "{}", daemon.log());
    std::fs::write(&capture, a_capture()).unwrap();
    daemon.wait_for("the reader", |daemon| state(daemon, "reader").0 == "attached");
}

/// Objective: a tap that is deleted in a namespace that stays is made again.
#[test]
fn a_tap_that_is_deleted_is_made_again() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return skip("a_tap_that_is_deleted_is_made_again", why),
    };
    let mut daemon = Daemon::start();
    let kind = format!("{{ tap = {{ ifname = 'tktap0', netns = '{}' }} }}", namespace.id());
    daemon.apply(&format!("[switch.vale0.port.tap]\nkind = {kind}"));
    let number = || {
        let link = namespace.run(&["ip", "-o", "link", "show", "tktap0"]);
        link.split_once(':').and_then(|(number, _)| number.parse::<u32>().ok())
    };
    let first = number().unwrap();
    namespace.run(&["ip", "link", "del", "tktap0"]);
    daemon.wait_for("another tap", |_| number().is_some_and(|number| number != first));
    daemon.wait_for("the port", |daemon| state(daemon, "tap").0 == "attached");
    assert!(daemon.log().contains("tap interface tktap0 is gone"), "{}", daemon.log());
}
