//! `toklat man`: this program's own description as manual pages.

mod examples;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::Man;

use super::Cli;
use client::Result;
use topology::rules::{RULES, Takes};

/// The page about topology files.
const TOPOLOGY: &str = include_str!("toklat-topology.5");

/// How every command ends.
const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "Done."),
    ("1", "Failed: the reason and the remedy are on standard error."),
    ("2", "Wrong usage; nothing was changed."),
    ("3", "The daemon does not run."),
];

const FILES: [(&str, &str); 8] = [
    ("/run/toklat/control.sock", "Where the daemon is controlled (group toklat-admin)."),
    ("/run/toklat/view.sock", "Where the daemon is read, and not changed (group toklat-view)."),
    ("/run/toklat/attach.sock", "Where clients open ports (group toklat)."),
    (
        "/run/toklat/SWITCH-PORT.sock",
        "The socket of a port that waits for a front end or a peer, where no other is named.",
    ),
    (
        "/etc/toklat/net.toml",
        "The topology that the packaged daemon starts with; see toklat-topology(5).",
    ),
    (
        "/var/lib/toklat/topology.json",
        "What was configured last; it is there again after a restart.",
    ),
    (
        "/usr/lib/toklat/service",
        "What toklat service enable links to below /etc: for systemd, AppArmor and udev.",
    ),
    (
        "/usr/share/doc/toklat",
        "Recipes for virtual machines and containers, the HTTP API, monitoring.",
    ),
];

const ENVIRONMENT: [(&str, &str); 7] = [
    ("TOKLAT_DIR", "The runtime directory, where --dir does not say it."),
    (
        "XDG_RUNTIME_DIR",
        "The runtime directory is toklat below it, where neither says it; else it is /run/toklat, or \
         ~/.toklat of a user where no daemon serves that.",
    ),
    (
        "TOKLAT_LOG",
        "What the daemon logs: error, warn, info, debug or trace, also by part of the program.",
    ),
    ("TOKLAT_QEMU", "The QEMU that toklat vm runs."),
    ("TOKLAT_GUEST", "The directory of the test guest."),
    (
        "TOKLAT_SERVICE",
        "Set by the packaged unit: the daemon's errors then name toklat service enable.",
    ),
    ("STATE_DIRECTORY", "Where the daemon keeps what was configured; systemd sets it."),
];

/// Options of `toklat man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Where to write toklat.1, a page for each command and toklat-topology.5; made if it does not
    /// exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes all manual pages: `toklat.1`, `toklat-port.1`, `toklat-port-add.1` and so on, and
/// `toklat-topology.5`.
///
/// # Errors
/// If the directory cannot be made or a page cannot be written.
pub fn man(args: &ManArgs) -> Result {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("Cannot make the directory {}", directory.display()))?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    write_file(&directory.join("toklat-topology.5"), topology_page().as_bytes())?;
    write_pages(&root, None, directory)
}

/// The page about topology files, with the words of rules.
fn topology_page() -> String {
    let roff = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    let mut rules = String::new();
    for word in RULES.iter().flat_map(|rule| rule.words) {
        let value = if word.takes == Takes::Nothing { "true" } else { word.value };
        let (value, help) = (roff(value), roff(word.help));
        // Writing to a string does not fail.
        let _ = write!(rules, ".TP\n.BR {} \" = \\fI{value}\\fB\"\n{help}.\n", word.name);
    }
    TOPOLOGY.replace(".\\\" RULES\n", &rules)
}

fn write_file(path: &Path, text: &[u8]) -> Result {
    std::fs::write(path, text).with_context(|| format!("Cannot write {}", path.display()))
}

fn write_pages(command: &clap::Command, parent: Option<&str>, directory: &Path) -> Result {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    write_file(&directory.join(format!("{name}.1")), &page(command, &name, parent)?)?;
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        write_pages(sub, Some(&name), directory)?;
    }
    Ok(())
}

/// A command's page.
fn page(command: &clap::Command, name: &str, parent: Option<&str>) -> Result<Vec<u8>> {
    let page = Man::new(command.clone()).manual("toklat's manual");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    let mut rest = String::new();
    examples(&mut rest, command, name);
    list(&mut rest, "EXIT STATUS", &EXIT_STATUS);
    list(&mut rest, "FILES", &FILES);
    list(&mut rest, "ENVIRONMENT", &ENVIRONMENT);
    see_also(&mut rest, command, parent);
    text.extend(rest.bytes());
    Ok(text)
}

/// The examples of a command: those in its help, else those of our table.
fn examples(page: &mut String, command: &clap::Command, name: &str) {
    let help = command.get_after_help().map(ToString::to_string);
    let Some(text) = help.or_else(|| examples::of(name).map(str::to_owned)) else { return };
    page.push_str(".SH EXAMPLES\n");
    let mut literal = false;
    for line in text.lines() {
        let is_command = line.starts_with("  ");
        if is_command != literal {
            page.push_str(if is_command { ".PP\n.RS 4\n.nf\n" } else { ".fi\n.RE\n" });
            literal = is_command;
        }
        match line.trim() {
            "" => page.push_str(".PP\n"),
            "Examples:" | "Example:" => {}
            text => drop(writeln!(page, "{}", escaped(text))),
        }
    }
    if literal {
        page.push_str(".fi\n.RE\n");
    }
}

/// A section of terms and their explanations.
fn list(page: &mut String, title: &str, items: &[(&str, &str)]) {
    let _ = writeln!(page, ".SH {title:?}");
    for (word, meaning) in items {
        let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(word), escaped(meaning));
    }
}

/// The pages above and below a command's, and the pages that every page refers to.
fn see_also(page: &mut String, command: &clap::Command, parent: Option<&str>) {
    let below = command.get_subcommands().filter(|c| !c.is_hide_set());
    let below = below.map(|c| c.get_display_name().unwrap_or_else(|| c.get_name()).to_owned());
    let mut pages: Vec<String> = parent.map(str::to_owned).into_iter().chain(below).collect();
    if parent.is_some_and(|parent| parent != "toklat") {
        pages.push("toklat".into());
    }
    let mut pages: Vec<String> =
        pages.iter().map(|page| format!("\\fB{}\\fR(1)", escaped(page))).collect();
    pages.push("\\fBtoklat\\-topology\\fR(5)".into());
    let _ = writeln!(page, ".SH \"SEE ALSO\"\n{}", pages.join(",\n"));
}

/// Escapes text for roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Calls `check` with each visible command and its page's name.
    fn walk(command: &clap::Command, check: &mut dyn FnMut(&clap::Command, &str)) {
        check(command, command.get_display_name().unwrap_or_else(|| command.get_name()));
        command.get_subcommands().filter(|c| !c.is_hide_set()).for_each(|sub| walk(sub, check));
    }

    /// The lines of a page's examples that run this program.
    fn commands(page: &str) -> Vec<String> {
        let (_, examples) = page.split_once(".SH EXAMPLES\n").unwrap_or_default();
        let (examples, _) = examples.split_once(".SH").unwrap_or_default();
        let plain = examples.replace("\\-", "-").replace("\\e", "\\");
        let parts = plain.lines().flat_map(|line| line.split("| "));
        parts.filter(|part| part.starts_with("toklat ")).map(str::to_owned).collect()
    }

    /// The words of a line, as a shell splits them.
    fn words(line: &str) -> Vec<String> {
        let quote = if line.contains('\'') { '\'' } else { '"' };
        let parts = line.split(quote).enumerate();
        let words = parts.flat_map(|(at, part)| match at % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        words.collect()
    }

    #[test]
    fn every_command_has_examples_that_it_takes() {
        let mut root = Cli::command().disable_help_subcommand(true);
        root.build();
        let mut wrong = Vec::new();
        walk(&root, &mut |command, name| {
            let text = String::from_utf8(page(command, name, None).unwrap()).unwrap();
            let lines = commands(&text);
            if lines.is_empty() {
                wrong.push(format!("{name}: no example"));
            }
            for line in lines {
                let line = line.split(['#', '|', '>', ';']).next().unwrap_or_default();
                // A remark follows three spaces.
                let line = line.split("   ").next().unwrap_or_default().trim_end_matches('&');
                if let Err(error) = Cli::try_parse_from(words(line)) {
                    let error = error.to_string();
                    // The user in an example need not exist on this machine.
                    if !error.contains("There is no user") {
                        wrong.push(format!(
                            "{name}: {line}: {}",
                            error.lines().next().unwrap_or_default()
                        ));
                    }
                }
            }
        });
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
