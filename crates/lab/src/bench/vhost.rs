//! vhost-user ports with DPDK's polling virtio-user front ends, so that no guest kernel is
//! involved.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::isolated::POLLED;
use super::lab::{Daemon, Lab, wait_until};
use api::WorkerStats;

/// The work of the front ends.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    /// Bytes of a frame.
    pub len: usize,
    /// `split` or `packed`.
    pub queues: &'static str,
    /// `one` flow each way, which circulates, or `many`, generated and dropped.
    pub flows: &'static str,
}

/// The result of a measurement.
struct Outcome {
    mpps: f64,
    ns_per_frame: f64,
}

/// Millions of frames per second that the front ends received.
pub fn rate(lab: &Lab, front: Front) -> Result<f64> {
    Ok(run(lab, front)?.mpps)
}

/// Nanoseconds of the switch's core per frame, in passes that moved frames.
pub fn ns_per_frame(lab: &Lab, front: Front) -> Result<f64> {
    Ok(run(lab, front)?.ns_per_frame)
}

fn run(lab: &Lab, front: Front) -> Result<Outcome> {
    let daemon = lab.daemon(POLLED)?;
    let sockets = ["vh0", "vh1"].map(|name| daemon.dir().join(format!("{name}.sock")));
    for (i, socket) in sockets.iter().enumerate() {
        let kind = serde_json::json!({ "vhost_user": { "path": socket, "client": true } });
        daemon.add_port(&format!("vh{i}"), &kind)?;
    }
    let mut script = Command::new(lab.dir().join("front.sh"));
    script.args(&sockets).args([&front.len.to_string(), front.queues, front.flows]);
    script.env("SECONDS_PER_RUN", "2").stdin(Stdio::null());
    let script = script.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let counted = under_load(&daemon);
    let done = script.wait_with_output()?;
    if !done.status.success() {
        bail!("{}", String::from_utf8_lossy(&done.stderr).trim());
    }
    let printed: serde_json::Value =
        serde_json::from_slice(&done.stdout).context("the front ends printed no JSON object")?;
    let mpps = printed["value"].as_f64().context("the front ends printed no value")?;
    let (before, after) = counted?;
    let frames = after.frames.saturating_sub(before.frames);
    let busy_ns = after.busy_ns.saturating_sub(before.busy_ns);
    lab.note(
        "busy",
        format!(
            "the switch's core was busy {:.0} % of the time",
            busy_ns as f64 / LOAD.as_nanos() as f64 * 100.0
        ),
    );
    Ok(Outcome { mpps, ns_per_frame: busy_ns as f64 / frames.max(1) as f64 })
}

/// How long the worker is observed.
const LOAD: Duration = Duration::from_millis(1500);

/// The worker's counters, before and after some of the load.
fn under_load(daemon: &Daemon) -> Result<(WorkerStats, WorkerStats)> {
    let worker = || -> Result<WorkerStats> {
        daemon.stats()?.workers.first().cloned().context("the switch has no worker")
    };
    wait_until(Duration::from_secs(20), || worker().is_ok_and(|worker| worker.frames > 100_000))
        .context("the front ends sent nothing")?;
    std::thread::sleep(Duration::from_millis(500));
    let before = worker()?;
    std::thread::sleep(LOAD);
    Ok((before, worker()?))
}
