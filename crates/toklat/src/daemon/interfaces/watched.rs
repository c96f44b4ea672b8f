//! The state of the interface that a port is attached to.

use std::sync::atomic::{AtomicU64, Ordering};

use dataplane::config::{Engine, InterfaceConfig};
use jail::strangers::Descriptor;

use super::link::{Asker, Link};
use super::{packet, xdp};
use crate::api::{InterfaceInfo, LinkInfo};

/// Ports whose interfaces are back, and that were not opened again yet.
pub const MAX_RETURNED: usize = 64;

/// A port whose interface is there again, or another one of the same name.
#[derive(Debug)]
pub struct Returned {
    /// The switch.
    pub switch: String,
    /// The port, without the switch's name.
    pub port: String,
    /// The number of the wait that noticed this.
    pub waiting: u64,
}

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
        InterfaceInfo {
            engine: engine.into(),
            why: config.why.clone(),
            zero_copy,
            queues: config.queues,
            lost: self.lost(&config.engine, sockets),
            link: link.map(describe),
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
