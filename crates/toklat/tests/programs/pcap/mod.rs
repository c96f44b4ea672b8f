//! Programs that know libpcap and packet sockets, unmodified, on ports: `toklat run -- PROGRAM`.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use harness::stack::Stack;
use harness::{Daemon, end_of, said, skip};
use netring::{Interest, Port};
use toklat::tools::pcap;

/// True if a program is here; else the test is skipped.
fn has(test: &str, program: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|place| place.join(program).is_file());
    if !found {
        skip(test, &format!("{program} is missing"));
    }
    found
}

/// A broadcast frame of a station with a number in it.
fn frame(number: u8) -> [u8; 60] {
    let mut frame = [number; 60];
    frame[..14].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 0x88, 0xb5]);
    frame
}

fn send(port: &mut Port, frame: &[u8]) {
    assert!(port.send(8).push(frame));
    port.flush().unwrap();
}

/// The next frame.
fn receive(port: &mut Port) -> Vec<u8> {
    loop {
        let frame = port.receive(1).next().map(|frame| frame.to_vec());
        port.flush().unwrap();
        if let Some(frame) = frame {
            return frame;
        }
        assert!(port.wait(Interest::READ, Some(harness::PATIENCE)).unwrap().readable, "no frame");
    }
}

/// Waits until a client has the port open.
fn wait_for_port(daemon: &mut Daemon, port: &str) {
    daemon.wait_for("the program's port", |daemon| {
        daemon.ports("vale0").iter().any(|(name, state)| name == port && state == "attached")
    });
}

/// Waits until tcpdump says that it listens: then its port is open and its filter is set, which
/// discards earlier frames.
fn wait_until_it_listens(child: &mut Child) {
    let errors = child.stderr.as_mut().unwrap();
    let mut said = Vec::new();
    // This reads byte by byte: the rest of the output is for other readers.
    while !said.windows(12).any(|part| part == b"listening on") || !said.ends_with(b"\n") {
        let mut byte = [0];
        errors.read_exact(&mut byte).unwrap_or_else(|_| panic!("{}", said.escape_ascii()));
        said.extend(byte);
    }
}

/// How many frames a file has.
fn frames_of(file: &Path) -> usize {
    std::fs::File::open(file).ok().and_then(|file| pcap::read(file).ok()).map_or(0, |all| all.len())
}

#[test]
fn tcpdump_writes_what_passes_its_filter_and_is_listed() {
    let test = "tcpdump_writes_what_passes_its_filter_and_is_listed";
    if !has(test, "tcpdump") {
        return;
    }
    let daemon = Daemon::start();
    let mut port = daemon.open("vale0:peer").unwrap();
    let file = daemon.dir().join("written.pcap");
    let written = file.to_str().unwrap();
    let dump = ["--", "tcpdump", "-i", "vale0:dump", "-Z", "root", "-c", "3", "-w", written];
    let mut child = daemon.start_run(&[&dump[..], &["ether[14] > 4"]].concat());
    wait_until_it_listens(&mut child);
    let list = said(&daemon.output_of(&["--", "tcpdump", "-D"]));
    assert!(list.contains("vale0:dump"), "{list}");
    (0..8).for_each(|number| send(&mut port, &frame(number)));
    let end = end_of(child);
    assert!(end.status.success(), "{end:?}");
    assert_eq!(frames_of(&file), 3);
    assert!(said(&end).contains("3 packets captured"), "{end:?}");
}

#[test]
fn tcpdump_sees_what_another_program_sends_and_receives() {
    let test = "tcpdump_sees_what_another_program_sends_and_receives";
    if !has(test, "tcpdump") {
        return;
    }
    let daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut child = daemon.start_run(&["--", "tcpdump", "-nn", "-e", "-i", "vale0:a", "-c", "2"]);
    wait_until_it_listens(&mut child);
    send(&mut a, &frame(1));
    let mut answer = frame(2);
    answer[..12].copy_from_slice(&[2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 8]);
    receive(&mut b);
    send(&mut b, &answer);
    let text = said(&end_of(child));
    assert!(text.contains("02:00:00:00:00:07 > ff:ff:ff:ff:ff:ff"), "{text}");
    assert!(text.contains("02:00:00:00:00:08 > 02:00:00:00:00:07"), "{text}");
}

/// Objective: `inbound` and `outbound` are seen from the port, as at a network card.
#[test]
fn tcpdump_tells_what_another_program_sends_from_what_it_receives() {
    let test = "tcpdump_tells_what_another_program_sends_from_what_it_receives";
    if !has(test, "tcpdump") {
        return;
    }
    let daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let dump = |filter: &'static str| {
        let args = ["--", "tcpdump", "-nn", "-e", "-i", "vale0:a", "-c", "1", filter];
        let mut child = daemon.start_run(&args);
        wait_until_it_listens(&mut child);
        child
    };
    let [inbound, outbound] = ["inbound", "outbound"].map(dump);
    send(&mut a, &frame(1));
    receive(&mut b);
    let mut answer = frame(2);
    answer[..12].copy_from_slice(&[2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 8]);
    send(&mut b, &answer);
    let sent = said(&end_of(outbound));
    assert!(sent.contains("02:00:00:00:00:07 > ff:ff:ff:ff:ff:ff"), "{sent}");
    let received = said(&end_of(inbound));
    assert!(received.contains("02:00:00:00:00:08 > 02:00:00:00:00:07"), "{received}");
}

/// Objective: what was set on a packet socket before it is bound to a port works there, or the
/// socket is not bound.
#[test]
fn options_of_packet_sockets_are_carried_over_or_refused() {
    let test = "options_of_packet_sockets_are_carried_over_or_refused";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root has packet sockets of the kernel");
    }
    let daemon = Daemon::start();
    let mut port = daemon.open("vale0:peer").unwrap();
    let script = r#"
import socket, struct, ctypes, errno
def fresh():
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
def refused(call):
    try: call()
    except OSError as error: return errno.errorcode[error.errno]
    return "done"
def attach(s, *code):
    code = b"".join(struct.pack("HBBI", *i) for i in code)
    kept = ctypes.create_string_buffer(code)
    s.setsockopt(1, 26, struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(kept)))
RING, FANOUT, VERSION, LOAD = 5, 18, 10, 0x20
def set_up(name, change):
    s = fresh()
    change(s)
    print(name, refused(lambda: s.bind(("vale0.me", 0))), flush=True)
    return s
set_up("ring", lambda s: s.setsockopt(263, RING, struct.pack("IIII", 4096, 4, 2048, 8)))
set_up("fanout", lambda s: s.setsockopt(263, FANOUT, struct.pack("I", 7)))
set_up("cpu", lambda s: attach(s, (LOAD, 0, 0, 0xfffff024), (0x16, 0, 0, 0)))
def usual(s):
    s.setsockopt(263, VERSION, struct.pack("I", 2))
    s.settimeout(None)
    s.setsockopt(1, 20, struct.pack("qq", 30, 0))
    attach(s, (0x30, 0, 0, 14), (0x15, 0, 1, 5), (6, 0, 0, 20), (6, 0, 0, 0))
s = set_up("usual", usual)
print("ring later", refused(lambda: s.setsockopt(263, RING, struct.pack("IIII", 4096, 4, 2048, 8))))
print("timeout", struct.unpack("qq", s.getsockopt(1, 20, 16))[0], flush=True)
print("kept", len(s.recv(2000)), flush=True)
attach(s, (0x28, 0, 0, 0xfffff004), (0x15, 0, 1, 1), (6, 0, 0, 30), (6, 0, 0, 0))
print("ready", flush=True)
print("broadcast", len(s.recv(2000)), flush=True)
"#;
    let mut child = daemon.start_run(&["--", "/usr/bin/python3", "-c", script]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for line in ["ring ENOTSUP", "fanout ENOTSUP", "cpu ENOTSUP", "usual done"] {
        assert_eq!(lines.next().as_deref(), Some(line));
    }
    assert_eq!(lines.next().as_deref(), Some("ring later ENOTSUP"));
    assert_eq!(lines.next().as_deref(), Some("timeout 30"));
    (4..6).for_each(|number| send(&mut port, &frame(number)));
    assert_eq!(lines.next().as_deref(), Some("kept 20"), "what the filter says of frame 5");
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let mut other = frame(6);
    other[0] = 2;
    send(&mut port, &other);
    send(&mut port, &frame(7));
    assert_eq!(lines.next().as_deref(), Some("broadcast 30"));
    let text = said(&end_of(child));
    assert!(text.contains("SKF_AD_CPU") && text.contains("PACKET_RX_RING"), "{text}");
}

#[test]
fn dumpcap_writes_a_file() {
    if !has("dumpcap_writes_a_file", "dumpcap") {
        return;
    }
    let mut daemon = Daemon::start();
    let mut port = daemon.open("vale0:peer").unwrap();
    let file = daemon.dir().join("dumpcap.pcap");
    let written = file.to_str().unwrap();
    let child =
        daemon.start_run(&["--", "dumpcap", "-i", "vale0:d", "-P", "-c", "4", "-w", written]);
    wait_for_port(&mut daemon, "d");
    (0..4).for_each(|number| send(&mut port, &frame(number)));
    let end = end_of(child);
    assert!(end.status.success(), "{end:?}");
    assert_eq!(frames_of(&file), 4);
}

/// A stack that answers at 10.0.0.2, and has port 80 open.
fn stack(daemon: &Daemon) -> Stack {
    let port = daemon.open("vale0:peer").unwrap();
    Stack::start(port, Ipv4Addr::new(10, 0, 0, 2), b"page".to_vec())
}

#[test]
fn arping_is_answered() {
    if !has("arping_is_answered", "arping") {
        return;
    }
    let daemon = Daemon::start();
    let _stack = stack(&daemon);
    let end = daemon
        .output_of(&["--", "arping", "-c", "2", "-S", "10.0.0.9", "-i", "vale0.me", "10.0.0.2"]);
    assert!(end.status.success(), "{end:?}");
    assert!(said(&end).contains("2 packets received"), "{end:?}");
}

#[test]
fn nmap_scans_with_frames_of_its_own() {
    if !has("nmap_scans_with_frames_of_its_own", "nmap") {
        return;
    }
    let daemon = Daemon::start();
    let _stack = stack(&daemon);
    let scan = ["--", "nmap", "--send-eth", "-n", "-sS", "-p", "80,81", "10.0.0.2"];
    let end = daemon.output_of(&[&["--port", "vale0:me=10.0.0.9/24"], &scan[..]].concat());
    let text = said(&end);
    assert!(text.contains("80/tcp open") && text.contains("81/tcp closed"), "{text}");
    assert!(text.contains("MAC Address: 02:00:00:00:01:02"), "{text}");
}

#[test]
fn scapy_sends_asks_and_sniffs() {
    let test = "scapy_sends_asks_and_sniffs";
    let python = "/usr/bin/python3";
    let probe = Command::new(python).args(["-c", "import scapy.all"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        return skip(test, "scapy for /usr/bin/python3 is missing");
    }
    let daemon = Daemon::start();
    let _stack = stack(&daemon);
    let script = r#"
from scapy.all import *
conf.verb = 0
port = "vale0.me"
ask = Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(pdst="10.0.0.2", psrc="10.0.0.9")
answer = srp1(ask, iface=port, timeout=30)
print("is at", answer[ARP].hwsrc)
sniffer = AsyncSniffer(iface=port, filter="arp[6:2] = 2", count=2, timeout=30)
sniffer.start()
import time
while not (hasattr(sniffer, "running") and sniffer.running): time.sleep(0.01)
for _ in range(100):
    if not sniffer.thread.is_alive(): break
    sendp(ask, iface=port)
    time.sleep(0.05)
sniffer.join()
print("sniffed", len(sniffer.results), all(p[ARP].op == 2 for p in sniffer.results))
"#;
    let end = daemon.output_of(&["--", python, "-c", script]);
    let text = said(&end);
    assert!(text.contains("is at 02:00:00:00:01:02"), "{text}");
    assert!(text.contains("sniffed 2 True"), "{text}");
}

#[test]
fn tcpreplay_sends_a_file() {
    if !has("tcpreplay_sends_a_file", "tcpreplay") {
        return;
    }
    let daemon = Daemon::start();
    let mut port = daemon.open("vale0:peer").unwrap();
    let file = daemon.dir().join("replayed.pcap");
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    [0, 0, 65535, 1_u32].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    for number in 0..20 {
        [1, u32::from(number), 60, 60].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(frame(number));
    }
    std::fs::write(&file, bytes).unwrap();
    let end =
        daemon.output_of(&["--", "tcpreplay", "-t", "-i", "vale0.me", file.to_str().unwrap()]);
    assert!(end.status.success(), "{end:?}");
    (0..20).for_each(|number| assert_eq!(receive(&mut port), frame(number)));
}

/// `tests/programs/pcap/rules.c`, compiled.
fn rules(daemon: &Daemon) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/pcap/rules.c");
    let program = daemon.dir().join("rules");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-w", "-o"]).arg(&program).arg(source).arg("-lpcap");
    let built = cc.output().expect("a C compiler, cc");
    let text = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(built.status.success() || text.contains("pcap/pcap.h"), "{text}");
    built.status.success().then_some(program)
}

/// Runs a rule to its end, and checks that it succeeds.
fn check_rule(rule: &[&str]) {
    let daemon = Daemon::start();
    let Some(program) = rules(&daemon) else { return skip(rule[0], "libpcap-dev is missing") };
    let file = daemon.dir().join("file.pcap");
    let mut run = vec!["--", program.to_str().unwrap()];
    run.extend(rule);
    if rule == ["files"] {
        run.push(file.to_str().unwrap());
    }
    let end = daemon.output_of(&run);
    assert!(end.status.success(), "{rule:?}: {end:?}");
}

macro_rules! rules {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check_rule(&[stringify!($name)]);
        }
    )*};
}

rules! { states errors filters metadata loops signals selectable files lists shared forks }

/// Starts a rule that runs until its port is closed, and returns it with the rest of its output.
fn start_waiting(daemon: &Daemon, program: &Path) -> (Child, impl BufRead + use<>) {
    let mut child = daemon.start_run(&["--", program.to_str().unwrap(), "waits"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "ready");
    (child, lines)
}

#[test]
fn a_program_that_is_killed_frees_its_port() {
    let mut daemon = Daemon::start();
    let Some(program) = rules(&daemon) else {
        return skip("a_program_that_is_killed_frees_its_port", "libpcap-dev is missing");
    };
    let (mut child, _lines) = start_waiting(&daemon, &program);
    child.kill().unwrap();
    child.wait().unwrap();
    daemon.wait_for("the switch to go", |daemon| {
        daemon.get("/v1/switches").as_array().is_some_and(Vec::is_empty)
    });
}

#[test]
fn a_capture_whose_port_is_removed_ends_with_an_error() {
    let daemon = Daemon::start();
    let Some(program) = rules(&daemon) else {
        let test = "a_capture_whose_port_is_removed_ends_with_an_error";
        return skip(test, "libpcap-dev is missing");
    };
    let (mut child, mut lines) = start_waiting(&daemon, &program);
    daemon.done(&["port", "rm", "vale0:a"]);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("removed"), "{line}");
    assert!(harness::wait(&mut child, harness::PATIENCE).is_some());
}

#[test]
fn what_a_program_sent_last_arrives() {
    let daemon = Daemon::start();
    let Some(program) = rules(&daemon) else {
        return skip("what_a_program_sent_last_arrives", "libpcap-dev is missing");
    };
    // Nothing reads while the program sends: the ring has room for all its frames.
    let open = netring::Open::new("vale0:peer").slots(1024).directory(daemon.dir());
    let mut port = open.open().unwrap();
    let end = daemon.output_of(&["--", program.to_str().unwrap(), "leaves"]);
    assert!(end.status.success(), "{end:?}");
    (0..500).for_each(|_| assert_eq!(receive(&mut port)[12..14], [0x88, 0xb5]));
}

/// True if this process may make namespaces and taps; else the test is skipped.
fn may_have_namespaces(test: &str) -> bool {
    let probe = ["--net", "sh", "-c", "ip tuntap add probe mode tap"];
    let made = Command::new("unshare").args(probe).output();
    let may = made.is_ok_and(|made| made.status.success());
    if !may {
        skip(test, "network namespaces or taps are refused here");
    }
    may
}

#[test]
fn a_static_program_reaches_the_switch_by_a_tap_of_its_namespace() {
    let test = "a_static_program_reaches_the_switch_by_a_tap_of_its_namespace";
    if !may_have_namespaces(test) {
        return;
    }
    let daemon = Daemon::start();
    let _stack = stack(&daemon);
    let source = daemon.dir().join("fetch.c");
    std::fs::write(&source, FETCH).unwrap();
    let program = daemon.dir().join("fetch");
    let mut cc = Command::new("cc");
    let built = cc.args(["-static", "-w", "-o"]).arg(&program).arg(&source).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let program = program.to_str().unwrap();
    let refused = daemon.output_of(&["--", program]);
    assert!(said(&refused).contains("--netns"), "{refused:?}");
    let run = ["--netns", "--port", "vale0:me=10.0.0.9/24", "--", program];
    let end = daemon.output_of(&run);
    assert!(end.status.success() && said(&end).contains("page"), "{end:?}");
}

/// Fetches a page from port 80 of 10.0.0.2.
const FETCH: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void)
{
	struct sockaddr_in to = {AF_INET, htons(80), {htonl(0x0a000002)}};
	char text[4096];
	int fd = socket(AF_INET, SOCK_STREAM, 0), got;
	if (connect(fd, (void *)&to, sizeof(to)))
		return perror("connect"), 1;
	if (write(fd, "GET / HTTP/1.0\r\n\r\n", 18) != 18)
		return 2;
	while ((got = read(fd, text, sizeof(text))) > 0)
		fwrite(text, 1, got, stdout);
	return 0;
}
"#;

#[test]
fn a_program_in_a_namespace_ends_as_it_ended_and_its_port_goes() {
    let test = "a_program_in_a_namespace_ends_as_it_ended_and_its_port_goes";
    if !may_have_namespaces(test) {
        return;
    }
    let mut daemon = Daemon::start();
    let script = "ip -o link show vale0.me && exit 7";
    let end = daemon.output_of(&["--netns", "--port", "vale0:me", "--", "sh", "-c", script]);
    assert_eq!(end.status.code(), Some(7), "{end:?}");
    assert!(said(&end).contains("vale0.me"), "{end:?}");
    daemon.wait_for("the switch to go", |daemon| {
        daemon.get("/v1/switches").as_array().is_some_and(Vec::is_empty)
    });
    let long = "vale0:a-name-that-is-too-long";
    let refused = daemon.output_of(&["--netns", "--port", long, "--", "true"]);
    assert!(said(&refused).contains("15 characters"), "{refused:?}");
}

#[test]
fn an_ordinary_user_needs_no_rights_for_a_namespace() {
    let test = "an_ordinary_user_needs_no_rights_for_a_namespace";
    if !harness::users::may_be_others(test) || !may_have_namespaces(test) {
        return;
    }
    let daemon = Daemon::start_for_all(&[]);
    let run = ["--netns", "--port", "vale0:me=10.0.0.9/24", "--", "sh", "-c", "id -u; ip link"];
    let mut command = daemon.run_program(&run);
    command.uid(65534).gid(harness::users::GROUP);
    let output = command.output().unwrap();
    let text = said(&output);
    if text.contains("user namespaces may be switched off") {
        return skip(test, "user namespaces are switched off here");
    }
    assert!(
        output.status.success() && text.starts_with('0') && text.contains("vale0.me"),
        "{text}"
    );
}

#[test]
fn an_ordinary_user_may_have_packet_sockets_on_ports_alone() {
    let test = "an_ordinary_user_may_have_packet_sockets_on_ports_alone";
    if !harness::users::may_be_others(test) {
        return;
    }
    let daemon = Daemon::start_for_all(&[]);
    let mut port = daemon.open("vale0:peer").unwrap();
    let script = r#"
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
try:
    s.bind(("lo", 0))
except OSError:
    print("not lo")
s.bind(("vale0.me", 0))
print(s.getsockname()[0], flush=True)
s.send(b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + b"x" * 46)
frame, address = s.recvfrom(2000)
print(len(frame), address[0], hex(address[1]), address[2])
"#;
    let mut command = daemon.run_program(&["--", "/usr/bin/python3", "-c", script]);
    command.uid(65534).gid(harness::users::GROUP);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = child.spawn().unwrap();
    assert_eq!(receive(&mut port)[12..15], [0x88, 0xb5, b'x']);
    send(&mut port, &frame(1));
    let text = said(&end_of(child));
    assert!(text.contains("not lo\nvale0.me\n60 vale0.me 0x88b5 1"), "{text}");
}
