//! `toklat sim`: a topology file in virtual time.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use sim::World;

use client::{Global, Result};

/// Options of `toklat sim`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    toklat sim net.toml\n  \
    toklat sim net.toml --seed 7 --until 60s --trace\n  \
    toklat sim net.toml --until 2s --pcap net.pcapng")]
pub struct SimArgs {
    /// The topology file, as for `toklat apply`
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// What chance follows from: the same seed gives the same frames at the same times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How long it runs, in virtual time
    #[arg(long, value_name = "TIME", default_value = "10s")]
    #[arg(value_parser = topology::units::duration)]
    until: Duration,
    /// Write all frames to this file (pcapng, an interface for each port)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pcap: Option<PathBuf>,
    /// Print each frame
    #[arg(long)]
    trace: bool,
}

/// Makes a world of the file, lets time pass in it, and says what has happened.
///
/// # Errors
/// The file is wrong, or needs what a simulation does not have.
pub fn run(args: &SimArgs, global: &Global) -> Result {
    let SimArgs { file, seed, until, pcap, trace } = args;
    let topology = crate::daemon::file::read_file(file)?;
    let mut world = World::of(&topology, *seed, |path| fs::read(path))
        .with_context(|| format!("In {}", file.display()))?;
    if pcap.is_some() || *trace {
        world.keep_frames();
    }
    world.run_for(*until)?;
    if *trace {
        print!("{}", world.told());
    }
    if let Some(path) = pcap {
        fs::write(path, world.pcapng())
            .with_context(|| format!("Cannot write {}", path.display()))?;
    }
    let (frames, turns, hash) = (world.frames(), world.turns(), format!("{:016x}", world.hash()));
    let seconds = world.now().as_secs_f64();
    let summary = world.summary();
    let value = json!({
        "seed": seed, "seconds": seconds, "turns": turns, "frames": frames, "hash": hash,
        "hosts": summary.lines().collect::<Vec<_>>(),
    });
    let head = format!(
        "seed {seed}: {seconds:.3} s in {turns} turns, {frames} frames, hash {hash}\n{summary}"
    );
    global.print_done(&value, head.trim_end())
}
