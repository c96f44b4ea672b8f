//! The command line without a daemon: usage errors, exit codes, what it says about itself.

use std::path::Path;
use std::process::{Command, Output};

fn toklat(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_toklat"))
        .args(args)
        .env("TOKLAT_DIR", dir)
        .output()
        .expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn without_a_daemon_commands_end_with_3_and_say_how_to_start_it() {
    let dir = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 12] = [
        &["status"],
        &["switch", "show"],
        &["switch", "add", "vale0"],
        &["port", "add", "vale0:p1", "--lossless"],
        &["port", "show", "vale0", "--json"],
        &["fdb", "flush", "vale0"],
        &["stats", "--watch"],
        &["pipes"],
        &["apply", concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/net.toml")],
        &["export"],
        &["upgrade"],
        &["stop"],
    ];
    for command in commands {
        let output = toklat(dir.path(), command);
        assert_eq!(output.status.code(), Some(3), "{command:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("start it: toklat"), "{}", stderr(&output));
        assert!(output.stdout.is_empty(), "{command:?} printed something");
    }
}

#[test]
fn a_socket_without_a_listener_is_no_daemon() {
    let dir = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("control.sock")).unwrap());
    assert_eq!(toklat(dir.path(), &["status"]).status.code(), Some(3));
}

#[test]
fn wrong_usage_ends_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 11] = [
        &[],
        &["frobnicate"],
        &["switch", "add"],
        &["switch", "add", "va/le"],
        &["switch", "rm"],
        &["port", "add", "vale0"],
        &["port", "add", "vale0:p1", "--vlan-access", "5000"],
        &["port", "set", "vale0:p1"],
        &["fdb", "add", "vale0:p1", "no-mac"],
        &["stats", "--watch=0"],
        &["top", "--json"],
    ];
    for command in commands {
        let output = toklat(dir.path(), command);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", stderr(&output));
        assert!(!output.stderr.is_empty(), "{command:?} says nothing");
    }
}

#[test]
fn a_file_that_is_no_topology_ends_with_1_and_names_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net.toml");
    std::fs::write(&file, "[switch.vale0]\nidel = \"auto\"\n").unwrap();
    for (file, what) in [
        (file.as_path(), "switch.vale0.idel: there is no such setting. Did you mean idle?"),
        (Path::new("/no/such"), "Cannot read"),
    ] {
        let output = toklat(dir.path(), &["apply", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(what), "{}", stderr(&output));
    }
}

#[test]
fn help_version_and_checks_need_no_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/net.toml");
    let commands: [&[&str]; 5] = [
        &["--help"],
        &["--version"],
        &["port", "add", "--help"],
        &["help", "top"],
        &["apply", "--check", example],
    ];
    for command in commands {
        let output = toklat(dir.path(), command);
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", stderr(&output));
        assert!(!output.stdout.is_empty());
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man");
    let output = toklat(dir.path(), &["man", pages.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let written: Vec<_> =
        std::fs::read_dir(&pages).unwrap().map(|page| page.unwrap().path()).collect();
    for name in ["toklat.1", "toklat-guest-run.1", "toklat-evpn-show.1", "toklat-topology.5"] {
        assert!(written.contains(&pages.join(name)), "{name}");
    }
    let sections = ["NAME", "EXAMPLES", "EXIT STATUS", "FILES", "ENVIRONMENT", "SEE ALSO"];
    let of_commands = ["SYNOPSIS", "OPTIONS"];
    for page in &written {
        let text = std::fs::read_to_string(page).unwrap();
        let is_command = page.extension().is_some_and(|section| section == "1");
        let sections = match is_command {
            true => [&sections[..], &of_commands].concat(),
            false => vec!["NAME", "EXAMPLES", "FILES", "SEE ALSO"],
        };
        for section in sections {
            let title = [format!(".SH {section}\n"), format!(".SH {section:?}\n")];
            assert!(title.iter().any(|title| text.contains(title)), "{page:?}: {section}:\n{text}");
        }
    }
}

#[test]
fn groff_finds_nothing_to_warn_of_in_manual_pages() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man");
    let output = toklat(dir.path(), &["man", pages.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut groff = Command::new("groff");
    let all = std::fs::read_dir(&pages).unwrap().map(|page| page.unwrap().path());
    match groff.args(["-man", "-ww", "-z", "-Tutf8"]).args(all).output() {
        Err(_) => harness::skip(
            "groff_finds_nothing_to_warn_of_in_manual_pages",
            "groff is missing; as root: apt-get install groff",
        ),
        Ok(output) => assert_eq!(stderr(&output), ""),
    }
}

#[test]
fn completions_name_the_program_that_they_ask() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = toklat(dir.path(), &["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains("TOKLAT_COMPLETE") && script.contains("toklat"), "{shell}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    use std::process::Stdio;
    let mut child = Command::new(env!("CARGO_BIN_EXE_toklat"))
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn a_virtual_machine_s_command_line_is_printed_without_qemu_or_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = dir.path().join("kernel");
    std::fs::write(&kernel, "").unwrap();
    let vm = ["vm", "run", "--switch", "vale0", "--port", "vm1", "--qemu", "/no/qemu", "--print"];
    let boot =
        ["--kernel", kernel.to_str().unwrap(), "--accel", "tcg", "--queues", "2", "--", "-s"];
    let output = toklat(dir.path(), &[&vm[..], &boot].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    let socket = dir.path().join("vale0.vm1.sock");
    let add = format!("# toklat port add vale0:vm1 --vhost-user {} --queues 2", socket.display());
    assert!(printed.starts_with(&format!("{add} --interrupts delay=500,adaptive\n")), "{printed}");
    let with_kvm = boot.map(|word| if word == "tcg" { "kvm" } else { word });
    let output = toklat(dir.path(), &[&vm[..], &with_kvm].concat());
    let with_kvm = String::from_utf8(output.stdout).unwrap();
    assert!(with_kvm.starts_with(&format!("{add}\n")), "{with_kvm}");
    assert!(
        printed.contains("\n/no/qemu -name vale0-vm1") && printed.ends_with(" -s\n"),
        "{printed}"
    );
    // Errors name missing options, and options that exclude each other.
    let without = toklat(dir.path(), &[&vm[..8], &boot[..2]].concat());
    assert_eq!(without.status.code(), Some(1));
    assert!(stderr(&without).contains("apt-get install"), "{}", stderr(&without));
    for wrong in
        [&["--nic", "e1000", "--packed"][..], &["--image", "x"], &["--address", "10.0.0.1/24"]]
    {
        let output = toklat(dir.path(), &[&vm[..], &boot[..2], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
    }
}

/// Objective: a daemon that cannot start leaves nothing behind: no directory, no lock, no socket.
#[test]
fn failed_starts_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.toml");
    std::fs::write(&bad, "[switch.vale0]\ncolour = 1\n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let held = std::net::TcpListener::bind(taken).unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&token, mode).unwrap();
    let address = held.local_addr().unwrap().to_string();
    let deep = "x/".repeat(118);
    let wrong: [(&str, &[&str], &str); 4] = [
        ("a/b/c", &["--topology", bad.to_str().unwrap()], "colour"),
        ("a/b", &["--listen-tcp", &address, "--token-file", token.to_str().unwrap()], &address),
        ("a", &["--group", "nobody-of-this-name"], "nobody-of-this-name"),
        (&deep, &[], "107 are the most"),
    ];
    for (place, options, words) in wrong {
        let place = dir.path().join("run").join(place);
        let output = toklat(&place, &[&["daemon"], options].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{words}: {}", stderr(&output));
        assert!(!dir.path().join("run").exists(), "{words}");
    }
    // A directory that existed before must stay.
    let there = dir.path().join("there");
    std::fs::create_dir(&there).unwrap();
    let output = toklat(&there, &["daemon", "--topology", bad.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read_dir(&there).unwrap().count(), 0);
}

#[test]
fn the_doctor_needs_no_daemon_and_says_what_to_do_about_each_lack() {
    let dir = tempfile::tempdir().unwrap();
    let output = toklat(dir.path(), &["doctor", "--json"]);
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = checks.as_array().unwrap();
    for check in checks {
        assert_eq!(check["state"] == "good", check["remedy"] == "", "{check}");
    }
    let daemon = checks.iter().find(|check| check["what"] == "daemon").unwrap();
    assert!(daemon["remedy"].as_str().unwrap().contains("toklat daemon"), "{daemon}");
    let is_bad = checks.iter().any(|check| check["state"] == "bad");
    assert_eq!(output.status.success(), !is_bad, "{checks:?}");
}
