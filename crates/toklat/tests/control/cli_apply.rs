//! `toklat apply` as a user runs it: what it adds and changes, what it leaves alone, and what it
//! removes when asked to.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use harness::{Daemon, head_and_body, text};
use netring::Interest;
use serde_json::{Value, json};

/// Writes a topology file next to the daemon's sockets; returns its path.
fn file(daemon: &Daemon, name: &str, net: &str) -> String {
    let path: PathBuf = daemon.dir().join(name);
    std::fs::write(&path, net).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The names of all switches and ports, such as `vale0` and `vale0:p`.
fn objects(daemon: &Daemon) -> Vec<String> {
    let net = daemon.get("/v1/topology");
    let mut names = Vec::new();
    for (switch, spec) in net["switch"].as_object().unwrap() {
        names.push(switch.clone());
        names.extend(
            spec["port"].as_object().unwrap().keys().map(|port| format!("{switch}:{port}")),
        );
    }
    names
}

fn fails(daemon: &Daemon, args: &[&str]) -> String {
    let (code, _, stderr) = daemon.run(args);
    assert_ne!(code, Some(0), "{args:?}");
    stderr
}

/// Objective: objects that a file does not name stay, however they were created.
#[test]
fn regression_apply_removes_nothing_that_it_was_not_asked_to() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "mine"]);
    daemon.done(&["port", "add", "mine:a"]);
    let net = file(&daemon, "net.toml", "[switch.vale0.port.p]\n[switch.vale0.port.q]");
    daemon.done(&["apply", &net]);
    assert_eq!(objects(&daemon), ["mine", "mine:a", "vale0", "vale0:p", "vale0:q"]);
    let net = file(&daemon, "net.toml", "[switch.vale0.port.p]\nlossless = true");
    let said = daemon.done(&["apply", &net]);
    assert!(said.contains("changed") && said.contains("lossless: false -> true"), "{said}");
    assert_eq!(objects(&daemon), ["mine", "mine:a", "vale0", "vale0:p", "vale0:q"]);
}

/// Objective: a pipe from a command that failed, an empty file and lists instead of tables change
/// nothing.
#[test]
fn regression_nothing_is_not_a_topology() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "mine"]);
    let refused = fails(&daemon, &["apply", "/dev/null"]);
    assert!(refused.contains("empty"), "{refused}");
    let mut apply = daemon.tool(&["apply", "--prune", "-"]);
    let mut child = apply.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    for body in [json!([]), json!({"switch": {"mine": []}}), json!([{}, {}])] {
        let (status, refused) = daemon.ask("PUT", "/v1/topology?prune=true", &body);
        assert_eq!(status, 400, "{body}: {refused}");
    }
    assert_eq!(objects(&daemon), ["mine"]);
}

/// Objective: `--prune` removes what the same file made, and neither what commands nor other files
/// made, not even on a switch of the file's own.
#[test]
fn pruning_removes_what_the_file_made() {
    let daemon = Daemon::start();
    let one = "[switch.vale0.port.p]\n[switch.vale0.port.q]\n[switch.vale1]\n[switch.vale2]";
    let one = file(&daemon, "one.toml", one);
    let two = file(&daemon, "two.toml", "[switch.vale0.port.two]\n[switch.vale3]");
    daemon.done(&["apply", &one]);
    daemon.done(&["apply", &two]);
    daemon.done(&["port", "add", "vale1:mine"]);
    std::fs::write(&one, "[switch.vale0.port.p]").unwrap();
    let plan = daemon.json(&["apply", "--prune", "--dry-run", &one]);
    let plan: Vec<_> =
        plan["changes"].as_array().unwrap().iter().map(|c| text(&c["name"])).collect();
    assert_eq!(plan, ["vale0:q", "vale2"]);
    let all = objects(&daemon);
    assert_eq!(all.len(), 8, "a dry run changes nothing: {all:?}");
    daemon.done(&["apply", "--prune", &one]);
    let left = ["vale0", "vale0:p", "vale0:two", "vale1", "vale1:mine", "vale3"];
    assert_eq!(objects(&daemon), left);
    // An object that a command has removed and added again belongs to the command.
    daemon.done(&["port", "rm", "vale0:p"]);
    daemon.done(&["port", "add", "vale0:p"]);
    std::fs::write(&one, "[switch.vale0]").unwrap();
    daemon.done(&["apply", "--prune", &one]);
    assert_eq!(objects(&daemon), left);
}

/// Objective: objects in use are removed only after a confirmation or with `--yes`.
#[test]
fn pruning_asks_before_it_takes_a_port_away() {
    let mut daemon = Daemon::start();
    let net = file(&daemon, "net.toml", "[switch.vale0.port.p]\n[switch.vale0.port.q]");
    daemon.done(&["apply", &net]);
    let mut port = daemon.open("vale0:q").unwrap();
    std::fs::write(&net, "[switch.vale0.port.p]").unwrap();
    let plan = daemon.done(&["apply", "--prune", "--dry-run", &net]);
    assert!(plan.contains("removed") && plan.contains("loses it"), "{plan}");
    let refused = fails(&daemon, &["apply", "--prune", &net]);
    assert!(refused.contains("vale0:q") && refused.contains("--yes"), "{refused}");
    let mut asked = daemon.in_terminal(&["apply", "--prune", &net], 100, 20);
    asked.wait_for("Remove vale0:q, which is in use? [y/N]");
    asked.press(b"n\n");
    assert_ne!(asked.end(), Some(0));
    assert!(port.flush().is_ok());
    daemon.done(&["apply", "--prune", "--yes", &net]);
    assert_eq!(objects(&daemon), ["vale0", "vale0:p"]);
    daemon.wait_for("the client to be told", |_| {
        port.wait(Interest::READ, Some(Duration::from_millis(10))).is_err()
    });
}

/// Objective: an invalid file is refused before anything is changed, even without a daemon. A later
/// failure says which changes were made.
#[test]
fn mistakes_are_found_before_anything_is_changed() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "mine"]);
    daemon.done(&["port", "add", "mine:a", "--mac", "02:00:00:00:00:01"]);
    let twice = fails(&daemon, &["port", "add", "mine:b", "--mac", "02:00:00:00:00:01"]);
    assert!(twice.contains("used twice: by mine:a and mine:b"), "{twice}");
    for (net, what) in [
        ("[switch.new]\n[switch.mine.port.b]\nmacs = ['02:00:00:00:00:01']", "used twice"),
        ("[switch.new]\nworkers = [{ cpu = 60000 }]", "CPU 60000"),
        ("[switch.new.port.p]\nmirror_ingress = 'gone'", "does not exist"),
        ("[switch.new.port.p]\nmtuu = 3", "mtuu"),
    ] {
        let net = file(&daemon, "net.toml", net);
        let refused = fails(&daemon, &["apply", &net]);
        assert!(refused.contains(what), "{what}: {refused}");
        assert_eq!(objects(&daemon), ["mine", "mine:a"], "{what}");
    }
}

/// Objective: what a new port of any kind cannot be attached to is found before the first change,
/// and by a dry run.
#[test]
fn regression_apply_finds_what_cannot_be_opened_before_it_changes_anything() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "mine"]);
    std::fs::write(daemon.dir().join("text"), b"no capture").unwrap();
    let _other = std::os::unix::net::UnixListener::bind(daemon.dir().join("taken.sock")).unwrap();
    let kinds = [
        ("pcap_read = { path = '/nowhere/x' }", "/nowhere/x"),
        ("pcap_read = { path = '@' }", "is not a file"),
        ("pcap_write = { path = '/nowhere/x' }", "/nowhere/x"),
        ("pcap_write = { path = '@/text' }", "is no capture"),
        ("stream = { address = '/nowhere/s' }", "/nowhere/s"),
        ("stream = { address = '@/taken.sock' }", "listens on"),
        ("vhost_user = { path = '@/text' }", "is not a socket"),
        ("vfio_user = { path = '/nowhere/s', nic = { model = '82574l' } }", "/nowhere/s"),
        ("dgram = { local = '/nowhere/s', remote = '/nowhere/r' }", "/nowhere/s"),
        ("tap = { ifname = 'lo' }", "no tap"),
        ("tap = { ifname = 'tk0', netns = 'no-such' }", "no-such"),
        ("interface = { ifname = 'no-such' }", "no-such"),
        ("host = { ifname = 'no-such' }", "no-such"),
        ("card = { address = 'fffff:ff:1f.7' }", "fffff:ff:1f.7"),
        ("vxlan = { vni = 1, local = '192.0.2.9', peers = ['192.0.2.1'] }", "own end"),
        ("vxlan = { vni = 1, local = '::1', peers = ['::2'], netns = 'no-such' }", "no-such"),
    ];
    for (kind, word) in kinds {
        let kind = kind.replace('@', daemon.dir().to_str().unwrap());
        let net = format!("[switch.new.port.a]\n[switch.new.port.b]\nkind = {{ {kind} }}");
        let net = file(&daemon, "net.toml", &net);
        for args in [&["apply", &net][..], &["apply", "--dry-run", &net]] {
            let refused = fails(&daemon, args);
            assert!(refused.contains("new:b") && refused.contains(word), "{kind}: {refused}");
            assert_eq!(objects(&daemon), ["mine"], "{kind}");
        }
    }
    assert_eq!(std::fs::read(daemon.dir().join("text")).unwrap(), b"no capture");
}

/// Objective: two concurrent changes of the topology do not undo each other.
#[test]
fn a_topology_that_changed_meanwhile_is_not_replaced() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "mine"]);
    let exchange = |method: &str, headers: &str, body: &str| {
        let control = UnixStream::connect(daemon.dir().join("control.sock")).unwrap();
        head_and_body(control, method, "/v1/topology", headers, body).unwrap()
    };
    let tag = || {
        let head = exchange("GET", "", "").0;
        head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned()
    };
    let read = tag();
    let body = json!({"switch": {"new": {}}}).to_string();
    let put = |tag: &str| exchange("PUT", &format!("If-Match: {tag}\r\n"), &body);
    daemon.done(&["port", "add", "mine:a"]);
    let (head, refused) = put(&read);
    assert!(head.starts_with("HTTP/1.1 412"), "{head}");
    let refused: Value = serde_json::from_str(&refused).unwrap();
    assert_eq!(refused["error"], "stale");
    assert!(put(&tag()).0.starts_with("HTTP/1.1 200"));
}

/// Objective: a topology file that has changed is applied when the daemon starts; one that has not
/// leaves alone what commands changed since; one that cannot be read keeps nothing from running.
#[test]
fn a_restart_applies_a_file_that_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let net = dir.path().join("net.toml");
    std::fs::write(&net, "[switch.vale0.port.p]\n[switch.vale0.port.q]").unwrap();
    let mut daemon = Daemon::start_with(&["--topology", net.to_str().unwrap()]);
    assert_eq!(objects(&daemon), ["vale0", "vale0:p", "vale0:q"]);
    daemon.done(&["port", "rm", "vale0:q"]);
    daemon.done(&["port", "add", "vale0:mine"]);
    let restart = |daemon: &mut Daemon| {
        daemon.stop(&Value::Null);
        daemon.start_again();
    };
    restart(&mut daemon);
    assert_eq!(objects(&daemon), ["vale0", "vale0:mine", "vale0:p"], "the file is the same");
    std::fs::write(&net, "[switch.vale0.port.new]").unwrap();
    restart(&mut daemon);
    assert_eq!(objects(&daemon), ["vale0", "vale0:mine", "vale0:new"]);
    for broken in ["# nothing", "[switch.vale0.port"] {
        std::fs::write(&net, broken).unwrap();
        restart(&mut daemon);
        assert_eq!(objects(&daemon), ["vale0", "vale0:mine", "vale0:new"], "{broken}");
    }
    daemon.wait_for("the log to say so", |daemon| daemon.log().contains("was not applied"));
}

/// Objective: a start with a changed file takes nothing away that is in use, and no setting that
/// the file does not name; `--topology-prune` does.
///
/// Steps: a client has a port open, and another port has a setting by a command, when the daemon is
/// killed; it starts with a file that names neither. The open port stays, with a line in the log,
/// and an unused one goes. Told to prune, the next start removes the open port, too.
#[test]
fn a_start_removes_nothing_that_is_in_use_and_keeps_unnamed_settings() {
    let dir = tempfile::tempdir().unwrap();
    let net = dir.path().join("net.toml");
    let file = net.to_str().unwrap();
    let port = |name: &str| format!("[switch.vale0.port.{name}]\n");
    let write = |names: &[&str]| {
        std::fs::write(&net, names.iter().map(|name| port(name)).collect::<String>()).unwrap();
    };
    write(&["open", "unused", "kept"]);
    let mut daemon = Daemon::start_with(&["--topology", file]);
    let mut client = daemon.open("vale0:open").unwrap();
    daemon.done(&["port", "set", "vale0:kept", "--mtu", "2000"]);
    write(&["kept", "new"]);
    daemon.kill();
    daemon.start_again();
    assert_eq!(objects(&daemon), ["vale0", "vale0:kept", "vale0:new", "vale0:open"]);
    let mtu = |daemon: &Daemon| daemon.get("/v1/switches/vale0/ports/kept")["spec"]["mtu"].clone();
    assert_eq!(mtu(&daemon), 2000, "the file names no MTU");
    client.flush().unwrap();
    assert_eq!(daemon.get("/v1/switches/vale0/ports/open")["state"], "attached");
    daemon.wait_for("the log to say what stays", |daemon| {
        let log = daemon.log();
        let stays = log.lines().find(|line| line.contains("in use: it stays"));
        stays.is_some_and(|line| line.contains("vale0:open") && line.contains("--topology-prune"))
    });
    let gone = |line: &str| line.contains("removed vale0:unused");
    daemon.wait_for("the log to say so", |daemon| daemon.log().lines().any(gone));
    daemon.kill();
    daemon.start_again_with(|command| {
        command.arg("--topology-prune");
    });
    assert_eq!(objects(&daemon), ["vale0", "vale0:kept", "vale0:new"]);
    assert_eq!(mtu(&daemon), 2000);
    // An operator who applies the file resets what it does not name.
    daemon.done(&["apply", file]);
    assert_eq!(mtu(&daemon), 1500);
    let help = daemon.done(&["daemon", "--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("only where that is not in use"), "{help}");
}
