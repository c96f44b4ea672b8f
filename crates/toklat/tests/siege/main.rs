//! Objective: whatever attackers do, honest ports lose no frame and keep their rate, the worker's
//! turns stay short, and requests of the operator are answered as fast as this machine answers any.
//!
//! Steps: an honest pair talks at an eighth of what it could, through a worker that is alone on one
//! CPU; everything else shares the other. There the daemon and the pair have a higher priority, as
//! services have beside users (systemd's slices): how users share a CPU is no property of the
//! switch. First there is no attack (the control), then attackers of all
//! kinds at once, each as a user of its own, then those whose first blow cannot be foreseen. Frames
//! lost, the times of turns and of requests are printed beside the control's.
//! `TOKLAT_SIEGE_SECONDS` (default 60) is the whole time, `TOKLAT_SIEGE_ONLY` a part of the
//! attackers' names; `cargo xtask siege` runs it on optimised code.

mod acts;
mod attackers;
mod blows;
mod guests;
mod honest;
mod operator;
mod processes;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use port::DropReason;
use port::stats::{TurnTime, percentile};

use self::attackers::{ATTACKERS, Attacker, SLOW_FILES, When};
use self::honest::Report;
use self::operator::Requests;
use harness::strangers::SlowFiles;
use harness::tcp::OverTcp;
use harness::users::as_user;
use harness::{Daemon, skip};
use toklat::api::{PortStats, Stats, SwitchStats};

/// How long senders wait for the honest receiver, in milliseconds: ten times the default, because
/// 25 attackers keep its process, too, from the two CPUs. Once it got none of them for 200 ms.
const STALL_MS: u32 = 2000;
const NAME: &str = "honest_ports_lose_nothing_under_siege";
/// Says which part a process plays; the daemon's directory stands in `TOKLAT_DIR`.
const PART: &str = "TOKLAT_SIEGE_PART";
/// What a part needs to know besides.
const OPTIONS: &str = "TOKLAT_SIEGE_OPTIONS";
/// Says at which address the daemon serves its API over TCP.
const TCP: &str = "TOKLAT_SIEGE_TCP";
/// The group that may open ports.
const GROUP: (&str, u32) = ("nogroup", 65534);
/// The user of the honest pair; attackers have the user numbers after it.
const HONEST: u32 = 4000;
/// The CPU on which the worker runs; everything else runs on CPU 0.
const WORKER_CPU: usize = 1;
/// How much longer a turn may be under attack, at the 99.99th percentile: on a machine that does
/// nothing else, which `TOKLAT_SIEGE_ALONE` says, and beside whatever else runs.
const SLACK: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];
/// The honest pair's rate, as a part of what the machine does alone.
const PART_OF_PEAK: u64 = 8;
/// The priority of the daemon and of the honest pair.
const NICE: i32 = -10;
/// How much of its rate the honest pair must reach, in percent.
const GOODPUT: u64 = 95;

/// The numbers of one phase.
struct Phase {
    what: &'static str,
    report: Report,
    turns: (Vec<TurnTime>, Vec<TurnTime>),
    /// Frames of the honest pair that were dropped, by port and reason.
    drops: Vec<String>,
    requests: Requests,
    /// How much longer than alone on its CPU the daemon took for what it did.
    stretch: f64,
    steal: f64,
}

/// The daemon that is besieged, and what attackers need besides.
struct Besieged {
    tcp: OverTcp,
    probe: Child,
}

/// The attackers of a phase.
struct Attack {
    attackers: Vec<(&'static str, Child)>,
    /// The file system that some have files of, and whether it was asked to close one.
    files: Option<SlowFiles>,
    closed: bool,
}

impl Phase {
    fn turn(&self, share: f64) -> Duration {
        let (before, after) = &self.turns;
        Duration::from_nanos(percentile(before, after, share).unwrap_or(0))
    }

    /// Turns that took longer than this.
    fn turns_over(&self, time: Duration) -> u64 {
        let (before, after) = &self.turns;
        let of = |turns: &[TurnTime]| -> u64 {
            let long = turns.iter().filter(|turn| u128::from(turn.under_ns) > time.as_nanos());
            long.map(|turn| turn.turns).sum()
        };
        of(after).saturating_sub(of(before))
    }

    /// What is wrong with it, beside the control. `slack` is for turns.
    fn wrong(&self, control: &Self, rate: u64, slack: Duration) -> Option<String> {
        let (most, is) = (control.turn(0.9999) + slack, self.turn(0.9999));
        if is > most {
            return Some(format!("turns take {is:?} under attack, {most:?} at most"));
        }
        let (least, is) = (rate.min(control.report.rate()) * GOODPUT / 100, self.report.rate());
        if is < least {
            return Some(format!("{is} frames a second, {least} at least"));
        }
        self.requests.wrong(&control.requests, self.stretch)
    }

    fn print(&self) {
        let Report { sent, lost, .. } = self.report;
        let Requests { control, opened, probe } = &self.requests;
        eprintln!(
            "{:<18} {sent:>9} frames, {}/s, {lost} lost {:?}; turns: 50 % {:?}, 99.99 % {:?}, \
             longest {:?}; ms (50 %, 99 %, longest): requests {control}, probe {probe}, open \
             {opened}; stretch {:.1}, steal {:.1} %",
            self.what,
            self.report.rate(),
            self.drops,
            self.turn(0.5),
            self.turn(0.9999),
            self.turn(1.0),
            self.stretch,
            self.steal
        );
    }
}

#[test]
fn honest_ports_lose_nothing_under_siege() {
    if let Ok(part) = std::env::var(PART) {
        return play(&part);
    }
    if let Some(why) = obstacle() {
        return skip(NAME, why);
    }
    let seconds = std::env::var("TOKLAT_SIEGE_SECONDS").map_or(60, |s| s.parse().unwrap());
    pin(0);
    let besieged = besieged();
    let daemon = &besieged.tcp.daemon;
    let whole = Duration::from_secs(seconds);
    let peak = phase(&besieged, "capacity", Duration::from_secs(2), 0, None);
    let rate = peak.report.rate() / PART_OF_PEAK;
    let slack = SLACK[usize::from(std::env::var_os("TOKLAT_SIEGE_ALONE").is_none())];
    let pair = || {
        let control = phase(&besieged, "control", whole / 5, rate, None);
        let always = phase(&besieged, "all attacks", whole * 3 / 5, rate, Some(When::Always));
        let wrong = always.wrong(&control, rate, slack);
        ([control, always], wrong)
    };
    let (first, mut wrong) = pair();
    let mut phases = Vec::from_iter([peak].into_iter().chain(first));
    if wrong.is_some() {
        eprintln!("measured again: {wrong:?}");
        // An attack has its effect each time; what else the machine does has not.
        let (second, still) = pair();
        phases.extend(second);
        wrong = still;
    }
    let longest = phases.iter().map(|phase| phase.turn(1.0)).max().unwrap() + slack;
    phases.push(phase(&besieged, "unforeseen", whole / 5, rate, Some(When::Unforeseen)));
    phases.iter().for_each(|phase| phase.print());
    for phase in &phases[1..] {
        if phase.report.lost > 0 {
            eprintln!("{} {}", daemon.get("/v1/stats"), daemon.get("/v1/switches/vale0"));
        }
        assert_eq!(phase.report.lost, 0, "{}: lost frames; {}", phase.what, tail(daemon));
        assert!(phase.report.sent > 0, "{}: nothing was sent; {}", phase.what, tail(daemon));
    }
    assert!(wrong.is_none(), "{wrong:?}; {}", tail(daemon));
    // What cannot be foreseen happens once per user.
    let users = ATTACKERS.iter().filter(|attacker| attacker.when == When::Unforeseen).count();
    let long = phases.last().unwrap().turns_over(longest);
    assert!(long <= users as u64, "{long} turns over {longest:?} by {users} users");
    let switch = daemon.get("/v1/switches/vale0");
    assert_eq!((&switch["state"], &switch["restarts"]), (&"running".into(), &0.into()));
    besieged.end();
}

/// Does something with this priority. What it starts has that, too.
fn at_priority<T>(nice: i32, what: impl FnOnce() -> T) -> T {
    rustix::process::setpriority_process(None, nice).unwrap();
    let done = what();
    rustix::process::setpriority_process(None, 0).unwrap();
    done
}

/// Returns the reason why there can be no siege here, if there is one.
fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may have attackers of other users");
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    (cpus < 2).then_some("there is one CPU, the worker needs one of its own")
}

/// A daemon whose switch has the honest ports and those of the attackers.
fn besieged() -> Besieged {
    let tcp = at_priority(NICE, || OverTcp::start(&["--group", GROUP.0]));
    let daemon = &tcp.daemon;
    std::fs::set_permissions(daemon.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut net = format!(
        "[switch.vale0]\nworkers = [{{ cpu = {WORKER_CPU} }}]\nstall_timeout_ms = {STALL_MS}\n\
         [switch.vale0.port.a]\nowner = {HONEST}\n\
         [switch.vale0.port.b]\nowner = {HONEST}\nlossless = true\n"
    );
    for (attacker, uid) in ATTACKERS.iter().zip(HONEST + 1..) {
        let own = daemon.dir().join(format!("user{uid}"));
        std::fs::create_dir(&own).unwrap();
        std::os::unix::fs::chown(&own, Some(uid), None).unwrap();
        net +=
            &attacker.ports.replace("UID", &uid.to_string()).replace("OWN", own.to_str().unwrap());
    }
    at_priority(NICE, || daemon.apply(&net));
    let probe = start(&tcp, "probe", 0, &[]);
    while !daemon.dir().join("probe.sock").exists() {
        pause();
    }
    Besieged { tcp, probe }
}

impl Besieged {
    fn end(mut self) {
        self.probe.kill().unwrap();
        self.probe.wait().unwrap();
    }

    /// Starts all attackers of a phase.
    fn attack(&self, when: Option<When>) -> Attack {
        let only = std::env::var("TOKLAT_SIEGE_ONLY").unwrap_or_default();
        let wanted = ATTACKERS
            .iter()
            .zip(HONEST + 1..)
            .filter(|(attacker, _)| when == Some(attacker.when) && attacker.name.contains(&only));
        let (mut files, mut attackers) = (None, Vec::new());
        for (Attacker { name, .. }, uid) in wanted {
            let mut options = Vec::new();
            if *name == SLOW_FILES {
                // This process has no such file itself: what it starts would wait for the file.
                files = SlowFiles::mount(NAME);
                options.extend(files.iter().map(|files| files.path().display().to_string()));
            }
            attackers.push((*name, start(&self.tcp, name, uid, &options)));
        }
        Attack { attackers, files, closed: false }
    }

    /// Asks as the operator, as the honest user, and the probe.
    fn ask(&self, requests: &mut Requests, what: &str) -> SwitchStats {
        let daemon = &self.tcp.daemon;
        let stats = requests.control.note(|| daemon.get("/v1/stats?switch=vale0"));
        let null = serde_json::Value::Null;
        let status = requests.control.note(|| self.tcp.ask("GET", "/v1/status", &null).0);
        assert_eq!(status, 200, "{what}: a client with the token");
        requests.probe.note(|| operator::ask_probe(daemon.dir()));
        requests.opened.note(|| as_user(HONEST, || open_soon(daemon, what)));
        of_switch(stats)
    }
}

impl Attack {
    /// Ends the attackers. None has ended before.
    fn end(mut self) {
        // A process that has files of this system ends when it answers.
        self.files.iter().for_each(SlowFiles::answer);
        assert!(self.closed || self.files.is_none(), "no close of a slow file was waited for");
        for (name, attacker) in &mut self.attackers {
            let ended = attacker.try_wait().unwrap();
            assert!(ended.is_none(), "attacker {name} gave up: {ended:?}");
            attacker.kill().unwrap();
            attacker.wait().unwrap();
        }
    }

    /// Has slow files stay slow: they answer once this test does not go on.
    fn go_on(&mut self) {
        if let Some(files) = &self.files {
            files.hold();
            self.closed |= files.closes() > 0;
        }
    }

    fn has(&self, name: &str) -> bool {
        self.attackers.iter().any(|(its, _)| *its == name)
    }
}

/// Opens a port for the honest user, who tries again if the daemon is busy with closing what this
/// user had before: that shares the CPU with the attackers, too.
fn open_soon(daemon: &Daemon, what: &str) {
    let began = Instant::now();
    while let Err(error) = daemon.open("vale0:visitor") {
        let error = format!("{error:?}");
        assert!(began.elapsed() < harness::PATIENCE, "{what}: {error}; {}", tail(daemon));
        pause();
    }
}

/// The counters of the switch.
fn of_switch(stats: serde_json::Value) -> SwitchStats {
    let stats: Stats = serde_json::from_value(stats).unwrap();
    stats.switches.into_iter().find(|switch| switch.name == "vale0").unwrap()
}

/// The honest pair sends `rate` frames a second (0: as fast as it can) while attackers attack.
fn phase(
    besieged: &Besieged,
    what: &'static str,
    time: Duration,
    rate: u64,
    attacks: Option<When>,
) -> Phase {
    let tcp = &besieged.tcp;
    let daemon = &tcp.daemon;
    let mut attack = besieged.attack(attacks);
    let turns = |stats: &SwitchStats| stats.workers[0].turns.clone();
    let before = turns(&of_switch(daemon.get("/v1/stats?switch=vale0")));
    let (stolen, scheduled) = (steal(), scheduled(daemon));
    let options = [time.as_millis() as u64, rate].map(|n| n.to_string());
    let mut honest = start(tcp, "honest", HONEST, &options);
    let pid = rustix::process::Pid::from_child(&honest);
    rustix::process::setpriority_process(Some(pid), NICE).unwrap();
    // The last values that were seen of the worker's turns and of the pair's dropped frames.
    let (mut after, mut drops, mut requests) = (Vec::new(), Vec::new(), Requests::default());
    let mut forged = false;
    while honest.try_wait().unwrap().is_none() {
        let stats = besieged.ask(&mut requests, what);
        attack.go_on();
        let pair: Vec<_> = stats.ports.iter().filter(|p| ["a", "b"].contains(&&*p.name)).collect();
        if pair.len() == 2 {
            drops = pair.into_iter().flat_map(dropped).collect();
        }
        after = turns(&stats);
        forged |= stops_forger(&stats);
        // The operator does not attack: it pauses.
        (0..10).for_each(|_| pause());
    }
    let honest = honest.wait_with_output().unwrap();
    let steal = (steal() - stolen) / time.as_secs_f64();
    let [ran, waited] = [0, 1].map(|n| self::scheduled(daemon)[n] - scheduled[n]);
    let stretch = 1.0 + waited / ran.max(1.0);
    let forges = attack.has(attackers::FORGER);
    attack.end();
    let said = String::from_utf8_lossy(&honest.stdout).into_owned();
    let report = Report::read(&said).unwrap_or_else(|| panic!("{what}: {said}; {}", tail(daemon)));
    assert!(forged || !forges, "{what}: the forger was not seen");
    Phase { what, report, turns: (before, after), drops, requests, stretch, steal }
}

/// True if the guard has dropped frames of the attacker that forges addresses. All but those of the
/// batch in flight are dropped.
fn stops_forger(stats: &SwitchStats) -> bool {
    let Some(port) = stats.ports.iter().find(|port| port.name == "forger") else { return false };
    let counters = &port.counters;
    let dropped = counters.in_drops.get(&DropReason::ArpSpoof).copied().unwrap_or(0);
    assert!(counters.in_frames <= dropped + 64, "forged frames passed: {counters:?}");
    dropped > 0
}

/// Returns what a port dropped, such as `a in no_room 7`.
fn dropped(port: &PortStats) -> Vec<String> {
    let drops = [("in", &port.counters.in_drops), ("out", &port.counters.out_drops)];
    let each = drops.into_iter().flat_map(|(way, drops)| drops.iter().map(move |drop| (way, drop)));
    each.map(|(way, (reason, n))| format!("{} {way} {reason:?} {n}", port.name)).collect()
}

/// Starts a process of this program, as another user.
fn start(tcp: &OverTcp, part: &str, uid: u32, options: &[String]) -> Child {
    let mut command = again(part);
    command.env(TCP, tcp.address.to_string());
    command.env("TOKLAT_DIR", tcp.daemon.dir()).env(OPTIONS, options.join(" "));
    command.uid(uid).gid(GROUP.1).current_dir("/");
    if part == "honest" {
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    }
    command.spawn().unwrap()
}

/// The command of a process of this program that plays a part. Its output is dropped.
fn again(part: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", NAME, "--nocapture"]).env(PART, part);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Plays one part, in a process of its own.
fn play(part: &str) {
    match part {
        "honest" => honest::run_honest(),
        "probe" => operator::serve(),
        attacker => {
            let attacker = ATTACKERS.iter().find(|known| known.name == attacker).unwrap();
            attacker.act.play();
        }
    }
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// How long the daemon's thread ran so far, and how long it waited for its CPU, in nanoseconds.
fn scheduled(daemon: &Daemon) -> [f64; 2] {
    let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", daemon.pid()));
    let numbers = stat.unwrap_or_default();
    let mut numbers = numbers.split_whitespace().map(|number| number.parse().unwrap());
    [(); 2].map(|()| numbers.next().unwrap_or(0.0))
}

/// Returns the CPU time that the hypervisor has taken from all our CPUs so far, in hundredths of a
/// second.
fn steal() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    stat.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0.0)
}

/// Returns the end of the daemon's log, after all that it contains about the honest user.
fn tail(daemon: &Daemon) -> String {
    let log = daemon.log();
    let honest = [HONEST.to_string(), "vale0:a".into(), "vale0:b".into()];
    let matters = |line: &&str| {
        line.contains("data process") || honest.iter().any(|about| line.contains(about))
    };
    let (told, lines): (Vec<_>, Vec<_>) = log.lines().partition(matters);
    [&told[..], &lines[lines.len().saturating_sub(30)..]].concat().join("\n")
}

/// The daemon's directory, in a part's process.
fn directory() -> std::path::PathBuf {
    std::env::var_os("TOKLAT_DIR").unwrap().into()
}

/// Waits a moment between two attacks.
fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

/// Waits between two attacks each of which costs this CPU much.
fn rest() {
    (0..20).for_each(|_| pause());
}

/// True until the time of this part is over.
fn until(end: Instant) -> bool {
    Instant::now() < end
}
