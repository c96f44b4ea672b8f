//! A NIC, its driver and its worker in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use driver::e1000::{Config, Doorbells, E1000Driver, Interrupts, Moderation};
use driver::{Dma, Trapping};
use frame::Mac;
use nic::csb::Version;
use nic::device::{Combining, DeviceConfig, InterruptMode, Model};
use nic::e1000::{self, Chip};
use port::{Delivered, FrameIdx, Limits, MapGuard, Nanos, Scratch};
use shmem::{Bytes, GuestMemory, Mapping, Shared};

use super::bus::{Bus, Doorbelled, OnBus};
use super::guest::Raised;

/// Size and address of a guest's memory.
pub const MEMORY: usize = 16 << 20;
pub const BASE: u64 = 0x1_0000_0000;
/// The NIC's address.
pub const MAC: Mac = Mac::local(7);
/// Frames of a batch.
const BATCH: usize = 64;
const LIMITS: Limits = Limits { max_frame: 1518, lossless: false };
/// Interval of moderation: 4,000 interrupts a second, which Linux chooses for bulk traffic.
const INTERVAL: u16 = 976;

/// How long a worker polls after the last frame, as those of switches do, in nanoseconds.
pub const LOOK_ON: u64 = 50_000;
/// How a host coalesces doorbells.
pub const HELD: Combining = Combining { frames: 64, delay_us: 20 };

/// Ways to need fewer traps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// No means against traps.
    Baseline,
    /// Interrupts are moderated.
    Moderation,
    /// Interrupts are at least this long apart, in units of 256 ns.
    Interval(u16),
    /// The driver combines sends: it waits for an interrupt.
    Combining,
    /// Moderation and combining.
    Both,
    /// Interrupts are moderated, and the host coalesces doorbells. This saves no traps, but work
    /// for each.
    Held,
    /// A shared status block, and moderation.
    Block(Version),
    /// A shared status block without moderation, for guests that wait for each frame.
    Prompt(Version),
    /// Moderation, and doorbells in memory that an awake worker polls.
    SharedDoorbells,
}

impl Variant {
    /// The driver's configuration.
    pub fn config(self, chip: Chip) -> Config {
        let interval = match self {
            Self::Baseline | Self::Combining | Self::Prompt(_) => 0,
            Self::Interval(units) => units,
            _ => INTERVAL,
        };
        let doorbells = match self {
            Self::Combining | Self::Both => Doorbells::Combined,
            Self::Block(version) | Self::Prompt(version) => Doorbells::Block(version),
            _ => Doorbells::Each,
        };
        let moderation = Moderation { interval, ..Moderation::default() };
        Config { doorbells, moderation, ..Config::stock(chip) }
    }
}

/// What a worker does with frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Discards sent frames.
    Sink,
    /// Delivers frames of this many bytes, one at a time, as fast as it can.
    Source(usize),
    /// Returns each frame to its sender.
    Echo,
}

/// Makes a model that is powered on, with memory of its own; returns both.
pub fn model(config: &Config, combining: Option<Combining>) -> Result<(Model, Arc<Mapping>)> {
    let mapping = Mapping::private(MEMORY)?;
    let memory = Arc::new(GuestMemory::of(Arc::clone(&mapping), BASE)?);
    let device_config =
        DeviceConfig { combining, csb: true, ..DeviceConfig::alone(memory, MAC, 1)? };
    let model = e1000::model(config.chip, Shared::private()?, device_config);
    model.device.set_bus_master(true);
    model.device.set_interrupt_mode(match config.interrupts {
        Interrupts::Msix => InterruptMode::Msix,
        _ => InterruptMode::Pin,
    });
    Ok((model, mapping))
}

/// Makes a frame of `len` bytes to the NIC.
pub fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..14].copy_from_slice(&crate::bench::traffic::header(MAC, Mac::local(8)));
    frame
}

/// What the worker has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Frames that passed the model, in either direction.
    pub frames: u64,
    /// Nanoseconds spent in the model, in turns that moved frames.
    pub busy_ns: u64,
    /// Interrupts raised.
    pub interrupts: u64,
}

/// The device's side: serves the bus, and a switch's port as its worker does.
pub struct Worker<'a> {
    pub model: Model,
    pub bus: &'a Bus,
    pub work: Work,
    pub stop: &'a AtomicBool,
    scratch: Scratch,
    awake: bool,
    /// When frames were sent last.
    last: Nanos,
    due: Option<Nanos>,
    start: Instant,
    frames: Vec<Vec<u8>>,
    done: Done,
}

impl<'a> Worker<'a> {
    pub fn new(model: Model, bus: &'a Bus, work: Work, stop: &'a AtomicBool) -> Self {
        let len = if let Work::Source(len) = work { len } else { 60 };
        Self {
            model,
            bus,
            work,
            stop,
            scratch: Scratch::new(BATCH),
            awake: true,
            last: Nanos(0),
            due: None,
            start: Instant::now(),
            frames: vec![frame(len); BATCH],
            done: Done::default(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Runs until the machine is told to stop.
    pub fn run(mut self) -> Done {
        while !self.stop.load(Ordering::Relaxed) {
            let start = self.start;
            let accesses =
                self.bus.serve(&*self.model.device, || Nanos(start.elapsed().as_nanos() as u64));
            let now = self.now();
            if accesses > 0 {
                self.wake();
                self.ask(now);
            }
            if self.model.transmit[0].deadline().is_some_and(|deadline| now >= deadline) {
                self.wake();
            }
            if self.awake {
                self.look(now);
                self.send(now);
            }
            if let Work::Source(_) = self.work {
                self.look(now);
                self.receive(1, now);
            }
            if self.due.is_some_and(|due| now >= due) {
                self.ask(now);
            }
        }
        self.bus.close();
        self.done
    }

    /// Checks doorbells in memory.
    fn look(&mut self, now: Nanos) {
        self.bus.look(&*self.model.device, now);
    }

    fn wake(&mut self) {
        if !self.awake {
            self.bus.wake();
            self.model.transmit[0].disarm();
            self.awake = true;
        }
    }

    /// Asks the model which interrupts to raise.
    fn ask(&mut self, now: Nanos) {
        let raised = self.model.device.interrupt(now);
        self.due = raised.due;
        if raised.vectors != 0 {
            self.done.interrupts += 1;
            self.bus.raise(raised.vectors);
        }
    }

    /// Takes one batch from the guest.
    fn send(&mut self, now: Nanos) {
        self.scratch.clear();
        let before = self.now();
        let queue = &mut self.model.transmit[0];
        let gathered = queue.gather(&mut self.scratch, BATCH, now);
        if gathered == 0 {
            self.awake = before - self.last < LOOK_ON || queue.arm() || self.bus.sleep();
            return;
        }
        self.last = before;
        queue.complete(gathered);
        fence(Ordering::SeqCst);
        let kick = queue.settle(now).kick;
        let after = self.now();
        self.done.busy_ns += after - before;
        self.done.frames += gathered as u64;
        if kick {
            self.ask(after);
        }
        if self.work == Work::Echo {
            self.receive(gathered, after);
        }
    }

    /// One batch into the guest.
    #[expect(unsafe_code, reason = "the frames live as long as the worker")]
    fn receive(&mut self, count: usize, now: Nanos) {
        self.scratch.clear();
        for frame in self.frames.iter_mut().take(count) {
            self.scratch.push(Bytes::of(frame).span());
        }
        // SAFETY: the frames live as long as the worker.
        let map = unsafe { MapGuard::assume_mapped() };
        self.scratch.judge(&map, &mut [(); BATCH], |_, _| ());
        let list: [FrameIdx; BATCH] = std::array::from_fn(|i| i as FrameIdx);
        let before = self.now();
        let queue = &self.model.receive[0];
        let list = &list[..count.min(BATCH)];
        let Delivered { .. } = queue.deliver(&self.scratch.batch(&map), list, LIMITS);
        fence(Ordering::SeqCst);
        let kick = queue.settle(now).kick;
        let after = self.now();
        self.done.busy_ns += after - before;
        self.done.frames += list.len() as u64;
        if kick {
            self.ask(after);
        }
    }
}

/// The result of a measurement: what the guest and the worker counted.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The result of the guest's side.
    pub value: f64,
    /// Traps per frame: reads, writes.
    pub reads: f64,
    pub writes: f64,
    /// Interrupts for each frame.
    pub interrupts: f64,
    /// Nanoseconds in the model per frame, including a clock read per batch.
    pub model_ns: f64,
    /// The 99th percentile in us; 0 if it was not measured.
    pub p99: f64,
}

/// The guest's driver in a machine.
pub type Guest = E1000Driver<Doorbelled<Trapping<OnBus, fn() -> u64>>>;

/// The clock that times the cost of traps.
fn trap_clock() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// The guest's part of a measurement. It gets the driver, and the source of its interrupts.
pub type Measure<'a> = Box<dyn FnOnce(&mut Guest, &mut dyn Raised) -> Result<f64> + Send + 'a>;

/// Runs `guest` on core 0 with an 82540EM, whose worker runs on core 1. Each access costs `trap`,
/// and so do the delivery and the end of each interrupt.
pub fn run(variant: Variant, work: Work, trap: Duration, guest: Measure<'_>) -> Result<Outcome> {
    let config = variant.config(Chip::Em82540);
    let bus = Bus::new();
    let (model, mapping) = model(&config, (variant == Variant::Held).then_some(HELD))?;
    let stop = AtomicBool::new(false);
    let cost = u64::try_from(trap.as_nanos())?;
    std::thread::scope(|scope| {
        let worker = Worker::new(model, &bus, work, &stop);
        let worker = scope.spawn(move || {
            // Without pinning, the measurement is slower but not wrong.
            let _ = client::pin(1);
            worker.run()
        });
        let measured = crate::bench::traffic::on_core(0, || {
            let trapping = Trapping::new(OnBus(Arc::clone(&bus)), 0, trap_clock as fn() -> u64);
            let shared = variant == Variant::SharedDoorbells;
            let regs = Doorbelled { regs: trapping, bus: shared.then(|| Arc::clone(&bus)) };
            let mut dma = Dma::new(mapping, 0, MEMORY, BASE).context("it is mapped")?;
            measure(E1000Driver::new(regs, &mut dma, config)?, &bus, cost, guest)
        });
        stop.store(true, Ordering::Relaxed);
        let Ok(done) = worker.join() else { bail!("the worker panicked") };
        let model_ns = done.busy_ns as f64 / done.frames.max(1) as f64;
        measured.map(|outcome| Outcome { model_ns, ..outcome })
    })
}

/// Runs `guest`, and counts its traps per frame.
fn measure(mut driver: Guest, bus: &Bus, cost: u64, guest: Measure<'_>) -> Result<Outcome> {
    super::guest::prepare(&driver, &frame(1514));
    driver.regs().regs.set_cost(cost);
    let (traps, counts) = (driver.regs().regs.traps(), driver.counts());
    let mut raised = || {
        let vectors = bus.take_raised();
        if vectors != 0 {
            wait(cost);
        }
        vectors
    };
    let value = guest(&mut driver, &mut raised)?;
    let (traps, after) = (driver.regs().regs.traps().since(traps), driver.counts());
    let frames = (after.done - counts.done).max(after.received - counts.received).max(1);
    let per_frame = |n: u64| n as f64 / frames as f64;
    Ok(Outcome {
        value,
        reads: per_frame(traps.reads),
        writes: per_frame(traps.writes),
        interrupts: per_frame(after.interrupts - counts.interrupts),
        model_ns: 0.0,
        p99: 0.0,
    })
}

/// Spins.
fn wait(cost: u64) {
    let start = trap_clock();
    while trap_clock() - start < cost {
        std::hint::spin_loop();
    }
}
