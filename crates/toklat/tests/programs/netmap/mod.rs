//! netmap's interface, used by programs in C that know nothing of toklat: `toklat run -- PROGRAM`.
//!
//! The programs are in `tests/programs/netmap`, written from the interface's documentation.

mod interfaces;
mod strangers;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use harness::{Daemon, PATIENCE, kill_process, library, skip, wait};
use rustix::process::{Pid, Signal};

/// A program of `tests/programs/netmap`, compiled with these options.
fn compile(name: &str, directory: &Path, options: &[&str]) -> PathBuf {
    try_to_compile(name, directory, options).expect("it compiles")
}

/// As [`compile`]; `None` if the compiler does not know an option.
fn try_to_compile(name: &str, directory: &Path, options: &[&str]) -> Option<PathBuf> {
    let program = directory.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-w", "-pthread", "-o"]).arg(&program).args(options);
    let built = cc.args(sources(name)).status().expect("a C compiler, cc");
    built.success().then_some(program)
}

/// The C files of a program: one file, or all files of its folder.
fn sources(name: &str) -> Vec<PathBuf> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/netmap").join(name);
    let Ok(folder) = place.read_dir() else { return vec![place.with_extension("c")] };
    let files = folder.map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|end| end == "c")).collect()
}

/// A daemon, and programs that run on it.
struct Machine {
    daemon: Daemon,
    programs: tempfile::TempDir,
}

impl Machine {
    fn start() -> Self {
        Self { daemon: Daemon::start(), programs: tempfile::tempdir().unwrap() }
    }

    /// `toklat run` with a program and its arguments.
    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        self.command_with(&[], program, arguments)
    }

    fn command_with(&self, options: &[&str], program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
        command.env("TOKLAT_DIR", self.daemon.dir()).env("TOKLAT_PRELOAD", library());
        command.arg("run").args(options).arg("--").arg(program).args(arguments);
        command
    }

    /// Runs a program until it ends, or until it has taken too long.
    fn run(&self, name: &str, arguments: &[&str]) -> Output {
        let program = compile(name, self.programs.path(), &[]);
        let mut command = self.command(&program, arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if wait(&mut child, PATIENCE).is_none() {
            child.kill().unwrap();
        }
        child.wait_with_output().unwrap()
    }

    /// Runs a program until its end, which must be a good one.
    fn good(&self, name: &str, arguments: &[&str]) {
        let output = self.run(name, arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}\n{}", self.daemon.log());
    }

    /// Starts a program, and waits for its first line.
    fn start_program(&self, name: &str, arguments: &[&str]) -> Running {
        self.start_program_with(&[], name, arguments)
    }

    fn start_program_with(&self, options: &[&str], name: &str, arguments: &[&str]) -> Running {
        let program = compile(name, self.programs.path(), &[]);
        let mut child = self
            .command_with(options, &program, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut running = Running { child, lines };
        assert_eq!(running.line(), "ready");
        running
    }
}

/// A program that runs.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn ends_well(&mut self) {
        drop(self.child.stdin.take());
        let status = wait(&mut self.child, PATIENCE).expect("it does not end");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One test for each rule of `tests/programs/netmap/rules`.
macro_rules! rules {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            Machine::start().good("rules", &[stringify!($name)]);
        }
    )*

    #[test]
    fn every_rule_has_a_test() {
        let said = Machine::start().run("rules", &[]).stdout;
        let mut rules: Vec<_> = std::str::from_utf8(&said).unwrap().lines().collect();
        let mut tests = vec![$(stringify!($name)),*];
        rules.sort_unstable();
        tests.sort_unstable();
        assert_eq!(rules, tests);
    }};
}

rules! {
    unbound lowest_number layout errors options poll_sends wakes selects epolls exclusive one_ring_each
    bad_cursors fragments extra_buffers closed shared_region information legacy pipes pipe_zero_copy persistent
    monitors copies passing executed close_all threads shared_ring
    csb kloop_sleeps kloop_events extmem cancelled offsets port_headers sets_in_sets edges
    watchers pipe_monitors long_frames joined sink
}

#[test]
fn two_ports_of_one_process_exchange_frames() {
    Machine::start().good("pair", &[]);
}

#[test]
fn two_processes_exchange_frames_through_a_pipe_and_none_is_lost() {
    let machine = Machine::start();
    let mut receiver = machine.start_program("traffic", &["receive", "p}1", "300000"]);
    machine.good("traffic", &["send", "p{1", "300000", "60", "64"]);
    let said = receiver.line();
    // One frame from the receiver tells a switch the receiver's address; a pipe needs none.
    assert!(said.starts_with("received 300000:"), "{said}");
    receiver.ends_well();
}

/// Runs a program with threads and processes under a detector, which must find nothing; and with a
/// fault, for which the detector must end with `found`.
fn detect(machine: &Machine, program: &Path, words: &[&str], (fault, found): (&str, i32)) {
    let run = |arguments: &[&str]| {
        let arguments = [words, &[program.to_str().unwrap()], arguments].concat();
        let mut command = machine.command(Path::new(arguments[0]), &arguments[1..]);
        command.output().unwrap()
    };
    let good = run(&[]);
    assert!(good.status.success(), "{good:?}");
    let bad = run(&[fault]);
    assert_eq!(bad.status.code(), Some(found), "{fault} is not found: {bad:?}");
}

/// Objective: ThreadSanitizer works under the library, whose calls it and the library intercept
/// both; and it finds no race in threads that share ports, pipes and rings.
#[test]
fn thread_sanitizer_finds_no_race_in_threads_that_share_ports() {
    let machine = Machine::start();
    let options = ["-fsanitize=thread", "-static-libtsan"];
    let Some(program) = try_to_compile("many", machine.programs.path(), &options) else {
        let name = "thread_sanitizer_finds_no_race_in_threads_that_share_ports";
        return skip(name, "the C compiler has no ThreadSanitizer; as root: apt-get install gcc");
    };
    // Its shadow memory needs the addresses that random ones may take.
    detect(&machine, &program, &["setarch", "-R"], ("race", 66));
}

/// Objective: valgrind finds no access to memory that is not the program's, in threads and
/// processes that share ports, pipes and rings: neither theirs nor the library's.
#[test]
fn valgrind_finds_no_wrong_access_in_threads_that_share_ports() {
    let machine = Machine::start();
    if Command::new("valgrind").arg("--version").output().is_err() {
        let name = "valgrind_finds_no_wrong_access_in_threads_that_share_ports";
        return skip(name, "valgrind is missing; as root: apt-get install valgrind");
    }
    let program = compile("many", machine.programs.path(), &[]);
    // Twice quiet: system calls that it does not know are no errors.
    let end = ["--error-exitcode=66", "--exit-on-first-error=yes"];
    let valgrind = [&["valgrind", "-q", "-q", "--fair-sched=yes"][..], &end].concat();
    detect(&machine, &program, &valgrind, ("memory", 66));
}

#[test]
fn programs_forward_on_a_trusted_switch_while_its_data_process_stands_still() {
    let machine = Machine::start();
    let body = serde_json::json!({"name": "vale9", "trusted": true});
    let (status, answer) = machine.daemon.ask("POST", "/v1/switches", &body);
    assert!(status < 300, "{answer}");
    let mut receiver = machine.start_program("stay", &["vale9:b"]);
    let mut sender = machine.start_program("stay", &["vale9:a", "send"]);
    receiver.line().parse::<u32>().unwrap();
    let data_process = Pid::from_raw(machine.daemon.data_process("vale9")).unwrap();
    rustix::process::kill_process(data_process, Signal::STOP).unwrap();
    for (port, counter) in [("a", "in_frames"), ("b", "out_frames")] {
        let count = || machine.daemon.counters(port)[counter].as_u64().unwrap();
        let before = count();
        harness::wait_until("frames while it stands still", || {
            // Its pipe would fill, and it with it.
            receiver.line();
            count() > before
        });
    }
    rustix::process::kill_process(data_process, Signal::CONT).unwrap();
    sender.kill();
    receiver.kill();
}

#[test]
fn a_program_that_is_killed_frees_its_port_and_another_goes_on() {
    let mut machine = Machine::start();
    let mut receiver = machine.start_program("stay", &["vale0:b"]);
    for _ in 0..5 {
        let mut sender = machine.start_program("stay", &["vale0:a", "send"]);
        // Flooded until the receiver sends, which it does not.
        receiver.line().parse::<u32>().unwrap();
        sender.kill();
    }
    machine.daemon.wait_for("the sender's port to go", |daemon| {
        daemon.ports("vale0").iter().all(|(name, _)| name != "a")
    });
    receiver.kill();
    machine.daemon.wait_for("the switch to go", |daemon| {
        daemon.get("/v1/switches").as_array().is_some_and(Vec::is_empty)
    });
}

#[test]
fn a_program_goes_on_with_another_data_process() {
    let machine = Machine::start();
    let mut receiver = machine.start_program("stay", &["vale0:b"]);
    let _sender = machine.start_program("stay", &["vale0:a", "send"]);
    for _ in 0..3 {
        let before: u32 = receiver.line().parse().unwrap();
        kill_process(machine.daemon.data_process("vale0"));
        // Frames in flight may be lost.
        while receiver.line().parse::<u32>().unwrap() < before + 100_000 {}
    }
}

#[test]
fn without_its_daemon_a_port_is_gone_and_no_call_hangs() {
    let mut machine = Machine::start();
    let mut waiting = machine.start_program("stay", &["vale0:b"]);
    machine.daemon.kill();
    assert_eq!(waiting.line(), "gone");
    // The port's name is free, though the program has not closed its descriptor.
    machine.daemon.start_again();
    machine.good("pair", &[]);
    waiting.ends_well();
}

#[test]
fn toklat_clients_and_netmap_programs_meet_on_a_switch() {
    let machine = Machine::start();
    let mut receiver = machine.start_program("stay", &["vale0:b"]);
    let mut port = machine.daemon.open("vale0:a").unwrap();
    let mut frame = [0xff_u8; 60];
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[14..18].copy_from_slice(&4711_u32.to_le_bytes());
    assert!(port.send(1).push(&frame));
    port.flush().unwrap();
    assert_eq!(receiver.line(), "4711");
}

#[test]
fn lost_frames_of_a_program_are_warned_of_with_their_reasons() {
    let mut machine = Machine::start();
    let slow = machine.start_program("stay", &["vale0:b"]);
    let pid = Pid::from_child(&slow.child);
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let sender = machine.start_program("stay", &["vale0:a", "send"]);
    machine.daemon.wait_for("frames to be lost", |daemon| {
        daemon.counters("b")["out_drops"]["full"].as_u64().unwrap_or(0) > 0
    });
    drop(slow);
    machine.daemon.wait_for("a warning", |daemon| {
        let log = daemon.log();
        let warned = log.lines().find(|line| line.contains("frames of a netmap port were lost"));
        warned.is_some_and(|line| {
            line.contains(" WARN ") && line.contains("\"b\"") && line.contains(" full")
        })
    });
    drop(sender);
}

/// Returns the message of `toklat run` about a program that it refuses to run.
fn refusal(machine: &Machine, program: &Path) -> String {
    let output = machine.command(program, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn programs_that_no_library_can_be_loaded_into_are_refused() {
    let machine = Machine::start();
    let directory = machine.programs.path();
    let fixed = compile("pair", directory, &["-static"]);
    assert!(refusal(&machine, &fixed).contains("linked statically"));
    let none = refusal(&machine, &directory.join("none"));
    assert!(none.contains("is not a program"), "{none}");
    if rustix::process::geteuid().is_root() {
        let privileged = compile("pair", directory, &[]);
        std::os::unix::fs::chown(&privileged, Some(65534), None).unwrap();
        let mode = std::fs::Permissions::from_mode(0o4755);
        std::fs::set_permissions(&privileged, mode).unwrap();
        assert!(refusal(&machine, &privileged).contains("setuid"));
    }
}

#[test]
fn without_a_daemon_nothing_is_run() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
    command.env("TOKLAT_DIR", directory.path()).args(["run", "--", "true"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}
