//! Worlds repeat themselves, idle time is free, and what goes wrong is what was asked for.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use guest::apps::bulk::Bulk;
use guest::apps::load::{Fetch, Load};
use guest::apps::site::Site;
use guest::sockets::Net;
use guest::{Guest, Nanos};
use link::Impairment;
use sim::{Direction, Fault, Host, Place, SimError, SimNic, Tasks, World, same, sweep};

const SECOND: Duration = Duration::from_secs(1);

fn server_at() -> SocketAddr {
    "10.0.0.1:7".parse().unwrap()
}

/// Takes connections at port 7 and sends back what comes.
async fn echo(net: Net<SimNic>) {
    let listener = net.listen(7, 16).unwrap();
    loop {
        let stream = listener.accept().await;
        net.spawn(async move {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..n]).await.is_err() {
                    break;
                }
            }
        });
    }
}

/// Sends `bytes` bytes to the server and reads them back; counts those that came.
async fn ask(net: Net<SimNic>, bytes: usize, came: Rc<Cell<usize>>) {
    let stream = net.connect(server_at()).await.unwrap();
    let sent: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    let mut buffer = vec![0; 16 << 10];
    for piece in sent.chunks(8 << 10) {
        stream.write_all(piece).await.unwrap();
        let mut left = piece;
        while !left.is_empty() {
            let n = stream.read(&mut buffer).await.unwrap();
            assert_eq!(left[..n], buffer[..n]);
            came.set(came.get() + n);
            left = &left[n..];
        }
    }
}

/// A server and a client whose link loses and delays frames.
fn pair(
    world: &mut World,
    bytes: usize,
    bad: Impairment,
) -> Result<(Host<Tasks>, Rc<Cell<usize>>), SimError> {
    let lan = world.switch("vale0");
    let server = Place::new("server", "10.0.0.1/24").unwrap();
    world.tasks(lan, server, echo)?;
    let came = Rc::new(Cell::new(0));
    let counted = Rc::clone(&came);
    let mut place = Place::new("client", "10.0.0.2/24").unwrap();
    place.rules.tx_impairment = Some(bad);
    place.rules.rx_impairment = Some(Impairment { seed: bad.seed + 1, ..bad });
    let client = world.tasks(lan, place, move |net| ask(net, bytes, Rc::clone(&counted)))?;
    Ok((client, came))
}

const BAD: Impairment = Impairment {
    seed: 3,
    loss_ppm: 10_000,
    duplicate_ppm: 1000,
    reorder_ppm: 0,
    delay_us: 5000,
    jitter_us: 1000,
    limit: Impairment::USUAL_FRAMES,
};

fn bad(seed: u64) -> Impairment {
    Impairment { seed, ..BAD }
}

#[test]
fn the_same_seed_gives_the_same_frames_at_the_same_times_and_another_seed_others() {
    let run = |seed| {
        same(seed, |world| {
            let (client, came) = pair(world, 200_000, bad(seed))?;
            world.run_until(60 * SECOND, |_| client.has_ended())?;
            assert_eq!(came.get(), 200_000);
            Ok(())
        })
    };
    let hashes = [run(1).unwrap(), run(1).unwrap(), run(2).unwrap()];
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], hashes[2]);
}

#[test]
fn a_host_that_reads_another_clock_is_found_with_its_first_frame() {
    let calls = Cell::new(0);
    let differs = same(5, |world| {
        let lan = world.switch("vale0");
        world.tasks(lan, Place::new("server", "10.0.0.1/24").unwrap(), echo)?;
        // Something of this process that is not the world's: the second run sees another value.
        let bytes = 1000 + calls.replace(calls.get() + 1);
        let place = Place::new("client", "10.0.0.2/24").unwrap();
        let client = world.tasks(lan, place, move |net| ask(net, bytes, Rc::default()))?;
        world.run_until(60 * SECOND, |_| client.has_ended())
    });
    let Err(SimError::Differs { seed: 5, frame, what }) = differs else { panic!("{differs:?}") };
    assert!(frame > 3, "the handshake is the same");
    assert!(what.contains("client ->") && what.contains("TCP"), "{what}");
}

#[test]
fn an_idle_hour_costs_no_turns() {
    let mut world = World::new(1);
    let (client, _) = pair(&mut world, 1000, Impairment::default()).unwrap();
    world.run_until(10 * SECOND, |_| client.has_ended()).unwrap();
    let before = world.turns();
    world.run_for(3600 * SECOND).unwrap();
    assert!(world.now() >= 3600 * SECOND);
    assert!(world.turns() - before < 2000, "{} turns", world.turns() - before);
}

#[test]
fn a_host_that_is_cut_off_goes_on_where_it_was() {
    let mut world = World::new(4);
    let (client, came) = pair(&mut world, 100_000, Impairment::default()).unwrap();
    world.on_frame(12, Fault::Cut(client.id()));
    world.at(30 * SECOND, Fault::Join(client.id()));
    world.run_for(29 * SECOND).unwrap();
    assert!(came.get() < 100_000, "it is cut off");
    world.run_until(600 * SECOND, |_| client.has_ended()).unwrap();
    assert_eq!(came.get(), 100_000);
    let lost: u64 = world.stats(client.id()).in_drops.values().sum();
    assert!(lost > 0, "frames were lost while it was cut off");
}

#[test]
fn a_host_that_loses_its_power_starts_with_nothing() {
    let mut world = World::new(4);
    let lan = world.switch("vale0");
    let server = world.tasks(lan, Place::new("server", "10.0.0.1/24").unwrap(), echo).unwrap();
    let failed = Rc::new(Cell::new(0));
    let counted = Rc::clone(&failed);
    let place = Place::new("client", "10.0.0.2/24").unwrap();
    let client = world.tasks(lan, place, move |net| {
        let failed = Rc::clone(&counted);
        async move {
            let mut buffer = [0; 5];
            for _ in 0..2 {
                let stream = net.connect(server_at()).await.unwrap();
                while stream.write_all(b"hello").await.is_ok() {
                    if !matches!(stream.read(&mut buffer).await, Ok(1..)) {
                        break;
                    }
                    net.sleep(Duration::from_millis(100)).await;
                    if net.now() > Nanos(Nanos::SECOND * 20) {
                        return;
                    }
                }
                failed.set(failed.get() + 1);
            }
        }
    });
    let client = client.unwrap();
    world.at(SECOND, Fault::Crash(server.id()));
    world.at(2 * SECOND, Fault::Start(server.id()));
    world.run_until(60 * SECOND, |_| client.has_ended()).unwrap();
    assert_eq!(failed.get(), 1, "the new server resets the connection that it does not know");
}

/// The data process of the switch dies every 50 ms, and its successor recovers rings and tables.
#[test]
fn connections_do_not_notice_that_the_switch_was_restarted() {
    let mut world = World::new(9);
    let (client, came) = pair(&mut world, 400_000, bad(9)).unwrap();
    let lan = world.switches().next().unwrap();
    for i in 1..100 {
        world.at(i * Duration::from_millis(50), Fault::Kill(lan));
    }
    world.run_until(600 * SECOND, |_| client.has_ended()).unwrap();
    assert_eq!(came.get(), 400_000);
    assert!(world.inline(lan).state().switch().restarts.get() > 10);
}

#[test]
fn applications_of_guests_run_as_they_are() {
    let mut world = World::new(2);
    let lan = world.switch("vale0");
    let mut site = Site::default();
    site.add("/", vec![b'x'; 10_000].into());
    let place = Place::new("web", "10.0.0.1/24").unwrap().offloads();
    world
        .host(lan, place, move |stack| {
            let mut guest = Guest::new(stack, site.clone());
            guest.listen(80, 64).unwrap();
            guest
        })
        .unwrap();
    let place = Place::new("load", "10.0.0.2/24").unwrap().offloads();
    let load = world.host(lan, place, |stack| {
        let mut guest = Guest::new(stack, Load::new("10.0.0.1", "/"));
        let to: SocketAddr = "10.0.0.1:80".parse().unwrap();
        for _ in 0..4 {
            guest.connect(to, Fetch::default(), Nanos(Nanos::SECOND)).unwrap();
        }
        guest
    });
    let load = load.unwrap();
    world.run_until(SECOND, |_| load.with(|load| load.app().answers).unwrap() > 1000).unwrap();
    assert_eq!(load.with(|load| load.app().errors), Some(0));
}

#[test]
fn a_failing_seed_is_shrunk_to_the_faults_that_matter() {
    let failed = std::panic::catch_unwind(|| {
        sweep(1..20, |trial| {
            let mut world = trial.world();
            let seed = world.seed();
            let (client, _) = pair(&mut world, 50_000, bad(seed))?;
            let id = client.id();
            // A crash ends the client for ever; what else happens it survives.
            let during = Duration::from_millis(1)..Duration::from_millis(100);
            trial.faults(&mut world, 8, during, |chance| match chance.below(24) {
                0 => Fault::Crash(id),
                1..12 => Fault::Impair(id, Impairment { loss_ppm: 100_000, ..BAD }),
                _ => Fault::Join(id),
            });
            world.run_until(120 * SECOND, |_| client.has_ended())
        });
    });
    let text = failed.unwrap_err();
    let text = text.downcast_ref::<String>().unwrap();
    assert!(text.contains("fails with 1 of 8 faults (Crash(HostId(1)) at "), "{text}");
    assert!(text.contains("the last frames"), "{text}");
}

#[test]
fn what_was_seen_is_a_capture_that_other_tools_read() {
    let mut world = World::new(6);
    world.keep_frames();
    let (client, _) = pair(&mut world, 1000, Impairment::default()).unwrap();
    world.run_until(SECOND, |_| client.has_ended()).unwrap();
    let recording = pcap::file::parse(&world.pcapng()).unwrap();
    let seen = world.seen();
    assert_eq!(recording.len(), seen.len());
    assert_eq!(
        seen.iter().filter(|seen| seen.direction == Direction::Sent).count() as u64,
        world.frames()
    );
    assert!(world.report().contains("TCP"), "{}", world.report());
}

/// What a second costs is counted in turns, which do not depend on the machine.
#[test]
fn ten_hosts_over_bad_links_take_turns_only_when_something_happens() {
    let mut world = World::new(8);
    let lan = world.switch("vale0");
    world.tasks(lan, Place::new("server", "10.0.0.1/24").unwrap(), echo).unwrap();
    for i in 0..9 {
        let name = format!("client{i}");
        let mut place = Place::new(&name, &format!("10.0.0.{}/24", 10 + i)).unwrap();
        place.rules.tx_impairment = Some(bad(i));
        world
            .tasks(lan, place, |net| async move {
                loop {
                    ask(net.clone(), 1000, Rc::default()).await;
                    net.sleep(Duration::from_millis(100)).await;
                }
            })
            .unwrap();
    }
    world.run_for(20 * SECOND).unwrap();
    assert!(world.frames() > 10_000, "{} frames", world.frames());
    // 20 s have two million turns.
    assert!(world.turns() < 4 * world.frames(), "{} turns", world.turns());
}

/// Links of ports are what they are live: a line of 10 Mb/s carries what its frames leave of it for
/// data, within 3 %.
#[test]
fn tcp_fills_a_line_of_a_known_rate() {
    let mut world = World::new(3);
    let lan = world.switch("vale0");
    let sink = Place::new("sink", "10.0.0.1/24").unwrap();
    let sink = world.host(lan, sink, |stack| {
        let mut guest = Guest::new(stack, Bulk::sink(false));
        guest.listen(5001, 16).unwrap();
        guest
    });
    let sink = sink.unwrap();
    let mut place = Place::new("source", "10.0.0.2/24").unwrap();
    place.rules.tx_link = Some("rate=10Mb/s,delay=5ms".to_owned());
    world
        .host(lan, place, |stack| {
            let mut guest = Guest::new(stack, Bulk::source(false));
            let to: SocketAddr = "10.0.0.1:5001".parse().unwrap();
            guest.connect(to, (), Nanos(Nanos::SECOND)).unwrap();
            guest
        })
        .unwrap();
    let received = || sink.with(|sink| sink.app().received).unwrap();
    world.run_for(2 * SECOND).unwrap();
    let before = received();
    world.run_for(20 * SECOND).unwrap();
    let rate = (received() - before) as f64 * 8.0 / 20.0;
    // 1,448 bytes of data in a frame of 1,514.
    let theory = 10e6 * 1448.0 / 1514.0;
    assert!((rate / theory - 1.0).abs() < 0.03, "{rate} instead of {theory} bits a second");
}

/// A mirror names a port of its switch, as in a topology file.
#[test]
fn mirrors_find_their_ports_by_the_names_that_files_have() {
    let text = r#"{
        "switch": {"vale0": {"port": {
            "echo": {"mirror_out": "spy"},
            "spy": {"kind": "null"}
        }}},
        "guest": {
            "echo": {"app": "sink", "port": "vale0:echo", "address": "10.0.0.1/24"},
            "source": {"app": "source", "port": "vale0:source", "address": "10.0.0.2/24",
                       "args": ["10.0.0.1:5001"]}
        }
    }"#;
    let topology = serde_json::from_str(text).unwrap();
    let mut world = World::of(&topology, 1, |_| unreachable!("no captures")).unwrap();
    world.run_for(SECOND / 100).unwrap();
    let summary = world.summary();
    let line = |name: &str| summary.lines().find(|line| line.starts_with(name)).unwrap();
    let received = |name: &str| {
        let (_, rest) = line(name).split_once("received ").unwrap();
        rest.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(received("vale0:echo:") > 20, "{summary}");
    assert!(received("vale0:spy:") >= received("vale0:echo:"), "{summary}");
}
