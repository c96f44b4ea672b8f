//! A world made of a topology file: its switches, its ports' rules, its guests, its captures.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use guest::apps::bulk::Bulk;
use guest::apps::kv::Kv;
use guest::apps::load::{Fetch, Load};
use guest::apps::programs;
use guest::apps::site::Site;
use guest::sockets::Net;
use guest::{App, Guest, Nanos, Nic, Pieces, Stack};
use netring::PortError;
use pcap::file::Recording;
use topology::{GuestSpec, PcapRead, Policy, PortKind, PortSpec, Topology};

use crate::host::{Machine, Place, Tasks};
use crate::nic::SimNic;
use crate::trace::HostId;
use crate::world::{SimError, World};

/// Why a topology cannot be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// Something of the host, or a program, that a simulation does not have.
    #[error("{what}, which a simulation does not have; {instead}")]
    Lacks {
        /// What it is.
        what: String,
        /// What stands in.
        instead: &'static str,
    },
    /// A guest's addresses or arguments, or a port's links, are wrong.
    #[error("{name}: {why}")]
    Guest {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A capture cannot be read.
    #[error("{path}: {why}")]
    Capture {
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// The world cannot be made.
    #[error(transparent)]
    Sim(#[from] SimError),
}

/// Instead of a kind of port.
const INSTEAD: &str = "put a guest on the port, or a capture (pcap_read)";
/// Instead of a program.
const PROGRAMS: &str = "use echo, httpd, kv, load, sink or source";

/// What runs on a host of a topology.
#[expect(clippy::large_enum_variant, reason = "there are as many as hosts")]
enum Program {
    Echo(Tasks),
    Httpd(Guest<SimNic, Site>),
    Kv(Guest<SimNic, Kv>),
    Load(Guest<SimNic, Load>),
    Bulk(Guest<SimNic, Bulk>),
    Play(Player),
    /// It takes what comes; the trace has it.
    Record(SimNic),
}

impl Machine for Program {
    fn poll(&mut self, now: Nanos) -> Result<Option<Nanos>, PortError> {
        match self {
            Self::Echo(tasks) => tasks.poll(now),
            Self::Httpd(guest) => guest.poll(now),
            Self::Kv(guest) => guest.poll(now),
            Self::Load(guest) => guest.poll(now),
            Self::Bulk(guest) => guest.poll(now),
            Self::Play(player) => player.poll(now),
            Self::Record(nic) => {
                nic.receive(|_| ());
                nic.flush().map(|()| None)
            }
        }
    }

    fn says(&self) -> String {
        match self {
            Self::Load(guest) => {
                let load = guest.app_ref();
                let median = load.latencies.value_at_quantile(0.5) as f64 / 1e6;
                let Load { answers, errors, bytes, lost, .. } = load;
                format!(
                    "{answers} answers, {bytes} bytes, {errors} errors, {lost} connections lost, median {median:.3} ms"
                )
            }
            Self::Bulk(guest) => {
                let Bulk { received, made, lost, .. } = guest.app_ref();
                format!("{received} bytes received, {made} connections, {lost} ended")
            }
            _ => String::new(),
        }
    }
}

/// Sends the frames of a capture at the times that it has.
struct Player {
    nic: SimNic,
    frames: Recording,
    next: usize,
    began: Nanos,
    speed_percent: u32,
    repeat: bool,
}

impl Player {
    /// When frame `i` is due.
    fn due(&self, i: usize) -> Nanos {
        let at = self.frames.frame(i).0.as_nanos() as u64;
        match self.speed_percent {
            0 => self.began,
            percent => self.began + (u128::from(at) * 100 / u128::from(percent)) as u64,
        }
    }
}

impl Machine for Player {
    fn poll(&mut self, now: Nanos) -> Result<Option<Nanos>, PortError> {
        self.nic.receive(|_| ());
        let mut sent = 0;
        while self.next < self.frames.len() && self.due(self.next) <= now && sent < guest::BATCH {
            let (_, frame) = self.frames.frame(self.next);
            if self.nic.send(frame, Pieces::none(), frame::Offload::NONE).is_err() {
                break;
            }
            (self.next, sent) = (self.next + 1, sent + 1);
        }
        self.nic.flush()?;
        if self.next == self.frames.len() && self.repeat {
            (self.next, self.began) = (0, now);
        }
        Ok((self.next < self.frames.len()).then(|| self.due(self.next)))
    }
}

/// Answers by TCP and UDP at port 7 (RFC 862).
async fn echo(net: Net<SimNic>) {
    let (Ok(listener), Ok(socket)) = (net.listen(7, 128), net.bind(7)) else { return };
    net.spawn(async move {
        loop {
            let (from, data) = socket.receive().await;
            let _ = socket.send(from, &data);
        }
    });
    loop {
        let stream = listener.accept().await;
        net.spawn(async move {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..n]).await.is_err() {
                    break;
                }
            }
        });
    }
}

fn serving<A: App>(stack: Stack<SimNic>, app: A, port: u16) -> Guest<SimNic, A> {
    let mut guest = Guest::new(stack, app);
    // The port of a new stack is free.
    let _ = guest.listen(port, 1024);
    guest
}

fn calling<A: App>(
    stack: Stack<SimNic>,
    app: A,
    to: SocketAddr,
    conns: impl IntoIterator<Item = A::Conn>,
) -> Guest<SimNic, A> {
    let mut guest = Guest::new(stack, app);
    for conn in conns {
        // Without an address yet (DHCP), it stays silent.
        let _ = guest.connect(to, conn, Nanos(Nanos::SECOND));
    }
    guest
}

/// A program of a guest, by the name and the arguments that `toklat guest run` takes.
type Start = Box<dyn FnMut(Stack<SimNic>) -> Program>;

fn program(spec: &GuestSpec, name: &str) -> Result<Start, NetError> {
    let word = |i: usize| spec.args.get(i).map(String::as_str);
    let wrong = |why: String| NetError::Guest { name: format!("guest {name}"), why };
    let number = |i: usize, default: usize| match word(i) {
        Some(word) => word.parse().map_err(|_| wrong(format!("`{word}` is not a number"))),
        None => Ok(default),
    };
    let server = || -> Result<SocketAddr, NetError> {
        let word = word(0).ok_or_else(|| wrong("its first argument is SERVER:PORT".to_owned()))?;
        word.parse().map_err(|_| wrong(format!("`{word}` is not SERVER:PORT")))
    };
    Ok(match spec.app.as_str() {
        "echo" => Box::new(|stack| Program::Echo(Tasks::start(stack, echo))),
        "httpd" => {
            let site = programs::site(0);
            Box::new(move |stack| Program::Httpd(serving(stack, site.clone(), 80)))
        }
        "kv" => {
            let bytes = number(0, 64)? << 20;
            Box::new(move |stack| Program::Kv(serving(stack, Kv::new(bytes, 0), 11211)))
        }
        "sink" => Box::new(|stack| Program::Bulk(serving(stack, Bulk::sink(false), 5001))),
        "source" => {
            let (to, connections) = (server()?, number(2, 1)?);
            Box::new(move |stack| {
                let conns = (0..connections).map(|_| ());
                Program::Bulk(calling(stack, Bulk::source(false), to, conns))
            })
        }
        "load" => {
            let (to, connections) = (server()?, number(2, 16)?);
            let path = word(1).unwrap_or("/1k").to_owned();
            Box::new(move |stack| {
                let load = Load::new(&to.to_string(), &path);
                let conns = (0..connections).map(|_| Fetch::default());
                Program::Load(calling(stack, load, to, conns))
            })
        }
        other => {
            let what = format!("guest {name} runs {other}");
            return Err(NetError::Lacks { what, instead: PROGRAMS });
        }
    })
}

impl World {
    /// Makes a world of a topology, whose captures `read` reads: the guests that it names, on
    /// ports with their rules, and ports that send or take captures. Ports that programs would
    /// open stay empty.
    ///
    /// # Errors
    /// A port is attached to something of a host, or a guest runs a program that is not built in.
    pub fn of(
        topology: &Topology,
        seed: u64,
        mut read: impl FnMut(&Path) -> std::io::Result<Vec<u8>>,
    ) -> Result<Self, NetError> {
        if topology.evpn.is_some() {
            let (what, instead) = ("EVPN learns from other hosts".to_owned(), "leave [evpn] out");
            return Err(NetError::Lacks { what, instead });
        }
        let mut world = Self::new(seed);
        for (name, spec) in &topology.switch {
            let switch = world.switch_with(name, spec.config.clone())?;
            for (port, spec) in &spec.port {
                let start = attached(&format!("{name}:{port}"), spec, &mut read)?;
                if let Some(start) = start {
                    let rules = rules_of(&format!("{name}:{port}"), spec, topology)?;
                    let place = Place::bare(&format!("{name}:{port}"), rules);
                    world.host(switch, place, start)?;
                }
            }
        }
        for (name, spec) in &topology.guest {
            world.add_guests(topology, name, spec)?;
        }
        Ok(world)
    }

    fn add_guests(
        &mut self,
        topology: &Topology,
        name: &str,
        spec: &GuestSpec,
    ) -> Result<(), NetError> {
        let wrong = |why: String| NetError::Guest { name: format!("guest {name}"), why };
        let hosts = spec.hosts(name).map_err(|invalid| wrong(invalid.to_string()))?;
        let at = topology.switch.keys().position(|switch| switch == spec.switch());
        let switch = at.and_then(|at| self.switches().nth(at));
        let switch =
            switch.ok_or_else(|| wrong(format!("there is no switch {}", spec.switch())))?;
        for (_, port, addresses) in hosts {
            let mut place =
                Place::new(&port, &addresses).map_err(|error| wrong(error.to_string()))?;
            place.config.gateway = spec.gateway;
            if let Some(v6) = &mut place.config.v6 {
                v6.gateway = spec.gateway6;
            }
            let settings = topology.switch.get(spec.switch());
            let named = settings.and_then(|switch| switch.port.get(port.split_once(':')?.1));
            if let Some(spec) = named {
                place.rules = rules_of(&port, spec, topology)?;
            }
            let place = Place { slots: spec.slots, ..place }.offloads();
            self.host(switch, place, program(spec, name)?)?;
        }
        Ok(())
    }

    /// What the hosts' programs say of themselves, and the counters of their ports, a line each.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = String::new();
        for (at, name) in self.names().iter().enumerate() {
            let stats = self.stats(HostId(at));
            let (sent, received) = (stats.in_frames, stats.out_frames);
            let drops: u64 = stats.in_drops.values().chain(stats.out_drops.values()).sum();
            let says = self.says(HostId(at));
            let comma = if says.is_empty() { "" } else { "; " };
            let _ = writeln!(
                text,
                "{name}: sent {sent}, received {received}, lost {drops} frames{comma}{says}"
            );
        }
        text
    }
}

/// The rules of a port, with its links' words in place of their names.
fn rules_of(name: &str, spec: &PortSpec, topology: &Topology) -> Result<Policy, NetError> {
    let words = |link: Option<String>| {
        let words = link.map(|link| topology::link_words(&link, &topology.link)).transpose();
        words.map_err(|wrong| NetError::Guest { name: name.to_owned(), why: wrong.to_string() })
    };
    let rules = spec.rules();
    Ok(Policy { tx_link: words(rules.tx_link)?, rx_link: words(rules.rx_link)?, ..rules })
}

/// What runs on a port that is no guest's; `None` for one that a program would open.
fn attached(
    name: &str,
    spec: &PortSpec,
    read: &mut impl FnMut(&Path) -> std::io::Result<Vec<u8>>,
) -> Result<Option<Start>, NetError> {
    match &spec.kind {
        PortKind::Ring => Ok(None),
        PortKind::Null | PortKind::PcapWrite(_) => {
            Ok(Some(Box::new(|stack: Stack<SimNic>| Program::Record(stack.into_nic()))))
        }
        PortKind::PcapRead(PcapRead { path, repeat, speed_percent }) => {
            let wrong = |why: String| NetError::Capture { path: path.clone(), why };
            let bytes = read(Path::new(path)).map_err(|error| wrong(error.to_string()))?;
            pcap::file::parse(&bytes).map_err(|error| wrong(error.to_string()))?;
            let (repeat, speed_percent) = (*repeat, *speed_percent);
            Ok(Some(Box::new(move |stack: Stack<SimNic>| {
                let frames = pcap::file::parse(&bytes).unwrap_or_default();
                let (nic, began) = (stack.into_nic(), Nanos(Nanos::SECOND));
                Program::Play(Player { nic, frames, next: 0, began, speed_percent, repeat })
            })))
        }
        kind => {
            let what = format!("{name} {}", kind.settings().describe());
            Err(NetError::Lacks { what, instead: INSTEAD })
        }
    }
}
