//! What must hold before a change goes in.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::tool::{self, cargo};
use crate::{atomics, dependencies, house, perf, registers, size};

const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// Targets without an operating system, and the crates that are built for them.
const BARE: [&str; 2] = ["x86_64-unknown-none", "aarch64-unknown-none"];
const BARE_CRATES: [&str; 5] =
    ["-ptoklat-frame", "-ptoklat-shmem", "-ptoklat-abi", "-ptoklat-driver", "-ptoklat-tcp"];

/// A part of the check: its name, and what it does; the reason, if it cannot be done here.
type Part = (&'static str, fn() -> Result<Option<String>>);

const PARTS: [Part; 14] = [
    ("format", || done(tool::run(&mut cargo(&["fmt", "--all", "--check"])))),
    ("sizes", || done(size::check())),
    ("rules of the house", || done(house::check())),
    ("atomics", || done(atomics::check())),
    ("registers", || done(registers::check())),
    ("licences, sources and bans", || done(dependencies::check())),
    ("advisories", || Ok(dependencies::advisories()?.map(str::to_owned))),
    ("clippy", || done(clippy())),
    ("stamps", || done(stamps())),
    ("docs", || done(docs())),
    ("fuzz targets", fuzz_targets),
    ("Python", || done(beside("python/Cargo.toml"))),
    ("other targets", other_targets),
    ("packages", packages),
];

/// Checks everything, or the parts whose names begin with one of `chosen`, also after something
/// failed. A part that cannot be done here is said as a skipped test is: `SKIPPED name: why`.
pub fn run(chosen: &[&str]) -> Result<()> {
    let mut failed = Vec::new();
    let budgets: Part = ("budgets", perf::check);
    let mut parts: Vec<Part> = PARTS.into_iter().chain([budgets]).collect();
    if let Some(unknown) = chosen.iter().find(|c| !parts.iter().any(|(n, _)| n.starts_with(**c))) {
        let names: Vec<_> = parts.iter().map(|(name, _)| *name).collect();
        bail!("no part of the check is called {unknown}; there are: {}", names.join("; "));
    }
    parts.retain(|(name, _)| chosen.is_empty() || chosen.iter().any(|c| name.starts_with(c)));
    for (name, check) in parts {
        let since = Instant::now();
        match check() {
            Ok(None) => println!("{name}: {} s", since.elapsed().as_secs()),
            Ok(Some(why)) => println!("SKIPPED {name}: {why}"),
            Err(error) => {
                println!("{name}: {} s", since.elapsed().as_secs());
                eprintln!("{name}: {error:#}");
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("{} checks passed", if chosen.is_empty() { "all" } else { "the chosen" });
    Ok(())
}

fn done(result: Result<()>) -> Result<Option<String>> {
    result.map(|()| None)
}

fn clippy() -> Result<()> {
    let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-Dwarnings"];
    tool::run(&mut cargo(&clippy))
}

/// Packet dispatch, which is measured by a program with stamps.
fn stamps() -> Result<()> {
    let packages =
        ["-ptoklat-port", "-ptoklat-lab", "--features=toklat-port/stamps,toklat-lab/stamps"];
    let test = ["test", "--quiet", "--lib"];
    tool::run(cargo(&test).args(packages).args(["--", "stamp", "dispatch"]))
}

fn docs() -> Result<()> {
    let mut doc =
        cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"]);
    // The pages are for those who work on it: they show, and link to, what is private.
    let flags = "-Dwarnings -Arustdoc::private-intra-doc-links";
    tool::run(doc.env("RUSTDOCFLAGS", flags))
}

/// Each crate could be published as it is. Whether it compiles outside of the workspace is left to
/// `cargo publish --dry-run --workspace`, which takes as long as a first build.
fn packages() -> Result<Option<String>> {
    if !tool::succeeds(&mut cargo(&["info", "--quiet", "serde"])) {
        return Ok(Some("crates.io cannot be reached".into()));
    }
    let dry = ["publish", "--dry-run", "--workspace", "--no-verify", "--allow-dirty", "--quiet"];
    done(tool::run(&mut cargo(&dry)))
}

/// Not of the workspace, which they would break unseen; libFuzzer is C++.
fn fuzz_targets() -> Result<Option<String>> {
    if !tool::installed("c++") {
        return Ok(Some("c++ is missing (cargo xtask setup)".into()));
    }
    done(beside("fuzz/Cargo.toml"))
}

/// A crate outside the workspace compiles, with the versions that are written down.
fn beside(manifest: &str) -> Result<()> {
    let manifest = ["--manifest-path", manifest];
    tool::run(cargo(&["fmt", "--check"]).args(manifest))?;
    // In the workspace's folder: what both use is compiled once.
    let clippy = ["clippy", "--locked", "--quiet", "--target-dir=target"];
    tool::run(cargo(&clippy).args(manifest).args(["--", "-Dwarnings"]))
}

/// The data path, and the program without its optional parts, for aarch64; and crates that are to
/// run without an operating system, without the standard library.
fn other_targets() -> Result<Option<String>> {
    let missing: Vec<_> =
        [AARCH64].into_iter().chain(BARE).filter(|target| !has_target(target)).collect();
    if !missing.is_empty() {
        return Ok(Some(format!("rustup target add {}", missing.join(" "))));
    }
    let packages = ["-ptoklat", "-ptoklat-preload", "-ptoklat-jail", "-ptoklat-dataplane"];
    tool::run(cargo(&["check", "--quiet", "--target", AARCH64]).args(packages))?;
    let targets = BARE.into_iter().flat_map(|target| ["--target", target]);
    let check = ["check", "--quiet", "--no-default-features"];
    done(tool::run(cargo(&check).args(BARE_CRATES).args(targets)))
}

/// Adds the target if rustup can; true if the compiler has it.
fn has_target(target: &str) -> bool {
    tool::succeeds(&mut tool::command("rustup", &["target", "add", target]))
        || std::process::Command::new("rustc")
            .args(["--print", "target-libdir", "--target", target])
            .current_dir(tool::root())
            .output()
            .is_ok_and(|out| {
                std::path::Path::new(String::from_utf8_lossy(&out.stdout).trim()).is_dir()
            })
}
