//! Words that people type out of habit: some work, the others are answered with the command that
//! is meant.

use clap::error::{ContextKind, ContextValue};
use clap::{Command, Error};

/// A command of a group, and what else people call it.
const ALIASES: [(&str, &[&str]); 4] = [
    ("show", &["list", "ls"]),
    ("add", &["create", "new"]),
    ("rm", &["remove", "delete", "del"]),
    ("set", &["change", "update"]),
];

/// A group of commands (empty: the top), words that are no commands in it, and what is meant.
const HINTS: [(&str, &[&str], &str); 13] = [
    ("", &["list", "ls", "show", "ps"], "toklat switch show, toklat port show, toklat guest list"),
    ("", &["log", "journal", "journalctl"], LOGS),
    ("", &["start", "serve"], "toklat daemon (in a terminal), or systemctl start toklat"),
    ("", &["restart"], "toklat upgrade (loses no frame), or systemctl restart toklat"),
    ("", &["add", "create", "new"], "toklat switch add NAME, toklat port add SWITCH:PORT"),
    ("", &["rm", "del", "delete", "remove"], "toklat switch rm NAME, toklat port rm SWITCH:PORT"),
    (
        "",
        &["config", "topology", "save", "dump"],
        "toklat export > net.toml, toklat apply net.toml",
    ),
    ("", &["load", "import", "restore"], "toklat apply net.toml"),
    ("", &["capture", "tcpdump", "sniff"], "toklat cap SWITCH:PORT, or toklat run -- tcpdump"),
    ("", &["mac", "macs", "arp", "neigh", "bridge-fdb"], "toklat fdb show SWITCH"),
    ("", &["user", "users", "limits"], "toklat quota show"),
    ("vm", &["list", "ls", "show", "ps"], "toklat port show (a virtual machine is at a port)"),
    (
        "vm",
        &["start", "add", "create"],
        "toklat vm run --switch NAME ..., see toklat vm run --help",
    ),
];

const LOGS: &str = "toklat logs, toklat events (who did what), toklat guest logs NAME";

/// The commands, with what else people call them.
pub fn accept(command: Command) -> Command {
    let taken: Vec<String> = command
        .get_subcommands()
        .flat_map(|sub| sub.get_all_aliases().chain([sub.get_name()]).map(str::to_owned))
        .collect();
    command.mut_subcommands(|sub| {
        let sub = accept_at(sub, &taken);
        if sub.has_subcommands() { accept(sub) } else { sub }
    })
}

fn accept_at(command: Command, taken: &[String]) -> Command {
    let others = ALIASES.iter().find(|(name, _)| *name == command.get_name());
    let others = others.map_or(&[][..], |(_, others)| *others).iter().copied();
    command.aliases(others.filter(|other| !taken.iter().any(|taken| taken == other)))
}

/// What is meant by a word that is no command of `group`.
pub fn meant(error: &Error, group: &Command) -> Option<&'static str> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    // The top has no name of its own among the groups.
    let group = if group.get_name() == "toklat" { "" } else { group.get_name() };
    let is_meant =
        |(of, words, _): &&(&str, &[&str], &str)| *of == group && words.contains(&word.as_str());
    HINTS.iter().find(is_meant).map(|(.., hint)| *hint)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    /// The name of the command that a line reaches.
    fn reached(line: &str) -> String {
        let matches = accept(Cli::command()).try_get_matches_from(line.split(' ')).unwrap();
        let (mut at, mut name) = (&matches, "toklat".to_owned());
        while let Some((sub, matches)) = at.subcommand() {
            (at, name) = (matches, format!("{name} {sub}"));
        }
        name
    }

    #[test]
    fn habits_reach_the_command_that_is_meant() {
        for (line, is) in [
            ("toklat port list", "toklat port show"),
            ("toklat port ls", "toklat port show"),
            ("toklat port create vale0:a", "toklat port add"),
            ("toklat port delete vale0:a", "toklat port rm"),
            ("toklat switch list", "toklat switch show"),
            ("toklat switch create vale0", "toklat switch add"),
            ("toklat switch del vale0", "toklat switch rm"),
            ("toklat fdb list vale0", "toklat fdb show"),
            ("toklat quota ls", "toklat quota show"),
            ("toklat guest ls", "toklat guest list"),
            ("toklat version", "toklat version"),
        ] {
            assert_eq!(reached(line), is, "{line}");
        }
    }

    #[test]
    fn every_hint_is_for_a_word_that_is_no_command_and_names_commands_that_are() {
        let root = accept(Cli::command());
        for (group, words, hint) in HINTS {
            let at = if group.is_empty() { &root } else { root.find_subcommand(group).unwrap() };
            for word in words {
                assert!(at.find_subcommand(word).is_none(), "{group} {word} is a command");
            }
            for command in hint.split("toklat ").skip(1) {
                let word = command.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                // The unit is called as the program.
                let is_known = word.is_empty() || root.find_subcommand(word).is_some();
                assert!(is_known, "`{hint}` names toklat {word}");
            }
        }
    }
}
