//! Two light guests on the switch, each confined in a process of its own. They exchange a page,
//! bulk data and remote calls.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::processes::{Process, output};
use super::{Demo, Outcome, toklat};
use client::table::bps;

/// The table's text when no guests run.
pub const WHAT: &str = "two isolated light guests";

/// How long guests may take to start.
const START: Duration = Duration::from_secs(30);

/// Runs a server and its client, three times.
///
/// # Errors
/// If a guest does not serve, or its client fails.
pub fn run(demo: &mut Demo, duration: Duration) -> anyhow::Result<Vec<Outcome>> {
    let seconds = format!("{:.3}", (duration / 2).as_secs_f64());
    eprintln!("two light guests, confined: a web server and its client ...");
    let mut walls = 0;
    let told = pair(demo, "httpd", ("load", &["10.9.8.1:80", "/4k", "16", &seconds]), &mut walls)?;
    let (number, median) =
        (|told: &Value, what: &str| told[what].as_f64().unwrap_or(0.0), "median_us");
    let good = number(&told, "errors") + number(&told, "lost") == 0.0;
    let rate = number(&told, "answers") / number(&told, "seconds").max(1e-3);
    ensure!(rate > 0.0, "the web server did not answer");
    let said = format!(
        "{rate:.0} pages/s of 4 KiB, {:.0} us median, {walls} walls",
        number(&told, median)
    );
    let mut outcomes = vec![Outcome::counted(format!("{WHAT}: web"), said, good)];
    eprintln!("  bulk data by TCP ...");
    let told = pair(demo, "sink", ("source", &["10.9.8.1:5001", &seconds]), &mut walls)?;
    let bits = number(&told, "bytes") * 8.0 / number(&told, "seconds").max(1e-3);
    ensure!(bits > 0.0, "no bulk data arrived");
    outcomes.push(Outcome::counted("  bulk data by TCP", bps(bits), number(&told, "lost") == 0.0));
    eprintln!("  remote procedure calls ...");
    let told = pair(demo, "calls", ("call", &["demo:light-calls", &seconds]), &mut walls)?;
    ensure!(number(&told, "calls") > 0.0, "no call was answered");
    let said = format!("{:.1} us median", number(&told, median));
    let good = number(&told, "failed") == 0.0;
    outcomes.push(Outcome::counted("  remote procedure calls, 10 bytes", said, good));
    Ok(outcomes)
}

/// Runs a server, and a client to its end. Returns the client's output. `walls` gets the number of
/// walls around the server.
fn pair(
    demo: &mut Demo,
    server: &str,
    (client, args): (&str, &[&str]),
    walls: &mut usize,
) -> anyhow::Result<Value> {
    let dir = demo.directory.path().to_owned();
    let port = |name: &str| format!("demo:light-{name}");
    let words = ["guest", "run", "--announce", server, &port(server), "10.9.8.1/24"];
    let _server = Process::start(server, &mut toklat(&dir, &words)?, &demo.log())?;
    let started = Instant::now();
    loop {
        let mut list = toklat(&dir, &["guest", "list", "--json"])?;
        let all: Value = serde_json::from_str(&output("guest list", &mut list, &demo.stop)?)?;
        if all[0]["state"] == "running" {
            *walls = all[0]["walls"]["standing"].as_array().map_or(0, Vec::len);
            break;
        }
        ensure!(started.elapsed() < START, "{server} does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let words = ["guest", "run", client, &port(client), "10.9.8.2/24", "--restart", "never", "--"];
    let said = output(client, toklat(&dir, &words)?.args(args), &demo.stop)?;
    let line = said.lines().find_map(|line| line.split_once(" | "));
    Ok(serde_json::from_str(line.with_context(|| format!("{client} says nothing"))?.1)?)
}
