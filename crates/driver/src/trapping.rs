//! Register accesses that cost as much as a trap.

use super::Regs;

/// How many register accesses were made so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traps {
    /// Reads: the driver waits for each.
    pub reads: u64,
    /// Writes, doorbells among them.
    pub writes: u64,
    /// Doorbells.
    pub doorbells: u64,
}

impl Traps {
    /// The number of all accesses.
    #[must_use]
    pub const fn all(self) -> u64 {
        self.reads + self.writes
    }

    /// The accesses since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            doorbells: self.doorbells - earlier.doorbells,
        }
    }
}

/// Registers with a fixed delay for every access, like accesses that leave a virtual machine.
/// `clock` gives nanoseconds.
#[derive(Debug)]
pub struct Trapping<R, C> {
    regs: R,
    clock: C,
    cost: u64,
    traps: Traps,
}

impl<R, C: FnMut() -> u64> Trapping<R, C> {
    /// Delays accesses to `regs` by `cost` nanoseconds; 0 only counts them.
    pub fn new(regs: R, cost: u64, clock: C) -> Self {
        Self { regs, clock, cost, traps: Traps::default() }
    }

    /// Accesses so far.
    #[must_use]
    pub fn traps(&self) -> Traps {
        self.traps
    }

    /// Sets the delay in nanoseconds.
    pub fn set_cost(&mut self, cost: u64) {
        self.cost = cost;
    }

    /// The registers behind the delay.
    pub fn inner(&mut self) -> &mut R {
        &mut self.regs
    }

    fn trap(&mut self) {
        if self.cost == 0 {
            return;
        }
        let start = (self.clock)();
        while (self.clock)().saturating_sub(start) < self.cost {
            core::hint::spin_loop();
        }
    }

    fn read(&mut self) -> &mut R {
        self.traps.reads += 1;
        self.trap();
        &mut self.regs
    }

    fn write(&mut self) -> &mut R {
        self.traps.writes += 1;
        self.trap();
        &mut self.regs
    }
}

impl<R: Regs, C: FnMut() -> u64> Regs for Trapping<R, C> {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        self.read().read32(bar, at)
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        self.write().write32(bar, at, value);
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        self.read().read16(bar, at)
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        self.write().write16(bar, at, value);
    }

    fn ring32(&mut self, bar: usize, at: u64, value: u32) {
        self.traps.doorbells += 1;
        self.write().ring32(bar, at, value);
    }

    fn ports(&self) -> usize {
        self.regs.ports()
    }

    fn pause(&mut self, micros: u32) {
        self.regs.pause(micros);
    }
}
