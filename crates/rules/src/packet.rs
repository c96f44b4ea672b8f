//! What rules judge: a frame on its way to a port, or from one.

use core::net::IpAddr;

use frame::{EtherType, Facts, Fragment, Protocol, bpf};

/// Which way a frame goes, seen from the owner of the port whose rules are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the port's owner.
    In,
    /// From the port's owner.
    Out,
}

/// What a switch knows about the ends of a frame, and no sender can forge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// The groups of the sending port, a bit each.
    pub groups: u64,
    /// The frame comes from the port whose rules are asked, with an address that it may use.
    pub from_me: bool,
    /// The frame goes to the port whose rules are asked, to an address of it.
    pub to_me: bool,
    /// The VLAN of the frame in the switch; 0 for none.
    pub vlan: u16,
}

/// A frame to judge.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'h> {
    /// What its head says.
    pub facts: &'h Facts,
    /// The head itself.
    pub head: &'h [u8],
    /// Bytes of the frame.
    pub len: u32,
    /// What the switch knows.
    pub sides: Sides,
    /// A random number for this frame.
    pub draw: u32,
}

/// A frame as a filter sees it: its head. Loads beyond it refuse the frame, as those beyond a frame
/// do.
struct Seen<'h> {
    head: &'h [u8],
    len: u32,
    sent: bool,
}

impl bpf::Packet for Seen<'_> {
    fn len(&self) -> u32 {
        self.len
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.head.get(at..)?.first_chunk().copied()
    }

    fn ancillary(&self, what: bpf::Ancillary) -> u32 {
        bpf::ancillary(self, what, 0, self.sent)
    }
}

impl Packet<'_> {
    /// True if a filter of the port's owner wants the frame.
    pub(crate) fn passes(&self, filter: &bpf::Program, direction: Direction) -> bool {
        let sent = direction == Direction::Out;
        filter.admits(&Seen { head: self.head, len: self.len, sent })
    }

    /// The type of an ICMP or ICMPv6 message, unless the frame is a later fragment.
    #[must_use]
    pub fn icmp_type(&self) -> Option<u8> {
        let is_icmp = match self.facts.protocol? {
            Protocol::ICMP => self.facts.ethertype == EtherType::IPV4,
            Protocol::ICMPV6 => self.facts.ethertype == EtherType::IPV6,
            _ => false,
        };
        let whole = self.facts.fragment != Fragment::Later;
        (is_icmp && whole).then(|| self.facts.payload(self.head).first().copied()).flatten()
    }

    /// The addresses of an IP packet.
    #[must_use]
    pub fn ip(&self) -> Option<(IpAddr, IpAddr)> {
        self.facts.ip
    }
}
