//! `toklat ping`: measures round trips.

use anyhow::bail;
use frame::{ETHERNET_HEADER, Mac};
use netring::{Interest, Port};

use crate::roundtrip::{
    MIN_PAYLOAD, RoundTrips, Schedule, Summary, answer, reply_number, write_request,
};
use crate::session::{Idler, Meter, OpenArgs, RunArgs, Session, Volume, now};
use crate::sink::announce;
use client::Global;
use client::table::Table;
use client::units;

/// Default address of the answering end.
pub const SERVER_MAC: Mac = Mac::local(3);
/// Default address of the asking end.
const CLIENT_MAC: Mac = Mac::local(4);
/// How long to wait for the last replies, in nanoseconds.
const LAST_REPLIES: u64 = 1_000_000_000;
/// How often a server announces its address, in nanoseconds.
const ANNOUNCE: u64 = 5_000_000_000;

/// Options of `toklat ping`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "toklat ping vale0:a vale0:b      both ends in one thread\n\
    toklat ping --server vale0:b      one end that answers, and ...\n\
    toklat ping vale0:a               ... the other one that asks\n\n\
    Requests are sent on a schedule that does not wait for replies, and round trips count from when \
    they were due: what holds the sender up shows (no coordinated omission). A switch that had nothing to \
    do for 50 us sleeps, and has to be woken: `toklat switch set vale0 --idle poll` keeps it awake.")]
pub struct PingArgs {
    /// The port that sends requests (with --server: that answers them), such as vale0:a
    port: String,
    /// The port that answers, such as vale0:b, or a server's MAC address
    #[arg(default_value_t = Peer::Mac(SERVER_MAC))]
    peer: Peer,
    /// Answer requests
    #[arg(long, conflicts_with_all = ["peer", "rate", "closed", "size"])]
    server: bool,
    /// The port's MAC address [default: 02:00:00:00:00:04; with --server 02:00:00:00:00:03]
    #[arg(long, value_name = "MAC")]
    mac: Option<Mac>,
    /// Requests a second
    #[arg(short, long, value_parser = units::count, value_name = "N", default_value = "10k")]
    rate: u64,
    /// Send each request as soon as the reply to the last one arrives
    #[arg(long, conflicts_with = "rate")]
    closed: bool,
    /// Bytes of payload after the Ethernet header, at least 10
    #[arg(short, long, default_value_t = 10, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(MIN_PAYLOAD as i64..=9216))]
    size: u16,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A port that answers, which this process opens as well.
    Port(String),
    /// A server at this address.
    Mac(Mac),
}

impl std::str::FromStr for Peer {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| Self::Port(text.to_owned()), Self::Mac))
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port(name) => f.write_str(name),
            Self::Mac(mac) => mac.fmt(f),
        }
    }
}

/// The end that asks.
#[derive(Debug)]
pub struct Asker {
    trips: RoundTrips,
    me: Mac,
    peer: Mac,
    left: u64,
    frame: Vec<u8>,
    buffer: Vec<u8>,
}

impl Asker {
    /// Sends up to `count` requests to `peer`, with `size` bytes of payload.
    #[must_use]
    pub fn new(trips: RoundTrips, me: Mac, peer: Mac, size: usize, count: u64) -> Self {
        let (frame, buffer) = (vec![0; ETHERNET_HEADER + size], vec![0; 1 << 16]);
        Self { trips, me, peer, left: count, frame, buffer }
    }

    /// Sends requests that are due at `now`, and takes replies; returns true if there were any. The
    /// caller flushes.
    #[inline]
    pub fn turn(&mut self, port: &mut Port, now: u64) -> bool {
        let mut busy = false;
        while self.left > 0
            && let Some(number) = self.trips.request_due(now)
        {
            write_request(self.peer, self.me, number, &mut self.frame);
            if !port.send(1).push(&self.frame) {
                // Without room the request stays due. Its round trip counts from when it was due.
                break;
            }
            self.trips.sent(now);
            self.left -= 1;
            busy = true;
        }
        for frame in port.receive(64) {
            let len = frame.copy_out(&mut self.buffer);
            if let Some(number) = reply_number(self.me, &self.buffer[..len]) {
                self.trips.reply(number, now);
            }
            busy = true;
        }
        busy
    }

    /// True when all requests are sent and answered.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let (sent, received) = self.trips.counts();
        self.left == 0 && sent == received
    }

    /// When the next request is due.
    #[must_use]
    pub fn next_at(&self) -> u64 {
        if self.left == 0 { u64::MAX } else { self.trips.next_at() }
    }

    /// Sends no more requests.
    pub fn stop(&mut self) {
        self.left = 0;
    }

    /// Summarizes the round trips so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.trips.summary()
    }
}

/// The end that answers.
#[derive(Debug)]
pub struct Answerer {
    me: Mac,
    buffer: Vec<u8>,
}

impl Answerer {
    /// Answers requests to `me`.
    #[must_use]
    pub fn new(me: Mac) -> Self {
        Self { me, buffer: vec![0; 1 << 16] }
    }

    /// Answers the requests that are there; the caller flushes.
    #[inline]
    pub fn turn(&mut self, port: &mut Port) -> Volume {
        let mut answered = Volume::default();
        let Some((mut out, incoming)) = port.queue(0).both(64, 64) else { return answered };
        for frame in incoming {
            let len = frame.copy_out(&mut self.buffer);
            let frame = &mut self.buffer[..len];
            // Without room for the reply, it is lost.
            if answer(self.me, frame) && out.push(frame) {
                answered += Volume { frames: 1, bytes: len as u64 };
            }
        }
        answered
    }
}

/// The report at the end of a run.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// The port that asked.
    pub port: String,
    /// Bytes of payload.
    pub size: u16,
    /// The round trips in numbers.
    #[serde(flatten)]
    pub summary: Summary,
}

/// Runs `toklat ping`.
///
/// # Errors
/// If options contradict each other, a port cannot be opened or fails.
pub fn run(args: &PingArgs, global: &Global) -> anyhow::Result<()> {
    let port = args.open.port(&args.port, global)?;
    if args.server {
        return serve(args, port, global);
    }
    let summary = match &args.peer {
        Peer::Port(name) => {
            let other = args.open.port(name, global)?;
            ask_both(args, [port, other])?
        }
        Peer::Mac(server) => ask(args, port, *server)?,
    };
    let report = Report { port: args.port.clone(), size: args.size, summary };
    global.print_list(&report, || table(&report), "")?;
    if report.summary.sent > 0 && report.summary.received == 0 {
        let Summary { sent, .. } = report.summary;
        bail!(
            "None of {sent} requests was answered; is there a `toklat ping --server` at {}?",
            args.peer
        );
    }
    Ok(())
}

impl PingArgs {
    fn asker(&self, peer: Mac, start: u64) -> Asker {
        let schedule = match (self.closed, 1_000_000_000u64.checked_div(self.rate)) {
            (false, Some(interval)) => Schedule::Open { interval },
            _ => Schedule::Closed,
        };
        let me = self.mac.unwrap_or(CLIENT_MAC);
        let count = self.run.count.unwrap_or(u64::MAX);
        Asker::new(RoundTrips::new(schedule, start), me, peer, self.size.into(), count)
    }
}

/// Answers requests until the run ends.
fn serve(args: &PingArgs, mut port: Port, global: &Global) -> anyhow::Result<()> {
    let me = args.mac.unwrap_or(SERVER_MAC);
    let session = Session::start(&args.run)?;
    eprintln!("{} answers at {me}", args.port);
    let (mut answerer, mut idler) = (Answerer::new(me), Idler::new(args.run.idle));
    let mut at = now();
    let mut meter = Meter::new(at, args.run.quiet);
    let mut announce_at = at;
    while session.goes_on(at) && args.run.count.is_none_or(|count| meter.total.frames < count) {
        if at >= announce_at {
            announce(&mut port, me);
            announce_at = at.saturating_add(ANNOUNCE);
        }
        let volume = answerer.turn(&mut port);
        port.flush()?;
        meter.add(volume, at);
        meter.tick(at, "answered", String::new);
        if volume.frames > 0 {
            idler.worked();
        } else {
            idler.idle(at, announce_at).take(&mut port, Interest::READ)?;
        }
        at = now();
    }
    let totals = meter.totals(&args.port);
    global.print_done(&totals, &format!("answered from {totals}"))
}

/// A run of requests: when it ends, and its progress lines.
struct Asking {
    asker: Asker,
    session: Session,
    meter: Meter,
    idler: Idler,
    give_up: u64,
}

impl Asking {
    fn start(args: &PingArgs, peer: Mac) -> anyhow::Result<Self> {
        let session = Session::start(&args.run)?;
        let start = now();
        Ok(Self {
            asker: args.asker(peer, start),
            session,
            meter: Meter::new(start, args.run.quiet),
            idler: Idler::new(args.run.idle),
            give_up: u64::MAX,
        })
    }

    /// Returns false when the run is over: all requests are answered, or sending has ended and the
    /// time limit for the last replies has passed.
    fn goes_on(&mut self, now: u64) -> bool {
        if self.give_up == u64::MAX && (!self.session.goes_on(now) || self.asker.left == 0) {
            self.asker.stop();
            self.give_up = now.saturating_add(LAST_REPLIES);
        }
        let (_, received) = self.asker.trips.counts();
        let new = received - self.meter.total.frames;
        let bytes = new * self.asker.frame.len() as u64;
        self.meter.add(Volume { frames: new, bytes }, now);
        let trips = &self.asker.trips;
        self.meter.tick(now, "round trips", || format!(", median {:?}", trips.median()));
        !self.asker.is_done() && now < self.give_up
    }
}

/// Asks a server elsewhere.
fn ask(args: &PingArgs, mut port: Port, server: Mac) -> anyhow::Result<Summary> {
    let mut asking = Asking::start(args, server)?;
    let mut at = now();
    while asking.goes_on(at) {
        let busy = asking.asker.turn(&mut port, at);
        port.flush()?;
        if busy {
            asking.idler.worked();
        } else {
            asking.idler.idle(at, asking.asker.next_at()).take(&mut port, Interest::READ)?;
        }
        at = now();
    }
    Ok(asking.asker.summary())
}

/// Asks and answers in one thread.
fn ask_both(args: &PingArgs, mut ports: [Port; 2]) -> anyhow::Result<Summary> {
    let mut answerer = Answerer::new(SERVER_MAC);
    announce(&mut ports[1], SERVER_MAC);
    let mut asking = Asking::start(args, SERVER_MAC)?;
    let mut at = now();
    while asking.goes_on(at) {
        let mut busy = asking.asker.turn(&mut ports[0], at);
        ports[0].flush()?;
        busy |= answerer.turn(&mut ports[1]).frames > 0;
        ports[1].flush()?;
        if busy {
            asking.idler.worked();
        } else {
            let rest = asking.idler.idle(at, asking.asker.next_at());
            rest.take_all(&mut ports, Interest::READ)?;
        }
        at = now();
    }
    Ok(asking.asker.summary())
}

fn table(report: &Report) -> Table {
    let mut table = Table::new(&[
        "from", ">payload", ">sent", ">lost", ">min", ">p50", ">p90", ">p99", ">p99.9", ">max",
    ]);
    let Summary { sent, lost, .. } = report.summary;
    let s = &report.summary;
    let time = |ns: u64| match s.received {
        0 => "-".to_owned(),
        _ => format!("{:.2} us", ns as f64 / 1e3),
    };
    table.row([
        report.port.clone(),
        report.size.to_string(),
        sent.to_string(),
        lost.to_string(),
        time(s.min_ns),
        time(s.p50_ns),
        time(s.p90_ns),
        time(s.p99_ns),
        time(s.p99_9_ns),
        time(s.max_ns),
    ]);
    table
}
