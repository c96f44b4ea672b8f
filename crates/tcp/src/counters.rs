//! Counters: each dropped segment by reason, and the actions of loss recovery.

macro_rules! drops {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// The reason why a segment, or a part of it, was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Drop {
            $(#[doc = $doc] $variant,)*
        }

        impl Drop {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The reason's name in statistics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

drops! {
    NotTcp "not-tcp" "The packet is not TCP.",
    Fragment "fragment" "The packet is a fragment.",
    Truncated "truncated" "A header is cut short or contradicts itself.",
    BadChecksum "bad-checksum" "A checksum is wrong.",
    BadAddress "bad-address" "An address or a port that no peer can have.",
    BadFlags "bad-flags" "Flags that contradict each other.",
    NoConnection "no-connection" "The port has no connection and no listener.",
    ListenNoSyn "listen-no-syn" "To a listener, and neither a SYN nor the end of a handshake.",
    AcceptFull "accept-full" "The listener's accept queue is full.",
    SynQueueFull "syn-queue-full" "The SYN queue is full and cookies are off.",
    ConnectionsFull "connections-full" "There is no room for another connection.",
    RepliesFull "replies-full" "Too many replies wait to be sent.",
    BadCookie "bad-cookie" "An acknowledgment that no SYN cookie explains.",
    Paws "paws" "The timestamp is older than one seen before (RFC 7323, 5.3).",
    OutOfWindow "out-of-window" "No byte is in the receive window.",
    BeyondWindow "beyond-window" "A part lies behind the receive window.",
    BadAck "bad-ack" "It acknowledges what was never sent, or what is long past (RFC 5961, 5).",
    NoAck "no-ack" "It acknowledges nothing, and must.",
    BlindReset "blind-reset" "A reset that is not at the next number (RFC 5961, 3).",
    BadReset "bad-reset" "A reset out of window, or of a handshake that it does not fit.",
    UnexpectedSyn "unexpected-syn" "A SYN within a connection (RFC 5961, 4).",
    AfterClose "after-close" "Data after the end of the stream, or after the application has closed.",
    Duplicate "duplicate" "All of it came before.",
    Ranges "ranges" "Too many gaps between out-of-order data.",
    NoMemory "no-memory" "The pool of blocks is empty.",
    ChallengeLimit "challenge-limit" "A challenge ACK was due, but too many were sent.",
    BadTooBig "bad-too-big" "A \"packet too big\" that fits nothing in flight.",
    TimeWaitReset "time-wait-reset" "A reset of a connection in TIME-WAIT (RFC 1337).",
}

/// What a machine has counted since it was made.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    drops: [u64; Drop::ALL.len()],
    /// Received segments, before merging.
    pub segments_in: u64,
    /// Segments that the machine processed, after merging.
    pub runs_in: u64,
    /// Requests that were sent.
    pub requests_out: u64,
    /// Segments that were sent. Each segment of a request counts.
    pub segments_out: u64,
    /// Payload bytes that were received in order.
    pub bytes_in: u64,
    /// Payload bytes that the application took from the frame itself.
    pub bytes_lent: u64,
    /// Payload bytes that were sent, retransmissions included.
    pub bytes_out: u64,
    /// Payload bytes that were retransmitted.
    pub bytes_retransmitted: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Tail loss probes (RFC 8985, 7).
    pub probes: u64,
    /// How often RACK or three duplicate ACKs found a loss.
    pub recoveries: u64,
    /// Recoveries that proved needless and were undone (RFC 3708).
    pub undone: u64,
    /// Duplicate SACKs that came in (RFC 2883).
    pub duplicate_sacks: u64,
    /// Windows that were reduced for ECN.
    pub ecn_reductions: u64,
    /// Challenge ACKs (RFC 5961).
    pub challenges: u64,
    /// Resets that were sent.
    pub resets_out: u64,
    /// SYN cookies that were sent.
    pub cookies_out: u64,
    /// Connections made from a cookie.
    pub cookies_in: u64,
    /// Connections opened by this side.
    pub opened: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Entries of TIME-WAIT that newer ones evicted.
    pub time_wait_evicted: u64,
    /// Connections that the machine has visited to send. The work list decides this number, not the
    /// number of open connections.
    pub visits: u64,
}

impl Counters {
    /// How many segments were dropped for a reason.
    #[must_use]
    pub const fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }

    /// Returns each reason with a count above 0.
    pub fn drops(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL.iter().map(|reason| (*reason, self.dropped(*reason))).filter(|(_, n)| *n > 0)
    }

    pub(crate) const fn count(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }
}
