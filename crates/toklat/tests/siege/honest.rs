//! The honest pair: numbered frames from one port to another, at a steady rate.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netring::{Interest, Open, Pages, Port};

use super::{directory, pause, until};
use harness::frames::{frame, receive, until_traffic_flows};

/// Frames sent in a row.
const BATCH: u64 = 16;
/// How long the receiver waits for what was sent before it is lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result that the pair prints at its end.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub sent: u64,
    pub lost: u64,
    pub elapsed_ms: u64,
}

impl Report {
    /// Frames a second.
    pub fn rate(&self) -> u64 {
        self.sent * 1000 / self.elapsed_ms.max(1)
    }

    fn print(&self) {
        println!("\nhonest: {} {} {}", self.sent, self.lost, self.elapsed_ms);
    }

    pub fn read(said: &str) -> Option<Self> {
        let numbers = said.lines().find_map(|line| line.strip_prefix("honest: "))?;
        let numbers: Vec<u64> = numbers.split(' ').filter_map(|n| n.parse().ok()).collect();
        let [sent, lost, elapsed_ms] = numbers[..] else { return None };
        Some(Self { sent, lost, elapsed_ms })
    }
}

/// Opens a port. The daemon may answer late, as attackers share its CPU.
fn open(name: &str) -> Port {
    let started = Instant::now();
    loop {
        match Open::new(name).slots(2048).pages(Pages::Small).directory(directory()).open() {
            Ok(port) => return port,
            Err(error) => assert!(started.elapsed() < PATIENCE, "{name}: {error}"),
        }
        pause();
    }
}

/// Runs the honest pair. Its options: the duration in milliseconds, and frames a second (0: as many
/// as possible).
pub fn run_honest() {
    let options = std::env::var(super::OPTIONS).unwrap();
    let options: Vec<u64> = options.split(' ').map(|n| n.parse().unwrap()).collect();
    let (mut a, mut b) = (open("vale0:a"), open("vale0:b"));
    until_traffic_flows(&mut a, &mut b, &mut 0);
    // The numbers begin above those of the frames with which the pair found each other.
    let (first, ends, sent) = (1 << 32, AtomicBool::new(false), AtomicU64::new(1 << 32));
    let started = Instant::now();
    let (received, elapsed) = std::thread::scope(|scope| {
        let hearing = scope.spawn(|| count_received(&mut b, first, &ends, &sent));
        let end = started + Duration::from_millis(options[0]);
        say(&mut a, first, options[1], end, &sent);
        let elapsed = started.elapsed();
        ends.store(true, Ordering::Release);
        (hearing.join().unwrap(), elapsed)
    });
    let sent = sent.into_inner() - first;
    Report { sent, lost: sent - received, elapsed_ms: elapsed.as_millis() as u64 }.print();
}

/// Sends at a steady rate; catches up when it is late.
fn say(port: &mut Port, first: u64, rate: u64, end: Instant, sent: &AtomicU64) {
    let (started, mut number) = (Instant::now(), first);
    while until(end) {
        let due = started.elapsed().as_micros() as u64 * rate / 1_000_000;
        if rate > 0 && number - first >= due {
            std::thread::sleep(Duration::from_micros(BATCH * 1_000_000 / rate));
            continue;
        }
        let before = number;
        {
            let mut batch = port.send(BATCH as usize);
            while number - before < BATCH && batch.push(&frame(1, 2, number + 1)) {
                number += 1;
            }
        }
        // The number is stored before the receiver can have the frames.
        sent.store(number, Ordering::Release);
        port.flush().unwrap();
        receive(port);
        if number == before {
            let _ = port.wait(Interest::WRITE, Some(Duration::from_millis(10)));
        }
    }
}

/// Receives frames, and returns how many came. None comes twice or out of order.
fn count_received(port: &mut Port, first: u64, ends: &AtomicBool, sent: &AtomicU64) -> u64 {
    let (mut seen, mut received, mut heard) = (first, 0, Instant::now());
    let (started, mut spoke) = (Instant::now(), Instant::now());
    while !ends.load(Ordering::Acquire) || seen < sent.load(Ordering::Acquire) {
        let numbers = receive(port);
        // The receiver sends now and then as every host does: a switch forgets an address that
        // sends nothing, and floods frames for it.
        if spoke.elapsed() > Duration::from_secs(1) {
            spoke = Instant::now();
            port.send(1).push(&frame(2, 1, 0));
            port.flush().unwrap();
        }
        for number in numbers.into_iter().filter(|number| *number > first) {
            assert!(number > seen, "{number} after {seen}");
            if number > seen + 1 {
                let (missing, at) = (number - seen - 1, started.elapsed());
                eprintln!("honest: {missing} frames are missing before {number}, after {at:?}");
            }
            (seen, received, heard) = (number, received + 1, Instant::now());
        }
        if ends.load(Ordering::Acquire) && heard.elapsed() > PATIENCE {
            break;
        }
        let _ = port.wait(Interest::READ, Some(Duration::from_millis(10)));
    }
    received
}
