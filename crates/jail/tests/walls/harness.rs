//! A minimal test harness with what `cargo test` and its users need: names, a filter, `--exact`,
//! `--list`.

use std::panic::catch_unwind;
use std::process::exit;

/// A test, by name.
pub type Test = (&'static str, fn());

/// Runs the tests that the command line names, one by one, unless the machine `lacks` something.
pub fn run(tests: &[Test], lacks: fn() -> Option<String>) {
    // `--format terse` is how names are always listed.
    let options: Vec<String> = std::env::args().skip(1).filter(|word| word != "terse").collect();
    let given = |option: &str| options.iter().any(|given| given == option);
    let filters: Vec<&String> = options.iter().filter(|given| !given.starts_with('-')).collect();
    let wanted = |name: &str| {
        let fits = |filter: &&&String| {
            if given("--exact") { name == **filter } else { name.contains(**filter) }
        };
        filters.is_empty() || filters.iter().any(|filter| fits(&filter))
    };
    // All tests need root, or users that only root can become.
    let is_root = rustix::process::geteuid().is_root();
    let (mut passed_in_all, mut failed) = (0, 0);
    let given_list = given("--list");
    for (name, test) in tests.iter().filter(|(name, _)| wanted(name)) {
        if given_list {
            println!("{name}: test");
            continue;
        }
        let lacks = if is_root { lacks() } else { Some("needs root".to_owned()) };
        if let Some(why) = lacks {
            // As in other harnesses: a test that skips itself has passed, and the log knows better.
            passed_in_all += 1;
            ::harness::skip(name, &why);
            println!("test {name} ... ok");
        } else {
            let passed = catch_unwind(test).is_ok();
            (passed_in_all, failed) =
                (passed_in_all + i32::from(passed), failed + i32::from(!passed));
            println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        }
    }
    if !given_list {
        let verdict = if failed == 0 { "ok" } else { "FAILED" };
        println!(
            "\ntest result: {verdict}. {passed_in_all} passed; {failed} failed; 0 ignored; 0 measured; \
             0 filtered out; finished in 0.00s\n"
        );
    }
    exit(if failed == 0 { 0 } else { 101 });
}
