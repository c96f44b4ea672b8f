//! sFlow: sends samples of ports' traffic, and ports' counters, to a collector.
//!
//! Workers leave samples in state memory ([`fabric::Recorder`]). The daemon reads them ten times a
//! second and sends them by UDP. Nothing waits for a collector: a datagram that the kernel does not
//! accept at once is counted and dropped.

pub mod datagram;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dataplane::config::PortId;
use dataplane::state::State;
use fabric::{Observer, Record, Recorded};
use tokio::sync::Notify;

use self::datagram::{CountersSample, Datagram, FlowSample, output};
use super::locked;
use crate::api::{Collector, SflowInfo, SwitchSpec};

/// Interval between sends; the specification allows at most a second.
pub const PAUSE: Duration = Duration::from_millis(100);
/// Pause after an error, before the socket is made again.
const RETRY: Duration = Duration::from_secs(1);
/// Bits of an interface number that hold the port's number.
const PORT_BITS: u32 = 14;
const _: () = assert!(dataplane::state::MAX_PORTS <= 1 << PORT_BITS);
/// The maximum number of switches that sample, because an interface number has 24 bits.
const MAX_AGENTS: u32 = (1 << (24 - PORT_BITS)) - 1;

/// A switch's sampling settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    collector: Collector,
    rate: u32,
    polling_s: u32,
}

impl Settings {
    /// Reads the settings of a switch; `None` if it has no collector.
    #[must_use]
    pub fn of(spec: &SwitchSpec) -> Option<Self> {
        let rate = spec.sflow_rate.unwrap_or(10_000);
        let polling_s = spec.sflow_polling_s.unwrap_or(20);
        spec.sflow.map(|collector| Self { collector, rate, polling_s })
    }
}

/// The numbers of the sampling switches, and the channel to the sending task.
#[derive(Debug, Default)]
pub struct Agents {
    numbers: Mutex<BTreeMap<String, u32>>,
    pub(super) wake: Notify,
}

impl Agents {
    /// Takes a free number for a switch, and tells the sending task; `None` if all are taken.
    fn number(&self, switch: &str) -> Option<u32> {
        let mut numbers = locked(&self.numbers);
        if let Some(number) = numbers.get(switch) {
            return Some(*number);
        }
        let number = (1..=MAX_AGENTS).find(|n| !numbers.values().any(|taken| taken == n))?;
        numbers.insert(switch.into(), number);
        Some(number)
    }

    fn free(&self, switch: &str) {
        locked(&self.numbers).remove(switch);
    }
}

/// An interface whose counters are reported.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The port.
    pub id: PortId,
    /// The port's name, including its switch's.
    pub name: String,
    /// The interface passes frames.
    pub up: bool,
}

/// The export of one switch's samples.
#[derive(Debug)]
pub struct Export {
    settings: Settings,
    switch: String,
    number: u32,
    agents: Arc<Agents>,
    view: State,
    observer: Observer,
    socket: Option<UdpSocket>,
    /// When the socket may be made again, and why the last attempt failed.
    failed: Option<(Instant, String)>,
    began: Instant,
    polled: Option<Instant>,
    /// Numbers of datagrams, and of samples by interface.
    sequence: u32,
    flows: HashMap<PortId, u32>,
    polls: HashMap<PortId, u32>,
    samples: u64,
    datagrams: u64,
    refused: u64,
}

impl Export {
    /// Starts sampling a switch whose state is `view`.
    ///
    /// # Errors
    /// All numbers for sampling switches are taken.
    pub fn begin(
        settings: Settings,
        switch: &str,
        view: &State,
        agents: &Arc<Agents>,
    ) -> io::Result<Self> {
        let full = || io::Error::other(format!("{MAX_AGENTS} switches are sampled already"));
        let number = agents.number(switch).ok_or_else(full)?;
        view.recorder().set_rate(settings.rate);
        agents.wake.notify_one();
        Ok(Self {
            settings,
            switch: switch.into(),
            number,
            agents: Arc::clone(agents),
            view: view.clone(),
            observer: Observer::new(view.recorder().clone(), Recorded::Samples),
            socket: None,
            failed: None,
            began: Instant::now(),
            polled: None,
            sequence: 0,
            flows: HashMap::new(),
            polls: HashMap::new(),
            samples: 0,
            datagrams: 0,
            refused: 0,
        })
    }

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> Settings {
        self.settings
    }

    /// Requests samples again, because the switch's state may be new.
    pub fn renew(&mut self, view: &State) {
        view.recorder().set_rate(self.settings.rate);
        self.observer = Observer::new(view.recorder().clone(), Recorded::Samples);
        self.view = view.clone();
    }

    /// The interface number of a port, unique within this daemon.
    #[must_use]
    pub const fn interface(&self, port: PortId) -> u32 {
        self.number << PORT_BITS | port as u32
    }

    /// Describes the export for the API.
    #[must_use]
    pub fn info(&self) -> SflowInfo {
        let Settings { collector, rate, polling_s } = self.settings;
        SflowInfo {
            collector,
            rate,
            polling_s,
            sub_agent: self.number,
            samples: self.samples,
            missed: self.observer.missed,
            datagrams: self.datagrams,
            refused: self.refused,
            failure: self.failed.as_ref().map(|(_, why)| why.clone()),
        }
    }

    /// Sends new samples and, when it is time, the counters of `interfaces`.
    pub fn send(&mut self, now: Instant, interfaces: impl FnOnce() -> Vec<Interface>) {
        let mut records = Vec::new();
        self.observer.read(|record| records.push(record));
        let Some(agent) = self.agent(now) else { return };
        let mut datagram = self.datagram(agent, now);
        for record in &records {
            let sample = self.flow(record);
            if !datagram.add_flow(&sample) {
                self.post(std::mem::replace(&mut datagram, self.datagram(agent, now)), now);
                datagram = self.datagram(agent, now);
                datagram.add_flow(&sample);
            }
            self.samples += 1;
        }
        let interval = Duration::from_secs(self.settings.polling_s.into());
        if self.polled.is_none_or(|polled| now - polled >= interval) {
            self.polled = Some(now);
            for interface in interfaces() {
                let Some(state) = self.view.port(interface.id) else { continue };
                let counted = state.snapshot();
                let sequence = next(&mut self.polls, interface.id);
                let sample = CountersSample {
                    sequence,
                    interface: self.interface(interface.id),
                    name: &interface.name,
                    up: interface.up,
                    received: [
                        counted.in_bytes,
                        counted.in_frames,
                        counted.in_drops.values().sum(),
                        counted.faults,
                    ],
                    sent: [counted.out_bytes, counted.out_frames, counted.out_drops.values().sum()],
                };
                if !datagram.add_counters(&sample) {
                    self.post(datagram, now);
                    datagram = self.datagram(agent, now);
                    datagram.add_counters(&sample);
                }
            }
        }
        self.post(datagram, now);
    }

    fn flow<'r>(&mut self, record: &'r Record) -> FlowSample<'r> {
        let pool = self.view.port(record.from).and_then(|port| port.ingress());
        FlowSample {
            sequence: next(&mut self.flows, record.from),
            source: self.interface(record.from),
            rate: self.settings.rate,
            pool: pool.map_or(0, |counters| counters.frames.get() as u32),
            drops: self.observer.missed as u32,
            output: output(record.fate, |port| self.interface(port)),
            len: record.len,
            head: record.head(),
        }
    }

    fn datagram(&self, agent: IpAddr, now: Instant) -> Datagram {
        let uptime = (now - self.began).as_millis() as u32;
        Datagram::new(agent, self.number, self.sequence.wrapping_add(1), uptime)
    }

    /// This host's address towards the collector. Makes the socket if there is none.
    fn agent(&mut self, now: Instant) -> Option<IpAddr> {
        if self.socket.is_none() {
            if self.failed.as_ref().is_some_and(|(until, _)| now < *until) {
                return None;
            }
            match connect(self.settings.collector) {
                Ok(socket) => (self.socket, self.failed) = (Some(socket), None),
                Err(error) => {
                    self.failed = Some((now + RETRY, error.to_string()));
                    return None;
                }
            }
        }
        let address = self.socket.as_ref().and_then(|socket| socket.local_addr().ok());
        address.map(|address| address.ip())
    }

    /// Sends a datagram, if it has samples.
    fn post(&mut self, datagram: Datagram, now: Instant) {
        let Some(socket) = self.socket.as_ref().filter(|_| !datagram.is_empty()) else { return };
        self.sequence = self.sequence.wrapping_add(1);
        match socket.send(&datagram.finish()) {
            Ok(_) => self.datagrams += 1,
            Err(error) => {
                self.refused += 1;
                // The collector does not listen, or the send queue is full. The next datagram may
                // pass.
                let passes = [io::ErrorKind::ConnectionRefused, io::ErrorKind::WouldBlock];
                if !passes.contains(&error.kind()) {
                    self.socket = None;
                    self.failed = Some((now + RETRY, error.to_string()));
                }
            }
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.view.recorder().set_rate(0);
        self.agents.free(&self.switch);
    }
}

fn next(numbers: &mut HashMap<PortId, u32>, id: PortId) -> u32 {
    let number = numbers.entry(id).or_default();
    *number = number.wrapping_add(1);
    *number
}

/// Makes a socket that never blocks, and receives from the collector only.
fn connect(collector: Collector) -> io::Result<UdpSocket> {
    let any = match collector.0.ip() {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(collector.0)?;
    Ok(socket)
}
