//! Programs that run with the library of `toklat run`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use super::{Daemon, PATIENCE, wait};

/// The library for `LD_PRELOAD`, which is built if it is not there.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_BIN_EXE_toklat")).parent().unwrap();
        let profile = match directory.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            other => other,
        };
        let target = directory.parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--offline", "--package", "toklat-preload", "--profile", profile]);
        build.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        directory.join("libtoklat_preload.so")
    })
}

impl Daemon {
    /// `toklat run` with options, and a program with its arguments after `--`.
    pub fn run_program<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
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

/// Waits for a program to end, and returns its output. Ends the program if it takes too long.
pub fn end_of(mut child: Child) -> Output {
    if wait(&mut child, PATIENCE).is_none() {
        child.kill().unwrap();
    }
    child.wait_with_output().unwrap()
}

/// The text that a program printed: its output, then its errors.
pub fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}
