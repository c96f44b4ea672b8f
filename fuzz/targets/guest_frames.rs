//! Frames for a light guest's stack: neighbour discovery, router advertisements, queries for
//! multicast listeners, ICMP, fragments, UDP and TCP. Nothing panics, memory is bounded, and each
//! frame is counted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    guest::fuzz::frames(script);
});
