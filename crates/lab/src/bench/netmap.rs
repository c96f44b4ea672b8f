//! The rows of `toklat bench netmap`: unmodified netmap and libpcap programs, with the library of
//! `toklat run`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::isolated::POLLED;
use super::lab::Lab;
use super::peer::Peer;
use super::rows::{Row, more};

const PCAP: &str = "core 0: one thread of one process that sends by pcap_inject and receives by pcap_dispatch with a \
    filter; core 1: the switch's worker, polling. Peer: the same program on a pair of veth with the system's libpcap";

/// What is measured.
pub const ROWS: &[Row] = &[more(
    "netmap.pcap.64",
    ">= 10x veth",
    PCAP,
    pcap,
    Peer::Toklat("veth, libpcap", pcap_on_veth),
)];

/// `pcap.c`, compiled.
fn program(lab: &Lab) -> Result<PathBuf> {
    let program = lab.dir().join("pcap");
    if !program.exists() {
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).arg(&program).arg(lab.dir().join("pcap.c")).arg("-lpcap");
        let built = cc.output().context("cc is missing")?;
        let said = String::from_utf8_lossy(&built.stderr);
        ensure!(built.status.success(), "libpcap-dev is missing, or cc fails: {said}");
    }
    Ok(program)
}

/// Returns the number that a program prints.
fn figure(command: &mut Command) -> Result<f64> {
    let output = command.output().with_context(|| format!("{command:?} cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{}", said.trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| format!("{text:?} is no number: {said}"))
}

/// Millions of frames per second through libpcap's calls on ports.
fn pcap(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon(POLLED)?;
    let mut run = Command::new(std::env::current_exe()?);
    run.env("TOKLAT_DIR", daemon.dir()).args(["run", "--"]).arg(program(lab)?);
    figure(run.args(["vale0:s", "vale0:r", &lab.seconds().to_string()]))
}

/// The same on a pair of veth, in a network namespace of its own.
fn pcap_on_veth(lab: &Lab) -> Result<f64> {
    lab.once_missing("veth", || {
        let script = "ip link add s type veth peer name r && ip link set s up && ip link set r up && exec \"$@\"";
        let mut run = Command::new("unshare");
        run.args(["--net", "sh", "-ec", script, "sh"]).arg(program(lab)?);
        figure(run.args(["s", "r", &lab.seconds().to_string()]))
    })
}
