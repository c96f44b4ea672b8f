//! The CNI plugin (<https://www.cni.dev/docs/spec/>, 1.1.0): gives a container a tap, or a vhost-user socket, on a switch.
//!
//! The same program as all of toklat, called `toklat-cni`. A runtime says what to do in `CNI_COMMAND` and sends the
//! network's configuration on standard input; the answer, or the error, is JSON on standard output.

mod attachment;
mod command;
mod config;
mod ipam;
mod namespace;

use std::io::{Read, Write};
use std::process::ExitCode;

use serde::Serialize;

/// What the program is called when it is the plugin.
pub const PROGRAM: &str = "toklat-cni";

/// The version of an answer to a configuration that names none.
const VERSION: &str = "1.1.0";

/// Versions of configurations that are understood.
const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", VERSION];

/// Longest configuration that is read.
const LONGEST: u64 = 16 << 20;

/// Errors of the specification, and ours from 100 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Code {
    /// The configuration's version is none of ours.
    Version = 1,
    /// `CNI_*` variables are missing or wrong.
    Environment = 4,
    /// Something could not be read or started.
    Io = 5,
    /// The configuration is no JSON, or an IPAM plugin's answer is none.
    Decode = 6,
    /// The configuration's fields contradict each other or name what is not there.
    Config = 7,
    /// The daemon does not run: later it may.
    Again = 11,
    /// No container can be attached.
    Unavailable = 50,
    /// The daemon refused.
    Refused = 100,
    /// A program failed in the container's namespace.
    Namespace = 101,
    /// An attachment is not as it was made.
    Check = 102,
}

/// An error as runtimes read it.
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

    /// What the daemon refused, or that it does not run.
    fn refused(what: &str, error: &anyhow::Error) -> Self {
        use control::ClientError::NotRunning;
        let code = match error.downcast_ref() {
            Some(NotRunning { .. }) => Code::Again,
            _ => Code::Refused,
        };
        Self::new(code, what, format!("{error:#}"))
    }
}

/// Whether the program was started by the plugin's name.
#[must_use]
pub fn is_wanted() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| std::path::Path::new(&name).file_name() == Some(PROGRAM.as_ref()))
}

/// Does what the environment and standard input say.
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
