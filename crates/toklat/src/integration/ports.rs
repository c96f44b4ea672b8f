//! Ports that another manager adds and removes. Both operations are idempotent.

use anyhow::bail;
use clap::Parser;
use hyper::Method;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::{ErrorCode, PortInfo, PortKind};
use crate::cli::port_options::RuleOptions;
use client::name::PortName;
use client::{Client, ClientError, Result};

/// A port to be added: its kind, and the rules to set.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its name.
    pub name: PortName,
    /// What the port is attached to.
    pub kind: PortKind,
    /// Rules, as the API names them.
    pub rules: Map<String, Value>,
}

/// Rules of a port, as `toklat port add` has them.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Rules {
    #[command(flatten)]
    policy: RuleOptions,
}

/// Reads options of `toklat port add` that are rules.
///
/// # Errors
/// What is wrong with them, in one line.
pub fn rules(options: impl Iterator<Item = String>) -> Result<RuleOptions, String> {
    let parsed = Rules::try_parse_from(options).map_err(|error| {
        let said = error.to_string();
        said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })?;
    Ok(parsed.policy)
}

/// The state that [`add`] found before it did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The port did not exist and was added.
    Added,
    /// A port of the same kind exists; its rules are the wanted ones.
    There,
}

/// Adds the port. An existing port of the same kind gets the wanted rules.
///
/// # Errors
/// The daemon refuses, or a port of another kind has the name.
pub fn add(client: &mut Client, wanted: &Wanted) -> Result<Found> {
    let name = &wanted.name;
    let mut body = wanted.rules.clone();
    body.insert("name".into(), json!(name.port));
    body.insert("kind".into(), json!(wanted.kind));
    let path = format!("{}/ports", name.switch.path());
    match client.send::<PortInfo>(Method::POST, &path, &body) {
        Ok(_) => return Ok(Found::Added),
        Err(ClientError::Refused(refusal)) if refusal.code == ErrorCode::Exists => {}
        Err(error) => return Err(error.into()),
    }
    let there: PortInfo = client.get(&name.path())?;
    if there.spec.kind != wanted.kind {
        bail!(
            "{name} is there and is of another kind; see toklat port show {name}, or use another name"
        );
    }
    if !wanted.rules.is_empty() {
        set(client, name, &wanted.rules)?;
    }
    Ok(Found::There)
}

/// Sets rules of a port, as the API names them.
///
/// # Errors
/// The daemon refuses.
pub fn set(client: &mut Client, name: &PortName, rules: &impl Serialize) -> Result {
    client.send::<PortInfo>(Method::PATCH, &name.path(), rules)?;
    Ok(())
}

/// The port, if there is one of this name.
///
/// # Errors
/// The daemon refuses.
pub fn find(client: &mut Client, name: &PortName) -> Result<Option<PortInfo>> {
    match client.get(&name.path()) {
        Ok(info) => Ok(Some(info)),
        Err(ClientError::Refused(refusal)) if refusal.code == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes the port, if it exists and is of this kind.
///
/// # Errors
/// The daemon refuses.
pub fn remove(client: &mut Client, name: &PortName, kind: &PortKind) -> Result {
    if find(client, name)?.is_none_or(|there| there.spec.kind != *kind) {
        return Ok(());
    }
    match client.delete(&name.path()) {
        Err(ClientError::Refused(refusal)) if refusal.code == ErrorCode::NotFound => Ok(()),
        ended => Ok(ended?),
    }
}
