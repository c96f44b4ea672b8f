//! Objective: the same register accesses give the same answers on these models and on QEMU's,
//! except for listed differences, each with the data sheet's words.
//!
//! Steps: a script (what Linux's driver does as it probes and opens the card) runs against both.
//! Its results are compared, line by line. Skips itself by name without QEMU.

mod e1000;
mod pcnet;
mod qemu;
mod target;

use std::collections::{BTreeMap, BTreeSet};

use harness::skip;

use self::qemu::Qemu;
use self::target::{Card, Ours, Target};

/// The values that a script has read, with their names.
#[derive(Default)]
struct Seen(Vec<(String, u32)>);

impl Seen {
    /// A name that is seen again gets a number.
    fn see(&mut self, what: &str, value: u32) {
        let again = format!("{what}, seen again");
        let times = self.0.iter().filter(|(seen, _)| seen == what || seen.starts_with(&again));
        let name = match times.count() {
            0 => what.to_owned(),
            times => format!("{again} {times}"),
        };
        self.0.push((name, value));
    }

    /// Records memory, four bytes at a time.
    fn see_bytes(&mut self, what: &str, bytes: &[u8]) {
        for (i, four) in bytes.chunks(4).enumerate() {
            let mut word = [0; 4];
            word[..four.len()].copy_from_slice(four);
            self.see(&format!("{what}+{:#x}", 4 * i), u32::from_le_bytes(word));
        }
    }
}

/// An intended difference: where, in which bits, and why the model is right or free.
#[derive(Debug)]
struct Intended {
    at: &'static str,
    bits: u32,
    why: &'static str,
}

/// The differences: name, this model's value, QEMU's value.
fn differences(ours: &Seen, theirs: &Seen, meant: &[&Intended]) -> Vec<String> {
    let values = |seen: &Seen| seen.0.iter().cloned().collect::<BTreeMap<_, _>>();
    let [mine, yours] = [ours, theirs].map(values);
    assert_eq!((mine.len(), yours.len()), (ours.0.len(), theirs.0.len()), "names are used once");
    let names: BTreeSet<_> = mine.keys().chain(yours.keys()).collect();
    let mut differences = Vec::new();
    for what in names {
        let excused = meant.iter().filter(|meant| matches(meant.at, what));
        let excused = excused.fold(0, |bits, meant| bits | meant.bits);
        let show =
            |value: Option<&u32>| value.map_or_else(|| "none".to_owned(), |v| format!("{v:#010x}"));
        let (ours, theirs) = (mine.get(what), yours.get(what));
        let same = match (ours, theirs) {
            (Some(ours), Some(theirs)) => (ours ^ theirs) & !excused == 0,
            _ => excused == u32::MAX,
        };
        if !same {
            differences.push(format!("{what}: ours {}, QEMU's {}", show(ours), show(theirs)));
        }
    }
    differences
}

/// True if `at` names the value `what`, fully or by its beginning and a `*`.
fn matches(at: &str, what: &str) -> bool {
    at.strip_suffix('*').map_or(at == what, |prefix| what.starts_with(prefix))
}

/// This PCnet, QEMU's, and whether the test must advance the time.
const PCNET: (Card, &str, bool) = (Card::Pcnet(nic::pcnet::Chip::Am79C970A), "pcnet", false);

fn compare(
    test: &str,
    (card, qemu, clock): (Card, &str, bool),
    script: fn(&mut dyn Target) -> Seen,
    meant: &[&[Intended]],
) {
    let mut theirs = match Qemu::start(qemu, clock) {
        Ok(theirs) => theirs,
        Err(why) => return skip(test, &why),
    };
    let seen = [script(&mut Ours::new(card)), script(&mut theirs)];
    assert!(seen[0].0.len() > 20, "a script that looks at something");
    let meant: Vec<_> = meant.iter().copied().flatten().collect();
    let differences = differences(&seen[0], &seen[1], &meant);
    let reasons: Vec<_> = meant.iter().map(|meant| (meant.at, meant.why)).collect();
    assert!(differences.is_empty(), "{}\n\nmeant: {reasons:#?}", differences.join("\n"));
}

#[test]
fn pcnet32_finds_and_opens_the_same_card() {
    compare(
        "pcnet32_finds_and_opens_the_same_card",
        PCNET,
        pcnet::probe_and_open,
        &[pcnet::INTENDED],
    );
}

#[test]
fn a_pcnets_frames_come_back_the_same() {
    compare("a_pcnets_frames_come_back_the_same", PCNET, pcnet::frames, &[pcnet::INTENDED]);
}

#[test]
fn a_pcnets_registers_are_the_same() {
    compare("a_pcnets_registers_are_the_same", PCNET, pcnet::registers, &[pcnet::INTENDED]);
}

#[test]
fn e1000_finds_and_opens_the_same_card() {
    compare(
        "e1000_finds_and_opens_the_same_card",
        (Card::E1000(nic::e1000::Chip::Em82540), "e1000", false),
        e1000::probe_and_open,
        &[e1000::INTENDED_E1000],
    );
}

#[test]
fn boot_loaders_find_the_same_card() {
    compare(
        "boot_loaders_find_the_same_card",
        (Card::E1000(nic::e1000::Chip::Em82540), "e1000", false),
        e1000::boot,
        &[e1000::INTENDED_E1000],
    );
}

#[test]
fn e1000e_finds_and_opens_the_same_card() {
    compare(
        "e1000e_finds_and_opens_the_same_card",
        (Card::E1000(nic::e1000::Chip::L82574), "e1000e", false),
        e1000::probe_and_open_e,
        &[e1000::INTENDED_E1000E],
    );
}

#[test]
fn an_e1000s_frames_are_finished_and_come_back_the_same() {
    compare(
        "an_e1000s_frames_are_finished_and_come_back_the_same",
        (Card::E1000(nic::e1000::Chip::Em82540), "e1000", true),
        e1000::frames,
        &[e1000::INTENDED_FRAMES],
    );
}

#[test]
fn an_e1000es_frames_are_finished_and_come_back_the_same() {
    compare(
        "an_e1000es_frames_are_finished_and_come_back_the_same",
        (Card::E1000(nic::e1000::Chip::L82574), "e1000e", true),
        e1000::frames,
        &[e1000::INTENDED_FRAMES, e1000::INTENDED_FRAMES_E],
    );
}

#[test]
fn a_difference_that_is_not_meant_is_found() {
    let seen = |value| Seen(vec![("STATUS".to_owned(), value), ("CTRL".to_owned(), 0)]);
    let meant = [&Intended { at: "STAT*", bits: 0xf0, why: "" }];
    assert_eq!(differences(&seen(0x12), &seen(0x32), &meant), Vec::<String>::new());
    assert_eq!(differences(&seen(0x12), &seen(0x13), &meant).len(), 1);
    let meant = [&Intended { at: "STAT", bits: 0xf0, why: "" }];
    assert_eq!(differences(&seen(0x12), &seen(0x32), &meant).len(), 1);
}
