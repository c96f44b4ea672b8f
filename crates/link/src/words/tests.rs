use super::*;
use proptest::prelude::*;

fn link(text: &str) -> LinkConfig {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn words_mean_what_they_say() {
    let ms = Nanos::MILLI;
    let is = link("rate=10Mb/s,delay=25ms,queue=100kB,aqm=fq_codel,loss=1%,seed=7");
    let target = Target { target_ns: 5 * ms, interval_ns: 100 * ms };
    let expected = LinkConfig {
        rate: Some(10_000_000),
        delay_ns: 25 * ms,
        queue: Some(QueueSize::Bytes(100_000)),
        aqm: Aqm::FqCodel(target),
        loss: Loss::Random(10_000),
        seed: 7,
        ..LinkConfig::default()
    };
    assert_eq!(is, expected);
    let ge = |to_bad, to_good, in_bad, in_good| Loss::GilbertElliott {
        to_bad,
        to_good,
        in_bad,
        in_good,
    };
    for (text, loss) in [
        ("loss=ge:1%:25%", ge(10_000, 250_000, 1_000_000, 0)),
        ("loss=ge:1%:25%:50%", ge(10_000, 250_000, 500_000, 0)),
        ("loss=ge:1%:25%:50%:0.1%", ge(10_000, 250_000, 500_000, 1000)),
        ("loss=every:100", Loss::Every(100)),
        ("loss=0.0001%", Loss::Random(1)),
    ] {
        assert_eq!(link(text).loss, loss, "{text}");
    }
    for (text, queue) in [
        ("queue=1.5MB", QueueSize::Bytes(1_500_000)),
        ("queue=1000frames", QueueSize::Frames(1000)),
        ("queue=50ms", QueueSize::Time(50 * ms)),
    ] {
        assert_eq!(link(text).queue, Some(queue), "{text}");
    }
    assert_eq!(link("rate=1.5Gb/s").rate, Some(1_500_000_000));
    assert_eq!(
        link("rate=64kb/s,aqm=pie,target=20ms").aqm,
        Aqm::Pie(Target { target_ns: 20 * ms, interval_ns: 15 * ms })
    );
    let fair = link(
        "rate=1Mb/s,aqm=fq_codel,flows=source/24+destination,weight=4@10.0.0.0/8,weight=2@fd00::/16",
    );
    assert_eq!(fair.flows.mask, Some(FlowMask { source: 24, destination: 128 }));
    assert_eq!(fair.flows.weights.len(), 2);
}

#[test]
fn presets_are_links_and_later_words_replace_theirs() {
    for (name, words) in PRESETS {
        assert_eq!(link(name), link(words));
        link(name).check().unwrap();
    }
    let slower = link("dsl,rate=1Mb/s");
    assert_eq!((slower.rate, slower.delay_ns), (Some(1_000_000), link("dsl").delay_ns));
}

#[test]
fn wrong_words_are_named_with_the_near_one() {
    for (text, expected) in [
        ("", "none of rate="),
        ("rat=10Mb/s", "did you mean rate?"),
        ("lose=1%", "did you mean loss?"),
        ("stellite", "did you mean satellite?"),
        ("rate=10", "\"10\" is not a rate"),
        ("rate=1b/s", "from 1kb/s to 400Gb/s"),
        ("rate=1Tb/s", "not a rate"),
        ("delay=1", "\"1\" is not a time"),
        ("delay=11s", "longer than 10s"),
        ("delay=1ms,delay=2ms", "say delay= once"),
        ("loss=2", "not a share"),
        ("loss=101%", "not a share"),
        ("loss=ge:1%", "TO_BAD:TO_GOOD"),
        ("loss=every:0", "number from 1"),
        ("queue=0B", "not a size"),
        ("queue=3GB", "not a size"),
        ("queue=many", "not a size"),
        ("jitter=1ms", "jitter needs a delay"),
        ("delay=1ms,jitter=2ms", "at most the delay"),
        ("reorder=1%", "reorder needs a delay"),
        ("aqm=codel", "aqm needs a rate"),
        ("rate=1Mb/s,aqm=blue", "none of fifo, codel"),
        ("rate=1Mb/s,aqm=red,target=1ms", "not for aqm=red"),
        ("rate=1Mb/s,aqm=pie,min=1kB", "are for aqm=red, not pie"),
        ("rate=1Mb/s,aqm=red,min=2kB,max=1kB", "min= is less than max="),
        ("rate=1Mb/s,ecn", "ecn needs an aqm"),
        ("rate=1Mb/s,flows=source", "need aqm=fq_codel"),
        ("rate=1Mb/s,aqm=fq_codel,flows=color", "neither source"),
        ("rate=1Mb/s,aqm=fq_codel,flows=source/0", "prefix length"),
        ("rate=1Mb/s,aqm=fq_codel,weight=0@10.0.0.0/8", "from 1 to 1000"),
        ("rate=1Mb/s,aqm=fq_codel,weight=2@10.0.0.0/33", "WEIGHT@PREFIX"),
        ("rate=1Mb/s,trace=a", "a rate or a trace"),
        ("trace=", "names no file"),
        ("delay=1ms,series=a", "a delay or a series"),
        ("loss=1%,series=a", "loss or a series"),
        ("overhead=70000", "up to 65535"),
        ("seed=-1", "not a number"),
    ] {
        let error = text.parse::<LinkConfig>().expect_err(text).to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    assert!("x".repeat(MAX_TEXT + 1).parse::<LinkConfig>().is_err());
}

#[test]
fn numbers_are_exact() {
    assert_eq!(decimal("0.1", 10_000), Some(1000));
    assert_eq!(decimal("18446744073709551615", 1), Some(u64::MAX));
    for wrong in ["", ".", "1.", ".5", "1e3", "-1", "+1", "1.0000000000001", "18446744073709551616"]
    {
        assert_eq!(decimal(wrong, 1), None, "{wrong}");
    }
    assert_eq!(
        [0, 1, 1000, 1_500_000, 25_000_000].map(time_text),
        ["0ns", "1ns", "1us", "1500us", "25ms"]
    );
}

proptest! {
    /// What is shown is read as the same link, and nothing that is read panics.
    #[test]
    fn words_survive_being_written(
        rate in prop::option::of(LinkConfig::MIN_RATE..=LinkConfig::MAX_RATE),
        delay_ns in 1..=LinkConfig::MAX_DELAY_NS,
        jitter in 0..=100u64,
        shares: [u8; 3],
        loss in 0..4u8,
        queue in 0..4u8,
        aqm in 0..5u8,
        ecn: bool,
        seed: u64,
    ) {
        let [duplicate_ppm, reorder_ppm, corrupt_ppm] = shares.map(|s| u32::from(s) * 3921);
        let n = u64::from(duplicate_ppm) + 1;
        let target = Target { target_ns: n * 1000, interval_ns: n * 7 };
        let aqm = match aqm {
            _ if rate.is_none() => Aqm::Fifo,
            0 => Aqm::Fifo,
            1 => Aqm::Codel(target),
            2 => Aqm::FqCodel(target),
            3 => Aqm::Red { min: n, max: 2 * n, ppm: reorder_ppm },
            _ => Aqm::Pie(target),
        };
        let link = LinkConfig {
            rate,
            delay_ns,
            jitter_ns: delay_ns / 100 * jitter,
            duplicate_ppm,
            reorder_ppm,
            corrupt_ppm,
            loss: match loss {
                0 => Loss::None,
                1 => Loss::Random(n as u32),
                2 => Loss::Every(n as u32),
                _ => Loss::GilbertElliott { to_bad: 1, to_good: 2, in_bad: 3, in_good: 4 },
            },
            queue: match queue {
                0 => None,
                1 => Some(QueueSize::Bytes(n)),
                2 => Some(QueueSize::Frames(n)),
                _ => Some(QueueSize::Time(n)),
            },
            ecn: ecn && aqm != Aqm::Fifo,
            aqm,
            seed,
            ..LinkConfig::default()
        };
        prop_assert_eq!(link.check(), Ok(()));
        let text = link.to_string();
        prop_assert_eq!(text.parse::<LinkConfig>(), Ok(link), "{}", text);
    }

    #[test]
    fn nothing_that_is_read_panics(text in "[a-z=:,.0-9%/@+]{0,60}") {
        if let Ok(link) = text.parse::<LinkConfig>() {
            prop_assert_eq!(link.to_string().parse::<LinkConfig>(), Ok(link));
        }
    }
}
