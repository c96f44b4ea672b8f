//! The commands of the documents, which are run as they are written.

use std::fmt::Write as _;
use std::process::{Child, Command};

use harness::{Daemon, skip};
use serde_json::Value;

fn document(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Returns the lines of all code blocks in this language in a document.
fn blocks(text: &str, language: &str) -> String {
    let (mut inside, mut lines) = (false, String::new());
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(of) => inside = of == language,
            None if inside => writeln!(lines, "{line}").unwrap(),
            None => {}
        }
    }
    lines
}

#[test]
fn the_examples_of_the_api_run_as_they_stand() {
    let name = "the_examples_of_the_api_run_as_they_stand";
    if Command::new("curl").arg("--version").output().is_err() {
        return skip(name, "curl is missing");
    }
    let daemon = Daemon::start();
    let script = format!("set -e -x\n{}", blocks(&document("api.md"), "sh"));
    let mut bash = Command::new("bash");
    let output = bash.args(["-c", &script]).env("TOKLAT_DIR", daemon.dir()).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{out}{err}");
    // Some of the output that the examples must show.
    for shown in ["\"version\"", "\"vacant\"", "toklat_build_info", "vale7:db", "\"removed\""] {
        assert!(out.contains(shown), "{shown}: {out}{err}");
    }
    assert_eq!(daemon.get("/v1/switches"), serde_json::json!([]), "the last one tidies up");
}

#[test]
fn every_metric_is_in_the_document_on_monitoring() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.p1]");
    let page = daemon.get("/metrics");
    let text = document("monitoring.md");
    let names = harness::text(&page).lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<_> = names.filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        let short = name.trim_start_matches("toklat_port").trim_start_matches("toklat_worker");
        assert!(text.contains(name) || text.contains(&format!("`{short}`")), "{name}");
    }
}

#[test]
fn every_field_of_the_topology_file_is_in_its_manual_page() {
    let daemon = Daemon::start();
    let api = daemon.get("/openapi.json");
    let page = include_str!("../../src/cli/manual/toklat-topology.5").replace("\\-", "-");
    let schemas = [
        "SwitchSpec",
        "PortSpec",
        "Tap",
        "Interface",
        "PcapRead",
        "PcapWrite",
        "Stream",
        "Dgram",
        "Vxlan",
        "Evpn",
        "EvpnNeighbor",
        "EvpnBfd",
        "VhostUser",
        "VfioUser",
        "NicConfig",
        "Combine",
        "Interrupts",
        "RateLimiter",
        "TokenBucket",
        "Impairment",
        "Trunk",
        "Worker",
        "Quota",
    ];
    for schema in schemas {
        let fields = api["components"]["schemas"][schema]["properties"].as_object();
        for field in fields.unwrap_or_else(|| panic!("{schema}")).keys() {
            let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            assert!(words.clone().any(|word| word == field), "{schema}: {field}");
        }
    }
    for kind in api["components"]["schemas"]["NicModel"]["enum"].as_array().unwrap() {
        assert!(page.contains(harness::text(kind)), "{kind}");
    }
}

/// The commands of a document's indented blocks, without their comments.
fn commands(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("    toklat "));
    lines.map(|line| line.split(" #").next().unwrap().trim()).collect()
}

/// Objective: the README is short, and its commands do what it says, as they stand and in their
/// order, in the root of the repository.
///
/// Those that go on until they are interrupted are waited for until they do their work. Machines
/// and ways out are only planned (`vm_run` and `vm_uplink` run them); benchmarks are only known.
#[test]
fn the_readme_is_short_and_its_commands_run() {
    let root = format!("{}/../..", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(format!("{root}/README.md")).unwrap();
    assert!(text.lines().count() <= 120, "{}", text.lines().count());
    let (mut daemon, place) = (Daemon::start(), tempfile::tempdir().unwrap());
    let mut going: Vec<(String, Child)> = Vec::new();
    let mut ran = 0;
    for line in commands(&text) {
        let words: Vec<&str> = line.split(" | ").next().unwrap().split(' ').collect();
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let output = place.path().join(ran.to_string());
        let start = |daemon: &Daemon| {
            let output = std::fs::File::create(&output).unwrap();
            let mut tool = daemon.tool(&words);
            tool.current_dir(&root).stdout(output);
            (words[0].to_owned(), tool.spawn().unwrap())
        };
        match words[0] {
            "daemon" => {}
            "vm" => {
                let image = place.path().join("debian.qcow2");
                std::fs::write(&image, "").unwrap();
                let plan = words.iter().map(|word| match *word {
                    "debian.qcow2" => image.to_str().unwrap(),
                    word => word,
                });
                let plan: Vec<&str> = plan.chain(["--print"]).collect();
                assert!(daemon.done(&plan).contains("vhost-user"), "{line}");
            }
            "bench" | "uplink" => {
                let (code, help, _) = daemon.run(&[&words[..], &["--help"]].concat());
                assert!(code == Some(0) && help.contains("Usage: "), "{line}: {help}");
            }
            "sink" | "gen" | "ping" => {
                going.push(start(&daemon));
                let port = words[1].split(':').nth(1).unwrap();
                let place = format!("/v1/switches/vale0/ports/{port}");
                daemon.wait_for(line, |daemon| {
                    daemon.ask("GET", &place, &Value::Null).0 == 200
                        && (words[0] == "sink"
                            || daemon.counters(port)["in_frames"].as_u64() > Some(0))
                });
            }
            "stats" | "cap" => {
                going.push(start(&daemon));
                daemon.wait_for(line, |_| std::fs::metadata(&output).unwrap().len() > 0);
            }
            "top" => {
                let mut terminal = daemon.in_terminal(&words, 100, 30);
                terminal.wait_for("vale0:web");
                terminal.press(b"q");
                assert_eq!(terminal.end(), Some(0));
            }
            _ => {
                if words[0] == "apply" && words.len() == 2 {
                    // The programs must close their ports first, as the README says.
                    daemon.wait_for("the sink to count", |daemon| {
                        daemon.counters("b")["out_frames"].as_u64() > Some(0)
                    });
                    interrupt(&mut going);
                }
                let mut tool = daemon.tool(&words);
                let output = tool.current_dir(&root).output().unwrap();
                assert!(output.status.success(), "{line}: {output:?}");
            }
        }
        ran += 1;
    }
    assert!(ran >= 18, "{ran}");
    assert!(going.is_empty());
}

/// Interrupts programs as a terminal does, and waits until they have ended well.
fn interrupt(going: &mut Vec<(String, Child)>) {
    // The last program is interrupted first: a capture ends with an error if the port that it
    // watches is closed.
    for (name, mut tool) in going.drain(..).rev() {
        let pid = rustix::process::Pid::from_child(&tool);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let status = harness::wait(&mut tool, harness::PATIENCE).expect("it ends");
        // A sink that checks sequence numbers fails if it misses frames. It may miss some: its port
        // is not lossless.
        let good =
            matches!(status.code(), Some(0) | None) || name == "sink" && status.code() == Some(1);
        assert!(good, "{name}: {status}");
    }
}
