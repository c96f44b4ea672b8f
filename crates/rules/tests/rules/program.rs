//! Compiled programs judge as the slow list does.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::rules::{
    Budget, Bundle, BundlePort, Cache, CompileError, Context, Direction, NO_RULE, Outcome, Packet,
    Policy, Prefixes, Program, Sides, Stop, Tables, compile, first_match, hidden, parse_line,
    parse_lines,
};
use proptest::prelude::*;

use crate::frames::{Made, with};

fn go_on() -> bool {
    false
}

fn policy_of(lines: &[String]) -> Policy {
    let mut policy = Policy::default();
    policy.groups.extend([("web".into(), 0), ("admin".into(), 5), ("far".into(), 40)]);
    policy.tables.extend([("good".into(), 0), ("bad".into(), 1)]);
    // ip[9] == 17: what libpcap makes of "udp", for IPv4 without tags.
    let udp = "6,40 0 0 12,21 0 3 2048,48 0 0 23,21 0 1 17,6 0 0 65535,6 0 0 0";
    policy.filters.insert("udp".into(), udp.parse().unwrap());
    let half = lines.len() / 2;
    for lines in [&lines[..half], &lines[half..]] {
        policy.push(&parse_lines(lines.iter().map(String::as_str)).unwrap());
    }
    policy
}

fn tables() -> Tables {
    let table = |prefixes: &[&str]| {
        let table = Prefixes::default();
        prefixes.iter().for_each(|p| assert!(table.add(p.parse().unwrap())));
        Arc::new(table)
    };
    Tables(vec![table(&["10.0.0.0/30", "2001:db8::/64", "10.1.0.0/16"]), table(&["10.0.2.0/25"])])
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("any".to_owned()),
        1 => Just("me".to_owned()),
        1 => Just("table:good".to_owned()),
        1 => Just("10.0.2.1,table:bad".to_owned()),
        2 => (0u8..3, 0u8..4, 8u8..=32).prop_map(|(c, d, len)| format!("10.0.{c}.{d}/{len}")),
        1 => (0u8..4, 32u8..=128).prop_map(|(d, len)| format!("2001:db8::{d}/{len}")),
        1 => Just("10.0.0.1,10.0.0.3,10.0.1.0/24,2001:db8::/48".to_owned()),
    ]
}

fn ports() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => Just(String::new()),
        1 => (0u16..8).prop_map(|port| format!(" {port}")),
        1 => (0u16..4, 4u16..9).prop_map(|(a, b)| format!(" {a}-{b}")),
        1 => Just(" ssh,80,443,1-3,5".to_owned()),
    ]
}

fn option() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        12 => Just(""),
        1 => Just(" in"),
        1 => Just(" out"),
        1 => Just(" fragment"),
        1 => Just(" vlan 5,7-9"),
        1 => Just(" length 60-80"),
        1 => Just(" prob 0.5"),
        1 => Just(" src-mac 02:00:00:00:00:01"),
        1 => Just(" dst-mac 02:00:00:00:00:07"),
        1 => Just(" ethertype arp"),
        1 => Just(" bpf \"udp\""),
        1 => Just(" stateless"),
    ]
}

/// A line that is a rule.
fn line() -> impl Strategy<Value = String> {
    let action = prop_oneof![
        4 => Just("allow"), 4 => Just("deny"), 1 => Just("count"), 1 => Just("log"), 1 => Just("reset"),
        1 => Just("mirror mon"), 1 => Just("deny log"),
    ];
    let with_ports = (
        prop_oneof![Just("tcp"), Just("udp"), Just("sctp")],
        host(),
        ports(),
        host(),
        ports(),
        prop_oneof![4 => Just(""), 1 => Just(" flags syn,!ack")],
    )
        .prop_map(|(protocol, from, from_ports, to, to_ports, flags)| {
            let flags = if protocol == "tcp" { flags } else { "" };
            format!("{protocol} from {from}{from_ports} to {to}{to_ports}{flags}")
        });
    let bare = (
        prop_oneof![
            Just("ip"),
            Just("all"),
            Just("ipv4"),
            Just("ipv6"),
            Just("icmp"),
            Just("icmp6"),
            Just("arp"),
            Just("proto 47"),
            Just("icmp icmptypes echo-request,3")
        ],
        host(),
        host(),
        prop_oneof![3 => Just(""), 1 => Just("group:admin"), 1 => Just("group:web,10.0.0.2")],
    )
        .prop_map(|(protocol, from, to, groups)| {
            let from = if groups.is_empty() { &from } else { groups };
            format!("{protocol} from {from} to {to}")
        });
    (action, prop_oneof![2 => with_ports, 1 => bare], option())
        .prop_map(|(action, rest, option)| format!("{action} {rest}{option}"))
        .prop_filter("valid", |line| parse_line(line, 1).is_ok())
}

/// Rules, of which some are skipped.
fn lines(most: usize) -> impl Strategy<Value = Vec<String>> {
    (proptest::collection::vec(line(), 1..most), any::<Option<(u8, u8)>>()).prop_map(
        |(lines, skip)| {
            let mut lines = lines;
            let half = lines.len() / 2;
            if let Some((from, to)) = skip.filter(|_| half >= 3) {
                let from = usize::from(from) % (half - 1);
                let to = from + 1 + usize::from(to) % (half - from - 1);
                lines[to] = format!("there: {}", lines[to]);
                lines[from] = "skipto there ip from any to any prob 0.7".into();
            }
            lines
        },
    )
}

fn made() -> impl Strategy<Value = Made> {
    let v4 = (0u8..3, 0u8..4).prop_map(|(c, d)| IpAddr::from([10, 0, c, d]));
    let v6 = (0u16..2, 0u16..4).prop_map(|(c, d)| IpAddr::from([0x2001, 0xdb8, c, 0, 0, 0, 0, d]));
    let ends = prop_oneof![
        6 => (v4.clone(), v4.clone()),
        4 => (v6.clone(), v6.clone()),
        1 => (v4, v6),
    ];
    let protocol = prop_oneof![4 => Just(6u8), 3 => Just(17), 1 => Just(132), 1 => Just(1),
        1 => Just(58), 1 => Just(47)];
    let fragment = prop_oneof![6 => Just(0u16), 1 => Just(0x2000), 1 => Just(0x2001), 1 => Just(9)];
    (
        ends,
        protocol,
        (0u16..10, prop_oneof![0u16..10, Just(22), Just(443)]),
        any::<u8>(),
        fragment,
        0usize..40,
    )
        .prop_map(|((from, to), protocol, ports, flags, fragment, payload)| Made {
            from,
            to,
            protocol,
            ports,
            flags,
            fragment,
            id: 1,
            payload: vec![1; payload],
        })
}

fn sides() -> impl Strategy<Value = Sides> {
    (
        prop_oneof![Just(0u64), Just(1), Just(1 << 5), Just(1 << 40)],
        any::<[bool; 2]>(),
        prop_oneof![Just(0u16), Just(5), Just(8)],
    )
        .prop_map(|(groups, [from_me, to_me], vlan)| Sides { groups, from_me, to_me, vlan })
}

/// Judges all frames in one batch.
fn judge(
    program: &Program,
    direction: Direction,
    frames: &[(Vec<u8>, Sides, u32)],
    cache: Option<&mut Cache>,
    hits: &[AtomicU64],
) -> Vec<Outcome> {
    let tables = tables();
    let facts: Vec<_> = frames
        .iter()
        .map(|(frame, ..)| frame::Facts::of(&frame[..frame.len().min(128)]).unwrap())
        .collect();
    let packets: Vec<Packet<'_>> = (frames.iter().zip(&facts))
        .map(|((frame, sides, draw), facts)| Packet {
            facts,
            head: &frame[..frame.len().min(128)],
            len: frame.len() as u32,
            sides: *sides,
            draw: *draw,
        })
        .collect();
    let mut outcomes = vec![Outcome::DEFAULT; packets.len()];
    let context = Context { tables: &tables, now: 0, hits, limits: &[] };
    program.judge(direction, &packets, &mut outcomes, &context, cache.map(|cache| (cache, 1)));
    outcomes
}

fn compare(lines: &[String], frames: &[(Made, Sides, u32)]) -> Result<(), TestCaseError> {
    let policy = policy_of(lines);
    let program = compile(&policy, &Budget::new(&go_on)).unwrap();
    let program = Program::load(program.words().into()).unwrap();
    let frames: Vec<_> =
        frames.iter().map(|(made, sides, draw)| (made.bytes(), *sides, *draw)).collect();
    let (mut cache, tables) = (Cache::new(3), tables());
    for direction in [Direction::In, Direction::Out] {
        let hits: Vec<AtomicU64> = lines.iter().map(|_| AtomicU64::new(0)).collect();
        // Sides that contradict the direction don't exist.
        let frames: Vec<_> = (frames.iter().cloned())
            .map(|(frame, mut sides, draw)| {
                sides.from_me &= direction == Direction::Out;
                sides.to_me &= direction == Direction::In;
                (frame, sides, draw)
            })
            .collect();
        let expected: Vec<u32> = (frames.iter())
            .map(|(frame, sides, draw)| {
                let rule =
                    with(frame, *sides, *draw, |p| first_match(&policy, &tables, direction, p));
                rule.map_or(NO_RULE, |rule| rule as u32)
            })
            .collect();
        // Without a cache, with an empty one, and with one that knows all.
        let plain = judge(&program, direction, &frames, None, &hits);
        let counted: u64 = hits.iter().map(|hits| hits.load(Ordering::Relaxed)).sum();
        prop_assert!(counted >= expected.iter().filter(|rule| **rule != NO_RULE).count() as u64);
        for outcomes in [
            plain,
            judge(&program, direction, &frames, Some(&mut cache), &[]),
            judge(&program, direction, &frames, Some(&mut cache), &[]),
        ] {
            for (i, (outcome, rule)) in outcomes.iter().zip(&expected).enumerate() {
                prop_assert_eq!(
                    outcome.rule,
                    *rule,
                    "{:?} {:x?} by {:#?}",
                    direction,
                    &frames[i],
                    lines
                );
                prop_assert_eq!(outcome.stop == Stop::Default, *rule == NO_RULE);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 400, ..ProptestConfig::default() })]

    /// Few rules are a list.
    #[test]
    fn a_list_judges_as_the_slow_list(
        lines in lines(12),
        frames in proptest::collection::vec((made(), sides(), any::<u32>()), 1..90),
    ) {
        compare(&lines, &frames)?;
    }

    /// What is written is read as the same rule.
    #[test]
    fn a_rule_is_written_as_it_is_read(lines in lines(12)) {
        for rule in parse_lines(lines.iter().map(String::as_str)).unwrap() {
            let again = parse_line(&rule.to_string(), rule.line);
            prop_assert_eq!(again.as_ref(), Ok(&rule), "{}", rule);
        }
    }

    /// Any damaged words are refused, or judge without a panic.
    #[test]
    fn a_damaged_program_is_refused(
        lines in lines(40),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u32>(), any::<bool>()), 1..4),
        frames in proptest::collection::vec((made(), sides(), any::<u32>()), 1..20),
    ) {
        let program = compile(&policy_of(&lines), &Budget::new(&go_on)).unwrap();
        let mut words = program.words().to_vec();
        for (at, value, small) in damage {
            let at = at.index(words.len());
            words[at] = if small { words[at].wrapping_add(value % 5).wrapping_sub(2) } else { value };
        }
        if let Ok(program) = Program::load(words.into()) {
            let frames: Vec<_> = frames.iter().map(|(m, s, d)| (m.bytes(), *s, *d)).collect();
            judge(&program, Direction::In, &frames, None, &[]);
            judge(&program, Direction::Out, &frames, None, &[]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 400, ..ProptestConfig::default() })]

    /// Many rules are trees.
    #[test]
    fn trees_judge_as_the_slow_list(
        lines in lines(100),
        frames in proptest::collection::vec((made(), sides(), any::<u32>()), 60..150),
    ) {
        compare(&lines, &frames)?;
    }
}

#[test]
fn arp_and_other_types_meet_the_rules_for_all_frames() {
    let lines = ["deny ethertype 0x88cc", "allow arp", "deny all"].map(String::from);
    let program = compile(&policy_of(&lines), &Budget::new(&go_on)).unwrap();
    let frame = |kind: [u8; 2]| ([&[2; 12][..], &kind, &[0; 50]].concat(), Sides::default(), 0);
    let frames = [frame([0x88, 0xcc]), frame([8, 6]), frame([0x88, 0xb5]), frame([8, 0])];
    let outcomes = judge(&program, Direction::In, &frames, None, &[]);
    assert_eq!(outcomes.map_rules(), [0, 1, 2, 2]);
}

trait Rules {
    fn map_rules(&self) -> Vec<u32>;
}

impl Rules for Vec<Outcome> {
    fn map_rules(&self) -> Vec<u32> {
        self.iter().map(|outcome| outcome.rule).collect()
    }
}

#[test]
fn frames_beyond_a_limit_are_denied() {
    let lines = ["allow icmp limit 100pps", "allow udp limit 80kb/s"].map(String::from);
    let program = compile(&policy_of(&lines), &Budget::new(&go_on)).unwrap();
    let limits: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    let tables = tables();
    let passes = |protocol: u8, now: u64| {
        let frame = Made { protocol, payload: vec![0; 958], ..Made::default() }.bytes();
        with(&frame, Sides::default(), 0, |packet| {
            let mut outcome = [Outcome::DEFAULT];
            let context = Context { tables: &tables, now, hits: &[], limits: &limits };
            program.judge(Direction::In, &[*packet], &mut outcome, &context, None);
            outcome[0].stop == Stop::Allow
        })
    };
    for protocol in [1, 17] {
        // A tenth of a second's frames at once, then one in each hundredth (1000 bytes: a tenth).
        let (burst, gap) = if protocol == 1 { (10, 10_000_000) } else { (1, 100_000_000) };
        let start = 5_000_000_000;
        assert_eq!((0..100).filter(|_| passes(protocol, start)).count(), burst, "{protocol}");
        let later = (1..=1000).filter(|i| passes(protocol, start + i * gap / 10)).count();
        assert_eq!(later, 100, "{protocol}");
    }
}

#[test]
fn a_rule_that_another_hides_is_found() {
    let lines = [
        "allow tcp from 10.0.0.0/8 to any 1-1024",
        "deny tcp from 10.2.0.0/16 to any 22",
        "deny tcp from 11.0.0.0/8 to any 22",
        "allow udp from any to any prob 0.5",
        "deny udp from any to any",
        "allow udp from any to any 53 out",
        "deny all in",
        "allow arp in",
        "allow arp",
    ]
    .map(String::from);
    let mut policy = Policy::default();
    policy.push(&parse_lines(lines.iter().map(String::as_str)).unwrap());
    let found: Vec<_> = hidden(&policy).iter().map(|hidden| (hidden.rule, hidden.by)).collect();
    assert_eq!(found, [(1, 0), (5, 4), (7, 6)]);
}

/// The worst rules that we know: every range overlaps every other one.
#[test]
fn a_compile_bomb_ends_within_its_budget() {
    let mut lines = Vec::new();
    for i in 0..3000u32 {
        let (a, b) = (i * 7919 % 30_000, 30_000 + i * 104_729 % 30_000);
        lines.push(format!(
            "allow tcp from any {a}-{b} to any {}-{} prob 0.5",
            29_999 - a / 2,
            65_535 - b / 3
        ));
    }
    let mut policy = Policy::default();
    policy.push(&parse_lines(lines.iter().map(String::as_str)).unwrap());
    let start = Instant::now();
    let stop = || start.elapsed().as_millis() > 300;
    let compiled = compile(&policy, &Budget { nodes: 20_000, words: 1 << 20, stop: &stop });
    let seconds = start.elapsed().as_secs_f64();
    assert!(
        matches!(compiled, Err(CompileError::TooLarge(_) | CompileError::TooLong)),
        "{compiled:?}"
    );
    assert!(seconds < 2.0, "{seconds} s");
}

/// Rules like those that people write: many small networks and single ports.
#[test]
fn thousands_of_usual_rules_become_shallow_trees() {
    let mut lines: Vec<String> = (0..3_000u32)
        .map(|i| {
            let (b, c) = (i * 31 % 250, i * 17 % 250);
            format!(
                "allow tcp from 10.{b}.{c}.0/24 to 192.168.{}.{} {}",
                i % 200,
                i % 250,
                1 + i % 5000
            )
        })
        .collect();
    lines.push("deny all".into());
    let policy = policy_of(&lines);
    let program = compile(&policy, &Budget::new(&go_on)).unwrap();
    assert!(program.words().len() < 4 << 20, "{} words", program.words().len());
    let last = with(&Made::default().bytes(), Sides::default(), 0, |packet| {
        let mut outcome = [Outcome::DEFAULT];
        let tables = tables();
        let context = Context { tables: &tables, now: 0, hits: &[], limits: &[] };
        program.judge(Direction::In, &[*packet], &mut outcome, &context, None);
        outcome[0].rule
    });
    assert_eq!(last, 3_000);
}

#[test]
fn a_bundle_is_read_as_it_was_written_and_cut_short_it_is_refused() {
    let lines = ["allow tcp from 10.0.0.0/8 to me 22", "deny all"].map(String::from);
    let program = compile(&policy_of(&lines), &Budget::new(&go_on)).unwrap();
    let port = BundlePort {
        id: 7,
        program: 0,
        groups: 1 << 40 | 3,
        ips: vec![[10, 0, 0, 7].into(), "2001:db8::7".parse().unwrap()],
    };
    let table = ["10.0.0.0/8", "2001:db8::/32"].map(|prefix| prefix.parse().unwrap()).to_vec();
    let bundle =
        Bundle { generation: 9, programs: vec![program], ports: vec![port], tables: vec![table] };
    let mut bytes = bundle.to_bytes();
    for len in (0..bytes.len()).step_by(4) {
        assert!(Bundle::from_bytes(&bytes[..len]).is_none(), "{len} bytes");
    }
    bytes.resize(bytes.len() + 4096, 0);
    let read = Bundle::from_bytes(&bytes).unwrap();
    assert_eq!((read.generation, read.ports, read.tables), (9, bundle.ports, bundle.tables));
    assert_eq!(read.programs[0].words(), bundle.programs[0].words());
}
