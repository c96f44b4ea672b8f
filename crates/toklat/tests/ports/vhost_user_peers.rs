//! Ports of virtual machines with the front ends that others wrote: DPDK's virtio-user and QEMU.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vm::{Accelerator, Qemu, guest};

use harness::{Daemon, kill_process, skip};

/// How long a front end may take for anything, on a busy machine without KVM.
const PATIENCE: Duration = Duration::from_secs(120);

fn daemon(ports: &[&str]) -> Daemon {
    let daemon = Daemon::start();
    let port = |name: &&str| format!("[switch.vale0.port.{name}]\nkind.vhost_user = {{}}\n");
    daemon.apply(&ports.iter().map(port).collect::<String>());
    daemon
}

fn count(daemon: &Daemon, port: &str, what: &str) -> u64 {
    daemon.counters(port)[what].as_u64().unwrap()
}

fn wait_until(what: &str, daemon: &Daemon, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > PATIENCE {
            let stats = daemon.get("/v1/stats?switch=vale0");
            panic!("no end of waiting for {what}: {stats} {}", daemon.log());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program with its output in a file; killed with the test.
struct Peer {
    child: Child,
    log: PathBuf,
}

impl Peer {
    fn start(mut command: Command, log: PathBuf) -> Self {
        let output = File::create(&log).unwrap();
        command.stdin(Stdio::piped()).stdout(output.try_clone().unwrap()).stderr(output);
        Self { child: command.spawn().unwrap(), log }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    fn says(&mut self, text: &str) {
        let started = Instant::now();
        while !self.said().contains(text) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?} before {text:?}: {}", self.said());
            assert!(started.elapsed() < PATIENCE, "{text:?} never came: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn send(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// DPDK's testpmd as the guests at two ports, which circulate a few frames.
fn testpmd(daemon: &Daemon, ports: [&str; 2], station: u8, packed: bool) -> Peer {
    let mac = |i: u8| format!("02:00:00:00:{station:02x}:{i:02x}");
    let device = |i: u8| {
        let socket = daemon.dir().join(format!("vale0-{}.sock", ports[usize::from(i)]));
        format!(
            "net_virtio_user{i},path={},queues=1,queue_size=256,packed_vq={},mac={}",
            socket.display(),
            u8::from(packed),
            mac(i)
        )
    };
    let mut command = Command::new("dpdk-testpmd");
    command.args(["-l", "0,1", "--no-pci", "--no-huge", "-m", "128", "--no-telemetry"]);
    // Tests run at the same time: each has its own testpmd.
    let test = daemon.dir().file_name().unwrap().to_string_lossy().into_owned();
    command.arg(format!("--file-prefix=toklat{test}-{station}"));
    command.args(["--vdev", &device(0), "--vdev", &device(1), "--", "-i", "--no-lsc-interrupt"]);
    command.args(["--total-num-mbufs=4096", &format!("--eth-peer=0,{}", mac(1))]);
    command.arg(format!("--eth-peer=1,{}", mac(0)));
    let mut peer = Peer::start(command, daemon.dir().join(format!("testpmd{station}.log")));
    peer.says("testpmd> ");
    peer.send("set fwd io");
    peer.send("start tx_first 2");
    peer
}

fn has_testpmd(test: &str) -> bool {
    // The program ends with an error, but not with the one of a missing file.
    let mut command = Command::new("dpdk-testpmd");
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    let found = command.status().is_ok();
    if !found {
        skip(test, "dpdk-testpmd is missing (Debian: dpdk-dev)");
    }
    found
}

/// Makes a peer send frames until they circle: the first frames may come before the queues of the
/// other side run.
fn start_frames(daemon: &Daemon, peer: &mut Peer, ports: [&str; 2]) {
    let before = ports.map(|port| count(daemon, port, "out_frames"));
    let mut tried = Instant::now();
    wait_until("frames to circle", daemon, || {
        if tried.elapsed() > Duration::from_secs(3) {
            peer.send("stop");
            peer.send("start tx_first 2");
            tried = Instant::now();
        }
        ports.iter().zip(before).all(|(port, n)| count(daemon, port, "out_frames") > n + 2000)
    });
}

/// Checks that frames go from both ports to both.
fn frames_flow(daemon: &Daemon, ports: [&str; 2]) {
    let before = ports.map(|port| count(daemon, port, "out_frames"));
    wait_until("frames to flow", daemon, || {
        ports.iter().zip(before).all(|(port, n)| count(daemon, port, "out_frames") > n + 2000)
    });
}

#[test]
fn dpdk_front_ends_do_not_notice_that_the_data_process_is_killed() {
    if !has_testpmd("dpdk_front_ends_do_not_notice_that_the_data_process_is_killed") {
        return;
    }
    for packed in [false, true] {
        let daemon = daemon(&["a", "b"]);
        let mut peer = testpmd(&daemon, ["a", "b"], 1, packed);
        start_frames(&daemon, &mut peer, ["a", "b"]);
        for _ in 0..2 {
            kill_process(daemon.data_process("vale0"));
            wait_until("the data process to be back", &daemon, || {
                daemon.get("/v1/switches/vale0")["state"] == "running"
            });
            // Frames that were in flight may be lost, and then others have to be sent.
            start_frames(&daemon, &mut peer, ["a", "b"]);
        }
        for port in ["a", "b"] {
            assert_eq!(count(&daemon, port, "faults"), 0, "packed: {packed}; {}", daemon.log());
        }
        assert!(!peer.said().contains("disconnect"), "{}", peer.said());
    }
}

#[test]
fn a_dpdk_front_end_that_is_killed_in_full_traffic_costs_others_nothing() {
    if !has_testpmd("a_dpdk_front_end_that_is_killed_in_full_traffic_costs_others_nothing") {
        return;
    }
    let mut daemon = Daemon::start();
    // Each testpmd is a wire between its two ports, so two of them in one segment would be a loop.
    let port = |(name, vlan)| {
        format!(
            "[switch.vale0.port.{name}]\nkind.vhost_user = {{}}\nvlan = {{ access = {vlan} }}\n"
        )
    };
    daemon.apply(&[("a", 1), ("b", 1), ("c", 2), ("d", 2)].map(port).concat());
    let mut stays = testpmd(&daemon, ["a", "b"], 1, false);
    start_frames(&daemon, &mut stays, ["a", "b"]);
    for round in 0..3 {
        let mut dies = testpmd(&daemon, ["c", "d"], 2, round % 2 == 0);
        start_frames(&daemon, &mut dies, ["c", "d"]);
        let drops = |daemon: &Daemon| {
            ["a", "b"].map(|port| {
                (
                    daemon.counters(port)["in_drops"].clone(),
                    daemon.counters(port)["out_drops"].clone(),
                )
            })
        };
        let before = drops(&daemon);
        dies.kill();
        daemon.wait_for("the ports to be vacant", |daemon| {
            daemon.ports("vale0").iter().filter(|(_, state)| state == "vacant").count() == 2
        });
        frames_flow(&daemon, ["a", "b"]);
        assert_eq!(drops(&daemon), before, "the others lost frames");
    }
}

/// A guest in QEMU, whose front end is at `chardev`.
fn qemu(
    daemon: &Daemon,
    name: &str,
    number: u8,
    chardev: &str,
    nic: &str,
    run: &str,
    more: &[&str],
) -> Peer {
    let guest = guest::find().unwrap();
    let (accelerator, _) = Accelerator::choose();
    let mut command = Command::new(Qemu::find(None).unwrap().program);
    command.args([
        "-nodefaults",
        "-no-reboot",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-smp",
        "2",
    ]);
    command.args(["-m", "256M", "-cpu", accelerator.cpu()]);
    command.args(["-object", "memory-backend-memfd,id=memory,size=256M,share=on"]);
    command.arg("-machine").arg(format!("q35,accel={},memory-backend=memory", accelerator.name()));
    let monitor = daemon.dir().join(format!("{name}.monitor"));
    command.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor.display()));
    command.args(["-chardev", &format!("socket,id=socket,{chardev}")]);
    let (mut netdev, mut device) = ("vhost-user,id=net,chardev=socket".to_owned(), nic.to_owned());
    if nic.contains("mq=on") {
        netdev += ",queues=2";
    }
    if accelerator == Accelerator::Tcg {
        // QEMU before 8.1 ends with a fault when vhost-user has MSI-X vectors that KVM does not
        // route.
        device += ",vectors=0";
    }
    command.args(["-netdev", &netdev, "-device"]);
    command
        .arg(format!("virtio-net-pci,netdev=net,romfile=,mac=52:54:00:00:00:{number:02x}{device}"));
    command.arg("-kernel").arg(guest.join("kernel")).arg("-initrd").arg(guest.join("initramfs"));
    command.arg("-append").arg(format!(
        "console=ttyS0 quiet no_timer_check panic=-1 toklat.address=10.0.0.{number}/24 -- run \"{run}\""
    ));
    command.args(more);
    Peer::start(command, daemon.dir().join(format!("{name}.log")))
}

fn has_qemu(test: &str) -> bool {
    let found = Qemu::find(None).map_err(anyhow::Error::from);
    let found = found.and_then(|_| Ok(guest::find()?));
    found.inspect_err(|error| skip(test, &format!("{error:#}"))).is_ok()
}

fn path(socket: &Path) -> String {
    format!("path={}", socket.display())
}

/// Returns the sequence numbers of the answers to a guest's ping.
fn answers(peer: &Peer) -> Vec<u32> {
    let number = |line: &str| line.split("seq=").nth(1)?.split(' ').next()?.parse().ok();
    peer.said().lines().filter_map(number).collect()
}

#[test]
fn qemu_guests_ping_each_other_over_a_killed_data_process() {
    if !has_qemu("qemu_guests_ping_each_other_over_a_killed_data_process") {
        return;
    }
    let daemon = Daemon::start();
    let listens = daemon.dir().join("qemu.sock");
    daemon.apply(&format!(
        "[switch.vale0.port.a]\nkind.vhost_user = {{ path = '{}', client = true }}\n\
         [switch.vale0.port.b]\nkind.vhost_user = {{ queues = 2 }}\n",
        listens.display()
    ));
    let server = format!("{},server=on", path(&listens));
    let mut a = qemu(&daemon, "a", 1, &server, ",packed=on", "sleep 600", &[]);
    let client = path(&daemon.dir().join("vale0-b.sock"));
    let ping = "ping -i 0.1 10.0.0.1";
    let mut b = qemu(&daemon, "b", 2, &client, ",mq=on", ping, &[]);
    a.says("ready");
    b.says("seq=");
    for _ in 0..3 {
        let before = answers(&b).len();
        kill_process(daemon.data_process("vale0"));
        wait_until("ten answers", &daemon, || answers(&b).len() > before + 10);
    }
    let got = answers(&b);
    let lost = *got.last().unwrap() as usize + 1 - got.len();
    assert!(lost <= 3 * 10, "{lost} of {} pings lost: more than a second each time", got.len());
    assert_eq!(count(&daemon, "a", "faults") + count(&daemon, "b", "faults"), 0);
}

/// Sends a line to a QEMU's monitor, and returns the answer.
fn monitor(daemon: &Daemon, name: &str, line: &str) -> String {
    let socket = UnixStream::connect(daemon.dir().join(format!("{name}.monitor"))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // The monitor shows its prompt when it waits for a line, and again when that is done.
    let hear = || {
        let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
        while !said.ends_with(b"(qemu) ") {
            let n = (&socket).read(&mut buffer).unwrap();
            assert!(n > 0, "the monitor hung up: {}", String::from_utf8_lossy(&said));
            said.extend(&buffer[..n]);
        }
        String::from_utf8_lossy(&said).into_owned()
    };
    hear();
    writeln!(&socket, "{line}").unwrap();
    hear()
}

#[test]
fn a_guest_migrates_while_it_is_pinged() {
    if !has_qemu("a_guest_migrates_while_it_is_pinged") {
        return;
    }
    let daemon = daemon(&["a", "b", "c"]);
    let chardev = |port: &str| path(&daemon.dir().join(format!("vale0-{port}.sock")));
    let mut a = qemu(&daemon, "a", 1, &chardev("a"), "", "sleep 600", &[]);
    let mut b = qemu(&daemon, "b", 2, &chardev("b"), "", "ping -i 0.1 10.0.0.1", &[]);
    a.says("ready");
    b.says("seq=10 ");
    let to = format!("unix:{}", daemon.dir().join("migration").display());
    let _c = qemu(&daemon, "c", 1, &chardev("c"), "", "sleep 600", &["-incoming", &to]);
    wait_until("the destination", &daemon, || daemon.dir().join("migration").exists());
    monitor(&daemon, "a", &format!("migrate -d {to}"));
    wait_until("the migration", &daemon, || {
        let status = monitor(&daemon, "a", "info migrate");
        assert!(!status.contains("failed"), "{status}");
        status.contains("completed")
    });
    let before = answers(&b).len();
    wait_until("answers after the migration", &daemon, || answers(&b).len() > before + 20);
    a.kill();
    let before = answers(&b).len();
    wait_until("answers without the first QEMU", &daemon, || answers(&b).len() > before + 5);
    assert!(count(&daemon, "c", "in_frames") > 20, "the guest does not answer from its new place");
    let got = answers(&b);
    let lost = *got.last().unwrap() as usize + 1 - got.len();
    assert!(lost < 30, "{lost} pings lost");
}
