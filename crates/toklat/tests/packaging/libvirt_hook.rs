//! libvirt's hook, driven as libvirt drives it: the script, its arguments, and the domain's XML on
//! standard input.

use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Stdio};

use harness::{Daemon, skip};
use serde_json::json;

fn packaged(path: &str) -> String {
    format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))
}

/// The domain of the documents, with its socket in the daemon's directory.
fn domain(daemon: &Daemon) -> String {
    let xml = std::fs::read_to_string(packaged("docs/examples/libvirt-domain.xml")).unwrap();
    xml.replace("/run/toklat", daemon.dir().to_str().unwrap())
}

/// Runs the hook as libvirt does; its exit code, and what libvirt would show.
fn hook(daemon: &Daemon, args: &[&str], xml: &str) -> (Option<i32>, String) {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_toklat"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let mut command = Command::new(packaged("packaging/libvirt/toklat"));
    command.args(args).env_clear().env("PATH", path).env("TOKLAT_DIR", daemon.dir());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The hook need not read what it does not want.
    let _ = child.stdin.take().unwrap().write_all(xml.as_bytes());
    let output = child.wait_with_output().unwrap();
    assert!(output.stdout.is_empty(), "libvirt takes output for another XML: {output:?}");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn ports_come_and_go_with_their_domain() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    let xml = domain(&daemon);
    let call = |operation: &str, suboperation: &str| {
        let ended = hook(&daemon, &["web1", operation, suboperation, "-"], &xml);
        assert_eq!(ended, (Some(0), String::new()), "{operation}");
        daemon.ports("vale0").len()
    };
    assert_eq!(call("migrate", "begin"), 0, "prepare comes after it");
    assert_eq!(call("prepare", "begin"), 1);
    let port = daemon.get("/v1/switches/vale0/ports/web1");
    let socket = daemon.dir().join("web1.sock");
    let kind = json!({ "vhost_user": { "path": socket, "client": false, "queues": 2 } });
    assert_eq!(port["spec"]["kind"], kind);
    assert_eq!(port["spec"]["macs"], json!(["52:54:00:00:00:01"]));
    assert_eq!(port["spec"]["guard"], json!(true));
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket(), "QEMU connects to it");
    // A restarted libvirtd calls the hook again, with settings that may have changed.
    assert_eq!(port["spec"]["ips"], json!(["10.0.0.7"]));
    daemon.done(&["port", "set", "vale0:web1", "--guard=off"]);
    assert_eq!(call("reconnect", "begin"), 1);
    assert_eq!(daemon.get("/v1/switches/vale0/ports/web1")["spec"]["guard"], json!(true));
    for (operation, suboperation) in
        [("prepare", "begin"), ("start", "begin"), ("started", "begin"), ("stopped", "end")]
    {
        assert_eq!(call(operation, suboperation), 1, "{operation}");
    }
    assert_eq!(call("release", "end"), 0);
    assert_eq!(call("release", "end"), 0);
    assert!(!socket.exists());
}

#[test]
fn a_domain_that_cannot_have_its_ports_does_not_start_and_leaves_none() {
    let daemon = Daemon::start();
    let xml = domain(&daemon);
    let refused = |xml: &str, words: &[&str]| {
        let (code, said) = hook(&daemon, &["web1", "prepare", "begin", "-"], xml);
        assert!(code == Some(1) && said.lines().count() == 1, "{code:?} {said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
    };
    refused(&xml, &["Domain web1", "vale0:web1", "toklat switch add vale0"]);
    daemon.done(&["switch", "add", "vale0"]);
    refused(&xml.replace("guard='on'", "guard='perhaps'"), &["Domain web1", "perhaps"]);
    // If the second of two ports cannot be added, the first is removed, too.
    let port = "<toklat:port name='vale0:web2' mac='52:54:00:00:00:02'/></toklat:ports>";
    let interface = "<interface type='vhostuser'><mac address='52:54:00:00:00:02'/>\
                     <source type='unix' path='/no/such/dir/web2.sock' mode='client'/></interface></devices>";
    let two = xml.replace("</toklat:ports>", port).replace("</devices>", interface);
    refused(&two, &["Cannot add vale0:web2", "/no/such/dir"]);
    assert_eq!(daemon.ports("vale0"), []);
    // An operator's port of this name is neither used nor removed.
    daemon.done(&["port", "add", "vale0:web1"]);
    refused(&xml, &["vale0:web1", "another kind"]);
    assert_eq!(hook(&daemon, &["web1", "release", "end", "-"], &xml), (Some(0), String::new()));
    assert_eq!(daemon.ports("vale0").len(), 1);
}

#[test]
fn domains_without_ports_need_no_daemon() {
    let mut daemon = Daemon::start();
    let xml = domain(&daemon);
    daemon.stop(&json!({}));
    let args = ["other", "prepare", "begin", "-"];
    assert_eq!(hook(&daemon, &args, "<domain type='kvm'><name>other</name></domain>").0, Some(0));
    let (code, said) = hook(&daemon, &args, &xml);
    assert!(code == Some(3) && said.contains("toklat daemon"), "{code:?} {said}");
}

#[test]
fn libvirt_accepts_the_domain() {
    let name = "libvirt_accepts_the_domain";
    for program in ["virt-xml-validate", "xmllint"] {
        if Command::new(program).arg("--version").output().is_err() {
            return skip(name, "as root: apt-get install libvirt-clients libxml2-utils");
        }
    }
    let args = [&packaged("docs/examples/libvirt-domain.xml"), "domain"];
    let output = Command::new("virt-xml-validate").args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
