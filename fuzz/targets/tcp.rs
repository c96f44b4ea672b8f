//! Segments, close to those that would be right, and the calls of an application: the TCP machine
//! keeps its promises.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tcp::fuzz::run(bytes);
});
