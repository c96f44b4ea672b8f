//! Capture files as ports: frames played into a switch equal those in the file that it writes.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use inline::Inline;
use pcap::file;
use port::{DropReason, Nanos};
use rustix::fs::MemfdFlags;
use toklat_dataplane::SwitchConfig;
use toklat_dataplane::attach::buffered::pcap::{attach_read, attach_write};
use toklat_dataplane::config::Policy;
use toklat_dataplane::state::PortState;
use turn::attach::AttachError;

/// A regular file in memory with this content.
fn memory(content: &[u8]) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::pwrite(&file, content, 0).unwrap(), content.len());
    file
}

fn content(file: impl AsFd) -> Vec<u8> {
    let len = rustix::fs::fstat(&file).unwrap().st_size as usize;
    let mut bytes = vec![0; len];
    assert_eq!(rustix::io::pread(&file, &mut bytes[..], 0).unwrap(), len);
    bytes
}

/// Frames from one station to all, 1 us apart. Their sizes need each kind of padding.
fn frames() -> Vec<Vec<u8>> {
    let frame = |i: usize| {
        let mut frame = vec![i as u8; 60 + i * 29 % 1454];
        frame[..12].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1]);
        frame
    };
    (0..500).map(frame).collect()
}

fn recording(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    file::section(&mut bytes);
    file::interface(&mut bytes, None, 0);
    for (i, frame) in frames.iter().enumerate() {
        let at = Duration::from_micros(1_000_000 + i as u64);
        let start = file::begin_packet(&mut bytes, 0, at, frame.len(), frame.len());
        bytes.extend(frame);
        file::end_packet(&mut bytes, start);
    }
    bytes
}

fn written(bytes: &[u8]) -> Vec<Vec<u8>> {
    let recording = file::parse(bytes).unwrap();
    assert!(recording.left_out().is_nothing(), "{}", recording.left_out());
    (0..recording.len()).map(|i| recording.frame(i).1.to_vec()).collect()
}

fn switch() -> Inline {
    Inline::new(SwitchConfig { max_ports: 4, ..SwitchConfig::default() }).unwrap()
}

fn add(
    switch: &mut Inline,
    attach: impl FnOnce(&PortState) -> Result<turn::attach::Attached, AttachError>,
) -> u16 {
    switch.add_attached("port", Policy::default(), attach).unwrap()
}

#[test]
fn what_is_played_is_written() {
    let (frames, output) = (frames(), memory(b""));
    let (input, writer) = (memory(&recording(&frames)), output.try_clone().unwrap());
    let mut switch = switch();
    let player = add(&mut switch, |state| attach_read(&input, false, 100, state, false));
    let taker = add(&mut switch, |state| attach_write(writer, state, None));
    let mut gathered = 0;
    for us in 0..500 {
        gathered += switch.turn(Nanos(us * 1000));
        assert_eq!(gathered as u64, us + 1, "one frame a microsecond, as recorded");
    }
    assert_eq!(switch.turn(Nanos::default() + Duration::from_secs(9)), 0, "once");
    assert_eq!(switch.stats(player).in_frames, 500);
    switch.remove(taker);
    assert!(written(&content(&output)) == frames, "detaching writes all");
    let gone = switch.state().switch().snapshot().gone;
    assert_eq!((gone.out_frames, gone.unaccounted()), (500, -500));
}

#[test]
fn frames_are_written_soon_and_counted_then() {
    let (input, output) = (memory(&recording(&frames())), memory(b""));
    let writer = output.try_clone().unwrap();
    let mut switch = switch();
    add(&mut switch, |state| attach_read(&input, false, 0, state, false));
    let taker = add(&mut switch, |state| attach_write(writer, state, None));
    while switch.turn(Nanos(0)) > 0 {}
    let mut waited = 0;
    while switch.stats(taker).out_frames < 500 {
        std::thread::sleep(Duration::from_millis(1));
        waited += 1;
        assert!(waited < 5000, "{:?}", switch.stats(taker));
    }
    assert_eq!(written(&content(&output)).len(), 500);
}

#[test]
fn a_second_data_process_begins_a_second_section() {
    let (input, output) = (memory(&recording(&frames())), memory(b""));
    for _ in 0..2 {
        let writer = output.try_clone().unwrap();
        let mut switch = switch();
        add(&mut switch, |state| attach_read(&input, false, 0, state, false));
        add(&mut switch, |state| attach_write(writer, state, None));
        while switch.turn(Nanos(0)) > 0 {}
    }
    assert_eq!(written(&content(&output)).len(), 1000);
}

#[test]
fn a_file_that_cannot_be_written_drops_frames_by_name() {
    let input = memory(&recording(&frames()));
    // The file's size is sealed, so writing fails.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let output = rustix::fs::memfd_create("full", flags).unwrap();
    rustix::fs::fcntl_add_seals(&output, rustix::fs::SealFlags::GROW).unwrap();
    let mut switch = switch();
    add(&mut switch, |state| attach_read(&input, false, 0, state, false));
    let taker = add(&mut switch, |state| attach_write(output, state, None));
    while switch.turn(Nanos(0)) > 0 {}
    for _ in 0..5000 {
        std::thread::sleep(Duration::from_millis(1));
        if switch.stats(taker).out_drops.get(&DropReason::Io) == Some(&500) {
            return;
        }
    }
    panic!("{:?}", switch.stats(taker));
}

#[test]
fn what_is_no_ordinary_file_is_refused() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let mut switch = switch();
    let mut refused = |attach: &dyn Fn(&PortState) -> Result<_, AttachError>| {
        let error = switch.add_attached("port", Policy::default(), attach).unwrap_err();
        assert!(matches!(error, AttachError::Part { .. }), "{error}");
    };
    refused(&|state| attach_read(&read, false, 100, state, false));
    refused(&|state| attach_write(write.try_clone().unwrap(), state, None));
    let large = memory(b"");
    rustix::fs::ftruncate(&large, (256 << 20) + 1).unwrap();
    refused(&|state| attach_read(&large, false, 100, state, false));
}
