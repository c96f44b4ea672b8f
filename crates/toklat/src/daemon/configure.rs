//! Single steps that change the configuration. `toklat apply` ([`super::apply`]) is made of these.
//!
//! Every step changes the switch first and the topology then, so whatever is saved is in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use netmap::broker::End;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use topology::{
    LinkSpec, PORT_NAME, SWITCH_NAME, check_claims, check_name, check_owner, check_port,
    check_switch,
};

use super::caller::{Caller, of_switch};
use super::change::check_cpus;
use super::mistake;
use super::open::Written;
use super::sflow;
use super::shape;
use super::shared::Handle;
use super::supervisor::{Claimed, Supervisor, restart};
use super::switch::{Access, StateMemory};
use super::words;
use crate::api::{
    ApiError, ErrorCode, NewPort, NewSwitch, PortInfo, PortLink, PortSpec, Quota, QuotaInfo,
    Quotas, SwitchInfo, SwitchSpec, Topology,
};

impl Supervisor {
    /// Returns the use of each user, and the users' quotas.
    #[must_use]
    pub fn quotas(&self) -> QuotaInfo {
        self.environment.ledger.info()
    }

    /// Changes the limits that `patch` names.
    ///
    /// # Errors
    /// The patch is invalid, or cannot be saved.
    pub async fn patch_quotas(&self, patch: &Value) -> Result<QuotaInfo, ApiError> {
        let mut topology = self.topology.lock().await;
        let mut patch = patch.clone();
        let users = patch.as_object_mut().and_then(|patch| patch.remove("user"));
        let mut quotas: Quotas = merged(&topology.quota, &patch)?;
        let no_users = || {
            let reason = "The quotas of users are a JSON object";
            ApiError::new(ErrorCode::BadRequest, reason, "see /openapi.json for the settings")
        };
        let users = users.as_ref().map(|users| users.as_object().ok_or_else(no_users));
        for (name, patch) in users.transpose()?.into_iter().flatten() {
            let uid = crate::users::uid(name)
                .map_err(|e| ApiError::new(ErrorCode::BadRequest, e.to_string(), "see id(1)"))?;
            let quota = quotas.user.entry(uid).or_default();
            *quota = merged(quota, patch)?;
        }
        quotas.user.retain(|_, quota| *quota != Quota::default());
        self.set_quotas(&mut topology, quotas).await;
        self.save(&mut topology)?;
        Ok(self.quotas())
    }

    pub(super) async fn set_quotas(&self, topology: &mut Topology, quotas: Quotas) {
        self.environment.ledger.configure(quotas.clone());
        topology.quota = quotas;
        for handle in self.handles() {
            handle.lock().await.send_limits().await;
        }
    }

    /// Replaces the links that ports name.
    pub(super) async fn set_links(
        &self,
        topology: &mut Topology,
        links: BTreeMap<String, LinkSpec>,
    ) -> Result<(), ApiError> {
        let mut renewed = Vec::new();
        for handle in self.handles() {
            let renewals = handle.lock().await.prepare_named_links(&links).await?;
            renewed.push((handle, renewals));
        }
        self.environment.links.set(&links);
        topology.link = links;
        for (handle, renewals) in renewed {
            handle.lock().await.renew_named_links(renewals).await;
        }
        Ok(())
    }

    /// The lines of a port and their counters.
    ///
    /// # Errors
    /// There is no such port, or its data process does not answer.
    pub async fn port_link(&self, switch: &str, port: &str) -> Result<PortLink, ApiError> {
        self.switch(switch)?.lock().await.port_link(port).await
    }

    /// Adds a switch.
    ///
    /// # Errors
    /// The switch exists, a setting is invalid, the caller may not have a port of it, or its data
    /// process cannot be started.
    pub async fn add_switch(&self, new: NewSwitch, caller: Caller) -> Result<SwitchInfo, ApiError> {
        let NewSwitch { name, mut spec } = new;
        check_name(&name, SWITCH_NAME)?;
        check_switch(&name, &spec)?;
        check_cpus(&name, None, &spec.config)?;
        let wanted = of_switch(&name, spec.clone());
        caller.check(&Topology::default(), &wanted, self.state_directory())?;
        let mut topology = self.topology.lock().await;
        if topology.switch.contains_key(&name) {
            let reason = format!("{name} exists");
            return Err(ApiError::new(
                ErrorCode::Exists,
                reason,
                "remove it first, or apply a file",
            ));
        }
        let ports = std::mem::take(&mut spec.port);
        let handle = self.new_switch(&mut topology, &name, spec).await?;
        let mut done = Ok(());
        for (port, spec) in ports {
            if done.is_ok() {
                done = self.new_port(&mut topology, &name, &port, spec).await;
            }
        }
        self.save(&mut topology)?;
        done?;
        let info = handle.lock().await.info();
        Ok(info)
    }

    pub(super) async fn new_switch(
        &self,
        topology: &mut Topology,
        name: &str,
        spec: SwitchSpec,
    ) -> Result<Handle, ApiError> {
        let handle = match self.claim_name(name).await {
            // A client made the switch by opening a port. From here on it is permanent.
            Claimed::Exists(handle) => {
                let mut switch = handle.lock().await;
                if switch.ephemeral && End::of(name).is_some() {
                    let reason = format!("{name} is an interface that a netmap program has open");
                    return Err(ApiError::new(ErrorCode::Busy, reason, "end the program"));
                }
                switch.set_config(spec.config.clone()).await?;
                switch.set_access(Access::of(&spec)).await?;
                switch.set_sampling(sflow::Settings::of(&spec))?;
                switch.ephemeral = false;
                switch.recharge_switch();
                drop(switch);
                handle
            }
            Claimed::ToMake(_claim) => {
                let (config, access) = (spec.config.clone(), Access::of(&spec));
                let ledger = &self.environment.ledger;
                let _room = StateMemory::of(name, &config, access).reserve(None, ledger)?;
                let handle = self.create(name, config, access, false).await?;
                handle.lock().await.set_sampling(sflow::Settings::of(&spec))?;
                handle
            }
        };
        topology.switch.insert(name.into(), spec);
        Ok(handle)
    }

    /// Changes the settings of a switch that `patch` names.
    ///
    /// # Errors
    /// There is no such switch, the patch is invalid, or the change needs all clients to disconnect
    /// first.
    pub async fn patch_switch(
        &self,
        name: &str,
        patch: &Value,
        caller: Caller,
    ) -> Result<SwitchInfo, ApiError> {
        let mut topology = self.topology.lock().await;
        let old = configured_switch(&topology, name, self.handle(name).is_some())?;
        let spec: SwitchSpec = merged(&SwitchSpec { port: BTreeMap::new(), ..old.clone() }, patch)?;
        if !spec.port.is_empty() {
            let reason = "Ports are not changed with their switch";
            return Err(ApiError::new(ErrorCode::BadRequest, reason, "patch each port itself"));
        }
        check_switch(name, &spec)?;
        caller.check_switch(name, Some(old), &spec)?;
        for (port, port_spec) in &old.port {
            check_owner(&format!("{name}:{port}"), port_spec.owner, spec.user)?;
        }
        check_cpus(name, Some(&old.config), &spec.config)?;
        self.change_switch(&mut topology, name, spec).await?;
        self.save(&mut topology)?;
        let info = self.switch(name)?.lock().await.info();
        Ok(info)
    }

    pub(super) async fn change_switch(
        &self,
        topology: &mut Topology,
        name: &str,
        spec: SwitchSpec,
    ) -> Result<(), ApiError> {
        let handle = self.switch(name)?;
        let mut switch = handle.lock().await;
        let changed = switch.set_config(spec.config.clone()).await;
        if changed.is_err() && !switch.is_running() {
            tokio::spawn(restart(Arc::clone(&handle)));
        }
        changed?;
        switch.set_access(Access::of(&spec)).await?;
        switch.set_sampling(sflow::Settings::of(&spec))?;
        let recorded = spec_of(topology, name)?;
        let port = std::mem::take(&mut recorded.port);
        *recorded = SwitchSpec { port, ..spec };
        Ok(())
    }

    /// Removes a switch with its ports.
    ///
    /// # Errors
    /// There is no such switch.
    pub async fn delete_switch(&self, name: &str) -> Result<(), ApiError> {
        let mut topology = self.topology.lock().await;
        self.remove_switch(&mut topology, name).await?;
        self.save(&mut topology)
    }

    pub(super) async fn remove_switch(
        &self,
        topology: &mut Topology,
        name: &str,
    ) -> Result<(), ApiError> {
        match self.handle(name) {
            Some(handle) => self.drop_switch(&mut *handle.lock().await).await,
            // The switch is configured, but its data process could not be started.
            None if topology.switch.contains_key(name) => {}
            None => return self.switch(name).map(drop),
        }
        topology.switch.remove(name);
        Ok(())
    }

    /// Adds a port.
    ///
    /// # Errors
    /// The port exists, a setting is invalid, the caller may not have it, or what it is attached to
    /// cannot be opened.
    pub async fn add_port(
        &self,
        switch: &str,
        new: NewPort,
        caller: Caller,
    ) -> Result<PortInfo, ApiError> {
        check_name(&new.name, PORT_NAME)?;
        let mut topology = self.topology.lock().await;
        let SwitchSpec { config, user, .. } =
            configured_switch(&topology, switch, self.handle(switch).is_some())?;
        let name = format!("{switch}:{}", new.name);
        check_port(&name, &new.spec, config)?;
        check_owner(&name, new.spec.owner, *user)?;
        caller.check_port(&name, None, &new.spec.kind, self.state_directory())?;
        caller.check_links(&name, &new.spec.policy)?;
        check_with(&topology, (switch, &new.name), &new.spec)?;
        self.new_port(&mut topology, switch, &new.name, new.spec).await?;
        self.save(&mut topology)?;
        self.port_info(switch, &new.name).await
    }

    pub(super) async fn new_port(
        &self,
        topology: &mut Topology,
        switch: &str,
        port: &str,
        spec: PortSpec,
    ) -> Result<(), ApiError> {
        self.check_interface(&spec.kind).await?;
        let handle = self.switch(switch)?;
        let recorded = &mut spec_of(topology, switch)?.port;
        // A port that is recorded already could not be added earlier, or is there after a restart.
        let again = recorded.get(port).is_some_and(|old| old.kind == spec.kind);
        let written = if again { Written::Kept } else { Written::Emptied };
        let mut running = handle.lock().await;
        running.add_port(port, spec.clone(), written).await?;
        let uid = running.uid_of(port);
        tracing::debug!(event = "port", switch, port, uid, "port added");
        recorded.insert(port.into(), spec);
        Ok(())
    }

    /// Changes the settings of a port that `patch` names. A port that a client made keeps the
    /// change until it goes.
    ///
    /// # Errors
    /// There is no such port, the patch makes no sense, or the caller may not have such a port.
    pub async fn patch_port(
        &self,
        switch: &str,
        port: &str,
        patch: &Value,
        caller: Caller,
    ) -> Result<PortInfo, ApiError> {
        let mut topology = self.topology.lock().await;
        let (old, config, user, configured) = {
            let handle = self.switch(switch)?;
            let switch = handle.lock().await;
            let port = switch.port(port)?;
            (port.spec.clone(), switch.config.clone(), switch.access.user, port.configured)
        };
        let spec = merged_port(&old, patch)?;
        let name = format!("{switch}:{port}");
        check_port(&name, &spec, &config)?;
        check_owner(&name, spec.owner, user)?;
        caller.check_port(&name, Some(&old.kind), &spec.kind, self.state_directory())?;
        caller.check_links(&name, &spec.policy)?;
        if configured {
            check_with(&topology, (switch, port), &spec)?;
            if spec.kind != old.kind {
                self.check_interface(&spec.kind).await?;
            }
            self.change_port(&mut topology, switch, port, spec).await?;
            self.save(&mut topology)?;
        } else {
            self.switch(switch)?.lock().await.set_port(port, spec).await?;
        }
        self.port_info(switch, port).await
    }

    pub(super) async fn change_port(
        &self,
        topology: &mut Topology,
        switch: &str,
        port: &str,
        spec: PortSpec,
    ) -> Result<(), ApiError> {
        let handle = self.switch(switch)?;
        handle.lock().await.set_port(port, spec.clone()).await?;
        spec_of(topology, switch)?.port.insert(port.into(), spec);
        Ok(())
    }

    /// Removes a port; its client sees its token close.
    ///
    /// # Errors
    /// There is no such port.
    pub async fn delete_port(&self, switch: &str, port: &str) -> Result<(), ApiError> {
        let mut topology = self.topology.lock().await;
        self.remove_port(&mut topology, switch, port).await?;
        self.save(&mut topology)
    }

    pub(super) async fn remove_port(
        &self,
        topology: &mut Topology,
        switch: &str,
        port: &str,
    ) -> Result<(), ApiError> {
        let handle = self.switch(switch)?;
        let mut running = handle.lock().await;
        let recorded = topology.switch.get_mut(switch).and_then(|s| s.port.remove(port));
        let uid = running.uid_of(port);
        match running.remove_port(port).await {
            // The port is configured, but it could not be added.
            Err(error) if error.code == ErrorCode::NotFound && recorded.is_some() => {}
            done => done?,
        }
        tracing::debug!(event = "port", switch, port, uid, "port removed");
        self.drop_if_unused(&mut running).await;
        Ok(())
    }
}

/// Describes a configured switch; `runs` if a switch of that name runs, which clients may have
/// made.
fn configured_switch<'t>(
    topology: &'t Topology,
    name: &str,
    runs: bool,
) -> Result<&'t SwitchSpec, ApiError> {
    topology.switch.get(name).ok_or_else(|| not_configured(topology, name, runs))
}

pub(super) fn spec_of<'t>(
    topology: &'t mut Topology,
    name: &str,
) -> Result<&'t mut SwitchSpec, ApiError> {
    let missing = not_configured(topology, name, false);
    topology.switch.get_mut(name).ok_or(missing)
}

fn not_configured(topology: &Topology, name: &str, runs: bool) -> ApiError {
    if runs {
        let reason = format!("{name} is there only as long as programs have ports of it open");
        let remedy = format!("keep it: toklat switch add {name}; then repeat the command");
        return ApiError::new(ErrorCode::NotFound, reason, remedy);
    }
    let reason = format!("No switch {name} is configured");
    let add = format!("toklat switch add {name}");
    let remedy = match mistake::nearest(name, topology.switch.keys().map(String::as_str)) {
        Some(near) => format!("did you mean {near}? Otherwise add it: {add}"),
        None => format!("add it: {add}"),
    };
    ApiError::new(ErrorCode::NotFound, reason, remedy)
}

/// Checks that no other port claims the same resource as this one.
fn check_with(now: &Topology, name: (&str, &str), spec: &PortSpec) -> Result<(), ApiError> {
    let mut with = now.clone();
    spec_of(&mut with, name.0)?.port.insert(name.1.into(), spec.clone());
    Ok(check_claims(&with)?)
}

/// As [`merged`], of a port, whose rules the patch may say in words.
pub(super) fn merged_port(old: &PortSpec, patch: &Value) -> Result<PortSpec, ApiError> {
    let mut patch = patch.clone();
    if let Value::Object(settings) = &mut patch {
        topology::rules::settle(settings)
            .map_err(|reason| ApiError::new(ErrorCode::BadRequest, reason, SEE))?;
    }
    merged(old, &patch)
}

/// Where all settings are described.
const SEE: &str = "see /openapi.json for the settings";

/// Returns `old` with the settings that `patch` names.
///
/// # Errors
/// The patch is not one of settings, or names one that there is not.
pub(super) fn merged<T: Serialize + DeserializeOwned>(
    old: &T,
    patch: &Value,
) -> Result<T, ApiError> {
    let bad = |reason: String| ApiError::new(ErrorCode::BadRequest, reason, SEE);
    let Value::Object(patch) = patch else {
        return Err(bad("Changes are a JSON object".into()));
    };
    let mut value = serde_json::to_value(old).map_err(|e| bad(e.to_string()))?;
    if let Value::Object(settings) = &mut value {
        settings.extend(patch.clone());
    }
    let understood =
        serde_json::from_value(value.clone()).map_err(|e| bad(words::plain(&e.to_string())))?;
    shape::check(&value, &understood)?;
    Ok(understood)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::VlanMode;
    use serde_json::json;

    #[test]
    fn a_patch_changes_what_it_names_and_nothing_else() {
        let old = PortSpec { owner: Some(7), ..PortSpec::default() };
        let new = merged(&old, &json!({"lossless": true, "flood_limit": null})).unwrap();
        assert!(new.policy.lossless && new.policy.flap_guard);
        assert_eq!((new.owner, new.policy.flood_limit), (Some(7), None));
        let new = merged(&new, &json!({"vlan": {"access": 5}})).unwrap();
        let new = merged(&new, &json!({"vlan": {"trunk": {"allowed": [], "native": null}}}));
        assert!(matches!(new.unwrap().policy.vlan, VlanMode::Trunk { native: None, .. }));
        assert!(merged(&old, &json!({"lossles": true})).is_err());
        assert!(merged(&old, &json!([1])).is_err());
        for list in ["tx_rate_limiter", "rx_impairment", "interrupts"] {
            let error = merged(&old, &json!({list: []})).unwrap_err();
            assert!(error.reason.starts_with(list), "{error}");
        }
    }
}
