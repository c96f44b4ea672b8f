//! What the daemon makes of samples that a compromised data process left for it, in memory that
//! also changes while it is read: it reads a bounded number of them, each whole; what it sends to
//! the collector is sFlow, word by word, and says what was read.
//!
//! The input is a list of steps: what, where, and a value. They write words of the samples' memory,
//! complete a record as a worker would, read as the daemon does, have it begin again, or describe a
//! port's counters.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use fabric::{Observer, Record, Recorded, Recorder};
use libfuzzer_sys::fuzz_target;
use shmem::{Mapping, Shared};
use toklat::daemon::sflow::datagram::{CountersSample, Datagram, FlowSample, LONGEST, output};
use toklat_fuzz::{Costs, Thread, steps, take};

/// Records that a ring keeps, where its first one is, and how far apart they are.
const RECORDS: u64 = fabric::RECORDS as u64;
const SLOTS: usize = 128;
const SLOT: usize = 192;
/// Where the number of records that were begun is.
const BEGUN: usize = 64;

struct Daemon {
    memory: Arc<Mapping>,
    recorder: Shared<Recorder>,
    observer: Observer,
    changes: Option<Thread>,
    sequence: u32,
}

impl Daemon {
    fn new() -> Option<Self> {
        let memory = Mapping::private(size_of::<Recorder>()).ok()?;
        let recorder: Shared<Recorder> = memory.shared(0)?;
        let observer = Observer::new(recorder.clone(), Recorded::Samples);
        Some(Self { memory, recorder, observer, changes: None, sequence: 0 })
    }

    fn step(&mut self, (what, at, value): (u8, u32, u64)) {
        match what % 8 {
            0 => write(&self.memory, at as usize, value),
            1 => self.complete(value),
            2 => write(&self.memory, SLOTS + at as usize % (64 * SLOT), value),
            3 => write(&self.memory, BEGUN, value),
            4 => self.read(at, value),
            5 => {
                let (recorder, which) = (self.recorder.clone(), Recorded::Samples);
                self.observer = match value % 3 {
                    0 => Observer::new(recorder, which),
                    1 => Observer::resume(recorder, which, self.observer.place()),
                    _ => Observer::resume(recorder, which, value),
                };
            }
            6 => counters(at, value),
            _ => {
                let memory = Arc::clone(&self.memory);
                let change = move |random: u64| {
                    write(&memory, BEGUN + random as usize % (8 * SLOT), random >> (random & 63));
                };
                self.changes.get_or_insert_with(|| Thread::start(value, change));
            }
        }
    }

    /// Marks record `number` as complete.
    fn complete(&self, number: u64) {
        let slot = SLOTS + (number % RECORDS) as usize * SLOT;
        write(&self.memory, slot, number.wrapping_mul(2).wrapping_add(2));
        write(&self.memory, BEGUN, number.wrapping_add(1));
    }

    /// Reads and sends as the daemon does, ten times a second.
    fn read(&mut self, agent: u32, value: u64) {
        let before = self.observer.missed;
        let mut records = Vec::new();
        Costs::step(|| self.observer.read(|record| records.push(record)));
        assert!(records.len() as u64 <= RECORDS && self.observer.missed >= before);
        let agent = match value % 2 {
            0 => IpAddr::V4(Ipv4Addr::from_bits(agent)),
            _ => IpAddr::V6(Ipv6Addr::from_bits(agent.into())),
        };
        let mut rest = &records[..];
        while !rest.is_empty() {
            self.sequence = self.sequence.wrapping_add(1);
            let mut datagram = Datagram::new(agent, 7, self.sequence, 1000);
            let fit = rest.iter().take_while(|record| datagram.add_flow(&sample(record))).count();
            assert!(fit > 0, "an empty datagram has room for any sample");
            let (sent, later) = rest.split_at(fit);
            let samples = decode(&datagram.finish(), agent);
            assert_eq!(samples.len(), sent.len());
            samples.iter().zip(sent).for_each(|(sample, record)| assert_flow(sample, record));
            rest = later;
        }
    }
}

/// Writes a word of the memory that a data process shares.
fn write(memory: &Arc<Mapping>, at: usize, value: u64) {
    let at = at % memory.len() / 8 * 8;
    let words = memory.bytes(at, 8.min(memory.len() - at)).expect("it lies within");
    words.copy_in(&value.to_le_bytes());
}

fn interface(port: u16) -> u32 {
    1 << 14 | u32::from(port)
}

fn sample(record: &Record) -> FlowSample<'_> {
    FlowSample {
        sequence: 1,
        source: interface(record.from),
        rate: 100,
        pool: 5,
        drops: 0,
        output: output(record.fate, interface),
        len: record.len,
        head: record.head(),
    }
}

/// The counters of a port with a name of this length, of characters that its value picks.
fn counters(len: u32, value: u64) {
    let name = char::from_u32(value as u32).unwrap_or('p').to_string().repeat(len as usize % 2048);
    let mut datagram = Datagram::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7, 1, 1000);
    let sample = CountersSample {
        sequence: 1,
        interface: interface(value as u16),
        name: &name,
        up: value & 1 != 0,
        received: [value; 4],
        sent: [value; 3],
    };
    let fits = datagram.add_counters(&sample);
    assert!(fits || name.len() > 1024, "{} bytes of a name", name.len());
    let samples = decode(&datagram.finish(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    assert_eq!(samples.len(), usize::from(fits));
    for (format, mut body) in samples {
        assert_eq!((format, word(&mut body)), (2, 1));
        assert_eq!((word(&mut body), word(&mut body)), (sample.interface, 2));
        let mut generic = structure(&mut body, 1);
        assert_eq!((generic.len(), word(&mut generic)), (88, sample.interface));
        let mut named = structure(&mut body, 1005);
        assert_eq!(opaque(&mut named), name.as_bytes());
        assert!(body.is_empty() && named.is_empty());
    }
}

/// What a collector reads (sflow.org, "sFlow Version 5", section 5): the format and the body of
/// each sample.
fn decode(bytes: &[u8], agent: IpAddr) -> Vec<(u32, Vec<u8>)> {
    assert!(bytes.len() <= LONGEST && bytes.len().is_multiple_of(4), "{} bytes", bytes.len());
    let mut rest = bytes.to_vec();
    assert_eq!(word(&mut rest), 5);
    let said = match word(&mut rest) {
        1 => IpAddr::V4(Ipv4Addr::from_bits(word(&mut rest))),
        _ => {
            let high = u128::from(word(&mut rest)) << 96 | u128::from(word(&mut rest)) << 64;
            let low = u128::from(word(&mut rest)) << 32 | u128::from(word(&mut rest));
            IpAddr::V6(Ipv6Addr::from_bits(high | low))
        }
    };
    assert_eq!(said, agent);
    let [sub_agent, _, uptime, count] = std::array::from_fn(|_| word(&mut rest));
    assert_eq!((sub_agent, uptime), (7, 1000));
    let mut samples = Vec::new();
    for _ in 0..count {
        let format = word(&mut rest);
        let len = word(&mut rest) as usize;
        assert!(len <= rest.len() && len.is_multiple_of(4));
        samples.push((format, rest.drain(..len).collect()));
    }
    assert!(rest.is_empty(), "{} bytes beyond the samples", rest.len());
    samples
}

fn assert_flow((format, body): &(u32, Vec<u8>), record: &Record) {
    let mut body = body.clone();
    let said: [u32; 8] = std::array::from_fn(|_| word(&mut body));
    let (source, to) = (interface(record.from), output(record.fate, interface));
    assert_eq!((*format, said), (1, [1, source, 100, 5, 0, source, to, 1]));
    let mut header = structure(&mut body, 1);
    let said: [u32; 3] = std::array::from_fn(|_| word(&mut header));
    assert_eq!(said, [1, record.len.saturating_add(4), 4]);
    assert_eq!(opaque(&mut header), record.head());
    assert!(body.is_empty() && header.is_empty());
}

/// Takes a structure of this format out of a sample.
fn structure(rest: &mut Vec<u8>, format: u32) -> Vec<u8> {
    assert_eq!(word(rest), format);
    let len = word(rest) as usize;
    rest.drain(..len).collect()
}

/// Bytes after their number, padded with zeros to whole words.
fn opaque(rest: &mut Vec<u8>) -> Vec<u8> {
    let len = word(rest) as usize;
    let mut bytes: Vec<u8> = rest.drain(..len.next_multiple_of(4)).collect();
    assert!(bytes.drain(len..).all(|byte| byte == 0));
    bytes
}

fn word(rest: &mut Vec<u8>) -> u32 {
    let mut bytes = &rest[..];
    let word = u32::from_be_bytes(take(&mut bytes, 4).try_into().expect("a word"));
    rest.drain(..4);
    word
}

fuzz_target!(|input: &[u8]| {
    let Some(mut daemon) = Daemon::new() else { return };
    steps(input).take(256).for_each(|step| daemon.step(step));
    daemon.read(1, 0);
});
