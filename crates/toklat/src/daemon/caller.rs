//! Who asks for a change, and what of the host it may have.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use link::LinkConfig;
use topology::Policy;

use super::open::{self, Reach};
use super::store::EVPN;
use crate::api::{ApiError, Change, ErrorCode, PortKind, SwitchSpec, Topology};
use crate::guests::programs;

/// Who asks for a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caller {
    /// The operator: at the control socket, or by the daemon's own options.
    #[default]
    Local,
    /// A client over TCP. A token is easier lost than a login, so this caller changes switches and
    /// nothing else of the host: [`Reach`] lists the kinds of ports that it may open.
    Remote,
}

/// The directory of captures, in the directory that keeps the topology.
const CAPTURES: &str = "captures";

/// The directory in which clients over TCP may have capture files.
#[must_use]
pub fn captures(state: &Path) -> PathBuf {
    std::path::absolute(state).unwrap_or_else(|_| state.to_owned()).join(CAPTURES)
}

impl Caller {
    /// Checks what `wanted` would take of the host. What there is in `now` may stay. `state` is the
    /// directory that keeps the topology.
    ///
    /// # Errors
    /// Names the first object that the caller may not have.
    pub(super) fn check(
        self,
        now: &Topology,
        wanted: &Topology,
        state: &Path,
    ) -> Result<(), ApiError> {
        if self == Self::Local {
            return Ok(());
        }
        if wanted.evpn.is_some() && wanted.evpn != now.evpn {
            return Err(refused("evpn", "EVPN", "it starts a program and talks to other hosts"));
        }
        for (name, spec) in &wanted.switch {
            let old = now.switch.get(name);
            self.check_switch(name, old, spec)?;
            for (port, spec) in &spec.port {
                let old = old.and_then(|old| old.port.get(port)).map(|old| &old.kind);
                self.check_port(&format!("{name}:{port}"), old, &spec.kind, state)?;
                self.check_links(&format!("{name}:{port}"), &spec.policy)?;
            }
        }
        for (name, link) in
            wanted.link.iter().filter(|(name, link)| now.link.get(*name) != Some(*link))
        {
            self.check_link(&format!("link.{name}"), &link.words())?;
        }
        let may = |name: &String| {
            let spec = &wanted.guest[name];
            programs::is_built_in(&spec.app) || now.guest.get(name) == Some(spec)
        };
        match wanted.guest.keys().find(|name| !may(name)) {
            None => Ok(()),
            Some(name) => {
                let app = &wanted.guest[name].app;
                let reason = format!("guest.{name}: over TCP, {app} cannot be started");
                let remedy = "use the control socket, or a program that is built in \
                              (`toklat guest programs`)";
                Err(ApiError::new(ErrorCode::Forbidden, reason, remedy))
            }
        }
    }

    /// What the caller may read of a topology: over TCP, which is not encrypted, no password.
    #[must_use]
    pub(super) fn readable(self, mut topology: Topology) -> Topology {
        if self == Self::Remote {
            let neighbors = topology.evpn.iter_mut().flat_map(|evpn| &mut evpn.neighbor);
            neighbors.for_each(|neighbor| neighbor.password = None);
        }
        topology
    }

    /// The steps of a plan as the caller may read them: over TCP, without EVPN's settings.
    #[must_use]
    pub(super) fn readable_plan(self, mut plan: Vec<Change>) -> Vec<Change> {
        let hidden = plan.iter_mut().filter(|change| self == Self::Remote && change.name == EVPN);
        hidden.for_each(|change| change.settings.clear());
        plan
    }

    /// The topology that the caller means: EVPN as it could read it stands for EVPN as it is.
    #[must_use]
    pub(super) fn meant(self, now: &Topology, mut wanted: Topology) -> Topology {
        if wanted.evpn.is_some() && wanted.evpn == self.readable(now.clone()).evpn {
            wanted.evpn.clone_from(&now.evpn);
        }
        wanted
    }

    /// Checks a switch without its ports.
    ///
    /// # Errors
    /// It would send samples to another collector than before.
    pub(super) fn check_switch(
        self,
        name: &str,
        old: Option<&SwitchSpec>,
        new: &SwitchSpec,
    ) -> Result<(), ApiError> {
        let was = old.and_then(|old| old.sflow.as_ref());
        match (self, &new.sflow) {
            (Self::Remote, Some(collector)) if was != Some(collector) => {
                Err(refused(name, "sflow", "it sends samples of frames to another host"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the links of port `name` read no file of the host.
    ///
    /// # Errors
    /// The caller may not have one read.
    pub(super) fn check_links(self, name: &str, policy: &Policy) -> Result<(), ApiError> {
        let links = [&policy.tx_link, &policy.rx_link].into_iter().flatten();
        links.into_iter().try_for_each(|words| self.check_link(name, words))
    }

    fn check_link(self, name: &str, words: &str) -> Result<(), ApiError> {
        let line = words.parse::<LinkConfig>().unwrap_or_default();
        let reads = self == Self::Remote && line.files().next().is_some();
        if reads { Err(refused(name, "a trace", "it is a file of this host")) } else { Ok(()) }
    }

    /// Checks what port `name` would take of the host. A kind that it has already may stay.
    ///
    /// # Errors
    /// The caller may not have it.
    pub(super) fn check_port(
        self,
        name: &str,
        old: Option<&PortKind>,
        new: &PortKind,
        state: &Path,
    ) -> Result<(), ApiError> {
        if self == Self::Local || old == Some(new) {
            return Ok(());
        }
        match open::of(new).reach() {
            Reach::Switch => Ok(()),
            Reach::Host(what) => Err(refused(name, new.word(), what)),
            Reach::Capture(path) => check_capture(name, Path::new(path), &captures(state)),
        }
    }
}

/// Checks that a capture is in the directory for captures itself, not further below. Makes that
/// directory at its first use.
fn check_capture(name: &str, path: &Path, captures: &Path) -> Result<(), ApiError> {
    let is_name = matches!(path.components().next_back(), Some(Component::Normal(_)));
    if is_name && path.parent() == Some(captures) {
        // If it cannot be made, opening the file says why.
        let made = std::fs::create_dir(captures);
        let _ = made
            .and_then(|()| std::fs::set_permissions(captures, PermissionsExt::from_mode(0o700)));
        return Ok(());
    }
    let reason = format!("{name}: over TCP, {} cannot be a capture", path.display());
    let remedy = format!("name a file in {}, or use the control socket", captures.display());
    Err(ApiError::new(ErrorCode::Forbidden, reason, remedy))
}

fn refused(name: &str, what: &str, why: &str) -> ApiError {
    let reason = format!("{name}: {what} cannot be set over TCP: {why}");
    ApiError::new(ErrorCode::Forbidden, reason, "use the control socket, on the daemon's host")
}

/// A topology of one port, for its checks.
pub(super) fn of_switch(name: &str, spec: SwitchSpec) -> Topology {
    Topology { switch: BTreeMap::from([(name.to_owned(), spec)]), ..Topology::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Action;
    use serde_json::{Value, json};

    /// Each kind, with settings that it may have, and whether a caller over TCP may open it.
    fn kinds() -> Vec<(Value, bool)> {
        let nic = |path: Value| json!({"vfio_user": {"path": path, "nic": {"model": "82574l"}}});
        vec![
            (json!("ring"), true),
            (json!("null"), true),
            (json!({"tap": {"ifname": "t"}}), false),
            (json!({"interface": {"ifname": "eth0"}}), false),
            (json!({"host": {"ifname": "eth0"}}), false),
            (json!({"card": {"address": "0000:03:00.0"}}), false),
            (json!({"pcap_read": {"path": "/etc/shadow"}}), false),
            (json!({"pcap_read": {"path": "/state/captures/a.pcap"}}), true),
            (json!({"pcap_write": {"path": "/etc/ssh/authorized_keys"}}), false),
            (json!({"pcap_write": {"path": "/state/topology.json"}}), false),
            (json!({"pcap_write": {"path": "/state/captures"}}), false),
            (json!({"pcap_write": {"path": "/state/captures/.."}}), false),
            (json!({"pcap_write": {"path": "/state/captures/../topology.json"}}), false),
            (json!({"pcap_write": {"path": "/state/captures/a/b"}}), false),
            (json!({"pcap_write": {"path": "captures/a"}}), false),
            (json!({"pcap_write": {"path": "/state/captures/a.pcapng"}}), true),
            (json!({"vhost_user": {}}), true),
            (json!({"vhost_user": {"path": "/run/x.sock"}}), false),
            (json!({"vhost_user": {"client": true}}), false),
            (nic(Value::Null), true),
            (nic(json!("/run/x.sock")), false),
            (json!({"stream": {}}), true),
            (json!({"stream": {"address": "127.0.0.1:22"}}), false),
            (json!({"stream": {"client": true}}), false),
            (json!({"dgram": {"local": "/a", "remote": "/b"}}), false),
            (json!({"vxlan": {"vni": 5, "local": "10.0.0.1", "peers": ["10.0.0.2"]}}), false),
        ]
    }

    #[test]
    fn a_caller_over_tcp_opens_what_takes_nothing_of_the_host() {
        let state = Path::new("/state");
        let mut seen = std::collections::BTreeSet::new();
        for (text, may) in kinds() {
            let kind: PortKind = serde_json::from_value(text.clone()).unwrap();
            seen.insert(kind.word());
            let asked = Caller::Remote.check_port("v:p", None, &kind, state);
            assert_eq!(asked.is_ok(), may, "{text}: {asked:?}");
            if let Err(error) = asked {
                assert_eq!(error.code, ErrorCode::Forbidden, "{error}");
                assert!(error.reason.starts_with("v:p: "), "{error}");
            }
            Caller::Local.check_port("v:p", None, &kind, state).unwrap();
            Caller::Remote.check_port("v:p", Some(&kind), &kind, state).unwrap();
        }
        assert_eq!(seen.len(), 13, "a kind is not in the table: {seen:?}");
    }

    #[test]
    fn passwords_are_not_read_over_tcp_and_come_back_unharmed() {
        let now: Topology = toml::from_str(
            "[evpn]\nas = 65000\nrouter_id = '10.0.0.1'\nvtep = '10.0.0.1'\n\
             [[evpn.neighbor]]\naddress = '10.0.0.2'\npassword = 'secret'",
        )
        .unwrap();
        let read = Caller::Remote.readable(now.clone());
        assert!(!format!("{read:?}").contains("secret"));
        let meant = Caller::Remote.meant(&now, read.clone());
        assert_eq!(meant, now);
        Caller::Remote.check(&now, &meant, Path::new("/state")).unwrap();
        let mut other = read;
        other.evpn.as_mut().unwrap().asn = 7;
        let meant = Caller::Remote.meant(&now, other);
        Caller::Remote.check(&now, &meant, Path::new("/state")).unwrap_err();
        assert_eq!(Caller::Local.readable(now.clone()), now);
        let removed = || vec![Change::new(Action::Removed, EVPN).with(&now.evpn, &None::<()>)];
        assert!(format!("{:?}", Caller::Local.readable_plan(removed())).contains("secret"));
        assert!(!format!("{:?}", Caller::Remote.readable_plan(removed())).contains("secret"));
    }

    #[test]
    fn evpn_and_samples_to_collectors_are_not_set_over_tcp() {
        let state = Path::new("/state");
        let evpn: Topology = toml::from_str(
            "[evpn]\nas = 65000\nrouter_id = '10.0.0.1'\nvtep = '10.0.0.1'\nprogram = '/bin/sh'",
        )
        .unwrap();
        let sampled: Topology =
            toml::from_str("[switch.v]\nsflow = '192.0.2.1:6343'\n[switch.v.port.p]").unwrap();
        let none = Topology::default();
        for wanted in [&evpn, &sampled] {
            let asked = Caller::Remote.check(&none, wanted, state).unwrap_err();
            assert_eq!(asked.code, ErrorCode::Forbidden, "{asked}");
            Caller::Remote.check(wanted, wanted, state).unwrap();
            Caller::Local.check(&none, wanted, state).unwrap();
            Caller::Remote.check(wanted, &none, state).unwrap();
        }
    }
}
