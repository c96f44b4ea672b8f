//! Capture files: any bytes are a capture of whole frames, or an error with a reason.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toklat::tools::pcap::Capture;

fuzz_target!(|bytes: &[u8]| {
    match Capture::read(bytes) {
        Ok(capture) => {
            assert!(!capture.is_empty());
            for i in 0..capture.len() {
                assert!(capture.frame(i).1.len() >= frame::ETHERNET_HEADER);
            }
            let _ = capture.duration();
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // What a data process reads.
    match dataplane::attach::pcap::parse(bytes) {
        Ok(recording) => assert!(!recording.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
