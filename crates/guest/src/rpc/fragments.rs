//! Messages in several fragments: what a sender knows of those in flight, and where a receiver
//! puts them together.

use std::num::NonZeroUsize;

/// The maximum number of fragments between the first that is missing and the last that was sent.
pub const WINDOW: u16 = 64;
/// A fragment is lost if a receiver has got one that was sent this many later.
const REORDERING: u32 = 3;

/// How many fragments of `size` bytes a message has.
pub fn count(len: usize, size: NonZeroUsize) -> u16 {
    len.div_ceil(size.get()).clamp(1, u16::MAX.into()) as u16
}

/// The sender's view of a message.
#[derive(Clone, Debug)]
pub struct Sending {
    total: u16,
    /// All fragments below this number have arrived.
    acked: u16,
    /// The first fragment that was never sent.
    next: u16,
    /// The fragments that have arrived, as bits from `acked` on.
    arrived: u64,
    /// The fragments that count as lost, as bits from `acked` on.
    lost: u64,
    /// Fragments since the last that asked for a report.
    unasked: u16,
    /// For each fragment: how many transmissions had been made when it was last sent.
    orders: [u32; WINDOW as usize],
    sent: u32,
}

impl Sending {
    pub fn new(total: u16) -> Self {
        Self {
            total,
            acked: 0,
            next: 0,
            arrived: 0,
            lost: 0,
            unasked: 0,
            orders: [0; WINDOW as usize],
            sent: 0,
        }
    }

    /// The number of fragments in flight: sent, and neither arrived nor lost.
    pub fn in_flight(&self) -> u16 {
        let known = (self.arrived | self.lost).count_ones() as u16;
        (self.next - self.acked).saturating_sub(known)
    }

    /// The next fragment to send, if `credits` allow another one in flight. Lost ones come first.
    pub fn peek(&self, credits: u16) -> Option<u16> {
        if self.in_flight() >= credits.max(1) {
            return None;
        }
        if self.lost != 0 {
            return Some(self.acked + self.lost.trailing_zeros() as u16);
        }
        let end = self.total.min(self.acked.saturating_add(WINDOW));
        (self.next < end).then_some(self.next)
    }

    /// Whether the next fragment should ask for a report: one asks in half of the credits, and the
    /// last that they allow.
    pub fn asks(&self, credits: u16) -> bool {
        self.unasked + 1 >= credits / 2 || self.in_flight() + 1 >= credits
    }

    /// The fragment that [`peek`](Self::peek) returned was sent.
    pub fn sent(&mut self, fragment: u16, has_asked: bool) {
        self.unasked = if has_asked { 0 } else { self.unasked + 1 };
        self.sent = self.sent.wrapping_add(1);
        self.orders[usize::from(fragment % WINDOW)] = self.sent;
        if fragment == self.next {
            self.next += 1;
        }
        self.lost &= !(1u64.checked_shl(u32::from(fragment - self.acked)).unwrap_or(0));
    }

    /// The receiver says that all below `next` have arrived, and those of `map` after it. Returns
    /// false if that cannot be.
    pub fn report(&mut self, next: u16, map: u64) -> bool {
        if next > self.next || next < self.acked {
            return next < self.acked;
        }
        let in_flight = mask(self.next - next);
        if map & !in_flight != 0 {
            return false;
        }
        let order = |fragment: u16| self.orders[usize::from(fragment % WINDOW)];
        let below = (self.acked..next).map(order);
        let after =
            bits(map & !self.arrived.checked_shr(u32::from(next - self.acked)).unwrap_or(0));
        let after = after.map(|bit| order(next + bit));
        let latest = below.chain(after).max();
        let shift = u32::from(next - self.acked);
        self.arrived = self.arrived.checked_shr(shift).unwrap_or(0) | map;
        self.lost = self.lost.checked_shr(shift).unwrap_or(0) & !self.arrived;
        self.acked = next;
        if let Some(latest) = latest {
            let missing = in_flight & !self.arrived & !self.lost;
            let overtaken = |bit: &u16| {
                let order = self.orders[usize::from((next + bit) % WINDOW)];
                order.wrapping_add(REORDERING) <= latest
            };
            self.lost |= bits(missing).filter(overtaken).fold(0, |lost, bit| lost | 1 << bit);
        }
        true
    }

    /// Takes all fragments in flight for lost, because no report came for too long.
    pub fn expire(&mut self) {
        self.lost = mask(self.next - self.acked) & !self.arrived;
    }
}

/// The lowest `n` bits.
fn mask(n: u16) -> u64 {
    1u64.checked_shl(n.into()).unwrap_or(0).wrapping_sub(1)
}

/// The numbers of the bits that are set.
fn bits(mut map: u64) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let bit = (map != 0).then(|| map.trailing_zeros() as u16)?;
        map &= map - 1;
        Some(bit)
    })
}

/// The outcome of a fragment at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A new fragment.
    New {
        /// The sender should learn which fragments have arrived.
        report: bool,
    },
    /// The last fragment that was missing.
    Complete,
    /// The fragment was there already.
    Duplicate,
    /// The fragment does not belong to this message.
    Wrong,
}

/// The receiver's view of a message.
#[derive(Debug)]
pub struct Assembly {
    bytes: Vec<u8>,
    len: usize,
    size: NonZeroUsize,
    total: u16,
    /// The first missing fragment.
    next: u16,
    /// The fragments that have arrived, as bits from `next` on.
    map: u64,
}

impl Assembly {
    /// Begins a message of `len` bytes in fragments of `size`, in `bytes`, which are cleared.
    pub fn new(mut bytes: Vec<u8>, len: usize, size: NonZeroUsize) -> Self {
        bytes.clear();
        let total = count(len, size);
        Self { bytes, len, size, total, next: 0, map: 0 }
    }

    /// Returns the first missing fragment, and a map of the later fragments that have arrived.
    pub fn report(&self) -> (u16, u64) {
        (self.next, self.map)
    }

    /// Whether every fragment has arrived.
    pub fn is_complete(&self) -> bool {
        self.next == self.total
    }

    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The message, once it is complete.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its memory.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Puts a fragment in its place. A report is due if it asks for one, or if one before it is
    /// missing.
    pub fn put(&mut self, fragment: u16, payload: &[u8], asks: bool) -> Arrival {
        let at = usize::from(fragment) * self.size.get();
        let expected = self.len.saturating_sub(at).min(self.size.get());
        if fragment >= self.total || payload.len() != expected {
            return Arrival::Wrong;
        }
        if fragment < self.next {
            return Arrival::Duplicate;
        }
        let ahead = fragment - self.next;
        if ahead >= WINDOW {
            return Arrival::Wrong;
        }
        if self.map & 1 << ahead != 0 {
            return Arrival::Duplicate;
        }
        self.write(at, payload);
        self.map |= 1 << ahead;
        let run = self.map.trailing_ones();
        self.map = self.map.checked_shr(run).unwrap_or(0);
        self.next += run as u16;
        if self.next == self.total {
            return Arrival::Complete;
        }
        Arrival::New { report: asks || self.map != 0 }
    }

    /// Writes at `at`. The memory grows with what arrives, not with what was announced.
    fn write(&mut self, at: usize, payload: &[u8]) {
        if at > self.bytes.len() {
            self.bytes.resize(at, 0);
        }
        let (there, rest) = payload.split_at(payload.len().min(self.bytes.len() - at));
        self.bytes[at..at + there.len()].copy_from_slice(there);
        self.bytes.extend_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: NonZeroUsize = NonZeroUsize::new(10).unwrap();

    fn send(sending: &mut Sending, credits: u16) -> Vec<u16> {
        let mut sent = Vec::new();
        while let Some(fragment) = sending.peek(credits) {
            sending.sent(fragment, false);
            sent.push(fragment);
        }
        sent
    }

    #[test]
    fn credits_bound_what_is_in_flight_and_reports_let_more_go() {
        let mut sending = Sending::new(10);
        assert_eq!(send(&mut sending, 4), [0, 1, 2, 3]);
        assert!(sending.report(2, 0));
        assert_eq!(send(&mut sending, 4), [4, 5]);
        assert!(sending.report(6, 0));
        assert_eq!(send(&mut sending, 64), [6, 7, 8, 9]);
        assert!(sending.report(10, 0) && sending.peek(64).is_none());
    }

    #[test]
    fn only_the_fragment_that_is_missing_is_sent_again() {
        let mut sending = Sending::new(100);
        send(&mut sending, 8);
        assert!(sending.report(1, 0b110), "1 is missing, 2 and 3 have arrived");
        assert_eq!(send(&mut sending, 5), Vec::<u16>::new(), "it may only be late");
        assert!(sending.report(1, 0b1110));
        assert_eq!(send(&mut sending, 5), [1, 8]);
    }

    #[test]
    fn after_a_time_out_everything_that_has_not_arrived_is_sent_again() {
        let mut sending = Sending::new(6);
        send(&mut sending, 6);
        assert!(sending.report(1, 0b10));
        sending.expire();
        assert_eq!(send(&mut sending, 64), [1, 3, 4, 5]);
    }

    #[test]
    fn reports_of_what_was_never_sent_are_refused_and_late_ones_ignored() {
        let mut sending = Sending::new(6);
        send(&mut sending, 3);
        assert!(!sending.report(4, 0));
        assert!(!sending.report(1, 0b1000));
        assert!(sending.report(2, 0) && sending.report(1, 1));
        assert_eq!(sending.in_flight(), 1);
    }

    #[test]
    fn fragments_in_any_order_make_the_message_and_wrong_ones_are_refused() {
        let message: Vec<u8> = (0..35).collect();
        let mut assembly = Assembly::new(vec![9; 3], message.len(), SIZE);
        let part = |i: usize| &message[10 * i..35.min(10 * i + 10)];
        assert_eq!(assembly.put(2, part(2), false), Arrival::New { report: true });
        assert_eq!(assembly.put(3, part(3), false), Arrival::New { report: true });
        assert_eq!(assembly.put(3, part(3), false), Arrival::Duplicate);
        assert_eq!(assembly.put(4, part(3), false), Arrival::Wrong);
        assert_eq!(assembly.put(1, part(3), false), Arrival::Wrong);
        assert_eq!(assembly.report(), (0, 0b1100));
        assert_eq!(assembly.put(0, part(0), false), Arrival::New { report: true });
        assert_eq!(assembly.put(1, part(1), false), Arrival::Complete);
        assert_eq!(assembly.bytes(), message);
    }
}
