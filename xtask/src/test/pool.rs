//! A pool that runs test processes: up to three at a time, the next one while the cores are idle.
//!
//! Most tests wait for guests and daemons, some keep both cores busy. So the number that runs at a
//! time follows what `/proc/stat` says of the last second. At least one always runs: others may
//! keep the machine busy.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::tool;

/// Processes at a time, at most.
const MOST: usize = 3;
/// The share of time in which the cores must be idle before one more runs, and that below which one
/// less does.
const IDLE: (f64, f64) = (0.4, 0.1);
/// How often the cores are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often progress is printed where nobody looks at a terminal.
const SAY: Duration = Duration::from_secs(30);

/// What may run beside a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Anything.
    Ordinary,
    /// Anything but another one that boots virtual machines.
    Machine,
    /// Nothing: it measures.
    Alone,
}

/// A process to run.
#[derive(Debug)]
pub struct Unit {
    /// Its program, or its program and test; a time is kept under it.
    pub name: String,
    pub command: Command,
    pub class: Class,
}

impl Unit {
    pub const fn new(name: String, command: Command, class: Class) -> Self {
        Self { name, command, class }
    }
}

/// What a process did.
#[derive(Debug)]
pub struct Ended {
    pub name: String,
    pub status: ExitStatus,
    /// All that it printed.
    pub output: String,
    /// Seconds, and seconds of CPU time of it and the processes it waited for.
    pub took: [f64; 2],
}

/// Seconds, and seconds of CPU time, by names of units.
pub type Times = BTreeMap<String, [f64; 2]>;

/// A process that runs.
struct Running {
    name: String,
    class: Class,
    child: Child,
    output: PathBuf,
    since: Instant,
}

/// Runs all, those that took longest last time first, and hands over each that has ended. Returns
/// the share of time in which the cores were idle, and false if the time `limit` was over before
/// all had run.
pub fn run(
    mut waiting: Vec<Unit>,
    times: &Times,
    limit: Duration,
    mut ended: impl FnMut(Ended),
) -> Result<(f64, bool)> {
    let expected = |unit: &Unit| times.get(&unit.name).map_or_else(|| guess(unit.class), |t| t[0]);
    // Taken from the end. What must run alone comes last: until then the cores are shared.
    waiting.sort_by(|a, b| {
        let alone = |unit: &Unit| unit.class == Class::Alone;
        alone(b).cmp(&alone(a)).then(expected(a).total_cmp(&expected(b)))
    });
    let mut progress = Progress::new(&waiting, expected);
    let (begun, first) = (Instant::now(), Cores::now());
    let mut level = Level::new();
    let mut running: Vec<Running> = Vec::new();
    while !(waiting.is_empty() && running.is_empty()) {
        let out_of_time = begun.elapsed() > limit;
        if out_of_time {
            waiting.clear();
            running.iter().for_each(Running::end);
        }
        for at in (0..running.len()).rev() {
            if running[at].has_ended() {
                let done = running.swap_remove(at).collect()?;
                progress.ended(&done);
                ended(done);
            }
        }
        while let Some(at) = next(&waiting, &running, level.now()) {
            running.push(Running::start(waiting.remove(at))?);
        }
        if out_of_time && running.is_empty() {
            return Ok((first.idle_until(&Cores::now()), false));
        }
        progress.say(&running);
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((first.idle_until(&Cores::now()), true))
}

/// Seconds of a process of which no time is known.
const fn guess(class: Class) -> f64 {
    match class {
        Class::Ordinary => 1.0,
        Class::Alone => 10.0,
        Class::Machine => 30.0,
    }
}

/// The one to start next, if one may start beside those that run.
fn next(waiting: &[Unit], running: &[Running], level: usize) -> Option<usize> {
    if running.is_empty() {
        return waiting.len().checked_sub(1);
    }
    let classes = || running.iter().map(|other| other.class);
    if running.len() >= level || classes().any(|class| class == Class::Alone) {
        return None;
    }
    let machine = classes().any(|class| class == Class::Machine);
    waiting.iter().rposition(|unit| match unit.class {
        Class::Ordinary => true,
        Class::Machine => !machine,
        Class::Alone => false,
    })
}

impl Running {
    fn start(mut unit: Unit) -> Result<Self> {
        let number = std::process::id();
        let name: String =
            unit.name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let output = std::env::temp_dir().join(format!("toklat-test-{number}-{name}"));
        let file = File::create(&output).context("a test's output has no file")?;
        let command = unit.command.stdin(std::process::Stdio::null()).stdout(file.try_clone()?);
        let child = command.stderr(file).spawn();
        let child = child.with_context(|| format!("{} could not be started", unit.name))?;
        let (name, class, since) = (unit.name, unit.class, Instant::now());
        Ok(Self { name, class, child, output, since })
    }

    /// The fields of its `/proc/PID/stat` behind its name: the state comes first.
    fn stat(&self) -> Vec<String> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields).unwrap_or_default();
        fields.split_whitespace().map(str::to_owned).collect()
    }

    /// True if it has ended, and keeps its times until it is waited for.
    fn has_ended(&self) -> bool {
        self.stat().first().is_none_or(|state| state == "Z" || state == "X")
    }

    /// Ends it; `timeout` passes the signal on.
    fn end(&self) {
        let _ =
            tool::succeeds(&mut tool::command("kill", &["-TERM", &self.child.id().to_string()]));
    }

    fn collect(mut self) -> Result<Ended> {
        let fields = self.stat();
        // utime, stime, cutime, cstime (proc(5), 14 to 17), in hundredths of a second.
        let ticks = fields.iter().skip(11).take(4).filter_map(|field| field.parse::<f64>().ok());
        let took = [self.since.elapsed().as_secs_f64(), ticks.sum::<f64>() / 100.0];
        let status = self.child.wait()?;
        let output = std::fs::read(&self.output).unwrap_or_default();
        let _ = std::fs::remove_file(&self.output);
        let output = String::from_utf8_lossy(&output).into_owned();
        Ok(Ended { name: self.name, status, output, took })
    }
}

/// What the cores did since they were started, in ticks.
#[derive(Clone, Copy, Debug)]
struct Cores {
    idle: f64,
    all: f64,
}

impl Cores {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self::read(stat.lines().next().unwrap_or_default())
    }

    /// Reads `cpu user nice system idle iowait irq softirq steal ...`.
    fn read(line: &str) -> Self {
        let ticks: Vec<f64> =
            line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
        Self { idle: ticks.iter().skip(3).take(2).sum(), all: ticks.iter().sum() }
    }

    /// The share of the time until `later` in which they were idle.
    fn idle_until(self, later: &Self) -> f64 {
        let all = later.all - self.all;
        if all <= 0.0 { 0.0 } else { (later.idle - self.idle) / all }
    }
}

/// How many processes may run: follows the cores.
struct Level {
    looked: (Instant, Cores),
    level: usize,
}

impl Level {
    fn new() -> Self {
        Self { looked: (Instant::now(), Cores::now()), level: 1 }
    }

    fn now(&mut self) -> usize {
        if self.looked.0.elapsed() >= LOOK {
            let cores = Cores::now();
            self.level = after(self.level, self.looked.1.idle_until(&cores));
            self.looked = (Instant::now(), cores);
        }
        self.level
    }
}

/// The level after the cores were idle for this share of the time.
fn after(level: usize, idle: f64) -> usize {
    match idle {
        _ if idle > IDLE.0 => (level + 1).min(MOST),
        _ if idle < IDLE.1 => (level - 1).max(1),
        _ => level,
    }
}

/// `212 of 1940, 6 min left`.
struct Progress {
    all: usize,
    done: usize,
    expected: BTreeMap<String, f64>,
    left: f64,
    begun: Instant,
    said: Instant,
    terminal: bool,
}

impl Progress {
    fn new(units: &[Unit], expected: impl Fn(&Unit) -> f64) -> Self {
        let expected: BTreeMap<_, _> =
            units.iter().map(|unit| (unit.name.clone(), expected(unit))).collect();
        Self {
            all: units.len(),
            done: 0,
            left: expected.values().sum(),
            expected,
            begun: Instant::now(),
            said: Instant::now(),
            terminal: std::io::stdout().is_terminal(),
        }
    }

    fn ended(&mut self, done: &Ended) {
        self.done += 1;
        self.left -= self.expected.get(&done.name).copied().unwrap_or(0.0);
    }

    fn say(&mut self, running: &[Running]) {
        let often = if self.terminal { Duration::from_secs(1) } else { SAY };
        if self.said.elapsed() < often {
            return;
        }
        self.said = Instant::now();
        // What was expected of the past is scaled to what it took.
        let past = self.expected.values().sum::<f64>() - self.left;
        let pace = if past > 5.0 { self.begun.elapsed().as_secs_f64() / past } else { 1.0 };
        let minutes = (self.left.max(0.0) * pace / 60.0).ceil();
        let names: Vec<_> = running.iter().map(|unit| unit.name.as_str()).collect();
        let line =
            format!("{} of {}, {minutes} min left: {}", self.done, self.all, names.join(", "));
        if self.terminal {
            let line: String = line.chars().take(100).collect();
            print!("\r{line:<100}\r");
            let _ = std::io::stdout().flush();
        } else {
            println!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str, class: Class) -> Unit {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Unit::new(name.to_owned(), command, class)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn all_run_and_say_what_they_did() {
        let units = vec![
            shell("good", "echo one; echo two >&2", Class::Ordinary),
            shell("bad", "exit 3", Class::Machine),
        ];
        let mut ended = Vec::new();
        let (_, all) = run(units, &Times::new(), LONG, |unit| ended.push(unit)).unwrap();
        ended.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(all);
        assert_eq!((ended[0].name.as_str(), ended[0].status.code()), ("bad", Some(3)));
        assert_eq!(ended[1].output, "one\ntwo\n");
    }

    #[test]
    fn the_cpu_time_of_a_process_and_its_children_is_kept() {
        let loops = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'";
        let units = vec![
            shell("busy", loops, Class::Ordinary),
            shell("idle", "sleep 0.3", Class::Ordinary),
        ];
        let mut took = Times::new();
        run(units, &Times::new(), LONG, |unit| {
            took.insert(unit.name, unit.took);
        })
        .unwrap();
        assert!(took["busy"][1] >= 0.05, "{took:?}");
        assert!(took["idle"][0] >= 0.3 && took["idle"][1] <= 0.05, "{took:?}");
    }

    #[test]
    fn a_process_that_keeps_the_output_open_delays_nothing() {
        let units = vec![shell("leaves", "sleep 20 & echo one", Class::Ordinary)];
        let since = Instant::now();
        let mut output = String::new();
        run(units, &Times::new(), LONG, |unit| output = unit.output).unwrap();
        assert_eq!(output, "one\n");
        assert!(since.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn when_the_time_is_over_the_rest_does_not_run() {
        let units =
            vec![shell("a", "exec sleep 60", Class::Alone), shell("b", "true", Class::Alone)];
        let mut names = Vec::new();
        let limit = Duration::from_millis(200);
        let times = Times::from([("a".to_owned(), [60.0, 0.0])]);
        let (_, all) = run(units, &times, limit, |unit| names.push(unit.name)).unwrap();
        assert_eq!((all, names), (false, vec!["a".to_owned()]));
    }

    fn running(class: Class) -> Running {
        Running::start(shell("x", "true", class)).unwrap()
    }

    #[test]
    fn machines_run_one_at_a_time_and_what_measures_runs_alone() {
        let [machine, alone, other] =
            [Class::Machine, Class::Alone, Class::Ordinary].map(|class| shell("x", "true", class));
        let waiting = [alone, other, machine];
        assert_eq!(next(&waiting, &[], 1), Some(2));
        assert_eq!(next(&waiting, &[running(Class::Machine)], 3), Some(1));
        assert_eq!(next(&waiting, &[running(Class::Ordinary)], 3), Some(2));
        assert_eq!(next(&waiting, &[running(Class::Ordinary)], 1), None);
        assert_eq!(next(&waiting, &[running(Class::Alone)], 3), None);
        assert_eq!(next(&waiting[..1], &[running(Class::Ordinary)], 3), None);
    }

    #[test]
    fn the_level_follows_the_cores_and_never_falls_below_one() {
        assert_eq!([after(1, 0.9), after(3, 0.9), after(2, 0.3)], [2, 3, 2]);
        assert_eq!([after(3, 0.0), after(1, 0.0)], [2, 1]);
        let before = Cores::read("cpu  10 0 10 70 10 0 0 0 0 0");
        let later = Cores::read("cpu  60 0 10 100 30 0 0 0 0 0");
        assert!((before.idle_until(&later) - 0.5).abs() < 1e-9);
    }
}
