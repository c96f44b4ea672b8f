//! `toklat guest`: programs that are small machines of their own, confined on a port.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use client::table::Table;
use client::{Global, Result, UsageError, print_json};
use topology::GuestSpec;

use crate::guests::kept::{self, Kept};
use crate::guests::manager::{Manager, Options, manifest};
use crate::guests::talk::{self, Request};
use crate::guests::{GuestInfo, State, logs, programs};

/// Commands for guests.
#[derive(Debug, Subcommand)]
pub enum GuestCommand {
    /// Run a program as a guest: confined, with a port and an address and nothing else
    Run(Box<RunArgs>),
    /// List guests
    #[command(visible_alias = "ls")]
    List,
    /// Show a guest: its state, its last end, the walls around it
    Show {
        /// Its name
        name: String,
    },
    /// Print what a guest has printed
    Logs(LogsArgs),
    /// Stop guests
    Stop(StopArgs),
    /// List the programs that are built in
    Programs,
}

/// Options of `toklat guest run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// A manifest (TOML) with a table [guest.NAME] for each guest, instead of a program
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["GuestSpec", "name"])]
    file: Option<PathBuf>,
    /// Its name [default: that of its port]
    #[arg(long)]
    name: Option<String>,
    /// Return when it serves, and let it run
    #[arg(long, short)]
    detach: bool,
    /// Say "up" on standard output when all guests serve, and print nothing else
    #[arg(long, hide = true)]
    announce: bool,
    /// Run an entry of the topology, for the daemon
    #[arg(long, hide = true, conflicts_with_all = ["GuestSpec", "name", "file", "detach"])]
    kept: bool,
    /// What to run.
    #[command(flatten)]
    spec: Option<GuestSpec>,
}

/// Options of `toklat guest logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The guest's name
    name: String,
    /// Wait for more, until the guest has ended
    #[arg(long, short)]
    follow: bool,
}

/// Options of `toklat guest stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// The guests' names
    #[arg(required_unless_present = "all")]
    names: Vec<String>,
    /// All guests of this user
    #[arg(long, conflicts_with = "names")]
    all: bool,
}

impl GuestCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// There is no such guest, or it cannot be started.
    pub fn run(self, global: &Global) -> Result {
        match self {
            Self::Run(args) => run(&args, global),
            Self::List => {
                let all = talk::ask(&global.dir(), &Request::List, None);
                global.print_list(&all, || table(&all), "no guests (toklat guest run starts some)")
            }
            Self::Show { name } => show(&name, global),
            Self::Logs(args) => print_log(&args, global),
            Self::Stop(args) => stop(&args, global),
            Self::Programs => {
                let mut table = Table::new(&["PROGRAM", "WHAT IT DOES"]);
                for (name, what) in programs::PROGRAMS {
                    table.row([name.to_owned(), what.to_owned()]);
                }
                global.print_list(&programs::PROGRAMS, || table, "")
            }
        }
    }
}

fn run(args: &RunArgs, global: &Global) -> Result {
    if args.kept {
        return run_kept(global);
    }
    if let Some(spec) = &args.spec {
        spec.check().map_err(|invalid| UsageError::new(invalid.to_string()))?;
    }
    // Without a daemon nothing is started.
    netring::find_daemon(&global.dir())?;
    if args.detach {
        return detach(global);
    }
    let (directory, announce) = (global.dir(), args.announce);
    let options = Options { directory, echo: !announce, announce, kept: None };
    let mut manager = Manager::new(options)?;
    match (&args.file, &args.spec) {
        (Some(file), _) => {
            for (name, spec) in manifest(file)? {
                manager.add(&name, &spec).with_context(|| format!("guest.{name}"))?;
            }
        }
        (None, Some(spec)) => {
            let of_port = spec.port.rsplit(':').next().unwrap_or_default();
            manager.add(args.name.as_deref().unwrap_or(of_port), spec)?;
        }
        (None, None) => {
            return Err(UsageError::new("say what to run: a program, or --file MANIFEST").into());
        }
    }
    match manager.run()? {
        true => Ok(()),
        false => {
            let failed: Vec<String> = manager
                .list()
                .into_iter()
                .filter_map(|info| Some(format!("{}: {}", info.name, info.last_end?)))
                .filter(|line| !line.ends_with(": ended") && !line.ends_with(": stopped"))
                .take(5)
                .collect();
            bail!("{}", failed.join("; "))
        }
    }
}

/// Runs the guests of an entry of the topology, until the daemon tells it to end.
fn run_kept(global: &Global) -> Result {
    // The daemon's own would make directories that cannot be entered.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let entry = Kept::read()?;
    let begun = || {
        let (directory, kept) = (global.dir(), Some(entry.clone()));
        let options = Options { directory, echo: true, announce: false, kept };
        let mut manager = Manager::new(options)?;
        manager.add(&entry.name, &entry.spec)?;
        anyhow::Ok(manager)
    };
    match begun() {
        Ok(mut manager) => Ok(manager.run().map(drop)?),
        Err(error) => {
            kept::say(&format!("{error:#}"));
            Err(error)
        }
    }
}

/// Runs the same command in a session of its own, and waits until its guests serve.
fn detach(global: &Global) -> Result {
    let words = std::env::args_os().skip(1);
    let mut before_arguments = true;
    let words = words.filter(|word| {
        before_arguments &= word != "--";
        !(before_arguments && (word == "-d" || word == "--detach"))
    });
    let mut command = Command::new("/proc/self/exe");
    let words: Vec<_> = words.collect();
    let at = words.iter().position(|word| word == "run").map_or(words.len(), |at| at + 1);
    command.args(&words[..at]).arg("--announce").args(&words[at..]);
    command.env("TOKLAT_DIR", global.dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = jail::parent_death::in_its_own_session(&mut command).spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim() == "up" {
        let pid = child.id();
        let all = talk::ask(&global.dir(), &Request::List, None);
        let mine: Vec<_> = all.into_iter().filter(|info| info.manager == pid).collect();
        let failed = mine.iter().find(|info| info.state == State::Ended);
        if let Some(info) = failed {
            let end = info.last_end.as_deref().unwrap_or("ended");
            if end != "ended" {
                bail!("{}: {end}", info.name);
            }
        }
        // Without any, the manager has ended, or does not answer.
        if !mine.is_empty() || talk::has_ended_well(&mut child)? {
            return global.print_list(&mine, || table(&mine), "ended");
        }
    }
    let mut words = String::new();
    if let Some(error) = child.stderr.take() {
        error.take(1 << 16).read_to_string(&mut words)?;
    }
    bail!("{}", words.trim().trim_start_matches("toklat: "))
}

fn table(all: &[GuestInfo]) -> Table {
    let mut table =
        Table::new(&["GUEST", "PROGRAM", "PORT", "ADDRESS", "STATE", "FOR", "RESTARTS", "WALLS"]);
    for info in all {
        let first = |list: &[String]| match list {
            [first, _, ..] => format!("{first} +{}", list.len() - 1),
            list => list.concat(),
        };
        let walls = match info.walls.refused.len() {
            0 => info.walls.standing.len().to_string(),
            missing => format!("{}, {missing} missing", info.walls.standing.len()),
        };
        table.row([
            info.name.clone(),
            info.app.rsplit('/').next().unwrap_or_default().to_owned(),
            first(&info.ports),
            first(&info.addresses),
            info.state.name().to_owned(),
            client::table::duration(info.for_ms / 1000),
            info.restarts.to_string(),
            walls,
        ]);
    }
    table
}

/// The guest of this name.
fn find(name: &str, global: &Global) -> anyhow::Result<GuestInfo> {
    let mut all = talk::ask(&global.dir(), &Request::List, None);
    // One that runs comes before one of the same name that has ended.
    all.sort_by_key(|info| info.state == State::Ended);
    all.into_iter().find(|info| info.name == name).with_context(|| {
        format!("There is no guest {name}; `toklat guest list` shows those of this user")
    })
}

fn show(name: &str, global: &Global) -> Result {
    let info = find(name, global)?;
    if global.json {
        return print_json(&info);
    }
    let mut out = std::io::stdout().lock();
    write!(out, "{}", table(std::slice::from_ref(&info)))?;
    let standing: Vec<&str> = info.walls.standing.iter().map(|wall| wall.name()).collect();
    writeln!(out, "walls: {}", standing.join(", "))?;
    for refused in &info.walls.refused {
        writeln!(out, "missing: {}: {}", refused.wall, refused.reason)?;
    }
    if let Some(pid) = info.pid {
        writeln!(out, "process: {pid}, of manager {}", info.manager)?;
    }
    if let Some(took) = info.start_us {
        writeln!(out, "started in: {:.1} ms", took as f64 / 1000.0)?;
    }
    if let Some(end) = &info.last_end {
        writeln!(out, "last end: {end}")?;
    }
    writeln!(out, "log: {}", info.log)?;
    Ok(())
}

fn print_log(args: &LogsArgs, global: &Global) -> Result {
    let path = logs(&global.dir(), &args.name);
    let path = match path {
        Some(path) => path,
        None => find(&args.name, global)?.log.into(),
    };
    let mut out = std::io::stdout().lock();
    let mut print = |file: &mut std::fs::File| -> Result {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        out.write_all(crate::guests::printable(&bytes).as_bytes())?;
        Ok(out.flush()?)
    };
    if let Ok(mut old) = std::fs::File::open(path.with_extension("log.1")) {
        print(&mut old)?;
    }
    // A guest that has printed nothing has no log.
    let mut file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(_) if !args.follow => return Ok(()),
        Err(_) => std::fs::File::options().create(true).append(true).read(true).open(&path)?,
    };
    print(&mut file)?;
    while args.follow && find(&args.name, global).is_ok_and(|info| info.state != State::Ended) {
        std::thread::sleep(Duration::from_millis(200));
        if std::fs::metadata(&path)?.len() < file.stream_position()? {
            file = std::fs::File::open(&path)?;
            file.seek(SeekFrom::Start(0))?;
        }
        print(&mut file)?;
    }
    Ok(())
}

fn stop(args: &StopArgs, global: &Global) -> Result {
    for name in &args.names {
        find(name, global)?;
    }
    let all = talk::ask(&global.dir(), &Request::Stop { names: args.names.clone() }, None);
    let wanted = |info: &&GuestInfo| args.all || args.names.contains(&info.name);
    let stopped: Vec<_> = all.iter().filter(wanted).cloned().collect();
    global.print_done(&stopped, &format!("stopped {}", stopped.len()))
}
