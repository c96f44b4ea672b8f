//! Captures by `toklat cap`: directions, times, filters, whole switches, and frames that a bad link
//! loses.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use harness::frames::{frame, receive, send};
use harness::{Daemon, skip, wait};
use netring::Port;

/// Starts a capture into a file, and waits until it watches these ports.
fn start(daemon: &mut Daemon, args: &[&str], watches: &[&str]) -> Child {
    let child = daemon.start_tool(&[&["cap"][..], args].concat());
    daemon.wait_for("the capture to begin", |daemon| {
        let ports = daemon.get("/v1/switches/vale0/ports");
        let is_watched =
            |name: &&str| ports.as_array().unwrap().iter().any(|port| port["monitors"] == **name);
        watches.iter().all(is_watched)
    });
    child
}

/// Waits for a frame with this number.
fn await_number(daemon: &mut Daemon, port: &mut Port, number: u64) {
    daemon.wait_for("a frame", |_| receive(port).contains(&number));
}

/// Fields of a capture's frames, by tshark; `None` without it.
fn fields(test: &str, file: &str, names: &[&str]) -> Option<Vec<String>> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-T", "fields", "-r", file]);
    for name in names {
        tshark.args(["-e", name]);
    }
    let Ok(output) = tshark.output() else {
        skip(test, "tshark is missing; as root: apt-get install tshark");
        return None;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(str::to_owned).collect())
}

fn ended(mut child: Child) -> String {
    assert!(wait(&mut child, harness::PATIENCE).expect("the capture ends").success());
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Objective: a request that a port sends and the reply that it receives are told apart, in lines
/// and in pcapng, and each has the time at which it crossed the switch.
#[test]
fn a_capture_tells_which_way_and_when_each_frame_went() {
    let test = "a_capture_tells_which_way_and_when_each_frame_went";
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let file = daemon.dir().join("both.pcapng").to_str().unwrap().to_owned();
    let written = start(&mut daemon, &["vale0:a", "-q", "-n", "2", "-w", &file], &["a"]);
    let lines = start(&mut daemon, &["vale0:a", "-n", "2"], &["a"]);
    daemon.wait_for("both monitors", |daemon| {
        let ports = daemon.get("/v1/switches/vale0/ports");
        ports.as_array().unwrap().iter().filter(|port| port["monitors"] == "a").count() == 2
    });
    // The captures get both frames at once, however late they look.
    for child in [&written, &lines] {
        stop(child, rustix::process::Signal::STOP);
    }
    send(&mut a, &frame(1, 2, 1));
    await_number(&mut daemon, &mut b, 1);
    send(&mut b, &frame(2, 1, 2));
    await_number(&mut daemon, &mut a, 2);
    for child in [&written, &lines] {
        stop(child, rustix::process::Signal::CONT);
    }
    let text = ended(lines);
    let ways: Vec<&str> = text.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(ways, [">", "<"], "{text}");
    let times: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert!(times[0] < times[1], "{text}");
    ended(written);
    let names = ["frame.packet_flags_direction", "frame.time_epoch", "frame.interface_name"];
    let Some(frames) = fields(test, &file, &names) else { return };
    let frames: Vec<Vec<&str>> = frames.iter().map(|line| line.split('\t').collect()).collect();
    assert_eq!([frames[0][0], frames[1][0]], ["0x00000002", "0x00000001"], "sent, received");
    let [sent, received] = [frames[0][1], frames[1][1]].map(|time| time.parse::<f64>().unwrap());
    assert!(sent < received && received < sent + 60.0, "{frames:?}");
    assert_eq!(frames[0][2], "vale0:a");
}

fn stop(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn a_filter_chooses_the_frames_of_a_capture() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    // ether[16] = 3, as `tcpdump -ddd` prints it; the text needs libpcap.
    let numbers = "4,48 0 0 16,21 0 1 3,6 0 0 20,6 0 0 0";
    let file = daemon.dir().join("some.pcapng").to_str().unwrap().to_owned();
    let args = ["vale0:a", "-q", "-n", "1", "--filter", numbers];
    let lines = start(&mut daemon, &args, &["a"]);
    (1..=4).for_each(|number| assert!(send(&mut a, &frame(1, 2, number))));
    await_number(&mut daemon, &mut b, 4);
    let text = ended(lines);
    assert!(text.contains("64 bytes") && text.lines().count() == 1, "{text}");
    let (code, _, said) = daemon.run(&["cap", "vale0:a", "-w", &file, "--filter", "3,6 0 0 0"]);
    assert!(code == Some(1) && said.contains("tcpdump -ddd"), "{said}");
    let (_, _, said) = daemon.run(&["cap", "vale0:a", "-w", &file, "--filter", "no such thing"]);
    assert!(said.contains("no such thing") || said.contains("libpcap is missing"), "{said}");
    assert!(!std::path::Path::new(&file).exists(), "nothing is written for a wrong filter");
}

/// Objective: a capture of a switch has each frame once, at the port that sent it, also of ports
/// that come later.
#[test]
fn a_whole_switch_is_captured_at_once() {
    let test = "a_whole_switch_is_captured_at_once";
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]\n[switch.vale0.port.c]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let file = daemon.dir().join("all.pcapng").to_str().unwrap().to_owned();
    let args = ["vale0", "-q", "-n", "4", "-w", &file];
    let written = start(&mut daemon, &args, &["a", "b", "c"]);
    send(&mut a, &frame(1, 2, 1));
    await_number(&mut daemon, &mut b, 1);
    send(&mut b, &frame(2, 1, 2));
    await_number(&mut daemon, &mut a, 2);
    let mut late = daemon.open("vale0:late").unwrap();
    daemon.wait_for("the new port to be watched", |daemon| {
        let ports = daemon.get("/v1/switches/vale0/ports");
        ports.as_array().unwrap().iter().any(|port| port["monitors"] == "late")
    });
    send(&mut late, &frame(3, 1, 3));
    await_number(&mut daemon, &mut a, 3);
    daemon.done(&["port", "rm", "vale0:c"]);
    send(&mut a, &frame(1, 2, 4));
    ended(written);
    let Some(frames) = fields(test, &file, &["frame.interface_name", "eth.src"]) else { return };
    let expected = ["a\t02:00:00:00:00:01", "b\t02:00:00:00:00:02", "late\t02:00:00:00:00:03"];
    let expected = [&expected[..], &expected[..1]].concat();
    let expected: Vec<_> = expected.iter().map(|line| format!("vale0:{line}")).collect();
    assert_eq!(frames, expected);
}

/// Objective: frames that a bad link loses are among the dropped ones, whichever way they went.
#[test]
fn frames_lost_on_a_bad_link_are_captured_as_drops() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]\n[switch.vale0.port.c]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut c = daemon.open("vale0:c").unwrap();
    let mut number = 0;
    harness::frames::until_traffic_flows(&mut a, &mut b, &mut number);
    daemon.done(&["port", "set", "vale0:a", "--tx-impair", "loss=100%"]);
    daemon.done(&["port", "set", "vale0:b", "--rx-impair", "loss=100%"]);
    let mut cap = daemon.tool(&["cap", "vale0", "--drops", "--count", "6"]);
    let mut child = cap.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    said.find(|line| line.as_ref().unwrap().contains("capturing what is dropped"))
        .unwrap()
        .unwrap();
    (0..3).for_each(|number| assert!(send(&mut a, &frame(1, 2, number))));
    (0..3).for_each(|number| assert!(send(&mut c, &frame(3, 2, number))));
    let text = ended(child);
    let count = |what: &str| text.lines().filter(|line| line.ends_with(what)).count();
    assert_eq!(count("dropped: impaired, from vale0:a"), 3, "{text}");
    assert_eq!(count("dropped: impaired at vale0:b, from vale0:c"), 3, "{text}");
}
