//! What people write: lines that are rules, and a thousand that are none.

use crate::rules::{Action, Direction, Problem, Protocols, Rate, parse_line, parse_lines};

#[test]
fn lines_are_rules() {
    let rule = parse_line("allow tcp from any to me 80,443", 1).unwrap();
    assert_eq!((rule.action, rule.matches.to.ports), (Action::Allow, vec![(80, 80), (443, 443)]));
    let rule = parse_line("allow tcp from group:admin to me ssh # theirs", 1).unwrap();
    assert_eq!(rule.matches.from.hosts.groups, ["admin"]);
    assert!(!rule.matches.applies(Direction::Out), "`me` receives what goes in");
    let rule = parse_line("deny log udp from 10.0.0.0/8 to any 1024-65535 out", 1).unwrap();
    assert!(rule.log && rule.matches.direction == Some(Direction::Out));
    let rule = parse_line("allow icmp from table:good to me limit 100pps", 1).unwrap();
    assert_eq!(rule.limit, Some(Rate::Frames(100)));
    let rule =
        parse_line("late: mirror mon limit 8Mb/s ip bpf \"tcp # not a comment\"", 1).unwrap();
    assert_eq!(rule.label.as_deref(), Some("late"));
    assert_eq!(rule.matches.bpf.as_deref(), Some("tcp # not a comment"));
    assert_eq!((rule.action, rule.limit), (Action::Next, Some(Rate::Bits(8_000_000))));
    assert_eq!(parse_line("deny", 1).unwrap().matches.protocols, Protocols::All);
    assert!(
        parse_line("allow ip from any to any prob 25%", 1).unwrap().matches.probability.unwrap()
            >> 30
            == 1
    );
}

#[test]
fn errors_name_line_column_word_and_the_near_word() {
    for (lines, expected) in [
        (vec!["alow tcp"], "line 1, column 1: `alow` is not an action; did you mean `allow`?"),
        (
            vec!["", "# x", "deny  tpc"],
            "line 3, column 7: `tpc` is not a protocol, `from`, `to` or an \
            option; did you mean `tcp`?",
        ),
        (
            vec!["allow tcp from any to"],
            "line 1, column 22: the line ends where an address, `any` or \
            `me` is expected",
        ),
        (
            vec!["allow tcp from any to any 80,66000"],
            "line 1, column 30: `66000`: the number is out of range",
        ),
        (
            vec!["allow tcp to any 90-80"],
            "line 1, column 18: `90-80`: the range ends before it begins",
        ),
        (vec!["allow udp flags syn"], "line 1, column 1: `allow`: `flags` needs the protocol tcp"),
        (
            vec!["allow ip from 10.0.0.0/33 to any"],
            "line 1, column 15: `10.0.0.0/33` is not an address, \
            `any`, `me`, `table:NAME` or `group:NAME`",
        ),
        (
            vec!["allow tcp flags syn,akc"],
            "line 1, column 21: `akc` is not a flag of TCP; did you mean `ack`?",
        ),
        (
            vec!["skipto end ip"],
            "line 1, column 1: `end`: no later rule of the group has this label",
        ),
        (
            vec!["allow ip in out"],
            "line 1, column 13: `out`: the rule has the other direction, too; \
            leave both out for both",
        ),
    ] {
        assert_eq!(parse_lines(lines).unwrap_err().to_string(), expected);
    }
}

/// Parts of lines with a word that is wrong there.
const WRONG: &[&str] = &[
    "",
    "allowed",
    "ALLOW",
    "allow,deny",
    "\"allow\"",
    "80",
    "permit",
    "drop",
    "accept",
    "pass",
    "-",
    ":",
];
const WORDS: &[&str] = &[
    "tcpp",
    "ip4x",
    "tcp/80",
    "form",
    "form any",
    "from",
    "to",
    "from neither",
    "from 10.0.0",
    "from 10.0.0.0/",
    "from 10.0.0.0/33",
    "from 10.0.0.0/-1",
    "from ::/129",
    "from 10.0.0.1,",
    "from ,10.0.0.1",
    "from table:",
    "from group:",
    "from table:a/b",
    "from \"any",
    "to group:web",
    "to me,",
    "in out",
    "in in",
    "out in",
    "stateles",
    "flags",
    "flags syn",
    "flags sny",
    "flags syn,syn",
    "flags syn,,ack",
    "icmptypes 8",
    "icmptypes",
    "icmptypes ping",
    "src-mac",
    "src-mac 02:00",
    "src-mac 02:00:00:00:00:0g",
    "dst-mac any",
    "vlan",
    "vlan 4095",
    "vlan five",
    "vlan 9-5",
    "ethertype",
    "ethertype 0x",
    "ethertype 0x5ff",
    "ethertype 0x10000",
    "ethertype ipx",
    "length",
    "length 1-",
    "length -1",
    "length 9-1",
    "length 1,2",
    "length 99999",
    "fragmnet",
    "prob",
    "prob 0",
    "prob 1",
    "prob 2",
    "prob -0.5",
    "prob 100%",
    "prob x",
    "prob nan",
    "bpf",
    "bpf tcp",
    "limit",
    "limit 10",
    "limit 0pps",
    "limit pps",
    "limit -1pps",
    "limit 10Mbps",
    "limit 1pps limit 1pps",
    "link",
    "log log",
    "from any from any",
    "to any to any",
    "from any 80",
    "to any 80",
    "from any eighty to any",
    "proto",
    "proto 256",
    "proto tcp",
    "from 10.0.0.1 to ::1",
    "from me to me",
    "from any to any,me",
    "established",
    "setup",
    "keep-state",
    "via em0",
];

#[test]
fn a_thousand_wrong_lines_are_errors_at_their_word() {
    let before = [
        "allow ",
        "deny log ",
        "count  ",
        "reset ",
        "x: allow ",
        "limit 5pps ",
        "deny\t",
        "mirror mon ",
        "allow ip ",
        "deny all ",
        "count ip ",
        "skipto x ",
    ];
    let behind = ["", " in # end"];
    let mut lines: Vec<String> = WRONG.iter().map(|word| format!("{word} tcp")).collect();
    for first in before {
        for word in WORDS {
            lines.extend(behind.iter().map(|behind| format!("{first}{word}{behind}")));
        }
    }
    // Of `link in`, the second word is the name.
    lines.retain(|line| !line.contains("link in"));
    assert!(lines.len() >= 1000, "{}", lines.len());
    for line in &lines {
        let Err(error) = parse_line(line, 7) else { panic!("a rule: {line}") };
        assert_eq!(error.line, 7);
        let found: String =
            line.chars().skip(error.column - 1).take(error.word.chars().count()).collect();
        assert_eq!(found, error.word, "{line}: {error}");
        let at_end = matches!(error.problem, Problem::Expected(_)) && error.word.is_empty();
        assert!(at_end || !error.word.is_empty(), "{line}: {error}");
    }
}

proptest::proptest! {
    /// Any text is a rule or an error.
    #[test]
    fn any_text_is_read_without_a_panic(text in ".{0,200}", words in "((allow|deny|tcp|from|to|any|me|80|in|\"|,|:|group:|10.0.0.0/8) ){0,20}") {
        let _ = parse_line(&text, 1);
        let _ = parse_line(&words, 1);
        let _ = crate::rules::parse_lines([text.as_str(), words.as_str()]);
    }
}
