//! What a confined guest reports to its manager: any bytes give a report or nothing.
#![no_main]

use jail::cell::{MAX_REPORT, Report};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let bytes = &bytes[..bytes.len().min(MAX_REPORT)];
    let Some(report) = Report::decode(bytes) else { return };
    match report {
        Report::Failed(text) => assert!(!text.contains(char::is_control)),
        Report::Sealed(walls) => {
            assert!(walls.standing.len() + walls.refused.len() <= jail::Wall::ALL.len());
            assert!(walls.refused.iter().all(|wall| !wall.reason.contains(char::is_control)));
        }
        _ => {}
    }
});
