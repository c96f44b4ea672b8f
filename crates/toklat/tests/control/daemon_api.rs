//! The control API of the real daemon: what can be requested, what is refused, and what is stored.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};

use harness::{Daemon, PATIENCE, exchange, text};
use rustix::io::FdFlags;
use serde_json::{Value, json};
use toklat::api::{ApiError, ROUTES};

const NET: &str = "
    [switch.vale0]
    idle = 'sleep'
    [switch.vale0.port.p1]
    [switch.vale0.port.p2]
    lossless = true
    [switch.vale0.port.hole]
    kind = 'null'
    [switch.vale1.port.p1]
";

#[test]
fn every_route_is_served_and_described() {
    let daemon = Daemon::start();
    let document = daemon.get("/openapi.json");
    let paths = document["paths"].as_object().unwrap();
    let described: usize = paths.values().map(|path| path.as_object().unwrap().len()).sum();
    assert_eq!(described, ROUTES.len(), "OpenAPI describes something that is not in the table");
    for route in ROUTES.iter().filter(|route| route.path != "/v1/stop") {
        assert!(paths[route.path][route.method.to_lowercase()].is_object(), "{}", route.path);
        let path = route.path.replace("{switch}", "none").replace("{port}", "none");
        let (status, answer) =
            daemon.ask(route.method, &path.replace("{mac}", "none"), &Value::Null);
        let reason = answer["reason"].as_str().unwrap_or_default();
        let unserved = reason.starts_with("There is no GET") || reason.contains(&path);
        assert!(!unserved && status != 405, "{} {path}: {answer}", route.method);
    }
    let (status, answer) = daemon.ask("GET", "/v1/nonsense", &Value::Null);
    assert_eq!((status, &answer["error"]), (404, &json!("not_found")));
}

/// Checks that a value fits a schema. If not, the error says where and why.
fn is(value: &Value, schema: &Value, all: &Value, at: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{at}: {value} {why} {schema}"));
    if let Some(name) = schema["$ref"].as_str() {
        return is(value, &all[name.rsplit('/').next().unwrap()], all, at);
    }
    for key in ["oneOf", "anyOf"] {
        let Some(kinds) = schema[key].as_array() else { continue };
        let fitting = kinds.iter().filter(|kind| is(value, kind, all, at).is_ok()).count();
        if fitting == 0 || (key == "oneOf" && fitting > 1) {
            return wrong("fits none, or several, of");
        }
    }
    if schema.get("const").is_some_and(|only| only != value) {
        return wrong("is not");
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        return wrong("is none of");
    }
    let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !kinds.iter().any(|named| named.is_null() || named == kind) {
        return wrong("is not of the type of");
    }
    if ["minimum", "maximum"].iter().zip([1, -1]).any(|(key, sign)| {
        let end = schema[*key].as_f64().zip(value.as_f64());
        end.is_some_and(|(end, number)| (number - end) * f64::from(sign) < 0.0)
    }) {
        return wrong("is beyond the ends of");
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        let of = schema.get("items").unwrap_or(&Value::Null);
        is(item, of, all, &format!("{at}[{i}]"))?;
    }
    let required = schema["required"].as_array().into_iter().flatten();
    if let Some(missing) = required.into_iter().find(|name| value.get(text(name)).is_none()) {
        return wrong(&format!("has no {missing}, as in"));
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        let of = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        match of.unwrap_or(&Value::Null) {
            Value::Bool(false) => return wrong(&format!("has {name}, unlike")),
            of => is(field, of, all, &format!("{at}.{name}"))?,
        }
    }
    Ok(())
}

#[test]
fn replies_are_what_the_description_says() {
    let daemon = Daemon::start();
    daemon.apply(NET);
    daemon.apply("[quota]\nports = 3\n[quota.user.1000]\nports = '2KiB'\n[switch.vale0]\nsflow = '127.0.0.1'\n\
        [switch.vale0.port.p1]\nvlan = { access = 7 }\ngroups = ['web']\n[group.web]\nrules = ['allow tcp']\n\
        [table.good]\nprefixes = ['10.0.0.0/8']\n[switch.vale0.port.vm]\nkind = { vhost_user = {} }\n\
        [guest.web]\napp = 'httpd'\nport = 'vale0:web'\naddress = '10.0.0.2/24'\nslots = 64");
    let _port = daemon.open("vale1:open").unwrap();
    let entry = json!({"mac": "02:00:00:00:00:07", "vlan": 7, "port": "p1"});
    assert_eq!(daemon.ask("POST", "/v1/switches/vale0/fdb", &entry).0, 204);
    let document = daemon.get("/openapi.json");
    let all = &document["components"]["schemas"];
    let mut checked = 0;
    for route in ROUTES.iter().filter(|route| route.method == "GET" && route.replies.is_some()) {
        let path = route.path.replace("{switch}", "vale0").replace("{port}", "p1");
        let path = path.replace("{guest}", "web");
        if path.starts_with("/v1/evpn") {
            // The daemon has no EVPN, so these requests are refused.
            let (status, refusal) = daemon.ask("GET", &path, &Value::Null);
            is(&refusal, &all["Error"], all, &path).unwrap();
            assert_eq!(status, 404, "{path}: {refusal}");
            continue;
        }
        let reply = daemon.get(&path);
        let may_be_empty = ["/v1/pipes", "/v1/netmap/ports"].contains(&path.as_str());
        assert!(reply.to_string().len() > 2 || may_be_empty, "{path}: {reply}");
        let described = &document["paths"][route.path]["get"]["responses"]["200"];
        let schema = &described["content"]["application/json"]["schema"];
        is(&reply, schema, all, &path).unwrap();
        checked += 1;
    }
    assert!(checked > 10, "{checked}");
    let (_, refusal) = daemon.ask("GET", "/v1/switches/none", &Value::Null);
    is(&refusal, &all["Error"], all, "a refusal").unwrap();
    let mut other = refusal;
    other["status"] = json!(200);
    assert!(is(&other, &all["Error"], all, "").is_err(), "nothing is checked");
}

#[test]
fn switches_and_ports_come_and_go_one_by_one() {
    let daemon = Daemon::start();
    let (status, switch) =
        daemon.ask("POST", "/v1/switches", &json!({"name": "vale0", "batch": 32}));
    assert_eq!((status, &switch["state"]), (201, &json!("running")));
    assert_eq!(switch["config"]["batch"], 32);
    let ports = "/v1/switches/vale0/ports";
    let (status, port) = daemon.ask("POST", ports, &json!({"name": "p1", "lossless": true}));
    assert_eq!((status, &port["state"]), (201, &json!("vacant")));
    let p1 = "/v1/switches/vale0/ports/p1";
    let (_, port) = daemon.ask("PATCH", p1, &json!({"mtu": 9000, "flood_limit": null}));
    assert_eq!((&port["spec"]["mtu"], &port["spec"]["lossless"]), (&json!(9000), &json!(true)));
    assert_eq!(port["spec"]["flood_limit"], Value::Null);
    let (_, switch) = daemon.ask("PATCH", "/v1/switches/vale0", &json!({"idle": "poll"}));
    assert_eq!(
        (&switch["config"]["idle"], &switch["config"]["batch"]),
        (&json!("poll"), &json!(32))
    );
    assert_eq!(daemon.ask("DELETE", p1, &Value::Null).0, 204);
    assert_eq!(daemon.ask("GET", p1, &Value::Null).0, 404);
    assert_eq!(daemon.ask("DELETE", "/v1/switches/vale0", &Value::Null).0, 204);
    assert_eq!(daemon.get("/v1/switches"), json!([]));
    assert!(!daemon.dir().join("vale0.data.sock").exists(), "a socket was left behind");
}

#[test]
fn refusals_say_what_and_why_and_what_to_do() {
    let daemon = Daemon::start();
    daemon.apply(NET);
    let ports = "/v1/switches/vale0/ports";
    for (method, path, body, status, code) in [
        ("POST", "/v1/switches", json!({"name": "vale0"}), 409, "exists"),
        ("POST", "/v1/switches", json!({"name": "va le"}), 400, "bad_request"),
        ("POST", "/v1/switches", json!({"name": "v", "nonsense": 1}), 400, "bad_request"),
        ("POST", "/v1/switches", json!("text"), 400, "bad_request"),
        ("GET", "/v1/switches/none", Value::Null, 404, "not_found"),
        ("POST", ports, json!({"name": "p1"}), 409, "exists"),
        ("POST", ports, json!({"name": "x", "mtu": 60000}), 400, "bad_request"),
        ("POST", ports, json!({"name": "x", "worker": 7}), 400, "bad_request"),
        ("PATCH", "/v1/switches/vale0/ports/p1", json!({"mtu": "big"}), 400, "bad_request"),
        ("PATCH", "/v1/switches/vale0", json!({"port": {"x": {}}}), 400, "bad_request"),
        ("DELETE", "/v1/switches/vale0/ports/none", Value::Null, 404, "not_found"),
        ("DELETE", "/v1/switches/vale0/fdb/nonsense", Value::Null, 400, "bad_request"),
        ("POST", "/v1/switches/vale0/fdb/flush", json!({"port": "none"}), 404, "not_found"),
        ("PUT", "/v1/topology", json!({"switch": {"v": {"batch": 0}}}), 400, "bad_request"),
        ("POST", "/v1/upgrade", json!({"switch": "none"}), 404, "not_found"),
    ] {
        let (got, answer) = daemon.ask(method, path, &body);
        let error: ApiError = serde_json::from_value(answer.clone()).unwrap();
        let what = format!("{method} {path} {body}: {answer}");
        assert_eq!((got, text(&answer["error"])), (status, code), "{what}");
        assert!(!error.reason.is_empty() && !error.remedy.is_empty(), "{what}");
    }
    let raw = |request: &str| {
        let mut stream =
            std::os::unix::net::UnixStream::connect(daemon.dir().join("control.sock")).unwrap();
        // The daemon may hang up when it refuses, before it has read the whole request.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let end = "Host: toklat\r\nConnection: close\r\n";
    for (request, status, word, header) in [
        (
            format!("PUT /v1/stats HTTP/1.1\r\n{end}\r\n"),
            405,
            "method_not_allowed",
            "allow: GET, HEAD\r\n",
        ),
        (
            format!("DELETE /v1/switches/vale0/ports HTTP/1.1\r\n{end}\r\n"),
            405,
            "method_not_allowed",
            "allow: GET, HEAD, POST\r\n",
        ),
        (format!("GET /v1/nonsense HTTP/1.1\r\n{end}\r\n"), 404, "not_found", ""),
        (format!("GET /v1/switches/%ff HTTP/1.1\r\n{end}\r\n"), 400, "bad_request", ""),
        (
            format!(
                "POST /v1/switches HTTP/1.1\r\n{end}Content-Length: {}\r\n\r\n{}",
                17 << 20,
                " ".repeat(17 << 20)
            ),
            413,
            "too_large",
            "",
        ),
        (
            format!("POST /v1/switches HTTP/1.1\r\n{end}Content-Length: 3\r\n\r\n\u{7ff}\u{7f}"),
            400,
            "bad_request",
            "",
        ),
    ] {
        let answer = raw(&request);
        let request = request.lines().next().unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(
            answer.contains("content-type: application/problem+json\r\n"),
            "{request}: {answer}"
        );
        assert!(answer.contains(header), "{request}: {answer}");
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!((&body["error"], &body["status"]), (&json!(word), &json!(status)), "{body}");
        assert_eq!(body["type"], "about:blank");
    }
    let missing = json!({"name": "f", "kind": {"pcap_read": {"path": "/nonexistent/x.pcap"}}});
    assert_eq!(daemon.ask("POST", ports, &missing).0, 404);
    assert_eq!(daemon.ports("vale0").len(), 3, "a refused port was added");
}

#[test]
fn applying_twice_changes_nothing_and_differences_are_carried_out() {
    let daemon = Daemon::start();
    let first = daemon.apply(NET);
    assert_eq!(first.len(), 6, "{first:?}");
    assert!(first.iter().all(|change| change.starts_with("added ")), "{first:?}");
    let pid = daemon.data_process("vale0");
    assert_eq!(daemon.apply(NET), [""; 0]);
    let other = NET.replace("lossless = true", "mtu = 2000").replace("[switch.vale0.port.p1]", "");
    let other =
        other.replace("kind = 'null'", "").replace("vale1", "vale2").replace("sleep", "auto");
    let mut changes = daemon.apply(&other);
    changes.sort();
    assert_eq!(
        changes,
        [
            "added vale2",
            "added vale2:p1",
            "changed vale0",
            "changed vale0:p2",
            "removed vale0:p1",
            "removed vale1",
            "replaced vale0:hole",
        ]
    );
    assert_eq!(
        daemon.data_process("vale0"),
        pid,
        "a change that needs no new data process had one"
    );
    assert_eq!(daemon.apply(&other), [""; 0]);
    let workers = other.replace("idle = 'auto'", "idle = 'auto'\nworkers = [{}, {}]");
    assert_eq!(daemon.apply(&workers), ["replaced vale0"]);
    assert_eq!(
        daemon.get("/v1/stats?switch=vale0")["switches"][0]["workers"].as_array().unwrap().len(),
        2
    );
    assert_eq!(daemon.ports("vale0").len(), 2);
}

#[test]
fn what_was_applied_is_there_again_after_a_restart() {
    let mut daemon = Daemon::start();
    daemon.apply(NET);
    daemon.ask("PATCH", "/v1/switches/vale0/ports/p1", &json!({"flood_limit": null, "owner": 77}));
    let before = daemon.get("/v1/topology");
    daemon.stop(&Value::Null);
    daemon.start_again();
    assert_eq!(daemon.get("/v1/topology"), before);
    assert_eq!(daemon.ports("vale0").len(), 3);
    assert_eq!(daemon.get("/v1/switches/vale0/ports/p1")["spec"]["owner"], 77);
    assert_eq!(daemon.apply(NET), ["changed vale0:p1"]);
}

#[test]
fn what_was_applied_outlives_the_runtime_directory_in_a_state_directory() {
    let state = tempfile::tempdir().unwrap();
    let options = ["--state-dir", state.path().to_str().unwrap()];
    let mut daemon = Daemon::start_with(&options);
    daemon.apply(NET);
    let before = daemon.get("/v1/topology");
    assert!(!daemon.dir().join("topology.json").exists());
    daemon.stop(&Value::Null);
    let rebooted = Daemon::start_with(&options);
    assert_eq!(rebooted.get("/v1/topology"), before);
    assert_eq!(rebooted.ports("vale0").len(), 3);
}

#[test]
fn a_damaged_topology_keeps_the_daemon_from_starting_and_says_so() {
    let mut daemon = Daemon::start();
    daemon.stop(&Value::Null);
    let saved = daemon.dir().join("topology.json");
    std::fs::write(&saved, "{ nonsense").unwrap();
    let output = daemon.command().stderr(Stdio::piped()).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && complaint.contains("remove it"), "{complaint}");
    std::fs::remove_file(saved).unwrap();
}

#[test]
fn a_second_daemon_in_a_directory_is_refused() {
    let daemon = Daemon::start();
    let output = daemon.command().stderr(Stdio::piped()).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && complaint.contains("already"), "{complaint}");
    daemon.get("/v1/status");
}

#[test]
fn addresses_can_be_added_listed_and_removed() {
    let daemon = Daemon::start();
    daemon.apply(NET);
    let fdb = "/v1/switches/vale0/fdb";
    let entry = json!({"mac": "02:00:00:00:00:07", "port": "p2"});
    assert_eq!(daemon.ask("POST", fdb, &entry).0, 204);
    let list = daemon.get(fdb);
    assert_eq!(
        (&list[0]["mac"], &list[0]["port"], &list[0]["fixed"]),
        (&json!("02:00:00:00:00:07"), &json!("p2"), &json!(true))
    );
    assert_eq!(
        daemon.ask("DELETE", "/v1/switches/vale0/fdb/02:00:00:00:00:07", &Value::Null).0,
        204
    );
    assert_eq!(daemon.get(fdb), json!([]));
    assert_eq!(daemon.ask("POST", "/v1/switches/vale0/fdb/flush", &Value::Null).0, 204);
}

#[test]
fn metrics_name_each_port() {
    let daemon = Daemon::start();
    daemon.apply(NET);
    let page = daemon.get("/metrics");
    for line in [
        "toklat_port_in_frames_total{switch=\"vale0\",port=\"p1\"} 0",
        "toklat_worker_sleeps_total{switch=\"vale1\",worker=\"0\"}",
        "toklat_switch_restarts_total{switch=\"vale0\"} 0",
    ] {
        assert!(text(&page).contains(line), "{line}");
    }
}

#[test]
fn sockets_admit_the_named_groups_and_data_sockets_no_one_else() {
    let own = rustix::process::getegid().as_raw().to_string();
    for (options, control, attach) in [
        (vec![], 0o600, 0o600),
        (vec!["--group", own.as_str()], 0o600, 0o660),
        (vec!["--control-group", own.as_str()], 0o660, 0o600),
    ] {
        let daemon = Daemon::start_with(&options);
        daemon.apply(NET);
        let mode =
            |name: &str| daemon.dir().join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("control.sock"), mode("attach.sock")), (control, attach), "{options:?}");
        assert_eq!(mode("vale0.data.sock") & 0o077, 0);
        assert_eq!(mode("topology.json") & 0o077, 0);
    }
}

#[test]
fn the_directory_is_made_so_that_others_reach_the_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("run/toklat");
    let daemon = Daemon::start();
    let mut second = daemon.command().env("TOKLAT_DIR", &made).spawn().unwrap();
    let started = std::time::Instant::now();
    let stream = loop {
        match std::os::unix::net::UnixStream::connect(made.join("control.sock")) {
            Ok(stream) => break stream,
            Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
        }
    };
    assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(exchange(stream, "POST", "/v1/stop", "", "").0, 204);
    assert!(second.wait().unwrap().success());
}

#[test]
fn systemd_hands_over_sockets_and_is_notified() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let control = UnixListener::bind(path("control.sock")).unwrap();
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let attach = rustix::net::socket(family, kind, None).unwrap();
    let address = rustix::net::SocketAddrUnix::new(path("attach.sock")).unwrap();
    rustix::net::bind(&attach, &address).unwrap();
    rustix::net::listen(&attach, 8).unwrap();
    rustix::io::fcntl_setfd(&control, FdFlags::empty()).unwrap();
    rustix::io::fcntl_setfd(&attach, FdFlags::empty()).unwrap();
    let notices = UnixDatagram::bind(path("notify")).unwrap();
    notices.set_read_timeout(Some(PATIENCE)).unwrap();
    // The shell knows its process id, and keeps it when it becomes the daemon.
    let script = format!(
        "exec 3<&{} 4<&{}; LISTEN_PID=$$ LISTEN_FDS=2 exec {} daemon",
        attach.as_raw_fd(),
        control.as_raw_fd(),
        env!("CARGO_BIN_EXE_toklat")
    );
    let mut child = Command::new("bash")
        .args(["-c", &script])
        .env("TOKLAT_DIR", dir.path())
        .env("NOTIFY_SOCKET", path("notify"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop((control, attach));
    let mut notice = [0; 64];
    let mut next = || {
        let len = notices.recv(&mut notice).unwrap();
        String::from_utf8(notice[..len].to_vec()).unwrap()
    };
    let lives = |said: &String| said.contains("WATCHDOG=1");
    // The data process checks its workers as soon as there are any.
    let (first, second) = (next(), next());
    assert!([&first, &second].into_iter().any(lives), "{first} {second}");
    assert!([first, second].iter().any(|said| said.contains("READY=1")));
    let port = harness::small("vale0:p1").directory(dir.path()).open().unwrap();
    drop(port);
    let stream = std::os::unix::net::UnixStream::connect(path("control.sock")).unwrap();
    assert_eq!(exchange(stream, "POST", "/v1/stop", "", "").0, 204);
    let said = std::iter::repeat_with(next).find(|said| !lives(said));
    assert!(said.unwrap().contains("STOPPING=1"));
    assert!(child.wait().unwrap().success());
    assert!(path("control.sock").exists(), "systemd's socket was removed");
}
