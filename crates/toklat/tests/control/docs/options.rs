//! Commands and options of the program, as documents name them.

use clap::CommandFactory;

/// The program's command line.
pub struct Cli(clap::Command);

impl Cli {
    pub fn new() -> Self {
        let mut cli = toklat::cli::Cli::command();
        cli.build();
        Self(cli)
    }

    /// What is wrong with a piece of a document, if it names a command or an option of ours that is
    /// not there.
    pub fn fault(&self, span: &str) -> Option<String> {
        let own = span.split(" -- ").next().unwrap();
        let mut words = own
            .split(&[' ', '[', ']', '|', ',', '=', '(', ')'][..])
            .filter(|word| !word.is_empty());
        let mut command = &self.0;
        // Alone, or of another program.
        let first = words.next()?;
        if first != "toklat" {
            let is_ours = first.strip_prefix("--").is_none_or(|option| has(command, option));
            return (!is_ours).then(|| format!("no command has {first}"));
        }
        for word in words {
            if let Some(option) = word.strip_prefix("--") {
                if !has(command, option) {
                    return Some(format!("{:?} has no --{option}: {span}", command.get_name()));
                }
            } else if let Some(sub) = command.find_subcommand(word) {
                command = sub;
            } else if command.has_subcommands() && word.chars().all(|c| c.is_ascii_lowercase()) {
                return Some(format!("{:?} has no {word}: {span}", command.get_name()));
            }
        }
        None
    }
}

/// True if a command, or one below it, has an option of this name.
fn has(command: &clap::Command, option: &str) -> bool {
    let is_it = |argument: &clap::Arg| {
        let names = argument.get_long_and_visible_aliases().unwrap_or_default();
        names.contains(&option)
            || argument.get_all_aliases().is_some_and(|all| all.contains(&option))
    };
    option.is_empty()
        || command.get_arguments().any(is_it)
        || command.get_subcommands().any(|sub| has(sub, option))
}

#[test]
fn what_is_not_there_is_found() {
    let cli = Cli::new();
    for good in [
        "toklat port add vale0:x --nic 82574l",
        "--nic",
        "cargo run --release",
        "toklat run -- x --y",
    ] {
        assert_eq!(cli.fault(good), None, "{good}");
    }
    for bad in
        ["toklat port add vale0:x --vfio-user", "--vfio-user", "toklat prot add", "toklat port ad"]
    {
        assert!(cli.fault(bad).is_some(), "{bad}");
    }
}
