//! `toklat cap`: captures what a port, or all ports of a switch, send and receive.

mod drops;
pub mod extcap;
mod files;
mod watch;

use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use frame::{ArpOperation, EtherType, Layers, Network, Transport, tcp_flags};
use netring::{Monitor, Port};

use self::files::Files;
pub use self::files::Rotation;
use self::watch::{Round, Wanted, Watched};
use super::pcap::{CaptureWriter, Captured, Direction, Output};
use super::session::{Idler, Meter, RunArgs, Session, Volume, now};
use client::name::{Name, SwitchName};
use client::{Global, UsageError};

use crate::expression;

/// Options of `toklat cap`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("rotation").multiple(true),
    after_help = "Examples:\n  \
        toklat cap vale0:p1 -w - | wireshark -k -i -\n  \
        toklat cap vale0 --filter 'tcp port 80'\n  \
        toklat cap vale0:p1 -w ring.pcapng -C 100 -W 10\n  \
        toklat cap vale0:p1 -w vale0-%Y%m%d-%H%M%S.pcapng -G 3600\n  \
        toklat cap vale0 --drops"
)]
pub struct CapArgs {
    /// The port to capture, such as vale0:p1, or a switch: then each frame once, as its port sends
    /// it
    port: String,
    /// Capture dropped frames with the reason: their first 128 bytes
    #[arg(long)]
    drops: bool,
    /// Write pcapng to this file, or to standard output with -, instead of printing a line for each
    /// frame
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Only what the port sends
    #[arg(long, conflicts_with = "rx")]
    tx: bool,
    /// Only what the port receives; of a switch, what each port receives
    #[arg(long)]
    rx: bool,
    /// Only frames that pass: an expression such as 'udp port 53' (pcap-filter(7); libpcap compiles
    /// it), or the numbers of `tcpdump -ddd` with commas
    #[arg(short, long, value_name = "FILTER")]
    filter: Option<String>,
    /// Maximum bytes to keep of each frame
    #[arg(short, long, value_name = "BYTES", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(14..=65_535))]
    snaplen: u32,
    #[command(flatten)]
    rotation: Rotation,
    #[command(flatten)]
    run: RunArgs,
}

/// Runs `toklat cap`.
///
/// # Errors
/// If the port cannot be watched, or the file cannot be written.
pub fn run(args: &CapArgs, global: &Global) -> anyhow::Result<()> {
    ensure!(
        !is_to_stdout(args) || !args.rotation.is_wanted(),
        UsageError::new("-C and -G begin new files; name one with -w, not standard output")
    );
    let filter = args.filter.as_deref().map(expression::compile).transpose()?;
    if args.drops {
        let frames = drops::capture(args, filter.as_ref(), global, || output(args))?;
        eprintln!("{frames} dropped frames captured at {}", args.port);
        return Ok(());
    }
    let switch = is_of_switch(args);
    let monitor = match (args.tx || switch.is_some(), args.rx) {
        (_, true) => Monitor::Received,
        (true, _) => Monitor::Sent,
        _ => Monitor::Both,
    };
    let wanted = Wanted { monitor, filter, snaplen: args.snaplen };
    let mut watched = match switch {
        Some(switch) => Watched::switch(switch, wanted, global)?,
        None => Watched::port(&args.port, wanted, global)?,
    };
    let to = output(args)?;
    // A line for each frame shows progress already.
    let run = RunArgs { quiet: args.run.quiet || args.write.is_none(), ..args.run.clone() };
    let frames = capture(&run, &mut watched, to)?;
    eprintln!("{frames} frames captured at {}", args.port);
    Ok(())
}

/// The switch, if a whole one is captured.
fn is_of_switch(args: &CapArgs) -> Option<SwitchName> {
    match args.port.parse() {
        Ok(Name::Switch(switch)) => Some(switch),
        _ => None,
    }
}

fn is_to_stdout(args: &CapArgs) -> bool {
    args.write.as_ref().is_some_and(|path| path.as_os_str() == "-")
}

/// Where captured frames go.
fn output(args: &CapArgs) -> anyhow::Result<Box<dyn Output + '_>> {
    // Of a switch, the first frame of each port names that.
    let of = if args.drops || is_of_switch(args).is_none() { &*args.port } else { "" };
    Ok(match &args.write {
        None => {
            let lines = Lines::new(std::io::stdout().lock());
            Box::new(if of.is_empty() { lines.with_ports() } else { lines })
        }
        Some(_) if is_to_stdout(args) => {
            Box::new(CaptureWriter::new(std::io::stdout().lock(), of, args.snaplen)?)
        }
        Some(path) if args.rotation.is_wanted() => {
            Box::new(Files::new(&args.rotation, path, of, args.snaplen))
        }
        Some(path) => {
            let failed = || format!("Cannot write {}", path.display());
            let file = files::create(path).with_context(failed)?;
            Box::new(CaptureWriter::new(BufWriter::new(file), of, args.snaplen)?)
        }
    })
}

/// Captures until the run ends; returns the number of frames.
///
/// # Errors
/// If frames cannot be written, or the port is gone.
fn capture(
    run: &RunArgs,
    watched: &mut Watched<'_>,
    mut to: Box<dyn Output + '_>,
) -> anyhow::Result<u64> {
    let session = Session::start(run)?;
    let mut idler = Idler::new(run.idle);
    let mut at = now();
    let mut meter = Meter::new(at, run.quiet);
    let left = |meter: &Meter| run.count.unwrap_or(u64::MAX) - meter.total.frames;
    while session.goes_on(at) && left(&meter) > 0 && !to.is_complete(since_1970()) {
        let volume = watched.take(&mut *to, left(&meter), at)?;
        meter.add(volume, at);
        meter.tick(at, "captured", String::new);
        if volume.frames > 0 {
            idler.worked();
        } else {
            to.flush()?;
            watched.idle(&mut idler, at)?;
        }
        at = now();
    }
    to.flush()?;
    Ok(meter.total.frames)
}

/// The time, in the clock of captures.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Passes up to `max` captured frames to the sink; the caller flushes the port.
///
/// # Errors
/// If they cannot be written.
pub fn take(
    port: &mut Port,
    to: &mut (impl Output + ?Sized),
    max: usize,
) -> std::io::Result<Volume> {
    let wanted = Wanted { monitor: Monitor::Both, filter: None, snaplen: u32::MAX };
    let mut round = Round::default();
    round.take((0, port), &wanted, max);
    round.write(to, u64::MAX, |_| "")
}

/// A line of text for each frame.
#[derive(Debug)]
pub struct Lines<W: Write> {
    to: BufWriter<W>,
    line: String,
    /// Each line names the port.
    ports: bool,
}

impl<W: Write> Lines<W> {
    /// Lines into `to`.
    pub fn new(to: W) -> Self {
        Self { to: BufWriter::new(to), line: String::new(), ports: false }
    }

    /// The same, with the port's name in each line.
    #[must_use]
    pub fn with_ports(self) -> Self {
        Self { ports: true, ..self }
    }
}

impl<W: Write> Output for Lines<W> {
    fn frame(&mut self, frame: &Captured<'_>) -> std::io::Result<()> {
        let (seconds, nanos) = (frame.at.as_secs() % 86_400, frame.at.subsec_nanos());
        let arrow = match frame.direction {
            Direction::Sent => '>',
            Direction::Received => '<',
        };
        self.line.clear();
        let [h, m, s] = [seconds / 3600, seconds / 60 % 60, seconds % 60];
        // Writing to a string does not fail.
        let _ = write!(self.line, "{h:02}:{m:02}:{s:02}.{nanos:09} ");
        if self.ports {
            let _ = write!(self.line, "{} ", frame.port);
        }
        let _ = write!(self.line, "{arrow} ");
        describe(frame.bytes, frame.len, &mut self.line);
        if let Some(comment) = frame.comment {
            let _ = write!(self.line, ", {comment}");
        }
        self.line.push('\n');
        self.to.write_all(self.line.as_bytes())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Describes a frame of `len` bytes in one line, as far as `bytes` tell.
pub fn describe(bytes: &[u8], len: usize, to: &mut String) {
    let Some(layers) = Layers::of(bytes) else {
        to.push_str("less than an Ethernet header");
        return;
    };
    let (ethernet, ports) = (layers.ethernet, ports(&layers));
    let (from_port, to_port) = ports.map_or_else(
        || (String::new(), String::new()),
        |(from, to)| (format!(":{from}"), format!(":{to}")),
    );
    // Writing to a string does not fail.
    let _ = write!(to, "{} > {}", ethernet.source(), ethernet.destination());
    if let Some(tag) = layers.tag {
        let _ = write!(to, ", vlan {} p {}", tag.vlan(), tag.priority());
    }
    let _ = match layers.network {
        Network::Ipv4(ip) => {
            write!(to, ", {}{from_port} > {}{to_port}", ip.source(), ip.destination())
        }
        Network::Ipv6(ip) if ports.is_some() => {
            write!(to, ", [{}]{from_port} > [{}]{to_port}", ip.source(), ip.destination())
        }
        Network::Ipv6(ip) => write!(to, ", {} > {}", ip.source(), ip.destination()),
        Network::Arp(arp) => {
            let ((mac, ip), (_, target)) = (arp.sender(), arp.target());
            match arp.operation() {
                ArpOperation::REQUEST if ip == target => write!(to, ", ARP {ip} is at {mac}"),
                ArpOperation::REQUEST => write!(to, ", ARP who has {target}? tell {ip}"),
                ArpOperation::REPLY => write!(to, ", ARP reply {ip} is at {mac}"),
                other => write!(to, ", ARP operation {}", other.0),
            }
        }
        Network::Other => match layers.ethertype {
            EtherType(length @ 0..0x600) => write!(to, ", 802.3 length {length}"),
            EtherType(other) => write!(to, ", type {other:#06x}"),
        },
    };
    describe_transport(&layers, to);
    let _ = write!(to, ", {len} bytes");
}

/// The source and destination ports of a UDP or TCP frame.
fn ports(layers: &Layers<'_>) -> Option<(u16, u16)> {
    match layers.transport {
        Transport::Udp(udp) => Some((udp.source(), udp.destination())),
        Transport::Tcp(tcp) => Some((tcp.source(), tcp.destination())),
        _ => None,
    }
}

fn describe_transport(layers: &Layers<'_>, to: &mut String) {
    let _ = match layers.transport {
        Transport::Udp(_) => match frame::Probe::read(layers.payload) {
            Ok(probe) => write!(to, ", test frame {} of stream {}", probe.sequence, probe.stream),
            Err(_) => write!(to, ", UDP"),
        },
        Transport::Tcp(tcp) => {
            let names = [
                (tcp_flags::SYN, 'S'),
                (tcp_flags::FIN, 'F'),
                (tcp_flags::RST, 'R'),
                (tcp_flags::PSH, 'P'),
                (tcp_flags::ACK, '.'),
                (tcp_flags::URG, 'U'),
                (tcp_flags::ECE, 'E'),
                (tcp_flags::CWR, 'W'),
            ];
            let set = names.iter().filter(|(flag, _)| tcp.flags() & flag != 0);
            let flags: String = set.map(|(_, name)| name).collect();
            let (sequence, ack) = (tcp.sequence(), tcp.acknowledgment());
            write!(to, ", TCP [{flags}] seq {sequence} ack {ack} win {}", tcp.window())
        }
        Transport::Icmp(icmp) => match icmp.kind {
            8 | 128 => write!(to, ", ICMP echo request {}", icmp.echo().1),
            0 | 129 => write!(to, ", ICMP echo reply {}", icmp.echo().1),
            kind => write!(to, ", ICMP type {kind} code {}", icmp.code),
        },
        Transport::Other => match layers.network {
            Network::Ipv4(ip) if ip.is_fragment() => write!(to, ", fragment, id {}", ip.id()),
            Network::Ipv4(ip) => write!(to, ", protocol {}", ip.protocol().0),
            Network::Ipv6(ip) => write!(to, ", next header {}", ip.next_header().0),
            _ => Ok(()),
        },
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use frame::{Mac, Probe, UdpFrame, VlanId, write_announcement};

    fn line(frame: &[u8]) -> String {
        let mut line = String::new();
        describe(frame, frame.len(), &mut line);
        line
    }

    #[test]
    fn frames_are_described_in_a_line() {
        let mut frame = [0; 64];
        let headers =
            UdpFrame { vlan: VlanId::new(7), ..UdpFrame::between(Mac::local(1), Mac::local(2)) };
        let at = headers.write(&mut frame).unwrap();
        Probe { stream: 3, sequence: 12, time: 0, filled: true }.write(&mut frame[at..]);
        assert_eq!(
            line(&frame),
            "02:00:00:00:00:01 > 02:00:00:00:00:02, vlan 7 p 0, 10.0.0.1:9 > 10.0.0.2:9, \
             test frame 12 of stream 3, 64 bytes"
        );
        let ip = std::net::Ipv4Addr::new(10, 0, 0, 1);
        let _ = write_announcement(Mac::local(1), ip, &mut frame);
        let told = line(&frame[..60]);
        assert!(told.ends_with("ARP 10.0.0.1 is at 02:00:00:00:00:01, 60 bytes"), "{told}");
        assert_eq!(line(&frame[..13]), "less than an Ethernet header");
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        assert!(line(&frame).contains("type 0x88b5"));
    }

    #[test]
    fn a_line_says_when_and_which_way() {
        let mut out = Vec::new();
        let mut lines = Lines::new(&mut out);
        let at = Duration::new(86_400 + 3_723, 42);
        for direction in [Direction::Sent, Direction::Received] {
            lines
                .frame(&Captured {
                    at,
                    port: "",
                    direction,
                    len: 60,
                    bytes: &[0; 60],
                    comment: None,
                })
                .unwrap();
        }
        lines.flush().unwrap();
        drop(lines);
        let text = String::from_utf8(out).unwrap();
        let starts: Vec<&str> = text.lines().map(|line| &line[..20]).collect();
        assert_eq!(starts, ["01:02:03.000000042 >", "01:02:03.000000042 <"]);
    }
}
