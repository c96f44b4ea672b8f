//! Two ends of RPC exchange frames that are lost, repeated, changed or made up.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    let _ = guest::fuzz::rpc(script);
});
