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
const MAX_PIECE: u64 = 1 << 20;
/// Bytes of a piece by default.
pub const PIECE: usize = 128 << 10;

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
}

impl Params {
    /// Reads a client's parameters; `None` if this is no test over TCP, or too large.
    #[must_use]
    pub fn read(value: &Value) -> Option<Self> {
        let flag = |name: &str| value[name].as_bool().unwrap_or(false);
        let number = |name: &str| value[name].as_u64();
        let parallel = usize::try_from(number("parallel").unwrap_or(1)).ok()?;
        let is_tcp = flag("tcp") && !flag("udp") && !flag("sctp");
        if !is_tcp || !(1..=MAX_STREAMS).contains(&parallel) {
            return None;
        }
        let piece = number("len").filter(|len| (1..=MAX_PIECE).contains(len));
        Some(Self {
            parallel,
            reverse: flag("reverse"),
            both: flag("bidirectional"),
            piece: piece.map_or(PIECE, |len| len as usize),
            seconds: number("time").unwrap_or(10).min(86_400),
        })
    }

    /// As a client sends them.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut value = json!({
            "tcp": true, "omit": 0, "time": self.seconds, "num": 0, "blockcount": 0,
            "parallel": self.parallel, "len": self.piece, "pacing_timer": 1000,
            "client_version": "3.12",
        });
        for (name, set) in [("reverse", self.reverse), ("bidirectional", self.both)] {
            if set {
                value[name] = true.into();
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
            Some(StreamResult { id: value["id"].as_u64()?, bytes: value["bytes"].as_u64()? })
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
                "id": of.id, "bytes": of.bytes, "retransmits": -1, "jitter": 0, "errors": 0,
                "packets": 0, "start_time": 0, "end_time": seconds,
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
        let params = Params { parallel: 3, reverse: true, both: false, piece: 1000, seconds: 2 };
        assert_eq!(Params::read(&params.json()), Some(params));
        assert_eq!(params.directions(true), [true; 3]);
        let both = Params { both: true, reverse: false, parallel: 1, ..params };
        assert_eq!(
            (both.directions(true), both.directions(false)),
            (vec![false, true], vec![true, false])
        );
        for wrong in [json!({"udp": true}), json!({"tcp": true, "parallel": 129}), json!({})] {
            assert_eq!(Params::read(&wrong), None, "{wrong}");
        }
        let streams = vec![
            StreamResult { id: number(0), bytes: 7 },
            StreamResult { id: number(1), bytes: 8 },
        ];
        let results = Results { cpu: 12.5, streams };
        assert_eq!(Results::read(&results.json(1.0)), Some(results));
        assert_eq!([number(0), number(1), number(2)], [1, 3, 4]);
    }
}
