//! Loss and congestion: decides what to retransmit, and sizes the window (RFC 5681, 6675, 6937,
//! 8985).

use crate::connection::acknowledgment::Progress;
use crate::connection::timers::Retransmission;
use crate::connection::{Connection, Marks, Phase, Prr, TailProbe};
use crate::rack::DUP_THRESH;
use crate::segment::Header;
use crate::shared::Shared;
use crate::time::Nanos;

impl Connection {
    /// Handles the consequences of an acknowledgment.
    pub(super) fn recover(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        progress: &Progress,
        now: Nanos,
    ) {
        self.undo_if_needless(shared);
        if self.phase_is_over() {
            self.end_phase();
        }
        self.check_tail_probe(progress);
        self.on_echo(shared, header, progress);
        if !self.has(Marks::SACK) {
            self.count_duplicates(progress);
        }
        let wait = self.detect_lost(now);
        if self.send.board.lost > 0 && matches!(self.send.phase, Phase::Open | Phase::Reducing(_)) {
            self.enter_recovery(shared, progress.outstanding);
        }
        self.grow_or_reduce(progress, now);
        if progress.acked > 0 || progress.delivered > 0 {
            self.arm_retransmission(now);
        }
        if let Some(wait) = wait {
            self.timers.set_retransmission(Retransmission::Reordering, now + wait);
        }
        if self.send.board.lost > 0 {
            self.wake(shared);
        }
    }

    /// Finds lost records by RACK (RFC 8985, 6.2, step 5). Returns the time until the next check.
    pub(super) fn detect_lost(&mut self, now: Nanos) -> Option<u64> {
        let send = &mut self.send;
        if !self.marks.contains(Marks::SACK) || !send.rack.armed {
            return None;
        }
        // Nothing was delivered out of order, so nothing can be missing.
        if send.board.sacked == 0 && send.phase == Phase::Open {
            return None;
        }
        let certain =
            send.phase != Phase::Open || send.board.sacked >= DUP_THRESH * u32::from(send.mss);
        let limit = send.rack.rtt + send.rack.window(&send.rtt, certain);
        send.board.detect_lost(send.rack.sent, send.rack.end, limit, now)
    }

    /// For peers without SACK: three duplicate ACKs, then NewReno (RFC 5681, 3.2; RFC 6582, 3.2).
    fn count_duplicates(&mut self, progress: &Progress) {
        let mss = self.payload_max();
        let send = &mut self.send;
        if progress.repeated && !send.board.is_empty() {
            send.duplicate_acks += 1;
            if send.duplicate_acks == DUP_THRESH && send.phase == Phase::Open {
                send.board.mark_first_lost(mss);
            }
        } else if progress.acked > 0 && matches!(send.phase, Phase::Recovery(_)) {
            send.board.mark_first_lost(mss);
        }
    }

    /// Checks whether a tail loss probe repaired a loss (RFC 8985, 7.4).
    fn check_tail_probe(&mut self, progress: &Progress) {
        let Some(probe) = self.send.tail_probe else { return };
        if self.send.una.before(probe.end) {
            return;
        }
        if progress.duplicate || !probe.retransmission || progress.repeated {
            self.send.tail_probe = None;
        } else if self.send.una.after(probe.end) {
            self.send.tail_probe = None;
            if self.send.phase == Phase::Open {
                self.reduce(progress.outstanding);
                self.send.phase = Phase::Reducing(self.send.nxt);
            }
        }
    }

    /// Handles the end of the reordering window: missing records are lost.
    pub(super) fn lost_by_time(&mut self, shared: &mut Shared) {
        self.enter_recovery(shared, self.send.nxt.since(self.send.una));
        // Without an acknowledgment to clock the sending, allow one segment (RFC 6937, 3.1).
        self.reduce_in_proportion(&Progress::default());
    }

    fn enter_recovery(&mut self, shared: &mut Shared, outstanding: u32) {
        shared.counters.recoveries += 1;
        if self.send.phase == Phase::Open {
            self.reduce(outstanding);
            self.send.undo = Some(0);
        }
        if self.has(Marks::ECN) {
            self.marks |= Marks::CWR_DUE;
        }
        self.send.phase = Phase::Recovery(self.send.nxt);
        self.send.tail_probe = None;
    }

    /// Reacts to congestion: the threshold falls, and the window follows step by step.
    pub(super) fn reduce(&mut self, outstanding: u32) {
        let send = &mut self.send;
        send.congestion.congested(outstanding);
        send.prr = Prr { start: outstanding.max(1), ..Prr::default() };
    }

    fn end_phase(&mut self) {
        let send = &mut self.send;
        if matches!(send.phase, Phase::Recovery(_) | Phase::Reducing(_)) {
            send.congestion.window = send.congestion.threshold;
            send.rack.recovered();
        }
        (send.phase, send.undo) = (Phase::Open, None);
    }

    /// Undoes the reduction if all retransmitted data had arrived before: nothing was lost (RFC
    /// 3708).
    fn undo_if_needless(&mut self, shared: &mut Shared) {
        let send = &mut self.send;
        if send.undo == Some(0) && send.prr.out > 0 && matches!(send.phase, Phase::Recovery(_)) {
            shared.counters.undone += 1;
            send.congestion.undo();
            (send.phase, send.undo) = (Phase::Open, None);
        }
    }

    fn grow_or_reduce(&mut self, progress: &Progress, now: Nanos) {
        match self.send.phase {
            Phase::Open | Phase::Loss(_) => {
                let congestion = &self.send.congestion;
                // If the application or the peer's window limits the rate, it says nothing about
                // the path (RFC 7661).
                let used = self.marks.contains(Marks::LIMITED)
                    || (congestion.window < congestion.threshold
                        && progress.in_flight >= congestion.window / 2);
                if progress.acked > 0 && used {
                    let rtt = self.send.rtt.smoothed;
                    let outstanding = self.send.nxt.since(self.send.una);
                    self.send.congestion.acknowledged(progress.acked, outstanding, now, rtt);
                }
            }
            Phase::Recovery(_) | Phase::Reducing(_) => self.reduce_in_proportion(progress),
        }
    }

    /// Reduces the window by proportional rate reduction (RFC 6937, 3.1).
    fn reduce_in_proportion(&mut self, progress: &Progress) {
        let mss = self.payload_max();
        let sackless = if self.has(Marks::SACK) || !progress.repeated { 0 } else { mss };
        let send = &mut self.send;
        let delivered = progress.delivered.max(sackless);
        send.prr.delivered = send.prr.delivered.saturating_add(delivered);
        let (pipe, threshold) = (send.board.in_flight(), send.congestion.threshold);
        let quota = if pipe > threshold {
            let share =
                u64::from(send.prr.delivered) * u64::from(threshold) / u64::from(send.prr.start);
            (share as u32).saturating_sub(send.prr.out)
        } else {
            let limit = send.prr.delivered.saturating_sub(send.prr.out).max(delivered) + mss;
            limit.min(threshold - pipe)
        };
        let first = if send.prr.out == 0 { mss } else { 0 };
        send.congestion.window = pipe + quota.max(first);
    }

    /// Counts data that is sent while the window shrinks.
    pub(super) fn count_sent(&mut self, len: u32) {
        if matches!(self.send.phase, Phase::Recovery(_) | Phase::Reducing(_)) {
            self.send.prr.out = self.send.prr.out.saturating_add(len);
        }
    }

    /// Handles a time-out: all data in flight counts as lost (RFC 6298, 5.4 to 5.6; RFC 8985, 6.3).
    pub(super) fn on_timeout(&mut self, shared: &mut Shared, now: Nanos) {
        shared.counters.timeouts += 1;
        let send = &mut self.send;
        if !matches!(send.phase, Phase::Loss(_)) {
            send.congestion.congested(send.nxt.since(send.una));
        }
        send.congestion.timed_out();
        send.phase = Phase::Loss(send.nxt);
        (send.tail_probe, send.undo, send.duplicate_acks) = (None, None, 0);
        send.board.mark_all_lost();
        send.rtt.backoff = send.rtt.backoff.saturating_add(1);
        send.expired.get_or_insert(now);
        send.by_timer = true;
        self.arm_retransmission(now);
        self.wake(shared);
    }

    /// Handles the probe timer: a tail loss probe is due (RFC 8985, 7.3).
    pub(super) fn on_probe_timeout(&mut self, shared: &mut Shared, now: Nanos) {
        shared.counters.probes += 1;
        self.marks |= Marks::TAIL_PROBE_DUE;
        self.timers
            .set_retransmission(Retransmission::Timeout, now + self.send.rtt.rto(&self.tuning));
        self.wake(shared);
    }

    /// Notes that a tail loss probe was sent.
    pub(super) fn probed(&mut self, retransmission: bool) {
        self.marks.remove(Marks::TAIL_PROBE_DUE);
        self.send.tail_probe = Some(TailProbe { end: self.send.nxt, retransmission });
        self.send.by_timer |= retransmission;
    }

    /// Lowers the segment size to `mss`, after the path refused larger packets (RFC 1191, 6.3; RFC
    /// 8201, 5.2).
    pub fn on_too_big(&mut self, shared: &mut Shared, mss: u16, now: Nanos) {
        if mss >= self.send.mss {
            return;
        }
        self.send.mss = mss;
        let payload = self.payload_max();
        self.send.congestion.set_mss(payload);
        // Segments that are too long will not arrive. That is not congestion, so the window stays.
        self.send.board.mark_long_lost(payload);
        self.arm_retransmission(now);
        self.wake(shared);
        self.rearm(shared, now);
    }
}
