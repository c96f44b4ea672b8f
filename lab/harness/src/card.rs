//! An emulated network card and a driver of it, without a virtual machine: the driver is in the
//! test.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use card::vfio_user::{Client, ClientError, Registers};
use dataplane::attach::card::migration::DeviceState;
use driver::Dma;
use driver::e1000::{Config, Doorbells, E1000Driver, Interrupts, Request};
use driver::one_access::Driver as OneAccessDriver;
use driver::pcnet::{Driver as PcnetDriver, Sizes};
use nic::csb::Version;
use nic::e1000::Chip;
use rustix::event::{PollFd, PollFlags, Timespec};
use shmem::Mapping;

use crate::front_end::{eventfd, memfd};

/// Bytes of memory.
pub const MEMORY: u64 = 4 << 20;
/// The address at which the device sees the memory.
const AT: u64 = 0x10_0000;

/// A driver, by the model that it drives.
pub enum Driver {
    /// Of both chips of the family.
    E1000(Box<E1000Driver<Registers>>),
    /// Of PCnet.
    Pcnet(Box<PcnetDriver<Registers>>),
    /// Of the model with one access a batch.
    OneAccess(Box<OneAccessDriver<Registers>>),
}

/// A card that is plugged in, with its driver.
pub struct Card {
    /// The driver.
    pub driver: Driver,
    /// The eventfds that the card interrupts by.
    pub calls: Vec<OwnedFd>,
    memory: Memory,
    kind: u32,
}

/// A guest's memory.
pub struct Memory {
    mapping: Arc<Mapping>,
    /// The memory's file. Without one, the card reaches the memory by messages.
    file: Option<OwnedFd>,
}

impl Memory {
    /// Memory whose file the card gets.
    pub fn shared() -> Self {
        let file = memfd(MEMORY);
        let mapping = Mapping::unsealed(file.as_fd(), MEMORY as usize).unwrap();
        Self { mapping, file: Some(file) }
    }

    /// Memory that the card reaches by messages.
    pub fn private() -> Self {
        Self { mapping: Mapping::private(MEMORY as usize).unwrap(), file: None }
    }
}

/// A connection to the card of a port, with memory and interrupts.
fn connect(path: &Path, memory: &Memory, kind: u32, calls: &[OwnedFd]) -> Client {
    let mut client = Client::connect(path).unwrap();
    match &memory.file {
        Some(file) => client.dma_map(Some(file.as_fd()), 0, AT, MEMORY, true).unwrap(),
        None => client.dma_map_own(&memory.mapping, AT).unwrap(),
    }
    client.set_irqs(kind, &calls.iter().collect::<Vec<_>>()).unwrap();
    client
}

/// A driver of a chip of Intel's family.
fn e1000(registers: Registers, dma: &mut Dma, model: &str, csb: bool) -> Driver {
    let (member, interrupts) = match model {
        "82574l" => (Chip::L82574, Interrupts::Msix),
        _ => (Chip::Em82540, Interrupts::Pin),
    };
    let doorbells = if csb { Doorbells::Block(Version::Two) } else { Doorbells::Each };
    let config = Config { interrupts, promiscuous: true, doorbells, ..Config::stock(member) };
    Driver::E1000(Box::new(E1000Driver::new(registers, dma, config).unwrap()))
}

fn pcnet(registers: Registers, dma: &mut Dma, csb: bool) -> Driver {
    let sizes = Sizes { transmit: 7, receive: 7 };
    let mut driver = PcnetDriver::new(registers, dma, sizes).unwrap();
    if csb {
        driver = driver.with_block(dma, Version::Two).unwrap();
    }
    driver.start(true, true).unwrap();
    Driver::Pcnet(Box::new(driver))
}

impl Card {
    /// Plugs a driver for `model` in.
    pub fn start(path: &Path, model: &str) -> Self {
        Self::start_with(path, model, false, Memory::shared())
    }

    /// As `start`, with a shared status block if `csb`.
    pub fn start_with(path: &Path, model: &str, csb: bool, memory: Memory) -> Self {
        let (kind, vectors) = if model == "82574l" { (2, 3) } else { (0, 1) };
        let calls: Vec<_> = (0..vectors).map(|_| eventfd()).collect();
        let mut registers = Registers::new(connect(path, &memory, kind, &calls)).unwrap();
        registers.share().unwrap();
        let mut dma = Dma::new(Arc::clone(&memory.mapping), 0, MEMORY as usize, AT).unwrap();
        let driver = match model {
            "82540em" | "82574l" => e1000(registers, &mut dma, model, csb),
            "one-access" => {
                let driver = OneAccessDriver::new(registers, &mut dma, true, true).unwrap();
                Driver::OneAccess(Box::new(driver))
            }
            _ => pcnet(registers, &mut dma, csb),
        };
        Self { driver, calls, memory, kind }
    }

    fn registers(&mut self) -> &mut Registers {
        match &mut self.driver {
            Driver::E1000(driver) => driver.regs(),
            Driver::Pcnet(driver) => driver.regs(),
            Driver::OneAccess(driver) => driver.regs(),
        }
    }

    /// The connection to the card.
    pub fn client(&mut self) -> &mut Client {
        &mut self.registers().client
    }

    /// Stops the card because its machine moves, and returns the card's state.
    pub fn stop(&mut self) -> Vec<u8> {
        self.client().save().unwrap()
    }

    /// Continues at another port from a card's state. Calls `before` before the card runs.
    pub fn go_on(&mut self, path: &Path, state: &[u8], before: impl FnOnce()) {
        let mut client = connect(path, &self.memory, self.kind, &self.calls);
        client.load(state).unwrap();
        before();
        client.set_device_state(DeviceState::Running).unwrap();
        self.registers().client = client;
        self.registers().share().unwrap();
    }

    /// Returns what has failed since the last call.
    pub fn failure(&mut self) -> Option<ClientError> {
        self.client().take_failure()
    }

    /// Sends a frame; false without room.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        match &mut self.driver {
            Driver::E1000(driver) => {
                driver.reclaim();
                let sent = driver.send(frame, &Request::default());
                driver.flush();
                sent
            }
            Driver::Pcnet(driver) => {
                driver.reap();
                let sent = driver.send(frame, 2048);
                if sent {
                    driver.demand();
                }
                sent
            }
            Driver::OneAccess(driver) => driver.send(frame),
        }
    }

    /// Reclaims sent frames, and returns how many transmit descriptors are free.
    pub fn room(&mut self) -> u32 {
        match &mut self.driver {
            Driver::E1000(driver) => {
                driver.reclaim();
                driver.room()
            }
            Driver::Pcnet(driver) => {
                driver.reap();
                driver.room()
            }
            Driver::OneAccess(driver) => driver.room(),
        }
    }

    /// Answers the card's requests for memory without a file. Returns true if there was an
    /// interrupt.
    pub fn serve(&mut self) -> bool {
        self.client().serve().unwrap();
        let mut calls: Vec<_> =
            self.calls.iter().map(|call| PollFd::new(call, PollFlags::IN)).collect();
        rustix::event::poll(&mut calls, Some(&Timespec::default())).unwrap() > 0
    }

    /// Receives the frames that have arrived. After an interrupt it handles this first, as an
    /// interrupt handler would.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        if self.memory.file.is_none() {
            self.serve();
        }
        let mut vectors = 0;
        for (vector, call) in self.calls.iter().enumerate() {
            let there = rustix::io::read(call, &mut [0; 8]).is_ok();
            vectors |= u32::from(there) << vector;
        }
        let mut frames = Vec::new();
        match &mut self.driver {
            Driver::E1000(driver) => {
                let causes = if vectors != 0 { driver.interrupt(vectors) } else { 0 };
                driver.receive(256, |frame| {
                    if frame.errors == 0 {
                        frames.push(frame.to_vec());
                    }
                });
                if causes != 0 {
                    driver.rearm();
                }
                driver.refill();
            }
            Driver::Pcnet(driver) => {
                let looked = vectors != 0 && driver.acknowledge();
                driver.receive(256, |frame| frames.push(frame.to_vec()));
                if looked {
                    driver.unmask();
                }
            }
            Driver::OneAccess(driver) => {
                driver.receive(256, |frame| frames.push(frame.to_vec()));
            }
        }
        if vectors & 1 != 0 && self.calls.len() == 1 {
            let _ = self.client().unmask();
        }
        frames
    }
}
