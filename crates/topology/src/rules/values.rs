//! The values of words: read from text into JSON, and said again.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use fabric::{Impairment, LinkConfig, RateLimiter, TokenBucket};
use frame::{Mac, VlanId};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Given, Words};
use crate::units::{self, Rate};
use crate::{Interrupts, Policy, VlanMode, link_spec, ranges, users};

/// What reading a value returns.
type Read = Result<Value, String>;

/// True for a word that stands for no value.
fn is_none(text: &str) -> bool {
    ["off", "none"].contains(&text)
}

fn parsed<T: FromStr<Err: Display> + serde::Serialize>(text: &str) -> Read {
    text.parse::<T>().map(|value| json!(value)).map_err(|error| error.to_string())
}

fn unless_none<T: FromStr<Err: Display> + serde::Serialize>(text: &str) -> Read {
    if is_none(text) { Ok(Value::Null) } else { parsed::<T>(text) }
}

/// The value as its type; `None` if it is not of it.
fn of<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

pub(super) fn on_off(text: &str) -> Read {
    match text {
        "on" | "true" => Ok(true.into()),
        "off" | "false" => Ok(false.into()),
        _ => Err("use on or off".into()),
    }
}

pub(super) fn number<T: FromStr<Err: Display> + serde::Serialize>(text: &str) -> Read {
    parsed::<T>(text)
}

/// A number, or `off`.
pub(super) fn limit(text: &str) -> Read {
    unless_none::<u32>(text)
}

pub(super) fn mac(text: &str) -> Read {
    unless_none::<Mac>(text)
}

pub(super) fn ip(text: &str) -> Read {
    unless_none::<IpAddr>(text)
}

/// The name of a port, or `none`.
pub(super) fn name(text: &str) -> Read {
    unless_none::<String>(text)
}

pub(super) fn user(text: &str) -> Read {
    unless_none::<users::UserId>(text)
}

pub(super) fn mtu(text: &str) -> Read {
    number_up_to(Policy::MAX_MTU, text)
}

pub(super) fn weight(text: &str) -> Read {
    number_up_to(Policy::MAX_WEIGHT, text)
}

/// A number from 1 to `most`.
fn number_up_to(most: u16, text: &str) -> Read {
    let number = text.parse::<u16>().ok().filter(|number| (1..=most).contains(number));
    number.map(Value::from).ok_or_else(|| format!("{text} is not in 1..={most}"))
}

pub(super) fn up_down(text: &str) -> Read {
    match text {
        "up" => Ok(true.into()),
        "down" => Ok(false.into()),
        _ => Err("use up or down".into()),
    }
}

pub(super) fn coalescing(text: &str) -> Read {
    units::interrupts(text).map(|interrupts| json!(interrupts))
}

pub(super) fn vlan_id(text: &str) -> Read {
    parsed::<VlanId>(text)
}

/// VLANs of a trunk; an empty list for all.
pub(super) fn vlan_ids(text: &str) -> Read {
    if text == "all" {
        return Ok(json!([]));
    }
    let vlan = |id| VlanId::new(id).ok_or_else(|| format!("{id} is not a VLAN: use 1 to 4094"));
    let vlans: Result<Vec<VlanId>, _> = ranges::numbers(text)?.into_iter().map(vlan).collect();
    vlans.map(|vlans| json!(vlans))
}

/// Bits a second, frames a second, or both.
pub(super) fn rates(text: &str) -> Read {
    if is_none(text) {
        return Ok(Value::Null);
    }
    let mut limiter = RateLimiter::default();
    for rate in text.split(',') {
        let (bucket, tokens) = match rate.parse() {
            Ok(Rate::Bits(bits)) => (&mut limiter.bandwidth, bits / 8),
            Ok(Rate::Frames(frames)) if rate.trim().ends_with("pps") => (&mut limiter.ops, frames),
            // `100M` is a rate of a link. A bare number may be anything.
            Ok(Rate::Frames(bits)) if rate.trim().ends_with(char::is_alphabetic) => {
                (&mut limiter.bandwidth, bits / 8)
            }
            _ => {
                let known = "100M (bits a second), 1Gb/s or 100kpps";
                return Err(format!("{rate:?} is not a rate such as {known}"));
            }
        };
        if bucket.replace(TokenBucket::per_second(tokens)).is_some() {
            return Err("give at most one rate in bits and one in frames".into());
        }
    }
    limiter.check().map_err(|e| e.to_string())?;
    Ok(json!(limiter))
}

/// What makes a link bad: `loss=0.1%,delay=10ms`.
pub(super) fn impairment(text: &str) -> Read {
    if is_none(text) {
        return Ok(Value::Null);
    }
    let mut link = Impairment::default();
    let mut said = BTreeSet::new();
    for word in text.split(',') {
        let name = word.split('=').next().unwrap_or_default();
        if !said.insert(name) {
            return Err(format!("say {name}= once"));
        }
        impair(&mut link, word)?;
    }
    link.check().map_err(|e| e.to_string())?;
    Ok(json!(link))
}

fn impair(link: &mut Impairment, word: &str) -> Result<(), String> {
    let whole = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a number"));
    match word.split_once('=') {
        Some(("loss", part)) => link.loss_ppm = share(part)?,
        Some(("duplicate", part)) => link.duplicate_ppm = share(part)?,
        Some(("reorder", part)) => link.reorder_ppm = share(part)?,
        Some(("delay", time)) => link.delay_us = microseconds(time)?,
        Some(("jitter", time)) => link.jitter_us = microseconds(time)?,
        Some(("limit", frames)) => link.limit = u32::try_from(whole(frames)?).unwrap_or(u32::MAX),
        Some(("seed", seed)) => link.seed = whole(seed)?,
        _ => {
            let known = "loss=, delay=, jitter=, reorder=, duplicate=, limit=, seed=";
            return Err(format!("{word:?} is none of {known}"));
        }
    }
    Ok(())
}

/// Parses a percentage such as `0.1%` into parts per million.
fn share(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let ppm = percent.filter(|percent| (0.0..=100.0).contains(percent));
    let ppm = ppm.map(|percent| (percent * 1e4).round() as u32);
    ppm.ok_or_else(|| format!("{text:?} is not a share such as 0.1%"))
}

/// A time such as `10ms` or `250us`.
fn microseconds(text: &str) -> Result<u32, String> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let in_unit = |(unit, scale): &(&str, f64)| {
        let number = text.strip_suffix(unit)?.parse::<f64>().ok()?;
        Some(number * scale).filter(|us| (0.0..=4e9).contains(us))
    };
    let us = units.iter().find_map(in_unit).map(|us| us.round() as u32);
    us.ok_or_else(|| format!("{text:?} is not a time such as 10ms or 250us"))
}

/// A link in words, or the name of one of the topology.
pub(super) fn line(text: &str) -> Read {
    if is_none(text) {
        return Ok(Value::Null);
    }
    if !link_spec::is_name(text) {
        text.parse::<LinkConfig>().map_err(|error| error.to_string())?;
    }
    Ok(text.into())
}

/// A rule of one word with one value.
pub(super) fn single(given: &Given) -> Value {
    given.iter().find_map(|(_, values)| values.last().cloned()).unwrap_or_default()
}

/// A rule of one word with any number of values, of which null is none.
pub(super) fn list(given: &Given) -> Value {
    let values = given.iter().flat_map(|(_, values)| values).filter(|value| !value.is_null());
    Value::Array(values.cloned().collect())
}

/// VLAN membership, of its four words.
pub(super) fn vlan(given: &Given) -> Value {
    let value = |word: &str| {
        let values = given.iter().find(|(name, _)| *name == word).map(|(_, values)| values);
        values.and_then(|values| values.last().cloned())
    };
    match (value("vlan_access"), value("vlan_trunk")) {
        (Some(vlan), _) => json!({ "access": vlan }),
        (_, Some(allowed)) => {
            json!({ "trunk": { "allowed": allowed, "native": value("native") } })
        }
        _ => json!(VlanMode::Unaware),
    }
}

/// A value that is the same in words.
pub(super) fn say_itself(field: &'static str, value: &Value) -> Option<Words> {
    (!value.is_null()).then(|| vec![(field, value.clone())])
}

/// No words: what stands in files is the field's list.
pub(super) fn say_nothing(_: &Value) -> Option<Words> {
    None
}

/// The names of groups, in order.
pub(super) fn say_groups(value: &Value) -> Option<Words> {
    let names: Vec<String> = of(value)?;
    (!names.is_empty()).then(|| vec![("groups", names.join(",").into())])
}

pub(super) fn say_limit(value: &Value) -> Option<Words> {
    let value = if value.is_null() { "off".into() } else { value.clone() };
    Some(vec![("flood_limit", value)])
}

pub(super) fn say_link(value: &Value) -> Option<Words> {
    Some(vec![("link", if value.as_bool()? { "up" } else { "down" }.into())])
}

pub(super) fn say_name(word: &'static str, value: &Value) -> Option<Words> {
    Some(vec![(word, value.as_str()?.into())])
}

pub(super) fn say_vlan(value: &Value) -> Option<Words> {
    match of(value)? {
        VlanMode::Unaware => None,
        VlanMode::Access(vlan) => Some(vec![("vlan_access", vlan.get().into())]),
        VlanMode::Trunk { allowed, native } => {
            let allowed: Vec<u16> = allowed.iter().map(|vlan| vlan.get()).collect();
            let allowed =
                if allowed.is_empty() { "all".to_owned() } else { ranges::text(&allowed) };
            let native = native.map(|vlan| ("native", vlan.get().into()));
            Some([("vlan_trunk", allowed.into())].into_iter().chain(native).collect())
        }
    }
}

pub(super) fn say_rates(word: &'static str, value: &Value) -> Option<Words> {
    let RateLimiter { bandwidth, ops } = of(value)?;
    let bits = bandwidth.map(|bucket| with_factor(bucket.rate().checked_mul(8), "b/s"));
    let frames = ops.map(|bucket| with_factor(Some(bucket.rate()), "pps"));
    let rates: Option<Vec<String>> = bits.into_iter().chain(frames).collect();
    Some(vec![(word, rates?.join(",").into())])
}

/// A number with the largest factor that divides it: `100M`.
fn with_factor(number: Option<u64>, unit: &str) -> Option<String> {
    let number = number?;
    let factors = [(1_000_000_000, "G"), (1_000_000, "M"), (1000, "k"), (1, "")];
    let divides = |(factor, _): &&(u64, &str)| number.is_multiple_of(*factor);
    let (factor, letter) = factors.iter().find(divides)?;
    Some(format!("{}{letter}{unit}", number / factor))
}

pub(super) fn say_impairment(word: &'static str, value: &Value) -> Option<Words> {
    let link: Impairment = of(value)?;
    let mut words = Vec::new();
    for (name, ppm) in
        [("loss", link.loss_ppm), ("duplicate", link.duplicate_ppm), ("reorder", link.reorder_ppm)]
    {
        words.extend((ppm > 0).then(|| format!("{name}={}%", f64::from(ppm) / 1e4)));
    }
    for (name, us) in [("delay", link.delay_us), ("jitter", link.jitter_us)] {
        words.extend((us > 0).then(|| format!("{name}={}", time(us))));
    }
    let limit = (link.limit != Impairment::USUAL_FRAMES).then(|| format!("limit={}", link.limit));
    let seed = (link.seed != 0).then(|| format!("seed={}", link.seed));
    words.extend(limit.into_iter().chain(seed));
    Some(vec![(word, words.join(",").into())])
}

/// Microseconds in the largest unit that divides them.
fn time(us: u32) -> String {
    match us {
        us if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
        us if us.is_multiple_of(1000) => format!("{}ms", us / 1000),
        us => format!("{us}us"),
    }
}

pub(super) fn say_coalescing(value: &Value) -> Option<Words> {
    let Interrupts { max_rate, max_delay_us, adaptive, max_sent_delay_us } = of(value)?;
    let rate = max_rate.map(|rate| format!("rate={rate}"));
    let delay = (max_delay_us > 0).then(|| format!("delay={max_delay_us}"));
    let adaptive = adaptive.then(|| "adaptive".to_owned());
    let sent = (max_sent_delay_us > 0).then(|| format!("sent={max_sent_delay_us}"));
    let words: Vec<_> = [rate, delay, adaptive, sent].into_iter().flatten().collect();
    let words = if words.is_empty() { "off".to_owned() } else { words.join(",") };
    Some(vec![("interrupts", words.into())])
}
