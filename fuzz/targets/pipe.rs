//! A pipe whose other end writes whatever it likes to the shared rings: the honest end stays within
//! its memory, and either goes on or says what was broken.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    netring::drive_hostile_pipe(script);
});
