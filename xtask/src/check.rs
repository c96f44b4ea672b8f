//! What must hold before a change goes in.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::tool::{self, cargo};
use crate::{atomics, house, perf, registers, size};

const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// Targets without an operating system, and the crates that are built for them.
const BARE: [&str; 2] = ["x86_64-unknown-none", "aarch64-unknown-none"];
const BARE_CRATES: [&str; 5] =
    ["-ptoklat-frame", "-ptoklat-shmem", "-ptoklat-abi", "-ptoklat-driver", "-ptoklat-tcp"];

pub fn run() -> Result<()> {
    let mut failed = Vec::new();
    let mut skipped = Vec::new();
    let mut since = Instant::now();
    let mut must = |name: &'static str, done: Result<()>| {
        let took = std::mem::replace(&mut since, Instant::now()).elapsed();
        println!("{name}: {} s", took.as_secs());
        if let Err(error) = done {
            eprintln!("{name}: {error:#}");
            failed.push(name);
        }
    };
    must("format", tool::run(&mut cargo(&["fmt", "--all", "--check"])));
    must("clippy", clippy());
    must("stamps", stamps());
    must("docs", docs());
    if tool::installed("c++") {
        // Not of the workspace, which it would break unseen; libFuzzer is C++.
        must("fuzz targets", beside("fuzz/Cargo.toml"));
    } else {
        skipped.push("fuzz targets (cargo xtask setup, for g++)");
    }
    must("Python", beside("python/Cargo.toml"));
    must("sizes", size::check());
    must("atomics", atomics::check());
    must("registers", registers::check());
    must("rules of the house", house::check());
    if has_target(AARCH64) {
        let target = ["check", "--workspace", "--quiet", "--target", AARCH64];
        must("aarch64", tool::run(&mut cargo(&target)));
    } else {
        skipped.push("aarch64 (rustup target add aarch64-unknown-linux-gnu)");
    }
    if BARE.into_iter().all(has_target) {
        must("bare targets", bare_targets());
    } else {
        skipped.push("bare targets (rustup target add x86_64-unknown-none aarch64-unknown-none)");
    }
    if tool::has_subcommand("", "deny") {
        must("dependencies", dependencies(&mut skipped));
    } else {
        skipped.push("dependencies (cargo install cargo-deny)");
    }
    if tool::succeeds(&mut cargo(&["info", "--quiet", "serde"])) {
        must("packages", packages());
    } else {
        skipped.push("packages (crates.io cannot be reached)");
    }
    if tool::installed("valgrind") {
        must("budgets", perf::run());
    } else {
        skipped.push("budgets (cargo xtask setup, for valgrind)");
    }
    if !skipped.is_empty() {
        println!("skipped: {}", skipped.join(", "));
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("all checks passed");
    Ok(())
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

/// Versions, licences and sources of dependencies, and advisories where they can be fetched.
fn dependencies(skipped: &mut Vec<&'static str>) -> Result<()> {
    let mut deny = vec!["deny", "--workspace", "check", "--hide-inclusion-graph"];
    deny.extend(["bans", "licenses", "sources"]);
    if tool::succeeds(&mut cargo(&["deny", "fetch", "db"])) {
        deny.push("advisories");
    } else {
        skipped.push("advisories (their database cannot be fetched)");
    }
    tool::run(&mut cargo(&deny))
}

/// Each crate could be published as it is. Whether it compiles outside of the workspace is left to
/// `cargo publish --dry-run --workspace`, which takes as long as a first build.
fn packages() -> Result<()> {
    let dry = ["publish", "--dry-run", "--workspace", "--no-verify", "--allow-dirty", "--quiet"];
    tool::run(&mut cargo(&dry))
}

/// A crate outside the workspace compiles, with the versions that are written down.
fn beside(manifest: &str) -> Result<()> {
    let manifest = ["--manifest-path", manifest];
    tool::run(cargo(&["fmt", "--check"]).args(manifest))?;
    let clippy = ["clippy", "--locked", "--quiet"];
    tool::run(cargo(&clippy).args(manifest).args(["--", "-Dwarnings"]))
}

/// Crates that are to run without an operating system are checked without the standard library.
fn bare_targets() -> Result<()> {
    let targets = BARE.into_iter().flat_map(|target| ["--target", target]);
    let check = ["check", "--quiet", "--no-default-features"];
    tool::run(cargo(&check).args(BARE_CRATES).args(targets))
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
