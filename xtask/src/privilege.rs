//! The privileges that an ordinary user's tests get in a user namespace of their own. Tests that
//! are not listed are as the user is. As root, all are.

/// What tests may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// Make taps and network namespaces: with the user's own id and all capabilities
    /// (`unshare --user --map-current-user --keep-caps`).
    Capable,
    /// Become other users, and mount: as root, beside the user's subordinate ids
    /// (`unshare --user --map-root-user --map-auto --mount`).
    Root,
}

/// A package, its test program, and those of the program's modules that need a privilege; without
/// modules, all of it.
pub const TABLE: &[(&str, &str, Privilege, &[&str])] = &[
    ("toklat-dataplane", "tap", Privilege::Capable, &[]),
    ("toklat-dataplane", "offloads", Privilege::Capable, &[]),
    ("toklat-guest", "linux", Privilege::Capable, &[]),
    ("toklat-jail", "apart", Privilege::Root, &[]),
    ("toklat-jail", "walls", Privilege::Root, &[]),
    (
        "toklat",
        "control",
        Privilege::Root,
        &[
            "cli_wrong",
            "daemon_full_disk",
            "daemon_fuzz",
            "daemon_quotas",
            "daemon_strangers",
            "daemon_users",
            "daemon_view",
        ],
    ),
    ("toklat", "control", Privilege::Capable, &["docs"]),
    ("toklat", "ports", Privilege::Capable, &["daemon_endpoints"]),
    (
        "toklat",
        "ports",
        Privilege::Root,
        &["daemon_attach", "daemon_bells", "daemon_memory", "daemon_pages"],
    ),
    ("toklat", "guests", Privilege::Root, &["guest_walls"]),
    ("toklat", "vm", Privilege::Capable, &["vm_every_kind", "vm_ipxe", "vm_passt", "vm_uplink"]),
    ("toklat", "programs", Privilege::Root, &["pcap"]),
    ("toklat", "hosts", Privilege::Capable, &["cni", "interface", "links", "vxlan"]),
    ("toklat", "hosts", Privilege::Root, &["evpn"]),
    ("toklat", "packaging", Privilege::Root, &["packaging_install", "units"]),
    ("toklat", "siege", Privilege::Root, &[]),
];

/// What a test of a program may do; of the whole program where `test` is empty.
pub fn of(package: &str, program: &str, test: &str) -> Option<Privilege> {
    let module = test.split("::").next().unwrap_or_default();
    let is_it = |(of, name, _, modules): &&(&str, &str, Privilege, &[&str])| {
        *of == package && *name == program && (modules.is_empty() || modules.contains(&module))
    };
    TABLE.iter().find(is_it).map(|(.., privilege, _)| *privilege)
}
