//! The control connection's format: a byte for each state, and JSON with its length before it.

use serde_json::{Value, json};
use tcp::Bytes;

/// Bytes of a cookie: 36 letters and a zero byte.
pub const COOKIE: usize = 37;
/// The maximum number of bytes of a JSON text. The stack offers a message in one piece up to 16
/// KiB.
const MAX_JSON: usize = (16 << 10) - 4;
/// The maximum number of streams of a test in one direction, as in iperf3.
pub const MAX_STREAMS: usize = 128;
/// The maximum number of bytes of a piece that a sender writes at once.
const MAX_PIECE: usize = 1 << 20;
/// Bytes of a piece by default.
pub const PIECE: usize = 128 << 10;
/// Bytes of a datagram by default, and the least, which holds its header.
pub const DATAGRAM: usize = 1448;
const MIN_DATAGRAM: usize = 16;

/// The states that one end tells the other (`iperf_api.h`).
pub mod state {
    pub const TEST_START: u8 = 1;
    pub const TEST_RUNNING: u8 = 2;
    pub const TEST_END: u8 = 4;
    pub const PARAM_EXCHANGE: u8 = 9;
    pub const CREATE_STREAMS: u8 = 10;
    pub const SERVER_TERMINATE: u8 = 11;
    pub const EXCHANGE_RESULTS: u8 = 13;
    pub const DISPLAY_RESULTS: u8 = 14;
    pub const IPERF_DONE: u8 = 16;
    pub const ACCESS_DENIED: u8 = (-1i8).cast_unsigned();
    pub const SERVER_ERROR: u8 = (-2i8).cast_unsigned();
}

/// iperf3's number for what is not implemented (`IEUNIMP`).
const UNIMPLEMENTED: u32 = 13;

/// A server's answer to a test that it cannot do.
pub fn refusal() -> Bytes {
    let mut bytes = vec![state::SERVER_ERROR];
    bytes.extend([UNIMPLEMENTED, 0].into_iter().flat_map(u32::to_be_bytes));
    bytes.into()
}

/// A JSON text at the start of `data`.
#[derive(Clone, Debug, PartialEq)]
pub enum Text {
    /// The text is not complete.
    Part,
    /// The text is too long, or no JSON.
    Wrong,
    /// The bytes that it takes, and what it says.
    Whole(usize, Value),
}

impl Text {
    pub fn read(data: &[u8]) -> Self {
        let Some((len, rest)) = data.split_first_chunk() else { return Self::Part };
        let len = u32::from_be_bytes(*len) as usize;
        match rest.get(..len) {
            _ if len > MAX_JSON => Self::Wrong,
            None => Self::Part,
            Some(text) => match serde_json::from_slice(text) {
                Ok(value @ Value::Object(_)) => Self::Whole(4 + len, value),
                _ => Self::Wrong,
            },
        }
    }
}

/// A JSON text with its length before it.
pub fn write(value: &Value) -> Bytes {
    let text = value.to_string();
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.into()
}

/// Settings of a test over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Bits a second of each stream; 0 for no limit.
    pub rate: u64,
    /// Datagrams have counters of 64 bits.
    pub wide: bool,
}

impl Default for Udp {
    fn default() -> Self {
        Self { rate: 1 << 20, wide: false }
    }
}

/// What a client wants to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Streams in each direction.
    pub parallel: usize,
    /// The server sends.
    pub reverse: bool,
    /// Both send.
    pub both: bool,
    /// Bytes of a sender's piece.
    pub piece: usize,
    /// Seconds, as far as the client says.
    pub seconds: u64,
    /// Settings of a test over UDP. Then `piece` is the length of a datagram.
    pub udp: Option<Udp>,
}

impl Params {
    /// Reads a client's parameters; `None` if this is no test over TCP or UDP, or too large.
    #[must_use]
    pub fn read(value: &Value) -> Option<Self> {
        let flag = |name: &str| value[name].as_bool().unwrap_or(false);
        let number = |name: &str| value[name].as_u64();
        let parallel = usize::try_from(number("parallel").unwrap_or(1)).ok()?;
        let (tcp, udp) = (flag("tcp"), flag("udp"));
        if tcp == udp || flag("sctp") || !(1..=MAX_STREAMS).contains(&parallel) {
            return None;
        }
        let len = number("len").and_then(|len| usize::try_from(len).ok());
        let (udp, piece) = match udp {
            false => (None, len.filter(|len| (1..=MAX_PIECE).contains(len)).unwrap_or(PIECE)),
            true => {
                // iperf3 looks whether it is there.
                let wide = value.get("udp_counters_64bit").is_some();
                // A client leaves it out for a test without a limit.
                let rate = number("bandwidth").unwrap_or(0);
                (Some(Udp { rate, wide }), len.unwrap_or(DATAGRAM))
            }
        };
        if udp.is_some() && !(MIN_DATAGRAM..=u16::MAX.into()).contains(&piece) {
            return None;
        }
        Some(Self {
            parallel,
            reverse: flag("reverse"),
            both: flag("bidirectional"),
            piece,
            seconds: number("time").unwrap_or(10).min(86_400),
            udp,
        })
    }

    /// As a client sends them.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut value = json!({
            "omit": 0, "time": self.seconds, "num": 0, "blockcount": 0,
            "parallel": self.parallel, "len": self.piece, "pacing_timer": 1000,
            "client_version": "3.12",
        });
        let flags = [("reverse", self.reverse), ("bidirectional", self.both)];
        let protocols = [("tcp", self.udp.is_none()), ("udp", self.udp.is_some())];
        for (name, _) in flags.into_iter().chain(protocols).filter(|(_, set)| *set) {
            value[name] = true.into();
        }
        if let Some(Udp { rate, wide }) = self.udp {
            if rate > 0 {
                value["bandwidth"] = rate.into();
            }
            if wide {
                value["udp_counters_64bit"] = 1.into();
            }
        }
        value
    }

    /// Returns for each stream, in order, whether this end sends. `server`: it is the server.
    pub fn directions(&self, server: bool) -> Vec<bool> {
        let one = |sends: bool| std::iter::repeat_n(sends, self.parallel);
        match self.both {
            true => one(!server).chain(one(server)).collect(),
            false => one(server == self.reverse).collect(),
        }
    }
}

/// What an end has counted on a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamResult {
    /// iperf3's number of the stream: 1, 3, 4 and so on.
    pub id: u64,
    /// Bytes that it has sent or received.
    pub bytes: u64,
    /// Over UDP: the highest number of a datagram that it has sent or received.
    pub packets: u64,
    /// Over UDP: datagrams that its receiver misses.
    pub lost: u64,
    /// Over UDP: the jitter at its receiver, in seconds.
    pub jitter: f64,
}

/// What an end says after a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Percent of a core that it has taken.
    pub cpu: f64,
    /// Its streams.
    pub streams: Vec<StreamResult>,
}

/// iperf3's number of the stream at this place.
pub fn number(index: usize) -> u64 {
    if index == 0 { 1 } else { index as u64 + 2 }
}

impl Results {
    /// Reads the other end's; `None` if something is missing.
    #[must_use]
    pub fn read(value: &Value) -> Option<Self> {
        let stream = |value: &Value| {
            // iperf3 counts in numbers with a sign.
            let count = |name: &str| value[name].as_u64().unwrap_or(0);
            let jitter = value["jitter"].as_f64().unwrap_or(0.0);
            let (id, bytes) = (value["id"].as_u64()?, value["bytes"].as_u64()?);
            Some(StreamResult {
                id,
                bytes,
                packets: count("packets"),
                lost: count("errors"),
                jitter,
            })
        };
        let streams = value["streams"].as_array()?;
        if streams.len() > 2 * MAX_STREAMS {
            return None;
        }
        let streams = streams.iter().map(stream).collect::<Option<_>>()?;
        Some(Self { cpu: value["cpu_util_total"].as_f64()?, streams })
    }

    /// As an end sends them; `seconds` is the length of the test.
    #[must_use]
    pub fn json(&self, seconds: f64) -> Value {
        let stream = |of: &StreamResult| {
            json!({
                "id": of.id, "bytes": of.bytes, "retransmits": -1, "jitter": of.jitter,
                "errors": of.lost, "packets": of.packets, "start_time": 0, "end_time": seconds,
            })
        };
        json!({
            "cpu_util_total": self.cpu, "cpu_util_user": self.cpu, "cpu_util_system": 0,
            "sender_has_retransmits": 0, "congestion_used": "cubic",
            "streams": self.streams.iter().map(stream).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_whole_or_refused() {
        let text = write(&json!({"tcp": true}));
        assert_eq!(Text::read(&text[..3]), Text::Part);
        assert_eq!(Text::read(&text[..text.len() - 1]), Text::Part);
        assert!(matches!(Text::read(&text), Text::Whole(len, _) if len == text.len()));
        for wrong in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x01x", b"\0\0\0\x02[]", b"\0\0\0\0"] {
            assert_eq!(Text::read(wrong), Text::Wrong, "{wrong:?}");
        }
    }

    #[test]
    fn parameters_and_results_are_read_as_they_were_written() {
        let params =
            Params { parallel: 3, reverse: true, piece: 1000, seconds: 2, ..Params::default() };
        assert_eq!(Params::read(&params.json()), Some(params));
        assert_eq!(params.directions(true), [true; 3]);
        let both = Params { both: true, reverse: false, parallel: 1, ..params };
        assert_eq!(
            (both.directions(true), both.directions(false)),
            (vec![false, true], vec![true, false])
        );
        let udp = Some(Udp { rate: 5_000_000, wide: true });
        let over_udp = Params { udp, ..params };
        assert_eq!(Params::read(&over_udp.json()), Some(over_udp));
        for wrong in [
            json!({"tcp": true, "udp": true}),
            json!({"tcp": true, "parallel": 129}),
            json!({"udp": true, "len": 15}),
            json!({"udp": true, "len": 65_536}),
            json!({"udp": true, "sctp": true}),
            json!({}),
        ] {
            assert_eq!(Params::read(&wrong), None, "{wrong}");
        }
        let plain = Params::read(&json!({"udp": true})).unwrap();
        assert_eq!((plain.udp, plain.piece), (Some(Udp { rate: 0, wide: false }), DATAGRAM));
        let datagrams = StreamResult { packets: 9, lost: 2, jitter: 0.25, ..Default::default() };
        let streams = vec![
            StreamResult { id: number(0), bytes: 7, ..datagrams },
            StreamResult { id: number(1), bytes: 8, ..Default::default() },
        ];
        let results = Results { cpu: 12.5, streams };
        assert_eq!(Results::read(&results.json(1.0)), Some(results));
        assert_eq!([number(0), number(1), number(2)], [1, 3, 4]);
    }
}
