//! A daemon for a test, in a directory of its own, asked over its control socket.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use netring::{Open, Pages, Port};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::artifacts::program;
use crate::children;
use crate::http::{text, try_exchange};
use crate::processes::{processes_that_hold, processes_with, wait};
use crate::waiting::PATIENCE;

/// A daemon, which ends with the test.
pub struct Daemon {
    program: PathBuf,
    dir: tempfile::TempDir,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    child: Option<Child>,
}

impl Daemon {
    /// Starts one, in a directory of its own.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one, and adds a switch that stays when its last port goes.
    pub fn with_switch(name: &str) -> Self {
        let daemon = Self::start();
        daemon.done(&["switch", "add", name]);
        daemon
    }

    /// Starts one with options.
    pub fn start_with(options: &[&str]) -> Self {
        Self::start_program(program().into(), options, Vec::new())
    }

    /// Starts a daemon with additional environment variables.
    pub fn start_with_environment(options: &[&str], environment: &[(&str, &str)]) -> Self {
        let environment = environment.iter().map(|&(name, value)| (name.into(), value.into()));
        Self::start_program(program().into(), options, environment.collect())
    }

    /// Starts one from another copy of the program.
    pub fn start_from(program: &Path) -> Self {
        Self::start_program(program.into(), &[], Vec::new())
    }

    /// Starts a copy of the program that another user may run, as that user.
    pub fn start_as(uid: u32, options: &[&str]) -> Self {
        let options = options.iter().map(|&option| option.into()).collect();
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("toklat");
        std::fs::copy(crate::program(), &program).unwrap();
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(uid)).unwrap();
        let at = dir.path().to_owned();
        let mut daemon = Self { program, dir, options, environment: Vec::new(), child: None };
        daemon.start_again_with(|command| {
            command.uid(uid).gid(uid).current_dir(&at).env("HOME", &at);
        });
        daemon
    }

    fn start_program(
        program: PathBuf,
        options: &[&str],
        environment: Vec<(String, String)>,
    ) -> Self {
        let options = options.iter().map(|&option| option.into()).collect();
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = Self { program, dir, options, environment, child: None };
        daemon.start_again();
        daemon
    }

    /// Starts a daemon again in the same directory.
    pub fn start_again(&mut self) {
        self.start_again_with(|_| ());
    }

    /// Starts a daemon of another program in the same directory.
    pub fn start_again_from(&mut self, program: &Path) {
        self.program = program.into();
        self.start_again();
    }

    /// As `start_again`, after a change of its command.
    pub fn start_again_with(&mut self, change: impl FnOnce(&mut Command)) {
        let mut command = self.command();
        change(&mut command);
        self.child = Some(loop {
            match command.spawn() {
                // The program may be a fresh copy, which the child of another test holds open until
                // that child runs its own program.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now();
                }
                child => break child.unwrap(),
            }
        });
        self.wait_for("the daemon to answer", |daemon| {
            let ended = daemon.child.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "{ended:?}: {}", daemon.log());
            daemon.try_ask("GET", "/v1/status", "").is_some()
        });
    }

    /// The command that starts one in the same directory.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let log = File::options().create(true).append(true).open(self.dir().join("log")).unwrap();
        command.arg("daemon").args(&self.options).env("TOKLAT_DIR", self.dir());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // The output goes to a file, so that a process that a failed test leaves behind does not
        // hold the test's own output open.
        command.env("TOKLAT_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    /// Its directory, with its sockets.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Everything it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap()
    }

    /// Waits until `is_so` returns true. If it does not in time, the test fails and prints the log.
    pub fn wait_for(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let started = Instant::now();
        while !is_so(self) {
            if started.elapsed() >= PATIENCE {
                let stats = self.try_ask("GET", "/v1/stats", "");
                panic!("no end of waiting for {what}: {}\n{stats:?}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts a process that stops the daemon, and what it has left behind, if this test's process
    /// ends without doing so: a routing daemon outlives its supervisor.
    pub fn end_with_this_process(&self) {
        let script = r#"read end
            timeout 20 "$0" stop
            for process in /proc/[0-9]*; do
                ls -l "$process/fd" 2>/dev/null | grep -qF "> $TOKLAT_DIR/" && kill -9 "${process#/proc/}"
            done"#;
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&self.program).env("TOKLAT_DIR", self.dir());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A signal from the terminal ends the test, but must not end this process.
        #[allow(clippy::zombie_processes, reason = "it outlives this process")]
        let child = jail::parent_death::in_its_own_session(&mut command).spawn().unwrap();
        std::mem::forget(child.stdin);
    }

    /// Kills the supervisor, and nothing else.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Hands over the supervisor's process, which the caller ends.
    pub fn take_process(&mut self) -> Child {
        self.child.take().unwrap()
    }

    /// Ends the supervisor, and its data processes, by SIGTERM.
    pub fn terminate(&mut self) {
        let mut child = self.child.take().unwrap();
        rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(wait(&mut child, PATIENCE).is_some(), "it does not end: {}", self.log());
    }

    /// Tells the supervisor to stop, and waits for its end.
    pub fn stop(&mut self, how: &Value) {
        children::assert_no_zombie(self.pid());
        assert_eq!(self.ask("POST", "/v1/stop", how).0, 204);
        let status = wait(&mut self.child.take().unwrap(), PATIENCE).expect("it does not stop");
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// True if the daemon ends within this time.
    pub fn ends_within(&mut self, time: Duration) -> bool {
        self.child.as_mut().is_none_or(|child| wait(child, time).is_some())
    }

    /// The supervisor's process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    fn try_ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let stream = UnixStream::connect(self.dir().join("control.sock")).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        try_exchange(stream, method, path, "", body).ok()
    }

    /// Sends an API request. Returns the HTTP status and the JSON.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.try_ask(method, path, &body).expect("the daemon runs")
    }

    /// Reads something by the API, which must be there.
    pub fn get(&self, path: &str) -> Value {
        let (status, value) = self.ask("GET", path, &Value::Null);
        assert_eq!(status, 200, "{path}: {value}");
        value
    }

    /// Applies a topology, and removes what the previous one made. Returns the changes, such as
    /// `added vale0:p1`.
    pub fn apply(&self, net: &str) -> Vec<String> {
        let net: Value = toml::from_str(net).unwrap();
        let (status, value) = self.ask("PUT", "/v1/topology?prune=true", &net);
        assert_eq!(status, 200, "{value}");
        let changes = value["changes"].as_array().unwrap().iter();
        changes.map(|c| format!("{} {}", text(&c["action"]), text(&c["name"]))).collect()
    }

    /// The process id of a switch's data process.
    pub fn data_process(&self, switch: &str) -> i32 {
        self.get(&format!("/v1/switches/{switch}"))["pid"].as_i64().unwrap() as i32
    }

    /// The counters of a port of the first switch.
    pub fn counters(&self, port: &str) -> Value {
        let stats = self.get("/v1/stats");
        let ports = stats["switches"][0]["ports"].as_array().unwrap();
        let found = ports.iter().find(|p| p["name"] == port);
        found.unwrap_or_else(|| panic!("{port}: {stats}")).clone()
    }

    /// How long a switch may be without a data process, as README.md says: a second, or two where
    /// other programs compete for the processors.
    pub fn longest_gap() -> Duration {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap();
        let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Duration::from_secs(if load > cores as f64 { 2 } else { 1 })
    }

    /// Checks that a switch was never without a data process for longer, pauses left out. Returns
    /// how often that was.
    pub fn gaps_in_time(&self, switch: &str) -> u64 {
        let gaps = self.get(&format!("/v1/switches/{switch}"))["restart_gaps"].clone();
        let longest = Duration::from_millis(gaps["longest_ms"].as_u64().unwrap());
        assert!(longest <= Self::longest_gap(), "{gaps}: {}", self.log());
        gaps["count"].as_u64().unwrap()
    }

    /// Names and states of a switch's ports.
    pub fn ports(&self, switch: &str) -> Vec<(String, String)> {
        let ports = self.get(&format!("/v1/switches/{switch}/ports"));
        let ports = ports.as_array().unwrap().iter();
        ports.map(|p| (text(&p["name"]).to_owned(), text(&p["state"]).to_owned())).collect()
    }

    /// Opens a port with small rings.
    pub fn open(&self, name: &str) -> Result<Port, netring::OpenError> {
        small(name).directory(self.dir()).open()
    }
}

/// A port with small rings.
pub fn small(name: &str) -> Open {
    Open::new(name).slots(64).pages(Pages::Small)
}

impl Drop for Daemon {
    /// Ends all processes of the daemon, in bounded time whatever state they are in.
    fn drop(&mut self) {
        // Every test asserts that the supervisor has reaped its children.
        if let Some(child) = self.child.as_mut().filter(|_| !std::thread::panicking())
            && child.try_wait().is_ok_and(|ended| ended.is_none())
        {
            children::assert_no_zombie(child.id());
        }
        // A test that failed half way may have left data processes without their supervisor.
        let _ = self.try_ask("POST", "/v1/stop", "");
        if let Some(child) = &mut self.child
            && wait(child, Duration::from_secs(10)).is_none()
        {
            let _ = child.kill();
            let _ = child.wait();
        }
        let holders = processes_that_hold(self.dir.path());
        processes_with("TOKLAT_DIR", self.dir.path()).into_iter().chain(holders).for_each(|pid| {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        });
    }
}
