//! Requests at the attach socket: what a client may ask, and how it is checked.

use std::os::fd::AsFd;

use dataplane::config::RingAttach;
use frame::OffloadSet;
use jail::strangers::Descriptor;
use netring::Monitor;
use netring::attach::{Request, VERSION, flags, op};
use netring::layout::{Geometry, RingSpec, carried};
use rustix::io::Errno;
use shmem::Memfd;
use topology::{PORT_NAME, SWITCH_NAME, check_name};
use zerocopy::FromBytes;

use crate::api::{ApiError, ErrorCode};
use crate::daemon::pipes::end::{End, EndRings, PipeLayout, PipeName};

/// Bytes of a pipe's id.
const PIPE_ID: usize = 15;

/// How a client wants a port opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// The traffic that a monitor gets copies of; `None` opens the port itself.
    pub monitor: Option<Monitor>,
    /// The request fails if the switch does not exist.
    pub existing: bool,
    /// The client uses netmap's interface, whose programs expect VALE's rules for a port made for
    /// them.
    pub netmap: bool,
}

/// A client's request, validated.
#[derive(Debug)]
pub enum Ask {
    /// Open a port, or a monitor of one.
    Open {
        /// The switch.
        switch: String,
        /// The port.
        port: String,
        /// How.
        how: How,
        /// The rings in the region.
        ring: RingAttach,
        /// The region.
        memory: Lent,
    },
    /// Make a pipe and open an end of it.
    MakePipe {
        /// Its name.
        name: PipeName,
        /// The end.
        end: End,
        /// The rings in the region.
        layout: PipeLayout,
        /// The region.
        memory: Lent,
    },
    /// Name the port that comes after this one.
    Next {
        /// The name of the port before it; empty for the first port.
        after: String,
    },
    /// Join a trusted switch.
    Join {
        /// Its name.
        switch: String,
    },
    /// Find an open port of a trusted switch.
    Member {
        /// The switch.
        switch: String,
        /// The port.
        port: String,
    },
    /// Open an end of a pipe.
    OpenPipe {
        /// Its name.
        name: PipeName,
        /// The end.
        end: End,
        /// The bits of the requests that the client supports.
        offloads: OffloadSet,
    },
}

/// A client's memory file, sealed against resizing.
#[derive(Debug)]
pub struct Lent {
    /// The file.
    pub file: Descriptor,
    /// Its bytes.
    pub len: usize,
}

pub(super) fn bad(reason: impl Into<String>, remedy: &str) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, reason, remedy)
}

/// Validates a client's message: its size, names, descriptors and the geometry of its region. Reads
/// nothing but its arguments.
///
/// # Errors
/// Names the first mistake.
pub fn parse_request(bytes: &[u8], fds: Vec<Descriptor>) -> Result<Ask, ApiError> {
    let request = Request::read_from_bytes(bytes).map_err(|_| {
        let reason = format!("A request has {} bytes, not {}", bytes.len(), size_of::<Request>());
        bad(reason, "use the client library of this version of toklat")
    })?;
    if request.version != VERSION {
        let reason = format!("Version {} of the attach protocol is not {VERSION}", request.version);
        return Err(bad(reason, "use the client library of this version of toklat"));
    }
    let known = flags::MONITOR_TX
        | flags::MONITOR_RX
        | flags::EXCLUSIVE
        | flags::EXISTING
        | flags::UNLIMITED;
    let unknown = request.offloads & !u32::from(OffloadSet::ALL.bits()) != 0;
    if request.flags & !known != 0 || unknown {
        return Err(bad("Unknown flags are set", "set the flags of netring::attach::flags only"));
    }
    let name =
        request.name().ok_or_else(|| bad("The name is not valid UTF-8", "use switch:port"))?;
    match request.op {
        op::OPEN => parse_open(&request, name, fds),
        op::JOIN | op::MEMBER if fds.is_empty() => parse_member(request.op, name),
        op::NEXT if fds.is_empty() => Ok(Ask::Next { after: name.to_owned() }),
        op::MAKE_PIPE => {
            let (name, end) = parse_pipe_name(name)?;
            let memory = one_memory(fds)?;
            let layout = check_pipe(&request, &memory)?;
            Ok(Ask::MakePipe { name, end, layout, memory })
        }
        op::OPEN_PIPE => {
            let (name, end) = parse_pipe_name(name)?;
            if !fds.is_empty() {
                return Err(bad(
                    "The other end of a pipe is opened without descriptors",
                    "send none",
                ));
            }
            Ok(Ask::OpenPipe { name, end, offloads: offloads(&request) })
        }
        other => {
            Err(bad(format!("There is no operation {other}"), "use one of netring::attach::op"))
        }
    }
}

/// A process asks for a part of a trusted switch.
fn parse_member(op: u16, name: &str) -> Result<Ask, ApiError> {
    let (switch, port) = name.split_once(':').unwrap_or((name, ""));
    check_name(switch, SWITCH_NAME)?;
    let (switch, port) = (switch.to_owned(), port.to_owned());
    Ok(if op == op::JOIN { Ask::Join { switch } } else { Ask::Member { switch, port } })
}

fn parse_open(request: &Request, name: &str, fds: Vec<Descriptor>) -> Result<Ask, ApiError> {
    let remedy = "use switch:port, such as vale0:p1";
    let (switch, port) =
        name.split_once(':').ok_or_else(|| bad(format!("{name:?} names no port"), remedy))?;
    let (port, letters) = port.split_once('/').unwrap_or((port, ""));
    check_name(switch, SWITCH_NAME)?;
    check_name(port, PORT_NAME)?;
    if letters.chars().any(|c| !matches!(c, 'r' | 't' | 'x')) {
        return Err(bad(
            format!("Unknown letters in /{letters}"),
            "use /t, /r or /rt for monitors",
        ));
    }
    let sent = request.flags & flags::MONITOR_TX != 0 || letters.contains('t');
    let received = request.flags & flags::MONITOR_RX != 0 || letters.contains('r');
    let monitor = Monitor::of(sent, received);
    let memory = one_memory(fds)?;
    let Request { geometry, tx, rx, buf_usable, .. } = *request;
    check_region(&geometry, &memory, buf_usable, &[tx, rx])?;
    if tx.rings + rx.rings == 0 || (monitor.is_some() && rx.rings == 0) {
        return Err(bad(
            "The port has no rings",
            "give it a ring at least; monitors need receive rings",
        ));
    }
    if monitor.is_some() && tx.rings != 0 {
        return Err(bad("A monitor has send rings", "open it with receive rings only"));
    }
    let offloads = carried(offloads(request), buf_usable, &rx);
    let ring = RingAttach { geometry, tx, rx, buf_usable, supervised: false, offloads };
    let existing = request.flags & flags::EXISTING != 0;
    let how = How { monitor, existing, netmap: request.flags & flags::UNLIMITED != 0 };
    Ok(Ask::Open { switch: switch.into(), port: port.into(), how, ring, memory })
}

fn offloads(request: &Request) -> OffloadSet {
    OffloadSet::from_bits(request.offloads as u8)
}

fn parse_pipe_name(name: &str) -> Result<(PipeName, End), ApiError> {
    let wrong = || bad(format!("{name:?} names no end of a pipe"), "use vale0:p{1 and vale0:p}1");
    let at = name.find(['{', '}']).ok_or_else(wrong)?;
    let end = if name[at..].starts_with('{') { End::Master } else { End::Slave };
    let (parent, id) = (&name[..at], &name[at + 1..]);
    let (switch, port) = parent.split_once(':').map_or((None, parent), |(s, p)| (Some(s), p));
    if let Some(switch) = switch {
        check_name(switch, SWITCH_NAME)?;
    }
    check_name(port, PORT_NAME)?;
    check_name(id, PIPE_ID)?;
    Ok(((parent.into(), id.into()), end))
}

fn one_memory(fds: Vec<Descriptor>) -> Result<Lent, ApiError> {
    let fds = <[Descriptor; 1]>::try_from(fds).map_err(|fds| {
        let reason = format!("{} descriptors came with the request", fds.len());
        bad(reason, "send one: the region's memory file")
    })?;
    let [file] = fds;
    let len = Memfd::sealed_len(file.as_fd());
    let len = len.map_err(|e| bad(e.to_string(), "make it with memfd_create, and seal it"))?;
    Ok(Lent { file, len })
}

fn check_region(
    geometry: &Geometry,
    memory: &Lent,
    buf_usable: u32,
    rings: &[RingSpec],
) -> Result<(), ApiError> {
    let wrong =
        |e: netring::layout::GeometryError| bad(e.to_string(), "see netring::layout for limits");
    geometry.check(memory.len).map_err(wrong)?;
    if !(64..=geometry.buf_size).contains(&buf_usable) {
        let reason = format!("Buffers of {} bytes cannot hold {buf_usable}", geometry.buf_size);
        return Err(bad(reason, "use 64 up to the buffers' distance"));
    }
    for spec in rings {
        spec.check(geometry).map_err(wrong)?;
    }
    let end = |spec: &RingSpec| spec.first + spec.rings;
    let overlap = |a: &RingSpec, b: &RingSpec| a.first < end(b) && b.first < end(a);
    for (i, a) in rings.iter().enumerate() {
        if rings[..i].iter().any(|b| a.rings > 0 && b.rings > 0 && overlap(a, b)) {
            return Err(bad("A ring is used twice", "give each direction rings of its own"));
        }
    }
    Ok(())
}

fn check_pipe(request: &Request, memory: &Lent) -> Result<PipeLayout, ApiError> {
    let Request { geometry, tx, rx, peer_tx, peer_rx, buf_usable, .. } = *request;
    check_region(&geometry, memory, buf_usable, &[tx, rx, peer_tx, peer_rx])?;
    let twins =
        |a: RingSpec, b: RingSpec| a.rings == b.rings && (a.rings == 0 || a.slots == b.slots);
    if !twins(tx, peer_rx) || !twins(rx, peer_tx) || tx.rings + rx.rings == 0 {
        let remedy = "each send ring has a receive ring of the other end, of the same size";
        return Err(bad("The rings of the pipe's ends do not match", remedy));
    }
    let rings = [EndRings { tx, rx }, EndRings { tx: peer_tx, rx: peer_rx }];
    let wanted = offloads(request);
    let both = carried(carried(wanted, buf_usable, &rx), buf_usable, &peer_rx);
    Ok(PipeLayout { geometry, rings, buf_usable, offloads: both })
}

/// The errno with which netmap's clients know an error.
#[must_use]
pub fn errno(code: ErrorCode) -> i32 {
    match code {
        ErrorCode::BadRequest | ErrorCode::MethodNotAllowed | ErrorCode::TooLarge => Errno::INVAL,
        ErrorCode::NotFound => Errno::NOENT,
        ErrorCode::Exists => Errno::EXIST,
        ErrorCode::Busy | ErrorCode::Stale => Errno::BUSY,
        ErrorCode::Forbidden => Errno::ACCESS,
        ErrorCode::NeedsPrivilege => Errno::PERM,
        ErrorCode::Limit => Errno::NOSPC,
        ErrorCode::DataProcess => Errno::NETDOWN,
        ErrorCode::System => Errno::IO,
    }
    .raw_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Pages;
    use zerocopy::IntoBytes;

    const GEOMETRY: Geometry = Geometry {
        if_size: 1024,
        if_num: 1,
        ring_size: 4352,
        ring_num: 4,
        buf_size: 2112,
        buf_num: 1100,
    };

    fn request(op: u16, name: &str) -> Request {
        let spec = |first| RingSpec { first, rings: 1, slots: 256 };
        Request {
            geometry: GEOMETRY,
            tx: spec(0),
            rx: spec(1),
            peer_tx: spec(2),
            peer_rx: spec(3),
            buf_usable: 2048,
            ..Request::new(op, name)
        }
    }

    fn region() -> Vec<Descriptor> {
        let len = GEOMETRY.file_size() as usize;
        vec![Memfd::create("region", len, Pages::Small).unwrap().into_fd().into()]
    }

    fn refusal(request: Request, fds: Vec<Descriptor>) -> String {
        let error = parse_request(request.as_bytes(), fds).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadRequest);
        assert!(!error.remedy.is_empty());
        error.reason
    }

    #[test]
    fn a_port_a_monitor_and_both_ends_of_a_pipe_are_understood() {
        let ask = parse_request(request(op::OPEN, "vale0:p1").as_bytes(), region()).unwrap();
        assert!(matches!(ask, Ask::Open { switch, port, how, .. }
            if switch == "vale0" && port == "p1" && how == How::default()));
        let by_flag = Request { flags: flags::EXISTING, ..request(op::OPEN, "vale0:p1") };
        let ask = parse_request(by_flag.as_bytes(), region()).unwrap();
        assert!(matches!(
            ask,
            Ask::Open { how: How { monitor: None, existing: true, netmap: false }, .. }
        ));
        let mute = |name| Request { tx: RingSpec::default(), ..request(op::OPEN, name) };
        let ask = parse_request(mute("vale0:p1/r").as_bytes(), region()).unwrap();
        assert!(matches!(ask, Ask::Open { how, .. } if how.monitor == Some(Monitor::Received)));
        let by_flag = Request { flags: flags::MONITOR_TX, ..mute("vale0:p1") };
        let ask = parse_request(by_flag.as_bytes(), region()).unwrap();
        assert!(matches!(ask, Ask::Open { how, .. } if how.monitor == Some(Monitor::Sent)));
        let ask = parse_request(request(op::MAKE_PIPE, "vale0:p{x").as_bytes(), region()).unwrap();
        assert!(matches!(ask, Ask::MakePipe { end: End::Master, name, .. } if name.1 == "x"));
        let ask = parse_request(request(op::OPEN_PIPE, "p}1").as_bytes(), vec![]).unwrap();
        assert!(matches!(ask, Ask::OpenPipe { end: End::Slave, name, .. } if name.0 == "p"));
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let open = request(op::OPEN, "vale0:p1");
        for (wrong, what) in [
            (Request { version: 9, ..open }, "Version 9"),
            (Request { op: 77, ..open }, "operation 77"),
            (Request { flags: 1, ..open }, "flags"),
            (Request { offloads: 32, ..open }, "flags"),
            (Request { name: [0xff; 64], ..open }, "UTF-8"),
            (request(op::OPEN, "vale0"), "names no port"),
            (request(op::OPEN, "va/le:p"), "not a name"),
            (request(op::OPEN, "vale0:../p"), "not a name"),
            (request(op::OPEN, "vale0:p/q"), "letters"),
            (request(op::OPEN, "vale0:p/t"), "A monitor has send rings"),
            (request(op::MAKE_PIPE, "vale0:p"), "end of a pipe"),
            (request(op::MAKE_PIPE, "vale0:p{{"), "not a name"),
            (Request { buf_usable: 4096, ..open }, "cannot hold"),
            (Request { rx: open.tx, ..open }, "used twice"),
            (Request { tx: RingSpec::default(), rx: RingSpec::default(), ..open }, "no rings"),
            (Request { geometry: Geometry { buf_num: 1 << 20, ..GEOMETRY }, ..open }, "buf_num"),
            (Request { geometry: Geometry { buf_num: 5000, ..GEOMETRY }, ..open }, "shorter"),
            (Request { tx: RingSpec { first: u32::MAX, ..open.tx }, ..open }, "ring number"),
        ] {
            let reason = refusal(wrong, region());
            assert!(reason.contains(what), "{reason} says nothing of {what}");
        }
        let uneven = RingSpec { slots: 128, ..open.tx };
        let pipe = Request { tx: uneven, ..request(op::MAKE_PIPE, "p{1") };
        assert!(refusal(pipe, region()).contains("do not match"));
    }

    #[test]
    fn wrong_descriptors_and_sizes_are_refused() {
        let open = request(op::OPEN, "vale0:p1");
        assert!(refusal(open, vec![]).contains("0 descriptors"));
        assert!(refusal(open, region().into_iter().chain(region()).collect()).contains("2 desc"));
        let unsealed =
            rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, GEOMETRY.file_size()).unwrap();
        assert!(refusal(open, vec![unsealed.into()]).contains("sealed"));
        assert!(refusal(request(op::OPEN_PIPE, "p{1"), region()).contains("without descriptors"));
        for len in [0, 1, 151, 153] {
            assert!(parse_request(&vec![0; len], vec![]).is_err());
        }
    }
}
