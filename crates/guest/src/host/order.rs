//! What a manager tells a guest's program: which ports it has, and its addresses.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use frame::Mac;
use netring::{PARTS_BYTES, Port};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::HostError;
use crate::config::{Config, Ipv6Config};

/// Maximum number of ports of one process.
pub const MAX_PORTS: usize = 64;
/// Descriptors of a port: its memory and its token.
const PORT_FDS: usize = 2;
/// Descriptors before those of the ports: a copy's socket and output.
const COPY_FDS: usize = 2;
const MAX_FDS: usize = COPY_FDS + PORT_FDS * MAX_PORTS;

/// The version of orders. Programs are linked with a library of the manager's version.
const VERSION: u16 = 2;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    version: u16,
    ports: u16,
    is_copy: u16,
    waits: u16,
}

/// A port and the host on it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    parts: [u8; PARTS_BYTES],
    address: [u8; 4],
    gateway: [u8; 4],
    mac: [u8; 6],
    prefix: u8,
    has_gateway: u8,
    address6: [u8; 16],
    gateway6: [u8; 16],
    prefix6: u8,
    /// Which settings are there: [`V6`] and the others.
    marks: u8,
}

/// The host has IPv6.
const V6: u8 = 1;
const ADDRESS6: u8 = 2;
const GATEWAY6: u8 = 4;
const AUTOCONFIGURE: u8 = 8;
const PROBES: u8 = 16;
/// The IPv4 address comes from a DHCP server.
const DHCP: u8 = 32;

/// The addresses of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The NIC's address.
    pub mac: Mac,
    /// The host's IPv4 address; 0.0.0.0 for none.
    pub address: Ipv4Addr,
    /// Prefix length of the IPv4 network.
    pub prefix: u8,
    /// The IPv4 router to other networks.
    pub gateway: Option<Ipv4Addr>,
    /// A DHCP server lends the IPv4 address.
    pub dhcp: bool,
    /// IPv6 settings; `None` for a host without IPv6.
    pub v6: Option<Ipv6Config>,
}

/// The list of addresses, as [`Place::new`] reads it.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dhcp = self.dhcp.then(|| "dhcp".to_owned());
        let v4 =
            (!self.address.is_unspecified()).then(|| format!("{}/{}", self.address, self.prefix));
        let v6 = self.v6.and_then(|v6| v6.address).map(|(ip, len)| format!("{ip}/{len}"));
        let auto = self.v6.filter(|v6| v6.autoconfigure).map(|_| "slaac".to_owned());
        let words: Vec<String> = dhcp.into_iter().chain(v4).chain(v6).chain(auto).collect();
        f.write_str(&words.join(","))
    }
}

impl Entry {
    fn v6(&self) -> Option<Ipv6Config> {
        let has = |mark: u8| self.marks & mark != 0;
        let address = (self.address6.into(), self.prefix6.min(128));
        has(V6).then(|| Ipv6Config {
            address: has(ADDRESS6).then_some(address),
            gateway: has(GATEWAY6).then(|| self.gateway6.into()),
            autoconfigure: has(AUTOCONFIGURE),
            probes: has(PROBES).into(),
        })
    }
}

impl Place {
    /// The settings of a stack at this place.
    #[must_use]
    pub fn config(&self) -> Config {
        let config = Config::new(self.mac, self.address, self.prefix);
        Config { gateway: self.gateway, dhcp: self.dhcp, v6: self.v6, ..config }
    }
}

/// A port, taken apart, and the host on it.
#[derive(Debug)]
pub struct Passed {
    fds: Vec<OwnedFd>,
    parts: [u8; PARTS_BYTES],
    place: Place,
}

impl Passed {
    /// Takes the port apart.
    ///
    /// # Errors
    /// As for [`Port::into_parts`].
    pub fn new(port: Port, place: Place) -> Result<Self, netring::PartsError> {
        let (fds, parts) = port.into_parts()?;
        Ok(Self { fds, parts, place })
    }

    /// Its descriptors.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        self.fds.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Puts the port together.
    pub(super) fn open(self) -> Result<(Port, Place), HostError> {
        Ok((Port::from_parts(self.fds, &self.parts)?, self.place))
    }
}

/// An order to a guest's program.
#[derive(Debug)]
pub struct Order {
    /// For a copy of the program: its socket and its output. `None` for the program itself.
    pub copy: Option<[OwnedFd; COPY_FDS]>,
    /// After its confinement, the program waits for one more message before it serves.
    pub waits: bool,
    /// Its ports.
    pub ports: Vec<Passed>,
}

impl Order {
    /// Sends the order. Its descriptors are closed here, so a port ends with the guest.
    ///
    /// # Errors
    /// The kernel's error; [`Errno::TOOBIG`] for too many ports.
    pub fn send(self, control: BorrowedFd<'_>) -> Result<(), Errno> {
        let ports = u16::try_from(self.ports.len()).ok().filter(|n| usize::from(*n) <= MAX_PORTS);
        let ports = ports.ok_or(Errno::TOOBIG)?;
        let is_copy = u16::from(self.copy.is_some());
        let head = Head { version: VERSION, ports, is_copy, waits: self.waits.into() };
        let mut bytes = head.as_bytes().to_vec();
        for Passed { parts, place, .. } in &self.ports {
            let v6 = place.v6.unwrap_or_default();
            let (address6, prefix6) = v6.address.unwrap_or((Ipv6Addr::UNSPECIFIED, 0));
            let marks = [
                (V6, place.v6.is_some()),
                (ADDRESS6, v6.address.is_some()),
                (GATEWAY6, v6.gateway.is_some()),
                (AUTOCONFIGURE, v6.autoconfigure),
                (PROBES, v6.probes > 0),
                (DHCP, place.dhcp),
            ];
            let entry = Entry {
                parts: *parts,
                address: place.address.octets(),
                gateway: place.gateway.unwrap_or(Ipv4Addr::UNSPECIFIED).octets(),
                mac: place.mac.octets(),
                prefix: place.prefix,
                has_gateway: place.gateway.is_some().into(),
                address6: address6.octets(),
                gateway6: v6.gateway.unwrap_or(Ipv6Addr::UNSPECIFIED).octets(),
                prefix6,
                marks: marks.iter().filter(|(_, there)| *there).map(|(mark, _)| mark).sum(),
            };
            bytes.extend_from_slice(entry.as_bytes());
        }
        let fds: Vec<BorrowedFd<'_>> = self.copy.iter().flatten().map(AsFd::as_fd).collect();
        let ports = self.ports.iter().flat_map(|port| &port.fds).map(AsFd::as_fd);
        let fds: Vec<BorrowedFd<'_>> = fds.into_iter().chain(ports).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::TOOBIG);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(control, &[IoSlice::new(&bytes)], &mut rights, flags).map(|_| ())
    }

    /// Waits for an order; `None` when the manager is gone.
    pub(super) fn receive(control: BorrowedFd<'_>) -> Result<Option<Self>, HostError> {
        let mut bytes = vec![0; size_of::<Head>() + MAX_PORTS * size_of::<Entry>()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(control, &mut parts, &mut rights, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                other => break other.map_err(HostError::Manager)?,
            }
        };
        let fds: Vec<OwnedFd> = rights
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        match (received.bytes, received.flags.contains(ReturnFlags::TRUNC)) {
            (0, _) => Ok(None),
            (len, false) => Self::decode(&bytes[..len], fds).map(Some),
            (_, true) => Err(HostError::Malformed("its length")),
        }
    }

    fn decode(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Self, HostError> {
        let (head, entries) =
            Head::read_from_prefix(bytes).map_err(|_| HostError::Malformed("its length"))?;
        let entries =
            <[Entry]>::ref_from_bytes(entries).map_err(|_| HostError::Malformed("its length"))?;
        if head.version != VERSION {
            return Err(HostError::Malformed("its version"));
        }
        let is_copy = head.is_copy != 0;
        let expected = PORT_FDS * entries.len() + if is_copy { COPY_FDS } else { 0 };
        if usize::from(head.ports) != entries.len() || fds.len() != expected {
            return Err(HostError::Malformed("its number of ports"));
        }
        let mut fds = fds.into_iter();
        let copy = match is_copy {
            true => fds.next().zip(fds.next()).map(|(socket, output)| [socket, output]),
            false => None,
        };
        let passed = |entry: &Entry| Passed {
            fds: fds.by_ref().take(PORT_FDS).collect(),
            parts: entry.parts,
            place: Place {
                mac: Mac::new(entry.mac),
                address: entry.address.into(),
                prefix: entry.prefix.min(32),
                gateway: (entry.has_gateway != 0).then(|| entry.gateway.into()),
                dhcp: entry.marks & DHCP != 0,
                v6: entry.v6(),
            },
        };
        Ok(Self { copy, waits: head.waits != 0, ports: entries.iter().map(passed).collect() })
    }
}
