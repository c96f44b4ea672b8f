//! Two guests on an inline switch, one sending, one receiving, and their drivers.

pub mod fenced;

use std::sync::Arc;

use dataplane::SwitchConfig;
use driver::virtio::{Buffer, Driver, layout_at};
use frame::Mac;
use inline::Inline;
use nic::virtio::{Features, QueueConfig, QueueState, Receive, Transmit};
use port::{Ingress, Nanos};
use shmem::{GuestMemory, Mapping, Shared};
use turn::attach::{Attached, Bells, Source};

/// Anything that a program cannot go on from.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Frames in a batch.
pub const BATCH: u64 = 64;
const SIZE: u16 = 256;
const HEADER: u32 = 12;
/// Distance of the places for frames: as in DPDK's pools, a data room of 2,176 bytes and its head.
const PLACE: u64 = 2304;
/// Where a frame's header starts in its place, so that the frame starts a cache line.
const OFFSET: u64 = 116;
const PLACES_AT: u64 = 0x1_0000;
const BUFFER: u32 = 2048 + HEADER;

/// One queue of a guest.
#[allow(missing_debug_implementations, reason = "queues of a measurement")]
pub struct Guest {
    memory: Arc<GuestMemory>,
    driver: Driver,
    added: u64,
    used: u64,
}

impl Guest {
    fn new(features: Features) -> Result<(Self, QueueConfig), Error> {
        let size = PLACES_AT + PLACE * u64::from(SIZE);
        let mapping = Mapping::private(size as usize)?;
        let memory = Arc::new(GuestMemory::of(mapping, 0)?);
        let layout = layout_at(0x1000, SIZE);
        let mut driver = Driver::new(&memory, layout, features).ok_or("a queue in memory")?;
        driver.want_interrupts(false);
        let state: Shared<QueueState> = Shared::private()?;
        state.start_at(if features.contains(Features::RING_PACKED) { 0x8000 } else { 0 });
        let config = QueueConfig::new(Arc::clone(&memory), layout, features, state);
        Ok((Self { memory, driver, added: 0, used: 0 }, config))
    }

    fn place(number: u64) -> u64 {
        PLACES_AT + number % u64::from(SIZE) * PLACE + OFFSET
    }

    /// Hands in `frames` frames with their headers, if there is room; returns how many.
    pub fn send(&mut self, frames: u64, bytes: &[u8]) -> u64 {
        if u64::from(self.driver.room()) < frames {
            return 0;
        }
        for _ in 0..frames {
            let (at, len) = (Self::place(self.added), bytes.len() as u32);
            if let Some(window) = self.memory.bytes(at, len) {
                window.copy_in(bytes);
            }
            self.driver.add(&[Buffer { at, len, writable: false }], None);
            self.added += 1;
        }
        self.driver.publish();
        frames
    }

    /// Makes all free buffers available for frames.
    pub fn refill(&mut self) {
        let room = self.driver.room();
        for _ in 0..room {
            let at = Self::place(self.added);
            self.driver.add(&[Buffer { at, len: BUFFER, writable: true }], None);
            self.added += 1;
        }
        if room > 0 {
            self.driver.publish();
        }
    }

    /// Takes used chains back; returns how many, and the number of bytes written.
    pub fn reap(&mut self, most: u64) -> (u64, u64) {
        let (mut chains, mut bytes, mut head) = (0, 0, [0; 76]);
        while chains < most
            && let Some((_, len)) = self.driver.used()
        {
            if len > 0
                && let Some(window) = self.memory.bytes(Self::place(self.used), 76)
            {
                window.copy_out(&mut head);
            }
            self.used += 1;
            chains += 1;
            bytes += u64::from(len);
        }
        (chains, bytes)
    }
}

struct TransmitQueues(Vec<Transmit>);

impl Source for TransmitQueues {
    fn queues(&self) -> usize {
        self.0.len()
    }

    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        Some(self.0.get_mut(queue)?)
    }
}

/// A switch, a guest that sends and one that receives.
#[allow(missing_debug_implementations, reason = "guests of a measurement")]
pub struct Pair {
    /// Where both are.
    pub switch: Inline,
    /// The guest that sends.
    pub sender: Guest,
    /// The guest that receives.
    pub taker: Guest,
    /// The sender's header and frame.
    pub bytes: Vec<u8>,
}

impl Pair {
    /// Plugs two guests whose queues have these features into a switch, for frames of `len` bytes.
    pub fn new(features: Features, len: usize) -> Result<Self, Error> {
        let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..Default::default() })?;
        let (sender, transmit) = Guest::new(features)?;
        let (taker, receive) = Guest::new(features)?;
        let mut bytes = vec![0; HEADER as usize + len];
        bytes[12..18].copy_from_slice(&Mac::local(2).octets());
        bytes[18..24].copy_from_slice(&Mac::local(1).octets());
        bytes[24..26].copy_from_slice(&[0x88, 0xb5]);
        let policy = |mac| dataplane::config::Policy {
            macs: vec![Mac::local(mac)],
            flood_limit: None,
            ..Default::default()
        };
        switch.add_attached("sender", policy(1), |state| {
            let counters = state.ingress().ok_or_else(missing)?;
            let queue = Transmit::new(transmit, counters).map_err(|_| missing())?;
            Ok(Attached {
                source: Box::new(TransmitQueues(vec![queue])),
                egresses: vec![],
                bells: Bells::None,
            })
        })?;
        switch.add_attached("taker", policy(2), |state| {
            let counters = state.egress(0).ok_or_else(missing)?;
            let queue = Receive::new(receive, counters).map_err(|_| missing())?;
            let egresses = vec![Arc::new(queue).into()];
            Ok(Attached { source: Box::new(TransmitQueues(vec![])), egresses, bells: Bells::None })
        })?;
        Ok(Self { switch, sender, taker, bytes })
    }

    /// Sends `frames` frames through the switch, a batch at a time.
    pub fn run(
        &mut self,
        frames: u64,
        mut turn: impl FnMut(&mut Inline, Nanos),
    ) -> Result<(), Error> {
        let (mut sent, mut received) = (0, 0);
        while received < frames {
            self.taker.refill();
            sent += self.sender.send(BATCH.min(frames - sent), &self.bytes);
            turn(&mut self.switch, Nanos(sent));
            self.sender.reap(u64::MAX);
            let (chains, bytes) = self.taker.reap(u64::MAX);
            if bytes != chains * self.bytes.len() as u64 || chains == 0 {
                return Err(format!("{chains} frames of {bytes} bytes arrived").into());
            }
            received += chains;
        }
        Ok(())
    }
}

fn missing() -> turn::attach::AttachError {
    turn::attach::AttachError::Descriptors { expected: "a queue in memory" }
}
