//! The bus between the driver's thread and the model's thread: register accesses one way,
//! interrupts the other.
//!
//! Writes are posted and stay in order; reads wait for their answer. Neither side makes a system
//! call. [`driver::Trapping`] adds the cost of a virtual machine exit.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use driver::Regs;
use driver::e1000::regs;
use nic::device::Device;
use port::Nanos;

/// Maximum number of pending accesses.
const POSTS: usize = 1024;
/// Layout of an access's word: 48 bits of address, then BAR, width and direction.
const BAR: u32 = 48;
const WIDE: u64 = 1 << 52;
const READ: u64 = 1 << 53;

/// A word alone in its cache lines.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Alone<T>(T);

/// The bus. One driver, one device.
#[derive(Debug)]
pub struct Bus {
    posts: Box<[[AtomicU64; 2]]>,
    posted: Alone<AtomicU32>,
    taken: Alone<AtomicU32>,
    /// The number of answers so far, and the last one.
    answers: Alone<(AtomicU32, AtomicU32)>,
    /// Vectors that the device has raised.
    raised: Alone<AtomicU32>,
    /// Doorbells in memory: TDT and RDT, each with a bit that says that it was written.
    doorbells: Alone<[AtomicU64; 2]>,
    /// The worker sleeps, so it does not check the doorbells.
    asleep: Alone<AtomicBool>,
    /// The device's side has gone.
    closed: AtomicBool,
}

/// Offsets of the registers that can be doorbells in memory.
const DOORBELLS: [u64; 2] = [regs::TDT, regs::RDT];
/// The bit that says that a doorbell was written.
const RUNG: u64 = 1 << 32;

impl Bus {
    /// Makes a bus without driver and device.
    pub fn new() -> Arc<Self> {
        let posts = (0..POSTS).map(|_| <[AtomicU64; 2]>::default()).collect();
        Arc::new(Self {
            posts,
            posted: Alone::default(),
            taken: Alone::default(),
            answers: Alone::default(),
            raised: Alone::default(),
            doorbells: Alone::default(),
            asleep: Alone::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// For the driver: returns the vectors raised since the last call.
    #[inline]
    pub fn take_raised(&self) -> u32 {
        match self.raised.0.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.raised.0.swap(0, Ordering::AcqRel),
        }
    }

    /// The device's side: raises vectors.
    pub fn raise(&self, vectors: u32) {
        self.raised.0.fetch_or(vectors, Ordering::AcqRel);
    }

    /// For the device: carries out pending accesses; returns their number.
    #[inline]
    pub fn serve(&self, device: &dyn Device, now: impl Fn() -> Nanos) -> u32 {
        let (first, end) =
            (self.taken.0.load(Ordering::Relaxed), self.posted.0.load(Ordering::Acquire));
        let mut at = first;
        while at != end {
            let [what, value] = &self.posts[at as usize % POSTS];
            let (what, value) = (what.load(Ordering::Relaxed), value.load(Ordering::Relaxed));
            let (bar, address) = ((what >> BAR & 7) as usize, what & ((1 << BAR) - 1));
            let width = if what & WIDE != 0 { 4 } else { 2 };
            let mut data = value.to_le_bytes();
            if what & READ == 0 {
                device.write(bar, address, &data[..width], now());
            } else {
                device.read(bar, address, &mut data[..width], now());
                let [a, b, c, d, ..] = data;
                self.answers.0.1.store(u32::from_le_bytes([a, b, c, d]), Ordering::Relaxed);
                self.answers.0.0.fetch_add(1, Ordering::Release);
            }
            at = at.wrapping_add(1);
        }
        if at != first {
            self.taken.0.store(at, Ordering::Release);
        }
        at.wrapping_sub(first)
    }

    /// For the device: passes on doorbells in memory.
    #[inline]
    pub fn look(&self, device: &dyn Device, now: Nanos) {
        for (word, at) in self.doorbells.0.iter().zip(DOORBELLS) {
            if word.load(Ordering::Relaxed) & RUNG != 0 {
                let value = word.swap(0, Ordering::AcqRel) as u32;
                device.write(0, at, &value.to_le_bytes(), now);
            }
        }
    }

    /// For the device: prepares to sleep. Returns true if a doorbell is pending; the device then
    /// stays awake.
    pub fn sleep(&self) -> bool {
        self.asleep.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let rung = self.doorbells.0[0].load(Ordering::Relaxed) & RUNG != 0;
        if rung {
            self.wake();
        }
        rung
    }

    /// For the device: ends the sleep.
    pub fn wake(&self) {
        self.asleep.0.store(false, Ordering::Relaxed);
    }

    /// For the driver: writes a doorbell in memory. Returns true if the device sleeps and a trap
    /// must wake it. Receive buffers need no trap: the device checks for them before it receives.
    fn ring(&self, at: u64, value: u32) -> bool {
        let send = at == DOORBELLS[0];
        self.doorbells.0[usize::from(!send)].store(RUNG | u64::from(value), Ordering::Release);
        fence(Ordering::SeqCst);
        send && self.asleep.0.load(Ordering::Relaxed)
    }

    /// For the device: closes the bus, so that no read waits for an answer any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    fn post(&self, what: u64, value: u32) {
        let at = self.posted.0.load(Ordering::Relaxed);
        while at.wrapping_sub(self.taken.0.load(Ordering::Acquire)) as usize == POSTS {
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            spin_loop();
        }
        let [w, v] = &self.posts[at as usize % POSTS];
        w.store(what, Ordering::Relaxed);
        v.store(u64::from(value), Ordering::Relaxed);
        self.posted.0.store(at.wrapping_add(1), Ordering::Release);
    }

    fn ask(&self, what: u64) -> u32 {
        let before = self.answers.0.0.load(Ordering::Acquire);
        self.post(what | READ, 0);
        while self.answers.0.0.load(Ordering::Acquire) == before {
            if self.closed.load(Ordering::Acquire) {
                return u32::MAX;
            }
            spin_loop();
        }
        self.answers.0.1.load(Ordering::Relaxed)
    }
}

/// The registers of the device on a bus.
#[derive(Clone, Debug)]
pub struct OnBus(pub Arc<Bus>);

fn what(bar: usize, at: u64, wide: u64) -> u64 {
    at | (bar as u64) << BAR | wide
}

impl Regs for OnBus {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        self.0.ask(what(bar, at, WIDE))
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        self.0.post(what(bar, at, WIDE), value);
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        self.0.ask(what(bar, at, 0)) as u16
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        self.0.post(what(bar, at, 0), value.into());
    }
}

/// Registers with doorbells in memory, if the bus has them.
#[derive(Debug)]
pub struct Doorbelled<R> {
    pub regs: R,
    pub bus: Option<Arc<Bus>>,
}

impl<R: Regs> Doorbelled<R> {
    /// Writes a doorbell in memory; returns false if the register is not one.
    ///
    /// A sleeping device is woken by a write without a value: a value could overtake the one in
    /// memory, or be overtaken by it.
    #[inline]
    fn is_memory(&mut self, bar: usize, at: u64, value: u32) -> bool {
        let Some(bus) = self.bus.as_ref().filter(|_| DOORBELLS.contains(&at)) else { return false };
        if bus.ring(at, value) {
            self.regs.ring32(bar, regs::STATUS, 0);
        }
        true
    }
}

impl<R: Regs> Regs for Doorbelled<R> {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        self.regs.read32(bar, at)
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        if !self.is_memory(bar, at, value) {
            self.regs.write32(bar, at, value);
        }
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        self.regs.read16(bar, at)
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        self.regs.write16(bar, at, value);
    }

    #[inline]
    fn ring32(&mut self, bar: usize, at: u64, value: u32) {
        if !self.is_memory(bar, at, value) {
            self.regs.ring32(bar, at, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use driver::Trapping;
    use driver::e1000::Config;
    use nic::e1000::Chip;

    use super::*;
    use crate::bench::nic::machine::model;

    /// A doorbell in memory is seen while the worker is awake, and wakes a sleeping worker. The
    /// value is always the last one written.
    #[test]
    fn a_doorbell_in_memory_is_never_lost_and_never_goes_back() {
        let (model, _memory) = model(&Config::stock(Chip::Em82540), None).expect("a model");
        let (bus, device) = (Bus::new(), &*model.device);
        let traps = Trapping::new(OnBus(Arc::clone(&bus)), 0, || 0);
        let mut regs = Doorbelled { regs: traps, bus: Some(Arc::clone(&bus)) };
        let tail = || {
            let mut word = [0; 4];
            device.read(0, regs::TDT, &mut word, Nanos(0));
            u32::from_le_bytes(word)
        };
        regs.ring32(0, regs::TDT, 3);
        assert_eq!((regs.regs.traps().doorbells, bus.serve(device, || Nanos(0))), (0, 0), "awake");
        assert!(bus.sleep(), "there is something to look at");
        bus.look(device, Nanos(0));
        assert_eq!(tail(), 3);
        assert!(!bus.sleep());
        regs.ring32(0, regs::TDT, 4);
        regs.write32(0, regs::TDT, 5);
        assert_eq!(regs.regs.traps().doorbells, 2, "asleep: it is told");
        bus.look(device, Nanos(0));
        assert_eq!(tail(), 5);
        assert_eq!(bus.serve(device, || Nanos(0)), 2);
        assert_eq!(tail(), 5, "what was told late does not count");
        bus.wake();
        regs.ring32(0, regs::RDT, 9);
        assert_eq!(regs.regs.traps().doorbells, 2, "buffers are looked for anyway");
    }
}
