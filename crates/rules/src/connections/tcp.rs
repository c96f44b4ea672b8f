//! States of connections and how long each lasts: Linux's `nf_conntrack`, by default.

use frame::{Protocol, tcp_flags};

use super::Tuple;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// No packet came back; other protocols than TCP.
    New = 1,
    /// Packets went both ways; other protocols than TCP.
    Answered,
    /// TCP: a SYN was sent.
    SynSent,
    /// TCP: a SYN and an ACK came back.
    SynReceived,
    /// TCP: established.
    Established,
    /// TCP: one side has sent a FIN.
    FinWait,
    /// TCP: that FIN is acknowledged.
    CloseWait,
    /// TCP: the other side has sent its FIN, too.
    LastAck,
    /// TCP: both are acknowledged.
    TimeWait,
    /// TCP: reset.
    Closed,
    /// TCP: both sides have sent a SYN.
    SynSent2,
}

use State::{
    CloseWait, Closed, Established, FinWait, LastAck, SynReceived, SynSent, SynSent2, TimeWait,
};

/// A packet leaves the state as it is.
const SAME: Option<Next> = Some(Next::Same);
/// A packet does not belong to the connection.
const NOT: Option<Next> = None;

#[derive(Clone, Copy)]
enum Next {
    Same,
    To(State),
    /// The connection begins again.
    Again,
}

const fn to(state: State) -> Option<Next> {
    Some(Next::To(state))
}

/// Rows: SYN, SYN and ACK, FIN, ACK, RST. Columns: [`State`] from `SynSent` on. A SYN for a closed
/// connection begins another one, which the rules judge.
type Table = [[Option<Next>; 9]; 5];

const ORIGINAL: Table = {
    let again = Some(Next::Again);
    [
        [to(SynSent), SAME, SAME, SAME, SAME, SAME, again, again, to(SynSent2)],
        [NOT, to(SynReceived), NOT, NOT, NOT, NOT, NOT, NOT, to(SynReceived)],
        [
            NOT,
            to(FinWait),
            to(FinWait),
            to(LastAck),
            to(LastAck),
            to(LastAck),
            to(TimeWait),
            to(Closed),
            NOT,
        ],
        [
            NOT,
            to(Established),
            to(Established),
            to(CloseWait),
            to(CloseWait),
            to(TimeWait),
            to(TimeWait),
            to(Closed),
            NOT,
        ],
        [to(Closed); 9],
    ]
};
const REPLY: Table = {
    let again = Some(Next::Again);
    [
        [to(SynSent2), NOT, NOT, NOT, NOT, NOT, again, NOT, to(SynSent2)],
        [to(SynReceived), SAME, SAME, SAME, SAME, SAME, SAME, SAME, to(SynReceived)],
        [
            NOT,
            to(FinWait),
            to(FinWait),
            to(LastAck),
            to(LastAck),
            to(LastAck),
            to(TimeWait),
            to(Closed),
            NOT,
        ],
        [
            SAME,
            to(SynReceived),
            to(Established),
            to(CloseWait),
            to(CloseWait),
            to(TimeWait),
            to(TimeWait),
            to(Closed),
            SAME,
        ],
        [to(Closed); 9],
    ]
};

/// The row of these flags; `None` if they are those of no segment.
fn row(flags: u8) -> Option<usize> {
    let has = |flag: u8| flags & flag != 0;
    match (has(tcp_flags::RST), has(tcp_flags::SYN), has(tcp_flags::FIN), has(tcp_flags::ACK)) {
        (true, ..) => Some(4),
        (_, true, false, false) => Some(0),
        (_, true, false, true) => Some(1),
        (_, false, true, true) => Some(2),
        (_, false, false, true) => Some(3),
        _ => None,
    }
}

impl State {
    const ALL: [Self; 11] = [
        Self::New,
        Self::Answered,
        SynSent,
        SynReceived,
        Established,
        FinWait,
        CloseWait,
        LastAck,
        TimeWait,
        Closed,
        SynSent2,
    ];

    /// The state with this number.
    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The state after the first packet; `None` if none begins with it. A TCP connection may begin
    /// in its middle, as after a restart.
    pub(super) fn first(tuple: &Tuple) -> Option<Self> {
        match Protocol(tuple.protocol) {
            _ if tuple.related || tuple.is_reply_message() => None,
            Protocol::TCP => match row(tuple.flags)? {
                0 => Some(SynSent),
                3 => Some(Established),
                _ => None,
            },
            _ => Some(Self::New),
        }
    }

    /// The state after a packet; `None` if the packet does not belong to the connection.
    pub(super) fn next(self, tuple: &Tuple, forward: bool) -> Option<Self> {
        if Protocol(tuple.protocol) != Protocol::TCP {
            return match (self, forward, tuple.is_reply_message()) {
                // Only the asked may answer.
                (_, true, true) => None,
                (Self::New, true, _) => Some(Self::New),
                (_, false, false) if tuple.is_query() => None,
                _ => Some(Self::Answered),
            };
        }
        let column = (self as usize).checked_sub(SynSent as usize)?;
        let table = if forward { &ORIGINAL } else { &REPLY };
        match table[row(tuple.flags)?][column]? {
            Next::Same => Some(self),
            Next::To(state) => Some(state),
            Next::Again => None,
        }
    }

    /// True once a packet came back.
    #[must_use]
    pub fn is_answered(self) -> bool {
        !matches!(self, Self::New | SynSent)
    }

    /// Seconds that it lasts without a packet.
    pub(super) fn seconds(self, protocol: u8) -> u32 {
        match self {
            Self::New | Self::Answered => match Protocol(protocol) {
                Protocol::UDP if self == Self::New => 30,
                Protocol::UDP => 120,
                Protocol::ICMP | Protocol::ICMPV6 => 30,
                _ => 600,
            },
            SynSent | SynSent2 | FinWait | TimeWait => 120,
            SynReceived | CloseWait => 60,
            Established => 432_000,
            LastAck => 30,
            Closed => 10,
        }
    }

    /// The name, as Linux shows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "UNREPLIED",
            Self::Answered => "REPLIED",
            SynSent => "SYN_SENT",
            SynReceived => "SYN_RECV",
            Established => "ESTABLISHED",
            FinWait => "FIN_WAIT",
            CloseWait => "CLOSE_WAIT",
            LastAck => "LAST_ACK",
            TimeWait => "TIME_WAIT",
            Closed => "CLOSE",
            SynSent2 => "SYN_SENT2",
        }
    }
}
