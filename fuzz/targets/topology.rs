//! Topology files: any text is refused with a reason, or is a topology that is the same after a
//! round trip, also through what a restart reads. What the daemon would accept names switches and
//! ports by words that are names in paths and on screens, and gives no socket, tap or file to two
//! ports; that is looked at here by other means.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use toklat::api::Topology;
use topology::{check, check_each};

fuzz_target!(|text: &str| {
    let Ok(net) = toml::from_str::<Topology>(text) else { return };
    let again = toml::to_string(&net).expect("a topology can be written");
    assert_eq!(toml::from_str::<Topology>(&again).expect("and read again"), net);
    let saved = serde_json::to_string(&net).expect("a topology can be saved");
    let restored: Topology = serde_json::from_str(&saved).expect("and restored");
    assert_eq!(restored, net);
    if let Err(refused) = check(&net) {
        assert!(!refused.reason.is_empty() && !refused.remedy.is_empty(), "{refused:?}");
        return;
    }
    check(&restored).expect("a restart accepts what was accepted");
    accepted(net, &saved);
});

/// Checks the properties that every accepted topology must have.
fn accepted(mut net: Topology, saved: &str) {
    let is_name = |name: &String| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !name.is_empty() && name.len() <= 255 && name.chars().all(is_part) && !name.starts_with('.')
    };
    let ports = net.switch.values().flat_map(|switch| switch.port.keys());
    assert!(net.switch.keys().chain(ports).all(is_name), "{net:?}");
    // No two ports may have the same path.
    let value: serde_json::Value = serde_json::from_str(saved).expect("it was written");
    let mut paths = BTreeSet::new();
    let switches = value["switch"].as_object().into_iter().flat_map(|all| all.values());
    let ports =
        switches.filter_map(|switch| switch["port"].as_object()).flat_map(|all| all.values());
    for (word, kind) in ports.filter_map(|port| port["kind"].as_object()).flatten() {
        let field = match word.as_str() {
            "vhost_user" | "vfio_user" => "path",
            "stream" => "address",
            _ => continue,
        };
        let makes_it = kind["client"] != true;
        if let Some(socket) = kind[field].as_str().filter(|_| makes_it) {
            assert!(paths.insert(socket.to_owned()), "{socket} is used twice");
        }
    }
    // Each part of an accepted topology must be accepted by itself.
    while let Some((name, switch)) = net.switch.pop_first() {
        let part = Topology { switch: [(name, switch)].into(), ..Topology::default() };
        check_each(&part).expect("a part of what was accepted");
    }
}
