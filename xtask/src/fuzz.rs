//! Every fuzz target for a while.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tool::{self, cargo};

/// Runs each target of `fuzz/` for `seconds`, from its corpus and the seeds that are checked in.
pub fn run(seconds: u64) -> Result<()> {
    if !tool::has_subcommand("+nightly", "fuzz") {
        println!("skipped: fuzz (rustup toolchain install nightly; cargo install cargo-fuzz)");
        return Ok(());
    }
    // All targets are built first: build time must not count as fuzzing time, and a target that
    // does not build has found nothing.
    tool::run(&mut cargo(&["+nightly", "fuzz", "build"])).context("a target does not build")?;
    let mut failed = Vec::new();
    for target in targets()? {
        if let Err(error) = fuzz(&target, seconds) {
            eprintln!("{error:#}");
            failed.push(target);
        }
    }
    if !failed.is_empty() {
        bail!("found something in {}: see fuzz/artifacts", failed.join(", "));
    }
    Ok(())
}

fn fuzz(target: &str, seconds: u64) -> Result<()> {
    let corpus = tool::root().join("fuzz/corpus").join(target);
    let seeds = tool::root().join("fuzz/seeds").join(target);
    std::fs::create_dir_all(&corpus).context("the corpus could not be made")?;
    let (corpus, seeds) = (corpus.to_string_lossy(), seeds.to_string_lossy());
    let limit = format!("-max_total_time={seconds}");
    let mut args = vec!["+nightly", "fuzz", "run", target, &corpus];
    if std::path::Path::new(&*seeds).is_dir() {
        args.push(&seeds);
    }
    args.extend(["--", &limit, "-timeout=10", "-rss_limit_mb=4096"]);
    tool::run(&mut cargo(&args))
}

/// Builds each target on the pinned toolchain: without the sanitizer, with every oracle. False
/// where there is no C++ compiler, which libFuzzer needs.
pub fn build_seeds() -> Result<bool> {
    if !tool::installed("c++") {
        return Ok(false);
    }
    let manifest = tool::root().join("fuzz/Cargo.toml");
    let build = ["build", "--locked", "--quiet", "--target-dir=target", "--manifest-path"];
    tool::run(cargo(&build).arg(&manifest)).context("a fuzz target does not build")?;
    Ok(true)
}

/// The command that runs each target over the seeds that are checked in, once, by the target's
/// name. `None` where targets cannot be built.
pub fn seeds() -> Result<Option<Vec<(String, Command)>>> {
    if !build_seeds()? {
        return Ok(None);
    }
    let run = |target: String| {
        let dir = tool::root().join("fuzz/seeds").join(&target);
        let seeds = std::fs::read_dir(&dir).into_iter().flatten().flatten().map(|e| e.path());
        let seeds: Vec<_> = seeds.collect();
        if seeds.is_empty() {
            bail!("{} holds no seed", dir.display());
        }
        let mut command = tool::command("timeout", &["120"]);
        command.arg(tool::target().join("debug").join(&target));
        command.args(["-timeout=60", "-rss_limit_mb=4096"]).args(&seeds);
        Ok((target, command))
    };
    targets()?.into_iter().map(run).collect::<Result<_>>().map(Some)
}

/// The targets' names: the files in `fuzz/targets`.
fn targets() -> Result<Vec<String>> {
    let dir = std::fs::read_dir(tool::root().join("fuzz/targets")).context("fuzz/targets")?;
    let mut names: Vec<String> = dir
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_owned()))
        .collect();
    names.sort_unstable();
    Ok(names)
}
