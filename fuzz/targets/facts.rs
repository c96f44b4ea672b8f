//! What rules judge a frame by: any head has facts, and no IP packet from another's address passes
//! a guard.
#![no_main]

use std::net::IpAddr;

use frame::{EtherType, Facts, Fragment, Hidden, Identity, Mac, Spoof};
use libfuzzer_sys::fuzz_target;

/// Bytes of a frame that are copied before any decision.
const HEAD: usize = 128;

fuzz_target!(|bytes: &[u8]| {
    let head = &bytes[..bytes.len().min(HEAD)];
    let Some(facts) = Facts::of(head) else { return assert!(bytes.len() < 14) };
    assert!(facts.payload(head).len() <= head.len() - 14 && facts.tags <= 2);
    assert_eq!(facts.ip.is_some(), facts.protocol.is_some());
    assert!(facts.ports.is_none() || facts.fragment != Fragment::Later);
    assert_eq!(facts.flow_hash(1), facts.flow_hash(1));
    // What a later change of the rest cannot alter is the same for the whole frame.
    if facts.hidden.is_none() {
        assert_eq!(Facts::of(bytes), Some(facts));
    }
    let own: [IpAddr; 2] = [[10, 0, 0, 7].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 7].into()];
    let of_macs = Identity::new(&[Mac::local(1)], &[]).forged(head);
    let of_ips = Identity::new(&[Mac::local(1)], &own).forged(head);
    match facts.ip {
        _ if facts.hidden.is_some() => assert_eq!(of_ips, Some(Spoof::Hidden)),
        Some((from, _)) if own.contains(&from) || is_made_of_mac(from) => {}
        Some((from, _)) if !from.is_unspecified() => assert_eq!(of_ips, Some(Spoof::Source)),
        None if [EtherType::IPV4, EtherType::IPV6].contains(&facts.ethertype) => {
            assert_eq!(facts.hidden, Some(Hidden::Network));
        }
        _ => {}
    }
    // Addresses only add to what the guard refuses.
    assert!(of_macs.is_none() || of_ips.is_some(), "{of_macs:?}");
});

/// True for the link-local address of `Mac::local(1)`.
fn is_made_of_mac(ip: IpAddr) -> bool {
    let [a, b, c, d, e, f] = Mac::local(1).octets();
    ip == IpAddr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
