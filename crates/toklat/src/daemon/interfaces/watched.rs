//! The state of the interface that a port is attached to.

use std::sync::atomic::{AtomicU64, Ordering};

use dataplane::config::{Engine, HostConfig, InterfaceConfig};
use jail::strangers::Descriptor;

use super::link::{Asker, Link};
use super::{host, packet, xdp};
use crate::api::{InterfaceInfo, LinkInfo};

/// The interface of a port.
#[derive(Debug)]
pub struct Watched {
    pub(super) ifname: String,
    pub(super) asker: Asker,
    /// Frames that the kernel lost because the port did not take them in time.
    lost: AtomicU64,
}

impl Watched {
    /// The interface called `ifname`, which `asker` asks for.
    pub(super) fn new(ifname: &str, asker: Asker) -> Self {
        Self { ifname: ifname.into(), asker, lost: AtomicU64::new(0) }
    }

    /// Describes the interface for the API; `fds` are the descriptors of the port's queues.
    pub fn info(&self, config: &InterfaceConfig, fds: &[Descriptor]) -> InterfaceInfo {
        let (engine, zero_copy) = match &config.engine {
            Engine::Packet(_) => ("packet", false),
            Engine::Xdp(umem) => ("xdp", umem.zero_copy),
        };
        let sockets = fds.get(..config.queues.into()).unwrap_or_default();
        let link = self.asker.ask(&self.ifname).ok().flatten();
        let is_taken = host::is_taken(&self.asker, &self.ifname, config.index);
        let host = match (is_taken, &config.engine) {
            (true, _) => {
                format!("a port, by tap {}", host::tap_of(&self.ifname, config.index))
            }
            (false, Engine::Packet(_)) => "gets a copy of what arrives".into(),
            (false, Engine::Xdp(_)) => "gets nothing".into(),
        };
        InterfaceInfo {
            engine: engine.into(),
            why: config.why.clone(),
            zero_copy,
            queues: config.queues,
            lost: self.lost(&config.engine, sockets),
            host,
            link: link.map(describe),
        }
    }

    /// Describes the interface of a port that is its host's end.
    pub fn host_info(&self, config: &HostConfig) -> InterfaceInfo {
        let ask = |ifname: &str| self.asker.ask(ifname).ok().flatten();
        let tap = ask(&config.tap).map(describe);
        let lost = tap.and_then(|tap| tap.statistics.get("tx_dropped").copied());
        let how = if config.clsact { " (filters of clsact)" } else { "" };
        let why =
            format!("what the host sends on {} comes by tap {}{how}", self.ifname, config.tap);
        InterfaceInfo {
            engine: "host".into(),
            why,
            zero_copy: false,
            queues: 1,
            lost: lost.unwrap_or(0),
            host: "this port".into(),
            link: ask(&self.ifname).map(describe),
        }
    }

    /// Frames that were lost since the port was opened.
    fn lost(&self, engine: &Engine, sockets: &[Descriptor]) -> u64 {
        match engine {
            // The kernel counts from the last question on.
            Engine::Packet(_) => {
                let lost: u64 = sockets.iter().map(packet::lost).sum();
                self.lost.fetch_add(lost, Ordering::Relaxed) + lost
            }
            Engine::Xdp(_) => sockets.iter().map(xdp::lost).sum(),
        }
    }
}

fn describe(link: Link) -> LinkInfo {
    let Link { up, carrier, mtu, promiscuity, mac, kind, statistics, .. } = link;
    let names = [
        "rx_packets",
        "tx_packets",
        "rx_bytes",
        "tx_bytes",
        "rx_errors",
        "tx_errors",
        "rx_dropped",
        "tx_dropped",
        "multicast",
        "collisions",
        "rx_length_errors",
        "rx_over_errors",
        "rx_crc_errors",
        "rx_frame_errors",
        "rx_fifo_errors",
        "rx_missed_errors",
        "tx_aborted_errors",
        "tx_carrier_errors",
        "tx_fifo_errors",
    ];
    let statistics = names.iter().map(|name| (*name).to_owned()).zip(statistics).collect();
    let mac = mac.map(frame::Mac::new);
    LinkInfo { up, carrier, mtu, promiscuous: promiscuity > 0, mac, kind, statistics }
}
