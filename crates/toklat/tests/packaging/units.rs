//! Tests of the files that the packages install.

use std::path::Path;
use std::process::Command;

use harness::skip;

/// Objective: systemd understands every line of the units, and has no warnings about them.
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
            // The unit is changed to name the program where cargo built it.
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

fn packaged(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Objective: the sockets in the documented recipes lie where the packaged daemon, or members of
/// its group, may create them.
#[test]
fn recipes_use_places_that_the_package_makes() {
    let recipes = std::fs::read_to_string(packaged("docs/virtual-machines.md")).unwrap();
    let made = std::fs::read_to_string(packaged("packaging/systemd/toklat.tmpfile")).unwrap();
    assert!(made.contains("d /run/toklat/peers "));
    let lines = recipes.lines().filter(|line| line.starts_with("    ") || line.contains(".sock"));
    let words = lines.flat_map(|line| line.split(['=', ' ', '"', ':', ',', '`', '\'', '(', ')']));
    let sockets: Vec<&str> =
        words.filter(|word| word.starts_with('/') && word.contains(".sock")).collect();
    assert!(sockets.len() > 10, "{sockets:?}");
    for socket in sockets {
        // The socket of a migration connects two QEMUs.
        let directory = socket.rsplit_once('/').unwrap().0;
        let known = ["/run/toklat", "/run/toklat/peers"].contains(&directory);
        assert!(
            known || socket == "/tmp/migrate.sock" || socket == "/run/toklat/*.sock",
            "{socket}"
        );
    }
}

/// Objective: the directories that systemd makes are as the units and the recipes want them.
#[test]
fn systemd_makes_the_directories() {
    let name = "systemd_makes_the_directories";
    if Command::new("systemd-tmpfiles").arg("--version").output().is_err() {
        return skip(name, "systemd-tmpfiles is missing; as root: apt-get install systemd");
    }
    if !rustix::process::geteuid().is_root() {
        return skip(name, "only root may give directories to users");
    }
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("etc")).unwrap();
    std::fs::write(
        root.path().join("etc/passwd"),
        "root:x:0:0::/:/bin/sh\ntoklat:x:990:990::/:/bin/sh\n",
    )
    .unwrap();
    std::fs::write(root.path().join("etc/group"), "root:x:0:\ntoklat:x:990:\n").unwrap();
    let mut tmpfiles = Command::new("systemd-tmpfiles");
    tmpfiles.arg("--create").arg(format!("--root={}", root.path().display()));
    let output = tmpfiles.arg(packaged("packaging/systemd/toklat.tmpfile")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    use std::os::unix::fs::MetadataExt;
    let peers = std::fs::metadata(root.path().join("run/toklat/peers")).unwrap();
    assert_eq!((peers.mode() & 0o7777, peers.uid(), peers.gid()), (0o3770, 990, 990));
}

/// Objective: AppArmor understands the profile, which lets the daemon reach what the unit gives it,
/// and the unit names it.
#[test]
fn apparmor_understands_the_profile_that_the_unit_names() {
    let name = "apparmor_understands_the_profile_that_the_unit_names";
    let profile = packaged("packaging/apparmor/toklat-daemon");
    let unit = std::fs::read_to_string(packaged("packaging/systemd/toklat.service")).unwrap();
    assert!(unit.contains("\nAppArmorProfile=-toklat-daemon\n"), "{unit}");
    let rules = std::fs::read_to_string(&profile).unwrap();
    for path in ["/usr/bin/toklat ", "/run/toklat/**", "/var/lib/toklat/**", "/etc/toklat/**"] {
        assert!(rules.contains(path), "{path}");
    }
    assert!(rules.contains("/dev/net/tun rw") && unit.contains("DeviceAllow=/dev/net/tun rw"));
    // The kernel need not have AppArmor: what it could do is read from a file.
    let mut parser = Command::new("apparmor_parser");
    parser.args(["--skip-kernel-load", "--skip-cache", "--warn=all", "--Werror"]);
    parser.args(["--features-file", "/etc/apparmor.d/abi/3.0"]).arg(&profile);
    match parser.output() {
        Err(_) => skip(name, "apparmor_parser is missing; as root: apt-get install apparmor"),
        Ok(output) => assert!(output.status.success(), "{output:?}"),
    }
}

/// Objective: what cannot be carried over is said before the package replaces anything.
///
/// Steps: the scripts that run before are told of an upgrade, on a machine whose program says this
/// version or that; they say that all ports close, or that they stay, and never fail.
#[test]
fn packages_say_before_they_replace_anything_whether_ports_stay() {
    use dataplane::control::{OLDEST, VERSION};
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("toklat");
    let _daemon = std::os::unix::net::UnixListener::bind(dir.path().join("control.sock")).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let packaging = packaged("packaging");
    let spec = std::fs::read_to_string(packaging.join("rpm/toklat.spec")).unwrap();
    let of_rpm = spec.split_once("\n%pre\n").unwrap().1.split_once("\n%post\n").unwrap().0;
    let of_debian = std::fs::read_to_string(packaging.join("debian/preinst")).unwrap();
    let scripts = [(of_debian, "upgrade"), (of_rpm.replace("%%", "%"), "2")];
    for (text, upgrade) in scripts {
        let script = dir.path().join("script");
        std::fs::write(&script, &text).unwrap();
        assert!(text.contains(&format!("oldest={OLDEST}\nnewest={VERSION}\n")), "{script:?}");
        for (says, stay) in [
            (format!("echo {OLDEST}"), true),
            (format!("echo {VERSION}"), true),
            (format!("echo {}", OLDEST - 1), false),
            (format!("echo {}", VERSION + 1), false),
            ("echo usage; exit 2".to_owned(), false),
            ("echo".to_owned(), false),
        ] {
            std::fs::write(&program, format!("#!/bin/sh\n{says}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            let run = |word: &str| {
                let mut sh = Command::new("sh");
                sh.arg(&script).arg(word).env("PATH", &path).env("TOKLAT_DIR", dir.path());
                let output = sh.output().unwrap();
                assert!(output.status.success(), "{output:?}");
                String::from_utf8(output.stderr).unwrap()
            };
            let said = run(upgrade);
            assert_eq!(said.contains("ports stay open"), stay, "{says}: {said}");
            assert_eq!(said.contains("ALL PORTS CLOSE"), !stay, "{says}: {said}");
            let first = if upgrade == "2" { "1" } else { "install" };
            assert_eq!(run(first), "", "nothing is replaced");
        }
    }
}
