//! Numbers as people write them: `10M`, `1.5Gb/s`, `500ms`.

use std::str::FromStr;
use std::time::Duration;

use crate::Interrupts;

/// Text that is not such a number; says what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseUnitError(&'static str);

/// A rate at which to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Frames a second.
    Frames(u64),
    /// Bits of frames a second (without preamble, gap and check sequence).
    Bits(u64),
}

impl FromStr for Rate {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "a rate is frames a second such as 2M or 2Mpps, or bits a second such as \
                        10Gb/s, 10Gbit or 10Gbps";
        let text = text.trim();
        let strip = |ends: &[&str]| ends.iter().find_map(|end| text.strip_suffix(end));
        let (number, make): (_, fn(u64) -> Self) = match strip(&["bit/s", "b/s", "bps", "bit"]) {
            Some(number) => (number, Self::Bits),
            None => (strip(&["pps"]).unwrap_or(text), Self::Frames),
        };
        // As tc(8) writes it: 100mbit.
        let number = match number.strip_suffix(['m', 'g']) {
            Some(digits) if number.ends_with('m') => format!("{digits}M"),
            Some(digits) => format!("{digits}G"),
            None => number.to_owned(),
        };
        let rate = scaled(&number).filter(|n| *n >= 1.0).ok_or(ParseUnitError(expected))?;
        Ok(make(rate as u64))
    }
}

/// A number with an optional k, M or G; `None` if it is none, negative, or 1e15 and more.
fn scaled(text: &str) -> Option<f64> {
    let text = text.trim();
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1e3),
        b'M' => (&text[..text.len() - 1], 1e6),
        b'G' => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    let value = digits.trim_end().parse::<f64>().ok()? * factor;
    (0.0..1e15).contains(&value).then_some(value)
}

/// A count such as `1000`, `10k` or `1M`.
///
/// # Errors
/// Says what was expected.
pub fn count(text: &str) -> Result<u64, ParseUnitError> {
    let expected = ParseUnitError("a count is a number such as 1000, 10k or 1M");
    scaled(text).map(|n| n as u64).ok_or(expected)
}

/// A time span such as `10`, `10s`, `500ms`, `20us` or `2m`.
///
/// # Errors
/// Says what was expected.
pub fn duration(text: &str) -> Result<Duration, ParseUnitError> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let value = text.strip_suffix(unit)?.trim_end().parse::<f64>().ok()? * seconds;
        Duration::try_from_secs_f64(value).ok()
    });
    parsed.ok_or(ParseUnitError("a time is seconds, or a number with us, ms, s, m or h"))
}

/// How interrupts are moderated, as `--interrupts` says it: `off`, or
/// `rate=N,delay=US,adaptive,sent=US`.
///
/// # Errors
/// Says what was expected.
pub fn interrupts(text: &str) -> Result<Interrupts, String> {
    let mut interrupts = Interrupts::default();
    if text == "off" {
        return Ok(interrupts);
    }
    for word in text.split(',') {
        let number = |text: &str| {
            let number = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
            number.ok_or_else(|| format!("{text} is not a number from 1 to 1000000"))
        };
        match word.split_once('=') {
            Some(("rate", rate)) => interrupts.max_rate = Some(number(rate)?),
            Some(("delay", delay)) => interrupts.max_delay_us = number(delay)?,
            Some(("sent", delay)) => interrupts.max_sent_delay_us = number(delay)?,
            None if word == "adaptive" => interrupts.adaptive = true,
            _ => return Err(format!("{word:?} is none of rate=N, delay=US, adaptive, sent=US")),
        }
    }
    if interrupts.adaptive && interrupts.max_delay_us == 0 {
        return Err("adaptive needs a delay: add delay=US".into());
    }
    Ok(interrupts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_frames_or_bits() {
        let table = [
            ("1000", Rate::Frames(1000)),
            ("14.88Mpps", Rate::Frames(14_880_000)),
            ("2M", Rate::Frames(2_000_000)),
            ("10Gb/s", Rate::Bits(10_000_000_000)),
            ("1.5kbps", Rate::Bits(1500)),
            ("100Mbit", Rate::Bits(100_000_000)),
            ("100mbit", Rate::Bits(100_000_000)),
            ("100 Mbit/s", Rate::Bits(100_000_000)),
            ("1gbit", Rate::Bits(1_000_000_000)),
            ("100kpps", Rate::Frames(100_000)),
        ];
        for (text, rate) in table {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for bad in ["", "fast", "-1", "0", "1T", "NaN", "inf", "1e300", "Mpps", "bit", "100MB/s"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5 m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("20us"), Ok(Duration::from_micros(20)));
        for bad in ["", "s", "-1s", "1d", "1e40h", "NaN"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_have_factors() {
        assert_eq!((count("12"), count("10k"), count("1.5M")), (Ok(12), Ok(10_000), Ok(1_500_000)));
        assert!(count("many").is_err());
    }
}
