//! Captures into several files, and captures by Wireshark, which lists ports as its interfaces.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use harness::frames::{frame, send, until_traffic_flows};
use harness::{Daemon, skip, wait};
use toklat::tools::pcap;

fn frames(file: &Path) -> usize {
    std::fs::File::open(file).ok().and_then(|file| pcap::read(file).ok()).map_or(0, |all| all.len())
}

/// Starts a daemon with a switch and a port.
fn daemon_with_port() -> Daemon {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]\n[switch.other.port.c]");
    daemon
}

/// Sends until the condition is met: a monitor may begin at any time.
fn send_until(daemon: &mut Daemon, what: &str, mut is_met: impl FnMut() -> bool) {
    daemon.wait_for(what, |daemon| {
        daemon.done(&["gen", "vale0:a", "--count", "200", "--size", "1000", "--quiet"]);
        is_met()
    });
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

#[test]
fn a_capture_goes_round_a_ring_of_files() {
    let mut daemon = daemon_with_port();
    let file = daemon.dir().join("ring");
    let options = ["-w", file.to_str().unwrap(), "-C", "1", "-W", "2", "--quiet", "--sleep"];
    let mut cap = daemon.start_tool(&[&["cap", "vale0:a"][..], &options].concat());
    let [first, second] = ["ring0", "ring1"].map(|name| daemon.dir().join(name));
    // A file of a million bytes has fewer than a thousand of these frames.
    let size = |file: &Path| std::fs::metadata(file).map_or(0, |data| data.len());
    send_until(&mut daemon, "the second file", || size(&second) > 0);
    assert!(size(&first) > 1_000_000);
    send_until(&mut daemon, "the first file again", || {
        size(&first) < 900_000 && size(&second) > 1_000_000
    });
    interrupt(&cap);
    assert!(wait(&mut cap, harness::PATIENCE).unwrap().success());
    assert!((900..1000).contains(&frames(&second)) && frames(&first) > 0);
    assert!(!daemon.dir().join("ring2").exists() && !file.exists());
}

#[test]
fn a_capture_ends_after_so_many_files_by_time() {
    let mut daemon = daemon_with_port();
    let file = daemon.dir().join("at-%s");
    let options = ["-w", file.to_str().unwrap(), "-G", "1", "-W", "2", "--quiet", "--sleep"];
    let mut cap = daemon.start_tool(&[&["cap", "vale0:a"][..], &options].concat());
    send_until(&mut daemon, "the end", || cap.try_wait().unwrap().is_some());
    assert!(cap.wait().unwrap().success());
    let names = std::fs::read_dir(daemon.dir()).unwrap().map(|file| file.unwrap().path());
    let files: Vec<_> = names.filter(|path| path.to_str().unwrap().contains("/at-1")).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(files.iter().all(|file| frames(file) > 0));
}

/// The program by the name that Wireshark's directory has.
fn extcap(daemon: &Daemon, args: &[&str]) -> Command {
    let program = daemon.dir().join("toklat-extcap");
    let _ = symlink(env!("CARGO_BIN_EXE_toklat"), &program);
    let mut command = Command::new(program);
    command.args(args).env("TOKLAT_DIR", daemon.dir());
    command
}

fn answer(daemon: &Daemon, args: &[&str]) -> String {
    let output = extcap(daemon, args).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn wireshark_is_told_of_ports_and_gets_their_frames() {
    let mut daemon = daemon_with_port();
    let interfaces = answer(&daemon, &["--extcap-interfaces", "--extcap-version=4.2"]);
    let mut lines = interfaces.lines();
    assert!(lines.next().unwrap().starts_with("extcap {version="), "{interfaces}");
    let values: Vec<&str> = lines
        .filter_map(|line| line.strip_prefix("interface {value=")?.split('}').next())
        .collect();
    assert_eq!(values, ["other:c", "vale0:a", "vale0:b"]);
    let of_a = "--extcap-interface=vale0:a";
    let dlts = answer(&daemon, &["--extcap-dlts", of_a]);
    assert_eq!(dlts, "dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
    let config = answer(&daemon, &["--extcap-config", of_a]);
    assert!(
        config.contains("{call=--direction}")
            && config.contains("{value=both}{display=What it sends and receives}{default=true}"),
        "{config}"
    );
    let checked = |filter| answer(&daemon, &[of_a, &format!("--extcap-capture-filter={filter}")]);
    assert_eq!(checked("2,40 0 0 12,6 0 0 1"), "", "a filter that can be used");
    assert!(checked("2,6 0 0 1").contains("tcpdump -ddd"), "why it cannot");
    // The bytes that the program writes into the pipe are the capture.
    let fifo = daemon.dir().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let to_fifo = [
        "--capture",
        of_a,
        "--fifo",
        fifo.to_str().unwrap(),
        "--direction",
        "sent",
        "--snaplen=100",
    ];
    let mut cap = extcap(&daemon, &to_fifo).spawn().unwrap();
    let reader = std::thread::spawn(move || std::fs::read(fifo).unwrap());
    send_until(&mut daemon, "frames to be captured", || {
        let stats = std::fs::read_to_string(format!("/proc/{}/io", cap.id())).unwrap();
        let written = stats.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
        written.parse::<u64>().unwrap() > 10_000
    });
    interrupt(&cap);
    assert!(wait(&mut cap, harness::PATIENCE).unwrap().success());
    // Frames that the snap length cuts are left out of the recording, and counted.
    let recording = pcap::read(&reader.join().unwrap()[..]);
    let said = recording.map_or_else(|error| error.to_string(), |all| all.len().to_string());
    assert!(said.ends_with("frames not captured whole"), "{said}");
}

#[test]
fn without_a_daemon_there_are_no_interfaces_and_no_error() {
    let mut daemon = Daemon::start();
    daemon.stop(&serde_json::json!({}));
    let interfaces = answer(&daemon, &["--extcap-interfaces"]);
    assert_eq!(interfaces.lines().count(), 1, "{interfaces}");
}

/// Objective: tshark itself lists the ports and captures at one.
#[test]
fn tshark_captures_at_a_port() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return skip(
            "tshark_captures_at_a_port",
            "tshark is missing; as root: apt-get install tshark",
        );
    }
    let mut daemon = daemon_with_port();
    let home = tempfile::tempdir().unwrap();
    for place in [".config/wireshark/extcap", ".local/lib/wireshark/extcap"] {
        let place = home.path().join(place);
        std::fs::create_dir_all(&place).unwrap();
        symlink(env!("CARGO_BIN_EXE_toklat"), place.join("toklat-extcap")).unwrap();
    }
    let tshark = |args: &[&str]| {
        let mut command = Command::new("tshark");
        command.args(args).env("HOME", home.path()).env("TOKLAT_DIR", daemon.dir());
        command.env_remove("XDG_CONFIG_HOME").stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let listed = tshark(&["-D"]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("vale0:b"), "{listed:?}");
    let mut child =
        tshark(&["-i", "vale0:a", "-c", "5", "-T", "fields", "-e", "frame.len"]).spawn().unwrap();
    send_until(&mut daemon, "tshark to end", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        lines.lines().filter(|line| line.parse() == Ok(1000)).count(),
        5,
        "{lines} {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Objective: frames that are dropped are captured, each with the reason as its comment, and
/// nothing else is.
///
/// Steps: `cap --drops` watches a switch; a port that reads nothing gets more than its ring holds;
/// a port sends to itself and what it may not; tshark reads the comments.
#[test]
fn dropped_frames_are_captured_with_their_reason() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return skip(
            "dropped_frames_are_captured_with_their_reason",
            "tshark is missing; as root: apt-get install tshark",
        );
    }
    let mut daemon = Daemon::start();
    daemon.apply(
        "[switch.vale0.port.a]\n[switch.vale0.port.b]\n[switch.vale0.port.c.vlan]\naccess = 5",
    );
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut c = daemon.open("vale0:c").unwrap();
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let file = daemon.dir().join("drops.pcapng");
    let mut cap = daemon.tool(&["cap", "vale0", "--drops", "--count", "8", "-w"]);
    cap.arg(&file);
    let mut child = cap.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    said.find(|line| line.as_ref().unwrap().contains("capturing what is dropped"))
        .unwrap()
        .unwrap();
    // A frame to the sender itself, and a frame that is too short, are dropped before they reach a
    // receiver.
    send(&mut a, &frame(1, 1, 0));
    send(&mut a, &[0; 13]);
    let tagged: Vec<u8> = [&frame(3, 1, 0)[..12], &[0x81, 0, 0, 7], &frame(3, 1, 0)[12..]].concat();
    send(&mut c, &tagged);
    // Sends more frames than the receiver's ring holds.
    let full = |daemon: &Daemon| daemon.counters("b")["out_drops"]["full"].as_u64().unwrap_or(0);
    daemon.wait_for("a full ring", |daemon| {
        let missing = 5u64.saturating_sub(full(daemon));
        for n in 0..missing {
            send(&mut a, &frame(1, 2, n));
        }
        missing == 0
    });
    let status = wait(&mut child, harness::PATIENCE).expect("cap ends after eight frames");
    assert!(status.success());
    let read = ["-T", "fields", "-e", "frame.comment", "-e", "frame.len", "-r"];
    let output = Command::new("tshark").args(read).arg(&file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 8, "{text}");
    for line in [
        "dropped: same_port, from vale0:a\t64",
        "dropped: runt, from vale0:a\t13",
        "dropped: vlan, from vale0:c\t68",
        "dropped: full at vale0:b, from vale0:a\t64",
    ] {
        assert!(lines.contains(&line), "no {line:?} in {text}");
    }
    // The frames that fit the ring were delivered, so they are not among the drops.
    assert_eq!(lines.iter().filter(|line| line.contains("full")).count(), 5, "{text}");
}
