//! The CNI plugin, run as container runtimes run it: `CNI_*` variables, the configuration on
//! standard input, JSON back.

use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use harness::namespace::Namespace;
use harness::{Daemon, skip};
use serde_json::{Value, json};

/// An IPAM plugin that gives 10.9.0.N to container cN. Like plugins from before 1.1.0, it refuses
/// newer configurations.
const OLD_IPAM: &str = r#"#!/bin/sh
config=$(cat)
echo "$CNI_COMMAND $CNI_CONTAINERID" >>"$(dirname "$0")/ipam.log"
case $config in
*'"cniVersion":"1.1.0"'*) echo '{"code":1,"msg":"incompatible CNI versions","details":"1.0.0"}'; exit 1 ;;
*'"refuse"'*) [ "$CNI_COMMAND" = DEL ] || { echo '{"code":103,"msg":"no addresses left","details":"all taken"}'; exit 1; } ;;
esac
[ "$CNI_COMMAND" = ADD ] && cat <<JSON
{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.${CNI_CONTAINERID#c}/24","gateway":"10.9.0.1"},
 {"address":"fd09::${CNI_CONTAINERID#c}/64"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.9.0.1"]}}
JSON
exit 0
"#;

/// A daemon with a switch, and a directory of plugins.
struct Setup {
    daemon: Daemon,
    plugins: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let (daemon, plugins) = (Daemon::start(), tempfile::tempdir().unwrap());
        daemon.done(&["switch", "add", "vale0"]);
        symlink(env!("CARGO_BIN_EXE_toklat"), plugins.path().join("toklat-cni")).unwrap();
        let ipam = plugins.path().join("old-ipam");
        std::fs::write(&ipam, OLD_IPAM).unwrap();
        std::fs::set_permissions(&ipam, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { daemon, plugins }
    }

    /// A configuration with these fields in addition.
    fn config(&self, more: &Value) -> Value {
        let mut config = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "toklat-cni",
            "switch": "vale0", "dir": self.daemon.dir(),
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    }

    /// Calls the plugin. Returns its exit code and its answer.
    fn call(
        &self,
        command: &str,
        container: &str,
        netns: &str,
        config: &str,
    ) -> (Option<i32>, Value) {
        let mut plugin = Command::new(self.plugins.path().join("toklat-cni"));
        plugin
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_PATH", self.plugins.path());
        plugin.env("CNI_COMMAND", command).env("CNI_CONTAINERID", container);
        plugin.env("CNI_NETNS", netns).env("CNI_IFNAME", "eth0");
        let mut child = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(config.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let answer =
            if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect(&text) };
        (output.status.code(), answer)
    }

    /// Calls the plugin, which must succeed.
    fn done(&self, command: &str, container: &str, netns: &str, config: &Value) -> Value {
        let (code, answer) = self.call(command, container, netns, &config.to_string());
        assert_eq!(code, Some(0), "{command} {container}: {answer}");
        answer
    }

    /// Calls the plugin, which must refuse with this code.
    fn refused(&self, command: &str, container: &str, netns: &str, config: &Value) -> Value {
        let (code, answer) = self.call(command, container, netns, &config.to_string());
        assert_eq!(code, Some(1), "{command}: {answer}");
        assert_eq!(answer["cniVersion"], config["cniVersion"], "{answer}");
        answer
    }

    fn ports(&self) -> usize {
        self.daemon.ports("vale0").len()
    }
}

fn path(namespace: &Namespace) -> String {
    format!("/proc/{}/ns/net", namespace.id())
}

/// Network namespaces of pods, or the reason why there are none.
fn namespaces<const N: usize>(test: &str) -> Option<[Namespace; N]> {
    let all: Result<Vec<_>, _> = (0..N).map(|_| Namespace::new()).collect();
    match all {
        Ok(all) => all.try_into().ok(),
        Err(why) => {
            skip(test, why);
            None
        }
    }
}

#[test]
fn pods_get_interfaces_and_reach_each_other() {
    let Some([one, two]) = namespaces("pods_get_interfaces_and_reach_each_other") else { return };
    let setup = Setup::new();
    let mut config =
        setup.config(&json!({ "ipam": { "type": "old-ipam" }, "port": { "guard": true } }));
    let answer = setup.done("ADD", "c2", &path(&one), &config);
    let interface =
        json!([{ "name": "eth0", "mac": answer["interfaces"][0]["mac"], "sandbox": path(&one) }]);
    assert_eq!(answer["interfaces"], interface);
    assert_eq!(answer["cniVersion"], "1.1.0");
    assert_eq!(
        answer["ips"][0],
        json!({ "address": "10.9.0.2/24", "gateway": "10.9.0.1", "interface": 0 })
    );
    assert_eq!(answer["dns"]["nameservers"][0], "10.9.0.1");
    setup.done("ADD", "c3", &path(&two), &config);
    // The guard keeps each pod to the addresses that it was given.
    let ips = |port: &Value| port["spec"]["ips"].to_string();
    let ports = setup.daemon.get("/v1/switches/vale0/ports");
    let mut kept: Vec<_> = ports.as_array().unwrap().iter().map(ips).collect();
    kept.sort();
    assert_eq!(kept, [r#"["10.9.0.2","fd09::2"]"#, r#"["10.9.0.3","fd09::3"]"#]);
    let routes = one.run(&["ip", "route"]);
    assert!(routes.contains("default via 10.9.0.1 dev eth0"), "{routes}");
    for peer in ["10.9.0.3", "fd09::3"] {
        let said = one.run(&["ping", "-c1", "-W30", peer]);
        assert!(said.contains(" 0% packet loss"), "{said}");
    }
    config["prevResult"] = answer;
    setup.done("CHECK", "c2", &path(&one), &config);
    one.run(&["ip", "addr", "del", "10.9.0.2/24", "dev", "eth0"]);
    let broken = setup.refused("CHECK", "c2", &path(&one), &config);
    assert!(broken["msg"].as_str().unwrap().contains("lacks 10.9.0.2/24"), "{broken}");
    for _ in 0..2 {
        setup.done("DEL", "c2", &path(&one), &config);
        assert_eq!(setup.ports(), 1, "the other pod's stays");
    }
    assert!(!one.run(&["ip", "link"]).contains("eth0"));
    // The namespace of this pod ended before DEL.
    drop(two);
    setup.done("DEL", "c3", "", &config);
    assert_eq!(setup.ports(), 0);
}

/// Objective: a pod that ended without DEL does not keep its successor of the same id from
/// starting, in a namespace of the same name or another, whether or not the daemon has noticed.
#[test]
fn an_attachment_whose_namespace_is_gone_is_replaced() {
    let test = "an_attachment_whose_namespace_is_gone_is_replaced";
    let Some([pod]) = namespaces(test) else { return };
    let mut setup = Setup::new();
    let config = setup.config(&json!({ "ipam": { "type": "old-ipam" } }));
    let link = |name: &str, pod: &Namespace| {
        let link = setup.plugins.path().join(name);
        let _ = std::fs::remove_file(&link);
        symlink(path(pod), &link).unwrap();
        link.to_str().unwrap().to_owned()
    };
    let mut netns = link("pod", &pod);
    setup.done("ADD", "c2", &netns, &config);
    let refused = setup.refused("ADD", "c2", &netns, &config);
    assert!(refused["msg"].as_str().unwrap().contains("eth0 is there already"), "{refused}");
    let mut old = pod;
    for (name, is_noticed) in [("pod", false), ("pod", true), ("other", false)] {
        let Some([pod]) = namespaces(test) else { return };
        drop(old);
        if name != "pod" {
            std::fs::remove_file(&netns).unwrap();
        }
        netns = link(name, &pod);
        if is_noticed {
            setup
                .daemon
                .wait_for("the tap to be made anew", |_| pod.run(&["ip", "link"]).contains("eth0"));
        }
        setup.done("ADD", "c2", &netns, &config);
        assert_eq!(setup.daemon.ports("vale0").len(), 1);
        let addresses = pod.run(&["ip", "addr", "show", "eth0"]);
        assert!(addresses.contains("10.9.0.2/24"), "{addresses}");
        old = pod;
    }
    setup.done("DEL", "c2", &netns, &config);
    assert!(!old.run(&["ip", "link"]).contains("eth0"));
}

#[test]
fn what_cannot_be_finished_is_undone() {
    let Some([pod]) = namespaces("what_cannot_be_finished_is_undone") else { return };
    let setup = Setup::new();
    let config = setup.config(&json!({ "ipam": { "type": "old-ipam", "mode": "refuse" } }));
    let refused = setup.refused("ADD", "c2", &path(&pod), &config);
    assert_eq!((&refused["code"], &refused["details"]), (&json!(103), &json!("all taken")));
    assert!(refused["msg"].as_str().unwrap().contains("no addresses left"), "{refused}");
    let asked = std::fs::read_to_string(setup.plugins.path().join("ipam.log")).unwrap();
    assert!(asked.ends_with("DEL c2\n"), "{asked}");
    assert!(setup.ports() == 0 && !pod.run(&["ip", "link"]).contains("eth0"));
    // An interface that exists already is left unchanged.
    pod.run(&["ip", "tuntap", "add", "eth0", "mode", "tap"]);
    let refused = setup.refused("ADD", "c2", &path(&pod), &setup.config(&json!({})));
    assert!(refused["msg"].as_str().unwrap().contains("eth0 is there already"), "{refused}");
    assert!(setup.ports() == 0 && pod.run(&["ip", "link"]).contains("eth0"));
}

#[test]
fn a_container_can_have_a_vhost_user_socket() {
    let setup = Setup::new();
    let config = setup.config(&json!({
        "attach": "vhost-user", "queues": 2, "runtimeConfig": { "mac": "0a:58:0a:09:00:02" },
        "port": { "tx-limit": "1Gb/s", "lossless": true, "mtu": 9000 },
    }));
    let answer = setup.done("ADD", "c2", "", &config);
    let socket = PathBuf::from(answer["interfaces"][0]["socketPath"].as_str().unwrap());
    assert!(socket.starts_with(setup.daemon.dir()));
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
    assert_eq!(answer["interfaces"][0]["mac"], "0a:58:0a:09:00:02");
    let port = &setup.daemon.get("/v1/switches/vale0/ports")[0]["spec"];
    assert_eq!(port["kind"]["vhost_user"]["queues"], 2, "{port}");
    assert_eq!((&port["lossless"], &port["mtu"]), (&json!(true), &json!(9000)));
    assert_eq!(port["macs"], json!(["0a:58:0a:09:00:02"]));
    // A repeated ADD gets the same answer.
    assert_eq!(setup.done("ADD", "c2", "", &config), answer);
    let mut checked = config.clone();
    checked["prevResult"] = answer;
    setup.done("CHECK", "c2", "", &checked);
    setup.done("DEL", "c2", "", &config);
    assert!(!socket.exists() && setup.ports() == 0);
    let gone = setup.refused("CHECK", "c2", "", &checked);
    assert!(gone["msg"].as_str().unwrap().contains("is gone"), "{gone}");
}

#[test]
fn garbage_is_collected_within_its_network() {
    let setup = Setup::new();
    let of = |network: &str| setup.config(&json!({ "attach": "vhost-user", "name": network }));
    setup.daemon.done(&["port", "add", "vale0:operators"]);
    for (container, network) in [("c2", "net"), ("c3", "net"), ("c3", "other")] {
        setup.done("ADD", container, "", &of(network));
    }
    let mut config = of("net");
    config["cni.dev/valid-attachments"] = json!([{ "containerID": "c2", "ifname": "eth0" }]);
    setup.done("GC", "", "", &config);
    assert_eq!(setup.ports(), 3);
    // A configuration without a list of attachments counts as one with an empty list.
    setup.done("GC", "", "", &of("net"));
    assert_eq!(setup.ports(), 2, "the operator's and the other network's");
}

#[test]
fn status_and_version_are_told_before_any_container() {
    let mut setup = Setup::new();
    let config = setup.config(&json!({ "attach": "vhost-user" }));
    let version = setup.done("VERSION", "", "", &json!({ "cniVersion": "1.0.0" }));
    assert_eq!(
        version,
        json!({ "cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"] })
    );
    assert_eq!(setup.done("STATUS", "", "", &config), Value::Null);
    setup.daemon.done(&["switch", "rm", "vale0"]);
    let refused = setup.refused("STATUS", "", "", &config);
    assert!(
        refused["code"] == 50 && refused["details"].as_str().unwrap().contains("vale0"),
        "{refused}"
    );
    setup.daemon.stop(&json!({}));
    assert_eq!(setup.refused("STATUS", "", "", &config)["code"], 50);
    let again = setup.refused("ADD", "c2", "", &config);
    assert!(
        again["code"] == 11 && again["details"].as_str().unwrap().contains("toklat"),
        "{again}"
    );
}

#[test]
fn errors_are_the_specifications() {
    let setup = Setup::new();
    let with = |more: Value| setup.config(&more).to_string();
    let table = [
        ("ADD", "c2", "", with(json!({})), 4, "CNI_NETNS"),
        ("ADD", "", "/x", with(json!({})), 4, "CNI_CONTAINERID"),
        ("ADD", "../c2", "/x", with(json!({})), 4, "../c2"),
        ("ADD", "c2", "x", with(json!({})), 4, "CNI_NETNS"),
        ("ADD", "c2", "/no/such/netns", with(json!({})), 5, "/no/such/netns"),
        ("FROB", "c2", "", with(json!({})), 4, "FROB"),
        ("ADD", "c2", "", "{".into(), 6, "cannot be read"),
        ("ADD", "c2", "", with(json!({ "attach": "wire" })), 6, "cannot be read"),
        ("ADD", "c2", "", with(json!({ "cniVersion": "0.1.0" })), 1, "0.1.0"),
        ("ADD", "c2", "", with(json!({ "switch": "" })), 7, "no switch"),
        ("ADD", "c2", "/x", with(json!({ "switch": "va/le" })), 7, "va/le"),
        (
            "ADD",
            "c2",
            "",
            with(json!({ "attach": "vhost-user", "port": { "colour": 1 } })),
            7,
            "--colour",
        ),
        (
            "ADD",
            "c2",
            "",
            with(json!({ "attach": "vhost-user", "runtimeConfig": { "mac": "x" } })),
            7,
            "x",
        ),
        (
            "ADD",
            "c2",
            "",
            with(json!({ "attach": "vhost-user", "ipam": { "type": "gone" } })),
            7,
            "gone",
        ),
        ("ADD", "c2", "", with(json!({ "attach": "vhost-user", "queues": 99 })), 100, "Cannot add"),
        ("CHECK", "c2", "", with(json!({ "attach": "vhost-user" })), 7, "prevResult"),
    ];
    for (command, container, netns, config, number, words) in table {
        let (code, answer) = setup.call(command, container, netns, &config);
        assert_eq!(
            (code, &answer["code"]),
            (Some(1), &json!(number)),
            "{command} {config}: {answer}"
        );
        assert!(answer["msg"].as_str().unwrap().contains(words), "{words}: {answer}");
        assert_eq!(setup.ports(), 0, "{answer}");
    }
}

/// Objective: CNI's own tool and IPAM plugin work with the plugin.
#[test]
fn cnitool_drives_it() {
    let name = "cnitool_drives_it";
    let tool = harness::artifacts::target().join("go/cnitool");
    if Command::new(&tool).arg("--help").output().is_err() {
        return skip(name, "cnitool is missing: cargo xtask setup");
    }
    let Some(plugins) = ["/usr/lib/cni", "/opt/cni/bin"]
        .iter()
        .find(|dir| PathBuf::from(dir).join("host-local").exists())
    else {
        return skip(
            name,
            "host-local is missing; as root: apt-get install containernetworking-plugins",
        );
    };
    let Some([pod]) = namespaces(name) else { return };
    let setup = Setup::new();
    let dir = setup.plugins.path();
    let subnet = json!([[{ "subnet": "10.9.0.0/24" }]]);
    let ipam = json!({ "type": "host-local", "ranges": subnet, "routes": [{ "dst": "0.0.0.0/0" }], "dataDir": dir.join("leases") });
    let plugin =
        json!({ "type": "toklat-cni", "switch": "vale0", "dir": setup.daemon.dir(), "ipam": ipam });
    let list = json!({ "cniVersion": "1.1.0", "name": "net", "plugins": [plugin] });
    std::fs::write(dir.join("net.conflist"), list.to_string()).unwrap();
    let call = |command: &str| {
        let mut run = Command::new(&tool);
        run.args([command, "net", &path(&pod)]).env("NETCONFPATH", dir);
        run.env("CNI_PATH", format!("{}:{plugins}", dir.display()));
        let output = run.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        assert!(
            output.status.success(),
            "{command}: {}{}",
            text(output.stdout),
            text(output.stderr)
        );
        text(output.stdout)
    };
    call("status");
    let answer: Value = serde_json::from_str(&call("add")).unwrap();
    assert_eq!(answer["ips"][0]["address"], "10.9.0.2/24", "{answer}");
    assert!(pod.run(&["ip", "addr"]).contains("10.9.0.2/24"));
    call("check");
    call("gc");
    assert_eq!(setup.ports(), 0, "cnitool lets none stay");
    call("del");
}
