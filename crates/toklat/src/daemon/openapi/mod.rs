//! The API's OpenAPI 3.1 description, made from the table of routes and from types.
//!
//! The schemas of topologies come from the types themselves ([`topology::schema`]). Other replies
//! are in a table, in a short notation: `string`, `[T]` for a list, `{T}` for an object with any
//! keys, `T?` for a value that may be null, `integer 1..9` for a number in a range. A field whose
//! name ends with `?` may be left out. A test compares the table with the JSON of the types of
//! [`crate::api`].

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use topology::{PORT_NAME, SWITCH_NAME};

use crate::api::{ROUTES, Route};

/// The type of refusals (RFC 9457).
pub(super) const PROBLEM: &str = "application/problem+json";

enum Shape {
    /// An object with these fields.
    Object(&'static [(&'static str, &'static str)]),
    /// One of these words.
    Words(&'static [&'static str]),
}

use Shape::{Object, Words};

const TYPES: &[(&str, Shape)] = &[
    (
        "Error",
        Object(&[
            ("type", "string"),
            ("title", "string"),
            ("status", "integer 400..599"),
            ("detail", "string"),
            ("error", "ErrorCode"),
            ("reason", "string"),
            ("remedy", "string"),
        ]),
    ),
    (
        "ErrorCode",
        Words(&[
            "bad_request",
            "method_not_allowed",
            "too_large",
            "not_found",
            "exists",
            "busy",
            "stale",
            "forbidden",
            "needs_privilege",
            "limit",
            "data_process",
            "system",
        ]),
    ),
    (
        "Status",
        Object(&[
            ("version", "string"),
            ("pid", "integer"),
            ("uptime_s", "integer"),
            ("runtime_dir", "string"),
            ("switches", "integer"),
            ("ports", "integer"),
            ("descriptors", "integer"),
            ("descriptor_limit", "integer"),
        ]),
    ),
    (
        "QuotaInfo",
        Object(&[
            ("configured", "Quotas"),
            ("limits", "Limits"),
            ("users", "[UserQuota]"),
            ("refused", "Usage"),
        ]),
    ),
    ("UserQuota", Object(&[("uid", "integer"), ("usage", "Usage"), ("limits", "Limits")])),
    (
        "Usage",
        Object(&[
            ("ports", "integer"),
            ("switches", "integer"),
            ("pipes", "integer"),
            ("memory", "integer"),
            ("connections", "integer"),
            ("addresses", "integer"),
        ]),
    ),
    (
        "Limits",
        Object(&[
            ("ports", "integer?"),
            ("switches", "integer?"),
            ("pipes", "integer?"),
            ("memory", "integer?"),
            ("connections", "integer?"),
            ("addresses", "integer?"),
        ]),
    ),
    ("Applied", Object(&[("changes", "[Change]")])),
    (
        "Change",
        Object(&[
            ("action", "Action"),
            ("name", "string"),
            ("settings?", "[Setting]?"),
            ("interrupts?", "string?"),
        ]),
    ),
    ("Setting", Object(&[("name", "string"), ("old", "Any"), ("new", "Any")])),
    ("Action", Words(&["added", "changed", "replaced", "removed"])),
    (
        "SwitchInfo",
        Object(&[
            ("name", "string"),
            ("state", "SwitchState"),
            ("failure", "string?"),
            ("pid", "integer?"),
            ("restarts", "integer"),
            ("ephemeral", "boolean"),
            ("walls", "Walls"),
            ("ports", "integer"),
            ("owner", "integer?"),
            ("user", "integer?"),
            ("sflow?", "SflowInfo?"),
            ("config", "SwitchSpec"),
        ]),
    ),
    ("SflowInfo", Object(observed::SFLOW_INFO)),
    ("Walls", Object(&[("standing", "[string]"), ("refused", "[RefusedWall]")])),
    ("RefusedWall", Object(&[("wall", "string"), ("reason", "string")])),
    ("SwitchState", Words(&["running", "restarting", "failed"])),
    (
        "PortInfo",
        Object(&[
            ("name", "string"),
            ("id", "integer"),
            ("state", "PortState"),
            ("failure", "string?"),
            ("unconnected?", "string?"),
            ("worker", "integer?"),
            ("ephemeral", "boolean"),
            ("client", "Client?"),
            ("monitors", "string?"),
            ("memory", "MappedMemory"),
            ("tunnel?", "TunnelInfo?"),
            ("interface?", "InterfaceInfo?"),
            ("sflow_interface?", "integer?"),
            ("spec", "PortSpec"),
        ]),
    ),
    ("EvpnInfo", Object(hosts::SUMMARY)),
    ("EvpnCounters", Object(hosts::COUNTERS)),
    ("NeighborInfo", Object(hosts::NEIGHBOR)),
    ("VtepInfo", Object(hosts::VTEP)),
    ("MacInfo", Object(hosts::MAC)),
    ("RouteInfo", Object(hosts::ROUTE)),
    ("InterfaceInfo", Object(observed::INTERFACE_INFO)),
    ("LinkInfo", Object(observed::LINK_INFO)),
    ("TunnelInfo", Object(&[("inner_mtu", "integer?"), ("peers", "[PeerInfo]")])),
    (
        "PeerInfo",
        Object(&[
            ("address", "string"),
            ("in_frames", "integer"),
            ("in_bytes", "integer"),
            ("out_frames", "integer"),
            ("out_bytes", "integer"),
            ("too_long", "integer"),
            ("full", "integer"),
            ("unreachable", "integer"),
            ("refused", "integer"),
        ]),
    ),
    (
        "MappedMemory",
        Object(&[
            ("bytes", "integer"),
            ("mappings", "integer"),
            ("refused", "integer"),
            ("refused_by", "LimitOf?"),
        ]),
    ),
    ("LimitOf", Words(&["port", "user", "switch"])),
    ("PortState", Words(&["attached", "vacant", "waiting", "failed", "quarantined", "stalled"])),
    ("Client", Object(&[("pid", "integer"), ("uid", "integer")])),
    ("Origin", Words(&["learned", "static", "sticky", "remote", "tunnel"])),
    (
        "FdbEntry",
        Object(&[
            ("mac", "string"),
            ("vlan", "Vlan?"),
            ("port", "string"),
            ("fixed", "boolean"),
            ("origin", "Origin"),
            ("age_s", "integer"),
        ]),
    ),
    ("NewFdbEntry", Object(&[("mac", "Mac"), ("vlan?", "Vlan?"), ("port", "string")])),
    ("FdbFlush", Object(&[("port?", "string?"), ("vlan?", "Vlan?")])),
    ("Dropped", Object(observed::DROPPED)),
    ("DroppedFrame", Object(observed::DROPPED_FRAME)),
    ("Stats", Object(&[("at_ns", "integer"), ("switches", "[SwitchStats]")])),
    (
        "SwitchStats",
        Object(&[
            ("name", "string"),
            ("gone", "Counters"),
            ("lost_in_restarts", "integer"),
            ("restarts", "integer"),
            ("ports", "[PortStats]"),
            ("workers", "[WorkerStats]"),
        ]),
    ),
    ("Counters", Object(&COUNTERS)),
    ("PortStats", Object(&PORT_STATS)),
    (
        "WorkerStats",
        Object(&[
            ("passes", "integer"),
            ("busy_passes", "integer"),
            ("busy_ns", "integer"),
            ("frames", "integer"),
            ("sleeps", "integer"),
            ("kicks", "integer"),
            ("ports", "integer"),
            ("cpu", "integer?"),
            ("panics", "integer"),
            ("turns", "[TurnTime]"),
        ]),
    ),
    ("TurnTime", Object(&[("under_ns", "integer"), ("turns", "integer")])),
    (
        "PipeInfo",
        Object(&[
            ("parent", "string"),
            ("id", "string"),
            ("master", "Client?"),
            ("slave", "Client?"),
        ]),
    ),
    ("Upgrade", Object(&[("switch?", "string?")])),
    ("Upgraded", Object(&[("switches", "[UpgradedSwitch]")])),
    (
        "UpgradedSwitch",
        Object(&[
            ("name", "string"),
            ("old_pid", "integer?"),
            ("new_pid", "integer"),
            ("gap_ms", "integer"),
        ]),
    ),
    ("Stop", Object(&[("leave_data_processes?", "boolean")])),
];

/// Examples of some types, in JSON.
const EXAMPLES: &[(&str, &str)] = &[
    ("NewSwitch", r#"{"name": "vale7", "idle": "sleep", "workers": [{}, {}]}"#),
    ("NewPort", r#"{"name": "web", "lossless": true}"#),
    ("NewPort", r#"{"name": "vm1", "kind": {"vhost_user": {"queues": 2}}}"#),
    ("SwitchSpec", r#"{"batch": 32}"#),
    ("PortSpec", r#"{"tx_rate_limiter": {"bandwidth": {"size": 1250000, "refill_time": 100}}}"#),
    ("Topology", r#"{"switch": {"vale7": {"port": {"db": {"vlan": {"access": 10}}}}}}"#),
    ("Quotas", r#"{"user": {"1000": {"ports": 16}}}"#),
    ("NewFdbEntry", r#"{"mac": "02:00:00:00:00:01", "port": "web"}"#),
];

type Fields<const N: usize> = [(&'static str, &'static str); N];

const COUNTERS: Fields<28> = [
    ("in_frames", "integer"),
    ("in_bytes", "integer"),
    ("in_copies", "integer"),
    ("in_drops", "{integer}"),
    ("out_frames", "integer"),
    ("out_bytes", "integer"),
    ("out_drops", "{integer}"),
    ("out_segmented", "integer"),
    ("out_segments", "integer"),
    ("out_checksums", "integer"),
    ("batches", "[integer]"),
    ("kicks", "integer"),
    ("wakeups", "integer"),
    ("faults", "integer"),
    ("stalls", "integer"),
    ("slow_calls", "integer"),
    ("slowest_call_ns", "integer"),
    ("slow_touches", "integer"),
    ("slowest_touch_ns", "integer"),
    ("helped_kicks", "integer"),
    ("flaps", "integer"),
    ("unlearned", "integer"),
    ("reads", "integer"),
    ("writes", "integer"),
    ("posted_writes", "integer"),
    ("acknowledgements", "integer"),
    ("interrupts", "integer"),
    ("memory", "MappedMemory"),
];

const PORT_STATS: Fields<{ COUNTERS.len() + 3 }> =
    joined(&[("name", "string"), ("id", "integer"), ("state", "PortState")], &COUNTERS);

const fn joined<const N: usize>(
    first: &[(&'static str, &'static str)],
    rest: &[(&'static str, &'static str)],
) -> Fields<N> {
    let mut all = [("", ""); N];
    let mut i = 0;
    while i < N {
        all[i] = if i < first.len() { first[i] } else { rest[i - first.len()] };
        i += 1;
    }
    all
}

/// The description.
#[must_use]
pub fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_lowercase()] = operation(route);
    }
    let asked = asked();
    let of_table = TYPES.iter().map(|(name, shape)| {
        let mut schema = schema(shape);
        if matches!(shape, Object(_)) && asked.contains(name) {
            schema["additionalProperties"] = false.into();
        }
        ((*name).to_owned(), schema)
    });
    let mut schemas: Map<_, _> = drawn().into_iter().chain(of_table).collect();
    for (name, schema) in &mut schemas {
        let examples = EXAMPLES.iter().filter(|(of, _)| of == name);
        let examples = examples.filter_map(|(_, text)| serde_json::from_str(text).ok());
        let examples: Vec<Value> = examples.collect();
        if !examples.is_empty() {
            schema["examples"] = examples.into();
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "toklat control API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "JSON over HTTP on control.sock in the daemon's runtime directory.",
        },
        "servers": [
            { "url": "http://localhost", "description": "By the Unix socket: its permissions decide which users may connect" },
            {
                "url": "http://{address}",
                "description": "With --listen-tcp: clients need the token",
                "variables": { "address": { "default": "127.0.0.1:9000" } },
            },
        ],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// The types of topologies, and the fields that the API adds to them under the same name.
fn drawn() -> Map<String, Value> {
    let mut drawn = topology::schema::all("#/components/schemas");
    for (new, of, name) in
        [("NewSwitch", "SwitchSpec", SWITCH_NAME), ("NewPort", "PortSpec", PORT_NAME)]
    {
        let mut schema = drawn[of].clone();
        schema["properties"]["name"] = name_pattern(name);
        schema["required"] = json!(["name"]);
        drawn.insert(new.to_owned(), schema);
    }
    drawn
}

/// Types of the table that are used in requests: unknown fields are refused.
fn asked() -> BTreeSet<&'static str> {
    let mut asked = BTreeSet::new();
    let mut names: Vec<&str> = ROUTES.iter().map(|route| route.takes).collect();
    while let Some(name) = names.pop() {
        let name = name.trim_matches(|c| "[]{}?".contains(c));
        let Some((name, shape)) = TYPES.iter().find(|(known, _)| *known == name) else { continue };
        if asked.insert(*name)
            && let Object(fields) = shape
        {
            names.extend(fields.iter().map(|(_, kind)| kind));
        }
    }
    asked
}

fn operation(route: &Route) -> Value {
    let name = format!("{:?}", route.operation);
    let of = |name: &str| if route.list { format!("[{name}]") } else { name.to_owned() };
    let body = |name: &str| json!({ "application/json": { "schema": notation(name) } });
    let good = match (route.replies, route.path) {
        ("", "/metrics") => {
            json!({ "200": { "description": "Text", "content": { "text/plain": {} } } })
        }
        ("", "/openapi.json") => json!({ "200": { "description": "Done" } }),
        ("", _) => json!({ "204": { "description": "Done" } }),
        (reply, _) => {
            let status = if name.starts_with("Add") { "201" } else { "200" };
            json!({ status: { "description": "Done", "content": body(&of(reply)) } })
        }
    };
    let mut operation = json!({
        "operationId": name,
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": good,
    });
    operation["responses"]["default"] = json!({ "description": "Refused", "content": { PROBLEM: { "schema": notation("Error") } } });
    if !route.takes.is_empty() {
        operation["requestBody"] = json!({ "content": body(route.takes) });
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        let schema = notation("string");
        Some(json!({ "name": name, "in": "path", "required": true, "schema": schema }))
    });
    let others: &[(&str, &str, &str)] = match (route.method, route.path) {
        ("GET", "/v1/stats") => &[("query", "switch", "string")],
        ("DELETE", "/v1/switches/{switch}/fdb/{mac}") => &[("query", "vlan", "integer")],
        ("PUT", "/v1/topology") => &[
            ("query", "file", "string"),
            ("query", "prune", "boolean"),
            ("query", "dry_run", "boolean"),
            ("header", "If-Match", "string"),
        ],
        _ => &[],
    };
    let others = others
        .iter()
        .map(|(place, name, kind)| json!({ "name": name, "in": place, "schema": notation(kind) }));
    in_path.chain(others).collect()
}

fn schema(shape: &Shape) -> Value {
    match shape {
        Object(fields) => {
            let properties: Map<_, _> = fields
                .iter()
                .map(|(name, kind)| (name.trim_end_matches('?').to_owned(), notation(kind)))
                .collect();
            let required: Vec<_> =
                fields.iter().map(|(name, _)| *name).filter(|name| !name.ends_with('?')).collect();
            json!({ "type": "object", "properties": properties, "required": required })
        }
        Words(words) => json!({ "type": "string", "enum": words }),
    }
}

/// The schema of a type in this file's notation.
fn notation(kind: &str) -> Value {
    if let Some(inner) = kind.strip_suffix('?') {
        return json!({ "oneOf": [notation(inner), { "type": "null" }] });
    }
    if let Some(inner) = kind.strip_prefix('[').and_then(|k| k.strip_suffix(']')) {
        return json!({ "type": "array", "items": notation(inner) });
    }
    if let Some(inner) = kind.strip_prefix('{').and_then(|k| k.strip_suffix('}')) {
        return json!({ "type": "object", "additionalProperties": notation(inner) });
    }
    if let Some((min, max)) = range(kind) {
        return json!({ "type": "integer", "minimum": min, "maximum": max });
    }
    match kind {
        "string" | "boolean" => json!({ "type": kind }),
        "integer" => json!({ "type": kind, "minimum": 0 }),
        "Mac" => json!({ "type": "string", "pattern": "^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$" }),
        "Vlan" => json!({ "type": "integer", "minimum": 1, "maximum": 4094 }),
        "Any" => json!({ "description": "Any JSON" }),
        name => json!({ "$ref": format!("#/components/schemas/{name}") }),
    }
}

/// The ends of `integer 1..9`.
fn range(kind: &str) -> Option<(u64, u64)> {
    let (min, max) = kind.strip_prefix("integer ")?.split_once("..")?;
    Some((min.parse().ok()?, max.parse().ok()?))
}

/// As `check_name` has it.
fn name_pattern(max: usize) -> Value {
    json!({ "type": "string", "pattern": format!("^[A-Za-z0-9][A-Za-z0-9._-]{{0,{}}}$", max - 1) })
}

mod hosts;
mod observed;
#[cfg(test)]
mod tests;
