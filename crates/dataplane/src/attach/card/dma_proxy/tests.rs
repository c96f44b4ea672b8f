//! A DMA proxy with an 82540EM that sends frames, and a front end that answers as each test wants.

use frame::Mac;
use nic::device::{DeviceConfig, Model};
use nic::e1000::{self, Chip};
use port::Scratch;
use shmem::{GuestMemory, Mapping, Shared};

use super::super::message::{HEADER, flags};
use super::*;

const NOW: Nanos = Nanos(1);
const MEMORY: usize = 1 << 20;
const RING: u64 = 0x1000;
const BUFFERS: u64 = 0x1_0000;
const SIZE: u32 = 128;
/// Registers.
const CTRL: u64 = 0;
const TCTL: u64 = 0x400;
const TDBAL: u64 = 0x3800;
const TDLEN: u64 = 0x3808;
const TDT: u64 = 0x3818;
/// Flags of a descriptor with a whole frame, to be reported when it is done.
const EOP_RS: u64 = 1 << 24 | 1 << 27;

/// A message that the proxy has sent.
#[derive(Clone, Debug, PartialEq)]
struct Letter {
    id: u16,
    command: u16,
    at: u64,
    len: u64,
    data: Vec<u8>,
}

struct Bed {
    model: Model,
    dma_proxy: DmaProxy,
    guest: Vec<u8>,
}

impl Bed {
    fn new() -> Self {
        Self::with(4096)
    }

    /// A card that is on, and a front end that accepts this many bytes at a time.
    fn with(transfer: usize) -> Self {
        let memory = GuestMemory::of(Mapping::sparse(MEMORY).unwrap(), 0).unwrap().into_copy();
        let config = DeviceConfig::alone(Arc::new(memory), Mac::local(1), 1).unwrap();
        let model = e1000::model(Chip::Em82540, Shared::private().unwrap(), config);
        let dma_proxy = DmaProxy::new(Arc::clone(&model.device), transfer, 0);
        let bed = Self { model, dma_proxy, guest: vec![0; MEMORY] };
        bed.model.device.set_bus_master(true);
        bed.start();
        bed
    }

    fn start(&self) {
        for (at, value) in [(TDBAL, RING as u32), (TDLEN, 16 * SIZE), (TDT, 0), (TCTL, 2)] {
            self.write(at, value);
        }
    }

    fn write(&self, at: u64, value: u32) {
        self.model.device.write(0, at, &value.to_le_bytes(), NOW);
    }

    /// Puts a frame of `len` bytes into descriptor `n` without the doorbell, as a driver does.
    fn put(&mut self, n: u64, len: usize) {
        let (at, to) = ((RING + 16 * n) as usize, BUFFERS + 2048 * n);
        self.guest[at..at + 8].copy_from_slice(&to.to_le_bytes());
        self.guest[at + 8..at + 16].copy_from_slice(&(EOP_RS | len as u64).to_le_bytes());
        let frame = &mut self.guest[to as usize..][..len];
        frame.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8 ^ n as u8);
    }

    /// Returns the messages that the DMA proxy sends.
    fn letters(&mut self) -> Vec<Letter> {
        self.dma_proxy.run(NOW);
        let mut letters = Vec::new();
        while let Some(letter) = self.dma_proxy.letter() {
            let mut fields = Fields(letter);
            let (id, command) = (fields.u16(), fields.u16());
            assert_eq!((fields.u32() as usize, fields.u64()), (letter.len(), 0));
            let (at, len) = (fields.u64(), fields.u64());
            letters.push(Letter { id, command, at, len, data: fields.0.to_vec() });
            self.dma_proxy.sent();
        }
        letters
    }

    fn say(&mut self, letter: &Letter, flags: u32, body: &[u8]) -> Result<(), ProtocolError> {
        let mut bytes = Vec::new();
        write_header(&mut bytes, letter.id, letter.command, body.len(), flags);
        let header = Header::of(bytes.first_chunk::<HEADER>().unwrap())?;
        self.dma_proxy.answered(header, body)
    }

    fn body(&self, letter: &Letter) -> Vec<u8> {
        let data = &self.guest[letter.at as usize..][..letter.len as usize];
        let data = if letter.command == command::DMA_READ { data } else { &[] };
        [&letter.at.to_ne_bytes()[..], &letter.len.to_ne_bytes(), data].concat()
    }

    /// Answers, as a front end does.
    fn answer(&mut self, letter: &Letter) {
        if letter.command == command::DMA_WRITE {
            self.guest[letter.at as usize..][..letter.data.len()].copy_from_slice(&letter.data);
        }
        let body = self.body(letter);
        self.say(letter, flags::REPLY, &body).unwrap();
    }

    /// Answers all messages until there are none; returns them.
    fn serve(&mut self) -> Vec<Letter> {
        let mut all = Vec::new();
        loop {
            let letters = self.letters();
            if letters.is_empty() {
                return all;
            }
            letters.iter().for_each(|letter| self.answer(letter));
            all.extend(letters);
        }
    }

    /// The lengths of the frames that a switch gathers. The frames are completed.
    fn gather(&mut self) -> Vec<usize> {
        let mut scratch = Scratch::new(64);
        let count = self.model.transmit[0].gather(&mut scratch, 64, NOW);
        let bytes = scratch.bytes() as usize;
        self.model.transmit[0].complete(count);
        let _ = self.model.transmit[0].settle(NOW);
        vec![bytes.checked_div(count).unwrap_or(0); count]
    }

    fn is_done(&self, n: u64) -> bool {
        self.guest[(RING + 16 * n) as usize + 12] & 1 != 0
    }

    fn fault(&self) -> Option<&'static str> {
        self.model.device.fault()
    }
}

#[test]
fn frames_are_read_sent_and_reported() {
    for transfer in [0, 100, 4096, 1 << 20] {
        let mut bed = Bed::with(transfer);
        (0..3).for_each(|n| bed.put(n, 1000));
        bed.write(TDT, 3);
        assert!(bed.gather().is_empty(), "nothing is there yet");
        let letters = bed.serve();
        assert!(letters.iter().all(|letter| letter.len <= transfer.clamp(64, 4096) as u64));
        assert_eq!(bed.gather(), [1000; 3]);
        assert!(!bed.is_done(0));
        let letters = bed.serve();
        assert!(letters.iter().all(|letter| letter.command == command::DMA_WRITE));
        assert!([0, 1, 2].iter().all(|n| bed.is_done(*n)) && !bed.is_done(3));
        assert_eq!(bed.fault(), None);
    }
}

#[test]
fn nothing_is_shown_before_all_of_it_is_there() {
    let mut bed = Bed::new();
    (0..2).for_each(|n| bed.put(n, 100));
    bed.write(TDT, 2);
    let descriptors = bed.letters();
    assert_eq!((descriptors.len(), descriptors[0].at, descriptors[0].len), (1, RING, 32));
    bed.answer(&descriptors[0]);
    let buffers = bed.letters();
    assert_eq!(buffers.len(), 2);
    assert!(bed.gather().is_empty());
    bed.answer(&buffers[1]);
    assert!(bed.letters().is_empty() && bed.gather().is_empty());
    bed.answer(&buffers[0]);
    assert!(bed.letters().is_empty());
    assert_eq!(bed.gather(), [100; 2]);
}

#[test]
fn a_driver_is_told_again_when_it_can_see_what_it_was_told_of() {
    let mut bed = Bed::new();
    bed.write(0xd0, 1);
    bed.put(0, 100);
    bed.write(TDT, 1);
    bed.serve();
    bed.gather();
    let mut causes = [0; 4];
    bed.model.device.read(0, 0xc0, &mut causes, NOW);
    assert_eq!(causes[0] & 1, 1, "too early");
    let letters = bed.letters();
    assert_eq!(bed.model.device.interrupt(NOW).vectors, 0);
    bed.answer(&letters[0]);
    assert_eq!(bed.model.device.interrupt(NOW).vectors, 1);
}

#[test]
fn unanswered_requests_are_bounded() {
    let mut bed = Bed::new();
    (0..100).for_each(|n| bed.put(n, 1500));
    bed.write(TDT, 100);
    let first = bed.letters();
    bed.answer(&first[0]);
    let more: usize = (0..10).map(|_| bed.letters().len()).sum();
    assert!((10..=WINDOW).contains(&more), "{more}");
    assert_eq!((bed.gather(), bed.fault()), (vec![], None));
}

#[test]
fn hostile_answers_end_the_session_or_are_passed_over() {
    let asked = || {
        let mut bed = Bed::new();
        bed.put(0, 100);
        bed.write(TDT, 1);
        let letter = bed.letters().remove(0);
        let body = bed.body(&letter);
        (bed, letter, body)
    };
    let (mut bed, letter, body) = asked();
    let other = Letter { id: letter.id + 1, ..letter.clone() };
    bed.say(&other, flags::REPLY, &body).unwrap();
    assert!(bed.letters().is_empty(), "nobody asked for that");
    bed.say(&letter, flags::REPLY, &body).unwrap();
    bed.say(&letter, flags::REPLY, &body).unwrap();
    assert_eq!(bed.letters().len(), 1, "answered once");
    let changed = |at: usize| {
        let mut body = body.clone();
        body[at] ^= 1;
        body
    };
    for wrong in [changed(0), changed(8), body[..17].to_vec(), [&body[..], &[0]].concat(), vec![]] {
        let (mut bed, letter, _) = asked();
        assert!(bed.say(&letter, flags::REPLY, &wrong).is_err(), "{wrong:?}");
    }
    let (mut bed, letter, body) = asked();
    let other = Letter { command: command::DMA_WRITE, ..letter };
    assert!(bed.say(&other, flags::REPLY, &body).is_err());
}

#[test]
fn memory_that_cannot_be_read_stops_the_device_until_it_is_reset() {
    let mut bed = Bed::new();
    bed.put(0, 100);
    bed.write(TDT, 1);
    let letter = bed.letters().remove(0);
    bed.say(&letter, flags::REPLY | flags::ERROR, &[]).unwrap();
    assert!(bed.fault().is_some() && bed.letters().is_empty() && bed.gather().is_empty());
    bed.write(CTRL, 1 << 26);
    bed.start();
    bed.write(TDT, 1);
    bed.serve();
    assert_eq!((bed.fault(), bed.gather()), (None, vec![100]));
}

#[test]
fn what_was_asked_before_a_reset_is_nothing_to_what_comes_after() {
    let mut bed = Bed::new();
    (0..100).for_each(|n| bed.put(n, 1500));
    bed.write(TDT, 100);
    let first = bed.letters();
    bed.answer(&first[0]);
    let stale = bed.letters();
    bed.write(CTRL, 1 << 26);
    bed.start();
    bed.put(0, 200);
    bed.write(TDT, 1);
    let fresh = bed.letters();
    assert_eq!(fresh.len(), 1, "what is of no use is not waited for");
    // These answers are to requests from before the reset.
    for letter in &stale {
        let body =
            [&letter.at.to_ne_bytes()[..], &letter.len.to_ne_bytes(), &[0xff; 1500]].concat();
        bed.say(letter, flags::REPLY, &body).unwrap();
    }
    fresh.iter().for_each(|letter| bed.answer(letter));
    bed.serve();
    assert_eq!((bed.gather(), bed.fault()), (vec![200], None));
}

#[test]
fn a_reset_takes_back_what_was_pushed() {
    let mut bed = Bed::new();
    (0..3).for_each(|n| bed.put(n, 100));
    bed.write(TDT, 3);
    bed.serve();
    assert_eq!(bed.gather().len(), 3);
    let stale = bed.letters();
    assert!(stale.iter().all(|letter| letter.command == command::DMA_WRITE) && !stale.is_empty());
    bed.write(CTRL, 1 << 26);
    bed.start();
    assert!(bed.letters().is_empty() && bed.dma_proxy.open.is_empty());
    for letter in &stale {
        bed.say(letter, flags::REPLY | flags::ERROR, &[]).unwrap();
    }
    bed.put(0, 200);
    bed.write(TDT, 1);
    bed.serve();
    assert_eq!((bed.gather(), bed.fault()), (vec![200], None));
}

#[test]
fn a_copy_that_has_grown_is_restarted() {
    let mut bed = Bed::new();
    let mut next = 0;
    let mut begun = 0;
    for _ in 0..20_000 {
        bed.put(next, 60);
        next = (next + 1) % u64::from(SIZE);
        bed.write(TDT, next as u32);
        bed.serve();
        assert_eq!(bed.gather(), [60]);
        bed.serve();
        begun += u64::from(bed.dma_proxy.pages < 8);
    }
    assert!(begun > 1, "{}", bed.dma_proxy.pages);
}
