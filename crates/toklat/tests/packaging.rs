//! What the packages bring along.

mod daemon;

use std::path::Path;
use std::process::Command;

use daemon::skip;

/// Objective: systemd understands every line of the units, and has nothing to say of them.
#[test]
fn systemd_understands_the_units() {
    let name = "systemd_understands_the_units";
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip(name, "systemd-analyze is missing; as root: apt-get install systemd");
    }
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let dir = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for unit in std::fs::read_dir(units).unwrap().map(|unit| unit.unwrap().path()) {
        let kind = unit.extension().and_then(|kind| kind.to_str());
        if matches!(kind, Some("service" | "socket")) {
            // The program is where it was built.
            let text = std::fs::read_to_string(&unit).unwrap();
            let text = text.replace("/usr/bin/toklat", env!("CARGO_BIN_EXE_toklat"));
            let name = dir.path().join(unit.file_name().unwrap());
            std::fs::write(&name, text).unwrap();
            names.push(name);
        }
    }
    assert_eq!(names.len(), 3, "{names:?}");
    let mut analyze = Command::new("systemd-analyze");
    let output = analyze.args(["verify", "--man=no"]).args(&names).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}
