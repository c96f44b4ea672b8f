//! A link's configuration in words, as in
//! `rate=10Mb/s,delay=25ms,queue=100kB,aqm=fq_codel,loss=1%`.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::net::IpAddr;
use std::str::FromStr;

use port::Nanos;

use crate::{Aqm, FlowMask, LinkConfig, LinkError, Loss, QueueSize, Spread, Target, Weight};

/// Words that stand for others. Words after them replace single ones.
pub const PRESETS: [(&str, &str); 3] = [
    ("dsl", "rate=16Mb/s,overhead=22,delay=15ms,jitter=1ms,queue=200ms"),
    ("lte", "rate=20Mb/s,delay=35ms,jitter=8ms,spread=normal,queue=500ms,loss=ge:0.02%:20%,seed=1"),
    ("satellite", "rate=10Mb/s,delay=270ms,jitter=5ms,queue=600ms,loss=0.2%,seed=1"),
];

/// What a word may be, for messages.
const KNOWN: [&str; 21] = [
    "rate=",
    "overhead=",
    "delay=",
    "jitter=",
    "spread=",
    "loss=",
    "duplicate=",
    "reorder=",
    "corrupt=",
    "queue=",
    "aqm=",
    "target=",
    "interval=",
    "min=",
    "max=",
    "probability=",
    "ecn",
    "flows=",
    "weight=",
    "trace=",
    "seed=",
];
/// The maximum number of weights.
const MAX_WEIGHTS: usize = 64;
/// The longest text.
const MAX_TEXT: usize = 4096;

/// A percentage such as `0.1%` in parts per million.
pub(crate) fn share(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|number| decimal(number, 10_000));
    let ppm = percent.filter(|ppm| *ppm <= 1_000_000).map(|ppm| ppm as u32);
    ppm.ok_or_else(|| format!("{text:?} is not a share such as 0.1%"))
}

/// A time such as `10ms` or `250us` in nanoseconds.
pub(crate) fn nanoseconds(text: &str) -> Result<u64, String> {
    // `s` is the end of the others.
    let units = [("ns", 1), ("us", 1000), ("ms", Nanos::MILLI), ("s", Nanos::SECOND)];
    let found = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let ns = found.and_then(|(number, scale)| decimal(number, scale));
    ns.filter(|ns| *ns <= 86_400 * Nanos::SECOND)
        .ok_or_else(|| format!("{text:?} is not a time such as 10ms or 250us"))
}

/// A decimal number times `scale`, exactly, rounded down.
fn decimal(text: &str, scale: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 12 {
        return None;
    }
    let part_scale = 10u128.pow(part.len() as u32);
    let part: u128 = part.parse().ok()?;
    let whole = u128::from(whole.parse::<u64>().ok()?) * u128::from(scale);
    u64::try_from(whole + part * u128::from(scale) / part_scale).ok()
}

/// A number with one of these units.
fn in_units(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    units.iter().find_map(|(unit, scale)| decimal(text.strip_suffix(unit)?, *scale))
}

fn rate(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 4] =
        [("Gb/s", 1_000_000_000), ("Mb/s", 1_000_000), ("kb/s", 1000), ("b/s", 1)];
    let rate = in_units(text, &UNITS);
    let range = LinkConfig::MIN_RATE..=LinkConfig::MAX_RATE;
    rate.filter(|rate| range.contains(rate))
        .ok_or_else(|| format!("{text:?} is not a rate from 1kb/s to 400Gb/s, such as 10Mb/s"))
}

fn bytes(text: &str) -> Option<u64> {
    in_units(text, &[("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000), ("B", 1)])
}

fn queue(text: &str) -> Result<QueueSize, String> {
    let size = bytes(text).filter(|bytes| (1..=LinkConfig::MAX_QUEUE).contains(bytes));
    let frames = text.strip_suffix("frames").and_then(|number| number.parse().ok());
    let frames = frames.filter(|frames| (1..=LinkConfig::MAX_QUEUE / 64).contains(frames));
    let time = nanoseconds(text).ok().filter(|ns| *ns > 0 && *ns <= LinkConfig::MAX_DELAY_NS);
    let size = size.map(QueueSize::Bytes).or_else(|| frames.map(QueueSize::Frames));
    size.or_else(|| time.map(QueueSize::Time))
        .ok_or_else(|| format!("{text:?} is not a size such as 100kB, 1000frames or 50ms"))
}

fn loss(text: &str) -> Result<Loss, String> {
    if let Some(every) = text.strip_prefix("every:") {
        let n = every.parse().ok().filter(|n| *n > 0);
        let n = n.ok_or_else(|| format!("{every:?} is not a number from 1"));
        return n.map(Loss::Every);
    }
    let Some(model) = text.strip_prefix("ge:") else {
        return share(text).map(|ppm| if ppm == 0 { Loss::None } else { Loss::Random(ppm) });
    };
    let shares: Vec<u32> = model.split(':').map(share).collect::<Result<_, _>>()?;
    let (to_bad, to_good, in_bad, in_good) = match shares[..] {
        [to_bad, to_good] => (to_bad, to_good, 1_000_000, 0),
        [to_bad, to_good, in_bad] => (to_bad, to_good, in_bad, 0),
        [to_bad, to_good, in_bad, in_good] => (to_bad, to_good, in_bad, in_good),
        _ => return Err(format!("{text:?} is not ge:TO_BAD:TO_GOOD[:IN_BAD[:IN_GOOD]]")),
    };
    Ok(Loss::GilbertElliott { to_bad, to_good, in_bad, in_good })
}

fn flows(text: &str) -> Result<FlowMask, String> {
    let mut mask = FlowMask::default();
    for field in text.split('+') {
        let (name, bits) = field.split_once('/').unwrap_or((field, "128"));
        let bits = bits.parse().ok().filter(|bits| (1..=128).contains(bits));
        let bits = bits.ok_or_else(|| format!("{field:?} has no prefix length from 1 to 128"))?;
        match name {
            "source" => mask.source = bits,
            "destination" => mask.destination = bits,
            _ => return Err(format!("{field:?} is neither source[/BITS] nor destination[/BITS]")),
        }
    }
    Ok(mask)
}

fn weight(text: &str) -> Result<Weight, String> {
    let wrong = || format!("{text:?} is not WEIGHT@PREFIX, such as 4@10.0.0.0/8");
    let (weight, prefix) = text.split_once('@').ok_or_else(wrong)?;
    let weight = weight.parse().ok().filter(|w| (1..=Weight::MAX).contains(w));
    let (address, bits) = prefix.split_once('/').map_or((prefix, None), |(a, b)| (a, Some(b)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(most), |bits| bits.parse().ok()).filter(|bits| *bits <= most);
    Ok(Weight {
        address,
        bits: bits.ok_or_else(wrong)?,
        weight: weight.ok_or_else(|| format!("a weight is from 1 to {}: {text:?}", Weight::MAX))?,
    })
}

/// What words say about a discipline, in any order.
#[derive(Default)]
struct Discipline {
    name: Option<String>,
    target: Option<u64>,
    interval: Option<u64>,
    min: Option<u64>,
    max: Option<u64>,
    probability: Option<u32>,
}

impl Discipline {
    fn target(&self, target_ns: u64, interval_ns: u64) -> Target {
        Target {
            target_ns: self.target.unwrap_or(target_ns),
            interval_ns: self.interval.unwrap_or(interval_ns),
        }
    }

    fn aqm(&self) -> Result<Aqm, String> {
        let controlled = self.target.is_some() || self.interval.is_some();
        let early = self.min.is_some() || self.max.is_some() || self.probability.is_some();
        let ms = Nanos::MILLI;
        let name = self.name.as_deref().unwrap_or("fifo");
        let aqm = match name {
            "fifo" => Aqm::Fifo,
            "codel" => Aqm::Codel(self.target(5 * ms, 100 * ms)),
            "fq_codel" => Aqm::FqCodel(self.target(5 * ms, 100 * ms)),
            "pie" => Aqm::Pie(self.target(15 * ms, 15 * ms)),
            "red" => Aqm::Red {
                min: self.min.unwrap_or(0),
                max: self.max.unwrap_or(0),
                ppm: self.probability.unwrap_or(100_000),
            },
            other => return Err(format!("{other:?} is none of fifo, codel, fq_codel, red, pie")),
        };
        if controlled && matches!(aqm, Aqm::Fifo | Aqm::Red { .. }) {
            return Err(format!("target= and interval= are not for aqm={name}"));
        }
        if early && !matches!(aqm, Aqm::Red { .. }) {
            return Err(format!("min=, max= and probability= are for aqm=red, not {name}"));
        }
        if let (Some(min), Some(max)) = (self.min, self.max)
            && min >= max
        {
            return Err("min= is less than max=".into());
        }
        Ok(aqm)
    }
}

impl FromStr for LinkConfig {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        if text.len() > MAX_TEXT {
            return Err(LinkError::Word(format!("a link has at most {MAX_TEXT} characters")));
        }
        let (mut link, mut discipline) = (Self::default(), Discipline::default());
        let mut said = BTreeSet::new();
        let mut rest = text;
        let first = text.split(',').next().unwrap_or_default();
        if let Some((_, words)) = PRESETS.iter().find(|(name, _)| *name == first) {
            words.split(',').try_for_each(|word| read(word, &mut link, &mut discipline))?;
            rest = text[first.len()..].trim_start_matches(',');
        }
        for word in rest.split(',').filter(|word| !word.is_empty() || rest == text) {
            let name = word.split('=').next().unwrap_or_default();
            if name != "weight" && !said.insert(name) {
                return Err(LinkError::Word(format!("say {name}= once")));
            }
            read(word, &mut link, &mut discipline)?;
        }
        link.aqm = discipline.aqm().map_err(LinkError::Word)?;
        link.check()?;
        Ok(link)
    }
}

/// Reads a word.
fn read(word: &str, link: &mut LinkConfig, aqm: &mut Discipline) -> Result<(), LinkError> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let time = || {
        let ns = nanoseconds(value)?;
        let most = LinkConfig::MAX_DELAY_NS;
        if ns > most { Err(format!("{word:?} is longer than 10s")) } else { Ok(ns) }
    };
    let size = || bytes(value).ok_or_else(|| format!("{value:?} is not a size such as 10kB"));
    let whole = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
    let done = match name {
        "rate" => rate(value).map(|rate| link.rate = Some(rate)),
        "overhead" => value
            .parse()
            .map(|bytes| link.overhead = bytes)
            .map_err(|_| format!("{value:?} is not a number of bytes up to 65535")),
        "delay" => time().map(|ns| link.delay_ns = ns),
        "jitter" => time().map(|ns| link.jitter_ns = ns),
        "loss" => loss(value).map(|loss| link.loss = loss),
        "duplicate" => share(value).map(|ppm| link.duplicate_ppm = ppm),
        "reorder" => share(value).map(|ppm| link.reorder_ppm = ppm),
        "corrupt" => share(value).map(|ppm| link.corrupt_ppm = ppm),
        "queue" => queue(value).map(|size| link.queue = Some(size)),
        "seed" => whole().map(|seed| link.seed = seed),
        "target" => time().map(|ns| aqm.target = Some(ns)),
        "interval" => time().map(|ns| aqm.interval = Some(ns.max(1))),
        "min" => size().map(|bytes| aqm.min = Some(bytes)),
        "max" => size().map(|bytes| aqm.max = Some(bytes)),
        "probability" => share(value).map(|ppm| aqm.probability = Some(ppm)),
        _ => read_more(name, word, link, aqm),
    };
    done.map_err(LinkError::Word)
}

/// Reads the words whose values are not numbers.
fn read_more(
    name: &str,
    word: &str,
    link: &mut LinkConfig,
    aqm: &mut Discipline,
) -> Result<(), String> {
    let value = word.split_once('=').map_or("", |(_, value)| value);
    let file = || match value.is_empty() {
        true => Err(format!("{word:?} names no file")),
        false => Ok(Some(value.to_owned())),
    };
    match name {
        "spread" => match value {
            "uniform" => link.spread = Spread::Uniform,
            "normal" => link.spread = Spread::Normal,
            _ => link.spread_file = file()?,
        },
        "aqm" => aqm.name = Some(value.to_owned()),
        "ecn" => match value {
            "" | "on" => link.ecn = true,
            "off" => link.ecn = false,
            _ => return Err(format!("{word:?} is neither ecn nor ecn=off")),
        },
        "flows" => link.flows.mask = Some(flows(value)?),
        "weight" if link.flows.weights.len() == MAX_WEIGHTS => {
            return Err(format!("a link has at most {MAX_WEIGHTS} weights"));
        }
        "weight" => link.flows.weights.push(weight(value)?),
        "trace" => link.trace_file = file()?,
        "series" => link.series_file = file()?,
        _ => return Err(unknown(name, word)),
    }
    Ok(())
}

/// The message for a word that is not known, with the nearest one that is.
fn unknown(name: &str, word: &str) -> String {
    let names = KNOWN.iter().map(|known| known.trim_end_matches('='));
    let names = names.chain(["series"]).chain(PRESETS.map(|(name, _)| name));
    let near = names.map(|known| (distance(name, known), known)).min();
    match near.filter(|(distance, _)| *distance <= 2) {
        Some((_, near)) => format!("{word:?} is no word of a link; did you mean {near}?"),
        None => format!("{word:?} is none of {}, series=, dsl, lte, satellite", KNOWN.join(", ")),
    }
}

/// How many letters differ between two words (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// A number of nanoseconds in the largest unit that divides it.
pub(crate) fn time_text(ns: u64) -> String {
    let units = [(Nanos::SECOND, "s"), (Nanos::MILLI, "ms"), (1000, "us")];
    let fits = units.into_iter().find(|(unit, _)| ns >= *unit && ns.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{ns}ns"), |(unit, name)| format!("{}{name}", ns / unit))
}

fn rate_text(rate: u64) -> String {
    let units = [(1_000_000_000, "Gb/s"), (1_000_000, "Mb/s"), (1000, "kb/s")];
    let fits = units.into_iter().find(|(unit, _)| rate >= *unit && rate.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{rate}b/s"), |(unit, name)| format!("{}{name}", rate / unit))
}

/// Parts per million as a percentage.
fn share_text(ppm: u32) -> String {
    let text = format!("{}.{:04}", ppm / 10_000, ppm % 10_000);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

impl Display for LinkConfig {
    /// The words that make this link.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(","))
    }
}

impl LinkConfig {
    /// The words that make this link.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        words.extend(self.rate.map(|rate| format!("rate={}", rate_text(rate))));
        words.extend(self.trace_file.iter().map(|file| format!("trace={file}")));
        let mut put = |name: &str, wanted: bool, value: String| {
            words.extend(wanted.then(|| format!("{name}={value}")));
        };
        put("overhead", self.overhead > 0, self.overhead.to_string());
        put("delay", self.delay_ns > 0, time_text(self.delay_ns));
        put("jitter", self.jitter_ns > 0, time_text(self.jitter_ns));
        put("spread", self.spread == Spread::Normal, "normal".into());
        let file = |file: &Option<String>| file.clone().unwrap_or_default();
        put("spread", self.spread_file.is_some(), file(&self.spread_file));
        put("series", self.series_file.is_some(), file(&self.series_file));
        put("loss", self.loss != Loss::None, loss_text(self.loss));
        let shares = [
            ("duplicate", self.duplicate_ppm),
            ("reorder", self.reorder_ppm),
            ("corrupt", self.corrupt_ppm),
        ];
        shares.into_iter().for_each(|(name, ppm)| put(name, ppm > 0, share_text(ppm)));
        let queue = self.queue.map(|queue| match queue {
            QueueSize::Bytes(bytes) => format!("{bytes}B"),
            QueueSize::Frames(frames) => format!("{frames}frames"),
            QueueSize::Time(ns) => time_text(ns),
        });
        put("queue", queue.is_some(), queue.unwrap_or_default());
        self.aqm_words(&mut words);
        words.extend((self.seed > 0).then(|| format!("seed={}", self.seed)));
        words
    }

    fn aqm_words(&self, words: &mut Vec<String>) {
        let target = |name: &str, target: &Target| {
            let Target { target_ns, interval_ns } = *target;
            let (target, interval) = (time_text(target_ns), time_text(interval_ns));
            vec![format!("aqm={name}"), format!("target={target}"), format!("interval={interval}")]
        };
        words.extend(match &self.aqm {
            Aqm::Fifo => Vec::new(),
            Aqm::Codel(its) => target("codel", its),
            Aqm::FqCodel(its) => target("fq_codel", its),
            Aqm::Pie(its) => target("pie", its),
            Aqm::Red { min, max, ppm } => {
                let mut red = vec!["aqm=red".to_owned()];
                red.extend((*min > 0).then(|| format!("min={min}B")));
                red.extend((*max > 0).then(|| format!("max={max}B")));
                red.push(format!("probability={}", share_text(*ppm)));
                red
            }
        });
        words.extend(self.ecn.then(|| "ecn".to_owned()));
        words.extend(self.flows.mask.map(|FlowMask { source, destination }| {
            let fields = [("source", source), ("destination", destination)];
            let fields = fields.into_iter().filter(|(_, bits)| *bits > 0);
            let fields: Vec<_> = fields.map(|(name, bits)| format!("{name}/{bits}")).collect();
            format!("flows={}", fields.join("+"))
        }));
        let weight =
            |Weight { address, bits, weight }: &Weight| format!("weight={weight}@{address}/{bits}");
        words.extend(self.flows.weights.iter().map(weight));
    }
}

fn loss_text(loss: Loss) -> String {
    match loss {
        Loss::None => String::new(),
        Loss::Random(ppm) => share_text(ppm),
        Loss::Every(n) => format!("every:{n}"),
        Loss::GilbertElliott { to_bad, to_good, in_bad, in_good } => {
            let shares = [to_bad, to_good, in_bad, in_good].map(share_text);
            format!("ge:{}", shares.join(":"))
        }
    }
}

#[cfg(test)]
mod tests;
