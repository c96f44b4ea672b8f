//! Filters as programs and clients give them: any bytes are a program that ends, or an error with a
//! reason. The first byte is the number of instructions; what follows them is the frame.
#![no_main]

use frame::bpf::{Instruction, Program};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((count, rest)) = bytes.split_first() else { return };
    let (code, frame) = rest.split_at(rest.len().min(usize::from(*count) * 8));
    let code = code.as_chunks().0.iter().copied().map(Instruction::from_ne_bytes);
    match Program::new(code.collect()) {
        Ok(program) => assert_eq!(program.admits(frame), program.run(frame) != 0),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<Program>();
    }
});
