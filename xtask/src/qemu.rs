//! A QEMU that speaks vfio-user, for machines whose own does not: Debian's, with all its libraries,
//! made as an ordinary user into `target/qemu`, and a launcher beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::debian::{self, Apt};
use crate::tool::{self, command};

/// The first that has `vfio-user-pci`.
const LEAST: (u32, u32) = (10, 1);
const PACKAGE: &str = "qemu-system-x86";
/// The Debian suites from which QEMU comes: QEMU itself from the last, what it depends on from the
/// first.
const SUITES: &[&str] = &["trixie", "trixie-backports"];
const PROGRAM: &str = "qemu-system-x86_64";
const LAUNCHER: &str = include_str!("../qemu/launcher");
/// Documentation, which no test needs.
const LEFT_OUT: [&str; 4] = ["usr/share/doc", "usr/share/man", "usr/share/locale", "var"];

/// Makes QEMU, unless the installed QEMU is new enough, or it has been made.
pub fn make() -> Result<()> {
    if let Some((major, minor)) = version(PROGRAM.as_ref()).filter(|version| *version >= LEAST) {
        println!("QEMU {major}.{minor} is installed, and speaks vfio-user");
        return Ok(());
    }
    let target = tool::target().join("qemu");
    let (stamp, launcher) = (target.join("recipe"), target.join(PROGRAM));
    let recipe = [LAUNCHER, include_str!("qemu.rs")].concat();
    if fs::read_to_string(&stamp).is_ok_and(|made_by| made_by == recipe) && launcher.is_file() {
        println!("a QEMU that speaks vfio-user is there: {}", launcher.display());
        return Ok(());
    }
    if std::env::consts::ARCH != "x86_64" {
        bail!("it is made for x86-64 only");
    }
    debian::tools(&["apt-get", "dpkg-deb"])?;
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    let root = target.join("root");
    fs::create_dir_all(&root)?;
    for package in Apt::of(target.join("apt"), SUITES).download_all(PACKAGE)? {
        debian::unpack(&package, &root)?;
    }
    for path in LEFT_OUT.map(|path| root.join(path)) {
        let _ = fs::remove_dir_all(path);
    }
    fs::remove_dir_all(target.join("apt"))?;
    fs::write(&launcher, LAUNCHER)?;
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755))?;
    check(&launcher)?;
    fs::write(stamp, recipe)?;
    println!("a QEMU that speaks vfio-user is made: {}", launcher.display());
    Ok(())
}

/// Fails unless QEMU runs here, is new enough and speaks vfio-user.
fn check(launcher: &Path) -> Result<()> {
    let version = version(launcher).context("it does not run here")?;
    if version < LEAST {
        bail!("the release has only {}.{}", version.0, version.1);
    }
    let help = command(&launcher.to_string_lossy(), &["-device", "vfio-user-pci,help"]).output()?;
    if !help.status.success() {
        bail!("it is built without vfio-user-pci");
    }
    Ok(())
}

/// Of `QEMU emulator version 7.2.22 (Debian ...)`.
fn version(program: &Path) -> Option<(u32, u32)> {
    let said = command(&program.to_string_lossy(), &["--version"]).output().ok()?.stdout;
    parse(&String::from_utf8_lossy(&said))
}

fn parse(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.split_once("version ")?.1.split(['.', ' ']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{LEAST, parse};

    #[test]
    fn versions_are_compared_by_number() {
        let old = parse("QEMU emulator version 7.2.22 (Debian 1:7.2)").unwrap();
        let new = parse("QEMU emulator version 11.1.3 (Debian 1:11.1.3)").unwrap();
        assert!(old < LEAST && new >= LEAST && parse("10.0").is_none());
    }
}
