//! `toklat service`: switches parts of the packaged service on and off. A part's files are in the
//! package; a link to each, where systemd, AppArmor and udev look, switches it on.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use client::table::Table;
use client::{Global, Result};
use host::part::Part;
use serde::Serialize;

/// Where the package has the parts' files.
const SHIPPED: &str = "usr/lib/toklat/service";
/// AppArmor's profile of the daemon, which includes the parts' rules.
const PROFILE: &str = "etc/apparmor.d/toklat-daemon";
const RESTART: [&str; 3] = ["systemctl", "restart", "toklat.service"];

/// What can be done with parts of the packaged service.
#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Show the parts, and whether they are on
    List(Root),
    /// Switch parts on, as root: what these kinds of ports need of systemd, AppArmor and udev
    Enable(Change),
    /// Switch parts off, as root
    Disable(Change),
}

/// Options of `toklat service enable` and `disable`.
#[derive(Debug, Args)]
pub struct Change {
    /// Which
    #[arg(required = true, value_enum)]
    parts: Vec<Part>,
    /// Restart the daemon, too: traffic flows on, and all ports stay open
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    root: Root,
}

/// The system to work on.
#[derive(Debug, Args)]
pub struct Root {
    /// Work on the system in this directory, such as an image, and reload nothing
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Which program reads a file of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Systemd,
    AppArmor,
    Udev,
}

/// A link that switches a part on.
#[derive(Debug)]
struct Link {
    reader: Reader,
    /// What it leads to, from the root.
    file: PathBuf,
    /// Where it is, below the root that was given.
    place: PathBuf,
    is_on: bool,
}

/// A part, and whether it is on; `None` if nothing of this machine keeps it from working.
#[derive(Debug, Serialize)]
struct State {
    part: Part,
    on: Option<bool>,
}

impl ServiceCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If the package is not installed, or the files cannot be changed.
    pub fn run(self, global: &Global) -> Result {
        match self {
            Self::List(root) => root.list(global),
            Self::Enable(change) => change.apply(true, global),
            Self::Disable(change) => change.apply(false, global),
        }
    }
}

impl Root {
    fn below(&self, path: &str) -> PathBuf {
        self.root.as_deref().unwrap_or_else(|| Path::new("/")).join(path)
    }

    fn list(&self, global: &Global) -> Result {
        let parts = Part::value_variants().iter();
        let states = parts.map(|part| self.state(*part)).collect::<Result<Vec<_>>>()?;
        let table = || {
            let mut table = Table::new(&["part", "state", "for"]);
            for State { part, on } in &states {
                let state = match on {
                    Some(true) => "on",
                    Some(false) => "off",
                    None => "not confined",
                };
                let help = part.to_possible_value().and_then(|value| value.get_help().cloned());
                let what = help.map(|help| help.to_string()).unwrap_or_default();
                table.row([part.name().to_owned(), state.to_owned(), what]);
            }
            table
        };
        global.print_list(&states, table, "")
    }

    fn state(&self, part: Part) -> Result<State> {
        let links = self.links(part)?;
        let on = (!links.is_empty()).then(|| links.iter().all(|link| link.is_on));
        Ok(State { part, on })
    }

    /// The links of a part that mean something on this system.
    fn links(&self, part: Part) -> Result<Vec<Link>> {
        let name = part.name();
        let shipped = self.below(SHIPPED);
        ensure!(
            shipped.is_dir(),
            "There is no {}: the package of toklat is not installed; a daemon of your own needs no parts",
            shipped.display()
        );
        let all = [
            (Reader::Systemd, "conf", format!("etc/systemd/system/toklat.service.d/{name}.conf")),
            (Reader::AppArmor, "apparmor", format!("{PROFILE}.d/{name}")),
            (Reader::Udev, "rules", format!("etc/udev/rules.d/70-toklat-{name}.rules")),
        ];
        let confined = self.below(PROFILE).exists();
        let there = all.into_iter().filter(|(reader, kind, _)| {
            shipped.join(format!("{name}.{kind}")).is_file()
                && (*reader != Reader::AppArmor || confined)
        });
        there
            .map(|(reader, kind, place)| {
                let file = Path::new("/").join(SHIPPED).join(format!("{name}.{kind}"));
                let place = self.below(&place);
                let is_on = leads_to(&place, &file)?;
                Ok(Link { reader, file, place, is_on })
            })
            .collect()
    }
}

/// True if the link leads to a file, false if there is none.
///
/// # Errors
/// Something else is there, which is the operator's.
fn leads_to(link: &Path, file: &Path) -> Result<bool> {
    match fs::read_link(link) {
        Ok(target) if target == file => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() != ErrorKind::InvalidInput => {
            Err(error).with_context(|| format!("Cannot read {}", link.display()))
        }
        _ => bail!("{} is not of toklat's package; move it away first", link.display()),
    }
}

impl Link {
    /// Makes or removes the link.
    fn put(&self, on: bool) -> Result {
        let place = self.place.display();
        if !on {
            return fs::remove_file(&self.place).with_context(|| format!("Cannot remove {place}"));
        }
        let directory = self.place.parent().context("It has no directory")?;
        fs::create_dir_all(directory)
            .and_then(|()| std::os::unix::fs::symlink(&self.file, &self.place))
            .with_context(|| format!("Cannot make {place}"))
    }
}

impl Change {
    fn apply(&self, on: bool, global: &Global) -> Result {
        // All are looked at before one is changed.
        let links = self.parts.iter().map(|part| self.root.links(*part));
        let links: Vec<Link> = links.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        let changed: Vec<&Link> = links.iter().filter(|link| link.is_on != on).collect();
        for link in &changed {
            link.put(on)?;
        }
        if self.root.root.is_none() {
            let readers = [Reader::Systemd, Reader::AppArmor, Reader::Udev];
            // What is on already is read again, too: the last time may have failed halfway.
            for reader in readers.iter().filter(|reader| links.iter().any(|l| l.reader == **reader))
            {
                reader.reload()?;
            }
            if self.restart {
                call(&RESTART)?;
            }
        }
        let states = self.parts.iter().map(|part| self.root.state(*part));
        let states = states.collect::<Result<Vec<_>>>()?;
        global.print_done(&states, &self.said(on, changed.len()))
    }

    /// What has happened, and what is left to do.
    fn said(&self, on: bool, changed: usize) -> String {
        let names: Vec<_> = self.parts.iter().map(|part| part.name()).collect();
        let (names, state) = (names.join(", "), if on { "on" } else { "off" });
        match (changed, self.restart && self.root.root.is_none()) {
            (0, false) => format!("{names}: nothing to change"),
            (_, true) => format!("switched {names} {state}, and restarted the daemon"),
            (_, false) => format!(
                "switched {names} {state}; it counts from the next start: {} (traffic flows on, and \
                 all ports stay open)",
                RESTART.join(" ")
            ),
        }
    }
}

impl Reader {
    /// Has the program read its files again, if it runs here.
    fn reload(self) -> Result {
        match self {
            Self::Systemd if Path::new("/run/systemd/system").is_dir() => {
                call(&["systemctl", "daemon-reload"])
            }
            // A cached profile is as old as the package's files, so it would seem to be right.
            Self::AppArmor if apparmor_is_on() => {
                let profile = format!("/{PROFILE}");
                let line = [
                    "apparmor_parser",
                    "--replace",
                    "--skip-read-cache",
                    "--write-cache",
                    &profile,
                ];
                call(&line)
            }
            Self::Udev if Path::new("/run/udev/control").exists() => {
                call(&["udevadm", "control", "--reload"])?;
                call(&["udevadm", "trigger", "--subsystem-match=vfio"])
            }
            _ => Ok(()),
        }
    }
}

fn apparmor_is_on() -> bool {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    enabled.is_ok_and(|text| text.starts_with('Y'))
}

/// Runs a program, which has to succeed.
fn call(line: &[&str]) -> Result {
    let words = line.join(" ");
    let [program, args @ ..] = line else { bail!("a line without a program") };
    let output =
        Command::new(program).args(args).output().with_context(|| format!("Cannot run {words}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{words} failed: {}", said.trim());
    Ok(())
}
