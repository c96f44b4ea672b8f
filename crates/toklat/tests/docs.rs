//! What the documents say, done as they say it.

mod daemon;

use std::fmt::Write as _;
use std::process::Command;

use daemon::{Daemon, skip};

fn document(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The lines of a document's blocks of this language.
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
    // Some of what they show.
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
    let names = daemon::text(&page).lines().filter_map(|line| line.strip_prefix("# TYPE "));
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
    let page = include_str!("../src/cli/manual/toklat-topology.5").replace("\\-", "-");
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
        assert!(page.contains(daemon::text(kind)), "{kind}");
    }
}
