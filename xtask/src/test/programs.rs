//! Test programs: building them, asking them for their tests, and the plan of what runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::pool::{Class, Unit};
use crate::privilege::{self, Privilege};
use crate::tool::{self, cargo, command};

/// The programs of this package run each test in a process of its own: what one does to its process
/// is no other's business.
const ONE_BY_ONE: &str = "toklat";
/// What one test or program may take, in seconds.
pub const PROGRAM_LIMIT: &str = "600";

/// Programs and their modules that boot virtual machines: one at a time.
const MACHINES: &[(&str, &str)] = &[
    ("vm", ""),
    ("conformance", ""),
    ("linux", ""),
    ("control", "vm_"),
    ("hosts", "evpn_migration"),
];
/// Programs and their modules or tests that measure times or rates, and would measure what runs
/// beside them, or that keep all cores busy themselves.
const MEASURE: &[(&str, &str)] = &[
    ("siege", ""),
    ("ports", "daemon_busy"),
    ("ports", "daemon_impairments"),
    ("ports", "daemon_limits"),
    ("ports", "tools_daemon::the_tour_loses_nothing_while_a_process_spins"),
    // DPDK's front ends poll, and what they lose does not come again.
    ("ports", "vhost_user_peers"),
    ("vm", "vm_dpdk"),
    ("impairments", ""),
    ("limits", ""),
    ("warm", ""),
];

/// A test program that cargo built.
#[derive(Clone, Debug)]
pub struct Program {
    package: String,
    target: String,
    /// Its package's folder, in which cargo runs it.
    folder: PathBuf,
    file: PathBuf,
}

/// Builds the test programs that the arguments of `cargo test` choose.
pub fn build(args: &[&str]) -> Result<Vec<Program>> {
    let mut build = cargo(&["test", "--no-run", "--message-format=json-render-diagnostics"]);
    build.args(args).stdout(Stdio::piped()).stderr(Stdio::inherit());
    println!("$ cargo test --no-run {}", args.join(" "));
    let done = build.spawn()?.wait_with_output().context("cargo test could not be started")?;
    if !done.status.success() {
        bail!("a test program did not build");
    }
    let text = String::from_utf8_lossy(&done.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(messages.filter_map(|message: Value| program(&message)).collect())
}

/// The program that a message of cargo tells of.
fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let text = std::fs::read_to_string(manifest).ok()?;
    let package = text.lines().find_map(|line| line.strip_prefix("name = \""))?;
    Some(Program {
        package: package.trim_end_matches('"').to_owned(),
        target: message["target"]["name"].as_str()?.to_owned(),
        folder: manifest.parent()?.to_owned(),
        file: message["executable"].as_str()?.into(),
    })
}

impl Program {
    /// The names of its tests, with those that are ignored.
    pub fn tests(&self) -> Result<Vec<String>> {
        let list = Command::new(&self.file)
            .args(["--list", "--format", "terse"])
            .current_dir(&self.folder)
            .output();
        let list = list.with_context(|| format!("{} --list", self.file.display()))?;
        let text = String::from_utf8_lossy(&list.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    /// What is run of it: itself, or each of its tests that a filter names.
    pub fn units(&self, tests: &[String], filters: &[&str], confined: bool) -> Vec<Unit> {
        let wanted = |test: &&String| {
            filters.is_empty() || filters.iter().any(|filter| test.contains(filter))
        };
        let wanted: Vec<_> = tests.iter().filter(wanted).collect();
        let name = format!("{} {}", self.package, self.target);
        if self.package != ONE_BY_ONE || !self.is_integration() {
            let whole = Unit::new(name, self.run("", filters, confined), self.class(""));
            return (!wanted.is_empty()).then_some(whole).into_iter().collect();
        }
        let one = |test: &&String| {
            let run = self.run(test, &[test, "--exact"], confined);
            Unit::new(format!("{} {test}", self.target), run, self.class(test))
        };
        wanted.iter().map(one).collect()
    }

    fn is_integration(&self) -> bool {
        self.target != self.package && self.target != self.package.replace('-', "_")
    }

    fn class(&self, test: &str) -> Class {
        let is_in = |table: &[(&str, &str)]| {
            table.iter().any(|(target, module)| *target == self.target && test.starts_with(module))
        };
        match () {
            () if is_in(MEASURE) => Class::Alone,
            () if is_in(MACHINES) => Class::Machine,
            () => Class::Ordinary,
        }
    }

    /// The command that runs it; for an ordinary user, `confined`, with what its tests need.
    fn run(&self, test: &str, args: &[&str], confined: bool) -> Command {
        let mut words = vec!["timeout", "--foreground", "-k5", PROGRAM_LIMIT];
        let may = confined.then(|| privilege::of(&self.package, &self.target, test)).flatten();
        match may {
            None => {}
            Some(Privilege::Capable) => {
                words.extend(["unshare", "--user", "--map-current-user", "--keep-caps"]);
            }
            Some(Privilege::Root) if has_subordinate_ids() => {
                words.extend(["unshare", "--user", "--map-root-user", "--map-auto", "--mount"]);
            }
            Some(Privilege::Root) => {}
        }
        let mut run = command(words[0], &words[1..]);
        run.arg(&self.file).args(args).current_dir(&self.folder);
        run.env("CARGO_MANIFEST_DIR", &self.folder).env("CARGO_PKG_NAME", &self.package);
        run
    }
}

/// True if this user may become root in a namespace, beside subordinate ids.
fn has_subordinate_ids() -> bool {
    static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HAS.get_or_init(|| {
        let probe = ["--user", "--map-root-user", "--map-auto", "--mount", "true"];
        let has = tool::succeeds(&mut command("unshare", &probe));
        if !has {
            eprintln!(
                "no subordinate ids: apt-get install uidmap; usermod --add-subuids, --add-subgids"
            );
        }
        has
    })
}

/// True for an ordinary user, where the kernel gives them user namespaces.
pub fn has_user_namespaces() -> bool {
    let probe = ["--user", "--map-current-user", "--keep-caps", "true"];
    !crate::setup::is_root() && tool::succeeds(&mut command("unshare", &probe))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(package: &str, target: &str) -> Program {
        let (folder, file) = ("/".into(), format!("/{target}-1").into());
        Program { package: package.into(), target: target.into(), folder, file }
    }

    fn words(unit: &Unit) -> String {
        let args = unit.command.get_args().map(|arg| arg.to_string_lossy().into_owned());
        args.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn tests_of_toklat_have_processes_of_their_own_and_those_of_others_share_one() {
        let tests = ["daemon_busy::one".to_owned(), "capture::two".to_owned()];
        let ports = made("toklat", "ports").units(&tests, &[], false);
        assert_eq!(ports.len(), 2);
        assert_eq!((ports[0].class, ports[1].class), (Class::Alone, Class::Ordinary));
        assert!(words(&ports[1]).ends_with("/ports-1 capture::two --exact"), "{:?}", ports[1]);
        let ring = made("toklat-netring", "port").units(&tests, &[], false);
        assert_eq!(ring.len(), 1);
        assert!(words(&ring[0]).ends_with("/port-1"), "{:?}", ring[0]);
        assert_eq!(made("toklat", "vm").units(&tests, &["two"], false)[0].class, Class::Machine);
        assert!(made("toklat-netring", "port").units(&tests, &["three"], false).is_empty());
    }

    #[test]
    fn an_ordinary_users_tests_get_the_privileges_that_the_table_names() {
        let tests = ["cni::adds".to_owned(), "host::is_plain".to_owned()];
        let hosts = made("toklat", "hosts").units(&tests, &[], true);
        assert!(words(&hosts[0]).contains("--keep-caps"), "{:?}", hosts[0]);
        assert!(!words(&hosts[1]).contains("unshare"), "{:?}", hosts[1]);
        let as_root = made("toklat", "hosts").units(&tests, &[], false);
        assert!(!words(&as_root[0]).contains("unshare"));
    }
}
