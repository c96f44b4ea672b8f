//! Flows: the addresses and ports of both ends, and keyed hashes over them.

use core::fmt;
use core::hash::Hasher;
use core::net::{IpAddr, Ipv6Addr};

use siphasher::sip::{SipHasher13, SipHasher24};

use crate::seq::Seq;
use crate::time::Nanos;

/// The two ends of a connection, local and remote. IPv4 addresses are stored as IPv4-mapped IPv6
/// addresses (RFC 4291, 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    local: [u8; 16],
    remote: [u8; 16],
    local_port: u16,
    remote_port: u16,
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn unmapped(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

impl Flow {
    /// The flow between a local and a remote address and port. `None` if one is IPv4 and the other
    /// IPv6.
    #[must_use]
    pub fn new(local: (IpAddr, u16), remote: (IpAddr, u16)) -> Option<Self> {
        let flow = Self {
            local: mapped(local.0),
            remote: mapped(remote.0),
            local_port: local.1,
            remote_port: remote.1,
        };
        (is_mapped(&flow.local) == is_mapped(&flow.remote)).then_some(flow)
    }

    /// Local address and port.
    #[must_use]
    pub fn local(&self) -> (IpAddr, u16) {
        (unmapped(self.local), self.local_port)
    }

    /// Remote address and port.
    #[must_use]
    pub fn remote(&self) -> (IpAddr, u16) {
        (unmapped(self.remote), self.remote_port)
    }

    /// Local port.
    #[inline]
    #[must_use]
    pub const fn local_port(&self) -> u16 {
        self.local_port
    }

    /// True for IPv4.
    #[inline]
    #[must_use]
    pub fn is_v4(&self) -> bool {
        is_mapped(&self.local)
    }

    /// Bytes of an IP header without options or extensions.
    #[must_use]
    pub fn ip_header_len(&self) -> u16 {
        if self.is_v4() { 20 } else { 40 }
    }

    /// The local address in the form of the IP header.
    pub(crate) fn local_octets(&self) -> &[u8] {
        &self.local[if self.is_v4() { 12 } else { 0 }..]
    }

    /// The remote address in the form of the IP header.
    pub(crate) fn remote_octets(&self) -> &[u8] {
        &self.remote[if self.is_v4() { 12 } else { 0 }..]
    }

    /// The same flow, seen from the other side.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
            local_port: self.remote_port,
            remote_port: self.local_port,
        }
    }

    pub(crate) const fn with_local_port(self, local_port: u16) -> Self {
        Self { local_port, ..self }
    }

    /// The flow's two ports in one word: a cheap second key beside a hash.
    pub(crate) const fn ports(&self) -> u32 {
        (self.local_port as u32) << 16 | self.remote_port as u32
    }
}

#[inline]
fn is_mapped(octets: &[u8; 16]) -> bool {
    octets[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((local, local_port), (remote, remote_port)) = (self.local(), self.remote());
        write!(f, "[{local}]:{local_port} - [{remote}]:{remote_port}")
    }
}

/// The key of all hashes: 128 random bits, which no peer may learn.
#[derive(Clone, Copy)]
pub struct Secret(pub [u64; 2]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Hashes with the secret as the key, so that nothing without it predicts them.
impl core::hash::BuildHasher for Secret {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0[1], !self.0[0])
    }
}

/// The purpose of a hash. The hashes of one purpose reveal nothing about those of another.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Isn = 1,
    Timestamp = 2,
    Cookie = 3,
    Port = 4,
}

impl Secret {
    fn bytes(flow: &Flow) -> [u8; 36] {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(&flow.local);
        bytes[16..32].copy_from_slice(&flow.remote);
        bytes[32..].copy_from_slice(&flow.ports().to_be_bytes());
        bytes
    }

    /// Returns the hash by which tables find a flow.
    #[inline]
    pub(crate) fn table_hash(&self, flow: &Flow) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write(&Self::bytes(flow));
        hasher.finish()
    }

    /// Returns a code that only a holder of the key can compute.
    pub(crate) fn mac(&self, purpose: Purpose, flow: &Flow, salt: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(!self.0[0], self.0[1]);
        hasher.write(&Self::bytes(flow));
        hasher.write(&[purpose as u8]);
        hasher.write(&salt.to_be_bytes());
        hasher.finish()
    }

    /// Returns the initial sequence number: a clock of 4 us plus a keyed hash (RFC 6528, 3).
    pub(crate) fn initial_seq(&self, flow: &Flow, now: Nanos) -> Seq {
        let clock = (now.0 / (4 * Nanos::MICRO)) as u32;
        Seq(clock.wrapping_add(self.mac(Purpose::Isn, flow, 0) as u32))
    }

    /// Returns the offset that is added to the millisecond clock in timestamps to this peer (RFC
    /// 7323, 5.4).
    ///
    /// It depends on the addresses only, so that timestamps grow from one connection to the next
    /// (RFC 6191).
    pub(crate) fn timestamp_offset(&self, flow: &Flow) -> u32 {
        let hosts = Flow { local_port: 0, remote_port: 0, ..*flow };
        self.mac(Purpose::Timestamp, &hosts, 0) as u32
    }
}
