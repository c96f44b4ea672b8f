//! `toklat quota`: show, set; and the daemon's `--quota`.

use std::str::FromStr;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::api::{Limit, Limits, Quota, QuotaInfo, Usage};
use crate::users;
use client::Client;
use client::table::Table;
use client::{Global, Result};

/// What can be done with quotas.
#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Show what each user holds, with the limits
    Show,
    /// Change the limits of every user, or of one. Limits of every user do not apply to root and
    /// the daemon's user
    Set(SetArgs),
}

/// Options of `toklat quota set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Change the limits of this user only, by name or uid
    #[arg(long, value_parser = users::uid)]
    user: Option<u32>,
    /// Limits of ports, switches, pipes, memory, connections, addresses, descriptors,
    /// netmap_objects and netmap_ports, as in ports=100, memory=2GiB, pipes=none (no limit) or
    /// switches=default
    #[arg(required = true, value_name = "WHAT=LIMIT")]
    quota: Vec<QuotaOption>,
}

/// One limit, as in `ports=100`.
#[derive(Clone, Debug)]
pub struct QuotaOption {
    what: String,
    limit: Option<Limit>,
}

impl FromStr for QuotaOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (what, limit) = text.split_once('=').ok_or("use WHAT=LIMIT, as in ports=100")?;
        let limit = match limit {
            "default" => None,
            limit => Some(limit.parse().map_err(|e: crate::api::NoLimit| e.to_string())?),
        };
        let option = Self { what: what.into(), limit };
        serde_json::from_value::<Quota>(option.json().into()).map_err(|_| {
            format!(
                "{what:?} is not one of ports, switches, pipes, memory, connections, addresses, \
                 descriptors, netmap_objects, netmap_ports"
            )
        })?;
        Ok(option)
    }
}

impl QuotaOption {
    fn json(&self) -> Map<String, Value> {
        [(self.what.clone(), json!(self.limit))].into_iter().collect()
    }

    /// Merges several quotas; the last value of each wins.
    #[must_use]
    pub fn all(options: &[Self]) -> Quota {
        let all: Map<_, _> = options.iter().flat_map(Self::json).collect();
        // Each was read before.
        serde_json::from_value(all.into()).unwrap_or_default()
    }
}

impl QuotaCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If the daemon does not run or refuses.
    pub fn run(self, global: &Global) -> Result {
        let mut client = Client::connect(global)?;
        match self {
            Self::Show => {
                let info: QuotaInfo = client.get("/v1/quotas")?;
                global.print_list(&info, || table(&info), "")
            }
            Self::Set(SetArgs { user, quota }) => {
                let limits: Map<_, _> = quota.iter().flat_map(QuotaOption::json).collect();
                let patch = match user {
                    Some(uid) => json!({ "user": { uid.to_string(): limits } }),
                    None => limits.into(),
                };
                client.submit(Method::PATCH, "/v1/quotas", &patch)?;
                let whose = user
                    .map_or_else(|| "each user".into(), |uid| format!("user {}", users::name(uid)));
                global.print_done(&patch, &format!("changed what {whose} may hold"))
            }
        }
    }
}

fn table(info: &QuotaInfo) -> Table {
    let mut table = Table::new(&[
        "user",
        ">ports",
        ">switches",
        ">pipes",
        ">memory",
        ">connections",
        ">addresses",
        ">descriptors",
        ">netmap_objects",
        ">netmap_ports",
    ]);
    let cell = |held: Option<u64>, limit: Option<u64>| {
        let limit = limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
        held.map_or_else(|| limit.clone(), |held| format!("{held}/{limit}"))
    };
    let mut row = |name: String, held: Option<Usage>, limits: Limits| {
        table.row([
            name,
            cell(held.map(|held| held.ports), limits.ports),
            cell(held.map(|held| held.switches), limits.switches),
            cell(held.map(|held| held.pipes), limits.pipes),
            cell(held.map(|held| held.memory), limits.memory),
            cell(held.map(|held| held.connections), limits.connections),
            cell(None, limits.addresses),
            cell(held.map(|held| held.descriptors), limits.descriptors),
            cell(held.map(|held| held.netmap_objects), limits.netmap_objects),
            cell(held.map(|held| held.netmap_ports), limits.netmap_ports),
        ]);
    };
    for user in &info.users {
        row(users::name(user.uid), Some(user.usage), user.limits);
    }
    row("others".into(), None, info.limits);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_limits_by_name() {
        let options = ["ports=5", "memory=1KiB", "pipes=none", "ports=default", "ports=6"];
        let options: Vec<QuotaOption> = options.iter().map(|text| text.parse().unwrap()).collect();
        let quota = QuotaOption::all(&options);
        assert_eq!(quota.ports, Some(Limit::AtMost(6)));
        assert_eq!((quota.memory, quota.pipes), (Some(Limit::AtMost(1024)), Some(Limit::None)));
        for wrong in ["ports", "prots=5", "ports=x", "user=5"] {
            assert!(wrong.parse::<QuotaOption>().is_err(), "{wrong}");
        }
    }
}
