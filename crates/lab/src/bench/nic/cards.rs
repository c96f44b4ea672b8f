//! Drivers of emulated network cards in this process, over vfio-user and an isolated switch. Traps
//! are real (a message each), but there is no virtual machine.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use card::Netmap;
use card::vfio_user::{Client, Registers, Traps};
use driver::Dma;
use driver::e1000::{Config, E1000Driver, Interrupts, Request};
use frame::Mac;
use netring::layout::{
    BUFFER_STRIDE, Geometry, RESERVED_BUFFERS, RingMemory, SlotWord, advance, distance, previous,
};
use nic::csb::Version;
use nic::e1000::Chip;
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use shmem::Mapping;

use super::guest;
use super::machine::{HELD, Variant};
use crate::bench::isolated::POLLED;
use crate::bench::lab::{Daemon, Lab};
use crate::bench::traffic::{header, on_core};

/// Size of a driver's memory, and its address for the card.
const MEMORY: u64 = 4 << 20;
const AT: u64 = 0x10_0000;
/// Frames sent between two checks for received ones.
const BURST: usize = 32;
/// Length of the frames by which the switch learns addresses, before the measurement.
const HELLO: usize = 60;

/// A card with its driver.
struct Card {
    driver: E1000Driver<Registers>,
    /// By vector: the eventfd that the vector signals.
    calls: Vec<OwnedFd>,
}

/// Makes a port with a card; returns the connection to it, and memory that the card sees.
fn connect(daemon: &Daemon, name: &str, variant: Variant) -> Result<(Client, Arc<Mapping>)> {
    let socket = daemon.dir().join(format!("{name}.sock"));
    let combine = (variant == Variant::Held)
        .then(|| serde_json::json!({ "frames": HELD.frames, "delay_us": HELD.delay_us }));
    let nic = serde_json::json!({ "model": "82540em", "csb": true, "combine": combine });
    daemon.add_port(name, &serde_json::json!({ "vfio_user": { "path": socket, "nic": nic } }))?;
    let file = rustix::fs::memfd_create("card", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, MEMORY)?;
    let mut client = Client::connect(&socket)?;
    client.dma_map(Some(file.as_fd()), 0, AT, MEMORY, true)?;
    Ok((client, Mapping::unsealed(file.as_fd(), usize::try_from(MEMORY)?)?))
}

impl Card {
    /// A new port with a card, and its driver.
    fn plug(daemon: &Daemon, name: &str, variant: Variant) -> Result<Self> {
        let config = variant.config(Chip::Em82540);
        let (mut client, memory) = connect(daemon, name, variant)?;
        let (kind, vectors) = if config.interrupts == Interrupts::Msix { (2, 3) } else { (0, 1) };
        let call = |_| rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let calls = (0..vectors).map(call).collect::<Result<Vec<_>, _>>()?;
        client.set_irqs(kind, &calls.iter().collect::<Vec<_>>())?;
        let mut dma = Dma::new(Arc::clone(&memory), 0, MEMORY as usize, AT).context("mapped")?;
        let driver = E1000Driver::new(Registers::new(client)?, &mut dma, config)?;
        Ok(Self { driver, calls })
    }

    /// The card's traps so far.
    fn traps(&mut self) -> Traps {
        self.driver.regs().client.traps
    }

    /// Sends one frame, so that the switch learns where the driver is.
    fn announce(&mut self) -> Result<()> {
        let mut frame = [0; HELLO];
        frame[..14].copy_from_slice(&header(Mac::BROADCAST, self.driver.mac()));
        if !self.driver.send(&frame, &Request::default()) {
            bail!("a new card has no room");
        }
        self.driver.flush();
        Ok(())
    }

    /// Checks completed and received frames; returns the number received. With a status block, a
    /// driver that is awake needs no interrupt.
    fn look(&mut self) -> Result<u64> {
        if self.driver.uses_block() {
            self.driver.reclaim();
            return Ok(self.driver.receive(usize::MAX, |_| ()) as u64);
        }
        let mut vectors = 0;
        for (vector, call) in self.calls.iter().enumerate() {
            let signalled = rustix::io::read(call, &mut [0; 8]).is_ok();
            vectors |= u32::from(signalled) << vector;
        }
        if vectors == 0 {
            return Ok(0);
        }
        let frames = guest::interrupt(&mut self.driver, &mut || std::mem::take(&mut vectors));
        if self.calls.len() == 1 {
            // Unmasking the interrupt pin is a trap, too.
            self.driver.regs().client.unmask()?;
        }
        Ok(frames)
    }

    /// Sends up to a burst, one frame at a time. Interrupts are handled at once.
    fn send(&mut self, len: u32) -> Result<()> {
        for _ in 0..BURST {
            if self.driver.room() == 0 {
                self.driver.reclaim();
            }
            if self.driver.room() == 0 {
                break;
            }
            self.driver.send_placed(len, &Request::default());
            self.driver.flush();
            if !self.driver.uses_block() {
                self.look()?;
            }
        }
        Ok(())
    }
}

/// Totals of both cards.
struct Flow {
    from: Card,
    to: Card,
}

impl Flow {
    fn start(daemon: &Daemon, variant: Variant, len: usize) -> Result<Self> {
        let mut flow = Self {
            from: Card::plug(daemon, "from", variant)?,
            to: Card::plug(daemon, "to", variant)?,
        };
        flow.to.announce()?;
        flow.from.announce()?;
        let start = Instant::now();
        // Once both announcements have arrived, the switch has learned both addresses.
        let (mut there, mut back) = (0, 0);
        while there == 0 || back == 0 {
            there += flow.to.look()?;
            back += flow.from.look()?;
            if start.elapsed() > guest::PATIENCE {
                bail!("the cards do not hear each other");
            }
        }
        for card in [&mut flow.from, &mut flow.to] {
            if card.driver.uses_block() {
                // From here on, both drivers are awake.
                card.driver.interrupt(1);
            }
        }
        let mut frame = vec![0; len];
        frame[..14].copy_from_slice(&header(flow.to.driver.mac(), flow.from.driver.mac()));
        guest::prepare(&flow.from.driver, &frame);
        Ok(flow)
    }
}

impl Flow {
    /// One frame there and back, in microseconds.
    fn trip(&mut self) -> Result<f64> {
        let start = Instant::now();
        for way in [true, false] {
            let (from, to) =
                if way { (&mut self.from, &mut self.to) } else { (&mut self.to, &mut self.from) };
            from.driver.send_placed(guest::SHORT, &Request::default());
            from.driver.flush();
            while to.look()? == 0 {
                // The sender's own interrupts must be served, too.
                from.look()?;
                if start.elapsed() > guest::PATIENCE {
                    bail!("a frame did not arrive");
                }
            }
            from.driver.reclaim();
        }
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }
}

/// Round trips between two cards, both drivers awake: the median and the 99th percentile, in us.
pub fn trips(lab: &Lab, variant: Variant) -> Result<(f64, f64)> {
    let (time, daemon) = (lab.duration(), lab.daemon(POLLED)?);
    on_core(0, || {
        let mut flow = Flow::start(&daemon, variant, guest::SHORT as usize)?;
        let mut back = [0; guest::SHORT as usize];
        back[..14].copy_from_slice(&header(flow.from.driver.mac(), flow.to.driver.mac()));
        guest::prepare(&flow.to.driver, &back);
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < time {
            times.push(flow.trip()?);
        }
        times.sort_unstable_by(f64::total_cmp);
        let at = |percent: usize| times.get(times.len() * percent / 100).copied();
        at(50).zip(at(99)).context("no frame came back")
    })
}

/// Frames per second from one card's driver to another's, and a description of the cost.
pub fn rate(lab: &Lab, variant: Variant, len: usize) -> Result<(f64, String)> {
    let (time, daemon) = (lab.duration(), lab.daemon(POLLED)?);
    let mut traps = Traps::default();
    let rate = on_core(0, || {
        let mut flow = Flow::start(&daemon, variant, len)?;
        let (before, start) = ([flow.from.traps(), flow.to.traps()], Instant::now());
        let (mut frames, mut moved) = (0, start);
        loop {
            flow.from.send(len as u32)?;
            flow.from.look()?;
            let received = flow.to.look()?;
            frames += received;
            let now = Instant::now();
            if received > 0 {
                moved = now;
            }
            if now - moved > guest::PATIENCE {
                bail!("frames arrive no more");
            }
            if now - start >= time {
                let after = [flow.from.traps(), flow.to.traps()];
                for (before, after) in before.into_iter().zip(after) {
                    traps.synchronous += after.synchronous - before.synchronous;
                    traps.posted += after.posted - before.posted;
                }
                return Ok((frames, frames as f64 / (now - start).as_secs_f64()));
            }
        }
    });
    let (frames, rate) = rate?;
    let per_frame = |n: u64| n as f64 / frames.max(1) as f64;
    let (synchronous, posted) = (per_frame(traps.synchronous), per_frame(traps.posted));
    let words =
        format!("a frame, both cards: {synchronous:.4} synchronous accesses, {posted:.4} posted");
    Ok((rate, words))
}

/// A card whose descriptors point at the buffers of netmap's slots, and its two rings.
struct Slotted {
    card: Netmap<E1000Driver<Registers>>,
    send: RingMemory,
    receive: RingMemory,
}

/// Slots of each ring; a region with these rings, and after it the descriptors.
const SLOTS: u32 = 256;
const GEOMETRY: Geometry = Geometry {
    if_size: 1024,
    if_num: 1,
    ring_size: 20_480,
    ring_num: 2,
    buf_size: BUFFER_STRIDE,
    buf_num: 2 * SLOTS + RESERVED_BUFFERS,
};

impl Slotted {
    fn plug(daemon: &Daemon, name: &str) -> Result<Self> {
        let variant = Variant::Block(Version::Two);
        let config = Config { interrupts: Interrupts::None, ..variant.config(Chip::Em82540) };
        let (client, memory) = connect(daemon, name, variant)?;
        let start = (GEOMETRY.file_size() as usize).next_multiple_of(4096);
        let left = MEMORY as usize - start;
        let mut dma =
            Dma::new(Arc::clone(&memory), start, left, AT + start as u64).context("mapped")?;
        let driver = E1000Driver::over(Registers::new(client)?, &mut dma, config, &[])?;
        let ring = |number| RingMemory::of(&memory, &GEOMETRY, number, SLOTS).context("a ring");
        let rings = || anyhow::Ok((ring(0)?, ring(1)?));
        let (send, receive) = rings()?;
        for (i, slot) in (0..).zip(send.slots.iter().chain(receive.slots.iter())) {
            slot.store(SlotWord { buf: RESERVED_BUFFERS + i, len: 0, flags: 0 });
        }
        let first = AT + GEOMETRY.buf_offset();
        let card = Netmap::new(driver, rings()?, &GEOMETRY, first).context("long buffers")?;
        Ok(Self { card, send, receive })
    }

    /// Writes a frame into all buffers of the send ring.
    fn prepare(&self, memory: &[u8]) {
        for i in 0..SLOTS {
            let at = GEOMETRY.buf_offset() as usize
                + (RESERVED_BUFFERS + i) as usize * GEOMETRY.buf_size as usize;
            if let Some(buffer) = self.send.header.mapping().bytes(at, memory.len()) {
                buffer.copy_in(memory);
            }
        }
    }

    /// Submits up to a burst of frames.
    fn send(&mut self, len: u16, most: u32) {
        let control = &self.send.control;
        let (from, core) = (control.owner.0.own(), control.core.0.observe());
        let room = distance(from, previous(core, SLOTS), SLOTS).min(most);
        for i in 0..room {
            let slot = &self.send.slots[advance(from, i, SLOTS) as usize];
            slot.store(SlotWord { len, flags: 0, ..slot.load() });
        }
        control.owner.0.publish(advance(from, room, SLOTS));
        self.card.turn();
    }

    /// Releases what has arrived; returns how many frames that was.
    fn receive(&mut self) -> u64 {
        self.card.turn();
        let control = &self.receive.control;
        let (from, to) = (control.owner.0.own(), control.core.0.observe());
        control.owner.0.publish(to);
        distance(from, to, SLOTS).into()
    }
}

/// Frames per second from one card's slots to another's, each synced once a burst.
pub fn slots(lab: &Lab, len: u16) -> Result<f64> {
    let (time, daemon) = (lab.duration(), lab.daemon(POLLED)?);
    on_core(0, || {
        let mut from = Slotted::plug(&daemon, "from")?;
        let mut to = Slotted::plug(&daemon, "to")?;
        let mut frame = vec![0; len.into()];
        let start = Instant::now();
        for way in [true, false] {
            let (near, far) = if way { (&mut to, &mut from) } else { (&mut from, &mut to) };
            frame[..14].copy_from_slice(&header(far.card.nic().mac(), near.card.nic().mac()));
            near.prepare(&frame);
            near.send(HELLO as u16, 1);
            // Once both have heard the other, the switch has learned both addresses.
            while far.receive() == 0 {
                near.send(0, 0);
                ensure!(start.elapsed() < guest::PATIENCE, "the cards do not hear each other");
            }
        }
        let (start, mut frames) = (Instant::now(), 0);
        let mut moved = start;
        loop {
            from.send(len, BURST as u32);
            let received = to.receive();
            frames += received;
            let now = Instant::now();
            if received > 0 {
                moved = now;
            }
            ensure!(now - moved < guest::PATIENCE, "frames arrive no more");
            if now - start >= time {
                return Ok(frames as f64 / (now - start).as_secs_f64());
            }
        }
    })
}
