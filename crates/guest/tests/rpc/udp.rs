//! Servers and clients at UDP ports, on a switch in this thread.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use frame::Mac;
use guest::rpc::{Answer, Call, Calling, Config, Failure, Serving, SessionId};
use guest::{Bytes, Nanos, RingNic};
use inline::{Inline, Policy, SwitchConfig};
use netring::{Open, Region, RegionConfig};

const PORT: u16 = 4000;

fn plug(switch: &mut Inline, name: &str) -> RingNic {
    let region = Region::private(RegionConfig::ports(1, 1, 256)).unwrap();
    let port = Open::new(name).slots(256).in_region(&region).inline().unwrap();
    switch.add_rings(name, Policy::default(), &port.rings()).unwrap();
    RingNic::new(port)
}

fn ip(number: u8, v6: bool) -> IpAddr {
    match v6 {
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into(),
        false => Ipv4Addr::new(10, 0, 0, number).into(),
    }
}

fn host(number: u8, v6: bool) -> guest::Config {
    let mac = Mac::local(number.into());
    match ip(number, v6) {
        IpAddr::V4(ip) => guest::Config::new(mac, ip, 24),
        IpAddr::V6(ip) => guest::Config {
            v6: Some(guest::Ipv6Config { address: Some((ip, 64)), ..Default::default() }),
            ..guest::Config::new(mac, Ipv4Addr::UNSPECIFIED, 0)
        },
    }
}

fn echo(_: Call, request: &[u8], reply: &mut [u8]) -> Answer {
    match reply.get_mut(..request.len()) {
        Some(place) => {
            place.copy_from_slice(request);
            Answer::Here(request.len())
        }
        None => Answer::Whole(Bytes::copy_from_slice(request)),
    }
}

#[test]
fn a_client_finds_its_server_by_its_ip_address() {
    find_server(false);
}

/// By neighbour discovery, once both have probed their addresses.
#[test]
fn a_client_finds_its_server_by_its_ipv6_address() {
    find_server(true);
}

/// The client knows the server's IP address alone. Its settings of the MAC address and the carrier
/// are the host's.
fn find_server(v6: bool) {
    let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..Default::default() }).unwrap();
    let config = Config::new(Mac::BROADCAST);
    let nic = plug(&mut switch, "server");
    let mut server = Serving::over_udp(nic, &host(1, v6), PORT, config.clone(), echo);
    let mut client = Calling::over_udp(plug(&mut switch, "client"), &host(2, v6), 5000, config);
    let mut now = Nanos(Nanos::SECOND);
    let to = |number| SocketAddr::new(ip(number, v6), PORT);
    let session = client.connect_udp(to(1), now);
    let nowhere = client.connect_udp(to(9), now);
    let mut replies = Vec::new();
    let requests: Vec<Vec<u8>> = [0, 10, 1400, 100_000].map(|len| vec![len as u8; len]).into();
    let mut next = 0;
    while replies.len() < requests.len() || !client.client().is_closed(nowhere) {
        now = now + 10 * Nanos::MICRO;
        if replies.len() == requests.len() {
            now = now + 100 * Nanos::MILLI;
        }
        if let Some(request) = requests.get(next)
            && client.call_bytes(session, next as u64, Bytes::from(request.clone()), now).is_ok()
        {
            next += 1;
        }
        let mut done = |_: SessionId, tag: u64, reply: Result<&[u8], Failure>| {
            assert_eq!(reply.unwrap(), &requests[tag as usize][..]);
            replies.push(tag);
        };
        client.poll(now, &mut done).unwrap();
        switch.turn(port::Nanos(now.0));
        server.poll(now).unwrap();
        switch.turn(port::Nanos(now.0));
        assert!(now < Nanos(200 * Nanos::SECOND), "{replies:?}");
    }
    let counters = server.server().counters();
    assert_eq!((counters.requests, counters.malformed), (4, 0));
    assert_eq!(client.client().counters().malformed, 0);
}
