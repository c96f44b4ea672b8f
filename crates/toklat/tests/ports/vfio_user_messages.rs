//! Emulated network cards whose guests' memory has no file: what drivers send and receive crosses
//! in messages.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use harness::card::{Card, Driver, Memory};
use harness::frames::frame;
use harness::{Daemon, PATIENCE, kill_process};

/// The maximum number of frames in flight.
const WINDOW: u64 = 40;
/// Lengths that frames have, by turns.
const LENGTHS: [usize; 4] = [64, 1514, 300, 999];

fn daemon(models: [&str; 2]) -> Daemon {
    daemon_with(models, "trap")
}

fn daemon_with(models: [&str; 2], doorbell: &str) -> Daemon {
    let daemon = Daemon::start();
    let port = |(name, model): (&str, &str)| {
        let nic = format!("{{ model = '{model}', doorbell = '{doorbell}' }}");
        format!("[switch.vale0.port.{name}]\nkind.vfio_user.nic = {nic}\n")
    };
    daemon.apply(&(port(("a", models[0])) + &port(("b", models[1]))));
    daemon
}

fn socket(daemon: &Daemon, port: &str) -> PathBuf {
    daemon.dir().join(format!("vale0-{port}.sock"))
}

fn data_process(daemon: &Daemon) -> Option<i32> {
    daemon.get("/v1/switches/vale0")["pid"].as_i64().map(|pid| pid as i32)
}

/// Returns the frame with a number: its length is one of several, and every byte depends on the
/// number.
fn numbered(from: u8, number: u64) -> Vec<u8> {
    let mut bytes = frame(from, 3 - from, number).to_vec();
    let len = LENGTHS[(number % 4) as usize];
    bytes.extend((64..len).map(|at| (at as u64 * 7 + number) as u8));
    bytes
}

/// Returns the number in a frame; greetings have number 0.
fn number(frame: &[u8]) -> Option<u64> {
    let bytes = frame.get(16..24).filter(|_| frame[12..14] == [0x88, 0xb5])?;
    let number = u64::from_le_bytes(bytes.try_into().unwrap());
    (number != 0).then_some(number)
}

/// Two cards with drivers that have greeted each other: the switch knows where they are, and the
/// cards have read the descriptors they were given.
fn start(daemon: &Daemon, models: [&str; 2], memory: [fn() -> Memory; 2]) -> [Card; 2] {
    let card =
        |i: usize| Card::start_with(&socket(daemon, ["a", "b"][i]), models[i], false, memory[i]());
    let mut cards = [card(0), card(1)];
    let empty = cards.each_mut().map(Card::room);
    let (started, mut greeted) = (Instant::now(), [false; 2]);
    while greeted != [true; 2] {
        for (i, from) in [(0, 1), (1, 2)] {
            // Frames that arrive before the other card's descriptors are read are lost. Only one
            // greeting is on its way at a time: a ring of greetings would leave no room for what
            // follows them.
            if !greeted[1 - i] && cards[i].room() == empty[i] {
                cards[i].send(&frame(from, 3 - from, 0));
            }
        }
        for (i, card) in cards.iter_mut().enumerate() {
            card.serve();
            let greeting = frame(2 - i as u8, 1 + i as u8, 0);
            greeted[i] |= card.receive().iter().any(|got| got.starts_with(&greeting));
        }
        assert!(started.elapsed() < PATIENCE, "{greeted:?}: {}", daemon.log());
        std::thread::yield_now();
    }
    cards
}

/// Frames from card `from` to the other until `last` has arrived, each as it was sent, in order.
/// Rings are looked at when an interrupt comes, or all the time if `polls`.
fn stream(cards: &mut [Card; 2], from: usize, numbers: std::ops::RangeInclusive<u64>, polls: bool) {
    let (mut sent, mut seen, last) = (*numbers.start() - 1, *numbers.start() - 1, *numbers.end());
    let station = from as u8 + 1;
    let started = Instant::now();
    while seen < last {
        while sent < last && sent < seen + WINDOW && cards[from].send(&numbered(station, sent + 1))
        {
            sent += 1;
        }
        for (i, card) in cards.iter_mut().enumerate() {
            if !card.serve() && !polls {
                continue;
            }
            for frame in card.receive() {
                let Some(got) = number(&frame).filter(|_| i != from) else { continue };
                assert_eq!(got, seen + 1, "lost or doubled");
                // Some drivers get the frame check sequence as well.
                let good = numbered(station, got);
                assert_eq!(frame[..good.len()], good[..], "of {got}");
                seen = got;
            }
        }
        assert!(started.elapsed() < PATIENCE, "{seen} of {last}, {sent} sent, polls: {polls}");
        std::thread::yield_now();
    }
    assert!(cards.iter_mut().all(|card| card.failure().is_none()));
}

fn exchange(models: [&str; 2], memory: [fn() -> Memory; 2]) {
    let daemon = daemon(models);
    let mut cards = start(&daemon, models, memory);
    for (from, numbers, polls) in
        [(0, 1..=400, true), (1, 1..=400, true), (0, 401..=600, false), (1, 401..=600, false)]
    {
        stream(&mut cards, from, numbers, polls);
    }
    let path = |port| format!("/v1/switches/vale0/ports/{port}");
    assert_eq!(daemon.get(&path("a"))["state"], "attached", "{}", daemon.log());
}

#[test]
fn drivers_of_the_e1000_family_exchange_frames() {
    for models in [["82540em", "82574l"], ["82574l", "82540em"]] {
        exchange(models, [Memory::private, Memory::private]);
        exchange(models, [Memory::private, Memory::shared]);
    }
}

#[test]
fn doorbells_in_memory_are_heard_whose_descriptors_come_by_messages() {
    let models = ["82540em", "82574l"];
    let daemon = daemon_with(models, "shared");
    let mut cards = start(&daemon, models, [Memory::private, Memory::private]);
    for from in [0, 1] {
        cards[from].client().traps = Default::default();
        stream(&mut cards, from, 1..=1000, true);
        let posted = cards[from].client().traps.posted;
        assert!(posted < 1000, "{posted} writes trapped for 1000 frames");
    }
}

#[test]
fn drivers_of_the_pcnet_family_exchange_frames() {
    for models in [["am79c970a", "am79c973"], ["am79c973", "82574l"]] {
        exchange(models, [Memory::private, Memory::private]);
    }
}

/// Objective: a sleeping worker wakes and pushes frames to a guest that sends no messages.
///
/// Steps: the receiving driver reads its memory alone, and no register; frames come one by one,
/// with pauses.
#[test]
fn frames_reach_a_guest_that_says_nothing() {
    let models = ["82540em", "82574l"];
    let daemon = daemon(models);
    let mut cards = start(&daemon, models, [Memory::private; 2]);
    for n in 1..=20 {
        std::thread::sleep(Duration::from_millis(5));
        assert!(cards[0].send(&numbered(1, n)));
        let (started, mut got) = (Instant::now(), None);
        while got.is_none() {
            for card in &mut cards {
                card.serve();
            }
            let Driver::E1000(driver) = &mut cards[1].driver else { unreachable!() };
            driver.receive(1, |frame| got = number(&frame.to_vec()));
            assert!(started.elapsed() < PATIENCE, "{n} was not pushed");
        }
        assert_eq!(got, Some(n));
    }
}

/// Objective: data processes that die with the copy of a guest's memory leave a card that goes on.
///
/// Steps: two cards talk, their data process is killed again and again; frames are lost, none comes
/// twice or broken, and the talk goes on without the drivers' doing.
#[test]
fn killed_data_processes_are_not_noticed_by_drivers() {
    for model in ["82574l", "82540em", "am79c973"] {
        let daemon = daemon([model; 2]);
        let mut cards = start(&daemon, [model; 2], [Memory::private; 2]);
        let (mut sent, mut seen, mut arrived) = (0, 0, HashSet::new());
        for round in 0..4 {
            let pid = data_process(&daemon).unwrap();
            let (started, mut killed, mut since) = (Instant::now(), false, None);
            // After the successor has forwarded a frame, traffic continues for a while.
            while since.is_none_or(|since: Instant| since.elapsed() < Duration::from_millis(100)) {
                if sent < seen + WINDOW && cards[0].send(&numbered(1, sent + 1)) {
                    sent += 1;
                } else if started.elapsed() > Duration::from_millis(500) {
                    // Frames that were lost are not waited for.
                    seen = sent;
                }
                drop(cards[0].receive());
                for frame in cards[1].receive() {
                    let Some(got) = number(&frame) else { continue };
                    assert!(
                        got <= sent && arrived.insert(got),
                        "{model}: {got} of {sent}, or twice"
                    );
                    let good = numbered(1, got);
                    assert_eq!(frame[..good.len()], good[..], "of {got}");
                    seen = seen.max(got);
                    if killed && data_process(&daemon).is_some_and(|now| now != pid) {
                        since.get_or_insert_with(Instant::now);
                    }
                }
                if !killed && started.elapsed() > Duration::from_millis(20 + 3 * round) {
                    kill_process(pid);
                    killed = true;
                }
                assert!(started.elapsed() < PATIENCE, "{seen} of {sent}: {}", daemon.log());
            }
        }
        assert!(!daemon.log().contains("the device stopped"), "{}", daemon.log());
    }
}

/// Objective: an access to a register never waits for memory.
///
/// Steps: the driver's side answers nothing that the card asks of memory; registers are read and
/// written for as long as it has frames to send; it is reset, and answers again: frames go.
#[test]
fn registers_are_answered_while_memory_is_not() {
    let models = ["82574l", "82540em"];
    let daemon = daemon(models);
    let mut cards = start(&daemon, models, [Memory::private; 2]);
    cards[0].client().answers = false;
    for n in 0..100 {
        cards[0].send(&numbered(1, n));
        let started = Instant::now();
        let mut status = [0; 4];
        cards[0].client().read(0, 8, &mut status).unwrap();
        assert!(started.elapsed() < PATIENCE && status != [0; 4]);
    }
    drop(cards);
    let mut cards = start(&daemon, models, [Memory::private; 2]);
    stream(&mut cards, 0, 1..=50, true);
}
