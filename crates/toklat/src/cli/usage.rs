//! How wrong usage is answered: what is wrong, and how the command is written.

use clap::{Command, CommandFactory, Error};

use super::{Cli, habits};

/// The answer to a command line that clap refuses; `args` has the program's name first.
#[must_use]
pub fn answer(error: &Error, args: &[String]) -> String {
    let text = error.render().to_string();
    let parts = text.split("\n\n").map(in_one_line);
    let said = parts.filter(|part| !part.starts_with("Usage:") && !part.starts_with("For more "));
    // An option that a command does not have is no value of it either.
    let said = said.filter(|part| !part.starts_with("tip: to pass "));
    let said = said.map(|part| part.trim_start_matches("error: ").replace("tip: ", ""));
    let said: Vec<String> = said.filter(|part| !part.is_empty()).collect();
    let mut root = habits::accept(Cli::command());
    root.build();
    let command = of(&root, args);
    if let Some(meant) = habits::meant(error, command) {
        return format!("toklat: {}; use {meant}", said.first().map_or("", String::as_str));
    }
    let usage = in_one_line(&command.clone().render_usage().to_string());
    format!("toklat: {}\n{usage}; see --help", said.join("; "))
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The command that the words name, as far as they name one.
fn of<'c>(root: &'c Command, args: &[String]) -> &'c Command {
    args.iter().skip(1).fold(root, |command, word| command.find_subcommand(word).unwrap_or(command))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn answer_to(line: &str) -> String {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        answer(&Cli::try_parse_from(&args).unwrap_err(), &args)
    }

    #[test]
    fn what_is_wrong_is_one_line_and_the_usage_another() {
        assert_eq!(
            answer_to("toklat port rm"),
            "toklat: the following required arguments were not provided: <NAME>...\n\
             Usage: toklat port rm [OPTIONS] <NAME>...; see --help"
        );
        let said = answer_to("toklat --json swich show");
        let meant = "unrecognized subcommand 'swich'; a similar subcommand exists: 'switch'\n";
        assert!(said.contains(meant), "{said}");
        let said = answer_to("toklat port add vale0:a -c");
        assert!(said.starts_with("toklat: unexpected argument '-c' found\nUsage: "), "{said}");
        let said = answer_to("toklat vm list");
        assert!(said.contains("'list'; use toklat port show"), "{said}");
        let said = answer_to("toklat journal");
        assert!(said.contains("'journal'; use toklat logs, toklat events"), "{said}");
        let said = answer_to("toklat switch add vale0 --idle maybe");
        assert!(said.contains("[possible values: auto, poll, sleep]\nUsage: "), "{said}");
        assert!(said.ends_with("toklat switch add [OPTIONS] <NAME>; see --help"), "{said}");
    }
}
