//! Addresses, which another plugin gives: `host-local`, `static`, `dhcp`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Map, Value};

use super::attachment::variable;
use super::{Code, Failure};

/// The last version before ours.
const OLDER: &str = "1.0.0";

/// What plugins that know neither GC nor STATUS answer to them.
const UNKNOWN: [u16; 2] = [3, Code::Environment as u16];

/// What an IPAM plugin did, or why it did not.
#[derive(Debug)]
enum Answer {
    Done(Value),
    /// It knows neither this version of the configuration nor, maybe, the command.
    OtherVersion(Failure),
}

/// Calls the plugin with this command and configuration, and our environment.
///
/// Plugins of before 1.1.0 refuse its configurations, which differ in nothing that ADD, DEL and CHECK read.
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

/// As [`call`], for commands that plugins of before 1.1.0 do not have: those have nothing to do.
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
        // One that does not read it says why.
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

/// What a plugin says that refuses: an error of the specification, in JSON.
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
