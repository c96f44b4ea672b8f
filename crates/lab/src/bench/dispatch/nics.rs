//! The guests' NICs, and how they are plugged into the switch.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use card::Direct;
use driver::e1000::{Config, Doorbells, E1000Driver, Interrupts};
use driver::pcnet::Sizes;
use driver::{Dma, Regs, one_access, pcnet};
use frame::{Mac, Offload};
use guest::tcp::Full;
use guest::{Bus, CardError, CardNic, Drive, Frame, Nic, Pieces, RingNic};
use inline::{Attached, Bells, Inline, Policy, Source};
use netring::{Open, Region, RegionConfig};
use nic::csb::Version;
use nic::device::{Device, DeviceConfig, InterruptMode, Model, Transmit};
use nic::e1000::Chip;
use port::stamp::{self, Stage, scope};
use port::{Ingress, Nanos};
use shmem::{GuestMemory, Mapping, Shared};

/// Bytes of a guest's memory, and where its card has it.
const MEMORY: usize = 8 << 20;
const AT: u64 = 0x10_0000;
/// Slots of a ring.
const SLOTS: u32 = 256;

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

impl Bus for Accesses {}

/// A card whose interrupts are looked for before frames are.
pub struct Attended<D> {
    device: Arc<dyn Device>,
    card: CardNic<D>,
}

impl<D: Drive> Nic for Attended<D> {
    type Error = CardError;

    fn max_frame(&self) -> usize {
        self.card.max_frame()
    }

    fn receive(&mut self, take: impl FnMut(&[Frame<'_>])) -> usize {
        if self.device.interrupt(no_time()).vectors != 0 {
            let _scope = scope(Stage::WakeUp);
            self.card.driver().interrupted();
        }
        let received = self.card.receive(take);
        let _scope = scope(Stage::WakeUp);
        self.card.driver().sleep(false);
        received
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        offload: Offload,
    ) -> Result<(), Full> {
        self.card.send(head, payload, offload)
    }

    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        self.card.build(max, build)
    }

    fn flush(&mut self) -> Result<(), CardError> {
        self.card.flush()
    }

    fn wait(&mut self, room: bool, timeout: Option<Duration>) -> Result<(), CardError> {
        self.card.wait(room, timeout)
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
fn insert<D: Drive>(
    switch: &mut Inline,
    mac: Mac,
    model: impl FnOnce(DeviceConfig) -> Result<Model>,
    drive: impl FnOnce(Slot) -> Result<D>,
) -> Result<Station<Attended<D>>> {
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
    let nic = Attended { device, card: CardNic::over(driver) };
    Ok(Station { nic, accesses: count })
}

/// An 82540EM, with a shared status block or without.
pub struct E1000 {
    pub block: bool,
}

impl Plug for E1000 {
    type Nic = Attended<E1000Driver<Accesses>>;

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
    type Nic = Attended<pcnet::Driver<Accesses>>;

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
    type Nic = Attended<one_access::Driver<Accesses>>;

    fn plug(&self, switch: &mut Inline, mac: Mac) -> Result<Station<Self::Nic>> {
        let model = |device| Ok(nic::template::model(Shared::private()?, device));
        insert(switch, mac, model, |mut slot| {
            Ok(one_access::Driver::new(slot.regs, &mut slot.dma, true, false)?)
        })
    }
}
