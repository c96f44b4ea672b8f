//! Topology files: any text is refused with a reason, or is a topology that is the same after a round
//! trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toklat::api::Topology;

fuzz_target!(|text: &str| {
    if let Ok(net) = toml::from_str::<Topology>(text) {
        let again = toml::to_string(&net).expect("a topology can be written");
        assert_eq!(toml::from_str::<Topology>(&again).expect("and read again"), net);
    }
});
