//! Decides which of a guest's frames the gateway must get. The decision uses the frame alone, which
//! the guest may have forged.

use std::net::{IpAddr, Ipv4Addr};

use frame::{ArpOperation, Layers, Mac, Network, Transport};

/// The treatment of a guest's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame is for the way out.
    Out,
    /// The frame is for other guests, or to be ignored.
    Stay,
    /// Like [`Stay`](Self::Stay); it also says that its sender is about to have this address.
    Claims(IpAddr),
}

/// UDP port of DHCP servers (RFC 2131, 4.1).
const DHCP_SERVER: u16 = 67;
/// ICMPv6 router solicitation (RFC 4861, 4.1) and neighbour solicitation (4.3), and where the
/// latter's target begins: after the first eight bytes.
const ROUTER_SOLICITATION: u8 = 133;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const TARGET: std::ops::Range<usize> = 0..16;

/// Classifies a frame from the switch. `us` is the gateway's MAC address, `gateway` its IPv4
/// address. `has` returns whether another guest than the sender has an address.
///
/// passt assumes that it is alone with its guest, and answers for every address. So of broadcasts
/// and multicasts it gets only those that the gateway must answer.
pub fn judge(frame: &[u8], us: Mac, gateway: Ipv4Addr, has: impl Fn(IpAddr) -> bool) -> Verdict {
    let Some(layers) = Layers::of(frame) else { return Verdict::Stay };
    let (to, from) = (layers.ethernet.destination(), layers.ethernet.source());
    if from.is_group() || from == us || from == Mac::new([0; 6]) || layers.tag.is_some() {
        return Verdict::Stay;
    }
    let is_for_us = match (layers.network, layers.transport) {
        _ if to == us => true,
        _ if !to.is_group() => false,
        (Network::Arp(arp), _) => {
            arp.operation() == ArpOperation::REQUEST && arp.target().1 == gateway
        }
        (Network::Ipv4(_), Transport::Udp(udp)) => udp.destination() == DHCP_SERVER,
        (Network::Ipv6(ip), Transport::Icmp(icmp)) => match icmp.kind {
            ROUTER_SOLICITATION => true,
            NEIGHBOUR_SOLICITATION => match target(layers.payload) {
                // Duplicate address detection (RFC 4862, 5.4): silence means that the address is
                // free.
                Some(target) if ip.source().is_unspecified() => return Verdict::Claims(target),
                Some(target) => !has(target),
                None => false,
            },
            _ => false,
        },
        _ => false,
    };
    if is_for_us { Verdict::Out } else { Verdict::Stay }
}

/// The target of a neighbour solicitation.
fn target(payload: &[u8]) -> Option<IpAddr> {
    let bytes: [u8; 16] = payload.get(TARGET)?.try_into().ok()?;
    Some(IpAddr::from(bytes))
}

/// The IP address that the frame's sender claims to have, if it claims one.
pub fn source(frame: &[u8]) -> Option<IpAddr> {
    let address = match Layers::of(frame)?.network {
        Network::Ipv4(ip) => IpAddr::from(ip.source()),
        Network::Ipv6(ip) => IpAddr::from(ip.source()),
        Network::Arp(arp) => IpAddr::from(arp.sender().1),
        Network::Other => return None,
    };
    Some(address).filter(|address| !address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use frame::write_announcement;
    use proptest::prelude::*;

    use super::*;

    const US: Mac = Mac::local(1);
    const GUEST: Mac = Mac::local(2);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);

    fn judged(frame: &[u8]) -> Verdict {
        judge(frame, US, GATEWAY, |address| address == IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 3]))
    }

    fn arp(from: Mac, ip: Ipv4Addr) -> Vec<u8> {
        let mut frame = vec![0; 60];
        write_announcement(from, ip, &mut frame).unwrap();
        frame
    }

    /// Makes an ICMPv6 message about `target`, sent by address `from` to all nodes.
    fn icmp(kind: u8, from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
        let mut frame = [&[0x33, 0x33, 0, 0, 0, 2][..], &GUEST.octets(), &[0x86, 0xdd]].concat();
        frame.extend([0x60, 0, 0, 0, 0, 24, 58, 255]);
        frame.extend(from.octets());
        frame.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2).octets());
        frame.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend(target.octets());
        frame
    }

    #[test]
    fn of_what_goes_to_all_the_way_out_hears_what_is_for_the_gateway() {
        assert_eq!(judged(&arp(GUEST, GATEWAY)), Verdict::Out);
        assert_eq!(judged(&arp(GUEST, Ipv4Addr::new(10, 0, 2, 16))), Verdict::Stay);
        let link = |last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last);
        assert_eq!(judged(&icmp(ROUTER_SOLICITATION, link(2), link(0))), Verdict::Out);
        assert_eq!(judged(&icmp(NEIGHBOUR_SOLICITATION, link(2), link(9))), Verdict::Out);
        let others = icmp(NEIGHBOUR_SOLICITATION, link(2), link(3));
        assert_eq!(judged(&others), Verdict::Stay, "another guest answers for itself");
        let own = icmp(NEIGHBOUR_SOLICITATION, Ipv6Addr::UNSPECIFIED, link(2));
        assert_eq!(judged(&own), Verdict::Claims(link(2).into()));
        // Not for the gateway: advertisements, listener reports, and name queries.
        assert_eq!(judged(&icmp(136, link(2), link(2))), Verdict::Stay);
        assert_eq!(judged(&icmp(143, link(2), link(2))), Verdict::Stay);
    }

    #[test]
    fn what_is_sent_to_the_gateway_goes_out_and_what_pretends_to_be_it_does_not() {
        let to =
            |to: Mac, from: Mac| [&to.octets()[..], &from.octets(), &[8, 0], &[0; 46]].concat();
        assert_eq!(judged(&to(US, GUEST)), Verdict::Out);
        assert_eq!(judged(&to(Mac::local(3), GUEST)), Verdict::Stay);
        for from in [US, Mac::BROADCAST, Mac::new([0; 6])] {
            assert_eq!(judged(&to(US, from)), Verdict::Stay);
        }
        assert_eq!(judged(&[0; 13]), Verdict::Stay);
    }

    proptest! {
        /// No frame, whatever its bytes, makes the decision fail.
        #[test]
        fn any_bytes_are_judged(frame in proptest::collection::vec(any::<u8>(), 0..200), icmp6: bool) {
            let mut frame = frame;
            if icmp6 && frame.len() >= 14 {
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            }
            let _ = (judged(&frame), source(&frame));
        }
    }
}
