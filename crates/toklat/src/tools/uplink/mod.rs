//! `toklat uplink`: a way out for all guests of a switch, as an ordinary user.
//!
//! The gateway is at a port of the switch. Behind the port runs one [passt](https://passt.top) for
//! each guest. It turns the guest's connections into sockets of the host, and assigns the guest an
//! address (DHCP, IPv6 by router advertisements). passt serves one guest and answers for every
//! address. So it gets only the frames that are for the gateway ([`whom`]).

mod mtu;
mod passt;
mod whom;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::str::FromStr;

use anyhow::{Context, ensure};
use frame::Mac;
use netring::{Interest, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CapabilitySet;
use serde::Serialize;

use self::mtu::Mtu;
use self::passt::Passt;
use self::whom::Verdict;
use super::session::{OpenArgs, now, stop_on_signals};
use super::sink::announce;
use client::Global;
use client::name::SwitchName;

/// The name of the uplink's port.
pub const PORT: &str = "uplink";
/// The last byte of the first guest's address.
const FIRST: u8 = 15;
/// The maximum number of addresses remembered for a guest.
const ADDRESSES: usize = 16;
/// Frames taken at a time.
const BURST: usize = 64;
/// Interval in nanoseconds at which the gateway is announced to the switch and the clock is
/// checked.
const TICK: u64 = 1_000_000_000;
/// Minimum time between two starts of passt. Nanoseconds.
const START: u64 = 100_000_000;
/// A guest that was quiet for this long may be evicted when there is no room. Nanoseconds.
const QUIET: u64 = 60_000_000_000;

/// Options of `toklat uplink`.
#[derive(Clone, Debug, clap::Args)]
pub struct UplinkArgs {
    /// The switch
    switch: SwitchName,
    /// Forward a port of this host to a guest: 8080:80 to the first guest, 8080:10.0.2.16:80 to the
    /// guest with this address; append /udp for UDP. The port listens from the guest's first frame
    /// on
    #[arg(short, long = "publish", value_name = "PORT:[ADDRESS:]PORT[/udp]")]
    publish: Vec<Forward>,
    /// The address at which forwarded ports listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: IpAddr,
    /// The guests' network: the gateway is .1, the first guest .15
    #[arg(long, value_name = "A.B.C.0/24", default_value = "10.0.2.0/24")]
    subnet: Subnet,
    /// A name server for the guests (repeatable) [default: those of this host]
    #[arg(long, value_name = "ADDRESS")]
    dns: Vec<IpAddr>,
    /// Let guests connect to services of this host, loopback included, at the gateway's address
    #[arg(long)]
    host: bool,
    /// The MTU that guests are told (DHCP, router advertisements) [default: 1500, or what fits the
    /// switch's tunnels and the uplink's port, if that is less]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..=65520))]
    mtu: Option<u16>,
    /// Maximum number of guests at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u8).range(1..=200))]
    guests: u8,
    /// The passt program
    #[arg(long, value_name = "PROGRAM", default_value = "passt")]
    passt: String,
    #[command(flatten)]
    open: OpenArgs,
}

/// A forwarded port, as `--publish` defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Forward {
    host: u16,
    /// The first guest, if the option names none.
    guest: Option<Ipv4Addr>,
    port: u16,
    udp: bool,
}

impl FromStr for Forward {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "use 8080:80, 8080:10.0.2.16:80 or 5353:53/udp";
        let number = |text: &str| text.parse().ok().filter(|port| *port > 0).ok_or(WRONG);
        let (ports, udp) = match text.split_once('/') {
            Some((ports, "udp")) => (ports, true),
            Some((ports, "tcp")) => (ports, false),
            Some(_) => return Err(WRONG),
            None => (text, false),
        };
        let (host, rest) = ports.split_once(':').ok_or(WRONG)?;
        let (guest, port) = match rest.split_once(':') {
            Some((guest, port)) => (Some(guest.parse().map_err(|_| WRONG)?), port),
            None => (None, rest),
        };
        Ok(Self { host: number(host)?, guest, port: number(port)?, udp })
    }
}

/// A network of 256 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subnet([u8; 3]);

impl Subnet {
    fn host(self, number: u8) -> Ipv4Addr {
        let [a, b, c] = self.0;
        Ipv4Addr::new(a, b, c, number)
    }
}

impl FromStr for Subnet {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "use a network of 256 addresses, such as 10.0.2.0/24";
        let (network, "24") = text.split_once('/').ok_or(WRONG)? else { return Err(WRONG) };
        match network.parse().map(|ip: Ipv4Addr| ip.octets()) {
            Ok([a, b, c, 0]) => Ok(Self([a, b, c])),
            _ => Err(WRONG),
        }
    }
}

/// What `toklat uplink` reports at its end.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Totals {
    guests: usize,
    out_frames: u64,
    in_frames: u64,
    /// Frames lost because passt was too slow, or because there was no room for its guest.
    dropped: u64,
}

/// Runs `toklat uplink`.
///
/// # Errors
/// The port cannot be opened, passt cannot be started, or the port is gone.
pub fn run(args: &UplinkArgs, global: &Global) -> anyhow::Result<()> {
    let given = args.publish.iter().filter_map(|forward| forward.guest);
    for guest in given {
        ensure!(
            args.subnet.host(guest.octets()[3]) == guest && guest.octets()[3] >= FIRST,
            "{guest} is not a guest's address: they are from {} on; see --subnet",
            args.subnet.host(FIRST)
        );
    }
    check_ports(&args.publish, jail::holds(CapabilitySet::NET_BIND_SERVICE))?;
    found(&args.passt)?;
    let name = format!("{}:{PORT}", args.switch);
    let port = args.open.port(&name, global)?;
    let us = Mac::of_name(&name);
    let mut uplink = Uplink::new(args, us, port, Mtu::new(global, args));
    let gateway = args.subnet.host(1);
    eprintln!(
        "toklat: guests of {} get addresses from {} on, by {gateway}",
        args.switch,
        args.subnet.host(FIRST)
    );
    let stop = stop_on_signals()?;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        uplink.turn().with_context(|| format!("{name} is gone"))?;
    }
    let totals = uplink.totals;
    let line = format!(
        "{} guests; {} frames out, {} in, {} dropped",
        totals.guests, totals.out_frames, totals.in_frames, totals.dropped
    );
    global.print_done(&totals, &line)
}

/// Checks that this user may listen at the host's ports.
fn check_ports(publish: &[Forward], may_all: bool) -> anyhow::Result<()> {
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first: u16 = first.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024);
    let refused = publish.iter().find(|forward| !may_all && forward.host < first);
    let Some(Forward { host, port, .. }) = refused else { return Ok(()) };
    anyhow::bail!(
        "Only root may listen at port {host} of this host: those below {first} are reserved; take \
         another, as in -p {}:{port}, or allow it: sysctl net.ipv4.ip_unprivileged_port_start={host}",
        8000 + host % 1000
    )
}

/// Checks at the start, and not at the first guest, that passt exists.
fn found(program: &str) -> anyhow::Result<()> {
    let asked = std::process::Command::new(program).arg("--version").output();
    asked.map(|_| ()).with_context(|| {
        format!("There is no {program}; install it (apt install passt, https://passt.top)")
    })
}

/// The port, and the guests behind it.
struct Uplink<'a> {
    args: &'a UplinkArgs,
    us: Mac,
    port: Port,
    guests: HashMap<Mac, Guest>,
    totals: Totals,
    next_tick: u64,
    /// No passt is started before this time.
    next_start: u64,
    /// A passt has delivered frames for which the switch's port had no room.
    blocked: bool,
    servers: Vec<IpAddr>,
    mtu: Mtu<'a>,
    buffer: Vec<u8>,
}

/// A guest with its passt.
struct Guest {
    number: u8,
    passt: Passt,
    /// The addresses that the guest was seen with.
    addresses: HashSet<IpAddr>,
    heard_at: u64,
}

impl<'a> Uplink<'a> {
    fn new(args: &'a UplinkArgs, us: Mac, port: Port, mtu: Mtu<'a>) -> Self {
        let (guests, totals, servers) = (HashMap::new(), Totals::default(), name_servers(args));
        if servers.is_empty() && !args.host {
            eprintln!(
                "toklat: no name server but on loopback; guests get none (--dns ADDRESS, or --host)"
            );
        }
        let (next_tick, next_start, buffer) = (0, 0, vec![0; 1 << 16]);
        Self {
            args,
            us,
            port,
            guests,
            totals,
            next_tick,
            next_start,
            blocked: false,
            servers,
            mtu,
            buffer,
        }
    }

    /// Waits for frames of either side, and forwards them.
    fn turn(&mut self) -> anyhow::Result<()> {
        let at = now();
        if at >= self.next_tick {
            announce(&mut self.port, self.us);
            self.next_tick = at + TICK;
        }
        let out = self.take_from_switch(at);
        self.take_from_passts();
        self.port.flush()?;
        if out == 0 { self.wait() } else { Ok(()) }
    }

    /// Forwards frames of guests, each to its passt; returns how many came.
    fn take_from_switch(&mut self, at: u64) -> usize {
        let mut came = 0;
        let mut buffer = std::mem::take(&mut self.buffer);
        while came < BURST {
            let Some(len) = self.port.receive(1).next().map(|frame| frame.copy_out(&mut buffer))
            else {
                break;
            };
            came += 1;
            self.take(&buffer[..len], at);
        }
        self.buffer = buffer;
        for guest in self.guests.values_mut() {
            // If passt is gone, the next read reports it.
            let _ = guest.passt.flush();
        }
        came
    }

    fn take(&mut self, frame: &[u8], at: u64) {
        let from = frame.get(6..12).and_then(|mac| mac.try_into().ok()).map(Mac::new);
        let Some(from) = from else { return };
        let others = &self.guests;
        let has = |address: IpAddr| {
            others.iter().any(|(mac, guest)| *mac != from && guest.addresses.contains(&address))
        };
        let verdict = whom::judge(frame, self.us, self.args.subnet.host(1), has);
        if verdict == Verdict::Out && !self.guests.contains_key(&from) {
            self.admit(from, at);
        }
        let Some(guest) = self.guests.get_mut(&from) else {
            self.totals.dropped += u64::from(verdict == Verdict::Out);
            return;
        };
        guest.heard_at = at;
        let address = match verdict {
            Verdict::Claims(address) => Some(address),
            _ => whom::source(frame),
        };
        if guest.addresses.len() < ADDRESSES {
            guest.addresses.extend(address);
        }
        if verdict == Verdict::Out {
            let sent = guest.passt.push(frame);
            self.totals.out_frames += u64::from(sent);
            self.totals.dropped += u64::from(!sent);
        }
    }

    /// Starts a passt for a guest, if there is room. Otherwise it evicts a guest that was quiet for
    /// long.
    fn admit(&mut self, guest: Mac, at: u64) {
        if at < self.next_start {
            return;
        }
        self.next_start = at + START;
        if self.guests.len() >= usize::from(self.args.guests) {
            let quiet = self.guests.iter().filter(|(_, guest)| at - guest.heard_at > QUIET);
            let Some(quiet) = quiet.min_by_key(|(_, guest)| guest.heard_at).map(|(mac, _)| *mac)
            else {
                return;
            };
            self.guests.remove(&quiet);
        }
        let taken: HashSet<u8> = self.guests.values().map(|guest| guest.number).collect();
        let Some(number) = (0..self.args.guests).find(|number| !taken.contains(number)) else {
            return;
        };
        let mtu = self.mtu.at(at);
        let arguments = arguments(self.args, &self.servers, (self.us, mtu), number);
        let passt = match Passt::start(&self.args.passt, &arguments) {
            Ok(passt) => passt,
            Err(error) => {
                // Other guests keep their passts. This guest's next frame tries again.
                eprintln!("toklat: no passt for {guest}: {error:#}");
                return;
            }
        };
        let address = self.args.subnet.host(FIRST + number);
        eprintln!("toklat: {guest} is {address}");
        let addresses = HashSet::from([address.into()]);
        self.guests.insert(guest, Guest { number, passt, addresses, heard_at: at });
        self.totals.guests += 1;
    }

    /// Forwards frames of the passts, each to its guest.
    fn take_from_passts(&mut self) {
        let mut ended = Vec::new();
        self.blocked = false;
        for (mac, guest) in &mut self.guests {
            match pass(&mut guest.passt, *mac, &mut self.port) {
                Ok((frames, all)) => {
                    self.totals.in_frames += frames;
                    self.blocked |= !all;
                }
                Err(_) => ended.push(*mac),
            }
        }
        for mac in ended {
            // The guest's next frame starts another.
            if let Some(guest) = self.guests.remove(&mac) {
                eprintln!("toklat: the passt of {mac} has ended: {}", guest.passt.end());
            }
        }
    }

    /// Sleeps until a frame comes, or for a tick.
    fn wait(&mut self) -> anyhow::Result<()> {
        let left = self.next_tick.saturating_sub(now());
        // A passt whose frames wait for room is not read meanwhile.
        let (interest, input) = match self.blocked {
            true => (Interest::READ | Interest::WRITE, PollFlags::empty()),
            false => (Interest::READ, PollFlags::IN),
        };
        let ready = self.port.arm(interest).any();
        if !ready && left > 0 {
            let mut fds = vec![PollFd::new(&self.port, PollFlags::IN)];
            fds.extend(self.guests.values().map(|guest| {
                let full = if guest.passt.is_full() { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::from_borrowed_fd(guest.passt.as_fd(), input | full)
            }));
            let time = std::time::Duration::from_nanos(left);
            match poll(&mut fds, Some(&Timespec::try_from(time)?)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("Waiting failed"),
            }
        }
        Ok(self.port.disarm()?)
    }
}

/// Forwards a passt's frames to its guest, as far as the port has room. It reads only once, so one
/// guest's download does not starve the others. Returns the number of frames, and whether there was
/// room for all.
fn pass(passt: &mut Passt, to: Mac, port: &mut Port) -> std::io::Result<(u64, bool)> {
    let (before, all) = pass_read(passt, to, port)?;
    if !all || !passt.read()? {
        return Ok((before, all));
    }
    let (after, all) = pass_read(passt, to, port)?;
    Ok((before + after, all))
}

/// Forwards frames that were read already.
fn pass_read(passt: &mut Passt, to: Mac, port: &mut Port) -> std::io::Result<(u64, bool)> {
    let mut frames = 0;
    while port.send(BURST).room() == BURST {
        let Some(frame) = passt.next_frame()? else { return Ok((frames, true)) };
        if let Some(destination) = frame.get_mut(..6) {
            // Router advertisements are for all guests of this passt, which is its one guest.
            destination.copy_from_slice(&to.octets());
            frames += u64::from(port.send(1).push(frame));
        }
    }
    Ok((frames, false))
}

/// The name servers announced to guests. Loopback servers are reachable from the host only (with
/// `--host`, passt maps them). If systemd-resolved listens there, another file names the servers it
/// uses.
fn name_servers(args: &UplinkArgs) -> Vec<IpAddr> {
    if !args.dns.is_empty() || args.host {
        return args.dns.clone();
    }
    let of = |path: &str| -> Vec<IpAddr> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let words = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
        let servers = words.filter_map(|server| server.trim().parse().ok());
        servers.filter(|server: &IpAddr| !server.is_loopback()).collect()
    };
    let files = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];
    files.into_iter().map(of).find(|servers| !servers.is_empty()).unwrap_or_default()
}

/// The arguments of passt for guest `number`.
fn arguments(
    args: &UplinkArgs,
    servers: &[IpAddr],
    (us, mtu): (Mac, u16),
    number: u8,
) -> Vec<OsString> {
    let address = args.subnet.host(FIRST + number);
    let mut words = vec!["--mtu".to_owned(), mtu.to_string(), "--mac-addr".into(), us.to_string()];
    words.extend(["--address".into(), address.to_string(), "--netmask".into(), "24".into()]);
    words.extend(["--gateway".into(), args.subnet.host(1).to_string()]);
    // DHCPv6 would give every guest the same address. With advertisements each guest makes its own.
    words.push("--no-dhcpv6".into());
    if !args.host {
        words.push("--no-map-gw".into());
    }
    for server in servers {
        words.extend(["--dns".into(), server.to_string()]);
    }
    for forward in &args.publish {
        if forward.guest.map_or(number == 0, |guest| guest == address) {
            let Forward { host, port, udp, .. } = forward;
            words.push(if *udp { "--udp-ports" } else { "--tcp-ports" }.into());
            words.push(format!("{}/{host}:{port}", args.bind));
        }
    }
    words.into_iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_are_reserved_for_root_are_refused_with_another_one() {
        let forward = |text: &str| vec![text.parse::<Forward>().unwrap()];
        check_ports(&forward("80:80"), true).unwrap();
        check_ports(&forward("8080:80"), false).unwrap();
        let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        let is_reserved = first.unwrap().trim().parse::<u16>().unwrap() > 80;
        let refused = check_ports(&forward("80:80"), false);
        assert_eq!(refused.is_err(), is_reserved);
        if let Err(error) = refused {
            let said = error.to_string();
            assert!(said.contains("port 80 of this host") && said.contains("-p 8080:80"), "{said}");
        }
    }
}
