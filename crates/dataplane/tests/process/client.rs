//! Clients of a data process in a test: ports of the client library, and hostile accesses to their
//! memory. They do not kick, because the worker polls.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use frame::Mac;
use netring::layout::{Fault, RingMemory};
use netring::{Port, PortError, Region, RegionConfig};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use toklat_dataplane::config::{Attachment, Idle, Policy, PortConfig, SwitchConfig};
use toklat_dataplane::control::{Answer, Command};

use super::{ask, start_with};

/// Slots of each ring.
pub const SLOTS: u32 = 128;

/// A port of the data process, and its memory for hostile accesses.
pub struct Client {
    pub port: Port,
    pub region: std::sync::Arc<Region>,
    pub token: OwnedFd,
    pub switch_end: OwnedFd,
    pub config: PortConfig,
    id: u16,
}

impl Client {
    /// Made before the process is confined.
    pub fn new(id: u16, policy: Policy) -> Self {
        let region = Region::create(RegionConfig::ports(1, 1, SLOTS)).unwrap();
        let port = Port::inline(&region, "p", 1, 1, SLOTS).unwrap();
        let attachment = Attachment::Ring((&port.rings()).into());
        let config = PortConfig {
            name: format!("p{id}"),
            policy,
            worker: None,
            attachment,
            uid: 0,
            pid: None,
        };
        let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
        let (token, switch_end) = rustix::net::socketpair(kind.0, kind.1, kind.2, None).unwrap();
        jail::strangers::refuse(&switch_end);
        Self { port, region, token, switch_end, config, id }
    }

    pub fn attach(&self, connection: &OwnedFd, resume: bool) {
        let command = Command::AddPort { id: self.id, config: self.config.clone(), resume };
        let fds = [self.region.file().unwrap(), self.switch_end.as_fd()];
        let answer = ask(connection, &command, &fds);
        assert!(matches!(answer, Answer::Added { .. }), "{answer:?}");
    }

    pub fn ring(&self, receive: bool) -> RingMemory {
        let rings = self.port.rings();
        let spec = if receive { rings.rx } else { rings.tx };
        RingMemory::of(&rings.mapping, &rings.geometry, spec.first, spec.slots).unwrap()
    }

    pub fn send(&mut self, frame: &[u8]) -> Result<(), PortError> {
        self.port.send(1).fill(1, |window| window.copy_in(frame));
        self.port.flush()
    }

    /// True if the switch has returned all sent slots.
    pub fn has_drained(&mut self) -> bool {
        self.port.send(SLOTS as usize).room() == SLOTS as usize - 1
    }

    /// Receives until `count` frames have arrived, or the time is up.
    pub fn receive(&mut self, count: usize) -> usize {
        let mut got = 0;
        wait(|| {
            got += self.port.receive(SLOTS as usize).count();
            let _ = self.port.flush();
            got >= count
        });
        got
    }

    pub fn fault(&mut self) -> Option<Fault> {
        let mut seen = None;
        wait(|| match self.port.flush() {
            Err(PortError::Fault(fault)) => {
                seen = Some(fault);
                true
            }
            _ => false,
        });
        seen
    }

    /// Resets the port, and waits until the data process has done so.
    pub fn reset(&mut self) {
        self.port.reset().unwrap();
        let _ = rustix::net::send(&self.token, &[1], rustix::net::SendFlags::DONTWAIT);
        assert!(wait(|| self.is_reset()), "reset");
        self.port.flush().unwrap();
    }

    /// True if the data process has carried out all resets.
    pub fn is_reset(&self) -> bool {
        let control = self.ring(false).control;
        let wanted = control.owner_flags.0.reset_wanted.load(Ordering::Relaxed);
        control.core_flags.0.reset_done.load(Ordering::Acquire) == wanted
    }

    /// True if the switch has sent a kick.
    pub fn was_kicked(&self) -> bool {
        let flags = rustix::net::RecvFlags::DONTWAIT;
        rustix::net::recv(&self.token, &mut [0u8; 64], flags).is_ok_and(|(_, bytes)| bytes > 0)
    }
}

pub fn wait(mut until: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        if until() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

pub fn frame(to: u32, from: u32) -> Vec<u8> {
    let mut frame = vec![0x55; 60];
    frame[..6].copy_from_slice(&Mac::local(to).octets());
    frame[6..12].copy_from_slice(&Mac::local(from).octets());
    frame
}

/// A data process with these ports. Their owners do not kick, because its worker polls.
pub fn serve(clients: &[&Client], stall_timeout_ms: u32) -> (std::thread::JoinHandle<()>, OwnedFd) {
    serve_by(1, clients, stall_timeout_ms)
}

/// Like [`serve`], with this many workers.
pub fn serve_by(
    workers: usize,
    clients: &[&Client],
    stall_timeout_ms: u32,
) -> (std::thread::JoinHandle<()>, OwnedFd) {
    let (thread, connection) = start_with(workers);
    let idle = Idle::Poll;
    let config = SwitchConfig { idle, stall_timeout_ms, ..SwitchConfig::default() };
    let command = Command::set_switch(&config);
    assert_eq!(ask(&connection, &command, &[]), Answer::Done);
    clients.iter().for_each(|client| client.attach(&connection, false));
    (thread, connection)
}
