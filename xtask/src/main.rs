//! One door for set-up, checks, tests, budgets and fuzzing: `cargo xtask help`.
//!
//! What needs a tool that is missing is skipped by name, and the last line says so.

mod ab;
mod artifacts;
mod atomics;
mod base;
mod capi;
mod check;
mod chroot;
mod circles;
mod debian;
mod dependencies;
mod features;
mod fuzz;
mod go;
mod guest;
mod house;
mod pack;
mod perf;
mod performance;
mod privilege;
mod profiles;
mod qemu;
mod reach;
mod registers;
mod schemathesis;
mod setup;
mod size;
mod snapshots;
mod test;
mod times;
mod tool;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask COMMAND

  setup [--ci]     installs Debian packages for tests and benchmarks (as root or by sudo; else names them)
                   and makes, as any user, the test guest, an earlier version from the history (target/base) and, where the
                   installed QEMU does not speak vfio-user, one that does; --ci: only what the tests use
  guest            makes the test guest (kernel and initramfs, from Debian packages) in target/guest, and in
                   target/guest/dpdk one with DPDK
  qemu             makes a QEMU that speaks vfio-user, unless one is installed (from Debian packages), in target/qemu
  check [PART...]  format, clippy, docs, sizes, arrows between crates, tables, aarch64, dependencies, instruction budgets
  house            the part of `check` that takes no compiler: arrows and circles, sizes, comments, tables, subjects
  test [ARGS]      all tests; with ARGS, those that `cargo test ARGS` chooses, and after -- parts of tests' names; the last
                   line is `N passed, N failed, N skipped`
  snapshots        writes tests/snapshots anew: help texts, the API's description, names of metrics, an exported topology,
                   names of tests
  features         writes xtask/features/Cargo.toml: one set of features for every `-p`
  artifacts [NAME...]
                   what tests use and do not build: programs, the library for C, Python's package, Debian and RPM packages,
                   fuzz targets; a part of `test`
  times [first] [edit]
                   what a first command, an edit, the tests and CI took, beside their bars; first and edit are measured, in a
                   clone of what is committed, on a machine that does nothing else
  loom             models of hand-over and sleep/wake (shmem, nic); a part of `test`
  miri             undefined behaviour in shmem, frame and port (nightly)
  performance FILE...  makes the table of all rows in docs/performance.md from what `toklat --json bench` printed
  atomics          makes docs/atomics.md from the documentation of the atomics
  registers        makes docs/registers.md from the tables of the device models
  perf             instructions per frame against bench/budgets.toml (valgrind)
  ab BASE [ROW...] benchmarks of a commit (or program) BASE and of what is here by turns, each in the profile of its packages,
                   in eleven pairs: each row's ratio; the lower end of its interval must reach 0.95. Before, of BASE beside
                   itself. On a machine that does nothing else
  capi [--prefix DIR] [--dev]
                   installs the library for programs in C under DIR (default /usr/local): shared and static library, toklat.h,
                   toklat.pc; --dev: built quickly, for tests
  install [--root DIR] [--dev]
                   installs the program, the library of `toklat run`, manual pages and completions under DIR (default
                   $CARGO_HOME, else ~/.cargo), built in the profile `dist`; --dev: those that were built for tests
  deb [--out DIR] [--dev]
                   a Debian package in DIR (default target/debian), which lintian looks at if it is installed
  rpm [--out DIR] [--dev]
                   an RPM package in DIR (default target/generate-rpm)
  siege [SECONDS]  attackers of every kind beside honest traffic, on optimised code, on a machine that does nothing
                   else (default 600; as root): what honest ports lost, and how long turns took
  schemathesis [SECONDS]
                   the control API against its own description, by Schemathesis of PyPI (default 300)
  fuzz [SECONDS]   every fuzz target for SECONDS (default 30; nightly, cargo-fuzz)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed::Usage) => {
            eprintln!("{HELP}");
            ExitCode::from(2)
        }
        // The tests' own last line stays the last.
        Err(Failed::Tests) => ExitCode::FAILURE,
        Err(Failed::Because(error)) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Makes what the tests use. Tests that miss something skip themselves and say so.
fn prepare_tests() {
    if let Err(error) = setup::run(true) {
        println!("going on without some packages: {error:#}");
    }
}

/// Packs or installs, as the options say.
fn packed(args: &[&str], place: &str, make: pack::Make) -> anyhow::Result<()> {
    make(&pack::Options::read(args, place)?)
}

/// The reason why a command failed.
enum Failed {
    /// The command does not exist.
    Usage,
    /// Tests failed, and have been reported.
    Tests,
    /// Anything else.
    Because(anyhow::Error),
}

fn run(args: &[&str]) -> Result<(), Failed> {
    let done = match args {
        ["setup"] => setup::run(false),
        ["setup", "--ci"] => setup::run(true),
        ["guest"] => guest::make(),
        ["qemu"] => qemu::make(),
        ["check", parts @ ..] => check::run(parts),
        ["house"] => size::check().and_then(|()| house::check()),
        ["test", rest @ ..] => {
            if rest.is_empty() {
                prepare_tests();
            }
            match test::run(rest) {
                Ok(false) => return Err(Failed::Tests),
                done => done.map(|_| ()),
            }
        }
        ["snapshots"] => snapshots::write(),
        ["features"] => features::write(),
        ["artifacts", names @ ..] => artifacts::run(names),
        ["times", what @ ..] => times::run(what),
        ["loom"] => test::loom(),
        ["miri"] => test::miri(),
        ["perf"] => perf::run(),
        ["atomics"] => atomics::write(),
        ["performance", files @ ..] => performance::write(files),
        ["registers"] => registers::write(),
        ["ab", base, rows @ ..] => ab::run(base, rows),
        ["capi", rest @ ..] => capi::run(rest),
        ["install", rest @ ..] => packed(rest, "--root", pack::install),
        ["deb", rest @ ..] => packed(rest, "--out", pack::deb),
        ["rpm", rest @ ..] => packed(rest, "--out", pack::rpm),
        ["siege"] => test::siege("600"),
        ["siege", seconds] if seconds.parse::<u64>().is_ok() => test::siege(seconds),
        ["schemathesis"] => schemathesis::run("300"),
        ["schemathesis", seconds] if seconds.parse::<u64>().is_ok() => schemathesis::run(seconds),
        ["fuzz"] => fuzz::run(30),
        ["fuzz", seconds] if seconds.parse::<u64>().is_ok() => {
            fuzz::run(seconds.parse().unwrap_or(30))
        }
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        _ => return Err(Failed::Usage),
    };
    done.map_err(Failed::Because)
}
