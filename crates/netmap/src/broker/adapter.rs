//! Adapters, which descriptors bind to: ports of switches, persistent ports, ends of pipes,
//! monitors, rings without a port.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;

use netring::Monitor;
use netring::layout::{Format, RingSpec};

use super::accounts::Charge;
use super::effect::{CardFiles, Place};
use super::key::Key;
use super::region::Shape;
use crate::abi::{Register, flags, mode};
use rustix::io::Errno;

/// The kind of an adapter, and the state that only this kind has.
#[derive(Debug)]
pub(super) enum Kind {
    /// A port of a switch. The request that names it makes it, and closing its last descriptor
    /// removes it.
    Ephemeral,
    /// A port made by `VALE_NEWIF`, or for its pipes (`auto`). The latter is removed with its last
    /// pipe.
    Persistent { auto: bool },
    /// An end of a pipe.
    Pipe {
        /// The adapter whose region the pipe uses.
        parent: Key,
        /// The other end.
        twin: Key,
        /// What wakes this end.
        wake: OwnedFd,
    },
    /// Gets copies of what another adapter sends or receives.
    Monitor {
        /// The key of the adapter that is monitored, if it is the user's own: it stays as long as
        /// the monitor.
        parent: Option<Key>,
        /// Which frames of that adapter are copied.
        of: Monitor,
    },
    /// Gets what goes through another adapter's rings from the processes that sync them: the
    /// buffers of slots that are given back, or copies.
    Watcher {
        /// The key of the adapter that is monitored.
        parent: Key,
        /// Its rings that are monitored, host rings by the monitor's host rings.
        of: Choice,
        /// The monitor gets copies.
        copies: bool,
        /// The parent was closed since. The monitor gets nothing any more.
        lost: bool,
    },
    /// A card that the programs drive themselves.
    Card {
        /// What its interrupts signal.
        wake: OwnedFd,
        /// The card's files, while a descriptor is bound.
        files: Option<CardFiles>,
        /// The first of the buffers that the drivers share, while the rings exist.
        descriptors: Option<u32>,
    },
    /// Rings without a port.
    Null,
}

/// Rings in a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rings {
    pub(super) tx: RingSpec,
    pub(super) rx: RingSpec,
    pub(super) host: Option<HostRings>,
}

impl Rings {
    /// The rings by the numbers that [`Choice::ranges`] gives them.
    pub(super) fn specs(&self) -> [RingSpec; 4] {
        let none = RingSpec::default();
        let host = self.host.map_or([none; 2], |host| [host.tx, host.rx]);
        [self.tx, self.rx, host[0], host[1]]
    }
}

/// The host rings of an interface, and the rings of transparent mode, which programs do not see.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostRings {
    pub(super) tx: RingSpec,
    pub(super) rx: RingSpec,
    /// The ring after `tx`: what programs forward to the host.
    pub(super) up: RingSpec,
    /// The ring after the interface's send rings: what programs forward from the host.
    pub(super) down: RingSpec,
}

/// The descriptors that use a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    descriptors: u32,
    exclusive: bool,
}

/// Where in their buffers the bytes of a ring's slots may start (option OFFSETS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    /// Number of low bits of `ptr` that are the offset, 1 to 64.
    pub(super) bits: u8,
    /// The largest offset, in bytes.
    pub(super) max: u64,
}

impl Offsets {
    /// The bits of `ptr` that are the offset.
    pub(super) fn mask(self) -> u64 {
        self.format(0).offset_mask()
    }

    /// The format of slots with these offsets, and headers of this length.
    fn format(self, header: u8) -> Format {
        Format::from_bits(u32::from(header) | u32::from(self.bits) << 8)
    }
}

/// An adapter, to which descriptors can be bound.
pub(super) struct Adapter {
    pub(super) kind: Kind,
    pub(super) region: u16,
    pub(super) shape: Shape,
    /// The switch to which the adapter belongs, and its name there.
    pub(super) place: Option<Place>,
    /// The second switch of a persistent port, which joins both; then no program can open it.
    pub(super) second: Option<String>,
    /// The rings. They exist while a descriptor is bound; for pipes, to either end.
    pub(super) rings: Option<Rings>,
    /// Bound descriptors.
    pub(super) bindings: u32,
    /// The port's token, while it is in its switch.
    pub(super) token: Option<OwnedFd>,
    /// The port's number, if its switch is trusted.
    pub(super) number_if_trusted: Option<u16>,
    /// The interface of the host that the adapter is.
    pub(super) ifname: Option<String>,
    /// The switch and the port that the host rings are, if these are another port.
    pub(super) host_place: Option<Place>,
    /// The token of that port, while there is one.
    pub(super) host_token: Option<OwnedFd>,
    /// Bytes of the virtio-net header before each frame: 0, 10 or 12.
    pub(super) header: u8,
    /// The offsets in the slots of each ring, as long as the rings exist.
    pub(super) offsets: [Vec<Option<Offsets>>; 4],
    /// The receive ring that gets the buffers of each ring, if any: its number and its slots.
    pub(super) watchers: [Vec<Option<(u32, u32)>>; 4],
    /// The first copying monitor of each ring, by direction; of a monitor, the next one after it:
    /// its ring's number and its slots.
    pub(super) copiers: [Vec<Option<(u32, u32)>>; 2],
    /// Rings of monitors that were closed. A process that is about to fill them may not know yet,
    /// so they stay as long as the rings of this adapter.
    pub(super) retired: Vec<(Rings, Shape)>,
    /// The ends of pipes and the monitors that keep this adapter.
    pub(super) children: BTreeSet<Key>,
    /// What its user is charged for it.
    charges: Vec<Charge>,
    uses: [Vec<Use>; 4],
}

/// The rings that a descriptor is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) tx: Range<u32>,
    pub(super) rx: Range<u32>,
    pub(super) host_tx: Range<u32>,
    pub(super) host_rx: Range<u32>,
    pub(super) exclusive: bool,
}

impl Choice {
    /// The rings that send, those that receive, and the same of host rings.
    pub(super) fn ranges(&self) -> [&Range<u32>; 4] {
        [&self.tx, &self.rx, &self.host_tx, &self.host_rx]
    }

    /// Returns true if host rings are chosen.
    pub(super) fn has_host(&self) -> bool {
        !self.host_tx.is_empty() || !self.host_rx.is_empty()
    }
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Adapter {:?} in region {}", self.kind, self.region)
    }
}

impl Adapter {
    /// Returns true if the adapter is this port of a switch.
    pub(super) fn is_at(&self, switch: &str, port: &str) -> bool {
        self.place.as_ref().is_some_and(|place| {
            place.port == port && (place.switch == switch || self.second.as_deref() == Some(switch))
        })
    }

    pub(super) fn new(kind: Kind, region: u16, shape: Shape, place: Option<Place>) -> Self {
        let Shape { tx_rings, rx_rings, host: [host_tx, host_rx], .. } = shape;
        let rings = [tx_rings, rx_rings, host_tx, host_rx].map(|n| n as usize);
        Self {
            kind,
            region,
            shape,
            place,
            second: None,
            rings: None,
            bindings: 0,
            token: None,
            number_if_trusted: None,
            ifname: None,
            host_place: None,
            host_token: None,
            header: 0,
            watchers: rings.map(|n| vec![None; n]),
            copiers: [0, 1].map(|_| vec![None; rings[0].max(rings[1])]),
            retired: Vec::new(),
            children: BTreeSet::new(),
            charges: Vec::new(),
            offsets: rings.map(|n| vec![None; n]),
            uses: rings.map(|n| vec![Use::default(); n]),
        }
    }

    /// The adapter that this one keeps.
    pub(super) fn parent(&self) -> Option<&Key> {
        match &self.kind {
            Kind::Pipe { parent, .. } | Kind::Watcher { parent, .. } => Some(parent),
            Kind::Monitor { parent, .. } => parent.as_ref(),
            _ => None,
        }
    }

    /// Keeps charges as long as the adapter exists.
    pub(super) fn keep(&mut self, charges: impl IntoIterator<Item = Charge>) {
        self.charges.extend(charges);
    }

    /// Returns true if the host rings are those of a port, or of a monitor of one.
    pub(super) fn has_host(&self) -> bool {
        let is_monitor = matches!(self.kind, Kind::Monitor { .. } | Kind::Watcher { .. });
        self.shape.host != [0; 2] && (is_monitor || self.host_token.is_some())
    }

    /// What the slots of a ring hold besides frames. `way` is the ring's place in
    /// [`Choice::ranges`].
    pub(super) fn format(&self, way: usize, ring: u32) -> Format {
        let offsets = self.offsets[way].get(ring as usize).copied().flatten();
        offsets.unwrap_or(Offsets { bits: 0, max: 0 }).format(self.header)
    }

    /// True if a ring of this kind has slots with offsets.
    pub(super) fn has_offsets(&self, way: usize) -> bool {
        self.offsets[way].iter().any(Option::is_some)
    }

    /// True if only one descriptor uses a ring.
    pub(super) fn is_sole_user(&self, way: usize, ring: u32) -> bool {
        self.uses[way].get(ring as usize).is_some_and(|ring| ring.descriptors == 1)
    }

    /// Returns the rings that a request selects.
    pub(super) fn choose(&self, request: &Register) -> Result<Choice, Errno> {
        let Shape { tx_rings, rx_rings, host: [host_tx, host_rx], .. } = self.shape;
        let one = u32::from(request.ringid);
        // If a direction has no ring of this number, its first one is chosen.
        let pick = |rings: u32| if one < rings { one..one + 1 } else { 0..rings.min(1) };
        let has_host = self.shape.host != [0; 2];
        let none = || (0..0, 0..0);
        let (nic, host) = match request.mode {
            mode::ALL_NIC => ((0..tx_rings, 0..rx_rings), none()),
            mode::NULL if matches!(self.kind, Kind::Null) => ((0..tx_rings, 0..rx_rings), none()),
            mode::ONE_NIC if one < tx_rings || one < rx_rings => {
                ((pick(tx_rings), pick(rx_rings)), none())
            }
            // Neither VALE ports nor pipes have host rings.
            mode::SW if has_host => (none(), (0..host_tx, 0..host_rx)),
            mode::NIC_SW if has_host => ((0..tx_rings, 0..rx_rings), (0..host_tx, 0..host_rx)),
            mode::ONE_SW if has_host && (one < host_tx || one < host_rx) => {
                (none(), (pick(host_tx), pick(host_rx)))
            }
            _ => return Err(Errno::INVAL),
        };
        let ((mut tx, mut rx), (mut host_tx, mut host_rx)) = (nic, host);
        if request.flags & flags::RX_RINGS_ONLY != 0 {
            (tx, host_tx) = none();
        }
        if request.flags & flags::TX_RINGS_ONLY != 0 {
            (rx, host_rx) = none();
        }
        Ok(Choice { tx, rx, host_tx, host_rx, exclusive: request.flags & flags::EXCLUSIVE != 0 })
    }

    /// Returns the rings that a new descriptor gets. A monitor's descriptor gets all receive rings
    /// of the interface, of its host or of both; the request selects those of the port.
    pub(super) fn select(&self, request: &Register) -> Result<Choice, Errno> {
        match self.kind {
            Kind::Monitor { .. } | Kind::Watcher { .. } => {
                let has_nic = !matches!(request.mode, mode::SW | mode::ONE_SW);
                let rx = if has_nic { 0..self.shape.rx_rings } else { 0..0 };
                Ok(Choice { rx, host_rx: 0..self.shape.host[1], ..Choice::default() })
            }
            _ => self.choose(request),
        }
    }

    /// Takes the chosen rings.
    pub(super) fn take(&mut self, choice: &Choice) -> Result<(), Errno> {
        let busy = self
            .chosen(choice)
            .any(|ring| ring.exclusive || (choice.exclusive && ring.descriptors > 0));
        if busy {
            return Err(Errno::BUSY);
        }
        for (uses, range) in self.uses.iter_mut().zip(choice.ranges()) {
            for ring in &mut uses[range.start as usize..range.end as usize] {
                ring.descriptors += 1;
                ring.exclusive |= choice.exclusive;
            }
        }
        Ok(())
    }

    /// Releases the chosen rings.
    pub(super) fn give(&mut self, choice: &Choice) {
        for (uses, range) in self.uses.iter_mut().zip(choice.ranges()) {
            for ring in &mut uses[range.start as usize..range.end as usize] {
                ring.descriptors = ring.descriptors.saturating_sub(1);
                // An exclusive descriptor is the ring's only one, so the flag goes with it.
                ring.exclusive &= ring.descriptors > 0;
            }
        }
    }

    fn chosen(&self, choice: &Choice) -> impl Iterator<Item = Use> {
        let part = |(uses, range): (&Vec<Use>, &Range<u32>)| {
            uses[range.start as usize..range.end as usize].to_vec()
        };
        self.uses.iter().zip(choice.ranges()).flat_map(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter() -> Adapter {
        let shape = Shape { tx_rings: 2, rx_rings: 4, tx_slots: 64, rx_slots: 64, host: [0; 2] };
        Adapter::new(Kind::Ephemeral, 2, shape, None)
    }

    fn request(mode: u32, ringid: u16, flags: u64) -> Register {
        Register { mode, ringid, flags, ..Register::default() }
    }

    #[test]
    fn modes_choose_rings() {
        let adapter = adapter();
        let chosen = |mode, ring, flags| adapter.choose(&request(mode, ring, flags));
        let some = |tx, rx| Ok(Choice { tx, rx, ..Choice::default() });
        assert_eq!(chosen(mode::ALL_NIC, 9, 0), some(0..2, 0..4));
        assert_eq!(chosen(mode::ONE_NIC, 1, 0), some(1..2, 1..2));
        assert_eq!(chosen(mode::ONE_NIC, 3, 0), some(0..1, 3..4));
        assert_eq!(chosen(mode::ALL_NIC, 0, flags::RX_RINGS_ONLY), some(0..0, 0..4));
        assert_eq!(chosen(mode::ALL_NIC, 0, flags::TX_RINGS_ONLY), some(0..2, 0..0));
        for (mode, ring) in [(0, 0), (2, 0), (3, 0), (4, 4), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0)]
        {
            assert_eq!(chosen(mode, ring, 0), Err(Errno::INVAL), "{mode} {ring}");
        }
    }

    #[test]
    fn modes_choose_host_rings_of_interfaces() {
        let shape = adapter().shape.with_host([2, 0]);
        assert_eq!(shape.host, [2, 1]);
        let adapter = Adapter::new(Kind::Ephemeral, 2, shape, None);
        let chosen = |mode, ring, flags| adapter.choose(&request(mode, ring, flags));
        let some =
            |tx, rx, host_tx, host_rx| Ok(Choice { tx, rx, host_tx, host_rx, exclusive: false });
        assert_eq!(chosen(mode::ALL_NIC, 0, 0), some(0..2, 0..4, 0..0, 0..0));
        assert_eq!(chosen(mode::SW, 0, 0), some(0..0, 0..0, 0..2, 0..1));
        assert_eq!(chosen(mode::NIC_SW, 0, 0), some(0..2, 0..4, 0..2, 0..1));
        assert_eq!(chosen(mode::NIC_SW, 0, flags::RX_RINGS_ONLY), some(0..0, 0..4, 0..0, 0..1));
        assert_eq!(chosen(mode::ONE_SW, 1, 0), some(0..0, 0..0, 1..2, 0..1));
        assert_eq!(chosen(mode::ONE_SW, 2, 0), Err(Errno::INVAL));
    }

    #[test]
    fn rings_are_shared_unless_exclusive_use_is_requested() {
        let mut adapter = adapter();
        let choose = |a: &Adapter, ring, flags| a.choose(&request(mode::ONE_NIC, ring, flags));
        let shared = choose(&adapter, 0, 0).unwrap();
        let alone = choose(&adapter, 0, flags::EXCLUSIVE).unwrap();
        let other = choose(&adapter, 1, flags::EXCLUSIVE).unwrap();
        assert_eq!([adapter.take(&shared), adapter.take(&shared)], [Ok(()), Ok(())]);
        assert_eq!(adapter.take(&alone), Err(Errno::BUSY));
        assert_eq!(adapter.take(&other), Ok(()), "another ring");
        adapter.give(&shared);
        assert_eq!(adapter.take(&alone), Err(Errno::BUSY));
        adapter.give(&shared);
        assert_eq!([adapter.take(&alone), adapter.take(&shared)], [Ok(()), Err(Errno::BUSY)]);
        adapter.give(&alone);
        assert_eq!(adapter.take(&shared), Ok(()));
    }
}
