//! `toklat fw`: rules between ports.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Subcommand;
use hyper::Method;
use serde_json::json;

use crate::api::{ConnectionsInfo, Group, GroupInfo, PolicyInfo, Table, TableChange, TableInfo};
use client::Client;
use client::name::{Name, NameError, PortName, SwitchName};
use client::table::{Table as Columns, duration};
use client::{Global, Result, UsageError};

/// What can be done with rules.
#[derive(Debug, Subcommand)]
pub enum FwCommand {
    /// Add rules to the end of a group; the group is made if there is none
    Add {
        /// The group
        group: String,
        /// Rules, one an argument: 'allow tcp from any to me 80,443'
        #[arg(required = true)]
        rules: Vec<String>,
    },
    /// Make a group of these rules, in place of those that it has
    Set {
        /// The group
        group: String,
        /// Rules, one an argument
        rules: Vec<String>,
    },
    /// Remove a group that no port names
    Del {
        /// The group
        group: String,
    },
    /// Make a group of the rules in a file, one a line, in place of those that it has
    Load {
        /// The file
        file: PathBuf,
        /// The group [default: the file's name without its extension]
        #[arg(long)]
        group: Option<String>,
        /// The file is one of ipfw(8)
        #[arg(long)]
        ipfw: bool,
    },
    /// Show groups, or the rules of a switch's ports, or of one port, with their counters
    Show {
        /// A group, a switch, or a port, as in vale0:p1
        name: Option<String>,
    },
    /// Let the rules of a switch count from 0
    Zero {
        /// The switch
        switch: SwitchName,
    },
    /// Show the connections that the rules of a switch have admitted
    Connections {
        /// The switch
        switch: SwitchName,
    },
    /// Show and change tables of addresses, which rules name by table:NAME
    #[command(subcommand)]
    Table(TableCommand),
}

/// What can be done with tables.
#[derive(Debug, Subcommand)]
pub enum TableCommand {
    /// Add networks and addresses; the table is made if there is none
    Add {
        /// The table
        table: String,
        /// Networks and addresses, as in 10.0.0.0/8
        prefixes: Vec<String>,
    },
    /// Remove networks and addresses
    Rm {
        /// The table
        table: String,
        /// Networks and addresses
        #[arg(required = true)]
        prefixes: Vec<String>,
    },
    /// Remove a table that no rule names
    Del {
        /// The table
        table: String,
    },
    /// Show tables, or the content of one
    Show {
        /// The table
        table: Option<String>,
    },
}

impl FwCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If a rule is wrong, or if the daemon does not run or refuses.
    pub fn run(self, global: &Global) -> Result {
        if let Self::Load { file, group, ipfw } = self {
            return load(global, &file, group, ipfw);
        }
        let mut client = Client::connect(global)?;
        match self {
            Self::Add { group, rules } => {
                let groups: Vec<GroupInfo> = client.get("/v1/groups")?;
                let known = groups.into_iter().find(|known| known.name == group);
                let mut all = known.map(|known| known.rules).unwrap_or_default();
                all.extend(rules);
                put_group(&mut client, global, &group, all)
            }
            Self::Set { group, rules } => put_group(&mut client, global, &group, rules),
            Self::Del { group } => {
                client.delete(&format!("/v1/groups/{group}"))?;
                global.print_done(&json!({ "group": group }), &format!("removed {group}"))
            }
            Self::Show { name } => show(&mut client, global, name.as_deref()),
            Self::Zero { switch } => {
                client.submit(
                    Method::POST,
                    &format!("{}/rules/zero", switch.path()),
                    &json!({}),
                )?;
                global.print_done(&json!({ "switch": switch.as_str() }), "counters are 0")
            }
            Self::Connections { switch } => {
                let info: ConnectionsInfo =
                    client.get(&format!("{}/connections", switch.path()))?;
                global.print_list(&info, || connections(&info), "no connections")
            }
            Self::Table(command) => command.run(&mut client, global),
            Self::Load { .. } => Ok(()),
        }
    }
}

fn put_group(client: &mut Client, global: &Global, name: &str, rules: Vec<String>) -> Result {
    let count = rules.len();
    let group = Group { rules };
    let path = format!("/v1/groups/{name}");
    let info: GroupInfo = client.send(Method::PUT, &path, &group)?;
    if !global.json {
        info.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    }
    global.print_done(&info, &format!("{name} has {count} rules"))
}

/// Makes a group, and the tables of a file of ipfw.
fn load(global: &Global, file: &PathBuf, group: Option<String>, ipfw: bool) -> Result {
    let text = std::fs::read_to_string(file)
        .map_err(|e| UsageError::new(format!("Cannot read {}: {e}", file.display())))?;
    let stem = || file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let group = group.or_else(stem).unwrap_or_default();
    let wrong = |e: rules::TextError| UsageError::new(format!("{}: {e}", file.display()));
    let (rules, tables) = match ipfw {
        false => {
            let parsed = rules::parse_lines(text.lines()).map_err(wrong)?;
            let lines: Vec<&str> = text.lines().collect();
            let rules = parsed.iter().map(|rule| lines[rule.line - 1].to_owned()).collect();
            (rules, Vec::new())
        }
        true => {
            let parsed = rules::parse_ipfw(text.lines()).map_err(wrong)?;
            if let Some(name) = parsed.pipes.keys().next() {
                let reason = format!("{}: a switch cannot do `{name}` yet", file.display());
                return Err(UsageError::new(reason).into());
            }
            let rules = parsed.rules.iter().map(ToString::to_string).collect();
            (rules, parsed.tables.into_iter().collect())
        }
    };
    let mut client = Client::connect(global)?;
    for (name, prefixes) in tables {
        let prefixes = prefixes.iter().map(ToString::to_string).collect();
        client.submit(Method::PUT, &format!("/v1/tables/{name}"), &Table { prefixes })?;
    }
    put_group(&mut client, global, &group, rules)
}

fn show(client: &mut Client, global: &Global, name: Option<&str>) -> Result {
    let mut groups: Vec<GroupInfo> = client.get("/v1/groups")?;
    let is_switch = |name: &&str| !groups.iter().any(|group| group.name == *name);
    if let Some(switch) = name.filter(is_switch) {
        let wrong = |e: NameError| UsageError::new(format!("{e}"));
        let (switch, port) = match switch.parse().map_err(wrong)? {
            Name::Switch(switch) => (switch, None),
            Name::Port(PortName { switch, port }) => (switch, Some(port)),
        };
        let mut policies: Vec<PolicyInfo> = client.get(&format!("{}/rules", switch.path()))?;
        if let Some(port) = port {
            policies.retain(|policy| policy.ports.contains(&port));
        }
        return global.print_list(&policies, || counted(&policies), "no port has rules");
    }
    groups.retain(|group| name.is_none_or(|name| group.name == name));
    let table = || {
        let mut table = Columns::new(&["group", "rule", "ports"]);
        for group in &groups {
            for (at, rule) in group.rules.iter().enumerate() {
                let ports = if at == 0 { group.ports.join(" ") } else { String::new() };
                table.row([group.name.clone(), rule.clone(), ports]);
            }
        }
        table
    };
    global.print_list(&groups, table, "no groups")
}

fn counted(policies: &[PolicyInfo]) -> Columns {
    let mut table = Columns::new(&["ports", "group", ">frames", "rule"]);
    for policy in policies {
        for rule in &policy.rules {
            let ports = policy.ports.join(" ");
            let frames = rule.frames.to_string();
            table.row([ports, rule.group.clone(), frames, rule.rule.clone()]);
        }
    }
    table
}

fn connections(info: &ConnectionsInfo) -> Columns {
    let mut table =
        Columns::new(&["protocol", "source", "destination", ">vlan", "ports", "state", ">expires"]);
    for own in &info.list {
        let protocol = match own.protocol {
            1 => "icmp".to_owned(),
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            58 => "icmp6".to_owned(),
            other => other.to_string(),
        };
        let mut ports = own.from.clone();
        // Writing to a string does not fail.
        let _ = write!(ports, " -> {}", own.to.as_deref().unwrap_or("?"));
        table.row([
            protocol,
            std::net::SocketAddr::new(own.source, own.source_port).to_string(),
            std::net::SocketAddr::new(own.destination, own.destination_port).to_string(),
            if own.vlan == 0 { "-".to_owned() } else { own.vlan.to_string() },
            ports,
            own.state.clone(),
            duration(own.expires_s.into()),
        ]);
    }
    table
}

impl TableCommand {
    fn run(self, client: &mut Client, global: &Global) -> Result {
        let mut tables: Vec<TableInfo> = client.get("/v1/tables")?;
        match self {
            Self::Add { table, prefixes } => {
                let path = format!("/v1/tables/{table}");
                let done = format!("{table} has {} more", prefixes.len());
                if tables.iter().any(|known| known.name == table) {
                    let change = TableChange { add: prefixes, remove: Vec::new() };
                    client.submit(Method::PATCH, &path, &change)?;
                    return global.print_done(&change, &done);
                }
                let made = Table { prefixes };
                client.submit(Method::PUT, &path, &made)?;
                global.print_done(&made, &done)
            }
            Self::Rm { table, prefixes } => {
                let change = TableChange { add: Vec::new(), remove: prefixes };
                client.submit(Method::PATCH, &format!("/v1/tables/{table}"), &change)?;
                global.print_done(&change, &format!("{table} has {} fewer", change.remove.len()))
            }
            Self::Del { table } => {
                client.delete(&format!("/v1/tables/{table}"))?;
                global.print_done(&json!({ "table": table }), &format!("removed {table}"))
            }
            Self::Show { table } => {
                tables.retain(|known| table.as_ref().is_none_or(|name| known.name == *name));
                let columns = || {
                    let mut columns = Columns::new(&["table", "prefix"]);
                    for table in &tables {
                        for prefix in &table.prefixes {
                            columns.row([table.name.clone(), prefix.clone()]);
                        }
                    }
                    columns
                };
                global.print_list(&tables, columns, "no tables")
            }
        }
    }
}
