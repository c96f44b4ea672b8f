//! Timers. A connection has one entry in the wheel: that of its earliest deadline.

use crate::connection::{CloseReason, Connection, Marks, Phase, State};
use crate::segment::Flags;
use crate::shared::Shared;
use crate::time::Nanos;

/// What the retransmission timer waits for; it is one timer (RFC 8985, 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retransmission {
    /// The retransmission time-out (RFC 6298).
    Timeout,
    /// The tail loss probe (RFC 8985, 7).
    Probe,
    /// The reordering window's end (RFC 8985, 6.2).
    Reordering,
    /// The next probe of a closed window (RFC 9293, 3.8.6.1).
    Window,
}

#[derive(Debug)]
pub(crate) struct Timers {
    retransmission: Nanos,
    /// When the retransmission time-out expires. The timer may wait for something earlier.
    timeout: Nanos,
    kind: Retransmission,
    /// Deadline of the delayed ACK.
    pub ack: Nanos,
    keep_alive: Nanos,
    /// When the machine gives up a connection that the application has closed.
    orphan: Nanos,
    /// The deadline in the wheel.
    scheduled: Nanos,
}

impl Timers {
    pub fn new() -> Self {
        Self {
            retransmission: Nanos::NEVER,
            timeout: Nanos::NEVER,
            kind: Retransmission::Timeout,
            ack: Nanos::NEVER,
            keep_alive: Nanos::NEVER,
            orphan: Nanos::NEVER,
            scheduled: Nanos::NEVER,
        }
    }

    pub fn clear(&mut self) {
        *self = Self { scheduled: self.scheduled, ..Self::new() };
    }

    pub fn set_retransmission(&mut self, kind: Retransmission, at: Nanos) {
        (self.retransmission, self.kind) = (at, kind);
    }

    pub fn stop_retransmission(&mut self) {
        self.retransmission = Nanos::NEVER;
    }

    pub fn retransmission_is_off(&self) -> bool {
        self.retransmission == Nanos::NEVER
    }

    pub fn stop_window_probes(&mut self) {
        if self.kind == Retransmission::Window {
            self.stop_retransmission();
        }
    }

    fn earliest(&self) -> Nanos {
        self.retransmission.min(self.ack).min(self.keep_alive).min(self.orphan)
    }

    /// Notes that the wheel has no entry for this connection any more.
    pub fn popped(&mut self) {
        self.scheduled = Nanos::NEVER;
    }
}

impl Connection {
    /// Updates the entry in the wheel. An entry that is too early stays: one needless visit costs
    /// less than a move on each ACK.
    pub fn rearm(&mut self, shared: &mut Shared, now: Nanos) {
        let earliest = self.timers.earliest();
        if earliest < self.timers.scheduled {
            self.timers.scheduled = earliest;
            shared.wheel.schedule(self.index, earliest, now);
        }
    }

    /// Handles the wheel's entry, which is due.
    pub fn on_timer(&mut self, shared: &mut Shared, now: Nanos) {
        self.timers.popped();
        if self.timers.ack <= now {
            self.timers.ack = Nanos::NEVER;
            self.acknowledge_now(shared);
        }
        if self.timers.retransmission <= now {
            self.timers.stop_retransmission();
            self.on_retransmission_timer(shared, now);
        }
        if self.timers.keep_alive <= now {
            self.on_keep_alive(shared, now);
        }
        if self.timers.orphan <= now {
            self.abort(shared, now);
        }
        self.rearm(shared, now);
    }

    fn on_retransmission_timer(&mut self, shared: &mut Shared, now: Nanos) {
        match self.timers.kind {
            Retransmission::Timeout
                if matches!(self.state, State::SynSent | State::SynReceived) =>
            {
                self.on_syn_timeout(shared, now);
            }
            Retransmission::Timeout if self.has_lost_patience(now) => self.give_up(shared, now),
            Retransmission::Timeout => self.on_timeout(shared, now),
            Retransmission::Probe => self.on_probe_timeout(shared, now),
            Retransmission::Reordering => self.on_reordering_timeout(shared, now),
            Retransmission::Window => {
                if self.send.unanswered == 0 {
                    self.send.expired = Some(now);
                } else if self.has_lost_patience(now) {
                    return self.give_up(shared, now);
                }
                self.send.unanswered = self.send.unanswered.saturating_add(1);
                self.send.rtt.backoff = self.send.rtt.backoff.saturating_add(1);
                self.marks |= Marks::PROBE_DUE;
                self.wake(shared);
            }
        }
    }

    /// True if the peer was silent for too long since the first time-out or probe.
    fn has_lost_patience(&self, now: Nanos) -> bool {
        self.send.expired.is_some_and(|first| now - first >= self.tuning.patience)
    }

    fn on_syn_timeout(&mut self, shared: &mut Shared, now: Nanos) {
        shared.counters.timeouts += 1;
        // The connection's age is that of the first SYN.
        if now - self.receive.last_heard >= self.tuning.syn_patience {
            return self.finish(shared, CloseReason::TimedOut);
        }
        self.send.rtt.backoff = self.send.rtt.backoff.saturating_add(1);
        self.marks |= Marks::SYN_DUE;
        let end = self.receive.last_heard + self.tuning.syn_patience;
        let next = (now + self.send.rtt.rto(&self.tuning)).min(end);
        self.timers.set_retransmission(Retransmission::Timeout, next);
        self.wake(shared);
    }

    fn on_reordering_timeout(&mut self, shared: &mut Shared, now: Nanos) {
        let wait = self.detect_lost(now);
        if self.send.board.lost > 0 {
            if matches!(self.send.phase, Phase::Open | Phase::Reducing(_)) {
                self.lost_by_time(shared);
            }
            self.wake(shared);
        }
        match wait {
            Some(wait) => self.timers.set_retransmission(Retransmission::Reordering, now + wait),
            None => self.arm_retransmission(now),
        }
    }

    /// Gives up the connection: the peer does not answer.
    fn give_up(&mut self, shared: &mut Shared, now: Nanos) {
        let reset = self.header(self.send.nxt, Flags::RST | Flags::ACK, now);
        shared.reply(reset);
        self.finish(shared, CloseReason::TimedOut);
    }

    /// Restarts the timer, after an acknowledgment or a retransmission (RFC 6298, 5.3).
    pub fn arm_retransmission(&mut self, now: Nanos) {
        if self.send.board.is_empty() {
            return self.timers.stop_retransmission();
        }
        self.timers.timeout = now + self.send.rtt.rto(&self.tuning);
        self.arm_probe(now);
    }

    /// Arms the timer after new data was sent. Each send postpones the probe, but not the time-out
    /// (RFC 6298, 5.1; RFC 8985, 7.2).
    pub fn arm_for_new_data(&mut self, first: bool, now: Nanos) {
        if first || self.timers.retransmission_is_off() {
            return self.arm_retransmission(now);
        }
        if self.timers.kind == Retransmission::Probe {
            self.arm_probe(now);
        }
    }

    /// Arms a tail loss probe before the time-out, where a probe can help.
    fn arm_probe(&mut self, now: Nanos) {
        let (send, timeout) = (&self.send, self.timers.timeout);
        let probes = self.has(Marks::SACK)
            && send.phase == Phase::Open
            && send.tail_probe.is_none()
            && !self.has(Marks::TAIL_PROBE_DUE)
            && send.board.sacked == 0
            && send.rtt.smoothed > 0;
        if probes {
            let single = send.board.in_flight() <= u32::from(send.mss);
            let wait = 2 * send.rtt.smoothed + if single { send.rtt.ack_delay } else { 0 };
            if now + wait < timeout {
                return self.timers.set_retransmission(Retransmission::Probe, now + wait);
            }
        }
        self.timers.set_retransmission(Retransmission::Timeout, timeout);
    }

    /// Starts or stops the probes of a closed window.
    pub fn arm_window_probe(&mut self, blocked: bool, now: Nanos) {
        if !blocked || !self.send.board.is_empty() {
            return self.timers.stop_window_probes();
        }
        if self.timers.retransmission_is_off() {
            let wait = self.send.rtt.rto(&self.tuning);
            self.timers.set_retransmission(Retransmission::Window, now + wait);
        }
    }

    /// Starts keep-alive, or changes it.
    pub fn arm_keep_alive(&mut self) {
        self.timers.keep_alive = match self.tuning.keep_alive {
            Some(keep_alive) if self.state != State::Closed => {
                self.receive.last_heard + keep_alive.idle
            }
            _ => Nanos::NEVER,
        };
    }

    fn on_keep_alive(&mut self, shared: &mut Shared, now: Nanos) {
        let Some(keep_alive) = self.tuning.keep_alive else {
            self.timers.keep_alive = Nanos::NEVER;
            return;
        };
        let due = self.receive.last_heard + keep_alive.idle;
        // Data in flight acts as a probe itself.
        if now < due || !self.send.board.is_empty() || self.state == State::SynSent {
            self.timers.keep_alive = due.max(now + keep_alive.interval);
            return;
        }
        if self.send.unanswered >= keep_alive.probes {
            return self.give_up(shared, now);
        }
        self.send.unanswered += 1;
        self.timers.keep_alive = now + keep_alive.interval;
        self.marks |= Marks::PROBE_DUE;
        self.wake(shared);
    }

    /// Starts the deadline for delivering what is left, after the application has closed.
    pub fn arm_orphan(&mut self, now: Nanos) {
        self.timers.orphan = now + self.tuning.orphan_timeout;
    }
}
