//! Guests beside Linux, through the same switch: hosts of namespaces behind taps, and light guests
//! on other ports. Rates are for each second that all parties have spent on a core.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::confined::{self, cpu_of, pids, start};
use super::lab::{Daemon, Lab};
use super::stacks_linux::{Hosts, Nginx, requests, time};
use crate::hosts::NEVER;

/// Who answers the host at 10.9.0.1.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// Gb/s of an iperf3 in host h1 to 10.9.0.2, or back; `beside` are parties that it does not know
/// of.
fn iperf3(lab: &Lab, hosts: &Hosts, back: bool, beside: &[i32], who: &str) -> Result<f64> {
    let back = if back { " -R" } else { "" };
    let command = format!("iperf3 -c {OTHER} -J -t {}{back}", time(lab));
    let before = cpu_of(beside);
    let told = hosts.net.run("h1", &command)?;
    let spent = cpu_of(beside) - before;
    let told: Value = serde_json::from_str(&told)?;
    let end = &told["end"];
    let number = |value: &Value| value.as_f64().context("iperf3 says no number");
    let received = &end["sum_received"];
    let (bits, took) = (number(&received["bits_per_second"])?, number(&received["seconds"])?);
    let cpu = &end["cpu_utilization_percent"];
    let percent = number(&cpu["host_total"])? + number(&cpu["remote_total"])?;
    let cores = percent / 100.0 + spent / took;
    ensure!(cores > 0.0, "iperf3 says that it took no time");
    lab.note(who, format!("{who}: {:.2} Gb/s by the clock, {cores:.2} cores", bits / 1e9));
    Ok(bits / 1e9 / cores)
}

/// Waits until the other end of the wire answers.
fn wait_for_other(hosts: &Hosts) -> Result<()> {
    hosts.net.reach("h1", &OTHER.to_string(), &NEVER)
}

/// From Linux to a guest, or back.
pub fn iperf3_with_guest(lab: &Lab, back: bool) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let hosts = Hosts::at(&daemon, 1)?;
    let _guest = start(&daemon, ["iperf3", "perf"], (OTHER, 1), &[])?;
    wait_for_other(&hosts)?;
    iperf3(lab, &hosts, back, &[daemon.data_process()?], "with a guest")
}

/// From Linux to Linux, or back.
pub fn iperf3_of_linux(lab: &Lab, back: bool) -> Result<f64> {
    let daemon = lab.daemon("")?;
    between_hosts(lab, &daemon, back, "Linux")
}

fn between_hosts(lab: &Lab, daemon: &Daemon, back: bool, who: &str) -> Result<f64> {
    let hosts = Hosts::at(daemon, 2)?;
    let _server = hosts.net.start("h2", "iperf3 -s -1")?;
    wait_for_other(&hosts)?;
    std::thread::sleep(Duration::from_millis(300));
    iperf3(lab, &hosts, back, &[daemon.data_process()?], who)
}

/// A switch on whose ports `names` frames of their owners are lost.
fn lossy(lab: &Lab, loss_ppm: u32, names: &[&str]) -> Result<Daemon> {
    let port = |(seed, name): (usize, &&str)| {
        format!(
            "[switch.vale0.port.{name}]\ntx_impairment = {{ loss_ppm = {loss_ppm}, seed = {seed} }}\n"
        )
    };
    let ports: String = names.iter().enumerate().map(port).collect();
    lab.daemon(&ports)
}

/// From one confined guest to another, through ports that lose frames in both directions.
pub fn lossy_guests(lab: &Lab, loss_ppm: u32) -> Result<f64> {
    confined::bulk_at(lab, &lossy(lab, loss_ppm, &["sink", "source"])?)
}

/// From Linux to Linux, through such ports.
pub fn lossy_linux(lab: &Lab, loss_ppm: u32) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let hosts = Hosts::at(&daemon, 2)?;
    for (seed, name) in ["h1", "h2"].into_iter().enumerate() {
        let impairment = json!({ "loss_ppm": loss_ppm, "seed": seed });
        daemon.change_port(name, &json!({ "tx_impairment": impairment }))?;
    }
    let _server = hosts.net.start("h2", "iperf3 -s -1")?;
    wait_for_other(&hosts)?;
    std::thread::sleep(Duration::from_millis(300));
    iperf3(lab, &hosts, false, &[daemon.data_process()?], "Linux with losses")
}

/// Requests of wrk in a host for pages of 1 KiB; `parties` beside it.
fn wrk(lab: &Lab, hosts: &Hosts, path: &str, parties: &[i32]) -> Result<f64> {
    let words = format!("wrk -t1 -c16 -d{} http://{OTHER}/{path}", time(lab));
    let before = cpu_of(parties);
    let (pages, own) = requests(hosts, &words)?;
    let spent = cpu_of(parties) - before + own;
    ensure!(spent > 0.0, "no party took any time");
    Ok(pages / spent)
}

/// wrk over a tap against a confined guest.
pub fn pages_of_guest(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let hosts = Hosts::at(&daemon, 1)?;
    let _guest = start(&daemon, ["httpd", "web"], (OTHER, 1), &[])?;
    wait_for_other(&hosts)?;
    let mut parties = pids(&daemon, "web")?;
    parties.push(daemon.data_process()?);
    wrk(lab, &hosts, "1k", &parties)
}

/// The same against nginx over a tap.
pub fn pages_of_nginx(lab: &Lab) -> Result<f64> {
    lab.once_missing("nginx", || {
        let daemon = lab.daemon("")?;
        let nginx = Nginx::at(lab, Hosts::at(&daemon, 2)?, 1024)?;
        let mut parties = nginx.processes();
        parties.push(daemon.data_process()?);
        wrk(lab, &nginx.hosts, "page", &parties)
    })
}
