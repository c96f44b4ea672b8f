//! A connection: its state, and the events that change it.
//!
//! ```text
//!   segments -> input -> acknowledgment -> recovery    acknowledgments of the peer
//!                     -> data                          data of the peer
//!   timers   -> timers                                 expired deadlines
//!   application, all of the above -> output            sends, when the work list reaches this connection
//! ```

mod acknowledgment;
mod application;
mod data;
mod input;
mod output;
mod recovery;
mod timers;

use bitflags::bitflags;

use crate::config::{Config, Tuning};
use crate::congestion::Congestion;
use crate::flow::Flow;
use crate::rack::Rack;
use crate::ranges::Ranges;
use crate::receive::ReceiveBuffer;
use crate::rtt::Rtt;
use crate::scoreboard::Scoreboard;
use crate::send::SendBuffer;
use crate::seq::Seq;
use crate::shared::Shared;
use crate::time::Nanos;

pub(crate) use input::Run;
pub(crate) use timers::Timers;

/// Number of segments in a row that are acknowledged at once. It lets the peer's slow start grow.
const QUICK_ACKS: u8 = 16;
/// Rate limit of challenge ACKs, per second (RFC 5961, 7).
const CHALLENGES: u8 = 10;

/// The states of RFC 9293, 3.3.2. Three have tables elsewhere: LISTEN, SYN-RECEIVED of accepted
/// connections, and TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// Both sides have sent a SYN.
    SynReceived,
    /// Data goes both ways.
    Established,
    /// This side has ended its stream.
    FinWait1,
    /// The peer has acknowledged this side's FIN.
    FinWait2,
    /// The peer has ended its stream.
    CloseWait,
    /// Both sides have ended their streams at the same time.
    Closing,
    /// Both sides have ended their streams, the peer first.
    LastAck,
    /// Closed: segments are not accepted any more. Received data can still be read.
    Closed,
}

/// The reason why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both sides have ended their streams.
    Finished,
    /// The peer has reset the connection.
    Reset,
    /// The peer refused the SYN: its port has no listener.
    Refused,
    /// The peer did not answer.
    TimedOut,
    /// A router or the peer's host said that the peer cannot be reached.
    Unreachable,
    /// The application has aborted it, or closed it before all data was read.
    Aborted,
}

bitflags! {
    /// What has happened to a connection since the application last asked.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Events: u8 {
        /// The handshake of [`connect`](crate::Machine::connect) is done.
        const CONNECTED = 1;
        /// There is data to be read.
        const READABLE = 2;
        /// The send buffer has room again, after a send was refused.
        const WRITABLE = 4;
        /// The peer has ended its stream.
        const PEER_CLOSED = 8;
        /// The connection is closed; see [`close_reason`](crate::Machine::close_reason).
        const CLOSED = 16;
    }
}

bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Marks: u32 {
        /// The connection is on the work list.
        const READY = 1 << 0;
        /// The connection is on the list of connections with events.
        const EVENTS_QUEUED = 1 << 1;
        /// The application has its handle.
        const OWNED = 1 << 2;
        /// The connection is in the table, so segments find it.
        const LINKED = 1 << 3;
        /// The application has ended its stream: a FIN follows the data.
        const FIN_QUEUED = 1 << 4;
        const FIN_SENT = 1 << 5;
        const FIN_ACKED = 1 << 6;
        /// The SYN or SYN-ACK must be sent.
        const SYN_DUE = 1 << 7;
        const ACK_DUE = 1 << 8;
        /// A window probe or keep-alive probe must be sent.
        const PROBE_DUE = 1 << 9;
        /// A tail loss probe must be sent.
        const TAIL_PROBE_DUE = 1 << 10;
        const SACK = 1 << 11;
        const TIMESTAMPS = 1 << 12;
        const ECN = 1 << 13;
        /// Congestion marks arrived: ACKs carry ECE until the peer's CWR (RFC 3168, 6.1.3).
        const ECE = 1 << 14;
        /// The window was reduced: the next data segment carries CWR (RFC 3168, 6.1.2).
        const CWR_DUE = 1 << 15;
        /// The congestion window limits sending.
        const LIMITED = 1 << 16;
        /// A send was refused.
        const WANTS_ROOM = 1 << 17;
        /// Timestamps in use and at least one seen.
        const SCALED = 1 << 18;
    }
}

/// The phases of congestion (RFC 5681, RFC 6675, RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// Lost segments are retransmitted, until this number is acknowledged.
    Recovery(Seq),
    /// After a time-out, until this number is acknowledged.
    Loss(Seq),
    /// The window shrinks for ECN, until this number is acknowledged.
    Reducing(Seq),
}

/// Proportional rate reduction (RFC 6937).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prr {
    delivered: u32,
    out: u32,
    /// Bytes in flight when recovery began.
    start: u32,
}

/// A tail loss probe that is unanswered (RFC 8985, 7.4).
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    end: Seq,
    retransmission: bool,
}

/// State of the sending side.
pub(crate) struct Sender {
    /// SND.UNA, the first unacknowledged number, and SND.NXT, the next to send.
    una: Seq,
    nxt: Seq,
    /// The peer's window in bytes, and the largest that it has announced.
    window: u32,
    max_window: u32,
    /// Sequence and acknowledgment number of the segment that set the window (RFC 9293, 3.3.1: WL1,
    /// WL2).
    wl1: Seq,
    wl2: Seq,
    shift: u8,
    /// Largest payload without options that peer and path allow.
    mss: u16,
    buffer: SendBuffer,
    board: Scoreboard,
    rack: Rack,
    rtt: Rtt,
    congestion: Congestion,
    phase: Phase,
    prr: Prr,
    tail_probe: Option<TailProbe>,
    /// Bytes retransmitted in this recovery that no duplicate SACK has reported.
    undo: Option<u32>,
    duplicate_acks: u32,
    /// When the first time-out was since the peer's last new acknowledgment, or the first probe of
    /// a closed window since the peer was last heard.
    expired: Option<Nanos>,
    /// A timer has retransmitted: a duplicate SACK says that this was needless.
    by_timer: bool,
    /// Probes since the last segment from the peer.
    unanswered: u8,
    last_sent: Nanos,
}

/// State of the receiving side.
pub(crate) struct Receiver {
    nxt: Seq,
    /// The right edge of the announced window; it never moves left.
    edge: Seq,
    shift: u8,
    buffer: ReceiveBuffer,
    ranges: Ranges,
    /// Bytes of the window.
    limit: u32,
    /// Where the peer's stream ends, once known.
    fin: Option<Seq>,
    /// TS.Recent, the time at which it was set, and Last.ACK.sent (RFC 7323, 4.3).
    ts_recent: u32,
    ts_recent_at: Nanos,
    last_ack: Seq,
    /// A duplicate range to report (RFC 2883).
    duplicate: Option<(Seq, Seq)>,
    unacked: u32,
    quick_acks: u8,
    last_heard: Nanos,
    /// Bytes received since `round`; they size the window.
    round_bytes: u32,
    round: Nanos,
}

impl Receiver {
    /// When the peer was last heard.
    pub fn last_heard(&self) -> Nanos {
        self.last_heard
    }
}

pub(crate) struct Connection {
    pub flow: Flow,
    pub index: u32,
    pub generation: u32,
    /// The listener that accepted the connection, plus 1.
    pub listener: u32,
    pub state: State,
    pub marks: Marks,
    pub events: Events,
    pub reason: Option<CloseReason>,
    pub tuning: Tuning,
    iss: Seq,
    timestamp_offset: u32,
    challenges: u8,
    challenge_second: u32,
    pub timers: Timers,
    pub send: Sender,
    pub receive: Receiver,
}

/// The parameters that a handshake has agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub iss: Seq,
    pub irs: Seq,
    pub mss: u16,
    pub shift: Option<u8>,
    pub sack: bool,
    pub ecn: bool,
    pub ts_recent: Option<u32>,
    /// The peer has said that it acknowledges at once.
    pub prompt: bool,
    /// Nanoseconds from SYN-ACK to ACK; 0 if unknown.
    pub rtt: u64,
}

impl Connection {
    /// Makes a connection in SYN-SENT, whose SYN is due.
    pub fn connect(
        flow: Flow,
        generation: u32,
        shared: &Shared,
        tuning: Tuning,
        now: Nanos,
    ) -> Self {
        let iss = shared.secret.initial_seq(&flow, now);
        let mut this = Self::bare(flow, generation, shared, tuning, iss, now);
        this.marks = Marks::SYN_DUE | Marks::OWNED | Marks::LINKED;
        this
    }

    /// Makes a connection whose handshake is done, from the SYN queue or a cookie.
    pub fn accept(
        flow: Flow,
        generation: u32,
        shared: &Shared,
        tuning: Tuning,
        agreed: &Agreed,
        now: Nanos,
    ) -> Self {
        let mut this = Self::bare(flow, generation, shared, tuning, agreed.iss, now);
        this.marks = Marks::LINKED;
        this.negotiate(&shared.config, agreed, now);
        this.send.una = agreed.iss + 1;
        this.state = State::Established;
        if agreed.rtt > 0 {
            this.send.rtt.sample(agreed.rtt, now);
        }
        this
    }

    fn bare(
        flow: Flow,
        generation: u32,
        shared: &Shared,
        tuning: Tuning,
        iss: Seq,
        now: Nanos,
    ) -> Self {
        let config = &shared.config;
        let mss = config.mss(flow.ip_header_len());
        Self {
            flow,
            index: 0,
            generation,
            listener: 0,
            state: State::SynSent,
            marks: Marks::empty(),
            events: Events::empty(),
            reason: None,
            tuning,
            iss,
            timestamp_offset: shared.secret.timestamp_offset(&flow),
            challenges: 0,
            challenge_second: 0,
            timers: Timers::new(),
            send: Sender::new(iss, mss, tuning),
            receive: Receiver::new(config.receive_start, now),
        }
    }

    /// Applies the result of the handshake. The peer's SYN is at `irs`.
    fn negotiate(&mut self, config: &Config, agreed: &Agreed, now: Nanos) {
        self.send.mss = self.send.mss.min(agreed.mss.max(MIN_MSS));
        self.marks.set(Marks::SACK, agreed.sack && config.sack);
        self.marks.set(Marks::ECN, agreed.ecn && config.ecn);
        self.marks.set(Marks::SCALED, agreed.shift.is_some());
        (self.send.shift, self.receive.shift) = match agreed.shift {
            Some(shift) if config.window_scaling => (shift.min(14), config.window_shift()),
            _ => (0, 0),
        };
        if agreed.prompt {
            self.send.rtt.set_prompt(&self.tuning);
        }
        if let Some(value) = agreed.ts_recent {
            self.marks |= Marks::TIMESTAMPS;
            (self.receive.ts_recent, self.receive.ts_recent_at) = (value, now);
        }
        let receive = &mut self.receive;
        receive.nxt = agreed.irs + 1;
        receive.last_ack = receive.nxt;
        receive.edge = receive.nxt + receive.limit.min(0xffff);
        self.send.wl1 = agreed.irs;
        self.send.wl2 = self.iss;
        self.send.congestion = Congestion::new(self.tuning.congestion, self.payload_max());
    }

    /// Largest payload of a segment with the usual options.
    fn payload_max(&self) -> u32 {
        let options = if self.marks.contains(Marks::TIMESTAMPS) { 12 } else { 0 };
        u32::from(self.send.mss) - options
    }

    fn has(&self, mark: Marks) -> bool {
        self.marks.contains(mark)
    }

    /// Puts the connection on the work list.
    pub fn wake(&mut self, shared: &mut Shared) {
        if !self.marks.contains(Marks::READY) {
            self.marks |= Marks::READY;
            shared.ready.push_back(self.index);
        }
    }

    /// Queues events for the application.
    pub fn queue_events(&mut self, shared: &mut Shared, events: Events) {
        self.events |= events;
        if self.marks.contains(Marks::OWNED)
            && !self.marks.contains(Marks::EVENTS_QUEUED)
            && !self.events.is_empty()
        {
            self.marks |= Marks::EVENTS_QUEUED;
            shared.events.push_back((self.index, self.generation));
        }
    }

    fn acknowledge_now(&mut self, shared: &mut Shared) {
        self.marks |= Marks::ACK_DUE;
        self.wake(shared);
    }

    /// Ends the connection: nothing is sent or accepted after this.
    pub fn finish(&mut self, shared: &mut Shared, reason: CloseReason) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        self.reason = Some(reason);
        self.timers.clear();
        self.send.board.clear();
        self.send.buffer.clear(&mut shared.pool);
        self.receive.ranges.clear();
        self.receive.buffer.shrink(&mut shared.pool);
        self.queue_events(shared, Events::CLOSED);
    }

    /// Returns true in the states that accept data from the peer.
    fn is_receiving(&self) -> bool {
        matches!(self.state, State::Established | State::FinWait1 | State::FinWait2)
    }
}

/// Minimum payload of a sent segment, whatever the peer or the path asks for. RFC 9293, 3.7.1 has a
/// default of 536; tiny segments are an attack (CVE-2019-11479).
pub(crate) const MIN_MSS: u16 = 88;

impl Sender {
    fn new(iss: Seq, mss: u16, tuning: Tuning) -> Self {
        Self {
            una: iss,
            nxt: iss + 1,
            window: 0,
            max_window: 0,
            wl1: Seq(0),
            wl2: Seq(0),
            shift: 0,
            mss,
            buffer: SendBuffer::default(),
            board: Scoreboard::default(),
            rack: Rack::new(iss),
            rtt: Rtt::new(&tuning),
            congestion: Congestion::new(tuning.congestion, mss.into()),
            phase: Phase::Open,
            prr: Prr::default(),
            tail_probe: None,
            undo: None,
            duplicate_acks: 0,
            expired: None,
            by_timer: false,
            unanswered: 0,
            last_sent: Nanos(0),
        }
    }

    /// The number after the application's data, which is the FIN's.
    fn data_end(&self) -> Seq {
        self.una + self.buffer.len() as u32
    }

    fn set_window(&mut self, window: u32, seq: Seq, ack: Seq) {
        (self.window, self.wl1, self.wl2) = (window, seq, ack);
        self.max_window = self.max_window.max(window);
    }
}

impl Receiver {
    fn new(limit: u32, now: Nanos) -> Self {
        Self {
            nxt: Seq(0),
            edge: Seq(0),
            shift: 0,
            buffer: ReceiveBuffer::default(),
            ranges: Ranges::default(),
            limit,
            fin: None,
            ts_recent: 0,
            ts_recent_at: now,
            last_ack: Seq(0),
            duplicate: None,
            unacked: 0,
            quick_acks: QUICK_ACKS,
            last_heard: now,
            round_bytes: 0,
            round: now,
        }
    }
}
