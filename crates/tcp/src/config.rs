//! Settings of machines and connections.

use core::ops::RangeInclusive;

use crate::time::Nanos;

/// How the congestion window grows and shrinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// Reno (RFC 5681).
    Reno,
}

/// Probes of an idle connection (RFC 9293, 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Idle time before the first probe, in nanoseconds.
    pub idle: u64,
    /// Nanoseconds between probes.
    pub interval: u64,
    /// The connection ends after this many unanswered probes.
    pub probes: u8,
}

/// Settings of a connection. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Minimum retransmission time-out to a peer that has said that it acknowledges at once.
    pub rto_min: u64,
    /// Minimum retransmission time-out to all other peers, as long as they show no longer delays.
    /// RFC 6298 says 1 s, Linux has 200 ms; peers delay ACKs by 40 to 200 ms.
    pub rto_min_far: u64,
    /// Maximum retransmission time-out, back-off included (RFC 6298, 2.5).
    pub rto_max: u64,
    /// Retransmission time-out before the first round trip is measured, so for SYNs (RFC 6298,
    /// 2.1).
    pub rto_initial: u64,
    /// How long an ACK for less than two segments is delayed, so that it can travel with data (RFC
    /// 9293, 3.8.6.3).
    pub ack_delay: u64,
    /// How long a peer may delay its ACKs that has said that it acknowledges at once; tail loss
    /// probes allow for it (RFC 8985, 7.2).
    pub peer_ack_delay: u64,
    /// The same for all other peers.
    pub peer_ack_delay_far: u64,
    /// The connection ends when the peer was silent for this long since the first time-out (R2 of
    /// RFC 1122, 4.2.3.5: at least 100 s).
    pub patience: u64,
    /// The same for a SYN (at least 3 minutes).
    pub syn_patience: u64,
    /// How long a connection may still deliver data after the application has closed it.
    pub orphan_timeout: u64,
    /// Nagle's algorithm: a short segment waits while another is unacknowledged (RFC 9293, 3.7.4).
    pub nagle: bool,
    /// Resets the congestion window after the connection was idle for a time-out (RFC 5681, 4.1).
    pub restart_after_idle: bool,
    /// Congestion control.
    pub congestion: Algorithm,
    /// Probes of an idle connection.
    pub keep_alive: Option<KeepAlive>,
}

impl Tuning {
    /// True if a peer acknowledges at once that says that it delays ACKs by so many milliseconds.
    pub(crate) fn is_prompt(&self, millis: u8) -> bool {
        millis > 0 && u64::from(millis) * Nanos::MILLI <= self.peer_ack_delay
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            rto_min: 5 * Nanos::MILLI,
            rto_min_far: 300 * Nanos::MILLI,
            rto_max: 60 * Nanos::SECOND,
            rto_initial: Nanos::SECOND,
            ack_delay: Nanos::MILLI,
            peer_ack_delay: 2 * Nanos::MILLI,
            peer_ack_delay_far: 250 * Nanos::MILLI,
            patience: 900 * Nanos::SECOND,
            syn_patience: 180 * Nanos::SECOND,
            orphan_timeout: 100 * Nanos::SECOND,
            nagle: false,
            restart_after_idle: false,
            congestion: Algorithm::Cubic,
            keep_alive: None,
        }
    }
}

/// Bytes that a connection takes, roughly, without copied data.
const CONNECTION: usize = 2 << 10;

/// Settings of a machine. Sizes are in bytes, times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// The default for connections without their own settings.
    pub tuning: Tuning,
    /// Maximum length of an IP packet, at least 576.
    pub mtu: u16,
    /// Maximum payload of a request of several segments (TSO); 0 if the device has no TSO.
    pub gso_max: u32,
    /// Maximum number of connections. Each reserves 4 bytes in a table; the rest is allocated on
    /// use.
    pub max_connections: usize,
    /// Maximum number of half-open connections of all listeners (the SYN queue), 64 bytes each.
    pub max_half_open: usize,
    /// Answers SYNs by cookies when the SYN queue is full (RFC 4987, 3.6). Otherwise they are
    /// dropped.
    pub syn_cookies: bool,
    /// Maximum number of entries in TIME-WAIT: 32 bytes each, and 4 reserved bytes in a table. New
    /// entries evict the oldest.
    pub max_time_wait: usize,
    /// How long a connection stays in TIME-WAIT: twice the maximum segment lifetime.
    pub time_wait: u64,
    /// Maximum number of queued replies without a connection: resets, SYN-ACKs, challenge ACKs.
    pub max_replies: usize,
    /// Receive window of a new connection.
    pub receive_start: u32,
    /// Largest receive window.
    pub receive_max: u32,
    /// Minimum limit of unacknowledged data of an application. The limit grows with the congestion
    /// window.
    pub send_start: u32,
    /// Maximum limit of unacknowledged data of an application.
    pub send_max: u32,
    /// Maximum memory for copied data, of all connections together.
    pub memory: usize,
    /// How much of that memory is kept for reuse when it is free.
    pub memory_kept: usize,
    /// Use timestamps (RFC 7323).
    pub timestamps: bool,
    /// Use SACK (RFC 2018).
    pub sack: bool,
    /// Use window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Use ECN (RFC 3168).
    pub ecn: bool,
    /// Tell peers how long this side delays ACKs, by an experimental option (RFC 6994) in the first
    /// SYN. Peers that know it retransmit sooner; others ignore it.
    pub tell_ack_delay: bool,
    /// Local ports for [`connect`](crate::Machine::connect) (RFC 6335, 6).
    pub ephemeral: RangeInclusive<u16>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tuning: Tuning::default(),
            mtu: 1500,
            gso_max: 0,
            max_connections: 16_384,
            max_half_open: 1024,
            syn_cookies: true,
            max_time_wait: 16_384,
            time_wait: 60 * Nanos::SECOND,
            max_replies: 256,
            receive_start: 128 << 10,
            receive_max: 4 << 20,
            send_start: 128 << 10,
            send_max: 4 << 20,
            memory: 64 << 20,
            memory_kept: 1 << 20,
            timestamps: true,
            sack: true,
            window_scaling: true,
            ecn: true,
            tell_ack_delay: true,
            ephemeral: 49_152..=65_535,
        }
    }
}

impl Config {
    /// Lowers the limits so that connections and copied data fit into `bytes` of memory, beside an
    /// application: they take a quarter of it, at most.
    pub fn fit_into(&mut self, bytes: u64) {
        let share = usize::try_from(bytes / 8).unwrap_or(usize::MAX);
        self.memory = self.memory.min(share.max(1 << 20));
        self.memory_kept = self.memory_kept.min(self.memory);
        self.max_connections = self.max_connections.min((share / CONNECTION).max(64));
        self.max_time_wait = self.max_time_wait.min((share / CONNECTION).max(64));
    }

    /// What this side says of its ACKs, in milliseconds; 0 for nothing.
    pub(crate) fn told_ack_delay(&self) -> u8 {
        let millis = self.tuning.ack_delay.div_ceil(Nanos::MILLI).max(1);
        if self.tell_ack_delay { u8::try_from(millis).unwrap_or(0) } else { 0 }
    }

    /// Window scale to announce: the smallest that can express the largest window (RFC 7323, 2.3).
    pub(crate) fn window_shift(&self) -> u8 {
        let bits = u32::BITS - self.receive_max.leading_zeros();
        bits.saturating_sub(16).min(14) as u8
    }

    /// Largest payload of a packet without TCP options.
    pub(crate) fn mss(&self, ip_header_len: u16) -> u16 {
        self.mtu.max(576) - ip_header_len - 20
    }
}
