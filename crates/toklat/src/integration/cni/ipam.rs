//! Addresses from an IPAM plugin: `host-local`, `static`, `dhcp`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Map, Value};

use super::attachment::variable;
use super::{Code, Failure};

/// The last version of the specification before 1.1.0.
const OLDER: &str = "1.0.0";

/// The error of plugins that know neither GC nor STATUS.
const UNKNOWN: [u16; 2] = [3, Code::Environment as u16];

/// The outcome of an IPAM plugin's call.
#[derive(Debug)]
enum Answer {
    Done(Value),
    /// The plugin does not support this version of the configuration, and perhaps not the command.
    OtherVersion(Failure),
}

/// Calls the plugin with this command and configuration, and our environment.
///
/// Plugins from before 1.1.0 refuse newer configurations. They are called with an older version,
/// because ADD, DEL and CHECK read the same fields in both.
pub fn call(command: &str, plugin: &str, config: &Map<String, Value>) -> Result<Value, Failure> {
    let refused = match run(command, plugin, config)? {
        Answer::Done(answer) => return Ok(answer),
        Answer::OtherVersion(refused) => refused,
    };
    let mut older = config.clone();
    older.insert("cniVersion".into(), OLDER.into());
    if let Some(Value::Object(previous)) = older.get_mut("prevResult") {
        previous.insert("cniVersion".into(), OLDER.into());
    }
    match run(command, plugin, &older)? {
        Answer::Done(answer) => Ok(answer),
        Answer::OtherVersion(_) => Err(refused),
    }
}

/// Works as [`call`], for commands that older plugins do not have. Those plugins have nothing to
/// do.
pub fn call_if_known(
    command: &str,
    plugin: &str,
    config: &Map<String, Value>,
) -> Result<(), Failure> {
    match run(command, plugin, config) {
        Err(failure) if UNKNOWN.contains(&failure.code) => Ok(()),
        ended => ended.map(drop),
    }
}

fn run(cni_command: &str, plugin: &str, config: &Map<String, Value>) -> Result<Answer, Failure> {
    let program = find(plugin)?;
    let failed = |e: std::io::Error| {
        Failure::new(
            Code::Io,
            format!("The IPAM plugin {} cannot be run", program.display()),
            e.to_string(),
        )
    };
    let mut command = Command::new(&program);
    command.env("CNI_COMMAND", cni_command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A plugin that does not read its input reports why.
        let _ = stdin.write_all(Value::from(config.clone()).to_string().as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    let text = output.stdout.trim_ascii();
    if output.status.success() {
        let answer = if text.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(text) };
        let no_json = |e: serde_json::Error| {
            Failure::new(
                Code::Decode,
                format!("The answer of {plugin} cannot be read"),
                e.to_string(),
            )
        };
        return Ok(Answer::Done(answer.map_err(no_json)?));
    }
    refused(plugin, text)
}

/// Parses a plugin's error, in the JSON of the specification.
fn refused(plugin: &str, text: &[u8]) -> Result<Answer, Failure> {
    let said: Value = serde_json::from_slice(text).unwrap_or_default();
    let word = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
    let code = said["code"].as_u64();
    let mut failure =
        Failure::new(Code::Io, format!("IPAM plugin {plugin}: {}", word("msg")), word("details"));
    failure.code = code.and_then(|code| code.try_into().ok()).unwrap_or(failure.code);
    if code == Some(u64::from(Code::Version as u16)) {
        Ok(Answer::OtherVersion(failure))
    } else {
        Err(failure)
    }
}

/// The plugin's program in `CNI_PATH`.
fn find(plugin: &str) -> Result<PathBuf, Failure> {
    let path = variable("CNI_PATH");
    let dirs = path.split(':').filter(|dir| !dir.is_empty());
    let found = dirs.map(|dir| PathBuf::from(dir).join(plugin)).find(|program| program.is_file());
    let is_name = !plugin.contains('/');
    found.filter(|_| is_name).ok_or_else(|| {
        let remedy = format!(
            "looked in CNI_PATH={path}; install it (apt install containernetworking-plugins)"
        );
        Failure::new(Code::Config, format!("There is no IPAM plugin {plugin:?}"), remedy)
    })
}
