//! Options that every command takes: where the daemon is, and how to print.

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

use crate::Result;
use crate::table::Table;

/// Options that every command takes, before or after its name.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Global options"))]
pub struct Global {
    /// Runtime directory: sockets and state [default: $XDG_RUNTIME_DIR/toklat, else /run/toklat, or
    /// ~/.toklat of a user where no daemon serves that]
    #[cfg_attr(
        feature = "clap",
        arg(long, global = true, display_order = 900, value_name = "DIR")
    )]
    #[cfg_attr(feature = "clap", arg(env = "TOKLAT_DIR", hide_env_values = true))]
    pub dir: Option<PathBuf>,
    /// Print JSON instead of tables: exact numbers, the control API's shapes
    #[cfg_attr(feature = "clap", arg(long, global = true, display_order = 901))]
    pub json: bool,
}

impl Global {
    /// The runtime directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        // An empty TOKLAT_DIR counts as not set.
        let given = self.dir.clone().filter(|dir| !dir.as_os_str().is_empty());
        given.unwrap_or_else(api::runtime_directory)
    }

    /// Prints `value` as JSON if `--json` is set, else the table made of it. For a table without
    /// rows it prints the line `nothing` on stderr.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print_list(
        &self,
        value: &impl Serialize,
        table: impl FnOnce() -> Table,
        nothing: &str,
    ) -> Result {
        if self.json {
            return print_json(value);
        }
        let table = table();
        if table.is_empty() {
            eprintln!("{nothing}");
        } else {
            write!(std::io::stdout().lock(), "{table}")?;
        }
        Ok(())
    }

    /// Prints `value` as JSON if `--json` is set, else one line that says what was done.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print_done(&self, value: &impl Serialize, line: &str) -> Result {
        if self.json {
            return print_json(value);
        }
        writeln!(std::io::stdout().lock(), "{line}")?;
        Ok(())
    }

    /// Prints that `name` was removed. With `--json` it prints nothing, as the API replies nothing.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print_removed(&self, name: &impl std::fmt::Display) -> Result {
        if !self.json {
            writeln!(std::io::stdout().lock(), "removed {name}")?;
        }
        Ok(())
    }
}

/// Prints `value` as indented JSON.
///
/// # Errors
/// If standard output cannot be written.
pub fn print_json(value: &impl Serialize) -> Result {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    std::io::stdout().lock().write_all(&text)?;
    Ok(())
}
