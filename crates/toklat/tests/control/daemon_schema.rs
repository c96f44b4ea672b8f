//! The control API held against its own description, by Schemathesis (from PyPI): requests made of
//! the types that `/openapi.json` names, good and bad ones.

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use harness::{Daemon, artifacts, skip};
use serde_json::Value;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// The number of test cases of each operation and phase, in addition to those that the description
/// asks for.
const EXAMPLES: &str = "8";
/// User id of the daemon if root runs the test, as requests ask it to write files and to make taps.
const UNPRIVILEGED: u32 = 65_534;
/// The operation that ends the daemon; and two checks that know too little: that nothing is refused
/// which the types allow (files that cannot be opened and addresses used twice are), and that all
/// is found in a switch that was made just now (its ports are not).
const EXCLUDED: [&str; 4] = [
    "--exclude-path",
    "/v1/stop",
    "--exclude-checks",
    "positive_data_acceptance,ensure_resource_availability",
];

/// Objective: what the API takes, refuses and replies is what its description says, and no request
/// makes it fail.
///
/// The requests are new ones in each run. A run prints its seed, and repeats those of the seed that
/// `TOKLAT_FUZZ_SEED` names; `TOKLAT_SCHEMATHESIS_SECONDS` makes it take so long.
#[test]
fn schemathesis_finds_no_request_that_the_api_answers_unlike_its_description() {
    let name = "schemathesis_finds_no_request_that_the_api_answers_unlike_its_description";
    let python = match artifacts::python("schemathesis") {
        Ok(python) => python,
        Err(why) => return skip(name, &why),
    };
    let place = tempfile::tempdir().unwrap();
    let token = place.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    // Port 0 would hide the number from us.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let options = ["--listen-tcp", &address, "--token-file", token.to_str().unwrap()];
    let daemon = if rustix::process::geteuid().is_root() {
        for path in [place.path(), &token] {
            chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        }
        Daemon::start_as(UNPRIVILEGED, &options)
    } else {
        Daemon::start_with(&options)
    };
    let mut ask = Command::new(python.with_file_name("schemathesis"));
    ask.arg("run").arg(format!("http://{address}/openapi.json")).current_dir(place.path());
    ask.args(["--header", &format!("Authorization: Bearer {TOKEN}"), "--checks", "all"]);
    ask.args(["--continue-on-failure", "--no-color"]).args(EXCLUDED);
    ask.args(["--seed", &harness::seed().to_string()]);
    match std::env::var("TOKLAT_SCHEMATHESIS_SECONDS") {
        Ok(seconds) => ask.args(["--max-time", &seconds]),
        Err(_) => ask.args(["--max-examples", EXAMPLES]),
    };
    let asked = harness::run(&mut ask).unwrap();
    let said = String::from_utf8_lossy(&asked.stdout);
    println!("{said}");
    let complaints = String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success(), "{said}{complaints}\n{}", daemon.log());
    // All four phases ran, and made requests.
    let operations =
        said.split_once("Operations:").and_then(|(_, rest)| rest.split_once("selected"));
    let operations = operations.and_then(|(count, _)| count.trim().parse::<u32>().ok()).unwrap();
    let all = operations >= 24 && said.contains(&format!("{operations} passed"));
    assert!(all && said.contains("API Links"), "{said}");
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    assert_eq!(daemon.ask("GET", "/v1/status", &Value::Null).0, 200);
}
