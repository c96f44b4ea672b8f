//! The walk of `toklat why` against the switch itself: for any rules, addresses and frames, both
//! say the same of whether a frame arrives, and why not.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use fabric::why::{Fence, Found, Verdict, Way};
use fabric::{Filters, Origin, PortFilter, Station, VlanMode};
use frame::{Mac, VlanId};
use netring::{Port, Region, RegionConfig};
use port::{DropReason, Nanos};
use proptest::collection::vec;
use proptest::prelude::*;
use toklat_inline::{Inline, Policy, SwitchConfig};

const NAMES: [&str; 3] = ["from", "to", "other"];

/// A few addresses: of the ports, of none of them, of groups.
fn address() -> impl Strategy<Value = Mac> {
    prop_oneof![
        6 => (1u32..=5).prop_map(Mac::local),
        1 => Just(Mac::new([0xff; 6])),
        1 => Just(Mac::new([0x01, 0x80, 0xc2, 0, 0, 0x0e])),
        1 => Just(Mac::new([0x33, 0x33, 0, 0, 0, 1])),
    ]
}

fn vlan_id() -> impl Strategy<Value = VlanId> {
    (10u16..=12).prop_map(|id| VlanId::new(id).unwrap())
}

fn mode() -> impl Strategy<Value = VlanMode> {
    prop_oneof![
        Just(VlanMode::Unaware),
        vlan_id().prop_map(VlanMode::Access),
        (vec(vlan_id(), 0..3), proptest::option::of(vlan_id()))
            .prop_map(|(allowed, native)| VlanMode::Trunk { allowed, native }),
    ]
}

prop_compose! {
    fn policy()(
        vlan in mode(),
        macs in vec((1u32..=5).prop_map(Mac::local), 0..3),
        protected in any::<bool>(),
        locked in proptest::bool::weighted(0.3),
        guard in proptest::bool::weighted(0.3),
        ips in vec((1u8..4).prop_map(|n| [10, 0, 0, n].into()), 0..2),
        mtu in prop_oneof![3 => Just(1500u16), 1 => Just(68u16)],
    ) -> Policy {
        let guard = guard && !macs.is_empty();
        let ips = if guard { ips } else { Vec::new() };
        Policy { vlan, macs, protected, locked, guard, ips, mtu, ..Policy::default() }
    }
}

prop_compose! {
    /// A frame with up to two tags; ARP, IPv4 or something else.
    fn a_frame()(
        to in address(),
        from in (1u32..=5).prop_map(Mac::local),
        tags in vec((0u16..=12, any::<bool>()), 0..3),
        kind in 0..3,
        ip in 1u8..4,
        len in prop_oneof![Just(60usize), Just(100), Just(1514), Just(1518), Just(1600)],
    ) -> Vec<u8> {
        let mut frame = [to.octets(), from.octets()].concat();
        for (id, is_inner_type) in tags {
            let ethertype: u16 = if is_inner_type { 0x88a8 } else { 0x8100 };
            frame.extend(ethertype.to_be_bytes());
            frame.extend(id.to_be_bytes());
        }
        match kind {
            0 => frame.extend([0x88, 0xb5]),
            1 => {
                frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
                frame.extend(from.octets());
                frame.extend([10, 0, 0, ip]);
                frame.extend([0; 10]);
            }
            _ => {
                frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
                frame.extend([10, 0, 0, ip, 10, 0, 0, 9]);
                frame.extend([0; 20]);
            }
        }
        frame.resize(len.max(frame.len()), 0);
        frame
    }
}

/// The rules of a port's group, if it has one. `web` is the sender's group.
fn lines() -> impl Strategy<Value = Option<Vec<&'static str>>> {
    let line = prop_oneof![
        Just("allow tcp from 10.0.0.1 to any"),
        Just("deny tcp from 10.0.0.2 to me"),
        Just("reset ip from me to any out"),
        Just("allow all from group:web to me"),
        Just("deny all from any to any vlan 11"),
        Just("allow all from any to any ethertype 0x88b5"),
        Just("deny arp"),
        Just("allow all length 0-99"),
    ];
    proptest::option::weighted(0.2, vec(line, 0..4))
}

/// The rules of ports, as the switch has them and as the walk has them.
struct Rules {
    policies: Vec<rules::Policy>,
    filters: Vec<Option<PortFilter>>,
}

impl Rules {
    fn new(lines: &[Option<Vec<&str>>]) -> Self {
        let policy = |lines: &Option<Vec<&str>>| {
            let mut policy = rules::Policy::default();
            policy.groups.extend([("web".into(), 0), ("db".into(), 1)]);
            let lines = lines.iter().flatten().copied();
            policy.push(&rules::parse_lines(lines).unwrap());
            policy
        };
        let filter = |at: usize, lines: &Option<Vec<&str>>| {
            let own = PortFilter { program: at as u16, groups: 1 << at, ips: Vec::new() };
            lines.is_some().then_some(own)
        };
        Self {
            policies: lines.iter().map(policy).collect(),
            filters: lines.iter().enumerate().map(|(at, lines)| filter(at, lines)).collect(),
        }
    }

    fn compiled(&self) -> Arc<Filters> {
        let compile = |policy| rules::compile(policy, &rules::Budget::new(&|| false)).unwrap();
        let programs = self.policies.iter().map(compile).collect();
        let words = rules::Layout::words(64);
        let memory = shmem::Mapping::private(words * 8).unwrap();
        let memory = memory.shared_slice::<AtomicU64>(0, words).unwrap();
        let connections = rules::Connections::open(memory, rules::Quota(16), 7);
        let connections = Arc::new(Mutex::new(connections));
        let tables = rules::Tables::default();
        Arc::new(Filters::new(1, programs, tables, connections, self.filters.clone()))
    }
}

struct Bed {
    switch: Inline,
    ports: Vec<(u16, Port)>,
}

impl Bed {
    fn new(policies: &[Policy; 3]) -> Option<Self> {
        let config = SwitchConfig { max_ports: 3, ..Default::default() };
        let mut bed = Self { switch: Inline::new(config).unwrap(), ports: Vec::new() };
        for (name, policy) in NAMES.into_iter().zip(policies) {
            let region = Region::private(RegionConfig::ports(1, 1, 16)).unwrap();
            let port = Port::inline(&region, name, 1, 1, 16).unwrap();
            // An address of two ports is refused.
            let id = bed.switch.add_rings(name, policy.clone(), &port.rings()).ok()?;
            bed.ports.push((id, port));
        }
        Some(bed)
    }

    /// Sends a frame from the first port; returns whether the second got it, and the reasons for
    /// which frames were dropped.
    fn send(&mut self, frame: &[u8]) -> (bool, Vec<DropReason>) {
        assert!(self.ports[0].1.send(1).push(frame));
        self.ports[0].1.flush().unwrap();
        self.switch.turn(Nanos(1_000_000_000));
        let arrives = self.ports[1].1.receive(16).count() > 0;
        let stats = |at: usize| self.switch.stats(self.ports[at].0);
        let (sent, got) = (stats(0).in_drops, stats(1).out_drops);
        let of = |reason: &DropReason| sent.contains_key(reason) || got.contains_key(reason);
        (arrives, DropReason::ALL.into_iter().filter(of).collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn the_walk_says_what_the_switch_does(
        policies in [policy(), policy(), policy()],
        learned in vec((1u32..=5, 0u16..13, 0usize..3), 0..6),
        frame in a_frame(),
        lines in vec(lines(), 2),
    ) {
        // Where the switch learns such a frame's source, it may not find it a moment before.
        prop_assume!(frame[..6] != frame[6..12]);
        let Some(mut bed) = Bed::new(&policies) else { return Ok(()) };
        for (mac, filter, at) in learned {
            let station = Station::at(bed.ports[at].0, Origin::Learned);
            bed.switch.fdb().learn(filter, Mac::local(mac).word(), station, 100, false, Nanos(0));
        }
        let [from, to, _] = &policies;
        let (rules, tables) = (Rules::new(&lines), rules::Tables::default());
        if lines.iter().any(Option::is_some) {
            bed.switch.set_filters(Some(rules.compiled()));
        }
        let names = ["web".to_owned()];
        let fence = |at: usize| {
            let filter = rules.filters[at].as_ref()?;
            Some(Fence { policy: &rules.policies[at], names: &names, filter })
        };
        let fences = [fence(0), fence(1)];
        let way = Way { from, to, tunnels: [false; 2], fences, tables: &tables, frame: &frame };
        let steps = way.walk(|filter, mac| {
            let found = bed.switch.fdb().lookup(filter, mac.word()).map(Station::port);
            match found.and_then(|id| bed.ports.iter().position(|(of, _)| *of == id)) {
                None => Found::Nowhere,
                Some(0) => Found::Here,
                Some(1) => Found::There,
                Some(_) => Found::Elsewhere("other".into()),
            }
        });
        let (arrives, reasons) = bed.send(&frame);
        let last = steps.last().unwrap();
        prop_assert_eq!(last.verdict == Verdict::Passes, arrives, "{:?} {:?}", steps, reasons);
        if let Verdict::Drops(reason) = last.verdict {
            prop_assert!(reasons.contains(&reason), "{:?}: {:?}", steps, reasons);
        }
    }
}
