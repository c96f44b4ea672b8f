//! `toklat switch`: add, set, rm, show.

use std::io::Write;

use clap::{Args, Subcommand, ValueEnum};
use dataplane::config::{Idle, parse_bytes};
use hyper::Method;
use serde_json::{Map, Value, json};

use super::port_options::{Or, or_null};
use crate::api::{ChildInfo, Collector, SflowInfo, SwitchInfo, SwitchState};
use crate::users::{self, UserId};
use client::Client;
use client::name::SwitchName;
use client::table::Table;
use client::{Global, Result, UsageError};

/// What can be done with switches.
#[derive(Debug, Subcommand)]
pub enum SwitchCommand {
    /// Add a switch; its data process starts at once
    #[command(after_help = "Examples:\n  \
        toklat switch add vale0\n  \
        toklat switch add vale1 --cpus 2,3 --idle poll\n  \
        toklat switch add tenant7 --user alice\n  \
        toklat switch add vale9 --trusted --user alice")]
    Add {
        /// Its name: up to 15 letters, digits, '-', '_' or '.'
        name: SwitchName,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        fixed: FixedSettings,
    },
    /// Change a running switch
    Set {
        /// Its name
        name: SwitchName,
        #[command(flatten)]
        settings: Settings,
    },
    /// Remove switches and their ports; clients see their ports close
    Rm {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<SwitchName>,
    },
    /// Show switches: all, or one
    Show {
        /// Its name
        name: Option<SwitchName>,
    },
}

/// What workers do when there is nothing to do.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum IdleOption {
    /// Spin up to 50 us after the last frame, then sleep
    Auto,
    /// Spin forever: shortest latency, a whole CPU each
    Poll,
    /// Sleep at once: least CPU time, longest latency
    Sleep,
}

/// Settings that a running switch can change.
#[derive(Debug, Default, Args)]
pub struct Settings {
    /// What workers do when there is nothing to do [default: auto]
    #[arg(long, value_name = "HOW")]
    idle: Option<IdleOption>,
    /// Maximum frames taken from a port per turn, 1 to 1024 [default: 64]
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: Option<u16>,
    /// Seconds after which a learned address is forgotten, 0 for never [default: 300]
    #[arg(long, value_name = "SECONDS")]
    fdb_ageing: Option<u32>,
    /// Senders wait for a lossless port as long as it frees a slot within this many milliseconds;
    /// otherwise it drops frames until it has room [default: 200]
    #[arg(long, value_name = "MS")]
    stall_timeout: Option<u32>,
    /// Maximum memory that is mapped for one guest, such as 512GiB [default: 4TiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_guest_memory: Option<u64>,
    /// Maximum memory that is mapped for all guests and clients; half of it is guaranteed to ports
    /// in equal parts [default: 64TiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_mapped_memory: Option<u64>,
    /// Maximum memory of the links of all ports; a link that could need more than is left is
    /// refused [default: 1GiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_link_memory: Option<u64>,
    /// Maximum size of a region with rings, except those of root and the daemon's user [default:
    /// 256MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_region_memory: Option<u64>,
    /// The tenant that the switch belongs to, by name or uid: no other user may open a port of it
    /// (besides root and the daemon's user)
    #[arg(long, value_name = "USER|none")]
    user: Option<Or<UserId>>,
    /// The only user, by name or uid, that may open ports without an owner of their own (besides
    /// root and the daemon's user)
    #[arg(long, value_name = "USER|none")]
    owner: Option<Or<UserId>>,
    /// Send samples of the traffic and the ports' counters to this sFlow collector [default port:
    /// 6343]
    #[arg(long, value_name = "ADDR[:PORT]|none")]
    sflow: Option<Or<Collector>>,
    /// Sample one frame in this many [default: 10000]
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    sflow_rate: Option<u32>,
    /// Seconds between reports of the ports' counters [default: 20]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    sflow_polling: Option<u32>,
}

/// A list of CPUs.
#[derive(Clone, Debug)]
struct Cpus(Vec<u16>);

fn cpus(text: &str) -> Result<Cpus, String> {
    topology::ranges::numbers(text).map(Cpus)
}

/// Settings that are made with the switch.
#[derive(Debug, Default, Args)]
pub struct FixedSettings {
    /// Worker threads, on any CPU [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,
    /// A worker on each of these CPUs, as in 2,3 or 0-1
    #[arg(long, value_name = "LIST", value_parser = cpus, conflicts_with = "workers")]
    cpus: Option<Cpus>,
    /// Maximum number of ports, up to 16384 [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16384))]
    max_ports: Option<u16>,
    /// Entries of the forwarding table [default: 8192]
    #[arg(long, value_name = "N")]
    fdb_entries: Option<u32>,
    /// Have processes of one user forward in their own threads, which is faster: those of --user or
    /// --owner, else of the daemon's user. Each of them can read and change every frame of the
    /// switch, and stop it, as a debugger does that stops one of them. Ports are rings without
    /// limits and bad links; see SECURITY.md
    #[arg(long)]
    trusted: bool,
}

impl Settings {
    /// The given settings, as JSON for the API.
    fn patch(&self) -> Map<String, Value> {
        let mut patch = Map::new();
        let idle = self.idle.map(|idle| match idle {
            IdleOption::Auto => json!(Idle::Auto),
            IdleOption::Poll => json!(Idle::Poll),
            IdleOption::Sleep => json!(Idle::Sleep),
        });
        let given = [
            ("idle", idle),
            ("batch", self.batch.map(Value::from)),
            ("fdb_ageing_s", self.fdb_ageing.map(Value::from)),
            ("stall_timeout_ms", self.stall_timeout.map(Value::from)),
            ("max_guest_memory", self.max_guest_memory.map(Value::from)),
            ("max_mapped_memory", self.max_mapped_memory.map(Value::from)),
            ("max_link_memory", self.max_link_memory.map(Value::from)),
            ("max_region_memory", self.max_region_memory.map(Value::from)),
            ("user", self.user.as_ref().map(or_null)),
            ("owner", self.owner.as_ref().map(or_null)),
            ("sflow", self.sflow.as_ref().map(or_null)),
            ("sflow_rate", self.sflow_rate.map(Value::from)),
            ("sflow_polling_s", self.sflow_polling.map(Value::from)),
        ];
        for (name, value) in given {
            patch.extend(value.map(|value| (name.to_owned(), value)));
        }
        patch
    }
}

impl FixedSettings {
    fn patch(&self) -> Map<String, Value> {
        let mut patch = Map::new();
        if let Some(workers) = self.workers {
            patch.insert("workers".into(), (0..workers).map(|_| json!({})).collect());
        } else if let Some(Cpus(cpus)) = &self.cpus {
            let pinned = cpus.iter().map(|cpu| json!({ "cpu": cpu }));
            patch.insert("workers".into(), pinned.collect());
        }
        let given = [
            ("max_ports", self.max_ports.map(Value::from)),
            ("fdb_entries", self.fdb_entries.map(Value::from)),
            ("trusted", self.trusted.then_some(true.into())),
        ];
        for (name, value) in given {
            patch.extend(value.map(|value| (name.to_owned(), value)));
        }
        patch
    }
}

impl SwitchCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If the daemon does not run or refuses, or if nothing is to be changed.
    pub fn run(self, global: &Global) -> Result {
        match self {
            Self::Add { name, settings, fixed } => {
                let mut body = settings.patch();
                body.extend(fixed.patch());
                body.insert("name".into(), name.as_str().into());
                let info: SwitchInfo =
                    Client::connect(global)?.send(Method::POST, "/v1/switches", &body)?;
                global.print_done(&info, &format!("added {name}"))
            }
            Self::Set { name, settings } => {
                let patch = settings.patch();
                if patch.is_empty() {
                    let nothing = "nothing to change; see toklat switch set --help";
                    return Err(UsageError::new(nothing).into());
                }
                let info: SwitchInfo =
                    Client::connect(global)?.send(Method::PATCH, &name.path(), &patch)?;
                global.print_done(&info, &format!("changed {name}"))
            }
            Self::Rm { names } => {
                let mut client = Client::connect(global)?;
                for name in names {
                    client.delete(&name.path())?;
                    global.print_removed(&name)?;
                }
                Ok(())
            }
            Self::Show { name } => {
                let mut client = Client::connect(global)?;
                let switches: Vec<SwitchInfo> = match name {
                    Some(name) => vec![client.get(&name.path())?],
                    None => client.get("/v1/switches")?,
                };
                let nothing = "no switches; add one: toklat switch add vale0";
                global.print_list(&switches, || table(&switches), nothing)?;
                if let ([info], false) = (&switches[..], global.json) {
                    let others: String = info.children.iter().map(child).collect();
                    let (walls, gaps) = (walls(&info.walls), gaps(info));
                    let out = format!("{}{gaps}{walls}{others}{}", stopped(info), sflow(info));
                    write!(std::io::stdout().lock(), "{out}")?;
                }
                Ok(())
            }
        }
    }
}

fn table(switches: &[SwitchInfo]) -> Table {
    let mut table = Table::new(&[
        "switch",
        "state",
        ">ports",
        "workers",
        "idle",
        ">batch",
        ">pid",
        ">restarts",
        "users",
    ]);
    for info in switches {
        let state = match (info.state, &info.failure) {
            (SwitchState::Running, _) => "running".to_owned(),
            (SwitchState::Restarting, _) => "restarting".to_owned(),
            (SwitchState::Failed, None) => "failed".to_owned(),
            (SwitchState::Failed, Some(why)) => format!("failed: {why}"),
        };
        table.row([
            info.name.clone(),
            state,
            info.ports.to_string(),
            workers(info),
            format!("{:?}", info.config.idle).to_lowercase(),
            info.config.batch.to_string(),
            info.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            info.restarts.to_string(),
            owners(info),
        ]);
    }
    table
}

/// Says that a trusted switch waits for a process that is stopped.
fn stopped(info: &SwitchInfo) -> String {
    let Some(pid) = info.stopped_holder else { return String::new() };
    format!(
        "process {pid} is stopped while it holds the switch: nothing is forwarded until it goes on (kill -CONT {pid}) \
         or ends\n"
    )
}

/// Returns the walls around a process, and the missing ones.
fn walls(walls: &jail::Walls) -> String {
    let names: Vec<&str> = walls.standing.iter().map(|wall| wall.name()).collect();
    let no = |jail::Refused { wall, reason }: &jail::Refused| format!("no {wall}: {reason}\n");
    let refused: String = walls.refused.iter().map(no).collect();
    format!("walls: {}\n{refused}", names.join(", "))
}

/// Describes a child of the daemon, and the walls around it.
pub(super) fn child(child: &ChildInfo) -> String {
    let pid = child.pid.map_or_else(|| "does not run".to_owned(), |pid| format!("process {pid}"));
    format!("{}, {pid}, {}", child.name, walls(&child.walls))
}

/// How long it was without a data process, if one has died.
fn gaps(info: &SwitchInfo) -> String {
    let gaps = info.restart_gaps;
    let (last, pause, longest) = (gaps.last_ms, gaps.last_pause_ms, gaps.longest_ms);
    match gaps.count {
        0 => String::new(),
        _ => format!(
            "last restart: {last} ms, of it {pause} ms pause; longest without pause: {longest} ms\n"
        ),
    }
}

/// What was sent to its sFlow collector.
fn sflow(info: &SwitchInfo) -> String {
    let Some(sflow) = &info.sflow else { return String::new() };
    let SflowInfo { collector, rate, samples, missed, datagrams, refused, failure, .. } = sflow;
    let failure = failure.as_ref().map_or(String::new(), |why| format!("; cannot send: {why}"));
    format!(
        "sflow: to {collector}, 1 in {rate}: {samples} samples ({missed} missed), {datagrams} datagrams ({refused} \
         refused){failure}\n"
    )
}

/// The users that may open its ports: `only alice`, or `alice` if ports may name other owners.
fn owners(info: &SwitchInfo) -> String {
    match (info.user, info.owner) {
        (Some(user), _) => format!("only {}", users::name(user)),
        (None, Some(owner)) => users::name(owner),
        (None, None) => "-".to_owned(),
    }
}

/// `2 (cpu 2,any)`: the number of workers, and their CPUs.
fn workers(info: &SwitchInfo) -> String {
    let workers = &info.config.workers;
    if workers.iter().all(|worker| worker.cpu.is_none()) {
        return workers.len().to_string();
    }
    let cpus: Vec<String> = workers
        .iter()
        .map(|worker| worker.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string()))
        .collect();
    format!("{} (cpu {})", workers.len(), cpus.join(","))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use dataplane::config::{SwitchConfig, WorkerConfig};

    use super::*;
    use crate::api::NewSwitch;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        fixed: FixedSettings,
    }

    fn config(options: &[&str]) -> SwitchConfig {
        let line = Line::try_parse_from([&["x"], options].concat()).unwrap();
        let mut body = line.settings.patch();
        body.extend(line.fixed.patch());
        body.insert("name".into(), "vale0".into());
        serde_json::from_value::<NewSwitch>(body.into()).unwrap().spec.config
    }

    #[test]
    fn options_become_the_configuration() {
        assert_eq!(config(&[]), SwitchConfig::default());
        let memory =
            ["--max-guest-memory=512GiB", "--max-mapped-memory=2TiB", "--max-region-memory=1"];
        let given = ["--idle", "poll", "--batch=32", "--fdb-ageing=0", "--max-ports=8"];
        let given = config(&[&given[..], &memory].concat());
        let expected = SwitchConfig {
            max_guest_memory: 512 << 30,
            max_mapped_memory: 2 << 40,
            max_region_memory: 1,
            idle: Idle::Poll,
            batch: 32,
            fdb_ageing_s: 0,
            max_ports: 8,
            ..SwitchConfig::default()
        };
        assert_eq!(given, expected);
        assert!(config(&["--trusted"]).trusted);
        assert_eq!(config(&["--workers=3"]).workers, [WorkerConfig { cpu: None }; 3]);
        let pinned = [WorkerConfig { cpu: Some(2) }, WorkerConfig { cpu: Some(3) }];
        assert_eq!(config(&["--cpus=2,3"]).workers, pinned);
    }

    #[test]
    fn users_have_names_and_numbers_and_can_be_taken_back() {
        let patch = |options: &[&str]| {
            let line = Line::try_parse_from([&["x"], options].concat()).unwrap();
            Value::from(line.settings.patch())
        };
        assert_eq!(patch(&["--user=root"]), json!({"user": 0}));
        assert_eq!(patch(&["--user=none", "--owner=1000"]), json!({"user": null, "owner": 1000}));
        assert!(Line::try_parse_from(["x", "--user=no such user"]).is_err());
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for bad in [&["--cpus=1", "--workers=2"][..], &["--batch=0"], &["--idle=maybe"]] {
            assert!(Line::try_parse_from([&["x"], bad].concat()).is_err(), "{bad:?}");
        }
    }
}
