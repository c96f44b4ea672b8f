//! Files of ipfw become the same rules, or an error at a word that we lack.

use crate::rules::{Action, Policy, Rate, Sides, Tables, first_match, parse_ipfw, parse_lines};

use crate::frames::{Made, with};

const FILE: &str = "# a usual one
ipfw -q flush
table 1 add 10.0.0.0/30
table 1 add 10.9.0.0/16
pipe 1 config bw 10Mbit/s delay 20 queue 50 plr 0.1
queue 2 config pipe 1
add 100 check-state
add 500 deny log ip from table(1) to any 22 dst-port 22 in
add 200 skipto 600 tcp from any to any setup
add 300 allow tcp from any to me 80,443 keep-state
add prob 0.5 deny udp from any to any
add 600 pipe 1 icmp from any to any icmptypes 0,8
add 65000 allow tcp from any to any 22 out
add 65001 deny ip from any to any
";

#[test]
fn rules_stand_in_the_order_of_their_numbers() {
    let text = FILE
        .replace("ip from table(1) to any 22 dst-port 22", "tcp from table(1) to any dst-port 22");
    let file = parse_ipfw(text.lines()).unwrap();
    let lines: Vec<usize> = file.rules.iter().map(|rule| rule.line).collect();
    assert_eq!(lines, [9, 10, 8, 11, 12, 13, 14]);
    assert_eq!(file.tables["1"].len(), 2);
    let pipe = &file.pipes["pipe1"];
    assert_eq!((pipe.bandwidth, pipe.delay, pipe.queue), (Some(10_000_000), Some(20), Some(50)));
    assert_eq!(file.pipes["queue2"].of, Some(1));
    assert!(!file.rules[1].stateless && file.rules[5].stateless);
    assert_eq!(file.rules[4].link.as_deref(), Some("pipe1"));
    assert_eq!(file.rules[0].action, Action::Skip("r600-3".into()));
    assert_eq!(file.rules[3].label.as_deref(), Some("r600-3"));
    assert_eq!(file.rules[2].limit, None::<Rate>);
}

#[test]
fn both_dialects_judge_alike() {
    let theirs = [
        "add allow tcp from 10.0.0.0/24 to any 22 in",
        "add deny tcp from any to any setup",
        "add 1000 allow udp from any 53 to any",
        "add 900 deny ip from 10.0.0.7 to any",
    ];
    let ours = [
        "allow stateless",
        "deny tcp flags syn,!ack",
        "deny all from 10.0.0.7 to any",
        "allow udp from any 53 to any stateless",
    ];
    let ours =
        [["allow tcp from 10.0.0.0/24 to any 22 in stateless"].as_slice(), &ours[1..]].concat();
    let mut policies = [Policy::default(), Policy::default()];
    policies[0].push(&parse_ipfw(theirs).unwrap().rules);
    policies[1].push(&parse_lines(ours).unwrap());
    for protocol in [6u8, 17] {
        for (from, port, flags) in [(1u8, 22, 2), (7, 22, 16), (7, 53, 2), (9, 80, 2), (9, 80, 16)]
        {
            let frame = Made {
                from: [10, 0, 0, from].into(),
                protocol,
                ports: (53, port),
                flags,
                ..Made::default()
            };
            let found = policies.each_ref().map(|policy| {
                with(&frame.bytes(), Sides::default(), 0, |packet| {
                    first_match(policy, &Tables::default(), crate::rules::Direction::In, packet)
                })
            });
            assert_eq!(found[0], found[1], "{frame:?}");
        }
    }
}

#[test]
fn words_that_we_lack_are_errors_at_their_word() {
    for (line, expected) in [
        (
            "add deny ip from any to any via em0",
            "column 29: `via` is not an option of ipfw that we have",
        ),
        (
            "add deny tcp from any to any established",
            "column 30: `established` is not an option of ipfw that we have",
        ),
        (
            "add divert 8668 ip from any to any",
            "column 5: `divert` is not an action of ipfw that we have",
        ),
        (
            "add alow ip from any to any",
            "column 5: `alow` is not an action of ipfw that we have; did you mean `allow`?",
        ),
        (
            "add allow ip from any to not me",
            "column 26: `not` is not an address, `any`, `me`, `table:NAME` or `group:NAME`",
        ),
        ("add allow ip from table:x to any", "column 19: `table:x` is not an address of ipfw"),
        ("nat 1 config if em0", "column 1: `nat` is not a command of ipfw that we have"),
        ("pipe 1 config bw 10MB/s", "column 18: `10MB/s` is not a bandwidth such as `10Mbit/s`"),
        (
            "pipe 1 config mask dst-ip 0xff",
            "column 15: `mask` is not a setting of a pipe that we have",
        ),
        ("add skipto 5 ip from any to any", "column 1: `5`: no later rule has this number"),
        (
            "add deny ip from any to any 22",
            "column 1: `add`: ports need the protocol tcp, udp or sctp",
        ),
    ] {
        let error = parse_ipfw(["", line]).unwrap_err().to_string();
        assert_eq!(error, format!("line 2, {expected}"), "{line}");
    }
}

proptest::proptest! {
    #[test]
    fn any_file_of_ipfw_is_read_without_a_panic(
        text in "((add|pipe|queue|table|1|500|deny|allow|skipto|ip|tcp|from|to|any|me|22|in|out|keep-state|config|bw|10Mbit/s|\n) ){0,40}",
    ) {
        let _ = parse_ipfw(text.lines());
    }
}
