//! The daemon's log: what peers can cause to be written, and that nothing blocks on the log.

use std::io::Read;
use std::time::Instant;

use dataplane::attach::virtio::message::code;
use rustix::pipe::fcntl_setpipe_size;

use harness::Daemon;
use harness::front_end::{FrontEnd, ask};
use nic::virtio::Features;

const NET: &str = "switch.vale0.port.vm1.kind.vhost_user = {}";
/// Bytes of a pipe for a log.
const ROOM: usize = 4096;
/// The beginning of the data process's lines about refused messages.
const REFUSED: &str = "vale0:vm1: ";

/// A front end of the only port, with both queues running.
fn front_end(daemon: &Daemon) -> FrontEnd {
    FrontEnd::start(&daemon.dir().join("vale0-vm1.sock"), Features::VERSION_1)
}

/// Sends a request that is refused, and whose refusal is acknowledged.
fn be_refused(front_end: &FrontEnd) {
    let three = [0u32, 3].map(u32::to_ne_bytes).concat();
    assert_eq!(ask(&front_end.socket, code::SET_VRING_NUM, &three, &[]), 1, "it is refused");
}

/// How often an event was logged: the number of lines, and the number of repetitions that they
/// report.
fn said(log: &str, what: &str) -> (u64, u64) {
    let lines = log.lines().filter(|line| line.contains(what));
    lines.fold((0, 0), |(lines, more), line| {
        let times = line.split_once("(repeated ").and_then(|(_, rest)| rest.split_once(" times)"));
        match times {
            Some((times, _)) => (lines, more + times.parse::<u64>().unwrap()),
            None => (lines + 1, more),
        }
    })
}

/// Objective: a peer that is refused without end has one line a second written, and all is counted.
///
/// Steps: a front end says 20,000 times what is refused; a client asks 2,000 times for what there
/// is not.
#[test]
fn regression_what_is_refused_without_end_is_one_line_a_second_with_a_count() {
    const MESSAGES: u64 = 20_000;
    const REQUESTS: u64 = 2_000;
    let mut daemon = Daemon::start_with(&["--no-auto-switch"]);
    daemon.apply(NET);
    let started = Instant::now();
    let front_end = front_end(&daemon);
    (0..MESSAGES).for_each(|_| be_refused(&front_end));
    (0..REQUESTS).for_each(|_| drop(daemon.open("nowhere:p1").unwrap_err()));
    for (what, times) in [(REFUSED, MESSAGES), ("attach request refused", REQUESTS)] {
        let mut counted = (0, 0);
        daemon.wait_for("all to be counted", |daemon| {
            counted = said(&daemon.log(), what);
            counted.0 + counted.1 >= times
        });
        let seconds = started.elapsed().as_secs() + 2;
        assert_eq!(counted.0 + counted.1, times, "{what}");
        assert!(counted.0 <= seconds, "{what}: {} lines in {seconds} s", counted.0);
    }
}

/// Objective: a log that is not read holds up neither the control API nor a front end's answers.
///
/// Steps: standard error is a small unread pipe; have more said than it takes, by the supervisor
/// and by a data process; each still answers. Then read it: the first lines are there.
#[test]
fn regression_an_unread_log_delays_no_thread() {
    let mut daemon = Daemon::start();
    daemon.stop(&serde_json::Value::Null);
    let (mut reader, writer) = std::io::pipe().unwrap();
    assert_eq!(fcntl_setpipe_size(&writer, ROOM).unwrap(), ROOM);
    daemon.start_again_with(|command| {
        command.stderr(writer);
    });
    daemon.apply(NET);
    let ports: Vec<_> = (0..100).map(|i| daemon.open(&format!("vale0:p{i}")).unwrap()).collect();
    let full = || rustix::io::ioctl_fionread(&reader).unwrap() > ROOM as u64 / 2;
    daemon.wait_for("the pipe to be full", |_| full());
    let front_end = front_end(&daemon);
    for _ in 0..100 {
        be_refused(&front_end);
        assert_eq!(daemon.get("/v1/status")["pid"], daemon.pid());
    }
    drop(ports);
    daemon.wait_for("ports to be closed", |daemon| daemon.ports("vale0").len() == 1);
    let mut bytes = vec![0; ROOM];
    let got = reader.read(&mut bytes).unwrap();
    let log = String::from_utf8_lossy(&bytes[..got]);
    assert!(log.contains("port opened"), "{log}");
}
