//! Every fuzz target for a while.

use anyhow::{Context, Result, bail};

use crate::tool::{self, cargo};

/// Runs each target of `fuzz/` for `seconds`, from its corpus and the seeds that are checked in.
pub fn run(seconds: u64) -> Result<()> {
    if !tool::has_subcommand("+nightly", "fuzz") {
        println!("skipped: fuzz (rustup toolchain install nightly; cargo install cargo-fuzz)");
        return Ok(());
    }
    // Time that one target needs to be built is none of another's, and who does not build found nothing.
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

/// The targets' names: the files in `fuzz/targets`.
fn targets() -> Result<Vec<String>> {
    let dir = std::fs::read_dir(tool::root().join("fuzz/targets")).context("fuzz/targets")?;
    let mut names: Vec<String> = dir
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_owned()))
        .collect();
    names.sort_unstable();
    Ok(names)
}
