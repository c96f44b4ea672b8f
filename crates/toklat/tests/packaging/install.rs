//! What `cargo xtask install` installs, and what a checkout has: `toklat run` finds its library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Daemon, artifacts, must, run, skip};

/// The root of the installation, or the reason why it could not be made.
fn installed() -> Result<PathBuf, String> {
    artifacts::made("install")?;
    Ok(artifacts::target().join("artifacts/packages/install"))
}

/// A program that looks for its library where it itself is.
fn alone(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_remove("TOKLAT_PRELOAD");
    command
}

/// What `toklat doctor` says of `toklat run`.
fn library_of(program: &Path) -> serde_json::Value {
    let nowhere = tempfile::tempdir().unwrap();
    let mut doctor = alone(program);
    doctor.args(["doctor", "--json"]).env("TOKLAT_DIR", nowhere.path());
    let said: serde_json::Value =
        serde_json::from_slice(&run(&mut doctor).unwrap().stdout).unwrap();
    let mut checks = said.as_array().unwrap().iter();
    checks.find(|check| check["what"] == "toklat run").expect("a line about it").clone()
}

/// `pair` of the netmap programs' tests: two ports of one process, which exchange frames.
fn pair(directory: &Path) -> PathBuf {
    let program = directory.join("pair");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/netmap/pair.c");
    let mut cc = Command::new("cc");
    must(cc.args(["-O1", "-w", "-pthread", "-o"]).args([&program, &source]));
    program
}

/// Objective: what is installed runs an unmodified netmap program, and has pages and completions.
#[test]
fn an_installed_program_runs_netmap_programs() {
    let root = match installed() {
        Ok(root) => root,
        Err(why) => return skip("an_installed_program_runs_netmap_programs", &why),
    };
    let (program, dir) = (root.join("bin/toklat"), tempfile::tempdir().unwrap());
    let daemon = Daemon::start_from(&program);
    let mut exchange = alone(&program);
    exchange.args(["run", "--"]).arg(pair(dir.path())).env("TOKLAT_DIR", daemon.dir());
    let output = run(&mut exchange).unwrap();
    assert!(output.status.success(), "{output:?}\n{}", daemon.log());
    let library = root.join("lib/toklat/libtoklat_preload.so").canonicalize().unwrap();
    assert_eq!(library_of(&program)["found"], library.to_str().unwrap());
    for file in [
        "man/man1/toklat-run.1.gz",
        "man/man5/toklat-topology.5.gz",
        "bash-completion/completions/toklat",
        "zsh/site-functions/_toklat",
        "fish/vendor_completions.d/toklat.fish",
    ] {
        assert!(root.join("share").join(file).is_file(), "{file}");
    }
}

/// Objective: a program that cargo built has the library, too, and a copy of it elsewhere names the
/// remedy.
#[test]
fn a_checkout_has_the_library_and_a_copy_elsewhere_says_what_is_missing() {
    let program = harness::program();
    let beside = program.parent().unwrap().join("deps/libtoklat_preload.so");
    let found = library_of(program);
    assert_eq!(found["found"], beside.canonicalize().unwrap().to_str().unwrap());
    assert_eq!((&found["state"], &found["remedy"]), (&"good".into(), &"".into()));
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("toklat");
    std::fs::copy(program, &copy).unwrap();
    let missing = library_of(&copy);
    assert_eq!(missing["remedy"], "cargo xtask install", "{missing}");
    let daemon = Daemon::start();
    let output = run(alone(&copy).args(["run", "--", "true"]).env("TOKLAT_DIR", daemon.dir()));
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("`cargo xtask install`"), "{said}");
}

/// The names that a file defines; of a library, only what others can see.
fn defined(file: &Path, options: &[&str]) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    let output = run(nm.args(["--defined-only", "--format=just-symbols"]).args(options).arg(file));
    let output = output.expect("nm of binutils, which has the linker, too");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Objective: the library is built along with the program, and its hooks are not in it: there they
/// would take over the program's own calls.
#[test]
fn the_librarys_hooks_are_not_in_the_program() {
    let program = harness::program();
    let library = program.parent().unwrap().join("deps/libtoklat_preload.so");
    let hooks = defined(&library, &["--dynamic"]);
    for hook in ["open", "close", "ioctl", "mmap", "poll", "pcap_open_live"] {
        assert!(hooks.contains(hook), "{hook}: {hooks:?}");
    }
    let mut own = defined(program, &[]);
    own.extend(defined(program, &["--dynamic"]));
    assert!(own.contains("main"), "the program has its names");
    assert_eq!(own.intersection(&hooks).collect::<Vec<_>>(), [""; 0]);
}
