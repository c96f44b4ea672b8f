//! State that all connections of a machine share.

use alloc::collections::VecDeque;

use crate::config::Config;
use crate::counters::{Counters, Drop};
use crate::flow::{Flow, Secret};
use crate::options::Options;
use crate::pool::Pool;
use crate::segment::{Ecn, Flags, Header};
use crate::seq::Seq;
use crate::time::Nanos;
use crate::time_wait::{TimeWait, Waiting};
use crate::wheel::Wheel;

pub(crate) struct Shared {
    pub config: Config,
    pub secret: Secret,
    pub counters: Counters,
    pub pool: Pool,
    /// Timers by connection index; those of half-open connections follow.
    pub wheel: Wheel,
    /// Connections that have something to send.
    pub ready: VecDeque<u32>,
    /// Connections with events for the application.
    pub events: VecDeque<(u32, u32)>,
    /// Segments without a payload that wait to be sent.
    pub replies: VecDeque<Header>,
    pub time_wait: TimeWait,
}

impl Shared {
    pub fn new(config: Config, secret: Secret) -> Self {
        Self {
            secret,
            counters: Counters::default(),
            pool: Pool::new(config.memory, config.memory_kept),
            wheel: Wheel::new(config.max_connections + config.max_half_open),
            ready: VecDeque::new(),
            events: VecDeque::new(),
            replies: VecDeque::with_capacity(config.max_replies),
            time_wait: TimeWait::new(config.max_time_wait, config.time_wait),
            config,
        }
    }

    /// Queues a segment without a payload. If the queue is full, counts the drop and returns false.
    pub fn reply(&mut self, header: Header) -> bool {
        if self.replies.len() >= self.config.max_replies {
            self.counters.count(Drop::RepliesFull);
            return false;
        }
        self.counters.resets_out += u64::from(header.flags.contains(Flags::RST));
        self.replies.push_back(header);
        true
    }

    /// Resets the sender of a segment that belongs to no connection (RFC 9293, 3.10.7.1). `len` is
    /// the segment's length in sequence numbers.
    pub fn reset_for(&mut self, header: &Header, len: u32) {
        if header.flags.contains(Flags::RST) {
            return;
        }
        let (seq, ack, flags) = match header.flags.contains(Flags::ACK) {
            true => (header.ack, Seq(0), Flags::RST),
            false => (Seq(0), header.seq + len, Flags::RST | Flags::ACK),
        };
        self.reply(Header {
            flow: header.flow,
            seq,
            ack,
            flags,
            window: 0,
            ecn: Ecn::NotCapable,
            options: Options::default(),
        });
    }

    pub fn enter_time_wait(
        &mut self,
        flow: &Flow,
        send_next: Seq,
        receive_next: Seq,
        ts_recent: Option<u32>,
        now: Nanos,
    ) {
        let hash = self.secret.table_hash(flow);
        self.time_wait.insert(hash, flow, &Waiting { send_next, receive_next, ts_recent }, now);
    }
}
