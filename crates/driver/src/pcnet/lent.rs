//! The driver over buffers of its caller.

use super::{BUFFER, Driver, ENP, IENA, MISS, OWN, STP, low};
use crate::{Lent, Piece, Regs};

/// Bit of BCR4: the link is up, as the LED of that name shows it.
const LINK_LED: u16 = 0x8000;

impl<R: Regs> Lent for Driver<R> {
    fn room(&self) -> usize {
        Self::room(self) as usize
    }

    fn most_pieces(&self) -> usize {
        1
    }

    fn send_lent(&mut self, pieces: &[(u64, u32)]) -> bool {
        let [(at, len)] = *pieces else { return false };
        let (Some(at), true) = (low(at), (1..=BUFFER).contains(&len)) else { return false };
        if Self::room(self) == 0 {
            return false;
        }
        let ring = &mut self.transmit;
        ring.at[(ring.ours & (ring.len - 1)) as usize] = at;
        ring.give(ring.ours, len, OWN | STP | ENP);
        ring.ours = ring.ours.wrapping_add(1);
        true
    }

    fn take_back(&mut self) -> usize {
        // Waiting for room reclaims, too.
        self.reap();
        core::mem::take(&mut self.returned) as usize
    }

    fn trade(
        &mut self,
        budget: usize,
        mut trade: impl FnMut(u32, Option<Piece>) -> Option<u64>,
    ) -> usize {
        let mut traded = 0;
        while traded < budget {
            let ring = &mut self.receive;
            let number = ring.back;
            let Some(len) = ring.whole(number) else { break };
            let descriptor = number & (ring.len - 1);
            let piece = len.map(|len| Piece { len, after: 0 });
            let Some(next) = trade(descriptor, piece).and_then(low) else { break };
            ring.at[descriptor as usize] = next;
            ring.back = number.wrapping_add(1);
            self.counts.errors += u64::from(len.is_none());
            traded += 1;
        }
        self.refill();
        traded
    }

    fn give(&mut self, at: u64) -> bool {
        let Some(at) = low(at) else { return false };
        // One descriptor stays unused, as with a status block.
        let ring = &mut self.receive;
        if ring.room() <= 1 {
            return false;
        }
        ring.at[(ring.ours & (ring.len - 1)) as usize] = at;
        ring.give(ring.ours, BUFFER, OWN);
        ring.ours = ring.ours.wrapping_add(1);
        true
    }

    fn take(&mut self, budget: usize, mut visit: impl FnMut(Option<u32>)) -> usize {
        let mut taken = 0;
        while taken < budget && self.receive.back != self.receive.ours {
            let Some(len) = self.receive.whole(self.receive.back) else { break };
            self.receive.back = self.receive.back.wrapping_add(1);
            self.counts.errors += u64::from(len.is_none());
            visit(len);
            taken += 1;
        }
        taken
    }

    fn publish(&mut self) {
        if self.has_unsent() {
            self.demand();
        }
    }

    fn has_frames(&self) -> bool {
        self.receive.has_frames()
    }

    fn carrier(&mut self) -> bool {
        self.bcr(4) & LINK_LED != 0
    }

    fn missed(&mut self) -> u64 {
        // The chip counts in CSR112, which is readable only while it is stopped. CSR0 says that
        // there was one at least.
        let status = self.csr(0);
        if status & MISS != 0 {
            self.set_csr(0, MISS | status & IENA);
            self.missed += 1;
        }
        core::mem::take(&mut self.missed)
    }
}
