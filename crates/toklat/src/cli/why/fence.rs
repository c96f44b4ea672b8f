//! The rules of ports, as the daemon lists them, for the walk.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{Client, Result};
use fabric::why::Fence;
use fabric::{PortFilter, Rules};
use rules::{Policy, Prefix, Prefixes, Tables, parse_lines};

use crate::api::{GroupInfo, TableInfo};
use crate::expression;

/// All groups and tables.
#[derive(Debug, Default)]
pub(super) struct Book {
    groups: Vec<GroupInfo>,
    tables: Vec<TableInfo>,
}

/// The rules of a port.
#[derive(Debug)]
pub(super) struct Fenced {
    policy: Policy,
    names: Vec<String>,
    filter: PortFilter,
}

impl Fenced {
    pub(super) fn fence(&self) -> Fence<'_> {
        Fence { policy: &self.policy, names: &self.names, filter: &self.filter }
    }
}

impl Book {
    pub(super) fn ask(client: &mut Client) -> Result<Self> {
        Ok(Self { groups: client.get("/v1/groups")?, tables: client.get("/v1/tables")? })
    }

    /// The rules of a port; `None` if it names no group.
    pub(super) fn fenced(&self, port: &Rules) -> Result<Option<Fenced>> {
        let names = port.groups.clone();
        if names.is_empty() {
            return Ok(None);
        }
        let numbers: BTreeMap<String, u8> =
            self.groups.iter().zip(0..).map(|(group, n)| (group.name.clone(), n)).collect();
        let tables = self.tables.iter().zip(0..).map(|(table, n)| (table.name.clone(), n));
        let mut policy = Policy { groups: numbers, tables: tables.collect(), ..Policy::default() };
        for name in &names {
            let group = self.groups.iter().find(|group| group.name == *name);
            let lines = group.map(|group| group.rules.iter().map(String::as_str));
            policy.push(&parse_lines(lines.into_iter().flatten())?);
        }
        for text in policy.rules.iter().filter_map(|rule| rule.matches.bpf.clone()) {
            policy.filters.insert(text.clone(), expression::compile(&text)?);
        }
        let groups = names.iter().fold(0, |bits, name| bits | policy.group_bit(name));
        let filter = PortFilter { program: 0, groups, ips: port.ips.clone() };
        Ok(Some(Fenced { policy, names, filter }))
    }

    /// The tables that rules name, by number.
    pub(super) fn tables(&self) -> Tables {
        let tables = self.tables.iter().map(|table| {
            let prefixes = Prefixes::default();
            let parsed = table.prefixes.iter().filter_map(|text| text.parse::<Prefix>().ok());
            parsed.for_each(|prefix| {
                prefixes.add(prefix);
            });
            Arc::new(prefixes)
        });
        Tables(tables.collect())
    }
}
