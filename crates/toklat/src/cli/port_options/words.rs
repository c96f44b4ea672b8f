//! Parsers for the values of a port's options.

use std::collections::BTreeSet;
use std::str::FromStr;

use client::units::Rate;
use frame::VlanId;
use link::{Impairment, RateLimiter, TokenBucket};
use serde::Serialize;

use super::super::ranges::numbers;

/// `N`, or a word that stands for no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Or<T> {
    /// A value.
    Value(T),
    /// `off` or `none`.
    Nothing,
}

impl<T: FromStr> FromStr for Or<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if ["off", "none"].contains(&text) {
            Ok(Self::Nothing)
        } else {
            text.parse().map(Self::Value)
        }
    }
}

impl<T> Or<T> {
    pub(super) const fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Nothing => None,
        }
    }
}

pub(super) fn on_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err("use on or off"),
    }
}

/// Parses `--tx-limit` and `--rx-limit`: bits a second, frames a second, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RateLimit(RateLimiter);

impl FromStr for RateLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut limiter = RateLimiter::default();
        for rate in text.split(',') {
            let (bucket, tokens) = match rate.parse() {
                Ok(Rate::Bits(bits)) => (&mut limiter.bandwidth, bits / 8),
                Ok(Rate::Frames(frames)) if rate.ends_with("pps") => (&mut limiter.ops, frames),
                _ => return Err(format!("{rate:?} is not a rate such as 1Gb/s or 100kpps")),
            };
            if bucket.replace(TokenBucket::per_second(tokens)).is_some() {
                return Err("give at most one rate in bits and one in frames".into());
            }
        }
        limiter.check().map_err(|e| e.to_string())?;
        Ok(Self(limiter))
    }
}

/// What `--tx-impair` and `--rx-impair` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BadLink(Impairment);

impl FromStr for BadLink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut link = Impairment::default();
        let mut said = BTreeSet::new();
        for word in text.split(',') {
            let name = word.split('=').next().unwrap_or_default();
            if !said.insert(name) {
                return Err(format!("say {name}= once"));
            }
            let whole = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a number"));
            match word.split_once('=') {
                Some(("loss", part)) => link.loss_ppm = share(part)?,
                Some(("duplicate", part)) => link.duplicate_ppm = share(part)?,
                Some(("reorder", part)) => link.reorder_ppm = share(part)?,
                Some(("delay", time)) => link.delay_us = microseconds(time)?,
                Some(("jitter", time)) => link.jitter_us = microseconds(time)?,
                Some(("limit", frames)) => {
                    link.limit = u32::try_from(whole(frames)?).unwrap_or(u32::MAX);
                }
                Some(("seed", seed)) => link.seed = whole(seed)?,
                _ => {
                    let known = "loss=, delay=, jitter=, reorder=, duplicate=, limit=, seed=";
                    return Err(format!("{word:?} is none of {known}"));
                }
            }
        }
        link.check().map_err(|e| e.to_string())?;
        Ok(Self(link))
    }
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

pub(super) fn up_down(text: &str) -> Result<bool, &'static str> {
    match text {
        "up" => Ok(true),
        "down" => Ok(false),
        _ => Err("use up or down"),
    }
}

/// VLANs of a trunk; empty for all.
#[derive(Clone, Debug)]
pub(super) struct Vlans(pub(super) Vec<VlanId>);

pub(super) fn vlans(text: &str) -> Result<Vlans, String> {
    if text == "all" {
        return Ok(Vlans(Vec::new()));
    }
    let vlan = |id| VlanId::new(id).ok_or_else(|| format!("{id} is not a VLAN: use 1 to 4094"));
    numbers(text)?.into_iter().map(vlan).collect::<Result<_, _>>().map(Vlans)
}
