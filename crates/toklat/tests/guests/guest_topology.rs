//! Guests of a topology file, as a user runs it: `toklat apply` starts, changes and ends them, and
//! a daemon that comes back has them again.

use serde_json::{Value, json};

use crate::manager::{fetched, named, state, until};
use harness::{Daemon, is_alive, kill_process, text, wait_until};

/// A web server as a part of a topology.
fn web(name: &str, more: &str) -> String {
    format!(
        "[guest.{name}]\napp = \"httpd\"\nport = \"vale0:{name}\"\naddress = \"10.0.0.2/24\"\n\
         slots = 64\n{more}\n"
    )
}

/// Writes the topology file; returns its path.
fn file(daemon: &Daemon, net: &str) -> String {
    let path = daemon.dir().join("net.toml");
    std::fs::write(&path, format!("[switch.vale0]\n{net}")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The changes that applying the file makes, as `added vale0`.
fn applied(daemon: &Daemon, args: &[&str]) -> Vec<String> {
    let plan = daemon.json(&[&["apply"], args].concat());
    let changes = plan["changes"].as_array().unwrap().iter();
    changes.map(|c| format!("{} {}", text(&c["action"]), text(&c["name"]))).collect()
}

fn running(daemon: &Daemon, name: &str) -> Value {
    let all = until(daemon, "the guest", |all| state(all, name) == "running");
    named(&all, name).clone()
}

fn pid(info: &Value) -> i32 {
    info["pid"].as_i64().unwrap() as i32
}

fn fails(daemon: &Daemon, args: &[&str]) -> String {
    let (code, _, stderr) = daemon.run(args);
    assert_ne!(code, Some(0), "{args:?}");
    stderr
}

#[test]
fn a_file_starts_changes_and_ends_guests_and_says_so_before() {
    let daemon = Daemon::start();
    let net = file(&daemon, &web("web", ""));
    let (added, nothing) = (["added vale0", "added [guest.web]"], [""; 0]);
    assert_eq!(applied(&daemon, &["--dry-run", &net]), added);
    assert_eq!(daemon.json(&["guest", "list"]), json!([]));
    assert_eq!(applied(&daemon, &[&net]), added);
    let first = running(&daemon, "web");
    assert!(fetched(&daemon, "10.0.0.2") > 0);
    // The same file again leaves the guest as it is.
    assert_eq!(applied(&daemon, &[&net]), nothing);
    assert_eq!(pid(&running(&daemon, "web")), pid(&first));
    let net = file(&daemon, &web("web", "memory = \"32MiB\""));
    let plan = daemon.done(&["apply", "--dry-run", &net]);
    for words in ["replaced", "[guest.web]", "memory: 268435456 -> 33554432", "it runs"] {
        assert!(plan.contains(words), "{words}: {plan}");
    }
    assert_eq!(applied(&daemon, &[&net]), ["replaced [guest.web]"]);
    assert_ne!(pid(&running(&daemon, "web")), pid(&first));
    assert!(!is_alive(pid(&first)));
    // The output of `export` is the topology that was applied.
    let exported = daemon.done(&["export"]);
    std::fs::write(daemon.dir().join("out.toml"), &exported).unwrap();
    let out = daemon.dir().join("out.toml");
    assert_eq!(applied(&daemon, &["--dry-run", out.to_str().unwrap()]), nothing, "{exported}");
    // A running guest is not taken away without a word.
    let net = file(&daemon, "");
    assert_eq!(applied(&daemon, &[&net]), nothing);
    let refused = fails(&daemon, &["apply", "--prune", &net]);
    assert!(refused.contains("[guest.web]") && refused.contains("--yes"), "{refused}");
    assert_eq!(applied(&daemon, &["--prune", "--yes", &net]), ["removed [guest.web]"]);
    assert_eq!(daemon.json(&["guest", "list"]), json!([]));
    assert_eq!(daemon.ports("vale0"), []);
}

#[test]
fn guests_are_there_again_after_the_daemon_s_restart_and_serve_on_while_it_is_dead() {
    let mut daemon = Daemon::start();
    daemon.done(&["apply", &file(&daemon, &web("web", ""))]);
    let first = running(&daemon, "web");
    // A daemon that is killed leaves them; the next one has the same.
    daemon.kill();
    assert!(is_alive(pid(&first)));
    daemon.start_again();
    assert_eq!(pid(&running(&daemon, "web")), pid(&first));
    assert!(fetched(&daemon, "10.0.0.2") > 0);
    let net = file(&daemon, &web("web", ""));
    assert_eq!(applied(&daemon, &[&net]), [""; 0]);
    // The manager of the guest may die too: it is started again, and ends when it is asked to.
    kill_process(first["manager"].as_i64().unwrap() as i32);
    let again = until(&daemon, "another manager", |all| {
        state(all, "web") == "running" && named(all, "web")["manager"] != first["manager"]
    });
    assert_ne!(pid(named(&again, "web")), pid(&first));
    wait_until("the first guest's end", || !is_alive(pid(&first)));
    // A daemon that stops ends them, and starts them again.
    daemon.stop(&json!({"leave_data_processes": false}));
    assert!(!is_alive(pid(named(&again, "web"))));
    daemon.start_again();
    running(&daemon, "web");
    assert!(fetched(&daemon, "10.0.0.2") > 0);
}

#[test]
fn a_guest_that_was_stopped_stays_so_until_the_file_is_applied() {
    let daemon = Daemon::start();
    let net = file(&daemon, &web("web", ""));
    daemon.done(&["apply", &net]);
    running(&daemon, "web");
    daemon.done(&["guest", "stop", "web"]);
    until(&daemon, "its end", |all| state(all, "web") == "ended");
    assert_eq!(applied(&daemon, &[&net]), ["replaced [guest.web]"]);
    running(&daemon, "web");
}

#[test]
fn guests_that_cannot_be_are_refused_and_the_others_stay() {
    let daemon = Daemon::start();
    daemon.done(&["apply", &file(&daemon, &web("web", ""))]);
    let first = running(&daemon, "web");
    for (net, words) in [
        (web("other", "").replace("httpd", "/no/program"), "cannot open the program /no/program"),
        (web("other", "").replace("vale0:other", "vale0:web"), "is used twice"),
        (web("other", "").replace("vale0:other", "vale9:x"), "vale9, which does not exist"),
        (web("other", "colour = 1"), "unknown field `colour`"),
        (web("other", "").replace("10.0.0.2/24", "10.0.0.2"), "10.0.0.2/24"),
        (web("other", "") + "[switch.vale0.port.other]\nkind = \"null\"\n", "is a null port"),
    ] {
        // The name of the one that runs is in the file where it matters.
        let refused = fails(&daemon, &["apply", &file(&daemon, &(web("web", "") + &net))]);
        assert!(refused.contains(words), "{words}: {refused}");
        assert_eq!(pid(&running(&daemon, "web")), pid(&first), "{words}");
    }
    assert_eq!(daemon.get("/v1/topology")["guest"].as_object().unwrap().len(), 1);
}

#[test]
fn an_entry_of_several_guests_is_copied_and_ends_whole() {
    let daemon = Daemon::start();
    let net = file(&daemon, &web("web", "count = 5\nmemory = \"16MiB\""));
    daemon.done(&["apply", &net]);
    let all = until(&daemon, "five guests", |all| {
        all.len() == 5 && all.iter().all(|info| info["state"] == "running")
    });
    assert!(fetched(&daemon, "10.0.0.6") > 0);
    daemon.done(&["apply", "--prune", "--yes", &file(&daemon, "")]);
    assert!(all.iter().all(|info| !is_alive(pid(info))), "{all:#?}");
}
