//! `toklat extcap`: ports among the interfaces of Wireshark and tshark.
//!
//! Wireshark runs each program of its extcap directories, and asks it for interfaces, link types
//! and options. To capture, it has the program write into a named pipe
//! (<https://www.wireshark.org/docs/wsdg_html_chunked/ChCaptureExtcap.html>).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use frame::bpf::Program;
use netring::Monitor;

use super::super::pcap::CaptureWriter;
use super::super::session::RunArgs;
use super::capture;
use super::watch::{Wanted, Watched};
use crate::api::{self, PortInfo, SwitchInfo};
use crate::expression;
use client::name::PortName;
use client::{Client, ClientError, Global, UsageError};

/// The program's name in Wireshark's directory.
pub const PROGRAM: &str = "toklat-extcap";

/// The frames of a port to capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Direction {
    /// What it sends and receives
    #[default]
    Both,
    /// What it sends
    Sent,
    /// What it receives
    Received,
}

/// Options of `toklat extcap`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ln -s /usr/bin/toklat ~/.local/lib/wireshark/extcap/toklat-extcap   \
    # before Wireshark 4.2: ~/.config/wireshark/extcap\n  \
    tshark -i vale0:p1\n  \
    toklat extcap --extcap-interfaces")]
pub struct ExtcapArgs {
    /// List the ports
    #[arg(long, group = "question")]
    extcap_interfaces: bool,
    /// List the link types of a port
    #[arg(long, group = "question", requires = "extcap_interface")]
    extcap_dlts: bool,
    /// List what can be set for a port
    #[arg(long, group = "question", requires = "extcap_interface")]
    extcap_config: bool,
    /// Capture into the named pipe
    #[arg(long, group = "question", requires_all = ["extcap_interface", "fifo"])]
    capture: bool,
    /// The port, as in vale0:p1
    #[arg(long, value_name = "PORT")]
    extcap_interface: Option<PortName>,
    /// The named pipe
    #[arg(long, value_name = "PATH")]
    fifo: Option<PathBuf>,
    /// A capture filter (pcap-filter(7))
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,
    /// Wireshark's version
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,
    /// Which frames
    #[arg(long, value_enum, default_value = "both")]
    direction: Direction,
    /// Maximum bytes to keep of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(14..=65_535))]
    snaplen: u32,
}

/// Converts the command line to `toklat`'s, if Wireshark started the program by its name.
#[must_use]
pub fn command_line() -> Option<Vec<std::ffi::OsString>> {
    let mut args = std::env::args_os();
    let called = args.next()?;
    let is_ours = Path::new(&called).file_name() == Some(PROGRAM.as_ref());
    is_ours.then(|| ["toklat".into(), "extcap".into()].into_iter().chain(args).collect())
}

/// Answers Wireshark, or captures for it.
///
/// # Errors
/// If the daemon refuses, or the port cannot be watched.
pub fn run(args: &ExtcapArgs, global: &Global) -> anyhow::Result<()> {
    let global = where_the_daemon_is(global);
    let out = &mut std::io::stdout().lock();
    match &args.extcap_interface {
        _ if args.extcap_interfaces => interfaces(&global, out),
        Some(_) if args.extcap_dlts => {
            Ok(writeln!(out, "dlt {{number=1}}{{name=EN10MB}}{{display=Ethernet}}")?)
        }
        Some(_) if args.extcap_config => config(out),
        Some(port) if args.capture => watch(args, port, &global),
        // A filter without other options is a check of the filter. The printed text says why it is
        // refused.
        Some(_) if args.extcap_capture_filter.is_some() => match program(args) {
            Ok(_) => Ok(()),
            Err(error) => Ok(writeln!(out, "{error:#}")?),
        },
        _ => Err(UsageError::new("say --extcap-interfaces; Wireshark calls this program").into()),
    }
}

/// Wireshark passes no directory. Without a daemon of the user's, the system's is used.
fn where_the_daemon_is(global: &Global) -> Global {
    let system = Path::new("/run/toklat");
    let given = global.dir.is_some() || global.dir().join(api::SOCKET).exists();
    let dir = if given { global.dir() } else { system.to_owned() };
    Global { dir: Some(dir), ..global.clone() }
}

/// The ports. Without a daemon there are none; that is no error, because Wireshark asks at each
/// start.
fn interfaces(global: &Global, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "extcap {{version={}}}{{help=file:///usr/share/doc/toklat/README.md}}{{display=toklat}}",
        env!("CARGO_PKG_VERSION")
    )?;
    let mut client = match Client::connect(global) {
        Ok(client) => client.without_progress(),
        Err(ClientError::NotRunning { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let switches: Vec<SwitchInfo> = client.get("/v1/switches")?;
    for switch in switches {
        let ports: Vec<PortInfo> = client.get(&format!("/v1/switches/{}/ports", switch.name))?;
        // A monitor is left out: it sees only copies of another port's frames.
        for port in ports.iter().filter(|port| port.monitors.is_none()) {
            let name = format!("{}:{}", switch.name, port.name);
            writeln!(out, "interface {{value={name}}}{{display=toklat port}}")?;
        }
    }
    Ok(())
}

/// Lists the options that can be set.
fn config(out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "arg {{number=0}}{{call=--direction}}{{display=Frames}}{{type=selector}}\
         {{tooltip=Seen from the port's owner}}{{group=Capture}}"
    )?;
    for value in Direction::value_variants() {
        let Some(shown) = value.to_possible_value() else { continue };
        let help = shown.get_help().map(ToString::to_string).unwrap_or_default();
        let default = *value == Direction::default();
        writeln!(
            out,
            "value {{arg=0}}{{value={}}}{{display={help}}}{{default={default}}}",
            shown.get_name()
        )?;
    }
    writeln!(
        out,
        "arg {{number=1}}{{call=--snaplen}}{{display=Bytes of each frame}}{{type=unsigned}}\
         {{range=14,65535}}{{default=65535}}{{group=Capture}}"
    )?;
    Ok(())
}

/// The capture filter, if there is one.
fn program(args: &ExtcapArgs) -> anyhow::Result<Option<Program>> {
    let text = args.extcap_capture_filter.as_deref().filter(|text| !text.trim().is_empty());
    text.map(expression::compile).transpose()
}

/// Writes pcapng into the pipe until its reader closes it.
fn watch(args: &ExtcapArgs, name: &PortName, global: &Global) -> anyhow::Result<()> {
    let filter = program(args)?;
    let monitor = match args.direction {
        Direction::Both => Monitor::Both,
        Direction::Sent => Monitor::Sent,
        Direction::Received => Monitor::Received,
    };
    let name = name.to_string();
    let wanted = Wanted { monitor, filter, snaplen: args.snaplen };
    let mut watched = Watched::port(&name, wanted, global)?;
    let path = args.fifo.as_deref().unwrap_or_else(|| Path::new("-"));
    let fifo = File::options().write(true).open(path);
    let fifo = fifo.with_context(|| format!("Cannot write {}", path.display()))?;
    let to = CaptureWriter::new(BufWriter::new(fifo), &name, args.snaplen)?;
    let run = RunArgs { quiet: true, ..RunArgs::default() };
    capture(&run, &mut watched, Box::new(to)).map(drop)
}
