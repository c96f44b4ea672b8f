//! What is known of the process that drives a port's card.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use frame::Mac;
use jail::Walls;
use serde::{Deserialize, Serialize};

use super::super::locked;
use crate::api::{InterfaceInfo, LinkInfo};

/// The maximum number of bytes of a report, with the end of its line.
pub const MAX_REPORT: usize = 4096;

/// What the process reports, each as a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Report {
    /// How it is confined: the first report.
    Walls(Walls),
    /// The card works, in this state.
    State(State),
    /// Why it ends.
    Failed(String),
}

/// The state of a card and its driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The model.
    pub model: String,
    /// The station address.
    pub mac: Mac,
    /// The link is up.
    pub carrier: bool,
    /// The largest payload of a frame, in bytes.
    pub mtu: u16,
    /// Frames from the switch that the card was given.
    pub sent: u64,
    /// Frames from the card that the switch was given.
    pub received: u64,
    /// Frames of the switch that the card cannot send.
    pub unsendable: u64,
    /// Frames that arrived damaged.
    pub damaged: u64,
    /// Frames that the card dropped for want of buffers.
    pub missed: u64,
    /// Interrupts.
    pub interrupts: u64,
}

/// The process that drives a port's card.
#[derive(Debug, Default)]
pub struct Driven {
    /// Its number; 0 while there is none.
    pid: AtomicU32,
    state: Mutex<Option<State>>,
    walls: Mutex<Walls>,
}

impl Driven {
    /// Notes that a process runs.
    pub fn began(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// Notes that the process has ended.
    pub fn ended(&self) {
        self.pid.store(0, Ordering::Relaxed);
        *locked(&self.state) = None;
        *locked(&self.walls) = Walls::default();
    }

    /// Notes walls around the process: those that were raised before it ran, or those that it
    /// reports. Each is noted once.
    pub fn confined(&self, walls: Walls) {
        let mut all = locked(&self.walls);
        let is_new = |all: &Walls, wall| {
            !all.stands(wall) && all.refused.iter().all(|refused| refused.wall != wall)
        };
        for wall in walls.standing {
            if is_new(&all, wall) {
                all.note(wall, Ok(()));
            }
        }
        for jail::Refused { wall, reason } in walls.refused {
            if is_new(&all, wall) {
                all.note(wall, Err(crate::guests::printable(reason.as_bytes())));
            }
        }
    }

    /// The number of the process, and the walls around it; `None` while there is none.
    pub fn process(&self) -> Option<(u32, Walls)> {
        let pid = self.pid.load(Ordering::Relaxed);
        (pid != 0).then(|| (pid, locked(&self.walls).clone()))
    }

    /// True if the process has this number. It is a child that was not waited for, so no other
    /// process has the number.
    pub fn is(&self, pid: u32) -> bool {
        pid != 0 && self.pid.load(Ordering::Relaxed) == pid
    }

    /// Notes a report.
    pub fn note(&self, state: State) {
        *locked(&self.state) = Some(state);
    }

    /// Describes the card for the API, if it works.
    pub fn info(&self) -> Option<InterfaceInfo> {
        let state = locked(&self.state).clone()?;
        let statistics = [
            ("rx_packets", state.received),
            ("tx_packets", state.sent),
            ("rx_errors", state.damaged),
            ("tx_errors", state.unsendable),
            ("rx_missed_errors", state.missed),
            ("interrupts", state.interrupts),
        ];
        let link = LinkInfo {
            up: true,
            carrier: state.carrier,
            mtu: state.mtu.into(),
            promiscuous: true,
            mac: Some(state.mac),
            kind: Some(state.model),
            statistics: statistics.map(|(name, count)| (name.to_owned(), count)).into(),
        };
        Some(InterfaceInfo {
            engine: "vfio".into(),
            why: "a driver of toklat's drives the card, in a process of its own".into(),
            zero_copy: true,
            host: "nothing: the kernel has no part in the card".into(),
            queues: 1,
            lost: state.missed,
            link: Some(link),
        })
    }
}
