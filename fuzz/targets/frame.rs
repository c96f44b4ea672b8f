//! Headers, as the network or a client made them: any bytes have layers, or none, and a flow hash.
#![no_main]

use frame::checksum::checksum;
use frame::{Layers, flow_hash};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(layers) = Layers::of(bytes) {
        assert!(layers.payload.len() <= bytes.len());
    }
    let _ = flow_hash(bytes);
    // A sum that contains its own checksum is zero; so says RFC 1071.
    let sum = checksum(bytes);
    if bytes.len().is_multiple_of(2) {
        let whole = [bytes, &sum.to_be_bytes()].concat();
        assert_eq!(checksum(&whole), 0);
    }
});
