//! The daemon's topology file at a start, if it has changed since it was applied last.
//!
//! A start has no operator who could be asked. It adds and changes what the file names, keeps the
//! settings that the file does not name, and removes what the file named before only where that is
//! not in use. What cannot be done does not keep the rest: a port whose object is missing waits for
//! it, with the reason. `toklat apply --prune` does the rest, or `--topology-prune` at each start.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::apply::{self, How, Removes};
use super::configure::{merged, merged_port};
use super::file;
use super::log::ACTION;
use super::supervisor::Supervisor;
use crate::api::{self, ApiError, Quotas, SwitchSpec, Topology};

/// Applies the topology file if it has changed. An unchanged or empty file leaves what commands
/// changed since. With `prune`, also removes what is in use, even if the file has not changed.
pub async fn apply_changed(supervisor: &Arc<Supervisor>, file: &Path, prune: bool) {
    let name = apply::name_of(file);
    let (read, named) = match file::read_named(file) {
        Ok(read) => read,
        // The saved topology stays in force.
        Err(error) => {
            return tracing::error!(target: ACTION, %name, %error, "the topology file was not applied");
        }
    };
    // An empty file may have been truncated, so it removes nothing.
    if read == api::Topology::default() {
        return;
    }
    let is_same = supervisor.has_applied(&name, &read).await;
    if is_same && !prune {
        return;
    }
    let removes = if prune { Removes::All } else { Removes::Unused };
    let content = Some(read.clone());
    let how = How { file: name.clone(), removes, content, goes_on: true, ..How::default() };
    let now = Topology::clone(&*supervisor.topology.lock().await);
    let wanted = if is_same { Ok(as_it_is(&now, read)) } else { over(&now, read, &named) };
    let applied = match wanted {
        Ok(wanted) => supervisor.apply(wanted, &how).await,
        Err(error) => Err(error),
    };
    match applied {
        Ok(applied) => {
            // One line: of several alike in a second, the log shows one.
            let changes = applied.changes.iter().map(|c| format!("{} {}", c.action, c.name));
            let changes = changes.collect::<Vec<_>>().join(", ");
            tracing::info!(target: ACTION, %name, changes, "topology file");
        }
        Err(error) => {
            tracing::error!(target: ACTION, %name, %error, "the topology file was not applied")
        }
    }
}

/// What the file names, as it is: only what the file does not name changes.
fn as_it_is(now: &Topology, mut read: Topology) -> Topology {
    read.switch.retain(|name, spec| {
        let old = now.switch.get(name);
        if let Some(old) = old {
            let mut port = std::mem::take(&mut spec.port);
            port.retain(|name, _| old.port.contains_key(name));
            port.iter_mut().for_each(|(name, spec)| spec.clone_from(&old.port[name]));
            *spec = SwitchSpec { port, ..old.clone() };
        }
        old.is_some()
    });
    read.guest.retain(|name, _| now.guest.contains_key(name));
    read.guest.iter_mut().for_each(|(name, spec)| spec.clone_from(&now.guest[name]));
    if read.quota != Quotas::default() {
        read.quota.clone_from(&now.quota);
    }
    read.evpn = read.evpn.and_then(|_| now.evpn.clone());
    read
}

/// What the file says, over what is there: `named` has the settings that stand in the file.
fn over(now: &Topology, mut read: Topology, named: &Value) -> Result<Topology, ApiError> {
    for (name, spec) in &mut read.switch {
        let (Some(old), named) = (now.switch.get(name), &named["switch"][name]) else { continue };
        let mut ports = std::mem::take(&mut spec.port);
        for (port, spec) in &mut ports {
            if let Some(old) = old.port.get(port) {
                *spec = merged_port(old, &named["port"][port])?;
            }
        }
        let mut bare = named.clone();
        bare.as_object_mut().map(|settings| settings.remove("port"));
        let empty = SwitchSpec { port: BTreeMap::new(), ..old.clone() };
        *spec = SwitchSpec { port: ports, ..merged(&empty, &bare)? };
    }
    for (name, spec) in &mut read.guest {
        if let Some(old) = now.guest.get(name) {
            *spec = merged(old, &named["guest"][name])?;
        }
    }
    if read.quota != Quotas::default() {
        read.quota.each = read.quota.each.or(now.quota.each);
        for (uid, old) in &now.quota.user {
            let quota = read.quota.user.entry(*uid).or_default();
            *quota = quota.or(*old);
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::super::file::{parse, parse_named};
    use super::*;

    #[test]
    fn a_start_keeps_settings_that_the_file_does_not_name() {
        let text = "[quota]\nports = 7\n[quota.user.1000]\nports = 8\n[switch.v]\nbatch = 32\n\
                    fdb_ageing_s = 7\n[switch.v.port.p]\nmtu = 9000\nlossless = true\n\
                    [switch.v.port.q]\n[guest.web]\nport = 'v:web'\napp = 'httpd'\n\
                    address = '10.0.0.2/24'\ncount = 3";
        let now = parse(text).unwrap();
        let file = "[quota]\npipes = 9\n[switch.v]\nbatch = 16\n[switch.v.port.p]\nlossless = false\n\
                    [switch.v.port.r]\n[guest.web]\nport = 'v:web'\napp = 'httpd'\n\
                    address = '10.0.0.3/24'\n[switch.w]";
        let (read, named) = parse_named(file).unwrap();
        let wanted = over(&now, read, &named).unwrap();
        let expected = "[quota]\nports = 7\npipes = 9\n[quota.user.1000]\nports = 8\n[switch.v]\n\
                        batch = 16\nfdb_ageing_s = 7\n[switch.v.port.p]\nmtu = 9000\nlossless = false\n\
                        [switch.v.port.r]\n[guest.web]\nport = 'v:web'\napp = 'httpd'\n\
                        address = '10.0.0.3/24'\ncount = 3\n[switch.w]";
        assert_eq!(wanted, parse(expected).unwrap());
    }
}
