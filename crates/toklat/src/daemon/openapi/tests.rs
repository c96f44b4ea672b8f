//! Compares the tables with the JSON of the API's types.

use super::super::api_server::Problem;
use super::*;
use crate::api::*;
use axum::http::StatusCode;
use dataplane::config::SwitchConfig;
use dataplane::state::{LimitOf, MappedMemory};
use frame::Mac;
use serde::Serialize;

/// `None` for types whose schema is derived.
fn shape(name: &str) -> Option<&'static Shape> {
    let found = TYPES.iter().find(|(known, _)| *known == name).map(|(_, shape)| shape);
    assert!(found.is_some() || drawn().contains_key(name), "{name} is not described");
    found
}

/// Checks `value` against type `kind`. Every field must be in the table. Every field of the table
/// that is not optional must be in the value.
fn check(value: &Value, kind: &str, at: &str) {
    if let Some(inner) = kind.strip_suffix('?') {
        return if value.is_null() {
        } else {
            check(value, inner, at)
        };
    }
    if let Some(inner) = kind.strip_prefix('[').and_then(|k| k.strip_suffix(']')) {
        let list = value.as_array().unwrap_or_else(|| panic!("{at} is not a list"));
        return list.iter().for_each(|value| check(value, inner, at));
    }
    if let Some(inner) = kind.strip_prefix('{').and_then(|k| k.strip_suffix('}')) {
        let map = value.as_object().unwrap_or_else(|| panic!("{at} is not an object"));
        return map.values().for_each(|value| check(value, inner, at));
    }
    match kind {
        "Any" => {}
        "string" | "Mac" => {
            assert!(value.is_string(), "{at}: {value}");
        }
        "Vlan" => assert!(value.as_u64().is_some_and(|vlan| (1..4095).contains(&vlan))),
        kind if range(kind).is_some() => {
            let (min, max) = range(kind).unwrap();
            let within = value.as_u64().is_some_and(|number| (min..=max).contains(&number));
            assert!(within, "{at}: {value}");
        }
        "integer" => assert!(value.is_u64(), "{at}: {value}"),
        "boolean" => assert!(value.is_boolean(), "{at}: {value}"),
        name => {
            if let Some(shape) = shape(name) {
                check_shape(value, shape, &format!("{at} ({name})"));
            }
        }
    }
}

fn check_shape(value: &Value, shape: &Shape, at: &str) {
    match shape {
        Words(words) => assert!(words.contains(&value.as_str().unwrap()), "{at}: {value}"),
        Object(fields) => {
            let object = value.as_object().unwrap_or_else(|| panic!("{at}: {value}"));
            let name_of = |field: &str| field.trim_end_matches('?').to_owned();
            for (key, value) in object {
                let field = fields.iter().find(|(name, _)| name_of(name) == *key);
                let kind = field.unwrap_or_else(|| panic!("{at} has {key}")).1;
                check(value, kind, &format!("{at}.{key}"));
            }
            for (name, _) in fields.iter().filter(|(name, _)| !name.ends_with('?')) {
                assert!(object.contains_key(*name), "{at} has no {name}");
            }
        }
    }
}

/// Each field of a sample must be in the table, and each field of the table in the sample.
fn full(kind: &str, sample: impl Serialize) {
    let value = serde_json::to_value(sample).unwrap();
    check(&value, kind, kind);
    if let (Some(Object(fields)), Some(object)) = (shape(kind), value.as_object()) {
        for (name, _) in *fields {
            let name = name.trim_end_matches('?');
            assert!(object.contains_key(name), "the type {kind} has no {name}");
        }
    }
}

fn sflow() -> SflowInfo {
    SflowInfo {
        collector: "192.0.2.1".parse().unwrap(),
        rate: 1,
        polling_s: 1,
        sub_agent: 1,
        samples: 1,
        missed: 1,
        datagrams: 1,
        refused: 1,
        failure: Some("no".into()),
    }
}

#[test]
fn the_table_of_types_is_what_the_types_are() {
    let name = || "x".to_owned();
    let refused = ApiError::new(ErrorCode::Busy, "a", "b");
    full("Error", Problem::of(StatusCode::CONFLICT, &refused));
    let (usage, limits) = (Usage::default(), Limits::default());
    let users = vec![UserQuota { uid: 1, usage, limits }];
    full("QuotaInfo", QuotaInfo { configured: Quotas::default(), limits, users, refused: usage });
    let setting = Setting { name: name(), old: Value::Null, new: json!(1) };
    full("Setting", setting.clone());
    let change = Change {
        action: Action::Added,
        name: name(),
        settings: vec![setting],
        interrupts: Some(name()),
    };
    full("Applied", Applied { changes: vec![change] });
    let client = Client { pid: 1, uid: 2 };
    full("SflowInfo", sflow());
    let frame = DroppedFrame {
        at_ns: 1,
        from: name(),
        by: Some(name()),
        reason: name(),
        len: 60,
        head: name(),
    };
    full("DroppedFrame", frame.clone());
    full("Dropped", Dropped { next: 1, missed: 1, now_ns: 1, frames: vec![frame] });
    full(
        "SwitchInfo",
        SwitchInfo {
            name: name(),
            state: SwitchState::Running,
            failure: None,
            pid: Some(1),
            restarts: 0,
            ephemeral: false,
            walls: jail::Walls {
                standing: vec![jail::Wall::Memory],
                refused: vec![jail::Refused { wall: jail::Wall::User, reason: name() }],
            },
            ports: 0,
            owner: None,
            user: None,
            sflow: Some(sflow()),
            config: SwitchConfig::default(),
        },
    );
    let peer = PeerInfo {
        address: [127, 0, 0, 1].into(),
        in_frames: 1,
        in_bytes: 1,
        out_frames: 1,
        out_bytes: 1,
        too_long: 1,
        full: 1,
        unreachable: 1,
        refused: 1,
    };
    full("PeerInfo", peer);
    evpn_types();
    let link = LinkInfo {
        up: true,
        carrier: true,
        mtu: 1500,
        promiscuous: true,
        mac: Some(Mac::local(1)),
        kind: Some(name()),
        statistics: [("rx_packets".to_owned(), 1)].into(),
    };
    full("LinkInfo", link.clone());
    let (engine, why, link) = (name(), name(), Some(link));
    let interface = InterfaceInfo { engine, why, zero_copy: true, queues: 1, lost: 1, link };
    full("InterfaceInfo", interface.clone());
    full("TunnelInfo", TunnelInfo { inner_mtu: Some(1), peers: vec![peer] });
    full(
        "PortInfo",
        PortInfo {
            name: name(),
            id: 1,
            state: PortState::Vacant,
            failure: None,
            unconnected: None,
            worker: None,
            ephemeral: true,
            client: Some(client),
            monitors: None,
            memory: MappedMemory { refused_by: Some(LimitOf::User), ..Default::default() },
            tunnel: Some(TunnelInfo { inner_mtu: Some(1), peers: vec![peer] }),
            interface: Some(interface),
            sflow_interface: Some(1),
            spec: PortSpec::default(),
        },
    );
    let (mac, origin) = (Mac::local(1), fabric::Origin::Static);
    let entry = FdbEntry { mac, vlan: None, port: name(), fixed: true, origin, age_s: 1 };
    full("FdbEntry", entry);
    full("NewFdbEntry", NewFdbEntry { mac: Mac::local(1), vlan: None, port: name() });
    full("FdbFlush", FdbFlush::default());
    full("PipeInfo", PipeInfo { parent: name(), id: name(), master: None, slave: None });
    full("Upgrade", Upgrade::default());
    let upgraded = UpgradedSwitch { name: name(), old_pid: None, new_pid: 1, gap_ms: 1 };
    full("Upgraded", Upgraded { switches: vec![upgraded] });
    full("Stop", Stop::default());
    let port = PortStats {
        name: name(),
        id: 1,
        state: PortState::Attached,
        counters: dataplane::state::PortStats::default(),
    };
    full("PortStats", port.clone());
    full("TurnTime", dataplane::state::TurnTime { under_ns: 1, turns: 1 });
    full("WorkerStats", WorkerStats::default());
    let totals = dataplane::state::SwitchStats::default();
    let workers = vec![WorkerStats::default()];
    let switch = SwitchStats { name: name(), totals, ports: vec![port], workers };
    full("SwitchStats", switch);
    full("Stats", Stats { at_ns: 1, switches: vec![] });
}

fn evpn_types() {
    use evpn::report::{MacInfo, NeighborInfo, RouteInfo, Summary, VtepInfo};
    use evpn::route::RouteTarget;
    let (ip, mac, name) = ([127, 0, 0, 1].into(), Mac::local(1), || "x".to_owned());
    let vtep = VtepInfo { vni: 1, address: ip, number: 1, stations: 1, floods: true, ignored: 1 };
    let neighbor = NeighborInfo {
        address: name(),
        asn: 1,
        state: name(),
        received: 1,
        advertised: 1,
        flaps: 1,
        reason: name(),
    };
    full("VtepInfo", vtep.clone());
    full("NeighborInfo", neighbor.clone());
    let (neighbors, vteps) = (vec![neighbor], vec![vtep]);
    full("EvpnInfo", Summary { neighbors, vteps, ..Summary::default() });
    full("EvpnCounters", evpn::rib::Counters::default());
    let (sticky, sequence) = (true, 1);
    let host = Some(ip);
    full("MacInfo", MacInfo { vni: 1, mac, host, sticky, sequence, moves: 1, duplicate: true });
    let route = RouteInfo {
        kind: 2,
        rd: name(),
        vni: 1,
        mac: Some(mac),
        ip: Some(ip),
        host: ip,
        targets: vec![RouteTarget::auto(1, 1)],
        sticky,
        sequence,
        used: true,
        stale: true,
    };
    full("RouteInfo", route);
}

#[test]
fn every_route_and_every_type_it_names_is_described() {
    let document = document();
    for route in ROUTES {
        let operation = &document["paths"][route.path][route.method.to_lowercase()];
        assert_eq!(operation["summary"], route.summary, "{} {}", route.method, route.path);
        for name in [route.takes, route.replies].into_iter().filter(|name| !name.is_empty()) {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name} is not there");
    }
}

#[test]
fn examples_are_what_the_types_take() {
    fn is<T: serde::de::DeserializeOwned>(text: &str) {
        serde_json::from_str::<T>(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    }
    for (name, text) in EXAMPLES {
        match *name {
            "NewSwitch" => is::<NewSwitch>(text),
            "NewPort" => is::<NewPort>(text),
            "SwitchSpec" => is::<SwitchSpec>(text),
            "PortSpec" => is::<PortSpec>(text),
            "Topology" => is::<Topology>(text),
            "Quotas" => is::<Quotas>(text),
            "NewFdbEntry" => is::<NewFdbEntry>(text),
            other => panic!("{other} has no check"),
        }
        assert!(document()["components"]["schemas"][name]["examples"].is_array());
    }
}

#[test]
fn every_route_is_listed_once() {
    let routes: std::collections::HashSet<_> = ROUTES.iter().map(|r| (r.method, r.path)).collect();
    let operations: std::collections::HashSet<_> = ROUTES.iter().map(|r| r.operation).collect();
    assert_eq!((routes.len(), operations.len()), (ROUTES.len(), ROUTES.len()));
}
