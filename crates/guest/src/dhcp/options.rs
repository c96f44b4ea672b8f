//! The options of a server's message: where they stand, and what they say.

use std::net::Ipv4Addr;

use smoltcp::wire::{DhcpMessageType as Kind, DhcpPacket};
use tcp::Nanos;

use super::{LEAST_LEASE, Lease, is_host};

/// Maximum number of name servers that are kept.
const MAX_SERVERS: usize = 3;
/// Maximum number of routes that are kept.
const MAX_ROUTES: usize = 16;
/// The least MTU that is taken; less would be an attack.
const LEAST_MTU: u16 = 576;
/// Options (RFC 2132): subnet mask, routers, name servers, MTU, and those of DHCP itself.
pub(super) const MASK: u8 = 1;
pub(super) const ROUTERS: u8 = 3;
pub(super) const NAME_SERVERS: u8 = 6;
pub(super) const MTU: u8 = 26;
pub(super) const LEASE_TIME: u8 = 51;
const OVERLOAD: u8 = 52;
const MESSAGE_TYPE: u8 = 53;
const SERVER_ID: u8 = 54;
pub(super) const RENEWAL_TIME: u8 = 58;
pub(super) const REBINDING_TIME: u8 = 59;
/// Routes with prefixes (RFC 3442).
pub(super) const CLASSLESS_ROUTES: u8 = 121;
const PAD: u8 = 0;
const END: u8 = 255;
/// Where options may stand (RFC 2131, 2): the fields `sname` and `file`, and after the cookie.
const SERVER_NAME: std::ops::Range<usize> = 44..108;
const FILE: std::ops::Range<usize> = 108..236;
const OPTIONS: usize = 240;

/// A way to a network that a server has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub network: Ipv4Addr,
    pub prefix: u8,
    /// The router; `None` for a network on the link.
    pub via: Option<Ipv4Addr>,
}

/// The options of a message.
pub(super) struct Told<'p> {
    pub kind: Kind,
    pub server: Option<Ipv4Addr>,
    packet: &'p DhcpPacket<&'p [u8]>,
    /// The fields that hold options, in the order in which they are read (RFC 3396, 5).
    fields: [&'p [u8]; 3],
}

/// The options of a field, to its end option, or as far as they make sense.
fn options(mut field: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        loop {
            match field {
                [PAD, rest @ ..] => field = rest,
                [] | [END, ..] | [_] => return None,
                [kind, len, rest @ ..] => {
                    let (data, rest) = rest.split_at_checked((*len).into())?;
                    field = rest;
                    return Some((*kind, data));
                }
            }
        }
    })
}

impl<'p> Told<'p> {
    pub fn read(packet: &'p DhcpPacket<&'p [u8]>, message: &'p [u8]) -> Option<Self> {
        let first = message.get(OPTIONS..)?;
        let overload = options(first).find(|(kind, _)| *kind == OVERLOAD);
        let overload = overload.and_then(|(_, data)| data.first().copied()).unwrap_or(0);
        let field = |bit: u8, place: std::ops::Range<usize>| match overload & bit {
            0 => &[],
            _ => message.get(place).unwrap_or_default(),
        };
        let fields = [first, field(1, FILE), field(2, SERVER_NAME)];
        let mut told = Self { kind: Kind::Unknown(0), server: None, packet, fields };
        told.kind = Kind::from(*told.option(MESSAGE_TYPE)?.first()?);
        // A server that does not name itself may be the one that serves files.
        let server = told.address(SERVER_ID).unwrap_or_else(|| packet.server_ip());
        told.server = Some(server).filter(|server| is_host(*server));
        Some(told)
    }

    /// The value of an option: all its parts, one after the other (RFC 3396).
    fn option(&self, kind: u8) -> Option<Vec<u8>> {
        let parts = self.fields.iter().flat_map(|field| options(field));
        let mut parts = parts.filter(|(other, _)| *other == kind).map(|(_, data)| data).peekable();
        parts.peek()?;
        Some(parts.flatten().copied().collect())
    }

    fn addresses(&self, kind: u8) -> Vec<Ipv4Addr> {
        let data = self.option(kind).unwrap_or_default();
        let addresses = data.as_chunks::<4>().0.iter().map(|octets| Ipv4Addr::from(*octets));
        addresses.filter(|address| is_host(*address)).take(MAX_SERVERS).collect()
    }

    fn address(&self, kind: u8) -> Option<Ipv4Addr> {
        self.addresses(kind).first().copied()
    }

    /// A time in seconds. All bits set is for ever.
    fn seconds(&self, kind: u8) -> Option<u64> {
        let seconds = u32::from_be_bytes(self.option(kind)?.try_into().ok()?);
        Some(match seconds {
            u32::MAX => u64::MAX,
            seconds => u64::from(seconds) * Nanos::SECOND,
        })
    }

    /// The length of the network's prefix; `None` for a mask that is none.
    fn prefix(&self) -> Option<u8> {
        let Some(mask) = self.option(MASK).and_then(|mask| mask.try_into().ok()) else {
            // The class of the address (RFC 950).
            return Some(match self.packet.your_ip().octets()[0] {
                0..128 => 8,
                128..192 => 16,
                _ => 24,
            });
        };
        let mask = u32::from_be_bytes(mask);
        (mask.leading_ones() == mask.count_ones()).then_some(mask.leading_ones() as u8)
    }

    /// The routes, the longest prefix first; `None` if there are none, or one is malformed.
    fn routes(&self) -> Option<Vec<Route>> {
        let data = self.option(CLASSLESS_ROUTES)?;
        let (mut rest, mut routes) = (&data[..], Vec::new());
        while let [prefix, after @ ..] = rest {
            let len = usize::from(prefix.div_ceil(8));
            let (significant, after) = after.split_at_checked(len).filter(|_| *prefix <= 32)?;
            let (via, after) = after.split_first_chunk::<4>()?;
            let mut network = [0; 4];
            network[..len].copy_from_slice(significant);
            let via = Some(Ipv4Addr::from(*via)).filter(|via| !via.is_unspecified());
            routes.push(Route { network: network.into(), prefix: *prefix, via });
            rest = after;
        }
        routes.retain(|route| route.via.is_none_or(is_host));
        routes.sort_by_key(|route| std::cmp::Reverse(route.prefix));
        routes.truncate(MAX_ROUTES);
        Some(routes)
    }

    pub fn lease(&self, server: Ipv4Addr, now: Nanos) -> Option<Lease> {
        let address = self.packet.your_ip();
        let time = self.seconds(LEASE_TIME)?.max(LEAST_LEASE);
        let t1 = self.seconds(RENEWAL_TIME).filter(|t1| *t1 < time);
        let t2 = self.seconds(REBINDING_TIME).filter(|t2| *t2 < time);
        let (t1, t2) = t1.zip(t2).filter(|(t1, t2)| t1 <= t2).unwrap_or((time / 2, time / 8 * 7));
        let mtu = self.option(MTU).and_then(|mtu| Some(u16::from_be_bytes(mtu.try_into().ok()?)));
        // With routes, the routers are ignored (RFC 3442).
        let routes = self.routes();
        let router = if routes.is_some() { None } else { self.address(ROUTERS) };
        is_host(address).then_some(Lease {
            address,
            prefix: self.prefix()?,
            router,
            routes: routes.unwrap_or_default(),
            name_servers: self.addresses(NAME_SERVERS),
            mtu: mtu.filter(|mtu| *mtu >= LEAST_MTU),
            server,
            renew: now + t1.max(LEAST_LEASE / 2),
            rebind: now + t2.max(LEAST_LEASE / 2),
            end: now + time,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: &[u8] = &[LEASE_TIME, 4, 0, 0, 14, 16];
    const KIND: &[u8] = &[MESSAGE_TYPE, 1, 5];
    const NET: &[u8] = &[MASK, 4, 255, 255, 255, 0];
    const WAY: &[u8] = &[ROUTERS, 4, 10, 0, 0, 254];
    const NAMES: &[u8] = &[NAME_SERVERS, 4, 10, 0, 0, 53];
    const ALL: [&[u8]; 5] = [KIND, TIME, NET, WAY, NAMES];

    /// A message with these bytes in the options, `file` and `sname`.
    fn lease(parts: [&[u8]; 3]) -> Option<Lease> {
        let mut message = vec![0; OPTIONS];
        message[16..20].copy_from_slice(&[10, 0, 0, 150]);
        message[20..24].copy_from_slice(&[10, 0, 0, 70]);
        message[FILE.start..][..parts[1].len()].copy_from_slice(parts[1]);
        message[SERVER_NAME.start..][..parts[2].len()].copy_from_slice(parts[2]);
        message.extend(parts[0]);
        let packet = DhcpPacket::new_checked(&message[..]).ok()?;
        let told = Told::read(&packet, &message)?;
        told.lease(told.server?, Nanos(0))
    }

    fn joined(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    /// All forms in which servers write the same options.
    #[test]
    fn every_form_of_the_options_says_the_same() {
        let usual = lease([&joined(&[&ALL.concat(), &[END]]), &[], &[]]).unwrap();
        let (of, router) = (Ipv4Addr::new(10, 0, 0, 70), Ipv4Addr::new(10, 0, 0, 254));
        assert_eq!((usual.prefix, usual.router, usual.server), (24, Some(router), of));
        assert_eq!(usual.name_servers, [Ipv4Addr::new(10, 0, 0, 53)]);
        let over = |bits: u8| [OVERLOAD, 1, bits];
        let rest = joined(&[TIME, NET, WAY, NAMES, &[END]]);
        let forms: &[(&str, [Vec<u8>; 3])] = &[
            ("no end option", [ALL.concat(), vec![], vec![]]),
            (
                "padding between",
                [joined(&[&[0, 0, 0], KIND, &[0], TIME, NET, &[0; 9], WAY, NAMES]), vec![], vec![]],
            ),
            (
                "bytes after the end",
                [joined(&[&ALL.concat(), &[END], &[0xaa; 200]]), vec![], vec![]],
            ),
            (
                "unknown options",
                [joined(&[&[200, 0], &[201, 3, 1, 2, 3], &ALL.concat(), &[END]]), vec![], vec![]],
            ),
            ("a length past the end", [joined(&[&ALL.concat(), &[77, 99, 1]]), vec![], vec![]]),
            ("a kind without a length", [joined(&[&ALL.concat(), &[77]]), vec![], vec![]]),
            ("in `file`", [joined(&[KIND, &over(1), &[END]]), rest.clone(), vec![]]),
            ("in `sname`", [joined(&[KIND, &over(2), &[END]]), vec![], rest.clone()]),
            (
                "in both",
                [joined(&[KIND, &over(3), TIME]), joined(&[NET, WAY]), joined(&[NAMES, &[END]])],
            ),
            ("overload without an end", [joined(&[&over(1), KIND]), rest.clone(), vec![]]),
            (
                "overload at the end",
                [joined(&[KIND, TIME, &over(2), &[END]]), vec![], joined(&[NET, WAY, NAMES])],
            ),
            (
                "a file's name that is none of options",
                [joined(&[&ALL.concat(), &[END]]), b"pxelinux.0".to_vec(), b"boot".to_vec()],
            ),
            (
                "an option in two parts",
                [
                    joined(&[KIND, TIME, NET, &[ROUTERS, 2, 10, 0], NAMES, &[ROUTERS, 2, 0, 254]]),
                    vec![],
                    vec![],
                ],
            ),
            (
                "parts in two fields",
                [
                    joined(&[KIND, TIME, NET, WAY, &over(1), &[NAME_SERVERS, 3, 10, 0, 0]]),
                    joined(&[&[NAME_SERVERS, 1, 53]]),
                    vec![],
                ],
            ),
            ("an MTU of a wrong length", [joined(&[&[MTU, 1, 9], &ALL.concat()]), vec![], vec![]]),
            (
                "a server that names itself",
                [joined(&[&ALL.concat(), &[SERVER_ID, 4, 10, 0, 0, 70]]), vec![], vec![]],
            ),
        ];
        for (name, [first, file, server]) in forms {
            assert_eq!(lease([first, file, server]).as_ref(), Some(&usual), "{name}");
        }
        // `file` holds options only if the overload option says so.
        assert_eq!(lease([&joined(&[KIND, &[END]]), &rest, &[]]), None);
    }

    #[test]
    fn routes_replace_the_routers() {
        let with = |routes: &[u8]| {
            let option = joined(&[&[CLASSLESS_ROUTES, routes.len() as u8], routes]);
            lease([&joined(&[&ALL.concat(), &option, &[END]]), &[], &[]]).unwrap()
        };
        let route = |network: [u8; 4], prefix: u8, via: [u8; 4]| Route {
            network: network.into(),
            prefix,
            via: Some(Ipv4Addr::from(via)).filter(|via| !via.is_unspecified()),
        };
        let given = with(&[
            0, 10, 0, 0, 1, // everything
            32, 169, 254, 169, 254, 0, 0, 0, 0, // a host on the link
            17, 10, 17, 128, 10, 0, 0, 2, 8, 11, 10, 0, 0, 3,
        ]);
        let wanted = [
            route([169, 254, 169, 254], 32, [0; 4]),
            route([10, 17, 128, 0], 17, [10, 0, 0, 2]),
            route([11, 0, 0, 0], 8, [10, 0, 0, 3]),
            route([0; 4], 0, [10, 0, 0, 1]),
        ];
        assert_eq!((given.router, &given.routes[..]), (None, &wanted[..]));
        // Malformed ones count as none.
        for wrong in [&[33, 1, 2, 3, 4, 5, 10, 0, 0, 1][..], &[24, 10, 0], &[8, 10, 10, 0, 0]] {
            let given = with(wrong);
            assert_eq!((given.router.is_some(), given.routes.len()), (true, 0), "{wrong:?}");
        }
    }
}
