//! What readers need to know of a switch, without its lock.
//!
//! A switch is locked during requests to its data process, which may take long if that is stuck.
//! Readers wait for the lock for [`BRIEF`], then ask the task that has it for a copy. Counters and
//! addresses lie in state memory, which needs no lock: they are read as they are.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use dataplane::config::PortId;
use dataplane::state::State;
use fabric::{Fate, Observer, Origin, Recorded};
use port::Nanos;

use super::who::Who;
use crate::api::{Dropped, DroppedFrame, FdbEntry, PortInfo, PortStats, SwitchInfo, SwitchStats};

/// How long readers wait for switches that are locked, before they use copies.
pub const BRIEF: Duration = Duration::from_millis(5);

/// Seconds for which drops are recorded after a request.
const RECORDED_S: u32 = 5;

/// A copy of a switch's state.
#[derive(Clone, Debug)]
pub struct Overview {
    /// The switch.
    pub info: SwitchInfo,
    /// The switch's counters and its table, as they are.
    pub view: State,
    /// The switch's ports, by number.
    pub ports: Vec<PortInfo>,
    /// Seconds for which ports have not been connected to their peers, by name.
    pub unconnected: Vec<(String, u64)>,
}

impl Overview {
    /// The switch's counters, and those of its ports.
    #[must_use]
    pub fn stats(&self) -> SwitchStats {
        let ports = self.ports.iter().map(|port| PortStats {
            name: port.name.clone(),
            id: port.id,
            state: port.state,
            counters: self.view.port(port.id).map(|port| port.snapshot()).unwrap_or_default(),
        });
        SwitchStats {
            name: self.info.name.clone(),
            totals: self.view.switch().snapshot(),
            ports: ports.collect(),
            workers: self.view.workers(self.info.config.workers.len()),
        }
    }

    /// The switch without the ports that the caller may not see.
    #[must_use]
    pub fn seen_by(&self, who: &Who) -> Cow<'_, Self> {
        if self.ports.iter().all(|port| who.sees(&self.info, port)) {
            return Cow::Borrowed(self);
        }
        let mut seen = self.clone();
        seen.ports.retain(|port| who.sees(&self.info, port));
        Cow::Owned(seen)
    }

    /// The addresses at ports that the caller may see.
    #[must_use]
    pub fn fdb_seen_by(&self, who: &Who, now: Nanos) -> Vec<FdbEntry> {
        let is_seen = |name: &str| {
            self.ports.iter().all(|port| port.name != name || who.sees(&self.info, port))
        };
        let mut entries = self.fdb(now);
        if let Cow::Owned(_) = self.seen_by(who) {
            entries.retain(|entry| is_seen(&entry.port));
        }
        entries
    }

    /// The forwarding table, by VLAN and address.
    #[must_use]
    pub fn fdb(&self, now: Nanos) -> Vec<FdbEntry> {
        let entries = self.view.fdb(now).into_iter();
        let mut list: Vec<_> = entries
            .map(|e| FdbEntry {
                mac: e.mac,
                vlan: e.vlan,
                port: self.name_of(e.port),
                fixed: e.origin == Origin::Static,
                origin: e.origin,
                age_s: e.age_s,
            })
            .collect();
        list.sort_by_key(|e| (e.vlan, e.mac.octets()));
        list
    }

    /// The name of port `id`.
    #[must_use]
    pub fn name_of(&self, id: PortId) -> String {
        let found = self.ports.binary_search_by_key(&id, |port| port.id);
        found.map_or_else(|_| format!("#{id}"), |at| self.ports[at].name.clone())
    }

    /// The frames dropped since a position, or from this call on. Extends the recording of drops by
    /// some seconds.
    #[must_use]
    pub fn dropped(&self, since: Option<u64>, now: Nanos) -> Dropped {
        let recorder = self.view.recorder();
        recorder.record_drops(now, RECORDED_S);
        let mut observer = match since {
            Some(place) => Observer::resume(recorder.clone(), Recorded::Drops, place),
            None => Observer::new(recorder.clone(), Recorded::Drops),
        };
        let mut frames = Vec::new();
        observer.read(|record| {
            let Fate::Dropped(reason, by) = record.fate else { return };
            let head = record.head().iter().fold(String::new(), |mut head, byte| {
                // Writing to a string does not fail.
                let _ = write!(head, "{byte:02x}");
                head
            });
            frames.push(DroppedFrame {
                at_ns: record.at.0,
                from: self.name_of(record.from),
                by: by.map(|port| self.name_of(port)),
                reason: reason.name().into(),
                len: record.len,
                head,
            });
        });
        Dropped { next: observer.place(), missed: observer.missed, now_ns: now.0, frames }
    }
}
