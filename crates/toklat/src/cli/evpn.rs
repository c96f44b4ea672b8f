//! `toklat evpn`: show, release.

use clap::{Subcommand, ValueEnum};
use evpn::report::{MacInfo, NeighborInfo, RouteInfo, Summary, VtepInfo};
use frame::{Mac, Vni};
use hyper::Method;
use serde_json::json;

use client::Client;
use client::table::Table;
use client::{Global, Result};

/// What can be done with EVPN.
#[derive(Debug, Subcommand)]
pub enum EvpnCommand {
    /// Show the hosts of all segments, their stations, routes, or BGP neighbours
    #[command(after_help = "Examples:\n  toklat evpn show\n  toklat evpn show macs --vni 100")]
    Show {
        /// What; without, all in short
        what: Option<What>,
        /// Only those of this segment
        #[arg(long)]
        vni: Option<Vni>,
    },
    /// Let a station move again that moved too often between hosts
    #[command(after_help = "Example:\n  toklat evpn release 100 02:00:00:00:00:01")]
    Release {
        /// Its segment
        vni: Vni,
        /// Its address
        mac: Mac,
    },
}

/// What is shown.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum What {
    /// The hosts behind tunnels
    Vteps,
    /// The stations here and behind other hosts
    Macs,
    /// The routes of other hosts
    Routes,
    /// The BGP neighbours
    Neighbors,
}

impl EvpnCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If the daemon does not run, or has no EVPN.
    pub fn run(self, global: &Global) -> Result {
        let mut client = Client::connect(global)?;
        let (what, vni) = match self {
            Self::Show { what, vni } => (what, vni),
            Self::Release { vni, mac } => {
                let path = format!("/v1/evpn/macs/{mac}/release?vni={vni}");
                client.submit(Method::POST, &path, &json!({}))?;
                let done = json!({ "vni": vni, "mac": mac });
                return global.print_done(&done, &format!("{mac} of VNI {vni} may move again"));
            }
        };
        let is_wanted = |of: u32| vni.is_none_or(|vni| vni.get() == of);
        match what {
            Some(What::Macs) => {
                let mut list: Vec<MacInfo> = client.get("/v1/evpn/macs")?;
                list.retain(|info| is_wanted(info.vni));
                global.print_list(&list, || macs(&list), "no stations")
            }
            Some(What::Routes) => {
                let mut list: Vec<RouteInfo> = client.get("/v1/evpn/routes")?;
                list.retain(|info| is_wanted(info.vni));
                global.print_list(&list, || routes(&list), "no routes of other hosts")
            }
            Some(What::Vteps) => {
                let mut list = client.get::<Summary>("/v1/evpn")?.vteps;
                list.retain(|info| is_wanted(info.vni));
                global.print_list(&list, || vteps(&list), "no other hosts")
            }
            Some(What::Neighbors) => {
                let list = client.get::<Summary>("/v1/evpn")?.neighbors;
                global.print_list(&list, || neighbors(&list), "no neighbours")
            }
            None => {
                let summary: Summary = client.get("/v1/evpn")?;
                global.print_list(&[&summary], || overview(&summary), "")
            }
        }
    }
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "-" }.to_owned()
}

fn overview(summary: &Summary) -> Table {
    let mut table = Table::new(&["what", "value"]);
    let daemon = match (&summary.connected, &summary.trouble) {
        (true, _) => "connected".to_owned(),
        (false, None) => "not connected yet".to_owned(),
        (false, Some(trouble)) => trouble.clone(),
    };
    let up = summary.neighbors_up();
    let rows = [
        ("routing daemon", daemon),
        ("lost", summary.restarts.to_string()),
        ("neighbours up", format!("{up} of {}", summary.neighbors.len())),
        ("hosts", summary.hosts().to_string()),
        ("own routes", summary.own.to_string()),
        ("routes of others", summary.routes.to_string()),
        ("stale routes", summary.stale.to_string()),
        ("moves", summary.counters.moves.to_string()),
        ("duplicates", summary.counters.duplicates.to_string()),
        ("routes beyond limits", summary.counters.over_limit.to_string()),
        ("stations of too many hosts", summary.counters.no_number.to_string()),
        ("routes of damped hosts", summary.counters.damped.to_string()),
    ];
    rows.into_iter().for_each(|(what, value)| table.row([what.to_owned(), value]));
    table
}

fn vteps(list: &[VtepInfo]) -> Table {
    let mut table =
        Table::new(&[">vni", "host", ">number", ">stations", "floods", ">ignored", "damped"]);
    for info in list {
        table.row([
            info.vni.to_string(),
            info.address.to_string(),
            if info.number == 0 { "-".to_owned() } else { info.number.to_string() },
            info.stations.to_string(),
            yes(info.floods),
            info.ignored.to_string(),
            yes(info.damped),
        ]);
    }
    table
}

fn macs(list: &[MacInfo]) -> Table {
    let mut table =
        Table::new(&[">vni", "mac", "host", "sticky", ">sequence", ">moves", "duplicate"]);
    for info in list {
        table.row([
            info.vni.to_string(),
            info.mac.to_string(),
            info.host.map_or_else(|| "here".to_owned(), |host| host.to_string()),
            yes(info.sticky),
            info.sequence.to_string(),
            info.moves.to_string(),
            yes(info.duplicate),
        ]);
    }
    table
}

fn routes(list: &[RouteInfo]) -> Table {
    let mut table = Table::new(&[
        ">type",
        "rd",
        ">vni",
        "mac",
        "ip",
        "host",
        "targets",
        ">sequence",
        "used",
        "stale",
    ]);
    for info in list {
        let targets: Vec<_> = info.targets.iter().map(ToString::to_string).collect();
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.row([
            info.kind.to_string(),
            info.rd.clone(),
            info.vni.to_string(),
            or_none(info.mac.map(|mac| mac.to_string())),
            or_none(info.ip.map(|ip| ip.to_string())),
            info.host.to_string(),
            targets.join(" "),
            info.sequence.to_string(),
            yes(info.used),
            yes(info.stale),
        ]);
    }
    table
}

fn neighbors(list: &[NeighborInfo]) -> Table {
    let mut table =
        Table::new(&["neighbour", ">as", "state", ">received", ">advertised", ">flaps", "reason"]);
    for info in list {
        table.row([
            info.address.clone(),
            info.asn.to_string(),
            info.state.clone(),
            info.received.to_string(),
            info.advertised.to_string(),
            info.flaps.to_string(),
            info.reason.clone(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use api::{EvpnInfo, EvpnRoute, EvpnStation};

    use super::*;

    #[test]
    fn evpn_is_reported_as_its_types_say() {
        fn same<T: serde::Serialize + serde::de::DeserializeOwned>(
            written: &impl serde::Serialize,
        ) {
            let written = serde_json::to_value(written).unwrap();
            let read: T = serde_json::from_value(written.clone()).unwrap();
            assert_eq!(serde_json::to_value(read).unwrap(), written);
        }
        let (address, text) = ("10.0.0.2".parse().unwrap(), || "text".to_owned());
        let (vni, number, stations, floods, ignored, damped) = (7, 1, 2, true, 3, true);
        let vteps = vec![VtepInfo { vni, address, number, stations, floods, ignored, damped }];
        let (received, advertised, flaps) = (1, 2, 3);
        let neighbors = vec![NeighborInfo {
            address: text(),
            asn: 65_000,
            state: text(),
            received,
            advertised,
            flaps,
            reason: text(),
        }];
        same::<EvpnInfo>(&Summary {
            trouble: Some(text()),
            neighbors,
            vteps,
            ..Summary::default()
        });
        same::<EvpnInfo>(&Summary::default());
        let (mac, sticky, sequence, moves) = (frame::Mac::local(1), true, 4, 5);
        let host = Some(address);
        same::<EvpnStation>(&MacInfo { vni, mac, host, sticky, sequence, moves, duplicate: true });
        let targets = vec!["65000:7".parse().unwrap()];
        same::<EvpnRoute>(&RouteInfo {
            kind: 2,
            rd: text(),
            vni,
            mac: Some(mac),
            ip: None,
            host: address,
            targets,
            sticky,
            sequence,
            used: true,
            stale: false,
        });
    }
}
