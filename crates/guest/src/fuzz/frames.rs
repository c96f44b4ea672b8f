//! A host under arbitrary frames.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::time::Duration;

use frame::{ETHERNET_HEADER, EtherType, Ethernet, Ipv4, Mac, Offload};
use tcp::{Full, Nanos};

use crate::nic::{Frame, Nic, Pieces};
use crate::{Config, Counters, Ipv6Config, Stack, UdpId};

/// The host's address, and the other's.
const HOST: Mac = Mac::local(1);
const OTHER: Mac = Mac::local(2);
/// The time that passes until the last address is probed and reported.
const START: u64 = 5 * Nanos::SECOND;

/// A NIC in memory: one frame in, and a number of frames out.
#[derive(Debug, Default)]
struct Memory {
    incoming: Option<(Vec<u8>, Offload)>,
    sent: usize,
    room: usize,
}

impl Nic for Memory {
    type Error = Infallible;

    fn max_frame(&self) -> usize {
        1514
    }

    fn receive(&mut self, mut take: impl FnMut(&[Frame<'_>])) -> usize {
        let Some((bytes, offload)) = self.incoming.take() else { return 0 };
        take(&[Frame { front: &bytes, rest: &[], offload }]);
        1
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        _: Offload,
    ) -> Result<(), Full> {
        let len = head.len() + payload.pieces.map(<[u8]>::len).sum::<usize>();
        assert!(len <= self.max_frame(), "a frame of {len} bytes");
        if self.room == 0 {
            return Err(Full);
        }
        (self.sent, self.room) = (self.sent + 1, self.room - 1);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn wait(&mut self, _: bool, _: Option<Duration>) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A host with an IPv4 and an IPv6 address, that takes others from routers, with sockets of UDP and
/// TCP. Frames come to it, and time passes.
#[derive(Debug)]
struct Rig {
    host: Stack<Memory>,
    socket: Option<UdpId>,
    now: Nanos,
}

impl Rig {
    fn new() -> Self {
        let mut config = Config::new(HOST, Ipv4Addr::new(10, 0, 0, 1), 24);
        config.secret = tcp::Secret([1, 2]);
        config.max_neighbours = 16;
        config.v6 = Some(Ipv6Config {
            address: Some(("fd00::1".parse().unwrap_or(std::net::Ipv6Addr::LOCALHOST), 64)),
            autoconfigure: true,
            ..Ipv6Config::default()
        });
        let mut host = Stack::new(Memory { room: 64, ..Memory::default() }, &config);
        let _ = host.listen(80, 4);
        let socket = host.udp_bind(7).ok();
        let mut rig = Self { host, socket, now: Nanos(Nanos::SECOND) };
        (0..10).for_each(|_| rig.turn(None, START / 10));
        rig
    }

    fn turn(&mut self, frame: Option<(Vec<u8>, Offload)>, time: u64) {
        self.now = self.now + time;
        let came = u64::from(frame.is_some());
        let before = self.host.counters().frames_in;
        (self.host.nic.incoming, self.host.nic.room) = (frame, 64);
        let due = self.host.poll(self.now);
        assert!(due.is_ok_and(|due| due.is_none_or(|due| due >= self.now || due == Nanos(0))));
        assert_eq!(self.host.counters().frames_in, before + came);
        while self.socket.is_some_and(|socket| self.host.udp_receive(socket).is_some()) {}
        let usage = self.host.usage();
        assert!(usage.neighbours <= 32 && usage.outbox <= 256, "{usage:?}");
        assert!(usage.unresolved <= 1 << 20, "{usage:?}");
        let addresses = self.host.addresses().count();
        assert!((1..=9).contains(&addresses), "{addresses} addresses");
    }
}

/// Runs a script against a host. Each step is a byte that says what happens, and two bytes, least
/// first. A frame follows them, as many bytes as they say: its payload, or all of it. Otherwise so
/// many milliseconds pass. Returns what the host has counted, and how many frames it has sent.
pub fn frames(mut script: &[u8]) -> (Counters, usize) {
    let mut rig = Rig::new();
    while let [what, low, high, rest @ ..] = script {
        let word = usize::from(u16::from_le_bytes([*low, *high]));
        if what % 8 == 0 {
            script = rest;
            rig.turn(None, word as u64 * Nanos::MILLI);
            continue;
        }
        let (bytes, after) = rest.split_at(rest.len().min(word));
        script = after;
        let (kind, group) = match what % 8 {
            1 | 2 => (EtherType::IPV6, [0x33, 0x33, 0, 0, 0, 1]),
            3 | 4 => (EtherType::IPV4, [0xff; 6]),
            5 => (EtherType::ARP, [0xff; 6]),
            _ => {
                rig.turn(Some((bytes.to_vec(), Offload::NONE)), Nanos::MICRO);
                continue;
            }
        };
        let to = if what & 8 == 0 { HOST } else { Mac::new(group) };
        let head = Ethernet::new(to, OTHER, kind);
        let mut frame = [zerocopy::IntoBytes::as_bytes(&head), bytes].concat();
        if let Some(ip) = frame.get_mut(ETHERNET_HEADER..ETHERNET_HEADER + Ipv4::LEN)
            && kind == EtherType::IPV4
        {
            ip[10..12].fill(0);
            let sum = frame::checksum::checksum(ip).to_be_bytes();
            ip[10..12].copy_from_slice(&sum);
        }
        // Checksums of frames with a request are not verified, so that fuzzers get past them.
        let trusted = what % 2 == 1;
        let flags = if trusted { Offload::NEEDS_CHECKSUM } else { 0 };
        rig.turn(Some((frame, Offload { flags, ..Offload::NONE })), Nanos::MICRO);
    }
    (rig.host.counters().clone(), rig.host.nic.sent)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::Drop;

    /// A step with an IPv6 packet whose checksums need not be right.
    fn step(to: &str, protocol: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
        let [from, to] = ["fe80::9", to].map(|ip| ip.parse::<Ipv6Addr>().unwrap());
        let len = (payload.len() as u16).to_be_bytes();
        let head = [&[0x60, 0, 0, 0, len[0], len[1], protocol, hops][..], &from.octets()].concat();
        let packet = [&head[..], &to.octets(), payload].concat();
        let what = if to.is_multicast() { 9 } else { 1 };
        let len = (packet.len() as u16).to_le_bytes();
        [&[what, len[0], len[1]][..], &packet].concat()
    }

    #[test]
    fn scripts_reach_the_protocols() {
        let alert = [58, 0, 5, 2, 0, 0, 1, 0];
        let query = [&alert[..], &[130, 0, 0, 0], &[0; 20], &[2, 125, 0, 0]].concat();
        let router = [&[134, 0, 0, 0, 64, 0, 7, 8][..], &[0; 8]].concat();
        let before = frames(&[]).0;
        let script = [
            step("ff02::1", 0, 1, &query),
            vec![0, 100, 0],
            step("fd00::1", 58, 64, &[128, 0, 0, 0, 1, 2, 3, 4]),
            step("fd00::1", 58, 255, &[137, 0, 0, 0, 0, 0, 0, 0]),
            step("fd00::1", 44, 64, &[58, 0, 0, 1, 0, 0, 0, 1]),
            step("ff02::1", 58, 255, &router),
            step("fd00::1", 17, 64, &[0, 9, 0, 7, 0, 8, 0, 1]),
        ];
        let (counted, sent) = frames(&script.concat());
        assert_eq!(counted.reports, before.reports + 1);
        assert_eq!((counted.echoes, counted.datagrams_in), (1, 1));
        let drops: Vec<_> = counted.drops().collect();
        assert_eq!(drops, [(Drop::Fragment, 1), (Drop::Redirect, 1)]);
        assert!(sent > 0);
        let noise: Vec<u8> =
            (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        frames(&noise);
    }
}
