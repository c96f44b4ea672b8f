//! The frames of a batch as trains. A train has one peer, one length and one socket, and is sent as
//! one message.
//!
//! ```text
//!   arena:   | header, frame | header, frame | ...           in the order of the batch
//!   trains:  peer 1, socket 3: frames 0, 1, 4    peer 1, socket 5: frame 2    ...
//! ```
//!
//! Only the last frame of a train may be shorter (`UDP_SEGMENT`). A flow has one socket, so its
//! frames stay in order.

use frame::Ecn;

/// The maximum number of frames that are sorted in one batch.
pub(super) const FRAMES: usize = 64;
/// The maximum number of datagrams in a train (`UDP_MAX_SEGMENTS` of Linux before 6.9).
const MAX_CARS: u16 = 64;
/// The maximum number of bytes in a train: an IPv4 packet with its headers.
const MAX_BYTES: usize = 65_000;

/// What the frames of a train have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TrainKey {
    /// The peer.
    pub via: u16,
    /// The sending socket.
    pub socket: u8,
    /// The outer codepoint.
    pub ecn: Ecn,
}

/// Datagrams that are sent as one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    /// The peer that the train goes to, and the socket.
    pub way: TrainKey,
    /// Bytes of each of its datagrams except the last.
    pub segment: u16,
    /// The number of frames in the train.
    pub count: u16,
    bytes: usize,
    /// More datagrams may be appended.
    open: bool,
    first: u8,
    last: u8,
}

/// A datagram in the arena.
#[derive(Clone, Copy, Debug, Default)]
struct Car {
    at: u32,
    len: u16,
    next: u8,
}

/// The trains of up to [`FRAMES`] frames.
#[derive(Debug)]
pub(super) struct Trains {
    trains: [Train; FRAMES],
    count: usize,
    cars: [Car; FRAMES],
    used: usize,
}

impl Trains {
    pub const fn new() -> Self {
        let way = TrainKey { via: 0, socket: 0, ecn: Ecn::NotEct };
        let none = Train { way, segment: 0, count: 0, bytes: 0, open: false, first: 0, last: 0 };
        let car = Car { at: 0, len: 0, next: 0 };
        Self { trains: [none; FRAMES], count: 0, cars: [car; FRAMES], used: 0 }
    }

    pub const fn clear(&mut self) {
        (self.count, self.used) = (0, 0);
    }

    /// Adds the datagram of `len` bytes at `at`. There is room for [`FRAMES`] of them.
    pub fn push(&mut self, way: TrainKey, at: usize, len: u16) {
        let (Some(car), number) = (self.cars.get_mut(self.used), self.used as u8) else { return };
        *car = Car { at: at as u32, len, next: number };
        self.used += 1;
        let same = |train: &&mut Train| (train.way.via, train.way.socket) == (way.via, way.socket);
        // Of the trains with this key, only the last can take more frames.
        if let Some(train) = self.trains[..self.count].iter_mut().rev().find(same) {
            if train.takes(way.ecn, len) {
                train.open = len == train.segment;
                train.count += 1;
                train.bytes += usize::from(len);
                self.cars[usize::from(train.last)].next = number;
                train.last = number;
                return;
            }
            train.open = false;
        }
        let (segment, bytes) = (len, usize::from(len));
        self.trains[self.count] =
            Train { way, segment, count: 1, bytes, open: true, first: number, last: number };
        self.count += 1;
    }

    /// All trains, in the order of their first frames.
    pub fn all(&self) -> &[Train] {
        &self.trains[..self.count]
    }

    /// The datagrams of a train: the position and the length in bytes of each.
    pub fn cars(&self, train: &Train) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut next = train.first;
        (0..train.count).map(move |_| {
            let car = self.cars[usize::from(next)];
            next = car.next;
            (car.at as usize, usize::from(car.len))
        })
    }
}

impl Train {
    const fn takes(&self, ecn: Ecn, len: u16) -> bool {
        self.open
            && self.way.ecn as u8 == ecn as u8
            && len <= self.segment
            && self.count < MAX_CARS
            && self.bytes + len as usize <= MAX_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn way(via: u16, socket: u8) -> TrainKey {
        TrainKey { via, socket, ecn: Ecn::NotEct }
    }

    /// For each train: its peer, its socket and the numbers of its frames.
    fn trains(frames: &[(TrainKey, u16)]) -> Vec<(u16, u8, Vec<usize>)> {
        let mut trains = Trains::new();
        for (number, (way, len)) in frames.iter().enumerate() {
            trains.push(*way, number, *len);
        }
        let numbers = |train: &Train| trains.cars(train).map(|(at, _)| at).collect();
        trains.all().iter().map(|t| (t.way.via, t.way.socket, numbers(t))).collect()
    }

    #[test]
    fn frames_of_one_way_and_length_are_one_train_and_the_last_may_be_shorter() {
        let frames = [
            (way(1, 0), 100),
            (way(1, 0), 100),
            (way(2, 0), 100),
            (way(1, 1), 100),
            (way(1, 0), 60),
            (way(1, 0), 60),
            (way(1, 0), 100),
        ];
        let expected = [
            (1, 0, vec![0, 1, 4]),
            (2, 0, vec![2]),
            (1, 1, vec![3]),
            (1, 0, vec![5]),
            (1, 0, vec![6]),
        ];
        assert_eq!(trains(&frames), expected);
    }

    #[test]
    fn a_longer_frame_or_another_codepoint_begins_a_train() {
        let marked = TrainKey { ecn: Ecn::Ce, ..way(1, 0) };
        let frames = [(way(1, 0), 60), (way(1, 0), 61), (marked, 61), (marked, 61)];
        let expected = [(1, 0, vec![0]), (1, 0, vec![1]), (1, 0, vec![2, 3])];
        assert_eq!(trains(&frames), expected);
    }

    #[test]
    fn a_train_is_no_longer_than_a_packet() {
        let all = trains(&[(way(1, 0), 9000); FRAMES]);
        assert!(all.iter().all(|(_, _, frames)| frames.len() == 7 || frames.len() == 1));
        assert_eq!(all.iter().map(|(_, _, frames)| frames.len()).sum::<usize>(), FRAMES);
    }
}
