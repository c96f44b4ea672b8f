//! Guests by the control API: put, read, stopped, deleted; and who may start which programs.

use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::manager::{daemon, fetched};
use harness::tcp::OverTcp;
use harness::{Daemon, is_alive, wait_until};

fn web(more: &Value) -> Value {
    let mut spec = json!({
        "app": "httpd", "port": "vale0:web", "address": "10.0.0.2/24", "slots": 64,
    });
    spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    spec
}

/// The entry, once all its guests are in this state.
fn until(daemon: &Daemon, name: &str, state: &str) -> Value {
    let mut entry = Value::Null;
    wait_until(&format!("{name} {state}"), || {
        entry = daemon.get(&format!("/v1/guests/{name}"));
        let guests = entry["guests"].as_array().unwrap();
        !guests.is_empty() && guests.iter().all(|guest| guest["state"] == state)
    });
    entry
}

fn pid(entry: &Value) -> i32 {
    entry["guests"][0]["pid"].as_i64().unwrap() as i32
}

#[test]
fn a_guest_is_put_read_stopped_and_deleted() {
    let daemon = daemon();
    let path = "/v1/guests/web";
    assert_eq!(daemon.get("/v1/guests"), json!([]));
    let (status, entry) = daemon.ask("PUT", path, &web(&json!({})));
    assert_eq!(
        (status, &entry["name"], &entry["spec"]["app"]),
        (201, &json!("web"), &json!("httpd"))
    );
    let first = until(&daemon, "web", "running");
    assert!(fetched(&daemon, "10.0.0.2") > 0);
    assert!(first["guests"][0]["walls"]["standing"].as_array().unwrap().len() > 3, "{first}");
    // The same again changes nothing; other settings replace it.
    assert_eq!(daemon.ask("PUT", path, &web(&json!({}))).0, 200);
    assert_eq!(pid(&until(&daemon, "web", "running")), pid(&first));
    let (status, entry) = daemon.ask("PUT", path, &web(&json!({"memory": "32MiB"})));
    assert_eq!((status, &entry["spec"]["memory"]), (200, &json!(32 << 20)));
    let second = until(&daemon, "web", "running");
    assert!(pid(&second) != pid(&first) && !is_alive(pid(&first)));
    // It is a part of the topology, as if a file had it.
    assert_eq!(daemon.get("/v1/topology")["guest"]["web"]["memory"], json!(32 << 20));
    assert_eq!(daemon.ask("POST", "/v1/guests/web/stop", &Value::Null).0, 204);
    let stopped = until(&daemon, "web", "ended");
    assert_eq!(stopped["guests"][0]["last_end"], "stopped");
    assert!(!is_alive(pid(&second)));
    assert_eq!(daemon.ask("PUT", path, &web(&json!({"memory": "32MiB"}))).0, 200);
    let third = until(&daemon, "web", "running");
    let all = daemon.get("/v1/guests");
    let [listed] = &all.as_array().unwrap()[..] else { panic!("not one") };
    assert_eq!((&listed["name"], pid(listed)), (&json!("web"), pid(&third)));
    assert_eq!(daemon.ask("DELETE", path, &Value::Null).0, 204);
    assert!(!is_alive(pid(&third)));
    for (method, path) in [
        ("GET", path),
        ("DELETE", path),
        ("POST", "/v1/guests/web/stop"),
        ("GET", "/v1/guests/web/log"),
    ] {
        let (status, refused) = daemon.ask(method, path, &Value::Null);
        assert_eq!((status, &refused["error"]), (404, &json!("not_found")), "{method} {path}");
    }
    assert_eq!((daemon.get("/v1/guests"), daemon.ports("vale0").len()), (json!([]), 0));
}

#[test]
fn a_guest_s_log_is_text_of_its_own() {
    let daemon = daemon();
    daemon.ask("PUT", "/v1/guests/web", &web(&json!({})));
    until(&daemon, "web", "running");
    let load = json!({
        "app": "load", "args": ["10.0.0.2:80", "/1k", "2", "0.2"], "restart": "never", "slots": 64,
        "port": "vale0:load", "address": "10.0.0.10/24", "count": 2, "memory": "32MiB",
    });
    assert_eq!(daemon.ask("PUT", "/v1/guests/load", &load).0, 201);
    until(&daemon, "load", "ended");
    let read = |path: &str| {
        let stream = UnixStream::connect(daemon.dir().join("control.sock")).unwrap();
        harness::head_and_body(stream, "GET", path, "", "").unwrap()
    };
    for guest in ["load-0", "load-1"] {
        let (head, body) = read(&format!("/v1/guests/load/log?guest={guest}"));
        assert!(head.contains(" 200 ") && head.contains("text/plain"), "{head}");
        assert!(body.contains("answers"), "{body}");
    }
    // One that has printed nothing, one that is another entry's, and a file that is no guest's.
    assert!(read("/v1/guests/web/log").0.contains(" 200 "));
    for guest in ["load-2", "web", "..", "../topology"] {
        let (head, _) = read(&format!("/v1/guests/load/log?guest={guest}"));
        assert!(head.contains(" 404 "), "{guest}: {head}");
    }
}

#[test]
fn guests_that_cannot_be_are_refused_and_leave_nothing() {
    let daemon = daemon();
    for (name, more, status, words) in [
        ("web", json!({"app": "/no/program"}), 400, "cannot open the program"),
        ("web", json!({"port": "vale9:web"}), 404, "vale9, which does not exist"),
        ("web", json!({"address": "10.0.0.2"}), 400, "10.0.0.2/24"),
        ("web", json!({"count": 0}), 400, "count"),
        ("web", json!({"colour": 1}), 400, "unknown field"),
        ("a%20b", json!({}), 400, "a b"),
    ] {
        let (had, refused) = daemon.ask("PUT", &format!("/v1/guests/{name}"), &web(&more));
        assert_eq!(had, status, "{refused}");
        let told = refused["detail"].as_str().unwrap();
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(daemon.get("/v1/guests"), json!([]));
    assert_eq!(daemon.ask("PUT", "/v1/guests/web", &web(&json!({}))).0, 201);
    // A change that cannot be leaves the entry as it was.
    until(&daemon, "web", "running");
    let broken = web(&json!({"app": "/no/program"}));
    assert_eq!(daemon.ask("PUT", "/v1/guests/web", &broken).0, 400);
    assert_eq!(until(&daemon, "web", "running")["spec"]["app"], "httpd");
    // A port that another entry has.
    let (status, refused) = daemon.ask("PUT", "/v1/guests/other", &web(&json!({})));
    assert_eq!((status, &refused["error"]), (400, &json!("bad_request")), "{refused}");
    assert_eq!(daemon.get("/v1/guests").as_array().unwrap().len(), 1);
}

/// A token starts no program of the host: neither as a guest nor in a topology.
#[test]
fn over_tcp_only_programs_that_are_built_in_are_started() {
    let tcp = OverTcp::start(&[]);
    tcp.daemon.apply("[switch.vale0]\n");
    let (daemon, ask) = (&tcp.daemon, |method, path, body: &Value| tcp.ask(method, path, body));
    let program = std::env::current_exe().unwrap();
    let foreign = web(&json!({"app": program, "args": ["no guest"], "restart": "never"}));
    let topology = json!({"guest": {"web": foreign}});
    for (path, body) in [
        ("/v1/guests/web", &foreign),
        ("/v1/topology", &topology),
        ("/v1/topology?dry_run=true", &topology),
    ] {
        let (status, refused) = ask("PUT", path, body);
        assert_eq!(status, 403, "{path}: {refused}");
        assert_eq!(refused["error"], "forbidden");
        assert!(refused["detail"].as_str().unwrap().contains("built in"), "{refused}");
    }
    assert_eq!(
        (daemon.get("/v1/guests"), ask("GET", "/v1/guests", &Value::Null).0),
        (json!([]), 200)
    );
    assert_eq!(ask("PUT", "/v1/guests/web", &web(&json!({}))).0, 201);
    until(daemon, "web", "running");
    assert_eq!(ask("DELETE", "/v1/guests/web", &Value::Null).0, 204);
    // At the socket the program may be any. It may stay then, and is not changed over TCP.
    assert_eq!(daemon.ask("PUT", "/v1/guests/web", &foreign).0, 201);
    assert_eq!(ask("PUT", "/v1/topology", &daemon.get("/v1/topology")).0, 200);
    let mut changed = foreign.clone();
    changed["args"] = json!(["something else"]);
    assert_eq!(ask("PUT", "/v1/guests/web", &changed).0, 403);
    assert_eq!(daemon.get("/v1/guests/web")["spec"]["args"], json!(["no guest"]));
    assert_eq!(ask("POST", "/v1/guests/web/stop", &Value::Null).0, 204);
}
