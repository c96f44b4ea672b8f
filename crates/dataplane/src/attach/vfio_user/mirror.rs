//! Doorbells that are no traps: pages of registers that lie in memory, which the front end maps into the
//! guest, and the worker looks at.
//!
//! What the driver writes there is handed to the device when the worker looks: often at the tails while
//! there is traffic, at all of it before a register access that traps is carried out, so that their order
//! is kept. A worker that sleeps cannot be woken by a store: it looks from time to time.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic::device::{Device, SharedPages};
use port::Nanos;
use shmem::sync::AtomicU32;
use shmem::{Memfd, Shared};

/// A register in shared memory.
struct Word {
    at: u64,
    shared: Shared<AtomicU32>,
    /// What it was when it was looked at last.
    last: u32,
    head: bool,
}

/// The registers of a device that lie in shared memory.
pub struct Mirror {
    device: Arc<dyn Device>,
    bar: usize,
    /// Tails come last.
    words: Vec<Word>,
    tails: usize,
    /// By how many of the device's own registers one sees that it was reset.
    anchors: Vec<(u64, u32)>,
}

impl Mirror {
    /// The registers of `device` in a file as long as their base address register is, of which either is
    /// then to follow the other: [`publish`](Self::publish) or [`forward`](Self::forward).
    #[must_use]
    pub fn new(device: Arc<dyn Device>, file: &OwnedFd) -> Option<Self> {
        let pages = device.shared_pages()?;
        let mapping = Memfd::adopt(file.try_clone().ok()?).ok()?.map().ok()?;
        let SharedPages { bar, registers, heads, tails, .. } = pages;
        let parts = [(registers, false), (heads, true), (tails, false)];
        let all = parts.into_iter().flat_map(|(part, head)| part.iter().map(move |at| (*at, head)));
        let word = |(at, head): (u32, bool)| {
            let shared: Shared<AtomicU32> = mapping.shared(at as usize)?;
            // Where the device is, it says itself.
            let last =
                if head { shared.load(Ordering::Relaxed) } else { read(&*device, bar, at.into()) };
            Some(Word { at: at.into(), shared, last, head })
        };
        let words = all.map(word).collect::<Option<Vec<_>>>()?;
        let anchors = registers.iter().map(|at| (u64::from(*at), 0)).collect();
        Some(Self { device, bar, words, tails: tails.len(), anchors })
    }

    /// Shows the driver what the device has, as after power-on.
    pub fn publish(&mut self) {
        for word in &mut self.words {
            word.last = read(&*self.device, self.bar, word.at);
            word.shared.store(word.last, Ordering::Release);
        }
        self.drop_anchors();
    }

    fn drop_anchors(&mut self) {
        let (device, bar) = (&self.device, self.bar);
        self.anchors.iter_mut().for_each(|(at, value)| *value = read(&**device, bar, *at));
    }

    /// True if a doorbell was rung.
    #[inline]
    #[must_use]
    pub fn is_rung(&self) -> bool {
        let from = self.words.len() - self.tails;
        let rung = |word: &Word| word.shared.load(Ordering::Relaxed) != word.last;
        self.words[from..].iter().any(rung)
    }

    /// Hands what the driver wrote to the device, tails last.
    pub fn forward(&mut self, now: Nanos) {
        for word in &mut self.words {
            let value = word.shared.load(Ordering::Acquire);
            if value != std::mem::replace(&mut word.last, value) {
                self.device.write(self.bar, word.at, &value.to_le_bytes(), now);
            }
        }
        for word in self.words.iter_mut().filter(|word| word.head) {
            let is = read(&*self.device, self.bar, word.at);
            if is != std::mem::replace(&mut word.last, is) {
                word.shared.store(is, Ordering::Release);
            }
        }
        self.drop_anchors();
    }

    /// After accesses that trapped: a reset changed the registers.
    pub fn look_for_reset(&mut self) {
        let is_other = |(at, value): &(u64, u32)| read(&*self.device, self.bar, *at) != *value;
        if self.anchors.iter().any(is_other) {
            self.publish();
        }
    }
}

fn read(device: &dyn Device, bar: usize, at: u64) -> u32 {
    let mut data = [0; 4];
    device.read(bar, at, &mut data, Nanos(0));
    u32::from_le_bytes(data)
}
