//! Separate processes, idle switches, and killed processes.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::isolated::{self, POLLED};
use super::lab::{Daemon, Lab, wait_until};
use super::ports::open_idle;
use super::traffic::{Flow, on_core};
use jail::parent_death;

/// `toklat gen` and `toklat sink` on core 0, the switch on core 1, in Mpps. Both tools yield when
/// their ring is full or empty. Egress is lossless; fails if a frame was lost.
pub fn demo(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon(&format!("{POLLED}\n[switch.vale0.port.sink]\nlossless = true"))?;
    let frames = (lab.seconds() * 30e6) as u64;
    let mut sink = tool(&daemon, &["sink", "vale0:sink", "--count", &frames.to_string()])?;
    wait_until(Duration::from_secs(5), || {
        daemon.stats().is_ok_and(|s| s.ports.iter().any(|p| p.name == "sink"))
    })?;
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    let generator = tool(&daemon, &["gen", "vale0:gen", "--count", &frames.to_string()])?;
    let sent = report(generator)?;
    let limit = Duration::from_secs(20);
    if wait_until(limit, || sink.try_wait().is_ok_and(|status| status.is_some())).is_err() {
        let _ = sink.kill();
        bail!("the sink did not get all {frames} frames");
    }
    let received = report(sink)?;
    let took = start.elapsed();
    let count = |of: &serde_json::Value| of["frames"].as_u64().unwrap_or(0);
    if count(&received) != count(&sent) {
        bail!("{} of {} frames arrived", count(&received), count(&sent));
    }
    let seconds = received["seconds"].as_f64().unwrap_or(took.as_secs_f64());
    Ok(count(&received) as f64 / seconds / 1e6)
}

fn tool(daemon: &Daemon, args: &[&str]) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args).args(["--cpu", "0", "--yield", "--quiet", "--json"]);
    command.env("TOKLAT_DIR", daemon.dir()).stdout(Stdio::piped()).stdin(Stdio::null());
    parent_death::signal(&mut command, Signal::TERM).spawn().context("a tool could not be started")
}

/// Returns what a tool printed when it ended.
fn report(child: Child) -> Result<serde_json::Value> {
    let done = child.wait_with_output()?;
    if !done.status.success() {
        bail!("a tool failed ({})", done.status);
    }
    let reports = serde_json::Deserializer::from_slice(&done.stdout).into_iter();
    reports.last().context("a tool printed no report")?.context("a tool's report")
}

/// Ports of the idle switch.
const IDLE: u32 = 1000;

/// Percent of a core that daemon and data process use when there are a thousand idle ports.
pub fn idle_cpu(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon("idle = \"auto\"")?;
    let _ports = open_idle(&daemon, IDLE, 1024)?;
    std::thread::sleep(Duration::from_millis(500));
    let processes = [daemon.pid(), daemon.data_process()?];
    let ticks = || processes.iter().map(|pid| ticks(*pid)).sum::<Result<u64>>();
    let (before, began) = (ticks()?, Instant::now());
    std::thread::sleep(lab.duration().max(Duration::from_secs(1)));
    // A tick is 10 ms on all of Debian's kernels.
    Ok((ticks()? - before) as f64 / began.elapsed().as_secs_f64())
}

/// User and system time of a process, in ticks (proc(5), /proc/pid/stat, fields 14 and 15).
fn ticks(pid: i32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").context("/proc/pid/stat")?.1.split(' ');
    Ok(fields.skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum())
}

/// Memory that a port costs daemon, data process and client together, in KiB. Shared pages count
/// once.
pub fn idle_memory(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon("idle = \"auto\"")?;
    let processes = [daemon.pid(), daemon.data_process()?, std::process::id() as i32];
    let resident = || processes.iter().map(|pid| proportional_kib(*pid)).sum::<Result<u64>>();
    let before = resident()?;
    let _ports = open_idle(&daemon, IDLE, 1024)?;
    std::thread::sleep(Duration::from_millis(200));
    Ok(resident()?.saturating_sub(before) as f64 / f64::from(IDLE))
}

/// Pss of a process (proc(5), smaps_rollup).
pub fn proportional_kib(pid: i32) -> Result<u64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .context("A data process hides its memory from its user; run this row as root")?;
    let line = rollup.lines().find_map(|l| l.strip_prefix("Pss:")).context("smaps_rollup")?;
    line.split_whitespace().next().and_then(|n| n.parse().ok()).context("smaps_rollup")
}

/// Milliseconds from SIGKILL of the data process until frames arrive again, under traffic.
pub fn restart(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon(POLLED)?;
    let (mut generator, mut sink) = isolated::ports(&daemon)?;
    let victim = Pid::from_raw(daemon.data_process()?).context("the data process")?;
    on_core(0, move || {
        let flow = Flow::new(64, false);
        let mut run = |time: Duration, until_frames: bool| -> Result<Duration> {
            let (began, mut last) = (Instant::now(), Instant::now());
            while began.elapsed() < time {
                flow.generate(&mut generator)?;
                let frames = flow.sink(&mut sink)?;
                if until_frames && frames > 0 {
                    let gap = last.elapsed();
                    if gap > Duration::from_millis(1) {
                        return Ok(began.elapsed());
                    }
                    last = Instant::now();
                }
            }
            if until_frames { bail!("no frame within {time:?}") } else { Ok(time) }
        };
        run(Duration::from_millis(200), false)?;
        kill_process(victim, Signal::KILL)?;
        Ok(run(Duration::from_secs(10), true)?.as_secs_f64() * 1e3)
    })
}
