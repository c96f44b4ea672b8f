//! Receives segments: merges them, then finds their connection, half-open connection, TIME-WAIT
//! entry or listener.

use crate::connection::Run;
use crate::counters::Drop;
use crate::gro;
use crate::handle::Receive;
use crate::machine::Machine;
use crate::options::{Options, Timestamp};
use crate::segment::{Ecn, Flags, Header, Segment};
use crate::seq::Seq;
use crate::time::Nanos;
use crate::time_wait::Waiting;

impl Machine {
    /// Processes a batch of segments. Consecutive segments of one flow are processed as one. `app`
    /// may read their data in place.
    ///
    /// Answers are queued until [`transmit`](Self::transmit).
    pub fn on_batch(&mut self, batch: &[Segment<'_>], now: Nanos, app: &mut impl Receive) {
        let mut rest = batch;
        while !rest.is_empty() {
            let (run, next) = rest.split_at(gro::run_length(rest));
            self.shared.counters.segments_in += run.len() as u64;
            self.shared.counters.runs_in += 1;
            self.on_run(&Run::new(run), now, app);
            rest = next;
        }
    }

    /// Processes one segment; see [`on_batch`](Self::on_batch).
    pub fn on_segment(&mut self, segment: &Segment<'_>, now: Nanos, app: &mut impl Receive) {
        self.on_batch(core::slice::from_ref(segment), now, app);
    }

    fn on_run(&mut self, run: &Run<'_, '_>, now: Nanos, app: &mut impl Receive) {
        let header = run.header();
        let flags = header.flags;
        if flags.contains(Flags::SYN) && flags.intersects(Flags::FIN | Flags::RST) {
            self.shared.counters.count(Drop::BadFlags);
            return;
        }
        let hash = self.shared.secret.table_hash(&header.flow);
        if let Some(index) = self.connections.find(hash as u32, |c| c.flow == header.flow) {
            if let Some(connection) = self.connections.get_mut(index) {
                connection.input(&mut self.shared, run, now, app);
            }
            self.settle(index);
        } else if let Some(index) = self.half_open.find(hash as u32, |h| h.flow == header.flow) {
            self.on_half_open(index, run, now, app);
        } else if let Some(waiting) = self.shared.time_wait.find(hash, &header.flow, now) {
            self.on_time_wait(&waiting, hash, run, now);
        } else {
            self.on_listener(run, None, now, app);
        }
    }

    /// Handles a segment of a connection in TIME-WAIT.
    fn on_time_wait(&mut self, waiting: &Waiting, hash: u64, run: &Run<'_, '_>, now: Nanos) {
        let header = run.header();
        if header.flags.contains(Flags::RST) {
            self.shared.counters.count(Drop::TimeWaitReset);
            return;
        }
        if header.flags & (Flags::SYN | Flags::ACK) == Flags::SYN && is_newer(waiting, header) {
            self.shared.time_wait.remove(hash, &header.flow);
            // The new connection's numbers start after all of the old one's.
            let least = waiting.send_next + 0xffff + 2;
            self.on_listener(run, Some(least), now, &mut crate::Buffered);
            return;
        }
        if header.flags.contains(Flags::FIN) {
            // The peer has missed our ACK: restart the wait.
            self.shared.time_wait.insert(hash, &header.flow, waiting, now);
        }
        if run.end() == header.seq {
            // A plain ACK gets no answer: two peers in TIME-WAIT would answer each other forever.
            self.shared.counters.count(Drop::AfterClose);
            return;
        }
        let offset = self.shared.secret.timestamp_offset(&header.flow);
        let echo = waiting.ts_recent;
        let timestamp =
            echo.map(|echo| Timestamp { value: now.millis().wrapping_add(offset), echo });
        self.shared.reply(Header {
            flow: header.flow,
            seq: waiting.send_next,
            ack: waiting.receive_next,
            flags: Flags::ACK,
            window: 0,
            ecn: Ecn::NotCapable,
            options: Options { timestamp, ..Options::default() },
        });
    }
}

/// Returns true for a SYN that must belong to a new connection (RFC 9293, 3.6.1; RFC 6191, 2).
fn is_newer(waiting: &Waiting, header: &Header) -> bool {
    let seq: Seq = header.seq;
    match (waiting.ts_recent, header.options.timestamp) {
        (Some(recent), Some(stamp)) if stamp.value != recent => {
            (stamp.value.wrapping_sub(recent) as i32) > 0
        }
        _ => seq.after(waiting.receive_next),
    }
}
