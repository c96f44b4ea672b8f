//! `toklat fdb`: show, add, rm, flush.

use clap::Subcommand;
use frame::{Mac, VlanId};
use hyper::Method;
use serde_json::json;

use crate::api::{FdbEntry, FdbFlush, NewFdbEntry};
use client::Client;
use client::name::{Name, PortName, SwitchName};
use client::table::{Table, duration};
use client::{Global, Result};

/// What can be done with forwarding tables.
#[derive(Debug, Subcommand)]
pub enum FdbCommand {
    /// Show addresses and their ports
    Show {
        /// A switch (vale0) or a port (vale0:p1)
        name: Name,
        /// Only those of this VLAN
        #[arg(long)]
        vlan: Option<VlanId>,
    },
    /// Add a static address
    Add {
        /// The address's port, as in vale0:p1
        port: PortName,
        /// The address
        mac: Mac,
        /// The VLAN, if the port is in one
        #[arg(long)]
        vlan: Option<VlanId>,
    },
    /// Remove an address
    Rm {
        /// The switch
        switch: SwitchName,
        /// The address
        mac: Mac,
        /// The VLAN
        #[arg(long)]
        vlan: Option<VlanId>,
    },
    /// Forget the learned addresses of a switch or a port; static addresses stay
    Flush {
        /// A switch (vale0) or a port (vale0:p1)
        name: Name,
        /// Only those of this VLAN
        #[arg(long)]
        vlan: Option<VlanId>,
    },
}

impl FdbCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If the daemon does not run or refuses.
    pub fn run(self, global: &Global) -> Result {
        let mut client = Client::connect(global)?;
        match self {
            Self::Show { name, vlan } => {
                let mut entries: Vec<FdbEntry> =
                    client.get(&format!("{}/fdb", name.switch().path()))?;
                entries.retain(|entry| vlan.is_none() || entry.vlan == vlan);
                if let Name::Port(port) = &name {
                    entries.retain(|entry| entry.port == port.port);
                }
                global.print_list(&entries, || table(&entries), "no addresses learned or added")
            }
            Self::Add { port, mac, vlan } => {
                let entry = NewFdbEntry { mac, vlan, port: port.port.clone() };
                client.submit(Method::POST, &format!("{}/fdb", port.switch.path()), &entry)?;
                global.print_done(&entry, &format!("added {mac} at {port}"))
            }
            Self::Rm { switch, mac, vlan } => {
                let query = vlan.map(|vlan| format!("?vlan={vlan}")).unwrap_or_default();
                client.delete(&format!("{}/fdb/{mac}{query}", switch.path()))?;
                let json = json!({ "switch": switch.as_str(), "mac": mac, "vlan": vlan });
                global.print_done(&json, &format!("removed {mac} from {switch}"))
            }
            Self::Flush { name, vlan } => {
                let port = match &name {
                    Name::Switch(_) => None,
                    Name::Port(port) => Some(port.port.clone()),
                };
                let flush = FdbFlush { port, vlan };
                let path = format!("{}/fdb/flush", name.switch().path());
                client.submit(Method::POST, &path, &flush)?;
                global.print_done(&flush, "flushed")
            }
        }
    }
}

fn table(entries: &[FdbEntry]) -> Table {
    let mut table = Table::new(&["mac", ">vlan", "port", "kind", ">age"]);
    for entry in entries {
        let ages = entry.origin.is_dynamic();
        let age = if ages { duration(entry.age_s.into()) } else { "-".to_owned() };
        let kind = if entry.fixed { "fixed" } else { entry.origin.name() };
        table.row([
            entry.mac.to_string(),
            entry.vlan.map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
            entry.port.clone(),
            kind.into(),
            age,
        ]);
    }
    table
}
