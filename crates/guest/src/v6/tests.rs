use super::*;

const MAC: Mac = Mac::local(7);
const START: Nanos = Nanos(100 * Nanos::SECOND);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);

fn config(address: Option<Ipv6Addr>) -> Ipv6Config {
    Ipv6Config {
        address: address.map(|ip| (ip, 64)),
        autoconfigure: address.is_none(),
        ..Ipv6Config::default()
    }
}

fn host(address: Option<Ipv6Addr>) -> V6 {
    V6::new(&config(address), MAC, 16)
}

/// Everything that is due until `end`, with the times.
fn until_then(v6: &mut V6, end: Nanos) -> Vec<(Nanos, Say)> {
    let (mut said, mut now) = (Vec::new(), START);
    while now <= end {
        said.extend(std::iter::from_fn(|| v6.next(now)).map(|say| (now, say)));
        now = v6.deadline().unwrap_or(Nanos::NEVER);
    }
    said
}

/// The options of an advertisement.
#[derive(Clone, Copy)]
struct Told {
    network: u16,
    valid: u32,
    preferred: u32,
    router: u16,
}

impl Told {
    const fn new(network: u16) -> Self {
        Self { network, valid: 86_400, preferred: 14_400, router: 1800 }
    }

    fn ip(self) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, self.network, 0, 0, 0, 0, 0)
    }

    fn give(self, v6: &mut V6, from: Ipv6Addr, now: Nanos) {
        let mut message = vec![134, 0, 0, 0, 64, 0];
        message.extend(self.router.to_be_bytes());
        message.extend([0; 8]);
        // On the link, and for addresses.
        message.extend([3, 4, 64, 0xc0]);
        message.extend(self.valid.to_be_bytes());
        message.extend(self.preferred.to_be_bytes());
        message.extend([0; 4]);
        message.extend(self.ip().octets());
        // An MTU of 1400.
        message.extend([5, 1, 0, 0, 0, 0, 5, 120]);
        v6.advertised(from, &Advertisement::parse(&message).unwrap(), 1500, now);
    }
}

/// The next thing that is due, but for reports of groups.
fn next(v6: &mut V6, now: Nanos) -> Option<Say> {
    std::iter::from_fn(|| v6.next(now)).find(|say| !matches!(say, Say::Groups(_)))
}

/// The groups of the reports until `now`, joined and left.
fn reported(v6: &mut V6, now: Nanos) -> Vec<(u8, Ipv6Addr)> {
    let told = std::iter::from_fn(|| v6.next(now)).filter_map(|say| match say {
        Say::Groups(groups::Told::Report(records)) => Some(records),
        _ => None,
    });
    told.flatten().collect()
}

#[test]
fn the_group_of_an_address_is_reported_and_left_again_with_it() {
    let mut v6 = host(Some(OWN));
    assert!(matches!(v6.next(START), Some(Say::Groups(_))), "before the first probe");
    let now = START + 10 * PROBE;
    while v6.next(now).is_some() {}
    let mut v6 = host(Some(OWN));
    let joined = reported(&mut v6, START);
    let local = solicited_node(v6.addresses[0].ip);
    assert_eq!(joined, [(4, local), (4, solicited_node(OWN))]);
    assert!(v6.is_taken(OWN));
    assert_eq!(v6.deadline(), Some(Nanos(0)), "it is to be said at once");
    let left = reported(&mut v6, START + 1);
    assert!(left.contains(&(3, solicited_node(OWN))) && !left.contains(&(3, local)), "{left:?}");
}

#[test]
fn addresses_are_probed_for_a_second_before_they_are_used() {
    let mut v6 = host(Some(OWN));
    let link_local: Ipv6Addr = "fe80::ff:fe00:7".parse().unwrap();
    assert_eq!(next(&mut v6, START), Some(Say::Probe(link_local)));
    assert_eq!((next(&mut v6, START), next(&mut v6, START)), (Some(Say::Probe(OWN)), None));
    assert!(!v6.is_own(OWN) && v6.is_tentative(OWN) && !v6.is_configured());
    assert!(v6.is_member(solicited_node(OWN)) && v6.is_member(ALL_NODES));
    assert_eq!(next(&mut v6, START + (PROBE - 1)), None);
    let announced = [Say::Announce(link_local), Say::Announce(OWN)];
    assert_eq!([next(&mut v6, START + PROBE), next(&mut v6, START + PROBE)], announced.map(Some));
    assert!(v6.is_own(OWN) && v6.is_configured());
    assert_eq!(next(&mut v6, START + PROBE), None);
    let later = START + 10 * PROBE;
    assert_eq!((next(&mut v6, later), v6.deadline()), (None, None));
    assert!(!v6.is_taken(OWN), "it is too late to claim it");
}

#[test]
fn an_address_that_another_host_has_is_not_used() {
    let mut v6 = host(Some(OWN));
    while v6.next(START).is_some() {}
    assert!(v6.is_taken(OWN));
    while v6.next(START + 10 * PROBE).is_some() {}
    assert!(!v6.is_own(OWN) && !v6.is_member(solicited_node(OWN)) && !v6.is_configured());
}

#[test]
fn routers_are_asked_for_three_times() {
    let said = until_then(&mut host(None), START + 1000 * Nanos::SECOND);
    let asked: Vec<u64> = said
        .iter()
        .filter(|(_, say)| *say == Say::SolicitRouters)
        .map(|(at, _)| (*at - START) / Nanos::SECOND)
        .collect();
    assert_eq!(asked, [1, 5, 9]);
}

#[test]
fn an_advertisement_makes_an_address_a_router_and_an_mtu_and_they_end() {
    let mut v6 = host(None);
    until_then(&mut v6, START + 2 * Nanos::SECOND);
    let told = Told::new(1);
    let far: Ipv6Addr = "2001:db8:ffff::1".parse().unwrap();
    let mut now = START + 2 * Nanos::SECOND;
    assert_eq!(v6.way(far), None);
    told.give(&mut v6, ROUTER, now);
    while v6.next(now).is_some() {}
    now = now + PROBE;
    while v6.next(now).is_some() {}
    let own: Ipv6Addr = "2001:db8:1::ff:fe00:7".parse().unwrap();
    assert!(v6.is_own(own) && v6.is_configured());
    assert_eq!((v6.way(far), v6.mtu()), (Some(Way::Hop(ROUTER)), Some(1400)));
    let near: Ipv6Addr = "2001:db8:1::9".parse().unwrap();
    assert_eq!(v6.way(near), Some(Way::Hop(near)));
    assert_eq!((v6.source(far, now), v6.way(own)), (Some(own), None));
    // A router that leaves, and one that shortens lives (RFC 4862, 5.5.3).
    Told { router: 0, valid: 0, preferred: 0, ..told }.give(&mut v6, ROUTER, now);
    while v6.next(now).is_some() {}
    assert_eq!((v6.way(far), v6.way(near)), (None, None));
    assert!(v6.is_own(own), "an address lives for two hours more");
    now = now + TWO_HOURS;
    while v6.next(now).is_some() {}
    assert!(!v6.is_own(own));
}

#[test]
fn a_deprecated_address_and_one_of_another_scope_are_the_last_choice() {
    let mut v6 = host(None);
    until_then(&mut v6, START + 2 * Nanos::SECOND);
    let now = START + 2 * Nanos::SECOND;
    Told { preferred: 10, ..Told::new(1) }.give(&mut v6, ROUTER, now);
    Told::new(2).give(&mut v6, ROUTER, now);
    let later = now + 2 * PROBE;
    [now, later].iter().for_each(|at| while v6.next(*at).is_some() {});
    let source = |to: &str, at| v6.source(to.parse().unwrap(), at).unwrap().segments()[2];
    assert_eq!([source("2001:db8:1::1", later), source("2001:db8:2::1", later)], [1, 2]);
    assert_eq!(source("2001:db8:1::1", later + 10 * Nanos::SECOND), 2);
    let near = v6.source(ROUTER, later).unwrap();
    assert!(near.is_unicast_link_local());
    let only_local = V6::new(&config(Some(ROUTER)), MAC, 16);
    assert_eq!(only_local.source("2001:db8::1".parse().unwrap(), START), None);
}

#[test]
fn a_flood_of_advertisements_fills_bounded_tables() {
    let mut v6 = host(None);
    until_then(&mut v6, START + 2 * Nanos::SECOND);
    for i in 0..1000 {
        let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, i);
        Told::new(i).give(&mut v6, from, START + 2 * Nanos::SECOND);
    }
    let sizes = (v6.addresses.len(), v6.routers.len(), v6.networks.len());
    assert_eq!(sizes, (MAX_ADDRESSES, MAX_ROUTERS, MAX_NETWORKS));
    // A router that does not answer makes room for another one.
    let first = v6.routers[0].0;
    v6.lost(first);
    assert_ne!(v6.routers[0].0, first);
}

#[test]
fn advertisements_that_are_cut_short_are_not_read() {
    let whole = [
        &[134, 0, 0, 0, 64, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &[1, 1, 2, 0, 0, 0, 0, 1],
        &[99, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let told = Advertisement::parse(&whole).unwrap();
    assert_eq!((told.router_lifetime, told.source()), (9, Some(Mac::local(1))));
    assert_eq!((told.mtu(), told.prefixes().count()), (None, 0));
    for len in 0..whole.len() {
        let short = Advertisement::parse(&whole[..len]);
        assert_eq!(short.is_some(), len == 16 || len == 24, "{len}");
    }
    let endless = [&whole[..17], &[0; 15]].concat();
    assert!(Advertisement::parse(&endless).is_none(), "an option without a length");
}
