//! Capture files: any bytes are a capture of whole frames, or an error with a reason. What is left
//! out is named, and takes no more memory than the file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match pcap::file::parse(bytes) {
        Ok(recording) => {
            assert!(!recording.is_empty());
            let mut last = std::time::Duration::ZERO;
            for i in 0..recording.len() {
                let (at, bytes) = recording.frame(i);
                assert!(bytes.len() >= frame::ETHERNET_HEADER && at >= last);
                last = at;
            }
            assert_eq!(recording.duration(), last);
            let left_out = recording.left_out();
            assert_eq!(left_out.is_nothing(), left_out.to_string() == "nothing");
            assert!(recording.into_parts().0.len() <= bytes.len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
