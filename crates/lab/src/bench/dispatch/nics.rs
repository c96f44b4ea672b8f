//! The guests' NICs, and how they are plugged into the switch.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use card::Direct;
use driver::e1000::{Config, Doorbells, E1000Driver, Interrupts, Request};
use driver::pcnet::Sizes;
use driver::{Dma, Regs, one_access, pcnet};
use frame::{Mac, Offload};
use guest::tcp::Full;
use guest::{BATCH, Frame, Nic, Pieces, RingNic};
use inline::{Attached, Bells, Inline, Policy, Source};
use netring::{Open, Region, RegionConfig};
use nic::csb::Version;
use nic::device::{Device, DeviceConfig, InterruptMode, Model, Transmit};
use nic::e1000::Chip;
use port::stamp::{self, Stage, scope};
use port::{Ingress, Nanos};
use shmem::{Bytes, GuestMemory, Mapping, Shared};

/// Bytes of a guest's memory, and where its card has it.
const MEMORY: usize = 8 << 20;
const AT: u64 = 0x10_0000;
/// Slots of a ring.
const SLOTS: u32 = 256;
/// Bytes of the longest frame.
const MAX_FRAME: usize = 1514;

/// A guest's NIC, and a count of its register accesses.
pub struct Station<N> {
    pub nic: N,
    pub accesses: Rc<Cell<u64>>,
}

/// Plugs a NIC into a switch.
pub trait Plug {
    /// The NIC.
    type Nic: Nic;

    /// A new port, whose owner has this address.
    fn plug(&self, switch: &mut Inline, mac: Mac) -> Result<Station<Self::Nic>>;
}

fn policy(mac: Mac) -> Policy {
    Policy { macs: vec![mac], ..Policy::default() }
}

/// Shared rings, whose frames the guest copies.
pub struct Rings;

impl Plug for Rings {
    type Nic = RingNic;

    fn plug(&self, switch: &mut Inline, mac: Mac) -> Result<Station<RingNic>> {
        let region = Region::private(RegionConfig::ports(1, 1, SLOTS))?;
        let port = Open::new("port").slots(SLOTS).in_region(&region).inline()?;
        switch.add_rings(&mac.to_string(), policy(mac), &port.rings())?;
        Ok(Station { nic: RingNic::new(port), accesses: Rc::default() })
    }
}

/// The time. Nothing is moderated, so it may stand still.
fn no_time() -> Nanos {
    Nanos(0)
}

/// A model's registers. An access is a kick, unless an interrupt is being handled.
pub struct Accesses {
    regs: Direct<fn() -> Nanos>,
    count: Rc<Cell<u64>>,
}

impl Accesses {
    fn access<T>(&mut self, access: impl FnOnce(&mut Direct<fn() -> Nanos>) -> T) -> T {
        self.count.set(self.count.get() + 1);
        let _scope = (stamp::current() != Stage::WakeUp).then(|| scope(Stage::Kick));
        access(&mut self.regs)
    }
}

impl Regs for Accesses {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        self.access(|regs| regs.read32(bar, at))
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        self.access(|regs| regs.write32(bar, at, value));
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        self.access(|regs| regs.read16(bar, at))
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        self.access(|regs| regs.write16(bar, at, value));
    }
}

/// A guest's driver, as its stack uses it.
pub trait Driver {
    /// Hands in a frame; false without room.
    fn send<'p>(&mut self, len: usize, pieces: impl Iterator<Item = &'p [u8]>) -> bool;
    /// Tells the card of the frames that were handed in.
    fn flush(&mut self);
    /// The card has interrupted.
    fn interrupt(&mut self);
    /// Shows received frames to `visit`, and gives their buffers back.
    fn receive(&mut self, most: usize, visit: impl FnMut(&[Bytes<'_>])) -> usize;
    /// Has the card interrupt for what comes.
    fn sleep(&mut self, interrupted: bool);
}

impl Driver for E1000Driver<Accesses> {
    fn send<'p>(&mut self, len: usize, pieces: impl Iterator<Item = &'p [u8]>) -> bool {
        self.reclaim();
        let (place, mut at) = (self.place(0), 0);
        for piece in pieces {
            at += place.suffix(at).copy_in(piece);
        }
        self.send_placed(len as u32, &Request::default())
    }

    fn flush(&mut self) {
        self.flush();
    }

    fn interrupt(&mut self) {
        E1000Driver::interrupt(self, 1);
    }

    fn receive(&mut self, most: usize, mut visit: impl FnMut(&[Bytes<'_>])) -> usize {
        let frames = self.receive(most, |received| visit(received.pieces));
        self.reclaim();
        frames
    }

    fn sleep(&mut self, interrupted: bool) {
        if interrupted {
            self.rearm();
        }
        self.wait_for_frames();
    }
}

impl Driver for pcnet::Driver<Accesses> {
    fn send<'p>(&mut self, _len: usize, pieces: impl Iterator<Item = &'p [u8]>) -> bool {
        self.reap();
        let (mut frame, mut len) = ([0; MAX_FRAME], 0);
        for piece in pieces {
            frame[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        }
        pcnet::Driver::send(self, &frame[..len], len)
    }

    fn flush(&mut self) {
        self.demand();
    }

    fn interrupt(&mut self) {
        self.acknowledge();
    }

    fn receive(&mut self, most: usize, mut visit: impl FnMut(&[Bytes<'_>])) -> usize {
        let frames = pcnet::Driver::receive(self, most, |bytes| visit(&[bytes]));
        self.reap();
        frames
    }

    fn sleep(&mut self, interrupted: bool) {
        if interrupted {
            self.unmask();
        }
    }
}

impl Driver for one_access::Driver<Accesses> {
    fn send<'p>(&mut self, _len: usize, pieces: impl Iterator<Item = &'p [u8]>) -> bool {
        let (mut frame, mut len) = ([0; MAX_FRAME], 0);
        for piece in pieces {
            frame[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        }
        one_access::Driver::send(self, &frame[..len])
    }

    /// Each frame was an access of its own.
    fn flush(&mut self) {}

    fn interrupt(&mut self) {}

    fn receive(&mut self, most: usize, mut visit: impl FnMut(&[Bytes<'_>])) -> usize {
        one_access::Driver::receive(self, most, |bytes| visit(&[bytes]))
    }

    fn sleep(&mut self, _interrupted: bool) {}
}

/// A card with its driver. Received frames are copied to private memory, as from rings.
pub struct CardNic<D> {
    device: Arc<dyn Device>,
    driver: D,
    arena: Vec<u8>,
    /// Something was handed in since the last flush.
    unflushed: bool,
}

impl<D: Driver> CardNic<D> {
    /// Handles the card's interrupt, if there is one.
    fn attend(&mut self) -> bool {
        let _scope = scope(Stage::WakeUp);
        let raised = self.device.interrupt(no_time()).vectors != 0;
        if raised {
            self.driver.interrupt();
        }
        raised
    }
}

impl<D: Driver> Nic for CardNic<D> {
    type Error = Infallible;

    fn max_frame(&self) -> usize {
        MAX_FRAME
    }

    fn receive(&mut self, mut take: impl FnMut(&[Frame<'_>])) -> usize {
        let interrupted = self.attend();
        let (mut lens, mut frames) = ([0; BATCH], 0);
        let mut rest = &mut self.arena[..];
        let received = self.driver.receive(BATCH, |pieces| {
            let mut len = 0;
            for piece in pieces {
                len += piece.copy_out(&mut rest[len..]);
            }
            rest = &mut std::mem::take(&mut rest)[len..];
            (lens[frames], frames) = (len, frames + 1);
        });
        if frames > 0 {
            let (mut list, mut rest) = ([Frame::new(&[]); BATCH], &self.arena[..]);
            for (frame, len) in list.iter_mut().zip(&lens[..frames]) {
                (*frame, rest) = (Frame::new(&rest[..*len]), &rest[*len..]);
            }
            take(&list[..frames]);
        }
        let _scope = scope(Stage::WakeUp);
        self.driver.sleep(interrupted);
        received
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        _offload: Offload,
    ) -> Result<(), Full> {
        const PADDING: [u8; frame::MIN_FRAME] = [0; frame::MIN_FRAME];
        let len = head.len() + payload.len;
        let padding = &PADDING[..frame::MIN_FRAME.saturating_sub(len)];
        // The pieces live as long as both `head` and the payload.
        let shorter = |piece: &'p [u8]| -> &[u8] { piece };
        let pieces = std::iter::once(head).chain(payload.pieces.map(shorter));
        let pieces = pieces.chain(std::iter::once(padding));
        self.unflushed = true;
        let sent = self.driver.send(len + padding.len(), pieces);
        if sent { Ok(()) } else { Err(Full) }
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        if std::mem::take(&mut self.unflushed) {
            self.driver.flush();
        }
        Ok(())
    }

    fn wait(&mut self, _room: bool, _timeout: Option<Duration>) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A card's transmit queue as the source of a port.
struct Sending(Box<dyn Transmit>);

impl Source for Sending {
    fn queues(&self) -> usize {
        1
    }

    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        let transmit: &mut dyn Transmit = &mut *self.0;
        (queue == 0).then_some(transmit as &mut dyn Ingress)
    }
}

/// A card's memory and registers, before its driver.
struct Slot {
    regs: Accesses,
    dma: Dma,
}

/// Plugs a model into the switch.
fn insert<D: Driver>(
    switch: &mut Inline,
    mac: Mac,
    model: impl FnOnce(DeviceConfig) -> Result<Model>,
    drive: impl FnOnce(Slot) -> Result<D>,
) -> Result<Station<CardNic<D>>> {
    let mapping = Mapping::private(MEMORY)?;
    let memory = Arc::new(GuestMemory::of(Arc::clone(&mapping), AT)?);
    let config = DeviceConfig { csb: true, ..DeviceConfig::alone(memory, mac, 1)? };
    let Model { device, mut transmit, receive } = model(config)?;
    device.set_bus_master(true);
    device.set_interrupt_mode(InterruptMode::Pin);
    let count: Rc<Cell<u64>> = Rc::default();
    let regs = Direct::new(Arc::clone(&device), no_time as fn() -> Nanos);
    let regs = Accesses { regs, count: Rc::clone(&count) };
    let dma = Dma::new(mapping, 0, MEMORY, AT).context("it is mapped")?;
    let driver = drive(Slot { regs, dma })?;
    let source = Box::new(Sending(transmit.pop().context("a card sends")?));
    switch.add_attached(&mac.to_string(), policy(mac), |_| {
        let egresses = receive.into_iter().map(Into::into).collect();
        Ok(Attached { source, egresses, bells: Bells::None })
    })?;
    let nic = CardNic { device, driver, arena: vec![0; BATCH * 2048], unflushed: false };
    Ok(Station { nic, accesses: count })
}

/// An 82540EM, with a shared status block or without.
pub struct E1000 {
    pub block: bool,
}

impl Plug for E1000 {
    type Nic = CardNic<E1000Driver<Accesses>>;

    fn plug(&self, switch: &mut Inline, mac: Mac) -> Result<Station<Self::Nic>> {
        let doorbells = if self.block { Doorbells::Block(Version::Two) } else { Doorbells::Each };
        let config =
            Config { doorbells, interrupts: Interrupts::Pin, ..Config::stock(Chip::Em82540) };
        let model = |device| Ok(nic::e1000::model(config.chip, Shared::private()?, device));
        insert(switch, mac, model, |mut slot| {
            Ok(E1000Driver::new(slot.regs, &mut slot.dma, config)?)
        })
    }
}

/// An Am79C970A.
pub struct Pcnet;

impl Plug for Pcnet {
    type Nic = CardNic<pcnet::Driver<Accesses>>;

    fn plug(&self, switch: &mut Inline, mac: Mac) -> Result<Station<Self::Nic>> {
        let chip = nic::pcnet::Chip::Am79C970A;
        let model = |device| Ok(nic::pcnet::model(chip, Shared::private()?, device));
        insert(switch, mac, model, |mut slot| {
            let sizes = Sizes { transmit: 8, receive: 8 };
            let mut driver = pcnet::Driver::new(slot.regs, &mut slot.dma, sizes)?;
            driver.start(true, false)?;
            Ok(driver)
        })
    }
}

/// Denali's NIC.
pub struct OneAccess;

impl Plug for OneAccess {
    type Nic = CardNic<one_access::Driver<Accesses>>;

    fn plug(&self, switch: &mut Inline, mac: Mac) -> Result<Station<Self::Nic>> {
        let model = |device| Ok(nic::template::model(Shared::private()?, device));
        insert(switch, mac, model, |mut slot| {
            Ok(one_access::Driver::new(slot.regs, &mut slot.dma, true, false)?)
        })
    }
}
