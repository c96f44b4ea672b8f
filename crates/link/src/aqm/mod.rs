//! Queue disciplines: which frame leaves next, and which are dropped or marked.
//!
//! They work on [`Held`] frames in virtual time: the time of a dequeue is when the line became
//! free, however late that is seen.

mod codel;
mod fq;
mod pie;
mod red;

use port::Nanos;

use self::codel::Codel;
use self::fq::FairQueue;
use self::pie::Pie;
use self::red::Red;
use crate::meter::Cause;
use crate::random::{Kind, Random};
use crate::store::{Fifo, Held, Store};
use crate::{Aqm, LinkConfig, Tally};

/// What disciplines work with.
#[derive(Debug)]
pub(crate) struct Load {
    pub store: Store,
    pub tally: Tally,
    /// Frames in the queue, and their bytes.
    pub frames: u64,
    pub bytes: u64,
    /// Mark instead of dropping.
    pub ecn: bool,
    /// For early drops.
    pub random: Random,
}

impl Load {
    pub fn new(config: &LinkConfig, number: usize, memory: usize) -> Self {
        Self {
            store: Store::new(memory),
            tally: Tally::default(),
            frames: 0,
            bytes: 0,
            ecn: config.ecn,
            random: Random::of(config.seed, number, Kind::Early),
        }
    }

    /// Counts a frame that entered the queue.
    fn enter(&mut self, held: &Held) {
        self.frames += 1;
        self.bytes += held.len() as u64;
    }

    /// Counts a frame that left the queue.
    fn leave(&mut self, held: &Held) {
        self.frames -= 1;
        self.bytes -= held.len() as u64;
    }

    /// Drops a frame that is in no queue.
    fn discard(&mut self, held: &Held, cause: Cause) {
        self.store.remove(held);
        self.tally.drop_frame(cause);
    }

    /// Marks congestion in a frame, if that is wanted and its transport supports it.
    fn mark(&mut self, held: &Held) -> bool {
        if !self.ecn {
            return false;
        }
        let mut head = [0; 64];
        let bytes = self.store.bytes_of(held);
        let len = bytes.copy_out(&mut head);
        let marked = frame::mark_congestion(&mut head[..len]);
        if marked {
            bytes.copy_in(&head[..len]);
            self.tally.marked += 1;
        }
        marked
    }
}

/// A queue from which [`Codel`] takes frames.
pub(crate) trait Source {
    fn pop(&mut self) -> Option<Held>;
    /// Bytes in it.
    fn bytes(&self, load: &Load) -> u64;
}

impl Source for Fifo {
    fn pop(&mut self) -> Option<Held> {
        Self::pop(self)
    }

    /// A fifo is the link's only queue.
    fn bytes(&self, load: &Load) -> u64 {
        load.bytes
    }
}

/// A discipline with its queue.
#[derive(Debug)]
pub(crate) enum Queue {
    Fifo(Fifo),
    Codel(Fifo, Codel),
    Fair(Box<FairQueue>),
    Red(Fifo, Red),
    Pie(Fifo, Box<Pie>),
}

impl Queue {
    pub fn new(config: &LinkConfig) -> Self {
        match config.aqm {
            Aqm::Fifo => Self::Fifo(Fifo::default()),
            Aqm::Codel(target) => Self::Codel(Fifo::default(), Codel::new(target)),
            Aqm::FqCodel(target) => Self::Fair(Box::new(FairQueue::new(target, config))),
            Aqm::Red { min, max, ppm } => {
                Self::Red(Fifo::default(), Red::new(min, max, ppm, config))
            }
            Aqm::Pie(target) => Self::Pie(Fifo::default(), Box::new(Pie::new(target))),
        }
    }

    /// Puts a frame into the queue, or drops it early. Returns false if it was dropped.
    #[inline]
    pub fn push(&mut self, held: Held, head: &[u8], load: &mut Load) -> bool {
        let fifo = match self {
            Self::Fifo(fifo) | Self::Codel(fifo, _) => fifo,
            Self::Fair(fair) => {
                fair.push(held, head, load);
                return true;
            }
            Self::Red(fifo, red) => {
                if red.drops(&held, load) {
                    load.discard(&held, Cause::Early);
                    return false;
                }
                fifo
            }
            Self::Pie(fifo, pie) => {
                if pie.drops(&held, load) {
                    load.discard(&held, Cause::Early);
                    return false;
                }
                fifo
            }
        };
        load.enter(&held);
        fifo.push(held);
        true
    }

    /// Puts a frame of an earlier queue into this one.
    pub fn refill(&mut self, held: Held, head: &[u8], load: &mut Load) {
        match self {
            Self::Fair(fair) => fair.push(held, head, load),
            Self::Fifo(fifo) | Self::Codel(fifo, _) | Self::Red(fifo, _) | Self::Pie(fifo, _) => {
                load.enter(&held);
                fifo.push(held);
            }
        }
    }

    /// Makes room by dropping frames, if the discipline drops others than the last.
    /// Returns false if it does not.
    pub fn make_room(&mut self, load: &mut Load) -> bool {
        match self {
            Self::Fair(fair) => fair.drop_from_longest(load),
            _ => false,
        }
    }

    /// Takes the next frame, for a line that is free at `at`.
    #[inline]
    pub fn pop(&mut self, at: Nanos, load: &mut Load) -> Option<Held> {
        match self {
            Self::Fifo(fifo) => {
                let held = fifo.pop()?;
                load.leave(&held);
                Some(held)
            }
            Self::Codel(fifo, codel) => codel.pop(fifo, at, load),
            Self::Fair(fair) => fair.pop(at, load),
            Self::Red(fifo, red) => {
                let held = fifo.pop()?;
                load.leave(&held);
                red.left(at, load);
                Some(held)
            }
            Self::Pie(fifo, pie) => {
                let held = fifo.pop()?;
                load.leave(&held);
                pie.left(&held, at, load);
                Some(held)
            }
        }
    }

    /// Takes a frame out, whatever the discipline would do with it.
    pub fn take(&mut self, load: &mut Load) -> Option<Held> {
        match self {
            Self::Fifo(fifo) | Self::Codel(fifo, _) | Self::Red(fifo, _) | Self::Pie(fifo, _) => {
                let held = fifo.pop()?;
                load.leave(&held);
                Some(held)
            }
            Self::Fair(fair) => fair.take(load),
        }
    }
}

#[cfg(test)]
mod tests;
