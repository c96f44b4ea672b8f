//! What `toklat doctor` sees of the network: ports that lose frames, VLANs with one member, MTUs
//! that differ.

use std::collections::{BTreeMap, BTreeSet};

use fabric::VlanMode;
use port::DropReason;

use super::Check;
use crate::api::{PortInfo, PortState, PortStats, SwitchStats};

/// Ports that lose a smaller part of their frames than one of this many are not named.
const FEW: u64 = 1000;
/// VLANs of a switch that are named.
const MOST_VLANS: usize = 5;

/// Looks at a switch.
pub fn look(ports: &[PortInfo], stats: &SwitchStats) -> Vec<Check> {
    let switch = &stats.name;
    let mut checks = Vec::new();
    for port in ports {
        let name = format!("{switch}:{}", port.name);
        if let Some(counters) = stats.ports.iter().find(|stats| stats.name == port.name) {
            checks.extend(drops(&name, port, ports, counters));
            checks.extend(flaps(&name, counters));
        }
        if port.state == PortState::Stalled {
            let remedy = format!(
                "its program takes no frames: end it, or toklat port set {name} --lossless=off"
            );
            checks.push(Check::limited("port", format!("{name} is stalled"), &remedy));
        }
    }
    checks.extend(lonely_vlans(switch, ports));
    checks.extend(unlike_mtus(switch, ports));
    checks
}

/// A port that loses frames, with the reason that most have.
fn drops(name: &str, port: &PortInfo, all: &[PortInfo], stats: &PortStats) -> Option<Check> {
    let counters = &stats.counters;
    let mut reasons = BTreeMap::<&str, (u64, DropReason)>::new();
    for (reason, count) in counters.in_drops.iter().chain(counters.out_drops.iter()) {
        reasons.entry(reason.name()).or_insert((0, *reason)).0 += count;
    }
    let lost: u64 = reasons.values().map(|(count, _)| count).sum();
    let frames = counters.in_frames + counters.out_frames + lost;
    if lost * FEW < frames.max(FEW) {
        return None;
    }
    let (_, most) = *reasons.values().max_by_key(|(count, _)| *count)?;
    let list: Vec<_> = reasons.iter().map(|(name, (count, _))| format!("{name} {count}")).collect();
    let found = format!("{name} has lost {lost} of {frames} frames: {}", list.join(", "));
    let remedy = match most {
        DropReason::NoDestination => cause_of_no_destination(port, all),
        other => remedy(other, name),
    };
    Some(Check::limited("drops", found, &remedy))
}

/// What changes that frames are dropped for a reason.
fn remedy(reason: DropReason, name: &str) -> String {
    match reason {
        DropReason::Full => format!(
            "its program takes frames too slowly; senders wait for it after: toklat port set {name} \
             --lossless"
        ),
        DropReason::StallTimeout => "its program takes no frames: see why it hangs".into(),
        DropReason::RateLimit => format!("raise its limit: toklat port set {name} --rx-limit"),
        DropReason::FloodLimit => {
            format!("a storm, or a receiver that never sends; toklat port set {name} --flood-limit")
        }
        DropReason::Vlan => format!("see the VLANs of {name}: toklat port set {name} --vlan-trunk"),
        DropReason::TooLong => format!("frames exceed the MTU: toklat port set {name} --mtu"),
        DropReason::Impaired => format!("its link is made bad: toklat port show {name}"),
        DropReason::Down => format!("its link is down: toklat port set {name} --link up"),
        _ => format!("toklat why {name} OTHER:PORT names what stops a frame; toklat cap --drops"),
    }
}

/// The reason why frames of a port have no receiver, and what changes it.
fn cause_of_no_destination(port: &PortInfo, all: &[PortInfo]) -> String {
    let others: Vec<_> = all.iter().filter(|other| other.name != port.name).collect();
    let shares = |other: &&&PortInfo| share_a_vlan(&port.spec.vlan(), &other.spec.vlan());
    let there = |other: &&&PortInfo| {
        other.client.is_some() || matches!(other.state, PortState::Attached | PortState::Stalled)
    };
    let policy = |port: &PortInfo| (port.spec.policy.protected, port.spec.policy.flood_limit);
    let in_vlan: Vec<_> = others.iter().filter(shares).collect();
    if others.is_empty() {
        return "no destination: the switch has no other port".into();
    }
    if in_vlan.is_empty() {
        return "no destination: no other port is in its VLAN; toklat port show lists VLANs".into();
    }
    if !in_vlan.iter().any(there) {
        return "no destination: the other ports wait for their clients; toklat port show".into();
    }
    if policy(port).0 && in_vlan.iter().all(|other| policy(other).0) {
        return "no destination: all ports are protected from each other; toklat port set \
                --protected=off"
            .into();
    }
    "no destination: when they were sent, no port had the address, or none was there; toklat fdb \
     show, toklat why"
        .into()
}

/// True if a frame of one can reach the other.
fn share_a_vlan(one: &VlanMode, other: &VlanMode) -> bool {
    match (one, other) {
        (VlanMode::Unaware, VlanMode::Unaware) => true,
        (VlanMode::Unaware, _) | (_, VlanMode::Unaware) => false,
        (VlanMode::Access(a), VlanMode::Access(b)) => a == b,
        (VlanMode::Access(a), VlanMode::Trunk { allowed, native })
        | (VlanMode::Trunk { allowed, native }, VlanMode::Access(a)) => {
            allowed.is_empty() || allowed.contains(a) || *native == Some(*a)
        }
        (VlanMode::Trunk { allowed: a, native: n }, VlanMode::Trunk { allowed: b, native: m }) => {
            a.is_empty()
                || b.is_empty()
                || a.iter().chain(n).any(|vlan| b.contains(vlan) || *m == Some(*vlan))
        }
    }
}

fn flaps(name: &str, stats: &PortStats) -> Option<Check> {
    let flaps = stats.counters.flaps;
    (flaps > 0).then(|| {
        let found = format!("{name}: addresses moved too often, {flaps} times");
        let remedy = "two stations have one address, or two switches are connected twice (a loop)";
        Check::limited("flaps", found, remedy)
    })
}

/// VLANs that one port alone is in.
fn lonely_vlans(switch: &str, ports: &[PortInfo]) -> Option<Check> {
    let mut members = BTreeMap::<u16, BTreeSet<&str>>::new();
    for port in ports {
        let vlans = match port.spec.vlan() {
            VlanMode::Unaware => Vec::new(),
            VlanMode::Access(vlan) => vec![vlan],
            // It is in every VLAN.
            VlanMode::Trunk { allowed, .. } if allowed.is_empty() => return None,
            VlanMode::Trunk { allowed, native } => allowed.into_iter().chain(native).collect(),
        };
        for vlan in vlans {
            members.entry(vlan.get()).or_default().insert(&port.name);
        }
    }
    let alone = members.iter().filter(|(_, ports)| ports.len() == 1);
    let alone = alone.filter_map(|(vlan, ports)| Some(format!("{vlan} ({})", ports.first()?)));
    let alone: Vec<_> = alone.collect();
    if alone.is_empty() {
        return None;
    }
    let shown = alone.iter().take(MOST_VLANS).cloned().collect::<Vec<_>>().join(", ");
    let more = alone.len().saturating_sub(MOST_VLANS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let found = format!("{switch}: one port alone is in VLAN {shown}{more}");
    Some(Check::limited("VLAN", found, "put another port there: toklat port set --vlan-access"))
}

/// Ports of unlike MTUs, between which large packets do not pass.
fn unlike_mtus(switch: &str, ports: &[PortInfo]) -> Option<Check> {
    let mut mtus = BTreeMap::<u16, &str>::new();
    for port in ports.iter().filter(|port| port.monitors.is_none()) {
        mtus.entry(port.spec.policy.mtu).or_insert(&port.name);
    }
    if mtus.len() < 2 {
        return None;
    }
    let list: Vec<_> = mtus.iter().map(|(mtu, port)| format!("{mtu} ({port})")).collect();
    let found = format!("{switch}: ports have MTUs {}", list.join(", "));
    let remedy = "one for all: toklat port set --mtu; senders of larger packets are told, or TCP \
                  is cut";
    Some(Check::limited("MTU", found, remedy))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn port(name: &str, spec: &Value, state: &str) -> PortInfo {
        serde_json::from_value(json!({
            "name": name, "id": 0, "state": state, "ephemeral": false,
            "memory": { "mappings": 0, "bytes": 0, "refused": 0 }, "spec": spec,
        }))
        .unwrap()
    }

    fn dropping(name: &str, way: &str, drops: Value) -> SwitchStats {
        let mut counters = serde_json::to_value(::port::stats::PortStats::default()).unwrap();
        counters[way] = drops;
        let mut port = json!({ "name": name, "id": 0, "state": "attached" });
        port.as_object_mut().unwrap().extend(counters.as_object().unwrap().clone());
        let mut stats = serde_json::to_value(::port::stats::SwitchStats::default()).unwrap();
        let own = json!({ "name": "vale0", "ports": [port], "workers": [] });
        stats.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        serde_json::from_value(stats).unwrap()
    }

    /// All that is said of a switch, in one text.
    fn said(ports: &[PortInfo], stats: &SwitchStats) -> String {
        let lines = look(ports, stats).into_iter();
        lines.map(|check| format!("{}: {}; {}\n", check.what, check.found, check.remedy)).collect()
    }

    #[test]
    fn frames_without_destination_have_a_cause() {
        let stats = dropping("a", "in_drops", json!({ "no_destination": 5 }));
        let a = |spec: Value| port("a", &spec, "attached");
        let b = |spec: Value, state: &str| port("b", &spec, state);
        let protected = json!({ "protected": true });
        for (ports, cause) in [
            (vec![a(json!({}))], "no other port"),
            (vec![a(json!({ "vlan": { "access": 7 } })), b(json!({}), "attached")], "in its VLAN"),
            (vec![a(json!({})), b(json!({}), "vacant")], "wait for their clients"),
            (vec![a(protected.clone()), b(protected.clone(), "attached")], "--protected=off"),
            (vec![a(json!({})), b(json!({}), "attached")], "no port had the address"),
        ] {
            let said = said(&ports, &stats);
            assert!(
                said.contains("drops: vale0:a has lost 5 of 5 frames: no_destination 5"),
                "{said}"
            );
            assert!(said.contains(cause), "{cause}: {said}");
        }
    }

    #[test]
    fn ports_that_drop_flap_and_stall_are_named_with_the_remedy() {
        let full = dropping("a", "out_drops", json!({ "full": 900, "rate_limit": 3 }));
        let text = said(&[port("a", &json!({}), "stalled")], &full);
        assert!(
            text.contains("full 900, rate_limit 3; its program takes frames too slowly"),
            "{text}"
        );
        assert!(text.contains("vale0:a is stalled"), "{text}");
        let mut few = dropping("a", "out_drops", json!({ "full": 9 }));
        few.ports[0].counters.in_frames = 100_000;
        few.ports[0].counters.flaps = 4;
        let text = said(&[port("a", &json!({}), "attached")], &few);
        assert!(text.starts_with("flaps: vale0:a: ") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn vlans_with_one_member_and_unlike_mtus_are_named() {
        let none = dropping("x", "in_drops", json!({}));
        let trunk = json!({ "vlan": { "trunk": { "allowed": [7, 8], "native": null } } });
        let ports = [
            port("a", &json!({ "vlan": { "access": 7 } }), "attached"),
            port("b", &json!({ "vlan": { "access": 9 }, "mtu": 9000 }), "attached"),
            port("t", &trunk, "attached"),
        ];
        let text = said(&ports, &none);
        assert!(text.contains("VLAN: vale0: one port alone is in VLAN 8 (t), 9 (b)"), "{text}");
        assert!(text.contains("MTU: vale0: ports have MTUs 1500 (a), 9000 (b)"), "{text}");
        let everywhere = port(
            "t",
            &json!({ "vlan": { "trunk": { "allowed": [], "native": null } } }),
            "attached",
        );
        let text = said(&[ports[0].clone(), everywhere], &none);
        assert_eq!(text, "");
    }
}
