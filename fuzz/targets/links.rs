//! What a person or a file may say of a link: words, traces, series and tables. What is understood
//! is written and read as the same again, within bounds; frames then go through the link.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use link::{Bandwidth, Link, LinkConfig, Series, parse_table};
use port::{MapGuard, Nanos, Offload, Scratch};
use shmem::Bytes;

/// Sends frames over a link, and takes out what is due.
fn drive(config: LinkConfig, lens: &[u8]) {
    let most = config.room().memory();
    let mut link = Link::new(config, 0, Arc::default());
    // SAFETY: the frames and the link outlive the scratches' use.
    let map = unsafe { MapGuard::assume_mapped() };
    let (mut scratch, mut out) = (Scratch::new(1), Scratch::new(64));
    let mut now = 0u64;
    for len in lens.iter().take(256) {
        let mut bytes = vec![*len; 14 + usize::from(*len) * 8];
        scratch.clear();
        scratch.push(Bytes::of(&mut bytes).span());
        scratch.judge(&map, &mut [()], |_, _| ());
        link.admit(scratch.batch(&map).pick(0), (Offload::NONE, 0), Nanos(now));
        now += u64::from(*len) * 100_000;
        out.clear();
        let due = link.release(&mut out, 64, Nanos(now));
        link.complete(due);
    }
    link.make_all_due();
    loop {
        out.clear();
        match link.release(&mut out, 64, Nanos(now)) {
            0 => break,
            due => link.complete(due),
        }
    }
    assert!(link.is_empty() && most > 0);
}

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (words, file) = text.split_once('\n').unwrap_or((text, text));
    let (trace, series) = (Bandwidth::parse(file), Series::parse(file));
    let table = parse_table(file);
    if let Ok(trace) = &trace {
        assert!(trace.mean_rate() > 0 || file.lines().count() < 1000);
    }
    let Ok(mut config) = words.parse::<LinkConfig>() else { return };
    // A link that does nothing has no words.
    let said = config.to_string();
    assert!(said.is_empty() || said.parse::<LinkConfig>().as_ref() == Ok(&config), "{said}");
    let read = config.read_files(|_| Some(Arc::from(file)));
    let wanted = [
        config.trace_file.is_none() || trace.is_ok(),
        config.series_file.is_none() || series.is_ok(),
        config.spread_file.is_none() || table.is_ok(),
    ];
    assert_eq!(read.is_ok(), wanted.iter().all(|fine| *fine));
    if read.is_ok() && config.room().memory() < 64 << 20 {
        drive(config, file.as_bytes());
    }
});
