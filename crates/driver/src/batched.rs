//! Drivers of both families, used a batch at a time by measuring programs.

use crate::Regs;
use crate::e1000::{E1000Driver, Request};
use crate::pcnet;

/// The operations of a polling driver that a batch needs.
pub trait Batched {
    /// Hands in `frame` `count` times, with one doorbell. Returns false if there is no room for
    /// all. An e1000's buffers already hold the frame ([`E1000Driver::place`]).
    fn send_batch(&mut self, frame: &[u8], count: usize) -> bool;
    /// Reclaims sent frames. Returns how many.
    fn reclaim_batch(&mut self) -> usize;
    /// Takes received frames, and gives their buffers back. Returns how many.
    fn receive_batch(&mut self) -> usize;
}

impl<R: Regs> Batched for E1000Driver<R> {
    fn send_batch(&mut self, frame: &[u8], count: usize) -> bool {
        let len = frame.len() as u32;
        let sent = (0..count).all(|_| self.send_placed(len, &Request::default()));
        self.flush();
        sent
    }

    fn reclaim_batch(&mut self) -> usize {
        self.reclaim()
    }

    fn receive_batch(&mut self) -> usize {
        let received = self.receive(usize::MAX, |_| ());
        self.refill();
        received
    }
}

impl<R: Regs> Batched for pcnet::Driver<R> {
    fn send_batch(&mut self, frame: &[u8], count: usize) -> bool {
        let sent = (0..count).all(|_| self.send(frame, frame.len()));
        self.demand();
        sent
    }

    fn reclaim_batch(&mut self) -> usize {
        self.reap() as usize
    }

    fn receive_batch(&mut self) -> usize {
        self.receive(usize::MAX, |_| ())
    }
}
