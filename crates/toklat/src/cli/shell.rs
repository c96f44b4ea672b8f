//! `toklat completions` and `toklat man`: this program's own description, for shells and man.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::CommandFactory;

use super::{Cli, Result};

/// Options of `toklat completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell; bash: save as /usr/share/bash-completion/completions/toklat
    shell: clap_complete::Shell,
}

/// Options of `toklat man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Where to write toklat.1 and a page for each command; made if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints a completion script.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "toklat", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// Writes all manual pages: `toklat.1`, `toklat-port.1`, `toklat-port-add.1` and so on.
///
/// # Errors
/// If the directory cannot be made or a page cannot be written.
pub fn man(args: &ManArgs) -> Result {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("Cannot make the directory {}", directory.display()))?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    write_pages(&root, directory)
}

fn write_pages(command: &clap::Command, directory: &Path) -> Result {
    let page = clap_mangen::Man::new(command.clone());
    let path = directory.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(&path, text).with_context(|| format!("Cannot write {}", path.display()))?;
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        write_pages(sub, directory)?;
    }
    Ok(())
}
