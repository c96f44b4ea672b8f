//! Objective: whatever attackers do, honest ports lose no frame, and the worker's turns stay short.
//!
//! Steps: an honest pair talks at half of what it could, through a worker that is alone on one CPU;
//! everything else shares the other. First nobody attacks (the control), then attackers of all
//! kinds at once, each as a user of its own, then those whose first blow cannot be foreseen. Frames
//! lost and the times of turns are printed beside the control's. `TOKLAT_SIEGE_SECONDS` (default
//! 60) is the whole time, `TOKLAT_SIEGE_ONLY` a part of the attackers' names; `cargo xtask siege`
//! runs it on optimised code.

mod attackers;
mod honest;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use port::DropReason;
use port::stats::{TurnTime, percentile};

use self::attackers::ATTACKERS;
use self::honest::Report;
use harness::tcp::OverTcp;
use harness::{Daemon, skip};
use toklat::api::{PortStats, Stats, SwitchStats};

const NAME: &str = "honest_ports_lose_nothing_under_siege";
/// Says which part a process plays; the daemon's directory stands in `TOKLAT_DIR`.
const PART: &str = "TOKLAT_SIEGE_PART";
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

/// The phase in which an attacker attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In the long phase: these attacks may not lengthen a turn.
    Always,
    /// In the last phase: the first attack cannot be predicted, and is charged to its user.
    Unforeseen,
}

/// One kind of attack.
#[derive(Debug)]
pub struct Attacker {
    /// The name of the attack, and of the part that its process plays.
    pub name: &'static str,
    /// The phase in which the attacker attacks.
    pub when: When,
    /// The ports that the attack needs, in the syntax of the topology file; `UID` stands for its
    /// user.
    pub ports: &'static str,
    /// The function that attacks until it is killed.
    pub run: fn(),
}

/// The numbers of one phase.
struct Phase {
    what: &'static str,
    report: Report,
    turns: (Vec<TurnTime>, Vec<TurnTime>),
    /// Frames of the honest pair that were dropped, by port and reason.
    drops: Vec<String>,
    /// The longest time that the operator waited for an answer.
    answer: Duration,
    steal: f64,
}

impl Phase {
    fn turn(&self, share: f64) -> Duration {
        let (before, after) = &self.turns;
        Duration::from_nanos(percentile(before, after, share).unwrap_or(0))
    }

    fn print(&self) {
        let Report { sent, lost, .. } = self.report;
        eprintln!(
            "{:<20} {sent:>10} frames, {lost} lost {:?}; turns: 50 % {:?}, 99.99 % {:?}, longest {:?}; longest answer \
             {:?}; steal {:.1} %",
            self.what,
            self.drops,
            self.turn(0.5),
            self.turn(0.9999),
            self.turn(1.0),
            self.answer,
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
    let tcp = besieged();
    let daemon = &tcp.daemon;
    let whole = Duration::from_secs(seconds);
    let peak = phase(&tcp, "capacity", Duration::from_secs(2), 0, None);
    let rate = peak.report.rate() / 2;
    let slack = SLACK[usize::from(std::env::var_os("TOKLAT_SIEGE_ALONE").is_none())];
    let pair = || {
        let control = phase(&tcp, "control", whole / 5, rate, None);
        let always = phase(&tcp, "all attacks", whole * 3 / 5, rate, Some(When::Always));
        let (most, is) = (control.turn(0.9999) + slack, always.turn(0.9999));
        let wrong =
            (is > most).then(|| format!("turns take {is:?} under attack, {most:?} at most"));
        ([control, always], wrong)
    };
    let (first, mut wrong) = pair();
    let mut phases = Vec::from_iter([peak].into_iter().chain(first));
    if wrong.is_some() {
        // An attack lengthens turns each time; a busy machine does not.
        let (second, still) = pair();
        phases.extend(second);
        wrong = still;
    }
    phases.push(phase(&tcp, "unforeseen attacks", whole / 5, rate, Some(When::Unforeseen)));
    phases.iter().for_each(|phase| phase.print());
    for phase in &phases[1..] {
        if phase.report.lost > 0 {
            eprintln!("{} {}", daemon.get("/v1/stats"), daemon.get("/v1/switches/vale0"));
        }
        assert_eq!(phase.report.lost, 0, "{}: lost frames; {}", phase.what, tail(daemon));
        assert!(phase.report.sent > 0, "{}: nothing was sent; {}", phase.what, tail(daemon));
    }
    assert!(wrong.is_none(), "{wrong:?}; {}", tail(daemon));
    let switch = daemon.get("/v1/switches/vale0");
    assert_eq!((&switch["state"], &switch["restarts"]), (&"running".into(), &0.into()));
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
fn besieged() -> OverTcp {
    let tcp = OverTcp::start(&["--group", GROUP.0]);
    let daemon = &tcp.daemon;
    std::fs::set_permissions(daemon.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut net = format!(
        "[switch.vale0]\nworkers = [{{ cpu = {WORKER_CPU} }}]\nstall_timeout_ms = 10000\n\
         [switch.vale0.port.a]\nowner = {HONEST}\n\
         [switch.vale0.port.b]\nowner = {HONEST}\nlossless = true\n"
    );
    for (attacker, uid) in ATTACKERS.iter().zip(HONEST + 1..) {
        net += &attacker.ports.replace("UID", &uid.to_string());
    }
    daemon.apply(&net);
    tcp
}

/// The honest pair sends `rate` frames a second (0: as fast as it can) while attackers attack.
fn phase(
    tcp: &OverTcp,
    what: &'static str,
    time: Duration,
    rate: u64,
    attacks: Option<When>,
) -> Phase {
    let daemon = &tcp.daemon;
    let only = std::env::var("TOKLAT_SIEGE_ONLY").unwrap_or_default();
    let attackers = ATTACKERS.iter().zip(HONEST + 1..);
    let mut attackers: Vec<_> = attackers
        .filter(|(attacker, _)| attacks == Some(attacker.when) && attacker.name.contains(&only))
        .map(|(attacker, uid)| (attacker.name, start(tcp, attacker.name, uid, &[])))
        .collect();
    let stats = || {
        let stats: Stats = serde_json::from_value(daemon.get("/v1/stats")).unwrap();
        stats.switches.into_iter().find(|switch| switch.name == "vale0").unwrap()
    };
    let turns = |stats: &SwitchStats| stats.workers[0].turns.clone();
    let (before, stolen) = (turns(&stats()), steal());
    let options = [time.as_millis() as u64, rate].map(|n| n.to_string());
    let mut honest = start(tcp, "honest", HONEST, &options);
    // The last values that were seen of the worker's turns and of the pair's dropped frames.
    let (mut after, mut drops, mut answer) = (Vec::new(), Vec::new(), Duration::ZERO);
    let mut forged = false;
    while honest.try_wait().unwrap().is_none() {
        let asked = Instant::now();
        let stats = stats();
        let status = tcp.ask("GET", "/v1/status", &serde_json::Value::Null).0;
        assert_eq!(status, 200, "{what}: a client with the token");
        answer = answer.max(asked.elapsed());
        let pair: Vec<_> = stats.ports.iter().filter(|p| ["a", "b"].contains(&&*p.name)).collect();
        if pair.len() == 2 {
            drops = pair.into_iter().flat_map(dropped).collect();
        }
        after = turns(&stats);
        forged |= stops_forger(&stats);
        // The operator does not attack: it pauses.
        (0..20).for_each(|_| pause());
    }
    let honest = honest.wait_with_output().unwrap();
    let steal = steal() - stolen;
    for (name, attacker) in &mut attackers {
        let ended = attacker.try_wait().unwrap();
        assert!(ended.is_none(), "attacker {name} gave up: {ended:?}");
        attacker.kill().unwrap();
        attacker.wait().unwrap();
    }
    let said = String::from_utf8_lossy(&honest.stdout).into_owned();
    let report = Report::read(&said).unwrap_or_else(|| panic!("{what}: {said}; {}", tail(daemon)));
    let forges = attackers.iter().any(|(name, _)| *name == attackers::FORGER);
    assert!(forged || !forges, "{what}: the forger was not seen");
    let steal = steal / time.as_secs_f64();
    Phase { what, report, turns: (before, after), drops, answer, steal }
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
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", NAME, "--nocapture"]).env(PART, part);
    command.env(TCP, tcp.address.to_string());
    command.env("TOKLAT_DIR", tcp.daemon.dir()).env("TOKLAT_SIEGE_OPTIONS", options.join(" "));
    command.uid(uid).gid(GROUP.1).current_dir("/").stdin(Stdio::null());
    if part == "honest" {
        command.stdout(Stdio::piped());
    } else {
        // Nobody needs the attacker's output.
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    command.spawn().unwrap()
}

/// Plays one part, in a process of its own.
fn play(part: &str) {
    if part == "honest" {
        return honest::run_honest();
    }
    let attacker = ATTACKERS.iter().find(|attacker| attacker.name == part).unwrap();
    (attacker.run)();
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
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

/// True until the time of this part is over.
fn until(end: Instant) -> bool {
    Instant::now() < end
}
