//! Roles: hidden commands that this program starts of itself, often a thousand times.
//!
//! The tree of all commands costs 268 KiB and two fifths of a guest's start. So
//! [`main`](super::main) looks here first. What is not in the table, or not as its starter writes
//! it, goes to the tree, which also has the roles: it explains and refuses.

use std::ffi::OsString;

use clap::{Args, FromArgMatches};
use client::Result;

use super::daemon::{self, DataProcessArgs};

/// A role's name, and how it is carried out; `None` if the words are not those of its starter.
type Role = (&'static str, fn(&[OsString]) -> Option<Result>);

const ROLES: [Role; 3] = [
    ("guest-program", guest_program),
    ("data-process", data_process),
    ("control-version", control_version),
];

/// Runs the role that a command line names; `None` if it names none.
pub(super) fn run(line: &[OsString]) -> Option<Result> {
    let (role, words) = line.get(1..)?.split_first()?;
    let (_, run) = ROLES.iter().find(|(name, _)| role == name)?;
    run(words)
}

/// The words behind a guest's program are the program's, whatever they look like.
fn guest_program(words: &[OsString]) -> Option<Result> {
    let words: Option<Vec<String>> =
        words.iter().map(|word| word.to_str().map(str::to_owned)).collect();
    let words = words?;
    let (program, args) = words.split_first().filter(|(program, _)| !program.starts_with('-'))?;
    Some(run_program(program, args))
}

pub(super) fn run_program(program: &str, args: &[String]) -> Result {
    crate::guests::programs::run(program, args).map_err(anyhow::Error::from_boxed)
}

/// Its options alone are parsed, by the declaration that the tree has, too.
fn data_process(words: &[OsString]) -> Option<Result> {
    let command = clap::Command::new("data-process").no_binary_name(true);
    let matches = DataProcessArgs::augment_args(command).try_get_matches_from(words).ok()?;
    Some(daemon::data_process(DataProcessArgs::from_arg_matches(&matches).ok()?))
}

fn control_version(words: &[OsString]) -> Option<Result> {
    words.is_empty().then(|| {
        crate::daemon::print_control_version();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn roles_are_hidden_commands_of_the_tree() {
        let tree = crate::cli::Cli::command();
        for (role, _) in ROLES {
            let command = tree.get_subcommands().find(|command| command.get_name() == role);
            assert!(command.is_some_and(clap::Command::is_hide_set), "{role}");
        }
    }

    #[test]
    fn words_that_no_starter_writes_are_left_to_the_tree() {
        for line in [
            "toklat",
            "toklat status",
            "toklat guest-program",
            "toklat guest-program --help",
            "toklat data-process --help",
            "toklat data-process --switch vale0",
            "toklat control-version -h",
            "toklat --dir /run guest-program echo",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(run(&words).is_none(), "{line}");
        }
    }
}
