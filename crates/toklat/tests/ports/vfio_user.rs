//! Emulated network cards without virtual machines: drivers that exchange frames over a switch, and
//! live through the end of every process but their own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use card::vfio_user::ClientError::{self, Refused};
use dataplane::attach::card::migration::DeviceState;
use rustix::io::Errno;
use serde_json::{Value, json};

use harness::card::{Card, Memory};
use harness::frames::frame;
use harness::{Daemon, PATIENCE, kill_process};

const MODELS: [&str; 5] = ["82540em", "82574l", "am79c970a", "am79c973", "one-access"];
/// The maximum number of frames in flight.
const WINDOW: u64 = 60;

fn daemon(ports: &[(&str, &str)]) -> Daemon {
    let daemon = Daemon::start();
    let port = |(name, model): &(&str, &str)| {
        format!("[switch.vale0.port.{name}]\nkind.vfio_user.nic.model = '{model}'\n")
    };
    daemon.apply(&ports.iter().map(port).collect::<String>());
    daemon
}

fn socket(daemon: &Daemon, port: &str) -> PathBuf {
    daemon.dir().join(format!("vale0-{port}.sock"))
}

fn data_process(daemon: &Daemon) -> Option<i32> {
    daemon.get("/v1/switches/vale0")["pid"].as_i64().map(|pid| pid as i32)
}

fn numbers(card: &mut Card) -> Vec<u64> {
    let number = |frame: &Vec<u8>| {
        let bytes = frame.get(16..24).filter(|_| frame[12..14] == [0x88, 0xb5])?;
        Some(u64::from_le_bytes(bytes.try_into().unwrap()))
    };
    card.receive().iter().filter_map(number).collect()
}

/// The numbers of frames that did not arrive exactly once.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lost: u64,
    doubled: u64,
}

impl std::ops::AddAssign for Faults {
    fn add_assign(&mut self, more: Self) {
        (self.lost, self.doubled) = (self.lost + more.lost, self.doubled + more.doubled);
    }
}

/// Sends frames from `a` to `b` until one with number `last` or a later one has arrived.
fn stream(a: &mut Card, b: &mut Card, number: &mut u64, last: u64, lossless: bool) -> Faults {
    stream_from(1, a, b, number, last, lossless)
}

/// Does the same as `stream`, from station 1 to 2, or from 2 to 1.
fn stream_from(
    from: u8,
    a: &mut Card,
    b: &mut Card,
    number: &mut u64,
    last: u64,
    lossless: bool,
) -> Faults {
    let (mut seen, mut heard, mut faults) = (*number, Instant::now(), Faults::default());
    let (mut window, mut last, begun) = (seen, last, Instant::now());
    while seen < last {
        while *number < last
            && *number < window + WINDOW
            && a.send(&frame(from, 3 - from, *number + 1))
        {
            *number += 1;
        }
        numbers(a);
        for got in numbers(b) {
            if lossless {
                assert_eq!(got, seen + 1, "lost or doubled");
            }
            faults.doubled += u64::from(got <= seen);
            faults.lost += got.saturating_sub(seen + 1);
            seen = seen.max(got);
            (heard, window) = (Instant::now(), seen);
        }
        if heard.elapsed() > Duration::from_millis(100) && !lossless {
            // Frames in flight may be lost. One more frame shows it.
            (heard, window) = (Instant::now(), (*number + 1).saturating_sub(WINDOW));
            last = last.max(*number + 1);
        }
        assert!(
            heard.elapsed() < PATIENCE && begun.elapsed() < 3 * PATIENCE,
            "{seen} of {last}; {:?} {:?}",
            a.failure(),
            b.failure()
        );
        std::thread::yield_now();
    }
    let failures = [a.failure(), b.failure()];
    // If a data process is killed as it begins to answer, it is unknown whether it did the access,
    // and its successor reports that the access failed.
    let doubt = |failure: &ClientError| !lossless && matches!(failure, Refused(Errno::IO));
    assert!(failures.iter().flatten().all(doubt), "{failures:?}");
    faults
}

fn start(daemon: &Daemon, a: &str, b: &str) -> (Card, Card) {
    let (a, mut b) = (Card::start(&socket(daemon, "a"), a), Card::start(&socket(daemon, "b"), b));
    // This frame tells the switch where station 2 is.
    b.send(&frame(2, 1, 0));
    (a, b)
}

#[test]
fn drivers_exchange_frames() {
    for pair in [[0, 1], [1, 2], [2, 3], [3, 0], [1, 1], [4, 4], [0, 4]] {
        let [a, b] = pair.map(|model| MODELS[model]);
        let daemon = daemon(&[("a", a), ("b", b)]);
        let (mut a, mut b) = start(&daemon, a, b);
        stream(&mut a, &mut b, &mut 0, 3000, true);
        stream_from(2, &mut b, &mut a, &mut 0, 3000, true);
    }
}

#[test]
fn killed_data_processes_are_not_noticed_by_drivers() {
    // In a row: the pause before the next start grows.
    const DEATHS: u64 = 9;
    for model in MODELS.iter().filter(|model| **model != "am79c973") {
        let mut daemon = daemon(&[("a", model), ("b", model)]);
        let (mut a, mut b) = start(&daemon, model, model);
        let (mut number, mut faults) = (0, Faults::default());
        for round in 0..DEATHS {
            if round == DEATHS / 2 {
                // The next supervisor, too, knows what is kept.
                daemon.kill();
                daemon.start_again();
            }
            let pid = data_process(&daemon).unwrap();
            let started = Instant::now();
            std::thread::scope(|scope| {
                let killer = scope.spawn(|| {
                    std::thread::sleep(Duration::from_micros(2000 + 137 * round));
                    kill_process(pid);
                });
                // This goes on until the data process is dead and its successor runs.
                while !killer.is_finished() || data_process(&daemon).is_none_or(|now| now == pid) {
                    assert!(started.elapsed() < PATIENCE, "no successor: {}", daemon.log());
                    let next = number + 50;
                    faults += stream(&mut a, &mut b, &mut number, next, false);
                    if killer.is_finished() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            let next = number + 200;
            faults += stream(&mut a, &mut b, &mut number, next, false);
        }
        assert_eq!(faults.doubled, 0, "{model}: frames came twice");
        assert!(faults.lost <= DEATHS * WINDOW, "{model}: {} were lost", faults.lost);
        let state = daemon.get("/v1/switches/vale0/ports/a")["state"].clone();
        assert_eq!(state, "attached", "{}", daemon.log());
    }
}

#[test]
fn an_upgrade_loses_nothing() {
    for model in MODELS.iter().filter(|model| **model != "am79c973") {
        let daemon = daemon(&[("a", model), ("b", model)]);
        let (mut a, mut b) = start(&daemon, model, model);
        let mut number = 0;
        for _ in 0..5 {
            std::thread::scope(|scope| {
                let upgrade = scope.spawn(|| daemon.ask("POST", "/v1/upgrade", &Value::Null));
                while !upgrade.is_finished() {
                    let next = number + 50;
                    stream(&mut a, &mut b, &mut number, next, true);
                }
                assert_eq!(upgrade.join().unwrap().0, 200);
            });
        }
    }
}

#[test]
fn doorbells_in_memory_are_heard() {
    let mut daemon = Daemon::start();
    daemon.apply(
        "[switch.vale0.port.a]\nkind.vfio_user.nic = { model = '82574l', doorbell = 'shared' }\n\
         [switch.vale0.port.b]\nkind.vfio_user.nic = { model = '82540em', doorbell = 'shared' }\n",
    );
    let mut number = 0;
    for _ in 0..2 {
        let (mut a, mut b) = start(&daemon, "82574l", "82540em");
        let next = number + 3000;
        stream(&mut a, &mut b, &mut number, next, true);
        for round in 0..10 {
            // A worker that sleeps must notice too, and so must the worker of the successor.
            std::thread::sleep(Duration::from_millis(7 * (round % 3)));
            if round == 5 {
                kill_process(daemon.data_process("vale0"));
            }
            let next = number + 100;
            let faults = stream(&mut a, &mut b, &mut number, next, false);
            let may_be_lost = if round == 5 { WINDOW } else { 0 };
            assert!(faults.doubled == 0 && faults.lost <= may_be_lost, "{faults:?}");
        }
        a.client().traps = Default::default();
        let next = number + 3000;
        stream(&mut a, &mut b, &mut number, next, true);
        let posted = a.client().traps.posted;
        assert!(posted < 3000, "{posted} writes trapped for 3000 frames");
        drop((a, b));
        for port in ["a", "b"] {
            let path = format!("/v1/switches/vale0/ports/{port}");
            daemon.wait_for("the port to be vacant", |d| d.get(&path)["state"] == "vacant");
        }
    }
}

#[test]
fn a_cable_is_pulled_and_plugged_in() {
    let daemon = daemon(&[("a", "82574l"), ("b", "82540em")]);
    let (mut a, mut b) = start(&daemon, "82574l", "82540em");
    let mut number = 0;
    for _ in 0..3 {
        let next = number + 100;
        stream(&mut a, &mut b, &mut number, next, true);
        let link = |up: bool| {
            let path = "/v1/switches/vale0/ports/b";
            assert_eq!(daemon.ask("PATCH", path, &json!({ "link": up })).0, 200);
        };
        link(false);
        a.send(&frame(1, 2, u64::MAX));
        std::thread::sleep(Duration::from_millis(10));
        assert!(numbers(&mut b).is_empty(), "received without a link");
        link(true);
    }
}

#[test]
fn interrupts_for_sent_frames_are_held_back_and_none_is_lost() {
    let mut daemon = daemon(&[("a", "82574l"), ("b", "82540em")]);
    let (mut a, mut b) = start(&daemon, "82574l", "82540em");
    let path = "/v1/switches/vale0/ports/a";
    let interrupts = |daemon: &Daemon| daemon.counters("a")["interrupts"].as_u64().unwrap();
    let mut number = 0;
    for (delay_us, least) in [(0, 50), (20_000, 1)] {
        let held_back = json!({ "interrupts": { "max_sent_delay_us": delay_us } });
        assert_eq!(daemon.ask("PATCH", path, &held_back).0, 200);
        let (started, before) = (Instant::now(), interrupts(&daemon));
        let mut during = 0;
        while during < least {
            assert!(started.elapsed() < PATIENCE, "{during} interrupts, {delay_us} us");
            for _ in 0..200 {
                number += 1;
                assert!(a.send(&frame(1, 2, number)));
                std::thread::sleep(Duration::from_micros(300));
                numbers(&mut a);
                numbers(&mut b);
            }
            during = interrupts(&daemon) - before;
        }
        let elapsed = started.elapsed().as_micros() as u64;
        let most = elapsed.checked_div(delay_us).map_or(u64::MAX, |most| 10 + most);
        assert!(during <= most, "{during} interrupts in {elapsed} us, {delay_us} us");
        // An interrupt for the last frame comes, too: until then, its vector may be masked.
        let before = interrupts(&daemon);
        a.send(&frame(1, 2, number + 1));
        daemon.wait_for("an interrupt for the last frame", |daemon| {
            numbers(&mut a);
            interrupts(daemon) > before
        });
    }
}

/// Objective: machines move to another host in the middle of a conversation, and their drivers do
/// not notice.
///
/// Steps: two cards talk over a switch; they stop with frames in their rings, and their states go
/// to ports of the same names of another daemon, and back again, where they talk on. Every frame
/// arrives, once and in order. Data processes die while the cards stand still.
#[test]
fn cards_move_to_another_host_and_no_frame_is_lost() {
    let both = |model| [(model, false, "trap"), (model, true, "trap")];
    let shared = [("82574l", false, "shared"), ("82540em", true, "shared")];
    let all = MODELS.into_iter().flat_map(both).chain(shared);
    for (model, csb, doorbell) in all.filter(|(model, csb, _)| *model != "one-access" || !csb) {
        let nic = format!("{{ model = '{model}', csb = {csb}, doorbell = '{doorbell}' }}");
        let port = |name| format!("[switch.vale0.port.{name}]\nkind.vfio_user.nic = {nic}\n");
        let hosts = [0, 1].map(|_| {
            let daemon = Daemon::start();
            daemon.apply(&(port("a") + &port("b")));
            daemon
        });
        let start = |name| Card::start_with(&socket(&hosts[0], name), model, csb, Memory::shared());
        let (mut a, mut b) = (start("a"), start("b"));
        b.send(&frame(2, 1, 0));
        let mut number = 0;
        for round in 0..5 {
            let next = number + 300;
            stream(&mut a, &mut b, &mut number, next, true);
            // These frames are still on their way.
            let sent = (number + 1..=number + 20).take_while(|n| a.send(&frame(1, 2, *n))).count();
            let kill = |at: usize, host: usize| {
                if at == round {
                    kill_process(data_process(&hosts[host % 2]).unwrap());
                }
            };
            a.client().set_device_state(DeviceState::Stop).unwrap();
            kill(3, round);
            let states = [a.stop(), b.stop()];
            b.go_on(&socket(&hosts[(round + 1) % 2], "b"), &states[1], || ());
            a.go_on(&socket(&hosts[(round + 1) % 2], "a"), &states[0], || kill(2, round + 1));
            let (started, sent) = (Instant::now(), number + sent as u64);
            while number < sent {
                for got in numbers(&mut b) {
                    assert_eq!(got, number + 1, "{nic}: lost or doubled");
                    number = got;
                }
                assert!(started.elapsed() < PATIENCE, "{nic}: {number} of {sent}");
            }
        }
    }
}

/// Objective: a front end that says what it may not is told so, and the session goes on.
///
/// Steps: malformed and foreign versions, a command before any, a version that is spoken, a second
/// one, replies to what was not asked, flags that do not exist; then a command is carried out.
#[test]
fn what_a_front_end_may_not_say_is_answered_with_an_error() {
    use std::io::{Read, Write};
    let daemon = daemon(&[("a", "82540em")]);
    let mut stream = std::os::unix::net::UnixStream::connect(socket(&daemon, "a")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut id = 0_u16;
    let mut ask = |command: u16, flags: u32, body: &[u8]| {
        id += 1;
        let mut message = [id.to_ne_bytes(), command.to_ne_bytes()].concat();
        let words = [16 + body.len() as u32, flags, 0];
        message.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        message.extend(body);
        stream.write_all(&message).unwrap();
        let mut header = [0; 16];
        stream.read_exact(&mut header).unwrap_or_else(|error| panic!("{error}: {}", daemon.log()));
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let expected = [id.to_ne_bytes(), command.to_ne_bytes()].concat();
        assert_eq!(header[..4], expected, "the reply to this message");
        let mut rest = vec![0; word(4) as usize - 16];
        stream.read_exact(&mut rest).unwrap();
        assert_eq!(word(8) & 0xf, 1, "a reply");
        (word(8) & 0x20 != 0).then(|| Errno::from_raw_os_error(word(12) as i32))
    };
    const VERSION: u16 = 1;
    const GET_INFO: u16 = 4;
    let info = [&16_u32.to_ne_bytes()[..], &[0; 12]].concat();
    let invalid = Some(Errno::INVAL);
    assert_eq!(ask(GET_INFO, 0, &info), invalid, "no version is agreed on");
    assert_eq!(ask(VERSION, 0, &[0; 2]), invalid, "half a version");
    assert_eq!(ask(VERSION, 0, b"\0\0\0\0{}"), invalid, "no zero at the end");
    assert_eq!(ask(VERSION, 0, b"\0\0\0\0{\0"), invalid, "no JSON");
    assert_eq!(ask(VERSION, 0, b"\x01\0\0\0{}\0"), Some(Errno::OPNOTSUPP), "another major");
    assert_eq!(ask(VERSION, 0, b"\0\0\0\0{}\0"), None);
    assert_eq!(ask(VERSION, 0, b"\0\0\0\0{}\0"), invalid, "a second version");
    for (command, flags) in
        [(GET_INFO, 1), (GET_INFO, 0x21), (9, 1), (GET_INFO, 2), (GET_INFO, 0x40)]
    {
        assert_eq!(ask(command, flags, &info), invalid, "{flags:#x} was not asked for");
    }
    assert_eq!(ask(GET_INFO, 0, &info), None, "the session goes on");
}
