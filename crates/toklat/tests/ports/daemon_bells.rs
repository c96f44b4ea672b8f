//! Wake-ups that cost as much as the woken user wants: only that user pays.

use std::os::fd::AsFd;

use dataplane::attach::virtio::message::code;
use netring::layout::Fault;
use netring::{Interest, Port, PortError};
use nic::virtio::Features;
use serde_json::Value;

use harness::Daemon;
use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::front_end::FrontEnd;
use harness::strangers::{raise_descriptor_limit, watch};
use harness::users::{as_user, may_be_others, refusal};

const STRANGER: u32 = 4001;
const OTHER: u32 = 4002;

/// Floods a frame, which wakes every client that sleeps.
fn wake_all(a: &mut Port, b: &mut Port) {
    send(a, &frame(1, 77, 0));
    receive(a);
    receive(b);
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// Checks that a user's ports are at fault, and that others still exchange frames.
fn others_go_on(daemon: &mut Daemon, (a, b): (&mut Port, &mut Port), port: &str) {
    let info = daemon.get(&format!("/v1/switches/vale0/ports/{port}"));
    assert_eq!(info["state"], "failed", "{info}");
    assert!(harness::text(&info["failure"]).contains("at fault"), "{info}");
    let (_, why) = refusal(daemon.open_as(STRANGER, "vale0:another"));
    assert!(why.contains("at fault"), "{why}");
    drop(daemon.open_as(OTHER, "vale0:others").unwrap());
    until_traffic_flows(a, b, &mut 0);
    for name in ["a", "b"] {
        let counters = daemon.counters(name);
        assert_eq!(number(&counters["helped_kicks"]), 0, "{counters}");
    }
    let said = format!("user {STRANGER}: is at fault");
    daemon.wait_for("the log's line", |daemon| daemon.log().contains(&said));
}

/// Objective: the owner of a token that is watched 160,000 times is woken by a thread of its user's
/// own after the first slow wake-up, then not at all, and told so; others are served.
#[test]
fn regression_a_token_that_takes_long_to_ring_is_its_users_trouble() {
    let test = "regression_a_token_that_takes_long_to_ring_is_its_users_trouble";
    if !may_be_others(test) {
        return;
    }
    raise_descriptor_limit();
    let mut daemon = Daemon::start_for_all(&[]);
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut victim = daemon.open_as(STRANGER, "vale0:c").unwrap();
    until_traffic_flows(&mut a, &mut b, &mut 0);
    let _watches = watch(victim.as_fd());
    let mut helped = false;
    let mut fault = None;
    daemon.wait_for("the user to be at fault", |daemon| {
        let _ = victim.arm(Interest::READ);
        wake_all(&mut a, &mut b);
        victim.receive(64).count();
        fault = victim.flush().err();
        helped |= number(&daemon.counters("c")["helped_kicks"]) > 0;
        fault.is_some()
    });
    assert!(matches!(fault, Some(PortError::Fault(Fault::SlowBell))), "{fault:?}");
    assert!(helped, "it was woken by a thread of its own first");
    assert!(number(&daemon.counters("c")["slow_calls"]) > 0);
    others_go_on(&mut daemon, (&mut a, &mut b), "c");
}

/// Objective: wake-ups are charged to the right user also if a guest's front end watches the
/// guest's interrupts.
#[test]
fn regression_an_interrupt_that_takes_long_to_raise_is_its_users_trouble() {
    let test = "regression_an_interrupt_that_takes_long_to_raise_is_its_users_trouble";
    if !may_be_others(test) {
        return;
    }
    raise_descriptor_limit();
    let mut daemon = Daemon::start_for_all(&[]);
    daemon.apply(&format!(
        "[switch.vale0.port.c]\nowner = {STRANGER}\nkind.vhost_user = {{}}\ninterrupts = {{}}\n"
    ));
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let path = daemon.dir().join("vale0-c.sock");
    let features = Features::VERSION_1;
    let mut victim = as_user(STRANGER, || FrontEnd::start(&path, features));
    until_traffic_flows(&mut a, &mut b, &mut 0);
    let _watches = watch(victim.queues[0].call.as_fd());
    daemon.wait_for("the user to be at fault", |daemon| {
        wake_all(&mut a, &mut b);
        victim.receive();
        daemon.get("/v1/switches/vale0/ports/c")["state"] == "failed"
    });
    assert!(harness::front_end::say(&victim.socket, code::GET_FEATURES, &[], &[]));
    others_go_on(&mut daemon, (&mut a, &mut b), "c");
}
