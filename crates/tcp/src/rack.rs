//! RACK: finds losses by time (RFC 8985, 5 and 6). Also holds the state of tail loss probes
//! (section 7).

use crate::rtt::Rtt;
use crate::scoreboard::Record;
use crate::seq::Seq;
use crate::time::Nanos;

/// Segments that the peer holds out of order before loss is certain (RFC 8985, 3.3: DupThresh).
pub(crate) const DUP_THRESH: u32 = 3;
/// Number of recoveries for which a wider reordering window is kept (RFC 8985, 5.3).
const PERSIST: u8 = 16;

pub(crate) struct Rack {
    /// When the latest delivered segment was sent, and where it ends.
    pub sent: Nanos,
    pub end: Seq,
    pub rtt: u64,
    /// The highest number delivered.
    forward: Seq,
    /// Reordering was seen: segments came out of order without loss.
    pub reordered: bool,
    /// The reordering window, in quarters of the minimum round trip.
    quarters: u8,
    persist: u8,
    /// The window was widened for a duplicate. It is not widened again until this number is
    /// acknowledged.
    widened_until: Option<Seq>,
    /// A record was delivered since `sent` was set up.
    pub armed: bool,
}

impl Rack {
    pub fn new(start: Seq) -> Self {
        Self {
            sent: Nanos(0),
            end: start,
            rtt: 0,
            forward: start,
            reordered: false,
            quarters: 1,
            persist: 0,
            widened_until: None,
            armed: false,
        }
    }

    /// Notes a delivered record (RFC 8985, 6.2, steps 2 and 3). `echo` is the peer's echo of our
    /// millisecond clock.
    pub fn delivered(&mut self, record: &Record, rtt: &Rtt, echo: Option<u32>, now: Nanos) {
        let took = now - record.sent;
        if record.retransmitted {
            let older = |echo: u32| (echo.wrapping_sub(record.sent.millis()) as i32) < 0;
            if took < rtt.min() || echo.is_some_and(older) {
                return;
            }
        }
        self.rtt = took;
        if !self.armed || record.sent_after(self.sent, self.end) {
            (self.sent, self.end, self.armed) = (record.sent, record.end, true);
        }
        if record.end.after(self.forward) {
            self.forward = record.end;
        } else if record.end.before(self.forward) && !record.retransmitted {
            self.reordered = true;
        }
    }

    /// Widens the window after the peer reports a duplicate (RFC 8985, 6.2, step 4).
    pub fn duplicate(&mut self, una: Seq, next: Seq) {
        if self.widened_until.is_none_or(|until| !una.before(until)) {
            self.widened_until = Some(next);
            self.quarters = self.quarters.saturating_add(1);
            self.persist = PERSIST;
        }
    }

    /// Notes that a recovery has ended.
    pub fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }

    /// Returns the reordering window in nanoseconds. `certain`: the peer holds three segments, or
    /// loss was already found.
    pub fn window(&self, rtt: &Rtt, certain: bool) -> u64 {
        if !self.reordered && certain {
            return 0;
        }
        (u64::from(self.quarters) * rtt.min() / 4).min(rtt.smoothed)
    }
}
