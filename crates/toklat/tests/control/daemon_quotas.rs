//! Quotas: a user who takes too much harms no other user.

use netring::{OpenError, Port};
use rustix::io::Errno;
use serde_json::{Value, json};

use harness::users::{as_user, may_be_others, refusal};
use harness::{Daemon, small};

const GREEDY: u32 = 4001;
const OTHER: u32 = 4002;

/// Opens as many ports as the user may. Returns them, and the reason why there are no more.
fn open_all(daemon: &Daemon, uid: u32, switch: &str) -> (Vec<Port>, String) {
    let mut ports = Vec::new();
    loop {
        match daemon.open_as(uid, &format!("{switch}:u{uid}-{}", ports.len())) {
            Ok(port) => ports.push(port),
            refused => {
                let (errno, why) = refusal(refused);
                assert_eq!(errno, Errno::NOSPC, "{why}");
                return (ports, why);
            }
        }
    }
}

fn usage(daemon: &Daemon, uid: u32, what: &str) -> u64 {
    let info = daemon.get("/v1/quotas");
    let users = info["users"].as_array().unwrap();
    let user = users.iter().find(|user| user["uid"] == uid);
    user.map_or(0, |user| user["usage"][what].as_u64().unwrap())
}

/// Objective: however many of a switch's ports two greedy users take, a third user finds room, and
/// root finds more.
#[test]
fn regression_a_user_cannot_hold_all_ports_of_a_switch() {
    let test = "regression_a_user_cannot_hold_all_ports_of_a_switch";
    if !may_be_others(test) {
        return;
    }
    let mut daemon = Daemon::start_for_all(&[]);
    daemon.apply("[switch.vale0]\nmax_ports = 32");
    let (greedy, why) = open_all(&daemon, GREEDY, "vale0");
    assert_eq!(greedy.len(), 8, "a quarter");
    assert!(why.contains("toklat quota set --user 4001 ports=N"), "{why}");
    let (other, _) = open_all(&daemon, OTHER, "vale0");
    assert!(!other.is_empty());
    let (third, _) = open_all(&daemon, 4003, "vale0");
    assert!(!third.is_empty(), "however many are greedy");
    let roots: Vec<_> = (0..4).map(|n| daemon.open(&format!("vale0:root{n}")).unwrap()).collect();
    assert_eq!(usage(&daemon, GREEDY, "ports"), 8);
    // Closed ports are no longer charged to their user.
    drop(greedy);
    daemon.wait_for("the ports to go", |daemon| usage(daemon, GREEDY, "ports") == 0);
    drop(daemon.open_as(GREEDY, "vale0:again").unwrap());
    drop((other, third, roots));
}

/// Objective: a configured quota holds, a command changes it, and it survives a restart of the
/// daemon. Resources that are held at the restart count.
#[test]
fn a_quota_is_set_kept_and_counted() {
    let test = "a_quota_is_set_kept_and_counted";
    if !may_be_others(test) {
        return;
    }
    let mut daemon = Daemon::start_for_all(&["--quota", "ports=2"]);
    daemon.apply("[switch.vale0]");
    let (two, why) = open_all(&daemon, GREEDY, "vale0");
    assert_eq!(two.len(), 2);
    assert!(why.contains("has 2 ports, and may have 2"), "{why}");
    let said = daemon.done(&["quota", "set", "--user", "4001", "ports=3", "memory=none"]);
    assert!(said.contains("4001"), "{said}");
    let third = daemon.open_as(GREEDY, "vale0:third").unwrap();
    assert_eq!(open_all(&daemon, OTHER, "vale0").0.len(), 2, "of others, what the daemon was told");
    let shown = daemon.done(&["quota", "show"]);
    assert!(shown.contains("3/3"), "{shown}");
    daemon.kill();
    daemon.start_again();
    daemon.wait_for("the ports to be found", |daemon| usage(daemon, GREEDY, "ports") == 3);
    let (_, why) = refusal(daemon.open_as(GREEDY, "vale0:fourth"));
    assert!(why.contains("has 3 ports, and may have 3"), "{why}");
    let exported = daemon.done(&["export"]);
    assert!(exported.contains("[quota.user.4001]"), "{exported}");
    drop((two, third));
    let (status, _) = daemon.ask("PATCH", "/v1/quotas", &json!({ "prots": 5 }));
    assert_eq!(status, 400);
    let (status, _) = daemon.ask("PATCH", "/v1/quotas", &json!({ "user": [] }));
    assert_eq!(status, 400);
    daemon.done(&["quota", "set", "--user", "4001", "ports=default", "memory=default"]);
    assert_eq!(daemon.get("/v1/quotas")["configured"]["user"], json!({}));
}

/// Objective: a user makes a few switches by opening ports of them, and leaves the remaining ones
/// to other users.
#[test]
fn regression_a_user_cannot_make_all_automatic_switches() {
    let test = "regression_a_user_cannot_make_all_automatic_switches";
    if !may_be_others(test) {
        return;
    }
    let daemon = Daemon::start_for_all(&[]);
    let mut made = Vec::new();
    let refused = loop {
        match daemon.open_as(GREEDY, &format!("auto{}:p", made.len())) {
            Ok(port) => made.push(port),
            refused => break refusal(refused),
        }
    };
    assert_eq!((made.len(), refused.0), (8, Errno::NOSPC), "{}", refused.1);
    daemon.open_as(OTHER, "another:p").unwrap();
    daemon.open_as(GREEDY, "auto0:q").unwrap();
}

/// Objective: pipes, connections and lent memory have limits of their own.
#[test]
fn regression_a_user_cannot_hold_all_pipes_connections_and_memory() {
    let test = "regression_a_user_cannot_hold_all_pipes_connections_and_memory";
    if !may_be_others(test) {
        return;
    }
    let daemon = Daemon::start_for_all(&["--quota", "pipes=2,connections=3"]);
    let pipe = |uid, n| {
        let dir = daemon.dir();
        as_user(uid, || small(&format!("vale0:x{{{n}")).directory(dir).open())
    };
    let held = [pipe(GREEDY, 1).unwrap(), pipe(GREEDY, 2).unwrap()];
    let (errno, why) = refusal(pipe(GREEDY, 3));
    assert_eq!(errno, Errno::NOSPC, "{why}");
    drop(pipe(OTHER, 4).unwrap());
    let bytes = usage(&daemon, GREEDY, "memory");
    assert!(bytes > 0, "{}", daemon.get("/v1/quotas"));
    let limit = json!({ "user": { "4001": { "memory": bytes, "pipes": "none" } } });
    assert_eq!(daemon.ask("PATCH", "/v1/quotas", &limit).0, 200);
    let (_, why) = refusal(pipe(GREEDY, 5));
    assert!(why.contains("lends"), "{why}");
    drop(held);
    let connect = || {
        as_user(GREEDY, || {
            let kind = rustix::net::SocketType::SEQPACKET;
            let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
            let path = daemon.dir().join(netring::attach::SOCKET);
            let address = rustix::net::SocketAddrUnix::new(path).unwrap();
            rustix::net::connect(&socket, &address).map(|()| socket)
        })
    };
    let connections: Vec<_> = (0..3).map(|_| connect().unwrap()).collect();
    let refused: Result<Port, OpenError> = pipe(GREEDY, 6);
    let (errno, why) = refusal(refused);
    assert_eq!(errno, Errno::AGAIN, "{why}");
    drop(pipe(OTHER, 7).unwrap());
    drop(connections);
    let refused: &Value = &daemon.get("/v1/quotas")["refused"];
    assert!(refused["pipes"].as_u64().unwrap() > 0, "{refused}");
}

/// Objective: the state memory of a trusted switch, all of which its user's processes can fill, is
/// charged to that user before it is made and until the switch goes. A refusal says what helps, and
/// changes nothing.
#[test]
fn the_state_of_a_trusted_switch_is_charged_to_its_user() {
    let mut daemon = Daemon::start();
    let limit = json!({ "user": { "4001": { "memory": 8 << 20 } } });
    assert_eq!(daemon.ask("PATCH", "/v1/quotas", &limit).0, 200);
    let add = |daemon: &Daemon, name: &str, ports: u16| {
        let switch = json!({"name": name, "trusted": true, "user": GREEDY, "max_ports": ports});
        daemon.ask("POST", "/v1/switches", &switch)
    };
    let has = |daemon: &Daemon| usage(daemon, GREEDY, "memory");

    let (code, _, said) = daemon.run(&["switch", "add", "vale9", "--trusted", "--user", "4001"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("vale9 with 4096 ports needs"), "{said}");
    assert!(said.contains("fewer ports"), "{said}");
    assert!(said.contains("toklat quota set --user 4001 memory=N"), "{said}");
    assert_eq!((has(&daemon), daemon.ask("GET", "/v1/switches/vale9", &Value::Null).0), (0, 404));
    assert_eq!(daemon.get("/v1/quotas")["refused"]["memory"], 1);

    let (status, answer) = add(&daemon, "vale9", 16);
    assert!(status < 300, "{answer}");
    let sixteen = has(&daemon);
    assert!((16 * (280 << 10)..8 << 20).contains(&sixteen), "{sixteen}");
    let (status, answer) = add(&daemon, "vale8", 16);
    assert!(status >= 400 && answer.to_string().contains(&sixteen.to_string()), "{answer}");

    let set = |daemon: &Daemon, change: &Value| daemon.ask("PATCH", "/v1/switches/vale9", change);
    let (status, answer) = set(&daemon, &json!({"max_ports": 64}));
    assert!(status >= 400 && answer.to_string().contains("vale9 with 64 ports"), "{answer}");
    assert_eq!(daemon.get("/v1/switches/vale9")["config"]["max_ports"], 16);
    assert_eq!(has(&daemon), sixteen);
    // What is there already counts, but the change needs only the difference.
    assert!(set(&daemon, &json!({"max_ports": 20})).0 < 300);
    let twenty = has(&daemon);
    assert!(twenty > sixteen);
    let lower = json!({ "user": { "4001": { "memory": 1 << 20 } } });
    assert_eq!(daemon.ask("PATCH", "/v1/quotas", &lower).0, 200);
    daemon.kill();
    daemon.start_again();
    daemon.wait_for("the switch to be found", |daemon| has(daemon) == twenty);
    assert!(set(&daemon, &json!({"max_ports": 8})).0 < 300, "less is always allowed");
    assert!(has(&daemon) < sixteen);
    assert!(daemon.ask("DELETE", "/v1/switches/vale9", &Value::Null).0 < 300);
    assert_eq!(has(&daemon), 0);
}
