//! Messages between supervisor and data process: any bytes are refused or parse to a message that is
//! the same after a round trip.
#![no_main]

use dataplane::control::{Answer, Command};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(command) = serde_json::from_slice::<Command>(bytes) {
        let again = serde_json::to_vec(&command).expect("a message can be written");
        assert_eq!(serde_json::from_slice::<Command>(&again).expect("and read again"), command);
    }
    if let Ok(answer) = serde_json::from_slice::<Answer>(bytes) {
        let again = serde_json::to_vec(&answer).expect("a message can be written");
        assert_eq!(serde_json::from_slice::<Answer>(&again).expect("and read again"), answer);
    }
});
