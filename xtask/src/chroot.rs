//! A bare Debian, as an archive in `target/chroot`: tests install the packages into a copy of it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::debian;
use crate::tool::{self, command};

/// The path of the archive in the directory for what is made.
const ARCHIVE: &str = "chroot/debian.tar";
/// The packages that the test needs in addition to Debian's essential packages, and the programs
/// that read the package's files.
const PACKAGES: &str = "systemd,man-db,bash-completion";

/// Makes the archive, unless it is there and matches what this program would make.
pub fn make() -> Result<()> {
    let archive = tool::target().join(ARCHIVE);
    let stamp = archive.with_extension("recipe");
    let release = release()?;
    let recipe = [release.as_str(), include_str!("chroot.rs")].concat();
    if archive.is_file() && fs::read_to_string(&stamp).is_ok_and(|made_by| made_by == recipe) {
        println!("a bare Debian is there: {}", archive.display());
        return Ok(());
    }
    debian::tools(&["mmdebstrap", "apt-config"])?;
    fs::create_dir_all(archive.parent().context("it has no directory")?)?;
    let options = archive.with_extension("apt");
    fs::write(&options, apt_options()?)?;
    let mut made = Err(anyhow::anyhow!("no mirror of Debian"));
    for mirror in debian::mirrors() {
        made = bootstrap(&release, &archive, &options, &mirror);
        if made.is_ok() {
            break;
        }
    }
    made?;
    fs::write(stamp, recipe)?;
    println!("a bare Debian is made: {}", archive.display());
    Ok(())
}

fn bootstrap(release: &str, archive: &Path, options: &Path, mirror: &str) -> Result<()> {
    let mut bootstrap = command("mmdebstrap", &["--quiet", "--variant=essential", "--format=tar"]);
    bootstrap.arg(format!("--include={PACKAGES}"));
    bootstrap.arg(format!("--aptopt={}", options.display()));
    // Copies of the archive are thrown away: they need not survive a loss of power.
    bootstrap.args(["--dpkgopt=force-unsafe-io", release]);
    tool::run(bootstrap.arg(archive).arg(mirror))
}

/// The release that this machine runs: programs that are built here run there.
fn release() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"').to_owned())
    };
    match (value("ID").as_deref(), value("VERSION_CODENAME")) {
        (Some("debian"), Some(release)) => Ok(release),
        _ => bail!("this is not Debian"),
    }
}

/// How this machine's apt fetches: proxies, and what else its mirror needs.
fn apt_options() -> Result<String> {
    let dump = command("apt-config", &["dump", "Acquire"]).output()?;
    let dump = String::from_utf8(dump.stdout).context("apt-config")?;
    let how = ["Acquire::http", "Acquire::Check-", "Acquire::Retries"];
    let lines = dump.lines().filter(|line| how.iter().any(|start| line.starts_with(start)));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}
