//! The command line: the tree of commands, what they share, and how they end.
//!
//! One file per group of commands; [`Command`] names them all. A command is a clap `Args` struct
//! and a function that takes it and the [`Global`] options.

mod completion;
mod connect;
mod daemon;
mod doctor;
mod events;
mod evpn;
mod fdb;
mod fw;
mod guest;
mod habits;
mod link;
mod logs;
mod manual;
mod netmap;
mod parts;
mod port;
pub(crate) mod port_options;
mod quota;
mod rates;
mod roles;
mod service;
mod sim;
mod stats;
mod switch;
mod top;
mod topology;
mod usage;
mod why;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use client::{ClientError, Global, Result, UsageError};

use crate::{integration, tools};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "toklat",
    version = client::VERSION,
    about = "Lightning-fast networking for virtual machines, wholly in user space",
    long_about = "Lightning-fast networking for virtual machines, wholly in user space.\n\n\
        A daemon holds learning switches; processes attach to their ports through shared memory \
        that no other process can touch. Names are netmap's: `vale0` is a switch, `vale0:p1` a \
        port of it, and `vale0:x{1` and `vale0:x}1` are the two ends of a pipe.",
    after_help = "To see it work: toklat demo. By hand, in terminals of their own:\n  \
        toklat daemon\n  \
        toklat sink vale0:b\n  \
        toklat gen vale0:a\n  \
        toklat top\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the daemon is not running.",
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
enum Command {
    // The daemon, and what asks it.
    /// Run the daemon that holds the switches
    Daemon(daemon::DaemonArgs),
    /// Run the data process of a switch; the daemon starts it
    #[command(hide = true)]
    DataProcess(daemon::DataProcessArgs),
    /// Drive the card of a port; the daemon starts it
    #[command(hide = true)]
    CardProcess(crate::daemon::cards::process::CardProcessArgs),
    /// Print the version of the messages between daemon and data process; the daemon calls this
    #[command(hide = true)]
    ControlVersion,
    /// Compile the expressions of rules; the daemon starts it
    #[command(hide = true)]
    ExpressionProcess,
    /// Show the daemon's status
    Status,
    /// Add, change, remove and show switches
    #[command(subcommand)]
    Switch(switch::SwitchCommand),
    /// Add, change, remove and show ports
    #[command(subcommand)]
    Port(port::PortCommand),
    /// Show the lines of ports: queues, drops, delays
    #[command(subcommand)]
    Link(link::LinkCommand),
    /// Show and change forwarding tables
    #[command(subcommand)]
    Fdb(fdb::FdbCommand),
    /// Say why a frame from one port does not reach another, and what changes that
    Why(why::WhyArgs),
    /// Show and change the rules between ports: groups, tables, connections
    #[command(subcommand)]
    Fw(fw::FwCommand),
    /// Show EVPN: other hosts, their stations and routes, BGP neighbours
    #[command(subcommand)]
    Evpn(evpn::EvpnCommand),
    /// Show pipes
    Pipes,
    /// Show and remove the ports that netmap programs made to stay
    #[command(subcommand)]
    Netmap(netmap::NetmapCommand),
    /// Show and change users' limits
    #[command(subcommand)]
    Quota(quota::QuotaCommand),
    /// Show counters, or rates with --watch
    Stats(stats::StatsArgs),
    /// Show a live view of ports, rates, drops and workers
    Top(top::TopArgs),
    /// Show what has happened: commands and who gave them, clients, restarts, faults
    Events(events::EventsArgs),
    /// Show the daemon's log
    Logs(logs::LogsArgs),
    /// Create and change switches and ports by a topology file
    Apply(topology::ApplyArgs),
    /// Print switches and ports as a topology file
    Export,
    /// Restart data processes with the installed version, without losing frames
    Upgrade(service::UpgradeArgs),
    /// Stop the daemon
    Stop(service::StopArgs),
    /// Switch parts of the packaged service on and off: interfaces, containers, cards, evpn
    #[command(subcommand)]
    Service(parts::ServiceCommand),

    // Tools: clients of the attach socket.
    /// Send frames: as fast as possible, at a rate, or from a capture
    Gen(Box<tools::generate::GenArgs>),
    /// Receive and count frames, and check them
    Sink(tools::sink::SinkArgs),
    /// Measure round trips
    Ping(tools::ping::PingArgs),
    /// Pass frames between two ports
    Bridge(tools::bridge::BridgeArgs),
    /// Connect the guests of a switch to the outside: addresses, name servers, NAT, forwarded ports
    /// (by passt)
    Uplink(tools::uplink::UplinkArgs),
    /// Capture what a port sends and receives
    Cap(tools::cap::CapArgs),
    /// Run a netmap program, unmodified, on switches of the daemon
    Run(tools::run::RunProgramArgs),
    /// Offer ports to Wireshark as interfaces; Wireshark calls it
    Extcap(tools::cap::extcap::ExtcapArgs),
    /// Drive a network card of this machine (VFIO), and exchange frames through it
    Card(tools::card::CardArgs),
    /// Run switches and guests of a topology file in virtual time, repeatable from a seed
    Sim(sim::SimArgs),
    /// Watch a switch at work: processes at its ports, rates, losses, round trips
    Demo(tools::demo::DemoArgs),
    /// Clean up after a demo has ended; the demo starts this
    #[command(hide = true)]
    DemoWatch(tools::demo::watcher::WatchArgs),

    // Virtual machines.
    /// Run virtual machines on a switch
    #[command(subcommand)]
    Vm(tools::vm::VmCommand),
    /// Add and remove the ports of a libvirt domain; libvirt's hook for QEMU calls it
    LibvirtHook(integration::libvirt::HookArgs),

    // Guests.
    /// Run programs as guests: small machines of their own, confined
    #[command(subcommand)]
    Guest(guest::GuestCommand),
    /// Run a guest's program that is built in; `toklat guest run` starts it
    #[command(hide = true)]
    GuestProgram {
        /// Which
        program: String,
        /// Its arguments
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        args: Vec<String>,
    },

    // Measuring.
    /// Benchmark toklat against a floor and other switches
    #[command(subcommand)]
    Bench(lab::bench::BenchCommand),

    // About this program.
    /// Check what this machine lacks for toklat, and say what to do about it
    Doctor,
    /// Print the version
    #[command(hide = true)]
    Version,
    /// Print a completion script for a shell
    Completions(completion::CompletionsArgs),
    /// Write the manual pages
    Man(manual::ManArgs),
}

impl Command {
    fn run(self, global: &Global) -> Result {
        match self {
            Self::Daemon(args) => daemon::run(args, global),
            Self::DataProcess(args) => daemon::data_process(args),
            Self::CardProcess(args) => {
                crate::daemon::cards::process::run(&args, &global.dir());
                Ok(())
            }
            Self::ControlVersion => {
                crate::daemon::print_control_version();
                Ok(())
            }
            Self::ExpressionProcess => Ok(crate::expression::process::run()?),
            Self::Status => service::status(global),
            Self::Switch(command) => command.run(global),
            Self::Port(command) => command.run(global),
            Self::Fdb(command) => command.run(global),
            Self::Why(args) => why::run(&args, global),
            Self::Fw(command) => command.run(global),
            Self::Evpn(command) => command.run(global),
            Self::Pipes => service::pipes(global),
            Self::Link(command) => command.run(global),
            Self::Netmap(command) => command.run(global),
            Self::Quota(command) => command.run(global),
            Self::Stats(args) => stats::run(&args, global),
            Self::Top(args) => top::run(&args, global),
            Self::Events(args) => events::run(&args, global),
            Self::Logs(args) => logs::run(&args, global),
            Self::Apply(args) => topology::apply(&args, global),
            Self::Export => topology::export(global),
            Self::Upgrade(args) => service::upgrade(args, global),
            Self::Stop(args) => service::stop(&args, global),
            Self::Service(command) => command.run(global),
            Self::Gen(args) => tools::generate::run(&args, global),
            Self::Sink(args) => tools::sink::run(&args, global),
            Self::Ping(args) => tools::ping::run(&args, global),
            Self::Bridge(args) => tools::bridge::run(&args, global),
            Self::Uplink(args) => tools::uplink::run(&args, global),
            Self::Cap(args) => tools::cap::run(&args, global),
            Self::Run(args) => tools::run::run(&args, global),
            Self::Extcap(args) => tools::cap::extcap::run(&args, global),
            Self::Card(args) => tools::card::run(&args, global),
            Self::Sim(args) => sim::run(&args, global),
            Self::Demo(args) => tools::demo::run(&args, global),
            Self::DemoWatch(args) => tools::demo::watcher::run(&args),
            Self::Vm(command) => command.run(global),
            Self::LibvirtHook(args) => integration::libvirt::run(&args, global),
            Self::Guest(command) => command.run(global),
            Self::GuestProgram { program, args } => roles::run_program(&program, &args),
            Self::Bench(command) => command.run(global),
            Self::Doctor => doctor::run(global),
            Self::Version => {
                println!("{}", Cli::command().render_version().trim_end());
                Ok(())
            }
            Self::Completions(args) => completion::completions(&args),
            Self::Man(args) => manual::man(&args),
        }
    }
}

/// Parses the command line, runs the command and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    if integration::cni::is_wanted() {
        return integration::cni::main();
    }
    inline::trusted::install();
    let line: Vec<OsString> = std::env::args_os().collect();
    if let Some(result) = roles::run(&line) {
        return status(result);
    }
    completion::answer();
    let line = tools::cap::extcap::command_line().unwrap_or(line);
    match parse(&line) {
        Ok(cli) => status(cli.command.run(&cli.global)),
        Err(error) => not_parsed(&error, &line),
    }
}

fn parse(line: &[OsString]) -> std::result::Result<Cli, clap::Error> {
    let mut command = habits::accept(Cli::command());
    let mut matches = command.try_get_matches_from_mut(line)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Says why a command has failed; returns the exit status.
fn status(result: Result) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("toklat: {}", format!("{error:#}").trim_end());
            exit_code(&error)
        }
    }
}

/// Says what is wrong with a command line, or prints the help that it asks for.
fn not_parsed(error: &clap::Error, line: &[OsString]) -> ExitCode {
    let help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if help || !error.use_stderr() {
        error.exit();
    }
    let words: Vec<_> = line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    eprintln!("{}", usage::answer(error, &words));
    ExitCode::from(2)
}

/// 2 for wrong usage, 3 if the daemon does not run, else 1.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    let not_running = |e: &(dyn std::error::Error + 'static)| {
        matches!(e.downcast_ref(), Some(ClientError::NotRunning { .. }))
            || matches!(e.downcast_ref(), Some(netring::OpenError::NoDaemon { .. }))
    };
    if error.is::<UsageError>() || error.is::<tools::traffic::TrafficError>() {
        ExitCode::from(2)
    } else if error.chain().any(not_running) {
        ExitCode::from(3)
    } else {
        ExitCode::FAILURE
    }
}

/// The answer of a command whose part is not in this build.
#[cfg(not(feature = "top"))]
fn not_built(part: &str) -> anyhow::Error {
    anyhow::anyhow!("this build has no {part}; install the package, or build with --features full")
}

/// Whether the reader of our output has closed it (`toklat stats | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks the command tree: calls `check` with each command and its full name.
    fn walk(command: &clap::Command, name: &str, check: &mut dyn FnMut(&clap::Command, &str)) {
        check(command, name);
        for sub in command.get_subcommands() {
            walk(sub, &format!("{name} {}", sub.get_name()), check);
        }
    }

    #[test]
    fn clap_finds_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_says_what_it_is_for() {
        let mut silent = Vec::new();
        walk(&Cli::command(), "toklat", &mut |command, name| {
            if command.get_about().is_none() {
                silent.push(name.to_owned());
            }
            for arg in command.get_arguments() {
                if arg.get_help().is_none() {
                    silent.push(format!("{name} {}", arg.get_id()));
                }
            }
        });
        assert!(silent.is_empty(), "without a help text: {silent:?}");
    }
}
