//! The command line: the tree of commands, what they share, and how they end.
//!
//! One file per group of commands; [`Command`] names them all. A command is a clap `Args` struct and
//! a function that takes it and the [`Global`] options.

mod shell;
pub mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use self::global::Global;

mod global;

/// What a command returns; [`exit_code`] decides how the process ends.
pub type Result<T = ()> = anyhow::Result<T>;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "toklat",
    version,
    about = "Lightning-fast networking for virtual machines, wholly in user space",
    long_about = "Lightning-fast networking for virtual machines, wholly in user space.\n\n\
        A daemon holds learning switches; processes attach to their ports through shared memory \
        that no other process can touch. Names are netmap's: `vale0` is a switch, `vale0:p1` a \
        port of it, and `vale0:x{1` and `vale0:x}1` are the two ends of a pipe.",
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the daemon is not running.",
    arg_required_else_help = true,
    infer_subcommands = false,
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

    // Tools: clients of the attach socket.

    // Measuring.

    // About this program.
    /// Print a completion script for a shell
    Completions(shell::CompletionsArgs),
    /// Write the manual pages
    Man(shell::ManArgs),
}

impl Command {
    fn run(self, global: &Global) -> Result {
        let _ = global;
        match self {
            Self::Completions(args) => shell::completions(&args),
            Self::Man(args) => shell::man(&args),
        }
    }
}

/// Parses the command line, does what it says and tells how it went.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run(&cli.global) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("toklat: {error:#}");
            exit_code(&error)
        }
    }
}

/// 1, or what the error itself asks for.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    let _ = error;
    ExitCode::FAILURE
}

/// Whoever read our output has seen enough (`toklat stats | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    /// Walks the tree: calls `check` with each command and its full name.
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
