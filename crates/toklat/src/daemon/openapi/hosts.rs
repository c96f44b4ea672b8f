//! The types of EVPN.

/// A list of fields: their names and types.
type Fields = &'static [(&'static str, &'static str)];

pub const SUMMARY: Fields = &[
    ("connected", "boolean"),
    ("trouble", "string?"),
    ("restarts", "integer"),
    ("routes", "integer"),
    ("stale", "integer"),
    ("own", "integer"),
    ("counters", "EvpnCounters"),
    ("neighbors", "[NeighborInfo]"),
    ("vteps", "[VtepInfo]"),
];

pub const COUNTERS: Fields = &[
    ("updates", "integer"),
    ("withdrawals", "integer"),
    ("malformed", "integer"),
    ("other_tunnel", "integer"),
    ("bad_host", "integer"),
    ("over_limit", "integer"),
    ("moves", "integer"),
    ("duplicates", "integer"),
];

pub const NEIGHBOR: Fields = &[
    ("address", "string"),
    ("as", "integer"),
    ("state", "string"),
    ("received", "integer"),
    ("advertised", "integer"),
    ("flaps", "integer"),
    ("reason", "string"),
];

pub const VTEP: Fields = &[
    ("vni", "integer"),
    ("address", "string"),
    ("number", "integer"),
    ("stations", "integer"),
    ("floods", "boolean"),
    ("ignored", "integer"),
];

pub const MAC: Fields = &[
    ("vni", "integer"),
    ("mac", "string"),
    ("host", "string?"),
    ("sticky", "boolean"),
    ("sequence", "integer"),
    ("moves", "integer"),
    ("duplicate", "boolean"),
];

pub const ROUTE: Fields = &[
    ("kind", "integer"),
    ("rd", "string"),
    ("vni", "integer"),
    ("mac", "string?"),
    ("ip", "string?"),
    ("host", "string"),
    ("targets", "[string]"),
    ("sticky", "boolean"),
    ("sequence", "integer"),
    ("used", "boolean"),
    ("stale", "boolean"),
];
