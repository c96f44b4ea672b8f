//! What people and files of ipfw write: any text is rules or an error that names its line, and all
//! rules have a program.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rules::{Budget, Policy, Rule, compile, hidden, parse_ipfw, parse_lines};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let lines = text.lines().count();
    match parse_lines(text.lines()) {
        Ok(rules) => has_a_program(&rules),
        Err(error) => assert!(error.line <= lines && error.column > 0),
    }
    match parse_ipfw(text.lines()) {
        Ok(file) => has_a_program(&file.rules),
        Err(error) => assert!(error.line <= lines && error.column > 0),
    }
});

fn has_a_program(rules: &[Rule]) {
    let mut policy = Policy::default();
    policy.push(rules);
    let budget = Budget { nodes: 10_000, words: 1 << 20, stop: &|| false };
    if let Ok(program) = compile(&policy, &budget) {
        assert_eq!(program.rules(), rules.len());
    }
    assert!(hidden(&policy).iter().all(|hidden| hidden.by < hidden.rule));
}
