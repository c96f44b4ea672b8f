//! What a guarded port must not say, through the switch.

use ::frame::{Facts, Identity, Mac};
use port::{DropReason, Offload};
use toklat_fabric::{Rules, VlanMode};

use super::harness::{Frame, Switch, frame, host, tagged};
use super::{T0, vlan};

#[test]
fn a_guarded_port_speaks_for_itself_alone() {
    let guarded = Rules { guard: true, macs: vec![host(0)], ..Rules::default() };
    let mut switch = Switch::new(&[guarded.clone(), Rules::default()]);
    let arp = |source: Mac, sender: Mac| {
        let mut frame = frame(Mac::BROADCAST, source, 0);
        frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        frame[22..28].copy_from_slice(&sender.octets());
        frame
    };
    let server = |port: u8| {
        let mut frame = frame(Mac::BROADCAST, host(0), 0);
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        frame[34..36].copy_from_slice(&[0, port]);
        frame
    };
    let (own, client) = (arp(host(0), host(0)), server(68));
    let sent = vec![
        own.clone(),
        arp(host(5), host(5)),
        arp(host(0), host(5)),
        client.clone(),
        server(67),
        tagged(server(67), 5),
    ];
    switch.send(0, sent.clone(), T0);
    assert_eq!(switch.take(1), [own, client]);
    for (reason, frames) in
        [(DropReason::PortSecurity, 1), (DropReason::ArpSpoof, 1), (DropReason::DhcpServer, 2)]
    {
        assert_eq!(switch.dropped(0, reason), frames, "{}", reason.name());
    }
    // A port without a guard may send this.
    switch.specs[0].rules = Rules::default();
    switch.rebuild();
    switch.send(0, sent.clone(), T0);
    assert_eq!(switch.take(1), sent);
    switch.assert_sums();
}

/// The port's own addresses, and another's.
const OWN: [u8; 4] = [10, 0, 0, 7];
const OTHER: [u8; 4] = [10, 0, 0, 1];
const OWN6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
const OTHER6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// A frame from the guarded port's own MAC address to all stations.
fn of(ethertype: u16, packet: &[u8]) -> Frame {
    let header = [&[0xff; 6], &host(0).octets()[..], &ethertype.to_be_bytes()].concat();
    let mut frame = [&header, packet].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn arp(operation: u8, sender: [u8; 4]) -> Frame {
    let own = host(0).octets();
    of(0x806, &[&[0, 1, 8, 0, 6, 4, 0, operation][..], &own, &sender, &[0; 6], &OWN].concat())
}

fn ipv4(from: [u8; 4], options: u8, fragment: u16, protocol: u8, upper: &[u8]) -> Frame {
    let [high, low] = fragment.to_be_bytes();
    let start = [0x45 + options / 4, 0, 0, 60, 0, 1, high, low, 64, protocol, 0, 0];
    of(0x800, &[&start[..], &from, &[10, 0, 0, 255], &vec![1; options.into()], upper].concat())
}

fn ipv6(from: [u8; 16], next: u8, rest: &[u8]) -> Frame {
    let to_all = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    of(0x86dd, &[&[0x60, 0, 0, 0, 0, 32, next, 255][..], &from, &to_all, rest].concat())
}

fn neighbour(kind: u8, target: [u8; 16]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0x20, 0, 0, 0][..], &target].concat()
}

/// The frame as it is, in one VLAN, and in two.
fn in_vlans(frame: Frame) -> [Frame; 3] {
    [frame.clone(), tagged(frame.clone(), 5), tagged(tagged(frame, 6), 5)]
}

/// Frames that a host with these addresses sends, and forged ones with the reason to drop each.
fn honest_and_forged() -> (Vec<Frame>, Vec<(Frame, DropReason)>) {
    use DropReason::{ArpSpoof, HiddenHeaders, NdSpoof, PortSecurity, RouterAdvert};
    let udp = [0, 9, 0, 9, 0, 8, 0, 0];
    let discover = [&[0, 68, 0, 67, 0, 8, 0, 0][..], &[1; 30]].concat();
    let mut dhcp = ipv4([0; 4], 0, 0, 17, &discover);
    dhcp[30..34].fill(255);
    let piece = |offset: u8| [&[17, 0, 0, offset][..], &[0; 4], &udp].concat();
    let hop = [&[58, 0, 0, 0, 0, 0, 0, 0][..], &neighbour(136, OTHER6)].concat();
    let honest = vec![
        arp(1, OWN),
        arp(2, OWN),
        arp(1, [0; 4]),
        dhcp,
        ipv4(OWN, 0, 0, 17, &udp),
        ipv4(OWN, 40, 0x2000, 17, &udp),
        ipv4(OWN, 0, 0x2001, 17, &udp),
        ipv6(OWN6, 58, &neighbour(135, OTHER6)),
        ipv6(OWN6, 58, &neighbour(136, OWN6)),
        ipv6([0; 16], 58, &neighbour(135, OWN6)),
        ipv6(OWN6, 44, &piece(8)),
    ];
    let forged = vec![
        // "10.0.0.1 is at me", as a reply and as an announcement.
        (arp(2, OTHER), ArpSpoof),
        (arp(1, OTHER), ArpSpoof),
        (ipv4(OTHER, 0, 0, 17, &udp), PortSecurity),
        (ipv4(OTHER, 40, 0, 17, &udp), PortSecurity),
        (ipv4(OTHER, 0, 0x2000, 17, &udp), PortSecurity),
        (ipv4(OTHER, 0, 0x2001, 17, &udp), PortSecurity),
        (ipv4([0; 4], 0, 0, 17, &udp), PortSecurity),
        (ipv4(OWN, 0, 0, 1, &[5, 1, 0, 0]), RouterAdvert),
        (ipv6(OTHER6, 58, &[128, 0]), PortSecurity),
        (ipv6(OTHER6, 44, &piece(1)), PortSecurity),
        (ipv6(OTHER6, 44, &piece(8)), PortSecurity),
        (ipv6([0; 16], 58, &[128, 0]), PortSecurity),
        (ipv6(OWN6, 58, &neighbour(136, OTHER6)), NdSpoof),
        (ipv6(OWN6, 0, &hop), NdSpoof),
        (ipv6([0; 16], 58, &neighbour(135, OTHER6)), NdSpoof),
        (ipv6(OWN6, 58, &neighbour(137, OTHER6)), RouterAdvert),
        (ipv6(OWN6, 60, &[&[58, 20][..], &[1; 200]].concat()), HiddenHeaders),
        (of(0x800, &[0x45; 10])[..24].to_vec(), HiddenHeaders),
    ];
    (honest, forged)
}

/// Returns the frames that come out, and how many were dropped for `reason`.
fn sent(rules: &Rules, frame: &Frame, reason: DropReason) -> (Vec<Frame>, u64) {
    let other = Rules { vlan: rules.vlan.clone(), ..Rules::default() };
    let mut switch = Switch::new(&[rules.clone(), other]);
    switch.send(0, vec![frame.clone()], T0);
    switch.assert_sums();
    (switch.take(1), switch.dropped(0, reason))
}

#[test]
fn a_guarded_port_with_ip_addresses_sends_from_no_other() {
    let rules = Rules {
        guard: true,
        macs: vec![host(0)],
        ips: vec![OWN.into(), OWN6.into()],
        ..Rules::default()
    };
    let trunk = VlanMode::Trunk { allowed: vec![vlan(5), vlan(6)], native: Some(vlan(6)) };
    let (honest, forged) = honest_and_forged();
    for rules in [rules.clone(), Rules { vlan: trunk, ..rules }] {
        for frame in honest.iter().flat_map(|frame| in_vlans(frame.clone())) {
            let (out, _) = sent(&rules, &frame, DropReason::PortSecurity);
            assert_eq!(out, std::slice::from_ref(&frame), "{frame:x?}");
        }
        for (frame, reason) in &forged {
            for frame in in_vlans(frame.clone()) {
                let expected = (Vec::new(), 1);
                assert_eq!(
                    sent(&rules, &frame, *reason),
                    expected,
                    "{}: {frame:x?}",
                    reason.name()
                );
            }
        }
    }
}

#[test]
fn without_ip_addresses_the_guard_checks_mac_addresses_alone() {
    let rules = Rules { guard: true, macs: vec![host(0)], ..Rules::default() };
    let (honest, forged) = honest_and_forged();
    let by_ip = [DropReason::PortSecurity, DropReason::ArpSpoof, DropReason::NdSpoof];
    let others = forged.into_iter().filter(|(_, reason)| by_ip.contains(reason));
    for frame in honest.into_iter().chain(others.map(|(frame, _)| frame)) {
        assert_eq!(
            sent(&rules, &frame, DropReason::ArpSpoof).0,
            std::slice::from_ref(&frame),
            "{frame:x?}"
        );
    }
}

/// The switch completes checksums after it has judged a frame, at the place that the sender names.
#[test]
fn regression_a_checksum_is_not_written_over_what_the_guard_has_judged() {
    let rules = Rules {
        guard: true,
        macs: vec![host(0)],
        ips: vec![OWN.into(), OWN6.into()],
        ..Rules::default()
    };
    let own = Identity::new(&rules.macs, &rules.ips);
    let mut switch = Switch::new(&[rules, Rules::default()]);
    let udp = [0, 9, 0, 9, 0, 8, 0, 0];
    let in_snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6][..], &arp(2, OWN)[14..42]].concat();
    let in_ah = [&[58, 4][..], &[0; 22], &neighbour(136, OWN6)].concat();
    let mut frames = honest_and_forged().0;
    frames.extend([of(36, &in_snap), ipv6(OWN6, 51, &in_ah)]);
    let mut qinq = ipv4(OWN, 0, 0, 17, &udp);
    qinq.splice(12..12, [0x91, 0, 0, 5]);
    frames.push(qinq);
    for frame in frames {
        for at in 14..frame.len() as u16 - 1 {
            let starts = (14..=at).filter(|start| [14, 18, 34, 54, 58, 62].contains(start));
            let request = |start: u16| Offload {
                flags: Offload::NEEDS_CHECKSUM,
                checksum_start: start,
                checksum_offset: at - start,
                ..Offload::NONE
            };
            let sent = starts.map(|start| (frame.clone(), request(start))).collect();
            switch.send_with(0, sent, T0);
            for out in switch.take(1) {
                assert_eq!(own.forged(&out), None, "{at}: {frame:x?} became {out:x?}");
                assert_eq!(Facts::of(&out), Facts::of(&frame), "{at}: {frame:x?} became {out:x?}");
            }
        }
    }
    assert!(switch.dropped(0, DropReason::Offload) > 0);
    switch.assert_sums();
}

#[test]
fn three_tags_hide_what_is_sent() {
    let rules = Rules { guard: true, macs: vec![host(0)], ..Rules::default() };
    let mut frame = arp(2, OWN);
    for tag in [7, 6, 5] {
        frame = tagged(frame, tag);
    }
    assert_eq!(sent(&rules, &frame, DropReason::HiddenHeaders), (Vec::new(), 1));
}
