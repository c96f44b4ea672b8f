//! Objective: written packets parse back, and packets that no peer can have sent are refused.
//! Steps: headers are written, changed and parsed, also by smoltcp.

mod common;

use common::script::{Capture, Script, config, seg, syn_options};
use common::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Ipv4Packet, Ipv6Packet, TcpPacket, TcpRepr};
use toklat_tcp::codec::{self, Summing, Verify};
use toklat_tcp::{Drop, Ecn, Emit, Full, Machine, Nanos, Request, Secret};

/// Packets of a handshake with ECN and data.
fn packets(v6: bool) -> Vec<Vec<u8>> {
    let (a, b) = if v6 { (common::v6(1), common::v6(2)) } else { (v4(1), v4(2)) };
    let mut machine = Machine::new(config(), Secret([1, 2]));
    machine.connect((a, 0), (b, 80), None, Nanos(SECOND)).unwrap();
    let mut wire = Wire::default();
    machine.transmit(Nanos(SECOND), &mut wire);
    wire.packets.into()
}

#[test]
fn smoltcp_parses_what_we_write() {
    let all = ChecksumCapabilities::default();
    let syn = packets(false).remove(0);
    let ip = Ipv4Packet::new_checked(&syn[..]).unwrap();
    assert!(ip.verify_checksum());
    let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
    let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
    let repr = TcpRepr::parse(&tcp, &from, &to, &all).unwrap();
    assert_eq!(
        (repr.max_seg_size, repr.window_scale, repr.sack_permitted),
        (Some(1460), Some(7), true)
    );
    let syn = packets(true).remove(0);
    let ip = Ipv6Packet::new_checked(&syn[..]).unwrap();
    let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
    let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
    assert_eq!(TcpRepr::parse(&tcp, &from, &to, &all).unwrap().max_seg_size, Some(1440));
}

#[test]
fn what_is_wrong_has_a_name() {
    let good = packets(false).remove(0);
    assert!(codec::parse(&good, Verify::Checksums).is_ok());
    let bad = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = good.clone();
        change(&mut packet);
        codec::parse(&packet, Verify::Checksums).err()
    };
    assert_eq!(bad(&|p| p.clear()), Some(Drop::Truncated));
    assert_eq!(bad(&|p| p.truncate(39)), Some(Drop::Truncated));
    assert_eq!(bad(&|p| p[0] = 0x55), Some(Drop::NotTcp));
    assert_eq!(bad(&|p| p[9] = 17), Some(Drop::NotTcp));
    assert_eq!(bad(&|p| p[6] = 0x20), Some(Drop::Fragment));
    assert_eq!(bad(&|p| p[8] = 1), Some(Drop::BadChecksum));
    assert_eq!(bad(&|p| p[25] ^= 1), Some(Drop::BadChecksum));
    let unchecked = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = good.clone();
        change(&mut packet);
        codec::parse(&packet, Verify::Nothing).err()
    };
    assert_eq!(unchecked(&|p| p[12] = 224), Some(Drop::BadAddress));
    assert_eq!(unchecked(&|p| p[16..20].fill(255)), Some(Drop::BadAddress));
    assert_eq!(unchecked(&|p| p[20..22].fill(0)), Some(Drop::BadAddress));
    assert_eq!(unchecked(&|p| p[32] = 0x40), Some(Drop::Truncated));
    assert_eq!(unchecked(&|p| p[41] = 1), None, "an option of length 1 ends the options");
    assert_eq!(unchecked(&|_| ()), None);
}

#[test]
fn a_mapped_address_is_no_ipv4() {
    let mut packet = packets(true).remove(0);
    // ::ffff:10.0.0.1 would match connections over IPv4.
    packet[8..24].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    assert_eq!(codec::parse(&packet, Verify::Nothing).err(), Some(Drop::BadAddress));
    let mut machine = Machine::new(config(), Secret([1, 2]));
    assert!(machine.parse(&packet, Verify::Nothing).is_none());
    assert_eq!(machine.counters().dropped(Drop::BadAddress), 1);
}

/// Writes packets with partial checksums, then completes them.
struct Completing(Vec<Ecn>);

impl Emit for Completing {
    fn emit(&mut self, request: &Request<'_>) -> Result<(), Full> {
        let mut packet = vec![0; 2000];
        let len = codec::write_headers(request, &mut packet, Summing::Partial).unwrap();
        let payload = request.payload.copy_to(&mut packet[len..]);
        packet.truncate(len + payload);
        assert!(codec::complete(&mut packet, &request.header.flow));
        let parsed = codec::parse(&packet, Verify::Checksums).unwrap();
        assert_eq!(
            (parsed.payload.len(), parsed.header.ecn),
            (request.payload.len(), request.header.ecn)
        );
        self.0.push(parsed.header.ecn);
        Ok(())
    }
}

#[test]
fn a_checksum_can_be_completed_later() {
    let mut script = Script::new(config());
    script.listener = Some(script.machine.listen(None, 80, 2, None).unwrap());
    script.send(seg("SEC", 0).options(syn_options()));
    script.expect("SAE", 0, Some(1), 0);
    script.send(seg("A", 1).ack(1));
    let id = script.machine.accept(script.listener.unwrap()).unwrap();
    script.machine.send(id, vec![5; 1001].into()).unwrap();
    let mut out = Completing(Vec::new());
    script.machine.transmit(script.now, &mut out);
    assert_eq!(out.0, [Ecn::Capable0]);
    let mut nothing = Capture::default();
    script.machine.transmit(script.now, &mut nothing);
    assert!(nothing.0.is_empty());
}
