//! `toklat apply`: compares a topology file with the configuration, and carries out the
//! differences.
//!
//! A file adds and changes only the objects it names. Each object remembers the file that made it.
//! With `--prune`, objects that this file made and no longer names are removed, last of all.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use topology::{GuestSpec, check, check_each};

use super::caller::Caller;
use super::change::{check_cpus, needs_restart};
use super::configure::spec_of;
use super::firewall::warnings_of;
use super::guests::Health;
use super::log::ACTION;
use super::open;
use super::store::{Configured, EVPN, LINK, group, group_of, guest, guest_of, table, table_of};
use super::supervisor::Supervisor;
use crate::api::{
    Action, ApiError, Applied, Change, ErrorCode, PortKind, PortSpec, Quotas, SwitchSpec, Topology,
};

/// What a file removes of the objects that it no longer names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Removes {
    /// Nothing.
    #[default]
    Nothing,
    /// What is not in use. What stays is a line in the log.
    Unused,
    /// All of them.
    All,
}

/// How a topology is applied.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// The file's name. It owns the objects that it makes.
    pub file: String,
    /// Which objects it removes, of those that the file made before and does not name any more.
    pub removes: Removes,
    /// The content of the file, if that is not what is to be applied.
    pub content: Option<Topology>,
    /// Changes nothing, and only reports the changes.
    pub dry_run: bool,
    /// The entity tag of the topology that this one is based on. If the topology has changed since,
    /// the request is refused.
    pub expected: Option<String>,
    /// A step that fails does not stop the others. A port that cannot be opened waits.
    pub goes_on: bool,
    /// Who asks.
    pub caller: Caller,
}

impl Supervisor {
    /// Adds and changes objects until everything is as `wanted`; with `prune`, also removes what
    /// the file no longer names.
    ///
    /// # Errors
    /// A setting that cannot be, or another topology than was expected: then nothing was changed. A
    /// step that failed: the error says which steps were done before it.
    pub async fn apply(self: &Arc<Self>, wanted: Topology, how: &How) -> Result<Applied, ApiError> {
        let mut now = self.topology.lock().await;
        // Errors that any request would get come before the precondition (RFC 9110, 13.2.1).
        check_each(&wanted)?;
        let wanted = how.caller.meant(&now, wanted);
        how.caller.check(&now, &wanted, self.state_directory())?;
        if how.expected.as_ref().is_some_and(|expected| *expected != now.tag()) {
            let reason = "The topology has changed since it was read";
            return Err(ApiError::new(ErrorCode::Stale, reason, "read it again, and apply that"));
        }
        let all = merged(&now, &wanted);
        check(&all)?;
        self.check_switches(&all, &wanted)?;
        for (name, spec) in &wanted.switch {
            check_cpus(name, now.switch.get(name).map(|old| &old.config), &spec.config)?;
        }
        self.check_expressions(&all).await?;
        let plan = how.caller.readable_plan(self.plan(&now, &wanted, how).await);
        if !how.goes_on {
            self.probe(&wanted, &plan).await?;
        }
        if how.dry_run {
            return Ok(Applied { changes: plan, warnings: warnings_of(&all).await });
        }
        let (done, failed) = self.carry_out_all(&mut now, &wanted, &plan, how).await;
        if failed.is_none() {
            let content = how.content.clone().unwrap_or(wanted);
            now.applied.insert(how.file.clone(), content);
        }
        self.save(&mut now)?;
        match failed {
            Some(error) if !how.goes_on => Err(halfway(error, &done)),
            _ => Ok(Applied { changes: done, warnings: warnings_of(&now).await }),
        }
    }

    /// Does the steps of a plan, up to the first one that fails, or all that can be done. Returns
    /// those that were done, and the last error.
    async fn carry_out_all(
        self: &Arc<Self>,
        now: &mut Configured,
        wanted: &Topology,
        plan: &[Change],
        how: &How,
    ) -> (Vec<Change>, Option<ApiError>) {
        let (mut done, mut failed) = (Vec::new(), None);
        for change in plan {
            let mut stepped = self.carry_out(now, wanted, change).await;
            if let (true, Err(error)) = (how.goes_on, &stepped) {
                tracing::error!(target: ACTION, what = change.name, %error, "not done, the rest goes on");
                if self.let_wait(now, wanted, change, error).await {
                    stepped = Ok(());
                }
            }
            match stepped {
                Ok(()) => {
                    now.note(change, &how.file);
                    done.push(change.clone());
                }
                Err(error) => {
                    failed = Some(error);
                    if !how.goes_on {
                        break;
                    }
                }
            }
        }
        (done, failed)
    }

    /// Adds a port that could not be opened, so that it waits for its object. False if it is no
    /// such port.
    async fn let_wait(
        &self,
        now: &mut Configured,
        wanted: &Topology,
        change: &Change,
        error: &ApiError,
    ) -> bool {
        let Some((switch, port)) = change.name.split_once(':') else { return false };
        let spec = wanted.switch.get(switch).and_then(|switch| switch.port.get(port));
        let spec =
            spec.filter(|spec| spec.kind != PortKind::Ring && change.action == Action::Added);
        let (Some(spec), Some(handle)) = (spec, self.handle(switch)) else { return false };
        let Some(recorded) = now.switch.get_mut(switch) else { return false };
        handle.lock().await.add_failed_port(port, spec.clone(), error).await;
        recorded.port.insert(port.to_owned(), spec.clone());
        true
    }

    /// Checks that all new ports can be opened.
    async fn probe(&self, wanted: &Topology, plan: &[Change]) -> Result<(), ApiError> {
        let is_new = |change: &&Change| matches!(change.action, Action::Added | Action::Replaced);
        let gives_way =
            |change: &Change| matches!(change.action, Action::Replaced | Action::Removed);
        let frees = plan.iter().any(gives_way);
        for change in plan.iter().filter(is_new) {
            let Some((switch, port)) = change.name.split_once(':') else { continue };
            let spec = wanted.switch.get(switch).and_then(|switch| switch.port.get(port));
            let Some(spec) = spec else { continue };
            let free = self.check_interface(&spec.kind).await;
            let probed = match free {
                Ok(()) => open::of(&spec.kind).probe(spec.policy.mtu).await,
                Err(_) => free,
            };
            match probed {
                // A port that goes before may have it.
                Err(error) if frees && error.code == ErrorCode::Busy => {}
                Err(ApiError { code, reason, remedy, .. }) => {
                    return Err(ApiError::new(code, format!("{}: {reason}", change.name), remedy));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// True if the file has the same content as when it was last applied.
    pub async fn has_applied(&self, file: &str, wanted: &Topology) -> bool {
        self.topology.lock().await.applied.get(file) == Some(wanted)
    }

    /// The steps to carry out, in order.
    async fn plan(&self, now: &Configured, wanted: &Topology, how: &How) -> Vec<Change> {
        let mut plan = Vec::new();
        if wanted.quota != Quotas::default() && wanted.quota != now.quota {
            plan.push(Change::new(Action::Changed, "quota").with(&now.quota, &wanted.quota));
        }
        if wanted.evpn.is_some() && wanted.evpn != now.evpn {
            plan.push(Change::new(Action::Changed, EVPN).with(&now.evpn, &wanted.evpn));
        }
        let links = merged(now, wanted).link;
        if links != now.link {
            let action = if now.link.is_empty() { Action::Added } else { Action::Changed };
            plan.push(Change::new(action, LINK).with(&now.link, &links));
        }
        plan_rules(now, wanted, &mut plan);
        for (name, spec) in &wanted.switch {
            // A switch that could not be started is tried again.
            let old = now.switch.get(name).filter(|_| self.handle(name).is_some());
            let bare = |spec: &SwitchSpec| SwitchSpec { port: BTreeMap::new(), ..spec.clone() };
            match old {
                None => plan.push(Change::new(Action::Added, name)),
                Some(old) if bare(old) != bare(spec) => {
                    let change = if needs_restart(&old.config, &spec.config) {
                        let open = self.open_ports(name).await;
                        let all = format!("{open} ports are open, and must be closed before");
                        Change::new(Action::Replaced, name).interrupting((open > 0).then_some(all))
                    } else {
                        Change::new(Action::Changed, name)
                    };
                    plan.push(change.with(&bare(old), &bare(spec)));
                }
                Some(_) => {}
            }
            self.plan_ports(now, name, wanted, &mut plan).await;
        }
        self.plan_guests(now, wanted, &mut plan).await;
        if how.removes != Removes::Nothing {
            let mut removals = Vec::new();
            self.plan_removals(now, wanted, &how.file, &mut removals).await;
            if how.removes == Removes::Unused {
                removals = self.spare_used(removals).await;
            }
            plan.append(&mut removals);
        }
        plan
    }

    /// Leaves out removals of what is in use, with a line in the log for each.
    async fn spare_used(&self, removals: Vec<Change>) -> Vec<Change> {
        let mut unused = Vec::new();
        for change in removals {
            if self.is_in_use(&change.name).await {
                let (what, remedy) = (&change.name, "toklat apply --prune, or --topology-prune");
                tracing::warn!(target: ACTION, %what, remedy, "not in the topology file any more, but in use: it stays");
            } else {
                unused.push(change);
            }
        }
        unused
    }

    /// True if a guest runs, or a port is open or attached, or any of a switch's ports is.
    async fn is_in_use(&self, name: &str) -> bool {
        if let Some(guest) = guest_of(name) {
            return self.guests.health(guest).await == Health::Good;
        }
        if group_of(name).is_some() || table_of(name).is_some() {
            // What names it is removed before; if something else does, that is an error.
            return false;
        }
        let (switch, port) = match name.split_once(':') {
            Some((switch, port)) => (switch, Some(port)),
            None => (name, None),
        };
        let Some(handle) = self.handle(switch) else { return name == EVPN };
        let switch = handle.lock().await;
        match port {
            Some(port) => switch.port(port).is_ok_and(super::switch::Port::is_in_use),
            None => switch.ports().any(super::switch::Port::is_in_use),
        }
    }

    /// Checks that the switches of new guests exist.
    pub(super) fn check_switches(&self, all: &Topology, wanted: &Topology) -> Result<(), ApiError> {
        let is_there = |name: &str| all.switch.contains_key(name) || self.handle(name).is_some();
        match wanted.guest.iter().find(|(_, spec)| !is_there(spec.switch())) {
            None => Ok(()),
            Some((name, spec)) => {
                let switch = spec.switch();
                let reason =
                    format!("guest.{name} is to be on switch {switch}, which does not exist");
                let remedy =
                    format!("write [switch.{switch}], or add it: toklat switch add {switch}");
                Err(ApiError::new(ErrorCode::NotFound, reason, remedy))
            }
        }
    }

    /// Guests come after the switches that they are on.
    pub(super) async fn plan_guests(
        &self,
        now: &Configured,
        wanted: &Topology,
        plan: &mut Vec<Change>,
    ) {
        for (name, spec) in &wanted.guest {
            let (whole, health) = (guest(name), self.guests.health(name).await);
            plan.push(match (now.guest.get(name), health) {
                (None, _) | (_, Health::Absent) => Change::new(Action::Added, &whole),
                (Some(old), Health::Good) if old == spec => continue,
                (Some(old), health) => {
                    let lost = (health == Health::Good).then(|| RUNS.to_owned());
                    Change::new(Action::Replaced, &whole).interrupting(lost).with(old, spec)
                }
            });
        }
    }

    async fn plan_ports(
        &self,
        now: &Configured,
        switch: &str,
        wanted: &Topology,
        plan: &mut Vec<Change>,
    ) {
        let known = now.switch.get(switch).map(|switch| &switch.port);
        for (port, spec) in &wanted.switch[switch].port {
            let name = format!("{switch}:{port}");
            let health = match self.handle(switch) {
                Some(handle) => handle.lock().await.health(port),
                None => None,
            };
            let old = known.and_then(|known| known.get(port));
            plan.push(match (old, health) {
                (None, _) | (_, None) => Change::new(Action::Added, &name),
                (Some(old), Some(true)) if old == spec => continue,
                (Some(old), Some(true)) if old.kind == spec.kind => {
                    Change::new(Action::Changed, &name).with(&in_words(old), &in_words(spec))
                }
                (Some(old), _) => {
                    let lost = self.is_open(switch, port).await.then(|| LOST.to_owned());
                    let change = Change::new(Action::Replaced, &name).interrupting(lost);
                    change.with(&in_words(old), &in_words(spec))
                }
            });
        }
    }

    /// Removals of what the file made and no longer names: ports, then switches without ports of
    /// others.
    async fn plan_removals(
        &self,
        now: &Configured,
        wanted: &Topology,
        file: &str,
        plan: &mut Vec<Change>,
    ) {
        let is_its = |name: &str| now.made_by.get(name).is_some_and(|maker| maker == file);
        let unnamed = |name: &&String| !wanted.guest.contains_key(*name);
        for name in now.guest.keys().filter(unnamed).filter(|name| is_its(&guest(name))) {
            let runs = self.guests.health(name).await == Health::Good;
            let lost = runs.then(|| RUNS.to_owned());
            plan.push(Change::new(Action::Removed, &guest(name)).interrupting(lost));
        }
        let mut last = Vec::new();
        for (switch, spec) in &now.switch {
            let kept = wanted.switch.get(switch);
            let is_named = |port: &String| kept.is_some_and(|kept| kept.port.contains_key(port));
            let whole = |port: &String| format!("{switch}:{port}");
            if kept.is_none() && is_its(switch) && spec.port.keys().all(|port| is_its(&whole(port)))
            {
                let open = self.open_ports(switch).await;
                let lost = (open > 0).then(|| format!("{open} of its ports are open"));
                last.push(Change::new(Action::Removed, switch).interrupting(lost));
                continue;
            }
            for port in spec.port.keys().filter(|port| !is_named(port) && is_its(&whole(port))) {
                let lost = self.is_open(switch, port).await.then(|| LOST.to_owned());
                plan.push(Change::new(Action::Removed, &whole(port)).interrupting(lost));
            }
        }
        plan.append(&mut last);
        // Rules name tables.
        let groups = now.group.keys().filter(|name| !wanted.group.contains_key(*name));
        let groups = groups.map(|name| group(name)).filter(|name| is_its(name));
        let tables = now.table.keys().filter(|name| !wanted.table.contains_key(*name));
        let tables = tables.map(|name| table(name)).filter(|name| is_its(name));
        plan.extend(groups.chain(tables).map(|name| Change::new(Action::Removed, &name)));
        if is_its("quota") && wanted.quota == Quotas::default() && now.quota != wanted.quota {
            plan.push(Change::new(Action::Removed, "quota").with(&now.quota, &wanted.quota));
        }
        if is_its(LINK) && wanted.link.is_empty() && !now.link.is_empty() {
            plan.push(Change::new(Action::Removed, LINK).with(&now.link, &wanted.link));
        }
        if is_its(EVPN) && wanted.evpn.is_none() && now.evpn.is_some() {
            plan.push(Change::new(Action::Removed, EVPN).with(&now.evpn, &wanted.evpn));
        }
    }

    /// Does one step.
    async fn carry_out(
        self: &Arc<Self>,
        now: &mut Configured,
        wanted: &Topology,
        change: &Change,
    ) -> Result<(), ApiError> {
        let missing = || ApiError::new(ErrorCode::NotFound, "It is gone", "apply the file again");
        if let Some(name) = guest_of(&change.name) {
            return self.change_guest(now, name, wanted.guest.get(name)).await;
        }
        if group_of(&change.name).is_some() || table_of(&change.name).is_some() {
            return self.apply_rules(now, wanted, change).await;
        }
        match (change.name.split_once(':'), change.action) {
            (None, _) if change.name == "quota" => {
                self.set_quotas(now, wanted.quota.clone()).await;
                Ok(())
            }
            (None, action) if change.name == LINK => {
                let links = match action {
                    Action::Removed => BTreeMap::new(),
                    _ => merged(now, wanted).link,
                };
                self.set_links(now, links).await
            }
            (None, _) if change.name == EVPN => {
                self.set_evpn(wanted.evpn.as_ref())?;
                now.evpn.clone_from(&wanted.evpn);
                Ok(())
            }
            (None, Action::Removed) => self.remove_switch(now, &change.name).await,
            (None, action) => {
                let mut spec = wanted.switch.get(&change.name).ok_or_else(missing)?.clone();
                spec.port = now
                    .switch
                    .get(&change.name)
                    .map(|switch| switch.port.clone())
                    .unwrap_or_default();
                match action {
                    Action::Added => self.new_switch(now, &change.name, spec).await.map(drop),
                    _ => self.change_switch(now, &change.name, spec).await,
                }
            }
            (Some((switch, port)), Action::Removed) => self.remove_port(now, switch, port).await,
            (Some((switch, port)), action) => {
                let spec = wanted.switch.get(switch).and_then(|switch| switch.port.get(port));
                let spec = spec.ok_or_else(missing)?.clone();
                spec_of(now, switch)?;
                match action {
                    Action::Added => self.new_port(now, switch, port, spec).await,
                    _ => self.change_port(now, switch, port, spec).await,
                }
            }
        }
    }

    /// Ends the guests of an entry, and starts them as they are to be; none if they are to go. If
    /// they cannot be started so, they are started as they were.
    pub(super) async fn change_guest(
        &self,
        now: &mut Configured,
        name: &str,
        wanted: Option<&GuestSpec>,
    ) -> Result<(), ApiError> {
        self.guests.end(name).await;
        let before = now.guest.remove(name);
        let Some(spec) = wanted else { return Ok(()) };
        let started = self.guests.start(name, spec).await;
        let stays = if started.is_ok() { Some(spec.clone()) } else { before };
        if let Some(spec) = stays
            && (started.is_ok() || self.guests.start(name, &spec).await.is_ok())
        {
            now.guest.insert(name.to_owned(), spec);
        }
        started
    }

    async fn is_open(&self, switch: &str, port: &str) -> bool {
        let Some(handle) = self.handle(switch) else { return false };
        let switch = handle.lock().await;
        switch.port(port).is_ok_and(super::switch::Port::is_open)
    }

    async fn open_ports(&self, switch: &str) -> usize {
        let Some(handle) = self.handle(switch) else { return 0 };
        let switch = handle.lock().await;
        switch.ports().filter(|port| port.is_open()).count()
    }
}

/// Tables come before the rules that name them, and those before the ports that name them.
fn plan_rules(now: &Configured, wanted: &Topology, plan: &mut Vec<Change>) {
    for (name, own) in &wanted.table {
        match now.table.get(name) {
            None => plan.push(Change::new(Action::Added, &table(name))),
            Some(old) if old == own => {}
            Some(old) => {
                plan.push(Change::new(Action::Changed, &table(name)).with(old, own));
            }
        }
    }
    for (name, own) in &wanted.group {
        match now.group.get(name) {
            None => plan.push(Change::new(Action::Added, &group(name))),
            Some(old) if old == own => {}
            Some(old) => {
                plan.push(Change::new(Action::Changed, &group(name)).with(old, own));
            }
        }
    }
}

/// The file's name as stored: its absolute path, from whatever directory it was named.
#[must_use]
pub fn name_of(file: &Path) -> String {
    let whole = std::fs::canonicalize(file);
    whole.as_deref().unwrap_or(file).display().to_string()
}

/// The interruption that removing or replacing a port in use causes.
const LOST: &str = "it is open: its client or guest loses it";
/// The interruption that removing or replacing a guest causes.
const RUNS: &str = "it runs: its peers lose their connections";

/// The settings of a port in the words of files.
fn in_words(spec: &PortSpec) -> serde_json::Map<String, serde_json::Value> {
    spec.in_words().into_iter().collect()
}

/// The topology that applying will lead to.
pub(super) fn merged(now: &Topology, wanted: &Topology) -> Topology {
    let mut all = now.clone();
    all.evpn = wanted.evpn.clone().or(all.evpn);
    all.link.extend(wanted.link.clone());
    all.group.extend(wanted.group.iter().map(|(name, own)| (name.clone(), own.clone())));
    all.table.extend(wanted.table.iter().map(|(name, own)| (name.clone(), own.clone())));
    all.guest.extend(wanted.guest.iter().map(|(name, spec)| (name.clone(), spec.clone())));
    for (name, spec) in &wanted.switch {
        let ports = all.switch.remove(name).map(|old| old.port).unwrap_or_default();
        let mut spec = spec.clone();
        for (port, old) in ports {
            spec.port.entry(port).or_insert(old);
        }
        all.switch.insert(name.clone(), spec);
    }
    all
}

/// Adds to an error the steps that were done before it.
fn halfway(error: ApiError, done: &[Change]) -> ApiError {
    if done.is_empty() {
        return error;
    }
    let done: Vec<_> =
        done.iter().map(|change| format!("{} {}", change.action, change.name)).collect();
    let remedy = format!(
        "{}; done before that: {}. Correct the file and apply it again",
        error.remedy,
        done.join(", ")
    );
    ApiError::new(error.code, error.reason, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::file::parse;

    #[test]
    fn an_error_names_the_steps_before_it() {
        let error = || ApiError::new(ErrorCode::Limit, "It is full", "close some");
        let done = [Change::new(Action::Added, "new"), Change::new(Action::Added, "new:a")];
        let remedy = halfway(error(), &done).remedy;
        assert!(remedy.contains("added new, added new:a") && remedy.contains("again"), "{remedy}");
        assert_eq!(halfway(error(), &[]), error());
    }

    #[test]
    fn what_is_elsewhere_stays_in_what_there_will_be() {
        let now = parse("[switch.v]\nbatch = 8\n[switch.v.port.a]\n[switch.w]").unwrap();
        let wanted = parse("[switch.v.port.b]").unwrap();
        let all = merged(&now, &wanted);
        assert_eq!(all.switch.keys().collect::<Vec<_>>(), ["v", "w"]);
        assert_eq!(all.switch["v"].port.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_ne!(all.switch["v"].config.batch, 8, "the file's word");
    }
}
