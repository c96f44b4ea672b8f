//! The program of an earlier commit, which tests of upgrades replace by today's: built once from
//! the history, in its own target folder.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::tool::{self, cargo, command};

/// The commit whose data processes are taken over. It speaks version 7 of the control messages, the
/// first that is.
const BASE: &str = "7b91426c678abaa33d562ea10e8454b1544bf1b6";

/// What tests use of it.
const MADE: [&str; 2] = ["toklat", "libtoklat_preload.so"];

/// Builds the program and the library of `toklat run` in `target/base/program`, unless they are
/// there.
pub fn make() -> Result<()> {
    let place = tool::root().join("target/base");
    let (tree, target, made) = (place.join("tree"), place.join("build"), place.join("program"));
    let commit = made.join("commit");
    if fs::read_to_string(&commit).is_ok_and(|commit| commit == BASE) {
        return Ok(());
    }
    let is_there = ["cat-file", "-e", &format!("{BASE}^{{commit}}")];
    if !tool::succeeds(&mut command("git", &is_there)) {
        let reason = format!("the history of this clone does not reach {BASE}");
        // The tests say it, too.
        fs::create_dir_all(&made)?;
        fs::write(made.join("reason"), &reason)?;
        bail!("{reason}: git fetch --unshallow");
    }
    println!("building {BASE}");
    unpack(&tree)?;
    build(&tree, &target)?;
    fs::create_dir_all(&made)?;
    for name in MADE {
        fs::copy(target.join("debug").join(name), made.join(name))
            .with_context(|| format!("{name} was not built"))?;
    }
    // They are as large as the workspace's own, and needed no more.
    fs::remove_dir_all(&target)?;
    fs::remove_dir_all(&tree)?;
    Ok(fs::write(commit, BASE)?)
}

fn build(tree: &Path, target: &Path) -> Result<()> {
    let packages = ["--package", "toklat", "--package", "toklat-preload"];
    let mut build = cargo(&[&["build", "--quiet", "--locked"][..], &packages].concat());
    build.current_dir(tree).env("CARGO_TARGET_DIR", target).env("CARGO_INCREMENTAL", "0");
    tool::run(&mut build)
}

/// Unpacks the commit's files. A work tree would stay in the repository's list of them.
fn unpack(tree: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(tree);
    fs::create_dir_all(tree)?;
    let mut archive = command("git", &["archive", BASE]);
    let mut archive = archive.stdout(Stdio::piped()).spawn().context("git archive")?;
    let files = archive.stdout.take().context("git archive says nothing")?;
    let unpacked = Command::new("tar").arg("-x").arg("-C").arg(tree).stdin(files).status();
    ensure!(archive.wait()?.success() && unpacked.context("tar")?.success(), "git archive | tar");
    Ok(())
}
