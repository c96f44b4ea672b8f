//! Doorbells that do not trap: pages of registers in memory, which the front end maps into the
//! guest and the worker polls.
//!
//! The worker passes what the driver wrote there to the device. It checks the tails often while
//! there is traffic, and all registers before it carries out a register access that traps, so that
//! their order is kept. A store cannot wake a sleeping worker, so it checks from time to time.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jail::strangers::Descriptor;
use nic::device::{Device, SharedPages};
use port::Nanos;
use shmem::sync::AtomicU32;
use shmem::{Mapping, Shared};

/// A register in shared memory.
struct Word {
    at: u64,
    /// # Protocol: `mirror::Word` (registers of a card with shared doorbells)
    /// - Writer: driver; heads, and all after a reset: worker
    /// - Reader: worker, when it looks; driver
    /// - Ordering: store release / load acquire
    /// - Partner: what the tails point to; a message that traps comes behind them
    /// - Without it: the device reads descriptors that are not written yet
    /// - Shown by: `vfio_user` test `doorbells_in_memory_are_heard`
    shared: Shared<AtomicU32>,
    /// The register's value when it was last checked.
    last: u32,
    head: bool,
}

/// The registers of a device that are in shared memory.
pub struct Mirror {
    device: Arc<dyn Device>,
    bar: usize,
    /// The words of the tails come last.
    words: Vec<Word>,
    tails: usize,
}

impl Mirror {
    /// The registers of `device` in a file that is as long as their base address register. The
    /// caller must then make one follow the other: [`publish`](Self::publish) or
    /// [`forward`](Self::forward).
    #[must_use]
    pub fn new(device: Arc<dyn Device>, file: &Descriptor) -> Option<Self> {
        let pages = device.shared_pages()?;
        let mapping = Mapping::sealed(file.as_fd()).ok()?;
        let SharedPages { bar, registers, heads, tails, .. } = pages;
        let parts = [(registers, false), (heads, true), (tails, false)];
        let all = parts.into_iter().flat_map(|(part, head)| part.iter().map(move |at| (*at, head)));
        let word = |(at, head): (u32, bool)| {
            let shared: Shared<AtomicU32> = mapping.shared(at as usize)?;
            // A head starts with the value in the page, all other words with the device's values.
            let last =
                if head { shared.load(Ordering::Relaxed) } else { read(&*device, bar, at.into()) };
            Some(Word { at: at.into(), shared, last, head })
        };
        let words = all.map(word).collect::<Option<Vec<_>>>()?;
        Some(Self { device, bar, words, tails: tails.len() })
    }

    /// Shows the driver the device's registers, as after power-on.
    pub fn publish(&mut self) {
        for word in &mut self.words {
            word.last = read(&*self.device, self.bar, word.at);
            word.shared.store(word.last, Ordering::Release);
        }
    }

    /// True if a doorbell was rung.
    #[inline]
    #[must_use]
    pub fn is_rung(&self) -> bool {
        let from = self.words.len() - self.tails;
        let rung = |word: &Word| word.shared.load(Ordering::Relaxed) != word.last;
        self.words[from..].iter().any(rung)
    }

    /// Passes what the driver wrote to the device, tails last.
    pub fn forward(&mut self, now: Nanos) {
        for word in &mut self.words {
            let value = word.shared.load(Ordering::Acquire);
            if value != std::mem::replace(&mut word.last, value) {
                self.device.write(self.bar, word.at, &value.to_le_bytes(), now);
            }
        }
        self.show(|word| word.head);
    }

    /// Shows the driver what accesses that trapped have changed.
    pub fn follow(&mut self) {
        self.show(|_| true);
    }

    /// Shows the device's values, except where the driver has written in the meantime.
    fn show(&mut self, which: impl Fn(&Word) -> bool) {
        for word in self.words.iter_mut().filter(|word| which(word)) {
            let (was, is) = (word.last, read(&*self.device, self.bar, word.at));
            let orders = (Ordering::Release, Ordering::Relaxed);
            if was != is && word.shared.compare_exchange(was, is, orders.0, orders.1).is_ok() {
                word.last = is;
            }
        }
    }
}

fn read(device: &dyn Device, bar: usize, at: u64) -> u32 {
    let mut data = [0; 4];
    device.read(bar, at, &mut data, Nanos(0));
    u32::from_le_bytes(data)
}

#[cfg(test)]
mod tests {
    use frame::Mac;
    use nic::device::DeviceConfig;
    use nic::e1000::{self, Chip};
    use shmem::{GuestMemory, Mapping, Memfd, Pages};

    use super::*;

    const LENGTH: u64 = 0x2808;
    const TAIL: u64 = 0x2818;
    const NOW: Nanos = Nanos(1);

    fn device() -> Arc<dyn Device> {
        let config =
            DeviceConfig::alone(Arc::new(GuestMemory::default()), Mac::local(1), 1).unwrap();
        e1000::model(Chip::L82574, Shared::private().unwrap(), config).device
    }

    /// Makes a device, the file of its registers, and the driver's mapping of the file.
    fn bed() -> (Arc<dyn Device>, Descriptor, Arc<Mapping>) {
        let file = Memfd::create("registers", 1 << 17, Pages::Small).unwrap();
        let mapping = file.map().unwrap();
        (device(), file.into_fd().into(), mapping)
    }

    #[test]
    fn what_trapped_is_not_undone_by_what_lies_in_memory() {
        let (device, file, memory) = bed();
        let tail: Shared<AtomicU32> = memory.shared(TAIL as usize).unwrap();
        let mirror = || Mirror::new(Arc::clone(&device), &file).unwrap();
        let mut first = mirror();
        first.publish();
        device.write(0, TAIL, &5u32.to_le_bytes(), NOW);
        first.follow();
        assert_eq!(tail.load(Ordering::Relaxed), 5);
        mirror().forward(NOW);
        assert_eq!(read(&*device, 0, TAIL), 5);
    }

    #[test]
    fn what_the_driver_wrote_meanwhile_stays() {
        let (device, file, memory) = bed();
        let word = |at: u64| memory.shared::<AtomicU32>(at as usize).unwrap();
        let mut mirror = Mirror::new(Arc::clone(&device), &file).unwrap();
        mirror.publish();
        word(TAIL).store(7, Ordering::Relaxed);
        device.write(0, TAIL, &5u32.to_le_bytes(), NOW);
        device.write(0, LENGTH, &4096u32.to_le_bytes(), NOW);
        mirror.follow();
        assert_eq!([TAIL, LENGTH].map(|at| word(at).load(Ordering::Relaxed)), [7, 4096]);
        assert!(mirror.is_rung());
        mirror.forward(NOW);
        assert_eq!(read(&*device, 0, TAIL), 7);
    }

    #[test]
    fn a_reset_shows() {
        let (device, file, memory) = bed();
        let mut mirror = Mirror::new(Arc::clone(&device), &file).unwrap();
        mirror.publish();
        let length: Shared<AtomicU32> = memory.shared(LENGTH as usize).unwrap();
        length.store(4096, Ordering::Relaxed);
        mirror.forward(NOW);
        assert_eq!(read(&*device, 0, LENGTH), 4096);
        device.reset(NOW);
        mirror.follow();
        assert_eq!(length.load(Ordering::Relaxed), 0);
    }
}
