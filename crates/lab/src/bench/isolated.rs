//! Isolated ports through a daemon: this process is the client of both.

use std::time::Duration;

use anyhow::{Context, Result};
use netring::{Interest, Port};

use super::lab::{Daemon, Lab};
use super::traffic::{self, Flow, SINK, SOURCE, on_core};

/// A switch whose worker never sleeps and has core 1 to itself.
pub const POLLED: &str = "idle = \"poll\"\nworkers = [{ cpu = 1 }]";

/// Opens both ports; returns when the switch has learned where each is.
pub fn ports(daemon: &Daemon) -> Result<(Port, Port)> {
    let (mut generator, mut sink) = (daemon.port("gen")?, daemon.port("sink")?);
    traffic::announce(&mut sink)?;
    std::thread::sleep(Duration::from_millis(50));
    // Discards the announcement, which was flooded to this port, too.
    traffic::take(&mut generator);
    generator.flush()?;
    Ok((generator, sink))
}

/// Generator and sink in one thread on core 0, the switch on core 1: Mpps.
pub fn throughput(lab: &Lab, len: usize, touch: bool) -> Result<f64> {
    let daemon = lab.daemon(POLLED)?;
    rate(ports(&daemon)?, lab.duration(), len, touch)
}

/// Mpps between two open ports.
pub fn rate(ports: (Port, Port), time: Duration, len: usize, touch: bool) -> Result<f64> {
    let (mut generator, mut sink) = ports;
    on_core(0, move || {
        let flow = Flow::new(len, touch);
        traffic::rate(time, || {
            flow.generate(&mut generator)?;
            flow.sink(&mut sink)
        })
    })
}

/// Round trip in us: one thread on core 0 holds both ports and polls, the switch polls on core 1.
pub fn round_trip(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon(POLLED)?;
    let ((mut left, mut right), time) = (ports(&daemon)?, lab.duration());
    let (there, back) = (traffic::message(SINK, SOURCE), traffic::message(SOURCE, SINK));
    on_core(0, move || {
        traffic::median_us(time, || {
            traffic::send_one(&mut left, &there)?;
            traffic::await_one(&mut right)?;
            traffic::send_one(&mut right, &back)?;
            traffic::await_one(&mut left)
        })
    })
}

/// The cost of a round trip between sleepers.
struct Slept {
    median_us: f64,
    wake_ups: f64,
}

/// Asker on core 0 and answerer on core 1, both sleeping; the worker on core 1.
fn sleepers(lab: &Lab, idle: &str) -> Result<Slept> {
    let daemon = lab.daemon(&format!("idle = \"{idle}\"\nworkers = [{{ cpu = 1 }}]"))?;
    let ((mut left, mut right), time) = (ports(&daemon)?, lab.duration());
    let (there, back) = (traffic::message(SINK, SOURCE), traffic::message(SOURCE, SINK));
    let before = wake_ups(&daemon)?;
    let mut trips = 0u64;
    let median_us = std::thread::scope(|scope| {
        let answerer = scope.spawn(move || on_core(1, || answer(&mut right, &back)));
        let asked = on_core(0, || {
            traffic::median_us(time, || {
                trips += 1;
                traffic::send_one(&mut left, &there)?;
                while !left.wait(Interest::READ, Some(Duration::from_secs(1)))?.readable {}
                traffic::take(&mut left);
                Ok(())
            })
        });
        // The answerer ends at a frame that is too short for a question.
        traffic::send_one(&mut left, &there[..14])?;
        answerer.join().unwrap_or_else(|_| anyhow::bail!("the answerer panicked"))?;
        asked
    })?;
    let wake_ups = (wake_ups(&daemon)? - before) as f64 / trips as f64;
    Ok(Slept { median_us, wake_ups })
}

fn answer(port: &mut Port, back: &[u8]) -> Result<()> {
    loop {
        port.wait(Interest::READ, Some(Duration::from_secs(1)))?;
        let (mut asked, mut end) = (0, false);
        for frame in port.receive(traffic::BATCH) {
            end |= frame.len() == 14;
            asked += 1;
        }
        if end {
            return Ok(port.flush()?);
        }
        for _ in 0..asked {
            traffic::send_one(port, back)?;
        }
    }
}

/// Counts wake-ups so far: of the switch by clients, and of clients by the switch.
fn wake_ups(daemon: &Daemon) -> Result<u64> {
    let stats = serde_json::to_value(daemon.stats()?)?;
    let ports = stats["ports"].as_array().context("no ports in the statistics")?;
    let count = |port: &serde_json::Value, what: &str| port[what].as_u64().unwrap_or(0);
    Ok(ports.iter().map(|port| count(port, "kicks") + count(port, "wakeups")).sum())
}

/// Round trip in us, with the worker in `auto`.
pub fn sleeping_time(lab: &Lab) -> Result<f64> {
    Ok(sleepers(lab, "auto")?.median_us)
}

/// Wake-ups per round trip, with the worker in `idle`.
pub fn sleeping_wake_ups(lab: &Lab, idle: &str) -> Result<f64> {
    Ok(sleepers(lab, idle)?.wake_ups)
}
