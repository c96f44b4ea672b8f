//! What can be set.

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
    /// Nanoseconds of silence before the first probe.
    pub idle: u64,
    /// Nanoseconds between probes.
    pub interval: u64,
    /// Probes without an answer after which the connection is gone.
    pub probes: u8,
}

/// What can be set for each connection. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Least retransmission time-out. RFC 6298 says 1 s; 5 ms suits a switch, 200 ms other
    /// networks.
    pub rto_min: u64,
    /// Most, back-off included (RFC 6298, 2.5).
    pub rto_max: u64,
    /// Before a round trip was measured, that is for SYNs (RFC 6298, 2.1).
    pub rto_initial: u64,
    /// How long an ACK for less than two segments waits for data to travel with (RFC 9293,
    /// 3.8.6.3).
    pub ack_delay: u64,
    /// How long the peer may delay its ACKs, for tail loss probes (RFC 8985, 7.2).
    pub peer_ack_delay: u64,
    /// Time-outs in a row after which the connection is gone.
    pub retries: u8,
    /// SYNs and SYN-ACKs that are sent again.
    pub syn_retries: u8,
    /// How long a connection that the application has closed may still try to deliver.
    pub orphan_timeout: u64,
    /// Nagle's algorithm: a short segment waits while another is not acknowledged (RFC 9293,
    /// 3.7.4).
    pub nagle: bool,
    /// The congestion window starts anew after a time-out's length of silence (RFC 5681, 4.1).
    pub restart_after_idle: bool,
    /// Congestion control.
    pub congestion: Algorithm,
    /// Probes of an idle connection.
    pub keep_alive: Option<KeepAlive>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            rto_min: 5 * Nanos::MILLI,
            rto_max: 60 * Nanos::SECOND,
            rto_initial: Nanos::SECOND,
            ack_delay: Nanos::MILLI,
            peer_ack_delay: 2 * Nanos::MILLI,
            retries: 12,
            syn_retries: 5,
            orphan_timeout: 60 * Nanos::SECOND,
            nagle: false,
            restart_after_idle: false,
            congestion: Algorithm::Cubic,
            keep_alive: None,
        }
    }
}

/// What is set for a machine. Sizes are in bytes, times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// For connections that say nothing else.
    pub tuning: Tuning,
    /// Longest IP packet, at least 576.
    pub mtu: u16,
    /// Most payload of a request of several segments (TSO); 0 if the device takes none.
    pub gso_max: u32,
    /// Most connections. Each takes 4 bytes of a table from the start, the rest when it is there.
    pub max_connections: usize,
    /// Most half-open connections: the SYN queue of all listeners, 64 bytes each.
    pub max_half_open: usize,
    /// SYNs beyond the SYN queue are answered by cookies (RFC 4987, 3.6), else dropped.
    pub syn_cookies: bool,
    /// Most entries in TIME-WAIT, 32 bytes each, and 4 bytes of a table from the start. Newer ones
    /// replace the oldest.
    pub max_time_wait: usize,
    /// How long a connection stays in TIME-WAIT: twice the longest life of a segment.
    pub time_wait: u64,
    /// Most replies without a connection (resets, SYN-ACKs, challenge ACKs) that wait to be sent.
    pub max_replies: usize,
    /// Receive window of a new connection.
    pub receive_start: u32,
    /// Largest receive window.
    pub receive_max: u32,
    /// Least that an application may have unacknowledged; more while the congestion window is
    /// larger.
    pub send_start: u32,
    /// Most that an application may have unacknowledged.
    pub send_max: u32,
    /// Most memory for copied data, of all connections together.
    pub memory: usize,
    /// Of it, what is kept when it is free.
    pub memory_kept: usize,
    /// Use timestamps (RFC 7323).
    pub timestamps: bool,
    /// Use SACK (RFC 2018).
    pub sack: bool,
    /// Use window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Use ECN (RFC 3168).
    pub ecn: bool,
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
            ephemeral: 49_152..=65_535,
        }
    }
}

impl Config {
    /// The shift of announced windows: the least that can say the largest window (RFC 7323, 2.3).
    pub(crate) fn window_shift(&self) -> u8 {
        let bits = u32::BITS - self.receive_max.leading_zeros();
        bits.saturating_sub(16).min(14) as u8
    }

    /// Largest payload of a packet without TCP options.
    pub(crate) fn mss(&self, ip_header_len: u16) -> u16 {
        self.mtu.max(576) - ip_header_len - 20
    }
}
