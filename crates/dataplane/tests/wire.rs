//! Links and limits count frames as they are on a wire, whatever their sender leaves to be cut.

use frame::{Mac, Offload, OffloadSet, checksum};
use inline::Inline;
use link::{Impairment, RateLimiter, TokenBucket};
use netring::{Open, Port, Region, RegionConfig};
use port::{DropReason, Nanos};
use toklat_dataplane::SwitchConfig;
use toklat_dataplane::config::Policy;

const SLOTS: u32 = 1024;
/// Payload of a superframe and of its segments, and how many these are.
const PAYLOAD: usize = 44 * SIZE;
const SIZE: usize = 1448;
const SEGMENTS: u64 = 44;
/// Bytes of all segments on the wire.
const ON_WIRE: u64 = (PAYLOAD + 44 * 54) as u64;

/// A switch with two ports that take all requests; host 0 sends superframes to host 1.
struct Lab {
    switch: Inline,
    from: Port,
    to: Port,
    now: Nanos,
}

impl Lab {
    fn new(sender: Policy, receiver: Policy) -> Self {
        let config = SwitchConfig { max_ports: 4, ..SwitchConfig::default() };
        let mut switch = Inline::new(config).unwrap();
        let mut plug = |host: u32, policy: Policy| {
            let region = Region::private(RegionConfig::ports(1, 1, SLOTS)).unwrap();
            let open = Open::new("port").slots(SLOTS).in_region(&region);
            let port = open.offloads(OffloadSet::ALL).inline().unwrap();
            let policy = Policy { macs: vec![Mac::local(host + 1)], ..policy };
            switch.add_rings(&format!("p{host}"), policy, &port.rings()).unwrap();
            port
        };
        let (from, to) = (plug(0, sender), plug(1, receiver));
        Self { switch, from, to, now: Nanos(0) }
    }

    /// Sends as many superframes as the ring has room for, at most `most`. Returns how many.
    fn send(&mut self, most: usize) -> usize {
        let (bytes, request) = superframe();
        let sent = (0..most).take_while(|_| {
            self.from.send(64).gather([&bytes[..54], &bytes[54..]], bytes.len(), request)
        });
        let sent = sent.count();
        self.from.flush().unwrap();
        sent
    }

    /// A turn; returns the lengths of what arrived and whether each is to be cut.
    fn turn(&mut self, step: u64) -> Vec<(usize, bool)> {
        self.now = self.now + step;
        self.switch.turn(self.now);
        let frames = self.to.receive(usize::MAX);
        let got = frames.map(|frame| (frame.to_vec().len(), frame.offload().is_segmented()));
        let got = got.collect();
        self.to.flush().unwrap();
        got
    }

    fn assert_sums(&self) {
        let ports = [0, 1].map(|id| self.switch.stats(id));
        let entered: u64 = ports.iter().map(|p| p.in_frames + p.in_copies + p.out_segments).sum();
        let dropped =
            |drops: &std::collections::BTreeMap<DropReason, u64>| -> u64 { drops.values().sum() };
        let left: u64 =
            ports.iter().map(|p| p.out_frames + dropped(&p.in_drops) + dropped(&p.out_drops)).sum();
        assert_eq!(entered, left);
    }
}

/// A TCP packet from host 0 to host 1 that is to be cut into segments.
fn superframe() -> (Vec<u8>, Offload) {
    let mut bytes = vec![0; 54 + PAYLOAD];
    bytes[..6].copy_from_slice(&Mac::local(2).octets());
    bytes[6..12].copy_from_slice(&Mac::local(1).octets());
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[16..18].copy_from_slice(&((40 + PAYLOAD) as u16).to_be_bytes());
    (bytes[22], bytes[23]) = (64, 6);
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = checksum::checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes[46..48].copy_from_slice(&[0x50, 0x10]);
    let pseudo = [&bytes[26..34], &6u32.to_be_bytes(), &(20 + PAYLOAD as u32).to_be_bytes()];
    let seed = !checksum::checksum(&pseudo.concat());
    bytes[50..52].copy_from_slice(&seed.to_be_bytes());
    let request = Offload {
        flags: Offload::NEEDS_CHECKSUM,
        gso_type: Offload::GSO_TCP4,
        header_len: 0,
        gso_size: SIZE as u16,
        checksum_start: 34,
        checksum_offset: 16,
    };
    (bytes, request)
}

fn policies(sending: bool, change: impl FnOnce(&mut Policy, bool)) -> (Policy, Policy) {
    let (mut sender, mut receiver) = (Policy::default(), Policy::default());
    change(if sending { &mut sender } else { &mut receiver }, sending);
    (sender, receiver)
}

/// A link never carries a superframe: 1 % of loss is 1 % of segments.
#[test]
fn one_percent_of_loss_is_one_percent_of_segments() {
    for sending in [true, false] {
        let loss = Impairment { loss_ppm: 10_000, seed: 5, limit: 16_384, ..Impairment::default() };
        let (sender, receiver) = policies(sending, |policy, sending| match sending {
            true => policy.tx_impairment = Some(loss),
            false => policy.rx_impairment = Some(loss),
        });
        let mut lab = Lab::new(sender, receiver);
        let (mut sent, mut got) = (0, Vec::new());
        for _ in 0..2000 {
            sent += if sent < 500 { lab.send(4) } else { 0 };
            got.extend(lab.turn(10_000));
        }
        let segments = sent as u64 * SEGMENTS;
        assert!(sent >= 500 && got.iter().all(|(len, cut)| *len == SIZE + 54 && !cut));
        let lost = lab.switch.stats(u16::from(!sending)).in_drops[&DropReason::Impaired];
        let drops = [0, 1].map(|id| lab.switch.stats(id));
        assert_eq!(got.len() as u64 + lost, segments, "{drops:?}");
        let wanted = segments / 100;
        assert!(lost.abs_diff(wanted) * 5 < wanted, "{lost} of {segments} segments lost");
        lab.assert_sums();
    }
}

/// The headers of all segments count, and each segment is a frame.
#[test]
fn limits_charge_every_header_and_every_segment() {
    let rate = TokenBucket { size: 1_000_000, one_time_burst: 0, refill_time: 100 };
    let bytes = RateLimiter { bandwidth: Some(rate), ops: None };
    let frames = RateLimiter { ops: Some(TokenBucket { size: 700, ..rate }), bandwidth: None };
    for sending in [true, false] {
        for (limit, wanted) in [(bytes, 10_000_000 / ON_WIRE), (frames, 7000 / SEGMENTS)] {
            let (sender, receiver) = policies(sending, |policy, sending| {
                (policy.lossless, policy.mtu) = (true, 1500);
                match sending {
                    true => policy.tx_rate_limiter = Some(limit),
                    false => policy.rx_rate_limiter = Some(limit),
                }
            });
            let mut lab = Lab::new(sender, receiver);
            let mut run = |ns: u64| {
                let mut came = 0;
                for _ in (0..ns).step_by(100_000) {
                    lab.send(8);
                    let got = lab.turn(100_000);
                    assert!(got.iter().all(|(len, cut)| *len == PAYLOAD + 54 && *cut), "whole");
                    came += got.len() as u64;
                }
                came
            };
            // The first tenth of a second empties the bucket.
            run(Nanos::SECOND / 5);
            let came = run(2 * Nanos::SECOND);
            assert!(came.abs_diff(2 * wanted) * 100 <= 2 * wanted, "{came}, not {}", 2 * wanted);
        }
    }
}
