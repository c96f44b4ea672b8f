//! Managers of confined guests, and what they say.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use harness::{Daemon, PATIENCE};

/// A manager that a test has started, and ends.
pub struct Manager(Child);

impl Manager {
    pub fn start(mut command: Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// Runs the guests of a manifest.
    pub fn of(daemon: &Daemon, manifest: &str) -> Self {
        let file = daemon.dir().join("guests.toml");
        std::fs::write(&file, manifest).unwrap();
        Self::start(daemon.tool(&["guest", "run", "--file", file.to_str().unwrap()]))
    }

    /// Tells the manager to end; true if it does within this time.
    pub fn ends_by_itself(mut self, time: Duration) -> bool {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        harness::wait(&mut self.0, time).is_some()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon with a switch.
pub fn daemon() -> Daemon {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0]\n");
    daemon
}

/// Returns the entry of a manifest for a guest that does `what`.
pub fn guest(i: usize, name: &str, what: &str, more: &str) -> String {
    let app = std::env::current_exe().unwrap();
    format!(
        "[guest.{name}]\napp = {app:?}\nargs = [{what:?}]\nport = \"vale0:{name}\"\n\
         address = \"10.0.0.{}/24\"\nslots = 64\n{more}\n",
        i + 1
    )
}

/// Waits until `is_so` is true of the list of guests; returns the list.
pub fn until(daemon: &Daemon, what: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let all = daemon.json(&["guest", "list"]);
        let all = all.as_array().unwrap();
        if is_so(all) {
            return all.clone();
        }
        assert!(start.elapsed() < PATIENCE, "no end of waiting for {what}: {all:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn named<'a>(all: &'a [Value], name: &str) -> &'a Value {
    all.iter().find(|info| info["name"] == name).unwrap_or(&Value::Null)
}

pub fn state(all: &[Value], name: &str) -> String {
    named(all, name)["state"].as_str().unwrap_or("absent").to_owned()
}

/// Lets one guest fetch pages from another; returns how many pages came.
pub fn fetched(daemon: &Daemon, address: &str) -> u64 {
    let told = fetching(daemon, address, "0.5");
    told["answers"].as_u64().unwrap()
}

/// Lets a guest fetch pages for that many seconds; returns what this guest reports.
pub fn fetching(daemon: &Daemon, address: &str, seconds: &str) -> Value {
    let server = format!("{address}:80");
    let args = ["guest", "run", "load", "vale0:load", "10.0.0.200/24", "--restart", "never"];
    let args = [&args[..], &["--", &server, "/1k", "4", seconds]].concat();
    let said = daemon.done(&args);
    let line = said.lines().find_map(|line| line.strip_prefix("load | ")).unwrap();
    serde_json::from_str(line).unwrap()
}
