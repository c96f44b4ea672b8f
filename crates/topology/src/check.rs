//! Checks of settings: names, numbers and combinations.

use std::collections::BTreeMap;
use std::net::IpAddr;

use fabric::{Impairment, RateLimiter, VlanMode};

use crate::{
    Evpn, Invalid, Policy, PortKind, PortSpec, SwitchConfig, SwitchSpec, Topology, group, guest,
    users,
};

/// Longest switch name in bytes: its socket's path must fit a socket address.
pub const SWITCH_NAME: usize = 15;
/// Longest port name in bytes: with its switch's name it fits netmap's 64.
pub const PORT_NAME: usize = 31;
/// What [`check_name`] takes for a switch, as a regular expression.
pub const SWITCH_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$";
/// What [`check_name`] takes for a port, as a regular expression.
pub const PORT_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,30}$";
/// Most workers of a switch.
pub const MAX_WORKERS: usize = 64;

/// The socket between the daemon and the data process of switch `a-b` is `a-b.data.sock`; that of
/// port `b.data` of switch `a` would be, too.
const DATA_SOCKET: &str = ".data";

/// Checks a name of a switch (`max` [`SWITCH_NAME`]) or port ([`PORT_NAME`]).
///
/// # Errors
/// Says what a name may be.
pub fn check_name(name: &str, max: usize) -> Result<(), Invalid> {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = (1..=max).contains(&name.len())
        && name.chars().all(letter)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if good {
        return Ok(());
    }
    Err(Invalid::new(
        format!("{name:?} is not a name"),
        format!(
            "use 1 to {max} of the characters a-z, A-Z, 0-9, '-', '_' and '.', and start with a \
             letter or digit"
        ),
    ))
}

/// Checks a whole topology.
///
/// # Errors
/// Names the first invalid setting.
pub fn check(topology: &Topology) -> Result<(), Invalid> {
    check_each(topology)?;
    check_claims(topology)
}

/// Checks each setting by itself.
///
/// # Errors
/// Names the first invalid setting.
pub fn check_each(topology: &Topology) -> Result<(), Invalid> {
    topology.evpn.iter().try_for_each(Evpn::check)?;
    crate::check_links(&topology.link)?;
    group::check_groups(topology)?;
    for (name, spec) in &topology.guest {
        spec.check_as(name)?;
    }
    for (name, spec) in &topology.switch {
        check_name(name, SWITCH_NAME)?;
        check_switch(name, spec)?;
    }
    Ok(())
}

/// Checks that no two ports claim the same resource, and that ports referred to by name exist.
///
/// # Errors
/// Names both ports, or the missing one.
pub fn check_claims(topology: &Topology) -> Result<(), Invalid> {
    guest::check_places(topology)?;
    group::check_names(topology)?;
    let mut claims = BTreeMap::new();
    for (switch, spec) in &topology.switch {
        for (port, port_spec) in &spec.port {
            let name = format!("{switch}:{port}");
            for (what, remedy) in claims_of((switch, port), port_spec) {
                if let Some(other) = claims.insert(what.clone(), name.clone()) {
                    return Err(Invalid::new(
                        format!("{what} is used twice: by {other} and {name}"),
                        remedy,
                    ));
                }
            }
            let links = [&port_spec.policy.tx_link, &port_spec.policy.rx_link];
            for link in links.into_iter().flatten() {
                crate::link_words(link, &topology.link).map_err(|error| {
                    Invalid::new(format!("{name}: {}", error.reason), error.remedy)
                })?;
            }
            let mirrors = [&port_spec.policy.mirror_ingress, &port_spec.policy.mirror_egress];
            let missing = mirrors.into_iter().flatten().find(|to| !spec.port.contains_key(*to));
            if let Some(to) = missing {
                let reason = format!("{name} is mirrored to {switch}:{to}, which does not exist");
                return Err(Invalid::new(
                    reason,
                    format!("add it before: toklat port add {switch}:{to}"),
                ));
            }
        }
    }
    Ok(())
}

/// A resource that only one port may have, in words, and the remedy if two claim it.
fn claims_of((switch, port): (&str, &str), spec: &PortSpec) -> Vec<(String, &'static str)> {
    // The key includes the VLAN: another port may have the same address in another VLAN.
    let place = match &spec.vlan() {
        VlanMode::Unaware => Some(switch.to_owned()),
        VlanMode::Access(id) => Some(format!("{switch}, VLAN {id}")),
        VlanMode::Trunk { .. } => None,
    };
    let macs = place.into_iter().flat_map(|place| {
        let claim = move |mac: &frame::Mac| format!("Address {mac} on {place}");
        spec.policy.macs.iter().map(claim)
    });
    let remedy = "give each port an address of its own: --mac";
    let mut claims: Vec<_> = macs.map(|claim| (claim, remedy)).collect();
    if spec.kind.settings().has_default_socket() {
        // `a-b:c` and `a:b-c` have one name.
        let socket = format!("The socket {switch}-{port}.sock in the runtime directory");
        claims.push((socket, "name another socket for one of the ports: --socket, --stream"));
    }
    let kind = spec.kind.settings().claims().into_iter();
    claims.extend(kind.map(|claim| (claim.what, claim.remedy)));
    claims
}

/// Checks a switch and its ports.
///
/// # Errors
/// Names the first invalid setting.
pub fn check_switch(name: &str, spec: &SwitchSpec) -> Result<(), Invalid> {
    check_config(name, &spec.config)?;
    check_owner(name, spec.owner, spec.user)?;
    for (what, value, most) in
        [("sflow_rate", spec.sflow_rate, 1 << 24), ("sflow_polling_s", spec.sflow_polling_s, 3600)]
    {
        check_range(name, what, value.unwrap_or(1).into(), 1, most)?;
    }
    if spec.port.len() > usize::from(spec.config.max_ports) {
        let reason = format!("{name} has {} ports", spec.port.len());
        return Err(Invalid::new(
            reason,
            format!("raise max_ports from {}", spec.config.max_ports),
        ));
    }
    for (port, port_spec) in &spec.port {
        check_name(port, PORT_NAME)?;
        let name = format!("{name}:{port}");
        check_port(&name, port_spec, &spec.config)?;
        check_owner(&name, port_spec.owner, spec.user)?;
    }
    Ok(())
}

/// Checks that an object of a tenant's switch has no other owner; `name` is for the message.
///
/// # Errors
/// The owner is another user.
pub fn check_owner(name: &str, owner: Option<u32>, user: Option<u32>) -> Result<(), Invalid> {
    match (owner, user) {
        (Some(owner), Some(user)) if owner != user => {
            let (owner, user) = (users::name(owner), users::name(user));
            let reason = format!("{name} belongs to {owner}, but its switch belongs to {user}");
            Err(Invalid::new(reason, "leave the owner out, or add a switch for each user"))
        }
        _ => Ok(()),
    }
}

fn check_config(name: &str, config: &SwitchConfig) -> Result<(), Invalid> {
    let workers = config.workers.len();
    let ranges = [
        ("max_ports", u64::from(config.max_ports), 1, 16_384),
        ("workers", workers as u64, 1, MAX_WORKERS as u64),
        ("batch", u64::from(config.batch), 1, 1024),
        ("fdb_entries", u64::from(config.fdb_entries), 16, 1 << 22),
        ("stall_timeout_ms", u64::from(config.stall_timeout_ms), 0, 10_000),
        ("max_guest_memory", config.max_guest_memory, 1 << 20, i64::MAX as u64),
        ("max_mapped_memory", config.max_mapped_memory, 1 << 30, i64::MAX as u64),
        ("max_link_memory", config.max_link_memory, 0, i64::MAX as u64),
        ("max_region_memory", config.max_region_memory, 4096, i64::MAX as u64),
    ];
    for (what, value, least, most) in ranges {
        check_range(name, what, value, least, most)?;
    }
    let mut cpus: Vec<_> = config.workers.iter().filter_map(|worker| worker.cpu).collect();
    cpus.sort_unstable();
    if let Some(pair) = cpus.windows(2).find(|pair| pair[0] == pair[1]) {
        let reason = format!("{name}: two workers would run on CPU {}", pair[0]);
        return Err(Invalid::new(reason, "name each CPU once"));
    }
    Ok(())
}

/// Checks the name of a network interface.
pub(crate) fn check_ifname(port: &str, ifname: &str, remedy: &str) -> Result<(), Invalid> {
    let good = (1..16).contains(&ifname.len())
        && ifname.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '/' | '%' | ':'))
        && !matches!(ifname, "." | "..");
    if good {
        return Ok(());
    }
    Err(Invalid::new(format!("{port}: {ifname:?} is not an interface name"), remedy))
}

pub(crate) fn check_range(
    name: &str,
    what: &str,
    value: u64,
    least: u64,
    most: u64,
) -> Result<(), Invalid> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(format!("{name}: {what} is {value}"), format!("use {least} to {most}")))
}

/// Checks a port; `name` is for the message.
///
/// # Errors
/// Names the first invalid setting.
pub fn check_port(name: &str, spec: &PortSpec, config: &SwitchConfig) -> Result<(), Invalid> {
    let mtu = u64::from(spec.policy.mtu);
    check_range(name, "mtu", mtu, 68, u64::from(Policy::MAX_MTU))?;
    let weight = u64::from(spec.policy.weight);
    check_range(name, "weight", weight, 1, u64::from(Policy::MAX_WEIGHT))?;
    let last = config.workers.len().saturating_sub(1) as u64;
    check_range(name, "worker", u64::from(spec.worker.unwrap_or(0)), 0, last)?;
    let limiters = [&spec.policy.tx_rate_limiter, &spec.policy.rx_rate_limiter];
    if let Err(error) = limiters.into_iter().flatten().try_for_each(RateLimiter::check) {
        return Err(Invalid::new(format!("{name}: {error}"), "see --tx-limit and --rx-limit"));
    }
    let impairments = [&spec.policy.tx_impairment, &spec.policy.rx_impairment];
    if let Err(error) = impairments.into_iter().flatten().try_for_each(Impairment::check) {
        return Err(Invalid::new(format!("{name}: {error}"), "see --tx-impair and --rx-impair"));
    }
    crate::link_spec::check_port_links(name, &spec.policy)?;
    check_addresses(name, &spec.policy)?;
    if let VlanMode::Trunk { allowed, native: Some(native) } = &spec.policy.vlan
        && !allowed.is_empty()
        && !allowed.contains(native)
    {
        let reason = format!("{name}: its native VLAN {native} is not one of the trunk's");
        return Err(Invalid::new(reason, "allow it, or leave it out"));
    }
    if !spec.policy.link && !spec.kind.settings().is_guest() {
        let reason = format!("{name}: only a guest's port may have its link down");
        return Err(Invalid::new(reason, "remove the port instead"));
    }
    let own = name.rsplit(':').next();
    let mirrors = [&spec.policy.mirror_ingress, &spec.policy.mirror_egress];
    if mirrors.into_iter().any(|m| m.as_deref() == own) {
        return Err(Invalid::new(format!("{name} is mirrored to itself"), "name another port"));
    }
    let has_socket = spec.kind.settings().has_default_socket();
    if has_socket && own.is_some_and(|own| own.ends_with(DATA_SOCKET)) {
        let reason = format!("{name}: its socket would have the path of a switch's own socket");
        let remedy = "use a name that does not end in .data, or name a socket: --socket, --stream";
        return Err(Invalid::new(reason, remedy));
    }
    check_trusted(name, spec, config)?;
    spec.kind.settings().check(name, &spec.policy)
}

/// Checks a port's own addresses, and that they suffice for its guard.
fn check_addresses(name: &str, policy: &Policy) -> Result<(), Invalid> {
    if let Some(mac) = policy.macs.iter().find(|mac| mac.is_group()) {
        let remedy = "a port's own addresses are unicast: the first octet is even";
        return Err(Invalid::new(format!("{name}: {mac} is a group address"), remedy));
    }
    if policy.guard && policy.macs.is_empty() {
        let reason = format!("{name} has the guard on, but no address of its own");
        return Err(Invalid::new(reason, "give it one: --mac, or macs in the topology"));
    }
    if !policy.guard && !policy.ips.is_empty() {
        let reason = format!("{name} has IP addresses, but no guard to keep it to them");
        return Err(Invalid::new(reason, "add --guard, or leave out --ip (--ip none)"));
    }
    let is_wrong = |ip: &&IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_multicast() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_multicast() || ip.is_unspecified() || ip.to_ipv4_mapped().is_some(),
    };
    if let Some(ip) = policy.ips.iter().find(is_wrong) {
        let remedy = "name the addresses of the host itself, as in --ip 10.0.0.7,fd00::7";
        return Err(Invalid::new(format!("{name}: {ip} is no host's own address"), remedy));
    }
    Ok(())
}

/// Checks that a port can be one of a trusted switch, whose processes serve their own rings.
fn check_trusted(name: &str, spec: &PortSpec, config: &SwitchConfig) -> Result<(), Invalid> {
    let policy = &spec.policy;
    let other_kind = spec.kind != PortKind::Ring;
    let faults = [
        (other_kind, "is not a ring", "join the switch to another one: toklat bridge A:x B:y"),
        (policy.lossless, "is lossless", "leave out --lossless, or use another switch"),
        (
            policy.tx_rate_limiter.is_some() || policy.rx_rate_limiter.is_some(),
            "has a rate limit",
            "leave out --tx-limit and --rx-limit, or use another switch",
        ),
        (
            policy.tx_impairment.is_some() || policy.rx_impairment.is_some(),
            "has a bad link",
            "leave out --tx-impair and --rx-impair, or use another switch",
        ),
        (
            policy.tx_link.is_some() || policy.rx_link.is_some(),
            "has a link",
            "leave out --tx-link and --rx-link, or use another switch",
        ),
    ];
    let first = faults.into_iter().find(|(faulty, ..)| config.trusted && *faulty);
    let Some((_, what, remedy)) = first else { return Ok(()) };
    Err(Invalid::new(format!("{name} {what}, and its switch is trusted"), remedy))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_of_trusted_switches_are_rings_without_limits_bad_links_and_waiting_senders() {
        let config = SwitchConfig { trusted: true, ..SwitchConfig::default() };
        let faults = |change: fn(&mut PortSpec)| {
            let mut spec = PortSpec::default();
            change(&mut spec);
            assert!(check_port("v:p", &spec, &SwitchConfig::default()).is_ok());
            check_port("v:p", &spec, &config).err().map(|error| error.reason)
        };
        assert_eq!(faults(|_| ()), None);
        let limit = || Some(RateLimiter::default());
        for (change, expected) in [
            ((|spec| spec.kind = PortKind::Null) as fn(&mut PortSpec), "is not a ring"),
            (|spec| spec.policy.lossless = true, "is lossless"),
            (|spec| spec.policy.tx_impairment = Some(Impairment::default()), "has a bad link"),
            (|spec| spec.policy.rx_link = Some("delay=1ms".into()), "has a link"),
        ] {
            let reason = faults(change).unwrap();
            assert!(reason.starts_with(&format!("v:p {expected}")), "{reason}");
        }
        let mut spec = PortSpec::default();
        spec.policy.rx_rate_limiter = limit();
        assert!(check_trusted("v:p", &spec, &config).is_err());
    }

    #[test]
    fn ip_addresses_are_a_hosts_own_and_need_the_guard() {
        let told = |ips: &[&str], guard: bool| {
            let mut spec = PortSpec::default();
            spec.policy.macs = vec![frame::Mac::local(1)];
            spec.policy.ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            spec.policy.guard = guard;
            let checked = check_port("v:p", &spec, &SwitchConfig::default());
            checked.err().map(|error| error.to_string())
        };
        assert_eq!(told(&["10.0.0.7", "fd00::7", "fe80::1"], true), None);
        assert!(told(&["10.0.0.7"], false).is_some_and(|told| told.contains("--guard")));
        for wrong in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:1.2.3.4"]
        {
            let told = told(&["10.0.0.7", wrong], true).unwrap();
            assert!(told.contains(wrong), "{told}");
        }
    }

    #[test]
    fn no_two_sockets_of_the_runtime_directory_have_one_path() {
        let kinds = [
            json!({"vhost_user": {}}),
            json!({"vfio_user": {"nic": {"model": "82540em"}}}),
            json!({"stream": {}}),
        ];
        for kind in kinds {
            let with = |kind: &serde_json::Value| PortSpec {
                kind: serde_json::from_value(kind.clone()).unwrap(),
                ..PortSpec::default()
            };
            let checked = |name| check_port(name, &with(&kind), &SwitchConfig::default());
            let refused = checked("a:b.data").unwrap_err();
            assert!(refused.reason.starts_with("a:b.data"), "{refused}");
            checked("a:b.data.c").unwrap();
            checked("a.data:b").unwrap();
            let mut both = Topology::default();
            for (switch, port) in [("a-b", "c"), ("a", "b-c")] {
                let of = both.switch.entry(switch.into()).or_default();
                of.port.insert(port.into(), with(&kind));
            }
            let refused = check_claims(&both).unwrap_err();
            assert!(refused.reason.contains("a-b-c.sock"), "{refused}");
            both.switch.get_mut("a").unwrap().port.insert("b-c".into(), PortSpec::default());
            check_claims(&both).unwrap();
        }
        // A port that has no socket there has no path that could be taken.
        check_port("a:b.data", &PortSpec::default(), &SwitchConfig::default()).unwrap();
    }

    #[test]
    fn patterns_are_as_long_as_names_may_be() {
        for (pattern, max) in [(SWITCH_PATTERN, SWITCH_NAME), (PORT_PATTERN, PORT_NAME)] {
            assert_eq!(pattern, format!("^[A-Za-z0-9][A-Za-z0-9._-]{{0,{}}}$", max - 1));
            assert!(check_name(&"a".repeat(max), max).is_ok());
            assert!(check_name(&"a".repeat(max + 1), max).is_err());
        }
    }
}
