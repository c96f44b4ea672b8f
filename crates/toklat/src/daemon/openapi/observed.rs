//! The types of a switch's observations: samples and drops.

/// What was sent to a collector.
pub(super) const SFLOW_INFO: &[(&str, &str)] = &[
    ("collector", "string"),
    ("rate", "integer"),
    ("polling_s", "integer"),
    ("sub_agent", "integer"),
    ("samples", "integer"),
    ("missed", "integer"),
    ("datagrams", "integer"),
    ("refused", "integer"),
    ("failure?", "string?"),
];

/// Frames that were dropped.
pub(super) const DROPPED: &[(&str, &str)] = &[
    ("next", "integer"),
    ("missed", "integer"),
    ("now_ns", "integer"),
    ("frames", "[DroppedFrame]"),
];

/// One of them.
pub(super) const DROPPED_FRAME: &[(&str, &str)] = &[
    ("at_ns", "integer"),
    ("from", "string"),
    ("by", "string?"),
    ("reason", "string"),
    ("len", "integer"),
    ("head", "string"),
];

/// The network interface of a port.
pub const INTERFACE_INFO: &[(&str, &str)] = &[
    ("engine", "string"),
    ("why", "string"),
    ("zero_copy", "boolean"),
    ("queues", "integer"),
    ("lost", "integer"),
    ("link", "LinkInfo?"),
];

/// A network interface, as the kernel describes it.
pub const LINK_INFO: &[(&str, &str)] = &[
    ("up", "boolean"),
    ("carrier", "boolean"),
    ("mtu", "integer"),
    ("promiscuous", "boolean"),
    ("mac", "string?"),
    ("kind", "string?"),
    ("statistics", "Any"),
];
