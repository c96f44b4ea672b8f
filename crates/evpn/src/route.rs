//! Routes on the wire (RFC 7432, 7; RFC 8365): types 2 and 3, with the attributes that are sent.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use frame::Mac;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A route distinguisher (RFC 4364, 4.2): eight bytes, type first.
pub type Distinguisher = [u8; 8];

/// VXLAN as a tunnel type (RFC 9012, 4.1; RFC 8365, 11).
pub const VXLAN: u16 = 8;
/// Ingress replication as a tunnel type of a multicast route (RFC 6514, 5).
pub const INGRESS_REPLICATION: u8 = 6;

/// The distinguisher of type 1: an IPv4 address and a number.
#[must_use]
pub fn distinguisher(router: Ipv4Addr, number: u16) -> Distinguisher {
    let [a, b, c, d] = router.octets();
    let [x, y] = number.to_be_bytes();
    [0, 1, a, b, c, d, x, y]
}

/// A route target (RFC 4360, 4): an extended community of eight bytes. As text `AS:NUMBER` or
/// `IPV4:NUMBER`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteTarget(pub(crate) [u8; 8]);

impl RouteTarget {
    /// The route target of an AS and a segment: the low 16 bits of the AS, and the VNI, as FRR
    /// derives it.
    #[must_use]
    pub fn auto(asn: u32, vni: u32) -> Self {
        Self::of_two_octets(asn as u16, vni)
    }

    /// With an AS number of two octets.
    #[must_use]
    pub fn of_two_octets(asn: u16, number: u32) -> Self {
        let ([a, b], [c, d, e, f]) = (asn.to_be_bytes(), number.to_be_bytes());
        Self([0, 2, a, b, c, d, e, f])
    }

    /// With an AS number of four octets.
    #[must_use]
    pub fn of_four_octets(asn: u32, number: u16) -> Self {
        Self::of_word(2, asn, number)
    }

    /// With an IPv4 address.
    #[must_use]
    pub fn of_address(address: Ipv4Addr, number: u16) -> Self {
        Self::of_word(1, address.into(), number)
    }

    fn of_word(kind: u8, word: u32, number: u16) -> Self {
        let ([a, b, c, d], [e, f]) = (word.to_be_bytes(), number.to_be_bytes());
        Self([kind, 2, a, b, c, d, e, f])
    }
}

impl fmt::Display for RouteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, _, a, b, c, d, e, g] = self.0;
        match kind {
            0 => write!(f, "{}:{}", u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, g])),
            1 => write!(f, "{}:{}", Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([e, g])),
            _ => write!(f, "{}:{}", u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, g])),
        }
    }
}

impl fmt::Debug for RouteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is no route target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no route target: write AS:NUMBER or IPV4:NUMBER, as 65000:100")]
pub struct NoRouteTarget(String);

impl FromStr for RouteTarget {
    type Err = NoRouteTarget;

    fn from_str(text: &str) -> Result<Self, NoRouteTarget> {
        let no = || NoRouteTarget(text.to_owned());
        let (admin, number) = text.split_once(':').ok_or_else(no)?;
        let number: u32 = number.parse().map_err(|_| no())?;
        let short = || u16::try_from(number).map_err(|_| no());
        if let Ok(address) = admin.parse() {
            return Ok(Self::of_address(address, short()?));
        }
        let asn: u32 = admin.parse().map_err(|_| no())?;
        match u16::try_from(asn) {
            Ok(asn) => Ok(Self::of_two_octets(asn, number)),
            Err(_) => Ok(Self::of_four_octets(asn, short()?)),
        }
    }
}

impl Serialize for RouteTarget {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RouteTarget {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What identifies a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Type 2: a station, with one of its addresses or none.
    Mac {
        /// The distinguisher of the host that advertises the route.
        rd: Distinguisher,
        /// The Ethernet tag; 0 with one segment for each VNI.
        tag: u32,
        /// The station.
        mac: Mac,
        /// The station's IP address.
        ip: Option<IpAddr>,
    },
    /// Type 3: a host that wants floods.
    Multicast {
        /// The route distinguisher of the host that advertises this.
        rd: Distinguisher,
        /// The Ethernet tag.
        tag: u32,
        /// The host.
        ip: IpAddr,
    },
}

impl Key {
    /// Its distinguisher.
    #[must_use]
    pub const fn rd(&self) -> Distinguisher {
        match self {
            Self::Mac { rd, .. } | Self::Multicast { rd, .. } => *rd,
        }
    }

    /// The route's bytes (RFC 7432, 7.2 and 7.3), with the segment's VNI as the label.
    #[must_use]
    pub fn encode(&self, vni: u32) -> Vec<u8> {
        let mut bytes = vec![0, 0];
        match self {
            Self::Mac { rd, tag, mac, ip } => {
                bytes[0] = 2;
                bytes.extend(rd);
                bytes.extend([0; 10]);
                bytes.extend(tag.to_be_bytes());
                bytes.push(48);
                bytes.extend(mac.octets());
                match ip {
                    Some(ip) => push_address(&mut bytes, *ip),
                    None => bytes.push(0),
                }
                bytes.extend(&vni.to_be_bytes()[1..]);
            }
            Self::Multicast { rd, tag, ip } => {
                bytes[0] = 3;
                bytes.extend(rd);
                bytes.extend(tag.to_be_bytes());
                push_address(&mut bytes, *ip);
            }
        }
        bytes[1] = (bytes.len() - 2) as u8;
        bytes
    }

    /// Reads a route's bytes: the key and, for a station, the first label. `None` if they are no
    /// route of these types.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, Option<u32>)> {
        let (&[kind, len], mut rest) = bytes.split_first_chunk()?;
        if rest.len() != usize::from(len) {
            return None;
        }
        let rest = &mut rest;
        let rd = take::<8>(rest)?;
        if kind == 2 {
            take::<10>(rest)?;
        }
        let tag = u32::from_be_bytes(take(rest)?);
        match kind {
            2 => {
                (take::<1>(rest)? == [48]).then_some(())?;
                let mac = Mac::new(take(rest)?);
                let ip = take_address(rest)?;
                let [a, b, c] = take(rest)?;
                // A second label belongs to a segment that routes between networks.
                matches!(rest.len(), 0 | 3).then_some(())?;
                let vni = u32::from_be_bytes([0, a, b, c]);
                Some((Self::Mac { rd, tag, mac, ip }, Some(vni)))
            }
            3 => {
                let ip = take_address(rest)??;
                rest.is_empty().then_some((Self::Multicast { rd, tag, ip }, None))
            }
            _ => None,
        }
    }
}

fn push_address(bytes: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            bytes.push(32);
            bytes.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(128);
            bytes.extend(ip.octets());
        }
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*taken)
}

/// Takes an address, which follows its length in bits; `None` inside if the length is 0.
#[expect(clippy::option_option, reason = "no address is not the same as no sense")]
fn take_address(from: &mut &[u8]) -> Option<Option<IpAddr>> {
    match take(from)? {
        [0] => Some(None),
        [32] => take::<4>(from).map(|octets| Some(octets.into())),
        [128] => take::<16>(from).map(|octets| Some(octets.into())),
        _ => None,
    }
}

/// How often a station has moved (RFC 7432, 7.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mobility {
    /// The station never moves.
    pub sticky: bool,
    /// The number of its moves.
    pub sequence: u32,
}

/// A route that this host advertises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRoute {
    /// The key that identifies the route.
    pub key: Key,
    /// The segment.
    pub vni: u32,
    /// This host.
    pub vtep: IpAddr,
    /// The targets to which the route is addressed.
    pub targets: Vec<RouteTarget>,
    /// How often the station has moved. Sent only if it is not the default.
    pub mobility: Mobility,
}

impl OwnRoute {
    /// The route's bytes.
    #[must_use]
    pub fn nlri(&self) -> Vec<u8> {
        self.key.encode(self.vni)
    }

    /// The bytes of the route's attributes (RFC 4271, 4.3).
    #[must_use]
    pub fn attributes(&self) -> Vec<Vec<u8>> {
        let origin = vec![0x40, 1, 1, 0];
        let mut all = vec![origin, self.reach(), self.communities()];
        if let Key::Multicast { .. } = self.key {
            all.push(self.tunnel());
        }
        all
    }

    /// The attributes of a withdrawal: the next hop alone. GoBGP refuses one whose communities say
    /// an earlier sequence than its table.
    #[must_use]
    pub fn attributes_of_withdrawal(&self) -> Vec<Vec<u8>> {
        vec![vec![0x40, 1, 1, 0], self.reach()]
    }

    /// The attribute MP_REACH_NLRI (RFC 4760, 3), for L2VPN and EVPN.
    fn reach(&self) -> Vec<u8> {
        let mut body = vec![0, 25, 70];
        match self.vtep {
            IpAddr::V4(ip) => {
                body.push(4);
                body.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                body.push(16);
                body.extend(ip.octets());
            }
        }
        body.push(0);
        body.extend(self.nlri());
        attribute(0x80, 14, &body)
    }

    fn communities(&self) -> Vec<u8> {
        let mut body: Vec<u8> = self.targets.iter().flat_map(|target| target.0).collect();
        body.extend([3, 0x0c, 0, 0, 0, 0, 0, VXLAN as u8]);
        let Mobility { sticky, sequence } = self.mobility;
        if self.mobility != Mobility::default() {
            body.extend([6, 0, u8::from(sticky), 0]);
            body.extend(sequence.to_be_bytes());
        }
        attribute(0xc0, 16, &body)
    }

    /// PMSI tunnel (RFC 6514, 5): ingress replication.
    fn tunnel(&self) -> Vec<u8> {
        let mut body = vec![0, INGRESS_REPLICATION];
        body.extend(&self.vni.to_be_bytes()[1..]);
        match self.vtep {
            IpAddr::V4(ip) => body.extend(ip.octets()),
            IpAddr::V6(ip) => body.extend(ip.octets()),
        }
        attribute(0xc0, 22, &body)
    }
}

fn attribute(flags: u8, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(len) => vec![flags, kind, len],
        Err(_) => {
            let [a, b] = (body.len() as u16).to_be_bytes();
            vec![flags | 0x10, kind, a, b]
        }
    };
    bytes.extend(body);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own(key: Key) -> OwnRoute {
        OwnRoute {
            key,
            vni: 100,
            vtep: [10, 99, 0, 2].into(),
            targets: vec![RouteTarget::auto(65000, 100)],
            mobility: Mobility::default(),
        }
    }

    fn rd() -> Distinguisher {
        distinguisher(Ipv4Addr::new(10, 99, 0, 2), 100)
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|digits| pair(digits).unwrap()).collect()
    }

    /// GoBGP 4.8, 3.10 and FRR 8.4 accept these bytes.
    #[test]
    fn a_station_is_written_as_gobgp_and_frr_take_it() {
        let mac = Mac::new([2, 0, 0, 0, 2, 1]);
        let mut route = own(Key::Mac { rd: rd(), tag: 0, mac, ip: None });
        let nlri =
            "02 21 0001 0a630002 0064 00000000000000000000 00000000 30 020000000201 00 000064";
        assert_eq!(route.nlri(), hex(nlri));
        route.mobility = Mobility { sticky: true, sequence: 7 };
        let attributes = route.attributes();
        assert_eq!(attributes[0], hex("40 01 01 00"));
        assert_eq!(attributes[1], hex(&format!("80 0e 2c 0019 46 04 0a630002 00 {nlri}")));
        let communities = "c0 10 18 0002 fde8 00000064 030c 00000000 0008 0600 01 00 00000007";
        assert_eq!(attributes[2], hex(communities));
        assert_eq!(attributes.len(), 3);
        assert_eq!(route.attributes_of_withdrawal(), attributes[..2]);
    }

    #[test]
    fn a_host_is_written_as_gobgp_and_frr_take_it() {
        let route = own(Key::Multicast { rd: rd(), tag: 0, ip: [10, 99, 0, 2].into() });
        assert_eq!(route.nlri(), hex("03 11 0001 0a630002 0064 00000000 20 0a630002"));
        let attributes = route.attributes();
        assert_eq!(attributes[2], hex("c0 10 10 0002 fde8 00000064 030c 00000000 0008"));
        assert_eq!(attributes[3], hex("c0 16 09 00 06 000064 0a630002"));
    }

    #[test]
    fn route_targets_are_read_as_they_are_written() {
        for (text, bytes) in [
            ("65000:100", "0002 fde8 00000064"),
            ("10.0.0.1:7", "0102 0a000001 0007"),
            ("4200000000:9", "0202 fa56ea00 0009"),
        ] {
            let target: RouteTarget = text.parse().unwrap();
            assert_eq!(target.0[..], hex(bytes));
            assert_eq!(target.to_string(), text);
        }
        for wrong in ["", "100", "a:1", "65000:", "4200000000:70000", "10.0.0.1:70000"] {
            assert!(wrong.parse::<RouteTarget>().is_err(), "{wrong}");
        }
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(IpAddr::from)
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            rd: [u8; 8], tag: u32, mac: [u8; 6], ip in proptest::option::of(address()),
            host in address(), vni in 0..1u32 << 24,
        ) {
            let key = Key::Mac { rd, tag, mac: Mac::new(mac), ip };
            prop_assert_eq!(Key::decode(&key.encode(vni)), Some((key, Some(vni))));
            let key = Key::Multicast { rd, tag, ip: host };
            prop_assert_eq!(Key::decode(&key.encode(vni)), Some((key, None)));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Key::decode(&bytes);
        }
    }
}
