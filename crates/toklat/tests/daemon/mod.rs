//! A daemon for a test, in a directory of its own, asked over its control socket; and clients.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ring::{Open, Pages, Port};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Daemon {
    dir: tempfile::TempDir,
    options: Vec<String>,
    child: Option<Child>,
}

impl Daemon {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Self {
        let options = options.iter().map(|&option| option.into()).collect();
        let mut daemon = Self { dir: tempfile::tempdir().unwrap(), options, child: None };
        daemon.start_again();
        daemon
    }

    /// Starts one in the same directory.
    pub fn start_again(&mut self) {
        self.child = Some(self.command().spawn().unwrap());
        self.wait_for("the daemon to answer", |daemon| {
            daemon.try_ask("GET", "/v1/status", "").is_some()
        });
    }

    /// The command that starts one in the same directory.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
        let log = File::options().create(true).append(true).open(self.dir().join("log")).unwrap();
        command.arg("daemon").args(&self.options).env("TOKLAT_DIR", self.dir());
        command.env("TOKLAT_LOG", "debug").stdin(Stdio::null()).stderr(log);
        command
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap()
    }

    /// Waits until `is_so`; the log tells what happened if it does not.
    pub fn wait_for(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let started = Instant::now();
        while !is_so(self) {
            assert!(started.elapsed() < PATIENCE, "no end of waiting for {what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the supervisor, and nothing else.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Tells the supervisor to stop, and waits for its end.
    pub fn stop(&mut self, how: &Value) {
        assert_eq!(self.ask("POST", "/v1/stop", how).0, 204);
        let status = self.child.take().unwrap().wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }

    fn try_ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let stream = UnixStream::connect(self.dir().join("control.sock")).ok()?;
        Some(exchange(stream, method, path, "", body))
    }

    /// Asks; returns the status and the JSON.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.try_ask(method, path, &body).expect("the daemon runs")
    }

    pub fn get(&self, path: &str) -> Value {
        let (status, value) = self.ask("GET", path, &Value::Null);
        assert_eq!(status, 200, "{path}: {value}");
        value
    }

    /// Makes the topology of this file so; returns the changes as `added vale0:p1`.
    pub fn apply(&self, net: &str) -> Vec<String> {
        let net: Value = toml::from_str(net).unwrap();
        let (status, value) = self.ask("PUT", "/v1/topology", &net);
        assert_eq!(status, 200, "{value}");
        let changes = value["changes"].as_array().unwrap().iter();
        changes.map(|c| format!("{} {}", text(&c["action"]), text(&c["name"]))).collect()
    }

    /// The process id of a switch's data process.
    pub fn data_process(&self, switch: &str) -> i32 {
        self.get(&format!("/v1/switches/{switch}"))["pid"].as_i64().unwrap() as i32
    }

    /// Names and states of a switch's ports.
    pub fn ports(&self, switch: &str) -> Vec<(String, String)> {
        let ports = self.get(&format!("/v1/switches/{switch}/ports"));
        let ports = ports.as_array().unwrap().iter();
        ports.map(|p| (text(&p["name"]).to_owned(), text(&p["state"]).to_owned())).collect()
    }

    /// Opens a port with small rings.
    pub fn open(&self, name: &str) -> Result<Port, ring::OpenError> {
        small(name).directory(self.dir()).open()
    }
}

/// A port with small rings.
pub fn small(name: &str) -> Open {
    Open::new(name).slots(64).pages(Pages::Small)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A test that failed half way may have left data processes without their supervisor.
        let runs = self.child.as_mut().is_some_and(|c| c.try_wait().is_ok_and(|e| e.is_none()));
        if !runs {
            self.child = self.command().spawn().ok();
        }
        let started = Instant::now();
        while self.try_ask("POST", "/v1/stop", "").is_none() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// One HTTP exchange.
pub fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, Value) {
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: toklat\r\nConnection: close\r\n{headers}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
}

pub fn kill_process(pid: i32) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// True while a process runs (a zombie does not).
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// A frame of 64 bytes from station `from` to station `to` with a number in it.
pub fn frame(from: u8, to: u8, number: u64) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[16..24].copy_from_slice(&number.to_le_bytes());
    frame
}

/// Sends a frame; false if there is no room.
pub fn send(port: &mut Port, frame: &[u8]) -> bool {
    let sent = port.send(1).push(frame);
    port.flush().unwrap();
    sent
}

/// The numbers of the frames that are there now.
pub fn receive(port: &mut Port) -> Vec<u64> {
    let ours = |frame: ring::Received<'_>| {
        let bytes = frame.to_vec();
        let number = bytes[16..24].try_into().unwrap();
        (bytes[12..14] == [0x88, 0xb5]).then(|| u64::from_le_bytes(number))
    };
    let numbers = port.receive(64).filter_map(ours).collect();
    port.flush().unwrap();
    numbers
}

/// Sends frame after frame from `a` until one arrives at `b`; returns how long that took.
pub fn until_traffic_flows(a: &mut Port, b: &mut Port, number: &mut u64) -> Duration {
    let started = Instant::now();
    loop {
        // Station 2 speaks too, so that the switch knows where it is.
        send(b, &frame(2, 1, 0));
        receive(a);
        *number += 1;
        send(a, &frame(1, 2, *number));
        std::thread::sleep(Duration::from_millis(1));
        if receive(b).last().is_some_and(|last| *last > 0) {
            return started.elapsed();
        }
        assert!(started.elapsed() < PATIENCE, "no traffic flows");
    }
}
