//! Prometheus metrics: the text exposition format, version 0.0.4.

use std::fmt::Write;
use std::sync::Arc;

use axum::http::header;
use axum::response::IntoResponse;
use link::LinkStats;
use port::stats::{MappedMemory, PortStats as Counters};

use super::overview::Overview;
use super::read;
use super::supervisor::Supervisor;
use evpn::report::Summary;

use crate::api::{
    PeerInfo, PortInfo, QuotaInfo, SflowInfo, Stats, Status, SwitchInfo, TunnelInfo, UserQuota,
    WorkerStats,
};

/// How long the page waits for what may stall.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// The page, with its content type.
pub async fn page(of: &Supervisor) -> impl IntoResponse + use<> {
    let overviews = of.overviews().await;
    let mut text = render(&read::stats(overviews.iter().map(AsRef::as_ref)));
    let now = port::Nanos(super::supervisor::monotonic_ns());
    let (mut switches, mut unconnected, mut tunnels) = (Vec::new(), Vec::new(), Vec::new());
    for switch in &overviews {
        let name = &switch.info.name;
        unconnected.extend(switch.unconnected.iter().map(|(port, time)| (name, port, time)));
        tunnels.extend(switch.ports.iter().filter_map(|port| {
            let of = format!("switch=\"{name}\",port=\"{}\"", port.name);
            Some((of, port.tunnel.clone()?))
        }));
        switches.push((switch.info.clone(), switch.view.fdb(now).len()));
    }
    daemon(&mut text, &of.status().await, &of.quotas());
    tables_and_walls(&mut text, &switches);
    gaps(&mut text, &switches);
    samples(&mut text, &switches);
    let name = "toklat_port_unconnected_seconds";
    gauge(&mut text, name, "How long the port has not been where it is to connect to");
    for (switch, port, seconds) in unconnected {
        line(&mut text, &format!("{name}{{switch=\"{switch}\",port=\"{port}\"}} {seconds}"));
    }
    peers(&mut text, &tunnels);
    links(&mut text, &lines(of, &overviews).await);
    if of.evpn.is_on()
        && let Ok(Ok(summary)) = tokio::time::timeout(PATIENCE, of.evpn_summary()).await
    {
        evpn(&mut text, &summary);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

/// The lines of ports, with their labels.
async fn lines(of: &Supervisor, switches: &[Arc<Overview>]) -> Vec<(String, LinkStats)> {
    let has_link = |port: &&PortInfo| {
        let policy = &port.spec.policy;
        let impaired = policy.tx_impairment.is_some() || policy.rx_impairment.is_some();
        policy.tx_link.is_some() || policy.rx_link.is_some() || impaired
    };
    let mut lines = Vec::new();
    for switch in switches {
        let name = &switch.info.name;
        for port in switch.ports.iter().filter(has_link) {
            let asked = tokio::time::timeout(PATIENCE, of.port_link(name, &port.name)).await;
            // A data process that does not answer holds the page up once.
            let Ok(asked) = asked else { break };
            let Ok(link) = asked else { continue };
            for (way, line) in [("in", link.sends), ("out", link.receives)] {
                let port = &port.name;
                let of = format!("switch=\"{name}\",port=\"{port}\",direction=\"{way}\"");
                lines.extend(line.map(|line| (of, line.stats)));
            }
        }
    }
    lines
}

/// Lines of ports: their queues, drops and times in the queue.
fn links(text: &mut String, lines: &[(String, LinkStats)]) {
    let one = |value: u64| vec![(String::new(), value as f64)];
    let name = "toklat_link_queue_bytes";
    gauge(text, name, "Bytes of frames in the queue of a link");
    each(text, name, lines, |stats| one(stats.queue_bytes));
    let name = "toklat_link_memory_bytes";
    gauge(text, name, "Bytes of memory of a link");
    each(text, name, lines, |stats| one(stats.memory));
    let name = "toklat_link_sojourn_seconds";
    gauge(text, name, "Time in the queue of a link that this share of frames did not exceed");
    each(text, name, lines, |stats| {
        let (half, most) = (stats.sojourn_p50_ns, stats.sojourn_p99_ns);
        let times = [("0.5", half), ("0.9", stats.sojourn_p90_ns), ("0.99", most)];
        times.map(|(q, ns)| (format!(",quantile=\"{q}\""), ns as f64 / 1e9)).into()
    });
    let name = "toklat_link_drops_total";
    counter(text, name, "Frames that a link dropped");
    each(text, name, lines, |stats| {
        let (full, early) = (("full", stats.dropped_full), ("early", stats.dropped_early));
        let causes = [full, early, ("lost", stats.dropped_lost), ("memory", stats.dropped_memory)];
        causes.map(|(cause, frames)| (format!(",cause=\"{cause}\""), frames as f64)).into()
    });
    let name = "toklat_link_marks_total";
    counter(text, name, "Frames in which a link marked congestion");
    each(text, name, lines, |stats| one(stats.marked));
}

/// A metric of each line, with more labels.
fn each(
    text: &mut String,
    name: &str,
    lines: &[(String, LinkStats)],
    values: impl Fn(&LinkStats) -> Vec<(String, f64)>,
) {
    for (of, stats) in lines {
        for (more, value) in values(stats) {
            line(text, &format!("{name}{{{of}{more}}} {value}"));
        }
    }
}

/// How long switches were without a data process that had died.
fn gaps(text: &mut String, switches: &[(SwitchInfo, usize)]) {
    let name = "toklat_switch_restart_gap_seconds";
    gauge(text, name, "How long the switch was without a data process that had died");
    for (info, _) in switches {
        let gaps = info.restart_gaps;
        let values = [
            ("last", gaps.last_ms),
            ("last_pause", gaps.last_pause_ms),
            ("longest", gaps.longest_ms),
        ];
        for (which, ms) in values {
            let (of, seconds) = (&info.name, ms as f64 / 1e3);
            line(text, &format!("{name}{{switch=\"{of}\",which=\"{which}\"}} {seconds}"));
        }
    }
}

/// Metrics of the daemon itself, of what users hold, and of their quotas.
fn daemon(text: &mut String, status: &Status, quotas: &QuotaInfo) {
    gauge(text, "toklat_build_info", "The daemon's version");
    line(text, &format!("toklat_build_info{{version=\"{}\"}} 1", status.version));
    let numbers = [
        ("descriptors", "Descriptors that the daemon has open", status.descriptors as u64),
        ("descriptor_limit", "Descriptors that it may have open", status.descriptor_limit),
    ];
    for (name, help, value) in numbers {
        gauge(text, &format!("toklat_{name}"), help);
        line(text, &format!("toklat_{name} {value}"));
    }
    gauge(text, "toklat_quota_used", "What a user holds");
    gauge(text, "toklat_quota_limit", "What a user may hold; without a line, no limit");
    for UserQuota { uid, usage, limits } in &quotas.users {
        let used = serde_json::to_value(usage).unwrap_or_default();
        let most = serde_json::to_value(limits).unwrap_or_default();
        for (name, values) in [("used", used), ("limit", most)] {
            for (what, value) in values.as_object().into_iter().flatten() {
                if let Some(value) = value.as_u64() {
                    let of = format!("user=\"{uid}\",what=\"{what}\"");
                    line(text, &format!("toklat_quota_{name}{{{of}}} {value}"));
                }
            }
        }
    }
}

/// Metrics of the hosts behind tunnels; labels name their ports.
fn peers(text: &mut String, tunnels: &[(String, TunnelInfo)]) {
    let all = || tunnels.iter().flat_map(|(of, tunnel)| tunnel.peers.iter().map(move |p| (of, p)));
    let counters: [(&str, &str, Read<PeerInfo>); 4] = [
        ("in_frames", "Frames that came from the host", |peer| peer.in_frames),
        ("in_bytes", "Bytes that came from the host", |peer| peer.in_bytes),
        ("out_frames", "Frames sent to the host, copies of floods included", |peer| {
            peer.out_frames
        }),
        ("out_bytes", "Bytes sent to the host", |peer| peer.out_bytes),
    ];
    for (name, help, read) in counters {
        let name = format!("toklat_tunnel_peer_{name}_total");
        begin(text, &name, help);
        for (of, peer) in all() {
            let (address, vni) = (peer.address, peer.vni);
            line(text, &format!("{name}{{{of},peer=\"{address}\",vni=\"{vni}\"}} {}", read(peer)));
        }
    }
    let name = "toklat_tunnel_peer_drops_total";
    begin(text, name, "Frames to the host that were lost, by reason");
    let reasons: [(&str, Read<PeerInfo>); 4] = [
        ("too_long", |peer| peer.too_long),
        ("full", |peer| peer.full),
        ("unreachable", |peer| peer.unreachable),
        ("refused", |peer| peer.refused),
    ];
    for (of, peer) in all() {
        for (reason, read) in reasons {
            let (address, vni) = (peer.address, peer.vni);
            let of = format!("{of},peer=\"{address}\",vni=\"{vni}\",reason=\"{reason}\"");
            line(text, &format!("{name}{{{of}}} {}", read(peer)));
        }
    }
}

/// Metrics of EVPN.
fn evpn(text: &mut String, summary: &Summary) {
    let up = summary.neighbors_up();
    let gauges = [
        ("connected", "1 while the routing daemon answers", u64::from(summary.connected)),
        ("neighbors", "BGP neighbours", summary.neighbors.len() as u64),
        ("neighbors_up", "BGP neighbours with a session", up as u64),
        ("hosts", "Other hosts of all segments", summary.hosts() as u64),
        ("routes", "Routes of other hosts", summary.routes as u64),
        ("stale_routes", "Routes not confirmed since the daemon was lost", summary.stale as u64),
        ("own_routes", "Routes of this host", summary.own as u64),
    ];
    for (name, help, value) in gauges {
        gauge(text, &format!("toklat_evpn_{name}"), help);
        line(text, &format!("toklat_evpn_{name} {value}"));
    }
    let counters = serde_json::to_value(summary.counters).unwrap_or_default();
    let lost = ("daemon_lost".to_owned(), summary.restarts.into());
    for (what, value) in counters.as_object().cloned().into_iter().flatten().chain([lost]) {
        let name = format!("toklat_evpn_{what}_total");
        begin(text, &name, "Events of EVPN since its start");
        line(text, &format!("{name} {value}"));
    }
}

/// Writes the metrics of the samples that were sent to collectors.
fn samples(text: &mut String, switches: &[(SwitchInfo, usize)]) {
    let counters: [(&str, &str, Read<SflowInfo>); 4] = [
        ("samples", "Samples of frames sent to the switch's sFlow collector", |s| s.samples),
        ("missed", "Samples that were not read in time", |s| s.missed),
        ("datagrams", "Datagrams sent to the collector", |s| s.datagrams),
        ("refused", "Datagrams that could not be sent, or that had no listener", |s| s.refused),
    ];
    for (name, help, read) in counters {
        let name = format!("toklat_sflow_{name}_total");
        begin(text, &name, help);
        for (info, _) in switches {
            if let Some(sflow) = &info.sflow {
                line(text, &format!("{name}{{switch=\"{}\"}} {}", info.name, read(sflow)));
            }
        }
    }
}

/// Metrics of forwarding tables' occupancy, and of data processes' confinement.
fn tables_and_walls(text: &mut String, switches: &[(SwitchInfo, usize)]) {
    gauge(text, "toklat_switch_table_entries", "Addresses in the forwarding table");
    gauge(text, "toklat_switch_table_limit", "Addresses that it has room for");
    gauge(text, "toklat_switch_walls", "Walls around the data process, by what became of them");
    for (info, entries) in switches {
        let of = format!("switch=\"{}\"", info.name);
        line(text, &format!("toklat_switch_table_entries{{{of}}} {entries}"));
        line(text, &format!("toklat_switch_table_limit{{{of}}} {}", info.config.fdb_entries));
        let walls =
            [("standing", info.walls.standing.len()), ("refused", info.walls.refused.len())];
        for (became, n) in walls {
            line(text, &format!("toklat_switch_walls{{{of},state=\"{became}\"}} {n}"));
        }
    }
}

fn counter(text: &mut String, name: &str, help: &str) {
    line(text, &format!("# HELP {name} {help}."));
    line(text, &format!("# TYPE {name} counter"));
}

fn gauge(text: &mut String, name: &str, help: &str) {
    line(text, &format!("# HELP {name} {help}."));
    line(text, &format!("# TYPE {name} gauge"));
}

type Read<T> = fn(&T) -> u64;

const PORTS: &[(&str, &str, Read<Counters>)] = &[
    ("in_frames", "Frames handed in by the port's owner", |c| c.in_frames),
    ("in_bytes", "Their bytes", |c| c.in_bytes),
    ("in_copies", "Deliveries beyond one per frame: floods and mirrors", |c| c.in_copies),
    ("out_frames", "Frames handed out to the port's owner", |c| c.out_frames),
    ("out_bytes", "Their bytes", |c| c.out_bytes),
    ("out_segmented", "Frames segmented in software for the owner", |c| c.out_segmented),
    ("out_segments", "Segments that they became beyond one each", |c| c.out_segments),
    ("out_checksums", "Checksums computed in software for the owner", |c| c.out_checksums),
    ("kicks", "Times the switch woke the owner", |c| c.kicks),
    ("wakeups", "Times the owner woke the switch", |c| c.wakeups),
    ("faults", "Malformed descriptors", |c| c.faults),
    ("stalls", "Times that senders waited for it in vain", |c| c.stalls),
    (
        "slow_calls",
        "System calls for the port's owner, such as wake-ups, that took too long",
        |c| c.slow_calls,
    ),
    ("slow_touches", "Times the memory of the port's owner held a worker up", |c| c.slow_touches),
    ("helped_kicks", "Times a thread of its user's own woke the owner, because of that", |c| {
        c.helped_kicks
    }),
    ("flaps", "Addresses refused because they moved too often", |c| c.flaps),
    ("unlearned", "Addresses not learned for want of room in the table or its shares", |c| {
        c.unlearned
    }),
    ("reads", "Register reads of an emulated network card", |c| c.reads),
    ("writes", "Register writes that its guest waited for", |c| c.writes),
    ("posted_writes", "Register writes without a reply", |c| c.posted_writes),
    ("acknowledgements", "Ends of pin interrupts, which its guest waited for", |c| {
        c.acknowledgements
    }),
    ("interrupts", "Interrupts of an emulated network card", |c| c.interrupts),
];

const WORKERS: &[(&str, &str, Read<WorkerStats>)] = &[
    ("passes", "Passes over the worker's hot ports", |w| w.passes),
    ("busy_passes", "Passes that moved a frame", |w| w.busy_passes),
    ("busy_seconds", "Seconds in them", |w| w.busy_ns),
    ("frames", "Frames gathered", |w| w.frames),
    ("sleeps", "Times it slept", |w| w.sleeps),
    ("kicks", "Times it woke a port's owner", |w| w.kicks),
    ("panics", "Ports whose code panicked", |w| w.panics),
];

/// Formats the metrics as text. Names of switches and ports need no escaping: they have letters,
/// digits, `-_./#` only.
fn render(stats: &Stats) -> String {
    let mut text = String::new();
    for (name, help, read) in PORTS {
        begin(&mut text, &format!("toklat_port_{name}_total"), help);
        for (switch, port) in each_port(stats) {
            line(
                &mut text,
                &format!(
                    "toklat_port_{name}_total{{switch=\"{switch}\",port=\"{}\"}} {}",
                    port.name,
                    read(&port.counters)
                ),
            );
        }
    }
    gauge(
        &mut text,
        "toklat_port_state",
        "1 for how the port is: attached, vacant, failed, quarantined, stalled",
    );
    for (switch, port) in each_port(stats) {
        let state = port.state.name();
        let of = format!("switch=\"{switch}\",port=\"{}\",state=\"{state}\"", port.name);
        line(&mut text, &format!("toklat_port_state{{{of}}} 1"));
    }
    memory(&mut text, stats);
    drops(&mut text, stats);
    for (name, help, read) in WORKERS {
        begin(&mut text, &format!("toklat_worker_{name}_total"), help);
        for switch in &stats.switches {
            for (number, worker) in switch.workers.iter().enumerate() {
                let of = format!("switch=\"{}\",worker=\"{number}\"", switch.name);
                let value = read(worker);
                // Prometheus' unit of time is the second; ours is the nanosecond.
                let value = match name.ends_with("_seconds") {
                    true => (value as f64 / 1e9).to_string(),
                    false => value.to_string(),
                };
                line(&mut text, &format!("toklat_worker_{name}_total{{{of}}} {value}"));
            }
        }
    }
    turns(&mut text, stats);
    begin(&mut text, "toklat_switch_restarts_total", "Data processes started again");
    for switch in &stats.switches {
        line(
            &mut text,
            &format!(
                "toklat_switch_restarts_total{{switch=\"{}\"}} {}",
                switch.name, switch.totals.restarts
            ),
        );
    }
    text
}

fn each_port(stats: &Stats) -> impl Iterator<Item = (&str, &crate::api::PortStats)> {
    stats.switches.iter().flat_map(|s| s.ports.iter().map(move |port| (s.name.as_str(), port)))
}

/// The histogram's bounds.
const TURN_ENDS_NS: [u64; 8] =
    [8_192, 65_536, 524_288, 2_097_152, 16_777_216, 134_217_728, 1_073_741_824, 8_589_934_592];

/// The durations of workers' turns, as cumulative buckets.
fn turns(text: &mut String, stats: &Stats) {
    let name = "toklat_worker_turn_seconds";
    line(text, &format!("# HELP {name} How long the worker's turns took."));
    line(text, &format!("# TYPE {name} histogram"));
    for switch in &stats.switches {
        for (number, worker) in switch.workers.iter().enumerate() {
            let of = format!("switch=\"{}\",worker=\"{number}\"", switch.name);
            let under = |end| {
                let buckets = worker.turns.iter().take_while(|bucket| bucket.under_ns <= end);
                buckets.map(|bucket| bucket.turns).fold(0, u64::wrapping_add)
            };
            for end in TURN_ENDS_NS {
                let (turns, end) = (under(end), end as f64 / 1e9);
                line(text, &format!("{name}_bucket{{{of},le=\"{end}\"}} {turns}"));
            }
            let all = under(u64::MAX);
            line(text, &format!("{name}_bucket{{{of},le=\"+Inf\"}} {all}"));
            line(text, &format!("{name}_count{{{of}}} {all}"));
        }
    }
}

/// Metrics of mapped memory of owners.
fn memory(text: &mut String, stats: &Stats) {
    let kinds: [(&str, &str, &str, Read<MappedMemory>); 3] = [
        ("mapped_bytes", "gauge", "Bytes of its owner's memory that are mapped", |m| m.bytes),
        ("mappings", "gauge", "Mappings of its owner's memory", |m| m.mappings),
        ("refused_mappings_total", "counter", "Mappings beyond a limit", |m| m.refused),
    ];
    for (name, kind, help, read) in kinds {
        line(text, &format!("# HELP toklat_port_{name} {help}."));
        line(text, &format!("# TYPE toklat_port_{name} {kind}"));
        for (switch, port) in each_port(stats) {
            let (port, value) = (&port.name, read(&port.counters.memory));
            let of = format!("switch=\"{switch}\",port=\"{port}\"");
            line(text, &format!("toklat_port_{name}{{{of}}} {value}"));
        }
    }
}

fn drops(text: &mut String, stats: &Stats) {
    begin(text, "toklat_port_drops_total", "Frames dropped, by direction and reason");
    for (switch, port) in each_port(stats) {
        let both = [("in", &port.counters.in_drops), ("out", &port.counters.out_drops)];
        for (direction, drops) in both {
            for (reason, n) in drops {
                line(
                    text,
                    &format!(
                        "toklat_port_drops_total{{switch=\"{switch}\",port=\"{}\",\
                     direction=\"{direction}\",reason=\"{}\"}} {n}",
                        port.name,
                        reason.name()
                    ),
                );
            }
        }
    }
}

fn begin(text: &mut String, name: &str, help: &str) {
    line(text, &format!("# HELP {name} {help}."));
    line(text, &format!("# TYPE {name} counter"));
}

fn line(text: &mut String, line: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{PortState, PortStats, SwitchStats};
    use port::DropReason;

    #[test]
    fn each_number_has_its_line_under_its_type() {
        let mut counters = Counters { in_frames: 7, ..Counters::default() };
        counters.memory.bytes = 4096;
        counters.out_drops.insert(DropReason::Full, 3);
        let port = PortStats { name: "p1".into(), id: 0, state: PortState::Attached, counters };
        let switch = SwitchStats {
            name: "vale0".into(),
            totals: port::stats::SwitchStats::default(),
            ports: vec![port],
            workers: vec![WorkerStats {
                busy_ns: 1_500_000_000,
                turns: [(2048, 3), (3 << 20, 1)]
                    .map(|(under_ns, turns)| port::stats::TurnTime { under_ns, turns })
                    .into(),
                ..WorkerStats::default()
            }],
        };
        let text = render(&Stats { at_ns: 0, switches: vec![switch] });
        for expected in [
            "# TYPE toklat_port_in_frames_total counter\n\
             toklat_port_in_frames_total{switch=\"vale0\",port=\"p1\"} 7\n",
            "toklat_port_state{switch=\"vale0\",port=\"p1\",state=\"attached\"} 1\n",
            "toklat_port_drops_total{switch=\"vale0\",port=\"p1\",direction=\"out\",\
             reason=\"full\"} 3\n",
            "# TYPE toklat_port_mapped_bytes gauge\n\
             toklat_port_mapped_bytes{switch=\"vale0\",port=\"p1\"} 4096\n",
            "toklat_worker_busy_seconds_total{switch=\"vale0\",worker=\"0\"} 1.5\n",
            "toklat_worker_turn_seconds_bucket{switch=\"vale0\",worker=\"0\",le=\"0.002097152\"} 3\n",
            "toklat_worker_turn_seconds_bucket{switch=\"vale0\",worker=\"0\",le=\"+Inf\"} 4\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
    }

    /// The rules of `promtool check metrics` (promlint): each metric has a help text and a type and
    /// stands together, counters end in `_total` and nothing else does, units are base units.
    #[test]
    fn metrics_are_named_as_prometheus_wants_them() {
        let switch = SwitchStats {
            name: "vale0".into(),
            totals: port::stats::SwitchStats::default(),
            ports: vec![PortStats {
                name: "p1".into(),
                id: 0,
                state: PortState::Attached,
                counters: Counters::default(),
            }],
            workers: vec![WorkerStats::default()],
        };
        let mut text = render(&Stats { at_ns: 0, switches: vec![switch] });
        evpn(&mut text, &Summary::default());
        let units = [
            "nanoseconds",
            "milliseconds",
            "microseconds",
            "minutes",
            "hours",
            "kilobytes",
            "megabytes",
            "bits",
            "ns",
            "ms",
            "us",
            "kb",
            "mb",
        ];
        let mut seen = std::collections::HashSet::new();
        let (mut name, mut kind) = ("", "");
        for line in text.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "HELP", of, help] => {
                    assert!(!help.is_empty() && seen.insert(of), "{line}");
                    name = of;
                }
                ["#", "TYPE", of, is] => {
                    assert_eq!(of, name, "a help text comes first");
                    assert_eq!(is == "counter", of.ends_with("_total"), "{line}");
                    let unit = of.split('_').find(|part| units.contains(part));
                    assert_eq!(unit, None, "{line}");
                    assert!(!of.contains(is), "a type in a name: {line}");
                    kind = is;
                }
                _ => {
                    let of = line.split(['{', ' ']).next().unwrap();
                    let parts = ["_bucket", "_count", "_sum"].map(|part| format!("{name}{part}"));
                    assert!(
                        of == name || kind == "histogram" && parts.iter().any(|p| p == of),
                        "{line}"
                    );
                }
            }
        }
        assert!(seen.len() > 40, "{seen:?}");
    }
}
