//! Programs that run with the library of `toklat run`.

use std::ffi::OsStr;
use std::process::{Child, Command, Output, Stdio};

use crate::artifacts::library;
use crate::{Daemon, end_of, program};

impl Daemon {
    /// `toklat run` with options, and a program with its arguments after `--`.
    pub fn run_program<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(program());
        command.env("TOKLAT_DIR", self.dir()).env("TOKLAT_PRELOAD", library());
        command.arg("run").args(arguments).stdin(Stdio::null());
        command
    }

    /// Starts it.
    pub fn start_run(&self, arguments: &[&str]) -> Child {
        let mut command = self.run_program(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a program to its end, and returns its output.
    pub fn output_of(&self, arguments: &[&str]) -> Output {
        end_of(self.start_run(arguments))
    }
}
