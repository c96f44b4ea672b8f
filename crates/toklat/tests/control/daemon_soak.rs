//! Clients start and are killed at random, and once the data process, too. Clients that are not
//! disturbed lose nothing, the counters add up, and nothing stays behind. `TOKLAT_SEED=N` repeats a
//! run's choices.

use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use harness::frames::{frame, send, until_traffic_flows};
use harness::{Daemon, PATIENCE, descriptors, kill_process};
use netring::Port;
use toklat::api::Stats;

const TIME: Duration = Duration::from_secs(5);
const CLIENTS: usize = 6;

/// The most frames in flight at a time.
const WINDOW: u64 = 32;

/// Numbers that a seed determines (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// A generator or a sink at port `c<slot>`. Half of the generators send to an unknown address, so
/// their frames are flooded.
fn client(daemon: &Daemon, random: &mut Random, slot: usize) -> Child {
    let port = format!("vale0:c{slot}");
    let mac = format!("02:00:00:00:01:{:02x}", random.below(CLIENTS as u64));
    let mut args = match random.below(2) {
        0 => vec!["gen", &port, "--rate", "3k", "--burst", "16", "--dst", &mac],
        _ => vec!["sink", &port, "--mac", &mac],
    };
    args.extend(["--quiet", "--sleep"]);
    daemon.tool(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Returns the numbers of the frames from station 1 that have arrived; flooded frames of other
/// stations are ignored.
fn received(port: &mut Port) -> Vec<u64> {
    let from_station_1 = |frame: netring::Received<'_>| {
        let bytes = frame.to_vec();
        (bytes[..12] == self::frame(1, 2, 0)[..12])
            .then(|| u64::from_le_bytes(bytes[16..24].try_into().unwrap()))
    };
    let numbers = port.receive(256).filter_map(from_station_1).collect();
    port.flush().unwrap();
    numbers
}

/// What the undisturbed pair and the thread that disturbs others share.
#[derive(Default)]
struct Talk {
    ends: AtomicBool,
    killed: AtomicBool,
    lost: AtomicU64,
}

/// Sends numbered frames, a window of them at a time, until told to end; adds up in `lost` those
/// that did not come, within a second once the data process was `killed`. No frame comes twice or
/// out of order.
fn exchange(a: &mut Port, b: &mut Port, mut number: u64, talk: &Talk) -> u64 {
    let first = number;
    while !talk.ends.load(Ordering::Relaxed) {
        let (window, mut seen, mut missing) = (number + WINDOW, number, WINDOW);
        let started = Instant::now();
        let is_lost = || {
            let killed = talk.killed.load(Ordering::Relaxed);
            started.elapsed() > if killed { Duration::from_secs(1) } else { PATIENCE }
        };
        while missing > 0 && !is_lost() {
            while number < window && send(a, &frame(1, 2, number + 1)) {
                number += 1;
            }
            for got in received(b) {
                assert!(seen < got && got <= window, "frame {got} after {seen}");
                seen = got;
                missing -= 1;
            }
            // Flooded frames must not fill the ring of the first port.
            a.receive(usize::MAX).count();
            a.flush().unwrap();
            std::thread::yield_now();
        }
        talk.lost.fetch_add(missing - (window - number), Ordering::Relaxed);
    }
    number - first
}

/// Kills and starts clients; returns the clients that still run at the end.
fn disturb(daemon: &Daemon, random: &mut Random, talk: &Talk) -> Vec<Child> {
    let mut clients: Vec<_> = (0..CLIENTS).map(|slot| client(daemon, random, slot)).collect();
    let (started, mut kills, mut data_process_lives) = (Instant::now(), 0, true);
    while started.elapsed() < TIME || kills <= 20 {
        std::thread::sleep(Duration::from_millis(random.below(120)));
        let slot = random.below(CLIENTS as u64) as usize;
        clients[slot].kill().unwrap();
        clients[slot].wait().unwrap();
        kills += 1;
        if data_process_lives && started.elapsed() > TIME / 2 {
            data_process_lives = false;
            assert_eq!(talk.lost.load(Ordering::Relaxed), 0, "lost while only clients were killed");
            talk.killed.store(true, Ordering::Relaxed);
            kill_process(daemon.data_process("vale0"));
        }
        clients[slot] = client(daemon, random, slot);
    }
    assert!(!data_process_lives, "{kills} kills");
    clients
}

#[test]
fn clients_left_alone_lose_nothing_while_others_are_killed() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("TOKLAT_SEED").map_or_else(|_| now(), |seed| seed.parse().unwrap());
    eprintln!("TOKLAT_SEED={seed}");
    let random = &mut Random(seed);
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0]\nstall_timeout_ms = 5000\n[switch.vale0.port.b]\nlossless = true");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    std::thread::sleep(Duration::from_millis(50));
    received(&mut b);
    let before = descriptors(daemon.pid());

    let talk = Talk::default();
    let (clients, sent) = std::thread::scope(|scope| {
        let pair = scope.spawn(|| exchange(&mut a, &mut b, number, &talk));
        let disturbed = scope.spawn(|| disturb(&daemon, random, &talk)).join();
        // The talk ends even if the disturbance failed: the scope waits for both threads.
        talk.ends.store(true, Ordering::Relaxed);
        (disturbed, pair.join())
    });
    let (mut clients, sent, lost) = (clients.unwrap(), sent.unwrap(), talk.lost.into_inner());
    clients.iter_mut().for_each(|client| {
        client.kill().unwrap();
        client.wait().unwrap();
    });
    daemon.wait_for("the clients' ports to go", |daemon| daemon.ports("vale0").len() == 2);
    daemon.wait_for("descriptors to come back", |daemon| descriptors(daemon.pid()) <= before);
    let stats: Stats = serde_json::from_value(daemon.get("/v1/stats")).unwrap();
    let switch = &stats.switches[0];
    let in_restarts = switch.totals.lost_in_restarts;
    assert!(sent > 1000 && lost <= in_restarts, "{lost} of {sent} lost, {in_restarts} in restarts");
    let all = switch.ports.iter().map(|port| &port.counters).chain([&switch.totals.gone]);
    let unaccounted: i128 = all.map(|port| port.unaccounted()).sum();
    assert_eq!(unaccounted, i128::from(in_restarts), "{stats:?}");
}
