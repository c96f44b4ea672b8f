//! The ports that a capture watches: one, or all of a switch.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Context;
use client::name::SwitchName;
use client::{Client, Global};
use frame::bpf::Program;
use netring::{FrameClock, Interest, Monitor, Open, OpenError, Port, PortError};

use super::super::pcap::{Captured, Direction, Output};
use super::super::session::{Idler, Volume};
use crate::api::PortInfo;
use crate::expression::Seen;

/// Slots of a monitor's ring: enough for a burst while the disk is busy.
pub(super) const SLOTS: u32 = 4096;
/// As above, of each of a switch's ports.
const SLOTS_OF_MANY: u32 = 512;
/// How often a switch is asked for new ports (ns).
const LOOK_NS: u64 = 500_000_000;

/// What of each frame is captured.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Which frames: those that the port sends, receives, or both.
    pub monitor: Monitor,
    pub filter: Option<Program>,
    pub snaplen: u32,
}

/// A frame that was captured and waits to be written.
#[derive(Debug)]
struct Taken {
    at: Duration,
    port: usize,
    direction: Direction,
    len: usize,
    /// Where its bytes end; they begin where those of the frame before end.
    end: usize,
}

/// Frames of one round, in order of their times once they are written.
#[derive(Debug, Default)]
pub(super) struct Round {
    bytes: Vec<u8>,
    taken: Vec<(usize, Taken)>,
}

impl Round {
    /// Takes up to `max` frames of a port; the caller flushes it.
    pub fn take(&mut self, (number, port): (usize, &mut Port), wanted: &Wanted, max: usize) {
        let clock = FrameClock::now();
        for frame in port.receive(max) {
            let start = self.bytes.len();
            self.bytes.resize(start + frame.len(), 0);
            let kept = frame.copy_out(&mut self.bytes[start..]);
            self.bytes.truncate(start + kept);
            let bytes = &self.bytes[start..];
            let sent = frame.was_sent();
            let seen = Seen { bytes, interface: number as u32 + 1, sent };
            let admitted = wanted.filter.as_ref().map_or(u32::MAX, |filter| filter.run(&seen));
            let keep = if admitted == 0 { 0 } else { kept.min(admitted as usize) };
            self.bytes.truncate(start + keep.min(wanted.snaplen as usize));
            if admitted > 0 {
                let direction = if sent { Direction::Sent } else { Direction::Received };
                let (at, end) = (clock.time(&frame), self.bytes.len());
                let taken = Taken { at, port: number, direction, len: frame.len(), end };
                self.taken.push((start, taken));
            }
        }
    }

    /// Writes the first `most` frames by time, and forgets all.
    pub fn write<'n>(
        &mut self,
        to: &mut (impl Output + ?Sized),
        most: u64,
        name: impl Fn(usize) -> &'n str,
    ) -> std::io::Result<Volume> {
        let mut volume = Volume::default();
        self.taken.sort_by_key(|(_, taken)| taken.at);
        for (start, taken) in self.taken.iter().take(usize::try_from(most).unwrap_or(usize::MAX)) {
            let Taken { at, port, direction, len, end } = *taken;
            let (port, bytes) = (name(port), &self.bytes[*start..end]);
            to.frame(&Captured { at, port, direction, len, bytes, comment: None })?;
            volume += Volume { frames: 1, bytes: len as u64 };
        }
        self.taken.clear();
        self.bytes.clear();
        Ok(volume)
    }
}

/// The watched ports.
pub(super) struct Watched<'a> {
    wanted: Wanted,
    global: &'a Global,
    ports: Vec<Port>,
    names: Vec<String>,
    round: Round,
    /// The switch, if all its ports are watched.
    all: Option<All>,
    /// One of these ports is gone.
    any_gone: bool,
}

/// What it takes to find the ports of a switch.
struct All {
    switch: SwitchName,
    client: Client,
    /// The ports that are watched, or cannot be.
    known: HashSet<String>,
    look_at: u64,
}

impl<'a> Watched<'a> {
    /// Watches one port.
    pub fn port(name: &str, wanted: Wanted, global: &'a Global) -> anyhow::Result<Self> {
        let mut watched = Self {
            wanted,
            global,
            ports: vec![],
            names: vec![],
            round: Round::default(),
            all: None,
            any_gone: false,
        };
        let opened = watched.open(name, SLOTS);
        opened.with_context(|| format!("Cannot watch {name}"))?;
        Ok(watched)
    }

    /// Watches all ports of a switch, those to come included.
    pub fn switch(switch: SwitchName, wanted: Wanted, global: &'a Global) -> anyhow::Result<Self> {
        let client = Client::connect(global)?.without_progress();
        let all = All { switch, client, known: HashSet::new(), look_at: 0 };
        let (ports, names, round) = (Vec::new(), Vec::new(), Round::default());
        let all = Some(all);
        let mut watched = Self { wanted, global, ports, names, round, all, any_gone: false };
        watched.look(0)?;
        Ok(watched)
    }

    fn open(&mut self, name: &str, slots: u32) -> Result<(), OpenError> {
        let monitor = self.wanted.monitor;
        let open = Open::new(name).slots(slots).directory(self.global.dir()).monitor(monitor);
        self.ports.push(open.open()?);
        self.names.push(name.to_owned());
        Ok(())
    }

    /// Watches the ports of the switch that are new, from time to time.
    fn look(&mut self, now: u64) -> anyhow::Result<()> {
        let Some(all) = self.all.as_mut().filter(|all| now >= all.look_at) else { return Ok(()) };
        all.look_at = now + LOOK_NS;
        let switch = all.switch.to_string();
        let ports: Vec<PortInfo> = all.client.get(&format!("{}/ports", all.switch.path()))?;
        all.known.retain(|known| ports.iter().any(|port| port.name == *known));
        let new: Vec<_> = ports
            .into_iter()
            .filter(|port| port.monitors.is_none() && all.known.insert(port.name.clone()))
            .collect();
        for port in new {
            let name = format!("{switch}:{}", port.name);
            if let Err(error) = self.open(&name, SLOTS_OF_MANY) {
                eprintln!("toklat: {name} is not captured: {error}");
            }
        }
        Ok(())
    }

    /// Writes up to `most` frames that have come.
    pub fn take(
        &mut self,
        to: &mut (impl Output + ?Sized),
        most: u64,
        now: u64,
    ) -> anyhow::Result<Volume> {
        self.look(now)?;
        let max = usize::try_from(most).map_or(64, |most| most.min(64));
        let mut gone = Vec::new();
        let look = std::mem::take(&mut self.any_gone);
        for (number, port) in self.ports.iter_mut().enumerate() {
            self.round.take((number, &mut *port), &self.wanted, max);
            match port.flush().and_then(|()| if look { port.disarm() } else { Ok(()) }) {
                Err(PortError::Gone) if self.all.is_some() => gone.push(number),
                done => done?,
            }
        }
        let volume = self.round.write(to, most, |port| &self.names[port])?;
        // The last first, so that the numbers of the others stay.
        for number in gone.into_iter().rev() {
            self.ports.remove(number);
            let name = self.names.remove(number);
            if let (Some(all), Some((_, port))) = (&mut self.all, name.split_once(':')) {
                all.known.remove(port);
            }
        }
        Ok(volume)
    }

    /// Idles until a port has frames, or there may be new ports.
    pub fn idle(&mut self, idler: &mut Idler, now: u64) -> anyhow::Result<()> {
        let until = self.all.as_ref().map_or(u64::MAX, |all| all.look_at);
        match idler.idle(now, until).take_all(&mut self.ports, Interest::READ) {
            Err(error) if self.all.is_some() && is_gone(&error) => {
                self.any_gone = true;
                Ok(())
            }
            done => done,
        }
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(PortError::Gone))
}
