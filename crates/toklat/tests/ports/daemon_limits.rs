//! Limits of ports, as the operator sets and sees them.

use std::time::Instant;

use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::{Daemon, kill_process};
use serde_json::json;

/// Objective: a limit holds from the moment it is set, under traffic, survives the data process,
/// and is gone when it is lifted; it loses nothing that the port itself sends.
///
/// Steps: a port gets a limit of 1000 frames a second, with a bucket of a second's worth, and 3000
/// frames take two seconds at least; the same limit again brings no tokens; the data process is
/// killed, its successor has the limit; it is lifted.
#[test]
fn a_limit_is_set_shown_kept_and_lifted_under_traffic() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]\nlossless = true");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    daemon.done(&["port", "set", "vale0:a", "--tx-limit", "1kpps"]);
    let shown = daemon.done(&["port", "show", "vale0:a"]);
    assert!(shown.contains("tx-limit 1kpps"), "{shown}");
    let spec = &daemon.get("/v1/switches/vale0/ports/a")["spec"];
    assert_eq!(spec["tx_rate_limiter"], json!({ "ops": { "size": 1000, "refill_time": 1000 } }));
    let mut passed = |daemon: &mut Daemon, frames: u64| {
        let (began, first, last) = (Instant::now(), number + 1, number + frames);
        let mut got = number;
        daemon.wait_for("the frames", |_| {
            while number < last && a.send(1).push(&frame(1, 2, number + 1)) {
                number += 1;
            }
            a.flush().unwrap();
            for seen in receive(&mut b).into_iter().filter(|seen| *seen >= first) {
                got += 1;
                assert_eq!(seen, got, "nothing is lost");
            }
            got == last
        });
        began.elapsed()
    };
    let took = passed(&mut daemon, 3000);
    assert!(took.as_secs_f64() >= 1.99, "{took:?}");
    let exported = daemon.done(&["export"]);
    assert!(exported.contains("tx_limit = \"1kpps\""), "{exported}");
    // Setting the same limit again does not fill the bucket: it has only the tokens that came
    // since.
    let emptied = Instant::now();
    daemon.done(&["port", "set", "vale0:a", "--tx-limit", "1kpps"]);
    passed(&mut daemon, 1000);
    let took = emptied.elapsed();
    assert!(took.as_secs_f64() >= 0.9, "{took:?}");
    kill_process(daemon.data_process("vale0"));
    // The bucket of the next data process is full.
    let took = passed(&mut daemon, 3000);
    assert!(took.as_secs_f64() >= 1.99, "{took:?}");
    daemon.done(&["port", "set", "vale0:a", "--tx-limit", "off"]);
    passed(&mut daemon, 5000);
    assert!(!daemon.done(&["export"]).contains("tx_limit"));
    assert_eq!(daemon.counters("a")["in_drops"], json!({}));
}

/// Objective: a frame that a port may not receive is dropped and counted by reason, and the sums
/// agree.
#[test]
fn what_is_beyond_the_limit_of_a_receiver_is_counted() {
    let mut daemon = Daemon::start();
    daemon.apply(
        "[switch.vale0.port.a]\n[switch.vale0.port.b]\n\
         rx_rate_limiter = { ops = { size = 5, refill_time = 3_600_000 } }",
    );
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    b.send(1).push(&frame(2, 1, 0));
    b.flush().unwrap();
    daemon.wait_for("the speaker", |_| !receive(&mut a).is_empty());
    let mut got = Vec::new();
    for number in 1..=20 {
        a.send(1).push(&frame(1, 2, number));
    }
    a.flush().unwrap();
    daemon.wait_for("the drops", |daemon| {
        got.extend(receive(&mut b));
        let drops = daemon.counters("b")["out_drops"]["rate_limit"].as_u64().unwrap_or(0);
        got.len() as u64 + drops == 20
    });
    // Five frames take the tokens that are there. At most one more may put the bucket into debt.
    assert!(got == [1, 2, 3, 4, 5] || got == [1, 2, 3, 4, 5, 6], "{got:?}");
    let metrics = daemon.get("/metrics");
    assert!(metrics.as_str().unwrap().contains("reason=\"rate_limit\""), "{metrics}");
}

/// An ARP reply of station 1 that says "this address is at me".
fn is_at_me(address: [u8; 4]) -> Vec<u8> {
    let (own, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let arp = [0, 1, 8, 0, 6, 4, 0, 2];
    [&other[..], &own, &[8, 6], &arp, &own, &address, &other, &[10, 0, 0, 2], &[0; 18]].concat()
}

/// Objective: a port with the guard and `--ip` speaks for no other address, from the moment it is
/// set; that survives the data process, is shown and exported, and is gone when it is lifted.
#[test]
fn the_guard_keeps_a_port_to_its_ip_addresses() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]");
    let shown = |daemon: &Daemon| daemon.get("/v1/switches/vale0/ports/a")["spec"]["ips"].clone();
    assert_eq!(shown(&daemon), json!(null), "a message without the rule is as before");
    let guard = ["port", "set", "vale0:a", "--guard", "--mac", "02:00:00:00:00:01"];
    daemon.done(&[&guard[..], &["--ip", "10.0.0.7,fd00::7"]].concat());
    assert_eq!(shown(&daemon), json!(["10.0.0.7", "fd00::7"]));
    assert!(daemon.done(&["port", "show", "vale0:a"]).contains("10.0.0.7"));
    let exported = daemon.done(&["export"]);
    assert!(exported.contains("ips = [") && exported.contains("\"fd00::7\""), "{exported}");
    assert_eq!(daemon.apply(&exported), Vec::<String>::new(), "{exported}");

    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    for (dropped, killed) in [(1, false), (2, true)] {
        if killed {
            kill_process(daemon.data_process("vale0"));
        }
        until_traffic_flows(&mut a, &mut b, &mut number);
        let arrived = |b: &mut netring::Port| {
            let packets = b.receive(64).map(|frame| frame.to_vec());
            let senders = packets.filter(|bytes| bytes[12..14] == [8, 6]);
            let senders: Vec<_> = senders.map(|bytes| bytes[28..32].to_vec()).collect();
            b.flush().unwrap();
            senders
        };
        for address in [[10, 0, 0, 1], [10, 0, 0, 7]] {
            daemon.wait_for("room", |_| send(&mut a, &is_at_me(address)));
        }
        let mut all = Vec::new();
        daemon.wait_for("the port's own address", |_| {
            all.extend(arrived(&mut b));
            all.contains(&vec![10, 0, 0, 7])
        });
        assert_eq!(all, [[10, 0, 0, 7]], "an address of another station came through");
        let count = |daemon: &Daemon| daemon.counters("a")["in_drops"]["arp_spoof"].clone();
        daemon.wait_for("the drop to be counted", |daemon| count(daemon) == json!(dropped));
    }
    let path = "/v1/switches/vale0/ports/a";
    let (status, refused) = daemon.ask("PATCH", path, &json!({"guard": false}));
    assert!(status == 400 && refused.to_string().contains("--ip none"), "{refused}");
    daemon.done(&["port", "set", "vale0:a", "--ip=none"]);
    assert_eq!(shown(&daemon), json!(null));
    daemon.done(&["port", "set", "vale0:a", "--ip=10.0.0.7"]);
    daemon.done(&["port", "set", "vale0:a", "--guard=off"]);
    assert_eq!(shown(&daemon), json!(null), "the addresses of a guard that is off");
}
