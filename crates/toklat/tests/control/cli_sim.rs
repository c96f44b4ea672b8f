//! `toklat sim`: the same seed says the same, and what a simulation lacks is named.

use harness::root;
use std::process::Command;

fn sim(words: &[&str]) -> (bool, String, String) {
    let mut output = Command::new(env!("CARGO_BIN_EXE_toklat"));
    let output = output.arg("sim").args(words).current_dir(root()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_seed_says_the_same_in_every_process_and_another_one_says_other_things() {
    let file = "docs/examples/sim.toml";
    let run = |seed| sim(&[file, "--seed", seed, "--until", "500ms"]);
    let (first, again, other) = (run("7"), run("7"), run("8"));
    assert!(first.0, "{first:?}");
    assert_eq!(first, again);
    assert_ne!(first.1, other.1);
    assert!(first.1.contains("vale0:load-2: ") && first.1.contains(" 0 errors"), "{}", first.1);
}

#[test]
fn what_a_simulation_lacks_is_named_with_what_stands_in() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net.toml");
    for (text, says) in [
        (
            "[switch.v.port.p]\nkind = { tap = { ifname = 't0' } }",
            ["v:p tap t0, which a simulation does not have", "put a guest on the port"],
        ),
        (
            "[switch.v]\n[guest.g]\napp = 'iperf3'\nport = 'v:g'\naddress = '10.0.0.1/24'",
            ["guest g runs iperf3", "use echo, httpd"],
        ),
        (
            "[switch.v]\n[guest.g]\napp = 'load'\nport = 'v:g'\naddress = '10.0.0.1/24'\nargs = ['x']",
            ["guest g", "`x` is not SERVER:PORT"],
        ),
        (
            "[switch.v.port.p]\nkind = { pcap_read = { path = '/nowhere.pcap' } }",
            ["/nowhere.pcap", "No such file"],
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let (done, _, error) = sim(&[file.to_str().unwrap()]);
        assert!(!done && says.iter().all(|says| error.contains(says)), "{text}: {error}");
    }
}
