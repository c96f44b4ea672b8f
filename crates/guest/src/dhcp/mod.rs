//! A DHCP client (RFC 2131), without I/O: the IPv4 address, its network, routers, name servers and
//! the MTU of a host, for as long as a server lends them.
//!
//! Every message that comes is checked against what was asked: its number, the MAC address and,
//! while one server is asked, that server. What servers answer never makes more than a message a
//! second.

mod options;

use std::hash::BuildHasher;
use std::net::Ipv4Addr;

use frame::{Ipv4, Mac, Protocol, Udp, checksum::Sum};
use smoltcp::wire::{
    DhcpMessageType as Kind, DhcpOpCode, DhcpOption, DhcpPacket, DhcpRepr, EthernetAddress,
};
use tcp::{Nanos, Secret};
use zerocopy::IntoBytes;

pub(crate) use options::Route;
use options::{
    CLASSLESS_ROUTES, MASK, MTU, NAME_SERVERS, REBINDING_TIME, RENEWAL_TIME, ROUTERS, Told,
};

/// UDP ports of clients and servers (RFC 2131, 4.1).
pub(crate) const CLIENT: u16 = 68;
const SERVER: u16 = 67;
/// Time until a question is repeated; it doubles up to the second one (RFC 2131, 4.1).
const PATIENCE: (u64, u64) = (2 * Nanos::SECOND, 64 * Nanos::SECOND);
/// How often a lease is asked for before the client looks for another server.
const TRIES: u8 = 4;
/// The least time between attempts to renew a lease (RFC 2131, 4.4.5).
const RENEWAL: u64 = 60 * Nanos::SECOND;
/// The shortest time that a lease is taken for.
const LEAST_LEASE: u64 = 10 * Nanos::SECOND;
/// The first bytes of the options (RFC 2131, 3).
const COOKIE: u32 = 0x6382_5363;

/// What a server has lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub address: Ipv4Addr,
    pub prefix: u8,
    pub router: Option<Ipv4Addr>,
    pub routes: Vec<Route>,
    pub name_servers: Vec<Ipv4Addr>,
    pub mtu: Option<u16>,
    server: Ipv4Addr,
    /// From then on, the server is asked to renew the lease (T1), then any server (T2).
    renew: Nanos,
    rebind: Nanos,
    end: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Looks for servers.
    Selecting,
    /// Asks the server for the address that it has offered.
    Requesting { address: Ipv4Addr, server: Ipv4Addr },
    /// Has a lease, which is renewed in time.
    Bound,
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// There is a lease, perhaps another one.
    Lease,
    /// The lease is over.
    Lost,
}

/// A packet to send: to one host, or to all.
#[derive(Debug)]
pub(crate) struct Question {
    pub to: Ipv4Addr,
    pub packet: Vec<u8>,
}

/// The client.
#[derive(Clone, Debug)]
pub(crate) struct Dhcp {
    mac: Mac,
    secret: Secret,
    /// Number of the conversation.
    number: u32,
    state: State,
    lease: Option<Lease>,
    tries: u8,
    started: Nanos,
    due: Nanos,
}

/// Whether a host can have the address.
fn is_host(address: Ipv4Addr) -> bool {
    let reserved = address.is_unspecified() || address.is_loopback() || address.is_broadcast();
    !(reserved || address.is_multicast() || address.octets()[0] >= 240)
}

impl Dhcp {
    pub fn new(mac: Mac, secret: Secret) -> Self {
        let mut dhcp = Self {
            mac,
            secret,
            number: 0,
            state: State::Selecting,
            lease: None,
            tries: 0,
            started: Nanos(0),
            due: Nanos(0),
        };
        dhcp.begin(Nanos(0));
        dhcp
    }

    /// The lease, if there is one.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// When [`next`](Self::next) next has work.
    pub fn deadline(&self) -> Option<Nanos> {
        (self.due != Nanos::NEVER).then_some(self.due)
    }

    /// Begins to look for servers.
    fn begin(&mut self, now: Nanos) {
        self.renumber(now);
        (self.state, self.due) = (State::Selecting, now);
    }

    /// Begins a conversation. Its number is one that strangers do not guess.
    fn renumber(&mut self, now: Nanos) {
        self.number = self.secret.hash_one(("dhcp", self.mac.word(), self.number, now.0)) as u32;
        (self.tries, self.started) = (0, now);
    }

    /// Does what is due. Returns what to send, and what has changed.
    pub fn next(&mut self, now: Nanos) -> (Option<Question>, Option<Change>) {
        if now < self.due {
            return (None, None);
        }
        if self.tries == 0 {
            self.started = now;
        }
        let doubled = PATIENCE.0 << self.tries.min(5);
        let again = now + doubled.min(PATIENCE.1);
        match self.state {
            State::Requesting { .. } if self.tries >= TRIES => self.begin(now),
            State::Bound => return self.renew(now),
            _ => {}
        }
        self.tries = self.tries.saturating_add(1);
        self.due = again;
        let question = match self.state {
            State::Requesting { address, server } => {
                self.question(Kind::Request, Ipv4Addr::BROADCAST, Some((address, server)), now)
            }
            _ => self.question(Kind::Discover, Ipv4Addr::BROADCAST, None, now),
        };
        (Some(question), None)
    }

    /// Asks for more time, or ends the lease.
    fn renew(&mut self, now: Nanos) -> (Option<Question>, Option<Change>) {
        if self.tries == 0 {
            self.renumber(now);
        }
        self.tries = 1;
        let Some(lease) = &self.lease else {
            self.begin(now);
            return (None, None);
        };
        if now >= lease.end {
            self.lease = None;
            self.begin(now);
            return (None, Some(Change::Lost));
        }
        let (to, next) = match now < lease.rebind {
            true => (lease.server, lease.rebind),
            false => (Ipv4Addr::BROADCAST, lease.end),
        };
        // Half of the time that is left, and not too often.
        self.due = next.min(now + ((next - now) / 2).max(RENEWAL));
        (Some(self.question(Kind::Request, to, None, now)), None)
    }

    fn question(
        &self,
        kind: Kind,
        to: Ipv4Addr,
        offer: Option<(Ipv4Addr, Ipv4Addr)>,
        now: Nanos,
    ) -> Question {
        let client = self.lease.as_ref().map_or(Ipv4Addr::UNSPECIFIED, |lease| lease.address);
        let mac = EthernetAddress(self.mac.octets());
        let message = DhcpRepr {
            message_type: kind,
            transaction_id: self.number,
            secs: u16::try_from((now - self.started) / Nanos::SECOND).unwrap_or(u16::MAX),
            client_hardware_address: mac,
            client_ip: client,
            your_ip: Ipv4Addr::UNSPECIFIED,
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: None,
            subnet_mask: None,
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            // Without an address, only broadcasts reach this host.
            broadcast: client.is_unspecified(),
            requested_ip: offer.map(|(address, _)| address),
            client_identifier: Some(mac),
            server_identifier: offer.map(|(_, server)| server),
            // RFC 3442 wants its routes before the routers, which they replace.
            parameter_request_list: Some(&[
                MASK,
                CLASSLESS_ROUTES,
                ROUTERS,
                NAME_SERVERS,
                MTU,
                RENEWAL_TIME,
                REBINDING_TIME,
            ]),
            dns_servers: None,
            max_size: Some(1500 - (Ipv4::LEN + Udp::LEN) as u16),
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[] as &[DhcpOption<'_>],
        };
        let mut bytes = vec![0; message.buffer_len()];
        // The buffer has the length that the message asks for.
        let _ = message.emit(&mut DhcpPacket::new_unchecked(&mut bytes[..]));
        Question { to, packet: datagram((client, to), &bytes) }
    }

    /// Takes a datagram from a server.
    pub fn input(&mut self, datagram: &[u8], now: Nanos) -> Option<Change> {
        let packet = DhcpPacket::new_checked(datagram).ok()?;
        let ours = packet.opcode() == DhcpOpCode::Reply
            && packet.magic_number() == COOKIE
            && packet.transaction_id() == self.number
            && packet.client_hardware_address().0 == self.mac.octets();
        let told = Told::read(&packet, datagram).filter(|_| ours)?;
        match (self.state, told.kind) {
            (State::Selecting, Kind::Offer) => {
                let server = told.server?;
                // An offer that would not be taken as a lease is none.
                let address = told.lease(server, now)?.address;
                (self.state, self.tries, self.due) =
                    (State::Requesting { address, server }, 0, now);
                None
            }
            (State::Requesting { server, address }, Kind::Ack) if packet.your_ip() == address => {
                // A server may have several identifiers, or stand behind a relay with another.
                self.bind(told.lease(told.server.unwrap_or(server), now)?)
            }
            // Nothing is asked while the lease is fresh (`tries` is 0).
            (State::Bound, Kind::Ack) if self.tries > 0 => {
                let lease = self.lease.as_ref()?;
                if packet.your_ip() != lease.address {
                    return None;
                }
                self.bind(told.lease(told.server.unwrap_or(lease.server), now)?)
            }
            (State::Requesting { server, .. }, Kind::Nak) if told.server == Some(server) => {
                self.begin(now + Nanos::SECOND);
                None
            }
            (State::Bound, Kind::Nak) if self.tries > 0 => {
                let lease = self.lease.as_ref()?;
                if now < lease.rebind && told.server != Some(lease.server) {
                    return None;
                }
                self.lease = None;
                self.begin(now + Nanos::SECOND);
                Some(Change::Lost)
            }
            _ => None,
        }
    }

    fn bind(&mut self, lease: Lease) -> Option<Change> {
        (self.state, self.tries, self.due) = (State::Bound, 0, lease.renew);
        self.lease = Some(lease);
        Some(Change::Lease)
    }
}

/// A packet from the client's port to the server's.
fn datagram((from, to): (Ipv4Addr, Ipv4Addr), data: &[u8]) -> Vec<u8> {
    let len = (Udp::LEN + data.len()) as u16;
    let ip = Ipv4::new(from, to, Protocol::UDP, len);
    let mut udp = Udp::new(CLIENT, SERVER, data.len() as u16);
    let sum = Sum::new().with_pseudo_header(ip.addresses(), Protocol::UDP, len.into());
    udp.set_checksum(sum.with(udp.as_bytes()).with(data).checksum());
    [ip.as_bytes(), udp.as_bytes(), data].concat()
}

#[cfg(test)]
mod tests {
    use super::options::LEASE_TIME;
    use super::*;

    const MAC: Mac = Mac::local(5);
    const START: Nanos = Nanos(100 * Nanos::SECOND);
    const OF: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 50);

    /// A server's message with these options, in answer to the question.
    fn answer(dhcp: &Dhcp, kind: Kind, ip: Ipv4Addr, options: &[(u8, &[u8])]) -> Vec<u8> {
        let options: Vec<DhcpOption<'_>> =
            options.iter().map(|(kind, data)| DhcpOption { kind: *kind, data }).collect();
        let message = DhcpRepr {
            message_type: kind,
            transaction_id: dhcp.number,
            secs: 0,
            client_hardware_address: EthernetAddress(MAC.octets()),
            client_ip: Ipv4Addr::UNSPECIFIED,
            your_ip: ip,
            server_ip: OF,
            router: None,
            subnet_mask: None,
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            broadcast: true,
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(OF),
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &options,
        };
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut DhcpPacket::new_unchecked(&mut bytes[..])).unwrap();
        bytes
    }

    const HOUR: (u8, &[u8]) = (LEASE_TIME, &[0, 0, 14, 16]);

    /// The client's message: its kind, the source and the destination of its packet, its broadcast
    /// flag.
    fn asked(dhcp: &mut Dhcp, now: Nanos) -> Option<(Kind, Ipv4Addr, Ipv4Addr, bool)> {
        let Question { to, packet } = dhcp.next(now).0?;
        let (ip, rest) = Ipv4::parse(&packet).unwrap();
        let (udp, data) = Udp::parse(rest).unwrap();
        assert_eq!((udp.source(), udp.destination(), ip.destination()), (68, 67, to));
        let sum = Sum::new().with_pseudo_header(ip.addresses(), Protocol::UDP, rest.len() as u32);
        assert_eq!(sum.with(rest).checksum(), 0);
        let packet = DhcpPacket::new_checked(data).unwrap();
        let repr = DhcpRepr::parse(&packet).unwrap();
        assert_eq!(repr.client_ip, ip.source());
        Some((repr.message_type, ip.source(), to, repr.broadcast))
    }

    /// A client with a lease of an hour.
    fn bound() -> Dhcp {
        let mut dhcp = Dhcp::new(MAC, Secret([1, 2]));
        let (none, all) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
        assert_eq!(asked(&mut dhcp, START), Some((Kind::Discover, none, all, true)));
        let offer = answer(&dhcp, Kind::Offer, OWN, &[HOUR]);
        assert_eq!(dhcp.input(&offer, START), None);
        assert_eq!(asked(&mut dhcp, START), Some((Kind::Request, none, all, true)));
        let options = [
            HOUR,
            (MASK, &[255, 255, 240, 0]),
            (ROUTERS, &[10, 0, 0, 1, 10, 0, 0, 2]),
            (NAME_SERVERS, &[10, 0, 0, 3, 127, 0, 0, 1, 10, 0, 0, 4]),
            (MTU, &[5, 120]),
        ];
        let ack = answer(&dhcp, Kind::Ack, OWN, &options);
        assert_eq!(dhcp.input(&ack, START), Some(Change::Lease));
        dhcp
    }

    #[test]
    fn a_server_lends_everything_that_a_host_needs() {
        let dhcp = bound();
        let lease = dhcp.lease().unwrap();
        assert_eq!((lease.address, lease.prefix, lease.router), (OWN, 20, Some(OF)));
        let servers = [3, 4].map(|host| Ipv4Addr::new(10, 0, 0, host));
        assert_eq!((&lease.name_servers[..], lease.mtu), (&servers[..], Some(1400)));
        assert_eq!(dhcp.deadline(), Some(START + 1800 * Nanos::SECOND));
    }

    /// A server with several identifiers: the offer has one, the answer another.
    #[test]
    fn regression_an_answer_from_another_identifier_is_taken() {
        let mut dhcp = Dhcp::new(MAC, Secret([1, 2]));
        dhcp.next(START);
        let offer = answer(&dhcp, Kind::Offer, OWN, &[HOUR]);
        dhcp.input(&offer, START);
        dhcp.next(START);
        let other = |kind, ip, dhcp: &Dhcp| {
            let mut message = answer(dhcp, kind, ip, &[HOUR]);
            let at = message.windows(2).position(|option| option == [54, 4]).unwrap();
            message[at + 5] = 9;
            message
        };
        let refusal = other(Kind::Nak, Ipv4Addr::UNSPECIFIED, &dhcp);
        assert_eq!((dhcp.input(&refusal, START), dhcp.lease()), (None, None));
        let wrong = other(Kind::Ack, Ipv4Addr::new(10, 0, 0, 51), &dhcp);
        assert_eq!(
            (dhcp.input(&wrong, START), dhcp.lease()),
            (None, None),
            "not what was asked for"
        );
        let ack = other(Kind::Ack, OWN, &dhcp);
        assert_eq!(dhcp.input(&ack, START), Some(Change::Lease));
        // It is the one that is asked to renew.
        let now = dhcp.deadline().unwrap();
        assert_eq!(asked(&mut dhcp, now).unwrap().2, Ipv4Addr::new(10, 0, 0, 9));
    }

    #[test]
    fn a_lease_is_renewed_at_its_server_then_at_any_and_ends() {
        let mut dhcp = bound();
        let seconds = |s: u64| START + s * Nanos::SECOND;
        let (one, all) =
            ((Kind::Request, OWN, OF, false), (Kind::Request, OWN, Ipv4Addr::BROADCAST, false));
        assert_eq!(asked(&mut dhcp, seconds(1799)), None);
        assert_eq!(asked(&mut dhcp, seconds(1800)), Some(one));
        let ack = answer(&dhcp, Kind::Ack, OWN, &[HOUR]);
        assert_eq!(dhcp.input(&ack, seconds(1801)), Some(Change::Lease));
        assert_eq!(dhcp.input(&ack, seconds(1802)), None, "nothing was asked");
        assert_eq!(dhcp.deadline(), Some(seconds(1801 + 1800)));
        // The server is gone: questions become rare, go to all, and the lease ends.
        let (mut to_one, mut to_all) = (0, 0);
        let lost = loop {
            let now = dhcp.deadline().unwrap();
            match asked(&mut dhcp.clone(), now) {
                Some(question) if question == one => to_one += 1,
                Some(question) if question == all => to_all += 1,
                _ => {}
            }
            if dhcp.next(now).1 == Some(Change::Lost) {
                break now;
            }
        };
        assert_eq!(lost, seconds(1801 + 3600));
        assert!((3..=8).contains(&to_one) && (2..=8).contains(&to_all), "{to_one} {to_all}");
        assert!(dhcp.lease().is_none());
        assert_eq!(asked(&mut dhcp, lost).map(|asked| asked.0), Some(Kind::Discover));
    }

    #[test]
    fn a_refusal_begins_again_and_silence_too() {
        let mut dhcp = bound();
        let now = START + 1800 * Nanos::SECOND;
        asked(&mut dhcp, now).unwrap();
        let nak = answer(&dhcp, Kind::Nak, Ipv4Addr::UNSPECIFIED, &[]);
        assert_eq!(dhcp.input(&nak, now), Some(Change::Lost));
        assert_eq!(asked(&mut dhcp, now), None, "a second later");
        let mut now = now + Nanos::SECOND;
        assert_eq!(asked(&mut dhcp, now).unwrap().0, Kind::Discover);
        let offer = answer(&dhcp, Kind::Offer, OWN, &[HOUR]);
        dhcp.input(&offer, now);
        let mut kinds = Vec::new();
        for _ in 0..6 {
            kinds.extend(asked(&mut dhcp, now).map(|asked| asked.0));
            now = dhcp.deadline().unwrap();
        }
        assert_eq!(kinds[..4], [Kind::Request; 4]);
        assert_eq!(kinds[4..], [Kind::Discover; 2]);
        let asked_in_an_hour = (0..1000)
            .take_while(|_| {
                let at = dhcp.deadline().unwrap();
                dhcp.next(at);
                at < now + 3600 * Nanos::SECOND
            })
            .count();
        assert!((50..70).contains(&asked_in_an_hour), "{asked_in_an_hour}");
    }

    #[test]
    fn strangers_and_broken_messages_are_not_believed() {
        let mut dhcp = Dhcp::new(MAC, Secret([1, 2]));
        dhcp.next(START);
        let good = answer(&dhcp, Kind::Offer, OWN, &[HOUR]);
        let ignores = |message: &[u8]| {
            let mut dhcp = dhcp.clone();
            dhcp.input(message, START);
            dhcp.state == State::Selecting
        };
        assert!(!ignores(&good));
        // Another conversation, another host, a question, another cookie.
        for at in [4, 28, 0, 236] {
            let mut other = good.clone();
            other[at] ^= 3;
            assert!(ignores(&other), "{at}");
        }
        for (ip, options) in [
            (Ipv4Addr::BROADCAST, &[HOUR][..]),
            (Ipv4Addr::LOCALHOST, &[HOUR]),
            (Ipv4Addr::new(224, 0, 0, 1), &[HOUR]),
            (OWN, &[]),
            (OWN, &[(LEASE_TIME, &[0, 0, 1])]),
            (OWN, &[HOUR, (MASK, &[255, 0, 255, 0])]),
        ] {
            assert!(ignores(&answer(&dhcp, Kind::Offer, ip, options)), "{ip} {options:?}");
        }
        assert!(ignores(&answer(&dhcp, Kind::Ack, OWN, &[HOUR])), "it was not asked for");
        for len in 0..good.len() {
            ignores(&good[..len]);
            for value in [0, 1, 52, 255] {
                let mut broken = good.clone();
                broken[len] = value;
                ignores(&broken);
            }
        }
        // A lease of no time is taken for ten seconds: no storm of renewals.
        dhcp.input(&good, START);
        dhcp.next(START);
        let ack = answer(&dhcp, Kind::Ack, OWN, &[(LEASE_TIME, &[0; 4]), (MTU, &[0, 100])]);
        assert_eq!(dhcp.input(&ack, START), Some(Change::Lease));
        assert_eq!((dhcp.lease().unwrap().mtu, dhcp.lease().unwrap().prefix), (None, 8));
        assert_eq!(dhcp.deadline(), Some(START + LEAST_LEASE / 2));
    }
}
