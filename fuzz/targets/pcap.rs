//! Capture files: any bytes are a capture of whole frames, or an error with a reason.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match dataplane::attach::buffered::pcap::parse(bytes) {
        Ok(recording) => {
            assert!(!recording.is_empty());
            let mut last = std::time::Duration::ZERO;
            for i in 0..recording.len() {
                let (at, bytes) = recording.frame(i);
                assert!(bytes.len() >= frame::ETHERNET_HEADER && at >= last);
                last = at;
            }
            assert_eq!(recording.duration(), last);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
