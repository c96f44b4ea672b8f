//! Rules between ports: groups of rules, which ports name, and tables of addresses, which rules
//! name.

use std::collections::BTreeSet;

use rules::{Prefix, Rule, TextError, parse_lines};
use serde::{Deserialize, Serialize};

use crate::{Invalid, PORT_NAME, Topology, check_name};

/// The most groups.
const GROUPS: usize = rules::Policy::MAX_GROUPS;

/// A group: rules for the ports that name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [
    {"rules": ["allow tcp from any to me 80,443", "allow icmp from any to me"]},
])))]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The rules, one a line. The first that matches decides. What none allows is denied on its way
    /// to the port, and allowed on its way from it.
    #[serde(default)]
    pub rules: Vec<String>,
}

/// A table of addresses. Rules say `table:NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [{"prefixes": ["10.0.0.0/8"]}])))]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Networks and addresses, as in 10.0.0.0/8 or fd00::7.
    #[serde(default)]
    pub prefixes: Vec<String>,
}

impl Group {
    /// The rules.
    ///
    /// # Errors
    /// Names the line and the word that are wrong.
    pub fn parse(&self) -> Result<Vec<Rule>, TextError> {
        parse_lines(self.rules.iter().map(String::as_str))
    }

    /// Checks the rules of the group of this name.
    ///
    /// # Errors
    /// Names the group, the line and the word that are wrong.
    pub fn check_as(&self, name: &str) -> Result<(), Invalid> {
        check_name(name, PORT_NAME)?;
        let help = "see docs/rules.md for what a rule may say";
        let rules = self.parse().map_err(|e| Invalid::new(format!("group.{name}, {e}"), help))?;
        for rule in &rules {
            if let Some(word) = lacks(rule) {
                let line = rule.line;
                let reason = format!("group.{name}, line {line}: a switch cannot do `{word}` yet");
                return Err(Invalid::new(reason, "leave the word out"));
            }
        }
        Ok(())
    }
}

/// The word of a rule that switches do not carry out.
fn lacks(rule: &Rule) -> Option<&'static str> {
    match rule {
        Rule { mirror: Some(_), .. } => Some("mirror"),
        Rule { link: Some(_), .. } => Some("link"),
        _ => None,
    }
}

/// Rules that never match, because an earlier one of their group, or of an earlier group of a port,
/// decides about all that they could match: a line each.
#[must_use]
pub fn hidden_rules(topology: &Topology) -> Vec<String> {
    let empty = rules::Policy {
        groups: topology.group.keys().cloned().zip(0..).collect(),
        tables: topology.table.keys().cloned().zip(0..).collect(),
        ..rules::Policy::default()
    };
    let ports = topology.switch.values().flat_map(|switch| switch.port.values());
    let alone = topology.group.keys().map(|name| vec![name.clone()]);
    let lists: BTreeSet<Vec<String>> =
        ports.map(|port| port.policy.groups.clone()).chain(alone).collect();
    let found = lists.iter().flat_map(|names| hidden_in(topology, names, empty.clone()));
    found.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The hidden rules of ports with these groups.
fn hidden_in(topology: &Topology, names: &[String], mut policy: rules::Policy) -> Vec<String> {
    for name in names {
        let group = topology.group.get(name).map(Group::parse);
        policy.push(&group.and_then(Result::ok).unwrap_or_default());
    }
    let group_of = |rule: usize| policy.ends.iter().position(|end| *end > rule).unwrap_or(0);
    let hidden = rules::hidden(&policy).into_iter().map(|hidden| {
        let (own, by) = (group_of(hidden.rule), group_of(hidden.by));
        let (rule, other) = (&policy.rules[hidden.rule], &policy.rules[hidden.by]);
        let place = format!("group.{}, line {}: `{rule}` never matches", names[own], rule.line);
        match own == by {
            true => format!("{place}: line {} decides before it, `{other}`", other.line),
            false => format!(
                "{place} at ports with {}: group.{}, line {} decides before it, `{other}`",
                names.join(","),
                names[by],
                other.line
            ),
        }
    });
    hidden.collect()
}

impl Table {
    /// The prefixes.
    ///
    /// # Errors
    /// Names the first that is none.
    pub fn parse(&self) -> Result<Vec<Prefix>, Invalid> {
        let prefix = |text: &String| {
            text.parse().map_err(|()| {
                let reason = format!("{text:?} is not an address or a network");
                Invalid::new(reason, "write it as in 10.0.0.0/8 or fd00::7")
            })
        };
        self.prefixes.iter().map(prefix).collect()
    }
}

/// Checks groups and tables, each by itself.
///
/// # Errors
/// Names the first invalid one.
pub(crate) fn check_groups(topology: &Topology) -> Result<(), Invalid> {
    if topology.group.len() > GROUPS {
        let reason = format!("There are {} groups", topology.group.len());
        return Err(Invalid::new(reason, format!("use at most {GROUPS}")));
    }
    for (name, table) in &topology.table {
        check_name(name, PORT_NAME)?;
        let named = |e: Invalid| Invalid::new(format!("table.{name}: {}", e.reason), e.remedy);
        table.parse().map_err(named)?;
    }
    topology.group.iter().try_for_each(|(name, group)| group.check_as(name))
}

/// Checks that the groups that ports name, and the groups and tables that rules name, exist.
///
/// # Errors
/// Names the first missing one.
pub(crate) fn check_names(topology: &Topology) -> Result<(), Invalid> {
    let missing = |what: &str, kind: &str, name: &str| {
        let reason = format!("{what} names {kind} {name}, which does not exist");
        Invalid::new(reason, format!("write [{kind}.{name}], or add it: toklat fw --help"))
    };
    for (switch, spec) in &topology.switch {
        for (port, spec) in &spec.port {
            let unknown = |name: &&String| !topology.group.contains_key(*name);
            if let Some(name) = spec.policy.groups.iter().find(unknown) {
                return Err(missing(&format!("{switch}:{port}"), "group", name));
            }
        }
    }
    for (name, group) in &topology.group {
        for rule in group.parse().unwrap_or_default() {
            let hosts = [&rule.matches.from.hosts, &rule.matches.to.hosts];
            let named = |(kind, known): (&str, bool), it: &str| {
                if known { Ok(()) } else { Err(missing(&format!("group.{name}"), kind, it)) }
            };
            for table in hosts.iter().flat_map(|hosts| &hosts.tables) {
                named(("table", topology.table.contains_key(table)), table)?;
            }
            for group in hosts.iter().flat_map(|hosts| &hosts.groups) {
                named(("group", topology.group.contains_key(group)), group)?;
            }
        }
    }
    Ok(())
}
