//! Topology files.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::mistake;
use super::words::plain;
use crate::api::{ApiError, ErrorCode, Topology};

fn bad(reason: impl Into<String>, remedy: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, reason, remedy)
}

/// Reads the topology file of a daemon (TOML), which may be empty.
///
/// # Errors
/// The file cannot be read, or has an invalid setting.
pub fn read_file(path: &Path) -> anyhow::Result<Topology> {
    read_named(path).map(|(read, _)| read)
}

/// Works as `read_file`; also returns the settings that stand in the file, as JSON.
///
/// # Errors
/// As for [`read_file`].
pub fn read_named(path: &Path) -> anyhow::Result<(Topology, Value)> {
    use anyhow::Context;
    let text =
        fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let says_nothing = |line: &str| line.trim().is_empty() || line.trim().starts_with('#');
    if text.lines().all(says_nothing) {
        return Ok((Topology::default(), Value::Null));
    }
    parse_named(&text).with_context(|| format!("In {}", path.display()))
}

/// Parses and checks the text of a topology file.
///
/// # Errors
/// Says what is wrong, and where.
pub fn parse(text: &str) -> Result<Topology, ApiError> {
    parse_named(text).map(|(read, _)| read)
}

/// Works as `parse`; also returns the settings that the text names, as JSON.
///
/// # Errors
/// As for [`parse`].
pub fn parse_named(text: &str) -> Result<(Topology, Value), ApiError> {
    let wrong = |error: toml::de::Error| {
        let words = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        let words = plain(&words);
        bad(format!("{}{words}", line(text, error.span())), "correct the topology file")
    };
    let table: toml::Table = toml::from_str(text).map_err(wrong)?;
    if table.is_empty() {
        // A truncated file, or a pipe from a command that failed.
        let remedy =
            "to remove what is there: toklat switch rm, or --prune with a file of what is to stay";
        return Err(bad("The topology is empty", remedy));
    }
    let read: Topology = toml::from_str(text).map_err(|error| match mistake::find(&table) {
        Some(mistake) => {
            let line = mistake.line(text).map_or_else(String::new, |line| format!("line {line}: "));
            bad(format!("{line}{mistake}"), "correct the topology file")
        }
        None => wrong(error),
    })?;
    let given = serde_json::to_value(table).unwrap_or_default();
    super::shape::check(&given, &read)?;
    topology::check(&read)?;
    Ok((read, given))
}

/// `line 3: `: where a mistake begins, if that is known.
fn line(text: &str, place: Option<std::ops::Range<usize>>) -> String {
    let before = place.and_then(|place| text.get(..place.start));
    before.map_or_else(String::new, |before| format!("line {}: ", before.matches('\n').count() + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port that is a tunnel, with another setting.
    fn tunnel(local: &str, peers: &[&str], more: &str) -> String {
        let kind = format!("{{ vxlan = {{ vni = 7, local = '{local}', peers = {peers:?} }} }}");
        format!("[switch.v.port.p]\nkind = {kind}\n{more}\n")
    }

    #[test]
    fn settings_that_cannot_be_are_named() {
        for (text, what) in [
            ("[switch.\"va le\"]", "va le"),
            ("[switch.a2345678901234567]", "a234"),
            ("[switch.v]\nworkers = []", "workers"),
            ("[switch.v]\nbatch = 1025", "batch"),
            ("[switch.v]\nmax_ports = 1\n[switch.v.port.a]\n[switch.v.port.b]", "2 ports"),
            ("[switch.v]\nuser = 1\nowner = 2", "its switch belongs"),
            ("[switch.v]\nuser = 1\n[switch.v.port.p]\nowner = 'root'", "v:p belongs to root"),
            ("[switch.v]\nowner = 'no such user'", "no such user"),
            ("[switch.v.port.p]\nmtu = 9217", "mtu"),
            ("[switch.v.port.p]\nworker = 1", "worker"),
            ("[switch.v.port.p]\nmacs = ['01:00:00:00:00:01']", "group"),
            ("[switch.v.port.p]\nguard = true", "no address"),
            ("[switch.v.port.p]\nmirror_egress = 'p'", "itself"),
            ("[switch.v.port.p]\nmirror_egress = 'q'", "v:q, which does not exist"),
            ("[switch.v]\nworkers = [{ cpu = 0 }, { cpu = 0 }]", "CPU 0"),
            (
                "[switch.v.port.p]\nvlan = { trunk = { allowed = [2], native = 3 } }",
                "native VLAN 3",
            ),
            (
                "[switch.v.port.p]\nmacs = ['02:00:00:00:00:01']\n[switch.v.port.q]\n\
                 macs = ['02:00:00:00:00:01']",
                "used twice: by v:p and v:q",
            ),
            (
                "[switch.v.port.p]\nkind = { tap = { ifname = 't' } }\n[switch.w.port.q]\n\
                 kind = { tap = { ifname = 't' } }",
                "Interface t is used twice",
            ),
            (
                "[switch.v.port.p]\nvlan = { access = 2 }\nmacs = ['02:00:00:00:00:01']\n[switch.v.port.q]\n\
                 vlan = { access = 2 }\nmacs = ['02:00:00:00:00:01']",
                "VLAN 2 is used twice",
            ),
            ("", "empty"),
            ("# nothing", "empty"),
            ("[switch.v.port.p]\nkind = { tap = { ifname = 'a/b' } }", "a/b"),
            ("[switch.v.port.p]\nkind = { pcap_read = { path = 'x' } }", "relative"),
            ("[switch.v.port.\"../x\"]", "../x"),
            (&tunnel("0.0.0.0", &["10.0.0.2"], ""), "0.0.0.0 is not an address of one host"),
            (&tunnel("10.0.0.1", &["224.0.0.1"], ""), "224.0.0.1 is not an address of one host"),
            (&tunnel("10.0.0.1", &["::2"], ""), "not of one IP version"),
            (&tunnel("10.0.0.1", &["10.0.0.1"], ""), "10.0.0.1 is this host"),
            (&tunnel("10.0.0.1", &["10.0.0.2", "10.0.0.2"], ""), "named twice"),
            (&tunnel("10.0.0.1", &[], ""), "peers is 0"),
            (&tunnel("10.0.0.1", &["10.0.0.2"], "lossless = true"), "cannot be lossless"),
            (
                &(tunnel("10.0.0.1", &["10.0.0.2"], "")
                    + &tunnel("10.0.0.1", &["10.0.0.3"], "").replace(".p]", ".q]")),
                "VNI 7 at 10.0.0.1:4789 is used twice",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.reason.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn an_address_may_be_in_two_vlans() {
        let port = |name, vlan| {
            format!(
                "[switch.v.port.{name}]\nvlan = {{ access = {vlan} }}\nmacs = ['02:00:00:00:00:01']\n"
            )
        };
        parse(&(port("p", 2) + &port("q", 3))).unwrap();
    }
}
