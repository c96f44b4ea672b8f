//! Groups and tables: how they are shown and changed.

use std::sync::Arc;

use topology::{Group, Table, check, check_name};

use super::store::{Configured, group, table};
use super::supervisor::Supervisor;
use super::switch::RuleBook;
use super::{locked, system};
use crate::api::{
    Action, ApiError, Change, ErrorCode, GroupInfo, TableChange, TableInfo, Topology,
};
use crate::expression::process::{Wrong, compile_all};

impl Supervisor {
    /// All groups, with the ports that name them.
    pub async fn groups(&self) -> Vec<GroupInfo> {
        let topology = self.topology.lock().await;
        let info = |(name, group): (&String, &Group)| GroupInfo {
            name: name.clone(),
            rules: group.rules.clone(),
            ports: users_of(&topology, name),
            warnings: Vec::new(),
        };
        topology.group.iter().map(info).collect()
    }

    /// All tables.
    pub async fn tables(&self) -> Vec<TableInfo> {
        let topology = self.topology.lock().await;
        let info = |(name, table): (&String, &Table)| TableInfo {
            name: name.clone(),
            prefixes: table.prefixes.clone(),
        };
        topology.table.iter().map(info).collect()
    }

    /// Adds a group, or replaces its rules on all switches.
    ///
    /// # Errors
    /// A rule is wrong, or the rules are too large: nothing was changed.
    pub async fn put_group(&self, name: &str, group: Group) -> Result<GroupInfo, ApiError> {
        let mut topology = self.topology.lock().await;
        self.change_group(&mut topology, name, Some(&group)).await?;
        self.save(&mut topology)?;
        let mut warnings = warnings_of(&topology).await;
        let place = format!("group.{name}, ");
        warnings.retain(|warning| warning.contains(&place));
        let ports = users_of(&topology, name);
        Ok(GroupInfo { name: name.to_owned(), rules: group.rules, ports, warnings })
    }

    /// Removes a group.
    ///
    /// # Errors
    /// There is no such group, or ports or rules name it.
    pub async fn delete_group(&self, name: &str) -> Result<(), ApiError> {
        let mut topology = self.topology.lock().await;
        self.change_group(&mut topology, name, None).await?;
        self.save(&mut topology)
    }

    /// Adds or replaces a table.
    ///
    /// # Errors
    /// A prefix is none: nothing was changed.
    pub async fn put_table(&self, name: &str, table: Table) -> Result<(), ApiError> {
        let mut topology = self.topology.lock().await;
        self.change_whole_table(&mut topology, name, Some(&table)).await?;
        self.save(&mut topology)
    }

    /// Removes a table.
    ///
    /// # Errors
    /// There is no such table, or rules name it.
    pub async fn delete_table(&self, name: &str) -> Result<(), ApiError> {
        let mut topology = self.topology.lock().await;
        self.change_whole_table(&mut topology, name, None).await?;
        self.save(&mut topology)
    }

    /// Adds prefixes to a table and removes others, while traffic runs.
    ///
    /// # Errors
    /// There is no such table, or a prefix is none.
    pub async fn patch_table(&self, name: &str, change: TableChange) -> Result<(), ApiError> {
        let mut topology = self.topology.lock().await;
        let table = topology.table.get(name).ok_or_else(|| missing("table", name))?;
        let TableChange { add, remove } = change;
        let mut wanted = table.clone();
        Table { prefixes: [&add[..], &remove[..]].concat() }.parse()?;
        wanted.prefixes.retain(|prefix| !remove.contains(prefix));
        let added = add.iter().filter(|prefix| !wanted.prefixes.contains(prefix));
        let added: Vec<String> = added.cloned().collect();
        wanted.prefixes.extend(added);
        topology.table.insert(name.to_owned(), wanted);
        let filters = locked(&self.environment.rules).filters.clone();
        *locked(&self.environment.rules) = Arc::new(RuleBook::of(&topology, filters));
        for handle in self.handles() {
            handle.lock().await.change_table(name, add.clone(), remove.clone()).await?;
        }
        self.save(&mut topology)
    }

    async fn change_group(
        &self,
        topology: &mut Topology,
        name: &str,
        wanted: Option<&Group>,
    ) -> Result<(), ApiError> {
        let mut after = topology.clone();
        match wanted {
            Some(group) => {
                check_name(name, topology::PORT_NAME)?;
                after.group.insert(name.to_owned(), group.clone());
            }
            None if after.group.remove(name).is_none() => return Err(missing("group", name)),
            None => {}
        }
        self.change_rules(topology, after).await
    }

    async fn change_whole_table(
        &self,
        topology: &mut Topology,
        name: &str,
        wanted: Option<&Table>,
    ) -> Result<(), ApiError> {
        let mut after = topology.clone();
        match wanted {
            Some(table) => {
                check_name(name, topology::PORT_NAME)?;
                after.table.insert(name.to_owned(), table.clone());
            }
            None if after.table.remove(name).is_none() => return Err(missing("table", name)),
            None => {}
        }
        self.change_rules(topology, after).await
    }

    /// Carries out a step of `toklat apply`. Groups name each other, so the first such step carries
    /// out all of its kind: what a file adds and changes, or what it removes.
    pub(super) async fn apply_rules(
        &self,
        now: &mut Configured,
        wanted: &Topology,
        change: &Change,
    ) -> Result<(), ApiError> {
        let mut after = Topology::clone(now);
        if change.action == Action::Removed {
            let maker = now.made_by.get(&change.name);
            let goes = |name: &String| maker.is_some() && now.made_by.get(name) == maker;
            after.group.retain(|name, _| wanted.group.contains_key(name) || !goes(&group(name)));
            after.table.retain(|name, _| wanted.table.contains_key(name) || !goes(&table(name)));
        } else {
            let groups = wanted.group.iter().map(|(name, own)| (name.clone(), own.clone()));
            after.group.extend(groups);
            let tables = wanted.table.iter().map(|(name, own)| (name.clone(), own.clone()));
            after.table.extend(tables);
        }
        if (&after.group, &after.table) == (&now.group, &now.table) {
            return Ok(());
        }
        self.change_rules(now, after).await
    }

    /// Puts the groups and tables of `after` into use on all switches, or on none.
    async fn change_rules(&self, now: &mut Topology, after: Topology) -> Result<(), ApiError> {
        check(&after).map_err(|e| ApiError::new(ErrorCode::BadRequest, e.reason, e.remedy))?;
        let earlier = Arc::clone(&locked(&self.environment.rules));
        let (book, compiled) = self.book_of(&after).await;
        compiled?;
        *locked(&self.environment.rules) = Arc::new(book);
        for handle in self.handles() {
            let renewed = handle.lock().await.renew_rules().await;
            if let Err(error) = renewed {
                *locked(&self.environment.rules) = earlier;
                for handle in self.handles() {
                    // They compiled before.
                    let _ = handle.lock().await.renew_rules().await;
                }
                return Err(error);
            }
        }
        *now = after;
        Ok(())
    }

    /// Notes groups and tables for all switches, as they were saved. An expression that cannot be
    /// compiled any more closes the ports with its rule.
    ///
    /// # Errors
    /// Names the first such expression.
    pub(super) async fn note_rules_again(&self, topology: &Topology) -> Result<(), ApiError> {
        let (book, compiled) = self.book_of(topology).await;
        *locked(&self.environment.rules) = Arc::new(book);
        compiled
    }

    /// Checks that the expressions of rules can be compiled.
    ///
    /// # Errors
    /// Names the first that cannot.
    pub(super) async fn check_expressions(&self, topology: &Topology) -> Result<(), ApiError> {
        self.book_of(topology).await.1
    }

    /// Groups and tables, with the programs of all expressions up to the first that is wrong.
    async fn book_of(&self, topology: &Topology) -> (RuleBook, Result<(), ApiError>) {
        let known = locked(&self.environment.rules).filters.clone();
        let mut book = RuleBook::of(topology, known);
        let missing = book.missing();
        if missing.is_empty() {
            return (book, Ok(()));
        }
        let exe = self.environment.exe.clone();
        let compiling = tokio::task::spawn_blocking(move || compile_all(&exe, &missing));
        let compiled = match compiling.await {
            Ok(Ok(programs)) => {
                book.filters.extend(programs);
                Ok(())
            }
            Ok(Err(Wrong { text, why })) => {
                let reason = format!("{}: bpf \"{text}\": {why}", book.place_of(&text));
                let remedy = "see pcap-filter(7), or write the numbers of tcpdump -ddd";
                Err(ApiError::new(ErrorCode::BadRequest, reason, remedy))
            }
            Err(error) => Err(system("Cannot compile expressions", error.into())),
        };
        (book, compiled)
    }
}

/// What may be wrong with groups, found off the reactor.
pub(super) async fn warnings_of(topology: &Topology) -> Vec<String> {
    let topology = topology.clone();
    let looking = tokio::task::spawn_blocking(move || topology::hidden_rules(&topology));
    // Fails only if the task panicked.
    looking.await.unwrap_or_default()
}

/// The ports that name a group.
fn users_of(topology: &Topology, group: &str) -> Vec<String> {
    let ports = topology.switch.iter().flat_map(|(switch, spec)| {
        spec.port.iter().map(move |(port, spec)| (format!("{switch}:{port}"), spec))
    });
    let named = ports.filter(|(_, spec)| spec.policy.groups.iter().any(|name| name == group));
    named.map(|(name, _)| name).collect()
}

fn missing(kind: &str, name: &str) -> ApiError {
    let reason = format!("There is no {kind} {name}");
    ApiError::new(ErrorCode::NotFound, reason, "see `toklat fw show`")
}
