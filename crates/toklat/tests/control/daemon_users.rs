//! Users who share a daemon: which user owns a switch, and what other users may do with it.

use harness::users::{as_user, may_be_others, refusal};
use harness::{Daemon, text};
use rustix::io::Errno;
use serde_json::json;
use std::os::unix::net::UnixStream;

const ALICE: u32 = 12_001;
const BOB: u32 = 12_002;

#[test]
fn a_tenants_switch_is_closed_to_others() {
    if !may_be_others("a_tenants_switch_is_closed_to_others") {
        return;
    }
    let daemon = Daemon::start_for_all(&[]);
    let alice = ALICE.to_string();
    daemon.done(&["switch", "add", "vale0", "--user", &alice]);
    assert_eq!(daemon.get("/v1/switches/vale0")["user"], ALICE);
    assert!(daemon.done(&["switch", "show"]).contains(&format!("only {alice}")));
    let _hers = daemon.open_as(ALICE, "vale0:a").unwrap();
    let _root = daemon.open("vale0:root").unwrap();
    for port in ["vale0:b", "vale0:a", "vale0:a/r"] {
        let (errno, message) = refusal(daemon.open_as(BOB, port));
        assert_eq!(errno, Errno::ACCESS, "{port}: {message}");
    }
    // No port of the switch belongs to another user, neither a new port nor an old one.
    let ports = "/v1/switches/vale0/ports";
    let (status, answer) = daemon.ask("POST", ports, &json!({"name": "b", "owner": BOB}));
    assert_eq!((status, text(&answer["error"])), (400, "bad_request"), "{answer}");
    let patch = json!({"owner": BOB});
    assert_eq!(daemon.ask("PATCH", &format!("{ports}/a"), &patch).0, 400);
    assert_eq!(daemon.ask("PATCH", "/v1/switches/vale0", &patch).0, 400);
    // `export` and `apply` know the switch's user.
    assert!(daemon.done(&["export"]).contains(&format!("user = {ALICE}")));
}

#[test]
fn a_switch_becomes_a_tenants_when_no_other_user_is_there() {
    if !may_be_others("a_switch_becomes_a_tenants_when_no_other_user_is_there") {
        return;
    }
    let mut daemon = Daemon::start_for_all(&[]);
    daemon.apply("[switch.vale0.port.b]");
    let bobs = daemon.open_as(BOB, "vale0:b").unwrap();
    let give = json!({"user": ALICE});
    let (status, answer) = daemon.ask("PATCH", "/v1/switches/vale0", &give);
    assert_eq!((status, text(&answer["error"])), (409, "busy"), "{answer}");
    assert!(text(&answer["reason"]).contains("vale0:b"), "{answer}");
    drop(bobs);
    daemon.wait_for("the port to be vacant", |daemon| daemon.ports("vale0")[0].1 == "vacant");
    assert_eq!(daemon.ask("PATCH", "/v1/switches/vale0", &give).0, 200);
    assert_eq!(refusal(daemon.open_as(BOB, "vale0:b")).0, Errno::ACCESS);
    daemon.open_as(ALICE, "vale0:b").unwrap();
    daemon.done(&["switch", "set", "vale0", "--user", "none"]);
    daemon.open_as(BOB, "vale0:c").unwrap();
}

/// Whether a user can connect to a socket and stays connected.
fn connects(daemon: &Daemon, uid: u32) -> bool {
    let path = daemon.dir().join("vale0-vm.sock");
    as_user(uid, || UnixStream::connect(&path).is_ok())
}

#[test]
fn a_guests_socket_follows_its_switchs_user() {
    if !may_be_others("a_guests_socket_follows_its_switchs_user") {
        return;
    }
    // Without a group, only the owner may use the socket.
    let daemon = Daemon::start();
    std::fs::set_permissions(daemon.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    daemon
        .apply("[switch.vale0]\nuser = 12001\n[switch.vale0.port.vm]\nkind = { vhost_user = {} }");
    assert!(connects(&daemon, ALICE) && !connects(&daemon, BOB));
    daemon
        .apply("[switch.vale0]\nuser = 12002\n[switch.vale0.port.vm]\nkind = { vhost_user = {} }");
    assert!(connects(&daemon, BOB) && !connects(&daemon, ALICE));
    daemon.done(&["switch", "set", "vale0", "--user=none"]);
    daemon.done(&["port", "set", "vale0:vm", &format!("--owner={ALICE}")]);
    assert!(connects(&daemon, ALICE) && !connects(&daemon, BOB));
}
