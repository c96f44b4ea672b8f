//! Any order of operations, against a model of two queues: a list of frames and a list of buffers.

mod support;

use std::collections::VecDeque;

use nic::virtio::Features;
use port::{DropReason, Limits};
use proptest::prelude::*;
use support::{BASE, Guest, HEADER, LIMITS, forward, pattern};

#[derive(Clone, Debug)]
enum Operation {
    /// The sender hands in a frame of `len` bytes, in pieces.
    Send { len: usize, cuts: Vec<u32>, indirect: bool },
    /// The receiver adds a buffer of `len` bytes.
    Refill { len: u32 },
    /// The switch moves a batch.
    Forward { lossless: bool },
    /// Both drivers take back used buffers.
    Reap,
    /// The device's half of a queue is rebuilt.
    Restart { sender: bool },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (14usize..3000, proptest::collection::vec(1u32..600, 0..4), any::<bool>())
            .prop_map(|(len, cuts, indirect)| Operation::Send { len, cuts, indirect }),
        4 => (12u32..2000).prop_map(|len| Operation::Refill { len }),
        3 => any::<bool>().prop_map(|lossless| Operation::Forward { lossless }),
        2 => Just(Operation::Reap),
        1 => any::<bool>().prop_map(|sender| Operation::Restart { sender }),
    ]
}

fn features() -> impl Strategy<Value = Features> {
    let choices = [Features::RING_PACKED, Features::EVENT_IDX, Features::MRG_RXBUF, Features::CSUM];
    proptest::sample::subsequence(choices.to_vec(), 0..=choices.len())
        .prop_map(|chosen| chosen.into_iter().fold(BASE | Features::INDIRECT_DESC, |a, b| a | b))
}

/// The expected contents of the two queues.
#[derive(Default)]
struct Model {
    waiting: VecDeque<Vec<u8>>,
    buffers: VecDeque<u32>,
    delivered: VecDeque<Vec<u8>>,
    full: u64,
    too_long: u64,
    sent: usize,
}

impl Model {
    /// Models a batch. Returns how many frames are finished.
    fn forward(&mut self, mergeable: bool, lossless: bool) -> usize {
        let batch: Vec<Vec<u8>> = self.waiting.drain(..).collect();
        for (i, frame) in batch.iter().enumerate() {
            let need = (HEADER + frame.len()) as u32;
            let mut room = 0;
            let used = self.buffers.iter().take_while(|len| {
                let before = room;
                room += **len;
                before < need
            });
            let used = if mergeable { used.count() } else { self.buffers.len().min(1) };
            let room: u32 = self.buffers.iter().take(used).sum();
            if room >= need {
                self.buffers.drain(..used);
                self.delivered.push_back(frame.clone());
            } else if !mergeable && used == 1 {
                self.too_long += 1;
            } else {
                // Frames after one without room find none, either.
                if !lossless {
                    self.full += (batch.len() - i) as u64;
                    return batch.len();
                }
                return i;
            }
        }
        batch.len()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn queues_do_what_a_list_of_frames_and_one_of_buffers_do(
        features in features(),
        doings in proptest::collection::vec(operation(), 1..80),
    ) {
        let (mut sender, mut taker) = (Guest::new(features, 16), Guest::new(features, 16));
        let (mut from, mut to) = (sender.transmit(), taker.receiver());
        let mut model = Model::default();
        for operation in doings {
            match operation {
                Operation::Send { len, cuts, indirect } => {
                    let frame = pattern(len, model.sent);
                    if sender.send([0; HEADER], &frame, &cuts, indirect) {
                        model.waiting.push_back(frame);
                        model.sent += 1;
                    }
                    sender.driver.publish();
                }
                Operation::Refill { len } => {
                    if taker.add(&[len], true, false).is_some() {
                        model.buffers.push_back(len);
                    }
                    taker.driver.publish();
                }
                Operation::Forward { lossless } => {
                    let limits = Limits { lossless, ..LIMITS };
                    let waiting = model.waiting.len();
                    let finished = model.forward(features.contains(Features::MRG_RXBUF), lossless);
                    prop_assert_eq!(forward(&mut from, &to, limits).0, waiting);
                    if finished < waiting {
                        // Stalled frames are dropped with their queue.
                        drop(from);
                        from = sender.transmit();
                    }
                }
                Operation::Reap => {
                    sender.reap();
                    while let Some((_, frame)) = taker.receive() {
                        prop_assert_eq!(Some(frame), model.delivered.pop_front());
                    }
                    prop_assert!(model.delivered.is_empty());
                }
                Operation::Restart { sender: true } => {
                    drop(from);
                    from = sender.transmit();
                }
                Operation::Restart { sender: false } => {
                    drop(to);
                    to = taker.receiver();
                }
            }
            prop_assert_eq!(sender.config.state.fault(), None);
            prop_assert_eq!(taker.config.state.fault(), None);
            let dropped = |reason: DropReason| taker.got.drops[reason as usize].get();
            prop_assert_eq!(dropped(DropReason::Full), model.full);
            prop_assert_eq!(dropped(DropReason::TooLong), model.too_long);
        }
        let _ = forward(&mut from, &to, LIMITS);
        sender.reap();
        prop_assert_eq!(sender.driver.room(), 16, "everything comes back");
    }
}
