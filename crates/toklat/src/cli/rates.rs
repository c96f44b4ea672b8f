//! Rates per second between two readings of the counters.

use std::collections::BTreeMap;

use port::DropReason;

use crate::api::{PortState, PortStats, Stats, SwitchStats, WorkerStats};

/// Frames and bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Frames a second.
    pub pps: f64,
    /// Bits a second, of frames without preamble and checksum.
    pub bps: f64,
}

/// A port, per second.
#[derive(Clone, Debug, PartialEq)]
pub struct PortRates {
    /// Its switch.
    pub switch: String,
    /// Its name within the switch.
    pub name: String,
    /// How it is.
    pub state: PortState,
    /// Frames that the port sends into the switch.
    pub ingress: Flow,
    /// What it receives.
    pub egress: Flow,
    /// Average frames in a batch from the port; 0 without frames.
    pub batch: f64,
    /// Wake-ups a second of the owner by the switch.
    pub kicks: f64,
    /// Wake-ups a second of the switch by the owner.
    pub wakeups: f64,
    /// Frames dropped a second by reason, most first: on the way in and on the way out.
    pub drops: Vec<(DropReason, f64)>,
}

/// A worker, per second.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerRates {
    /// Its switch.
    pub switch: String,
    /// Its number.
    pub worker: usize,
    /// Share of the time in which the worker moved frames, 0 to 1.
    pub load: f64,
    /// Frames gathered.
    pub pps: f64,
    /// Nanoseconds for each frame, over passes that moved frames; 0 without frames.
    pub ns_per_frame: f64,
    /// Average frames in a pass that moved any; 0 without frames.
    pub batch: f64,
    /// Times it slept.
    pub sleeps: f64,
    /// Times it woke a port's owner.
    pub kicks: f64,
    /// Ports it serves.
    pub ports: u64,
    /// The CPU it is pinned to.
    pub cpu: Option<u64>,
}

/// A switch, per second.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchRates {
    /// Its name.
    pub name: String,
    /// What the switch's ports send.
    pub ingress: Flow,
    /// What the switch's ports receive.
    pub egress: Flow,
    /// Frames dropped.
    pub drops: f64,
    /// How often its data process was restarted, in total.
    pub restarts: u64,
}

/// Everything between two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Switches.
    pub switches: Vec<SwitchRates>,
    /// All their ports.
    pub ports: Vec<PortRates>,
    /// All their workers.
    pub workers: Vec<WorkerRates>,
}

impl PortRates {
    /// Frames dropped a second.
    #[must_use]
    pub fn dropped(&self) -> f64 {
        // Folds instead of `sum`, because the sum of nothing is -0.
        self.drops.iter().fold(0.0, |sum, (_, rate)| sum + rate)
    }

    /// Returns true if no frame was received, sent or dropped.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ingress.pps == 0.0 && self.egress.pps == 0.0 && self.drops.is_empty()
    }
}

/// `sum` divided by `n`; 0 if `n` is 0.
const fn mean(sum: u64, n: u64) -> f64 {
    if n == 0 { 0.0 } else { float(sum) / float(n) }
}

/// How much a counter grew. A counter that shrank belongs to a new port with an old name.
const fn grown(old: u64, new: u64) -> u64 {
    if new >= old { new - old } else { new }
}

#[expect(clippy::cast_precision_loss, reason = "rates are shown with three digits")]
const fn float(n: u64) -> f64 {
    n as f64
}

impl Rates {
    /// The rates from `old` to `new`. Objects that are not in `old` started at zero.
    #[must_use]
    pub fn between(old: &Stats, new: &Stats) -> Self {
        let seconds = float(new.at_ns.saturating_sub(old.at_ns).max(1)) / 1e9;
        let mut rates = Self::default();
        for switch in &new.switches {
            let before = old.switches.iter().find(|s| s.name == switch.name);
            rates.add_switch(before, switch, seconds);
        }
        rates
    }

    fn add_switch(&mut self, before: Option<&SwitchStats>, switch: &SwitchStats, seconds: f64) {
        let old_ports: BTreeMap<&str, &PortStats> =
            before.iter().flat_map(|s| &s.ports).map(|port| (port.name.as_str(), port)).collect();
        let first_port = self.ports.len();
        self.ports.extend(switch.ports.iter().map(|port| {
            port_rates(&switch.name, old_ports.get(port.name.as_str()).copied(), port, seconds)
        }));
        self.workers.extend(switch.workers.iter().enumerate().map(|(number, worker)| {
            let old = before.and_then(|s| s.workers.get(number));
            worker_rates(&switch.name, number, old, worker, seconds)
        }));
        let ports = &self.ports[first_port..];
        let sum = |flow: fn(&PortRates) -> Flow| {
            ports
                .iter()
                .map(flow)
                .fold(Flow::default(), |a, b| Flow { pps: a.pps + b.pps, bps: a.bps + b.bps })
        };
        self.switches.push(SwitchRates {
            name: switch.name.clone(),
            ingress: sum(|port| port.ingress),
            egress: sum(|port| port.egress),
            drops: ports.iter().fold(0.0, |sum, port| sum + port.dropped()),
            restarts: switch.totals.restarts,
        });
    }
}

fn port_rates(switch: &str, old: Option<&PortStats>, new: &PortStats, seconds: f64) -> PortRates {
    let zero = port::stats::PortStats::default();
    let (a, b) = (old.map_or(&zero, |old| &old.counters), &new.counters);
    let rate = |old: u64, new: u64| float(grown(old, new)) / seconds;
    let flow = |frames: (u64, u64), bytes: (u64, u64)| Flow {
        pps: rate(frames.0, frames.1),
        bps: rate(bytes.0, bytes.1) * 8.0,
    };
    let batches = a.batches.iter().zip(&b.batches).map(|(old, new)| grown(*old, *new)).sum();
    let mut drops: BTreeMap<DropReason, f64> = BTreeMap::new();
    for (old, new) in [(&a.in_drops, &b.in_drops), (&a.out_drops, &b.out_drops)] {
        for (reason, count) in new {
            let lost = rate(old.get(reason).copied().unwrap_or(0), *count);
            if lost > 0.0 {
                *drops.entry(*reason).or_default() += lost;
            }
        }
    }
    let mut drops: Vec<_> = drops.into_iter().collect();
    drops.sort_by(|a, b| b.1.total_cmp(&a.1));
    PortRates {
        switch: switch.to_owned(),
        name: new.name.clone(),
        state: new.state,
        ingress: flow((a.in_frames, b.in_frames), (a.in_bytes, b.in_bytes)),
        egress: flow((a.out_frames, b.out_frames), (a.out_bytes, b.out_bytes)),
        batch: mean(grown(a.in_frames, b.in_frames), batches),
        kicks: rate(a.kicks, b.kicks),
        wakeups: rate(a.wakeups, b.wakeups),
        drops,
    }
}

fn worker_rates(
    switch: &str,
    number: usize,
    old: Option<&WorkerStats>,
    new: &WorkerStats,
    seconds: f64,
) -> WorkerRates {
    let zero = WorkerStats::default();
    let old = old.unwrap_or(&zero);
    let rate = |old, new| float(grown(old, new)) / seconds;
    let frames = grown(old.frames, new.frames);
    WorkerRates {
        switch: switch.to_owned(),
        worker: number,
        load: rate(old.busy_ns, new.busy_ns) / 1e9,
        pps: float(frames) / seconds,
        ns_per_frame: mean(grown(old.busy_ns, new.busy_ns), frames),
        batch: mean(frames, grown(old.busy_passes, new.busy_passes)),
        sleeps: rate(old.sleeps, new.sleeps),
        kicks: rate(old.kicks, new.kicks),
        ports: new.ports,
        cpu: new.cpu,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A switch `vale0` with one worker and the ports `names`. Each port has sent `frames` frames
    /// of 64 bytes in batches of 32, and lost a quarter because its queue was full.
    pub fn stats(at_s: u64, names: &[&str], frames: u64) -> Stats {
        let port = |(id, name): (usize, &&str)| PortStats {
            name: (*name).into(),
            id: u16::try_from(id).unwrap(),
            state: PortState::Attached,
            counters: port::stats::PortStats {
                in_frames: frames,
                in_bytes: frames * 64,
                batches: std::array::from_fn(|i| if i == 5 { frames / 32 } else { 0 }),
                out_frames: frames / 4 * 3,
                out_bytes: frames / 4 * 3 * 64,
                out_drops: [(DropReason::Full, frames / 4)].into(),
                ..Default::default()
            },
        };
        let worker = WorkerStats {
            busy_ns: frames * 25,
            frames,
            busy_passes: frames / 32,
            ..Default::default()
        };
        Stats {
            at_ns: at_s * 1_000_000_000,
            switches: vec![SwitchStats {
                name: "vale0".into(),
                totals: Default::default(),
                ports: names.iter().enumerate().map(port).collect(),
                workers: vec![worker],
            }],
        }
    }

    #[test]
    fn rates_are_growth_over_time() {
        let rates = Rates::between(&stats(10, &["p1"], 64_000), &stats(12, &["p1"], 192_000));
        let [port] = rates.ports.as_slice() else { panic!("{rates:?}") };
        assert_eq!(port.ingress, Flow { pps: 64e3, bps: 64e3 * 512.0 });
        assert_eq!(port.egress, Flow { pps: 48e3, bps: 48e3 * 512.0 });
        assert_eq!(port.drops, [(DropReason::Full, 16e3)]);
        assert_eq!(port.batch, 32.0);
        assert_eq!(rates.workers[0].load, 64e3 * 25.0 / 1e9);
        assert_eq!((rates.workers[0].ns_per_frame, rates.workers[0].batch), (25.0, 32.0));
        assert_eq!(rates.switches[0].drops, 16e3);
    }

    #[test]
    fn new_ports_start_at_zero_and_so_do_those_that_took_an_old_name() {
        let (old, new) = (stats(0, &["p1"], 64_000), stats(1, &["p1", "p2"], 32_000));
        let rates = Rates::between(&old, &new);
        assert_eq!(rates.ports[0].ingress.pps, 32e3);
        assert_eq!(rates.ports[1].ingress.pps, 32e3);
    }

    #[test]
    fn two_readings_at_one_time_divide_by_no_zero() {
        let rates = Rates::between(&stats(5, &["p1"], 8), &stats(5, &["p1"], 8));
        assert!(rates.ports[0].is_idle());
        assert_eq!(rates.workers[0].ns_per_frame, 0.0);
    }
}
