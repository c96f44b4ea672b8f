//! The CNI plugin (<https://www.cni.dev/docs/spec/>, 1.1.0): gives a container a tap, or a
//! vhost-user socket, on a switch.
//!
//! It is the same program as toklat, under the name `toklat-cni`. A runtime sets `CNI_COMMAND` and
//! sends the network's configuration on standard input. The answer, or the error, is JSON on
//! standard output.

mod attachment;
mod command;
mod config;
mod ipam;
mod namespace;

use std::io::{Read, Write};
use std::process::ExitCode;

use serde::Serialize;

/// The program's name when it is the plugin.
pub const PROGRAM: &str = "toklat-cni";

/// The version of the answer if the configuration names none.
const VERSION: &str = "1.1.0";

/// The versions of configurations that this plugin supports.
const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", VERSION];

/// Longest configuration that is read.
const LONGEST: u64 = 16 << 20;

/// Error codes of the specification, and ours from 100 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Code {
    /// The configuration's version is not supported.
    Version = 1,
    /// `CNI_*` variables are missing or wrong.
    Environment = 4,
    /// Something could not be read or started.
    Io = 5,
    /// The configuration, or an IPAM plugin's answer, is not JSON.
    Decode = 6,
    /// The configuration's fields contradict each other, or name something that does not exist.
    Config = 7,
    /// The daemon does not run. A later attempt may succeed.
    Again = 11,
    /// No container can be attached.
    Unavailable = 50,
    /// The daemon refused.
    Refused = 100,
    /// A program failed in the container's namespace.
    Namespace = 101,
    /// An attachment has changed since it was made.
    Check = 102,
}

/// An error in the format that runtimes read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Failure {
    #[serde(rename = "cniVersion")]
    version: String,
    code: u16,
    msg: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    details: String,
}

impl Failure {
    fn new(code: Code, msg: impl Into<String>, details: impl Into<String>) -> Self {
        let (msg, details) = (msg.into(), details.into());
        Self { version: VERSION.into(), code: code as u16, msg, details }
    }

    /// Converts the daemon's refusal, or its absence, to an error.
    fn refused(what: &str, error: &anyhow::Error) -> Self {
        use client::ClientError::NotRunning;
        let code = match error.downcast_ref() {
            Some(NotRunning { .. }) => Code::Again,
            _ => Code::Refused,
        };
        Self::new(code, what, format!("{error:#}"))
    }
}

/// Whether the program was started under the plugin's name.
#[must_use]
pub fn is_wanted() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| std::path::Path::new(&name).file_name() == Some(PROGRAM.as_ref()))
}

/// Executes the command of the environment, with standard input.
#[must_use]
pub fn main() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_none() {
        eprintln!(
            "{PROGRAM}: a CNI plugin, version {}: container runtimes call it; CNI versions {}. \
             See /usr/share/doc/toklat/containers.md",
            env!("CARGO_PKG_VERSION"),
            VERSIONS.join(", ")
        );
        return ExitCode::SUCCESS;
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(LONGEST).read_to_string(&mut text);
    let read =
        read.map_err(|e| Failure::new(Code::Io, "Cannot read the configuration", e.to_string()));
    match read.and_then(|_| command::run(&text)) {
        Ok(answer) => print(answer.as_ref(), ExitCode::SUCCESS),
        Err(mut failure) => {
            failure.version = config::version_of(&text);
            print(Some(&failure), ExitCode::FAILURE)
        }
    }
}

fn print(answer: Option<&impl Serialize>, code: ExitCode) -> ExitCode {
    let Some(answer) = answer else { return code };
    let text = serde_json::to_string_pretty(answer).unwrap_or_default();
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}
