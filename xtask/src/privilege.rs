//! The privileges that an ordinary user's tests get in a user namespace of their own. Tests that are
//! not listed are as the user is. As root, all are.

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

/// A test program, and those of its modules that need a privilege; without modules, all of it.
pub const TABLE: &[(&str, Privilege, &[&str])] = &[
    ("tap", Privilege::Capable, &[]),
    ("offloads", Privilege::Capable, &[]),
    ("linux", Privilege::Capable, &[]),
    ("walls", Privilege::Root, &[]),
    (
        "control",
        Privilege::Root,
        &[
            "cli_wrong",
            "daemon_full_disk",
            "daemon_fuzz",
            "daemon_quotas",
            "daemon_strangers",
            "daemon_users",
        ],
    ),
    ("ports", Privilege::Capable, &["daemon_endpoints"]),
    ("ports", Privilege::Root, &["daemon_attach", "daemon_bells", "daemon_memory", "daemon_pages"]),
    ("guests", Privilege::Root, &["guest_walls"]),
    ("vm", Privilege::Capable, &["vm_every_kind", "vm_ipxe", "vm_passt", "vm_uplink"]),
    ("programs", Privilege::Root, &["pcap"]),
    ("hosts", Privilege::Capable, &["cni", "interface", "vxlan"]),
    ("hosts", Privilege::Root, &["evpn"]),
    ("packaging", Privilege::Root, &["packaging_install", "units"]),
    ("siege", Privilege::Root, &[]),
];
