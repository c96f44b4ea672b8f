//! A guest as its manager sees it: what it is, its state, and when it is started again.

use std::time::{Duration, Instant};

use guest::Place;
use jail::Walls;
use jail::child::Backoff;
use topology::Restart;

use super::groups::Confined;
use super::log::Log;
use super::process::{End, Process};
pub use crate::api::{GuestInfo, GuestState as State};

/// A guest that has served for this long counts as started without failure.
const HEALTHY: Duration = Duration::from_secs(10);
/// The pauses before restarts.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30), HEALTHY);

pub struct Unit {
    pub name: String,
    /// The index of the guest's kind.
    pub kind: usize,
    pub ports: Vec<(String, Place)>,
    pub state: State,
    pub since: Instant,
    pub process: Option<Process>,
    pub log: Log,
    /// The guest's output is not read until the next interval.
    pub muted: bool,
    began: Instant,
    pub start_us: Option<u64>,
    restarts: u32,
    pauses: Backoff,
    pub last_end: Option<String>,
    pub walls: Walls,
    /// The control group that confines the memory of the guest's process.
    pub group: Option<Confined>,
    pub stopped: bool,
    /// A number that changes with each process and each pause, so that an outdated timer is
    /// recognized.
    pub turn: u32,
}

impl Unit {
    pub fn new(name: String, kind: usize, ports: Vec<(String, Place)>, log: Log) -> Self {
        let now = Instant::now();
        Self {
            name,
            kind,
            ports,
            state: State::Queued,
            since: now,
            process: None,
            log,
            muted: false,
            began: now,
            start_us: None,
            restarts: 0,
            pauses: PAUSES,
            last_end: None,
            walls: Walls::default(),
            group: None,
            stopped: false,
            turn: 0,
        }
    }

    pub fn enter(&mut self, state: State, now: Instant) {
        if state == State::Starting {
            self.began = now;
            self.turn += 1;
        }
        (self.state, self.since) = (state, now);
    }

    /// True while no process is known to be the guest's: it is queued, or its copy is being made.
    pub fn waits_for_copy(&self) -> bool {
        let is_unknown = |process: &Process| process.child.is_none();
        match self.state {
            State::Queued => true,
            State::Starting => self.process.as_ref().is_some_and(is_unknown),
            _ => false,
        }
    }

    /// It serves.
    pub fn is_up(&mut self, now: Instant) {
        let took = now.duration_since(self.began).as_micros();
        self.start_us = Some(u64::try_from(took).unwrap_or(u64::MAX));
        self.enter(State::Running, now);
    }

    /// Notes that the guest has ended. Returns the pause before it is started again, if it is.
    pub fn ended(&mut self, end: End, restart: Restart, now: Instant) -> Option<Duration> {
        let served = match self.state {
            State::Running => now.duration_since(self.since),
            _ => Duration::ZERO,
        };
        // A refusal at the first start is a mistake of the command. A later one may pass, for
        // example when the switch is added again.
        let mistaken = end.refused && self.restarts == 0 && self.start_us.is_none();
        (self.process, self.group) = (None, None);
        self.last_end = Some(if self.stopped { "stopped".to_owned() } else { end.how });
        self.turn += 1;
        let again = match restart {
            _ if self.stopped || mistaken => false,
            Restart::Never => false,
            Restart::OnFailure => !end.success,
            Restart::Always => true,
        };
        if !again {
            self.enter(State::Ended, now);
            return None;
        }
        self.enter(State::Waiting, now);
        self.restarts += 1;
        Some(self.pauses.after(served))
    }

    pub fn info(&self, app: &str, now: Instant, log: String) -> GuestInfo {
        let millis = now.duration_since(self.since).as_millis();
        let address = |(_, place): &(_, Place)| place.to_string();
        GuestInfo {
            name: self.name.clone(),
            app: app.to_owned(),
            ports: self.ports.iter().map(|(name, _)| name.clone()).collect(),
            addresses: self.ports.iter().map(address).collect(),
            state: self.state,
            pid: self.process.as_ref().and_then(|process| Some(process.child.as_ref()?.id())),
            for_ms: u64::try_from(millis).unwrap_or(u64::MAX),
            start_us: self.start_us,
            restarts: self.restarts,
            last_end: self.last_end.clone(),
            walls: self.walls.clone(),
            manager: std::process::id(),
            log,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit {
        let log = Log::new(std::path::Path::new("/nowhere"), "web");
        Unit::new("web".into(), 0, Vec::new(), log)
    }

    #[test]
    fn pauses_grow_while_a_guest_fails_and_are_short_again_once_it_has_served() {
        let (mut unit, mut now) = (unit(), Instant::now());
        let fail = |unit: &mut Unit, now| unit.ended(End::failed("x"), Restart::OnFailure, now);
        let pauses: Vec<_> = (0..10).map(|_| fail(&mut unit, now).unwrap().as_millis()).collect();
        assert_eq!(pauses[..4], [100, 200, 400, 800]);
        assert_eq!(pauses[9], 30_000);
        unit.is_up(now);
        now += HEALTHY;
        assert_eq!(fail(&mut unit, now), Some(Duration::from_millis(100)));
        assert_eq!(unit.restarts, 11);
    }

    #[test]
    fn a_guest_is_started_again_only_when_its_policy_says_so() {
        let now = Instant::now();
        let good = || End { how: "ended".into(), success: true, refused: false };
        let again = |end: End, restart| unit().ended(end, restart, now).is_some();
        assert!(!again(End::failed("x"), Restart::Never));
        assert!(!again(good(), Restart::OnFailure));
        assert!(again(End::failed("x"), Restart::OnFailure));
        assert!(again(good(), Restart::Always));
        let refused = || End { refused: true, ..End::failed("no such switch") };
        assert!(!again(refused(), Restart::Always));
        let mut served = unit();
        served.is_up(now);
        assert!(served.ended(refused(), Restart::OnFailure, now).is_some());
        let mut stopped = unit();
        stopped.stopped = true;
        assert_eq!(stopped.ended(End::failed("x"), Restart::Always, now), None);
        assert_eq!(stopped.last_end.as_deref(), Some("stopped"));
    }
}
