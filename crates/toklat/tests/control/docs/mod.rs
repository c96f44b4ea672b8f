//! The commands of README and the documents, which are run as they are written, or listed with the
//! reason why they are not (`docs/tables.rs`); and whether the documents are complete.

mod hosts;
mod machines;
mod matching;
mod options;
mod session;
mod shell;
mod step;
mod tables;
mod text;

use std::collections::BTreeSet;
use std::process::Command;

use harness::{Daemon, artifacts, library, root, skip};
use session::Session;
use tables::DOCUMENTS;

fn document(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

/// The commands of a document, each with its step.
fn steps_of(name: &str) -> Vec<(step::Step, Option<text::Command>)> {
    let text = document(name);
    // The examples' commands are in a table.
    let commands = match name {
        "examples/README.md" => text::inline(&text, &["cargo", "toklat"]),
        _ => text::commands(&text),
    };
    let (_, table) = DOCUMENTS.iter().find(|(document, _)| *document == name).expect(name);
    matching::match_up(name, &commands, table).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Runs the commands of a document.
fn run(test: &str, name: &str) -> Option<Session> {
    session::run(test, name, &steps_of(name))
}

/// Objective: no command of README, of the documents or of the examples' page is left out.
///
/// Each is run here, by a test that exists, or is listed with the reason why it cannot be run; and
/// each entry of the lists is in its document.
#[test]
fn every_command_of_the_documents_is_run_or_listed_with_its_reason() {
    let on_disk = root().join("docs").read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let on_disk = on_disk.map(|name| format!("docs/{}", name.to_str().unwrap()));
    let mut on_disk: BTreeSet<_> = on_disk.filter(|name| name.ends_with(".md")).collect();
    on_disk.extend(["README.md".into(), "examples/README.md".into()]);
    assert_eq!(on_disk, DOCUMENTS.iter().map(|(name, _)| (*name).to_owned()).collect());
    let mut tests = BTreeSet::new();
    matching::names_of_tests(root(), &mut tests);
    for (name, table) in DOCUMENTS {
        steps_of(name);
        assert_eq!(matching::missing_tests(table, &tests), [""; 0], "{name}: no such tests");
    }
}

/// Objective: the documents name no command of ours that there is not, and no option.
///
/// An option that stands alone may be any command's. Others' words that look like ours are listed.
#[test]
fn commands_and_options_that_the_documents_name_exist() {
    const OF_OTHERS: [(&str, &str); 5] = [
        ("README.md", "--root DIR"),
        ("docs/cards.md", "toklat host"),
        ("docs/guests.md", "--bidir"),
        ("docs/programs.md", "--privileged"),
        ("docs/programs.md", "--send-eth"),
    ];
    let cli = options::Cli::new();
    let more = ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    let mut wrong = Vec::new();
    for name in DOCUMENTS.iter().map(|(name, _)| *name).chain(more) {
        let spans = text::spans(&document(name)).into_iter();
        let spans = spans.filter(|span| !OF_OTHERS.contains(&(name, span.text.as_str())));
        let faults = spans.filter_map(|span| Some((span.line, cli.fault(&span.text)?)));
        wrong.extend(faults.map(|(line, fault)| format!("{name}:{line}: {fault}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Objective: the README is short, and its commands do what it says, as they stand and in their
/// order.
#[test]
fn the_readme_is_short_and_its_commands_run() {
    let lines = document("README.md").lines().count();
    assert!(lines <= 120, "{lines}");
    run("the_readme_is_short_and_its_commands_run", "README.md");
}

#[test]
fn the_examples_of_the_api_run_as_they_stand() {
    let test = "the_examples_of_the_api_run_as_they_stand";
    if Command::new("curl").arg("--version").output().is_err() {
        return skip(test, "curl is missing");
    }
    let session = run(test, "docs/api.md").expect("it needs no rights");
    assert_eq!(session.daemon.get("/v1/switches"), serde_json::json!([]), "the last one tidies up");
}

#[test]
fn the_examples_page_s_commands_run() {
    for name in ["sink", "bridge", "inline"] {
        artifacts::program_of("toklat-examples", name);
    }
    run("the_examples_page_s_commands_run", "examples/README.md");
}

#[test]
fn the_commands_about_cards_run() {
    run("the_commands_about_cards_run", "docs/cards.md");
}

#[test]
fn the_commands_about_confined_guests_run() {
    artifacts::example("toklat-guest", "dns");
    run("the_commands_about_confined_guests_run", "docs/confined-guests.md");
}

#[test]
fn the_commands_about_containers_run() {
    run("the_commands_about_containers_run", "docs/containers.md");
}

/// Objective: the nine tasks of day two are done by the commands that the document has for them.
#[test]
fn the_nine_tasks_of_day_two_are_done_by_their_commands() {
    run("the_nine_tasks_of_day_two_are_done_by_their_commands", "docs/day-two.md");
}

#[test]
fn the_commands_about_guests_run() {
    for name in ["httpd", "any-nic", "hyper-httpd", "rpc-server", "rpc-load"] {
        artifacts::example("toklat-guest", name);
    }
    run("the_commands_about_guests_run", "docs/guests.md");
}

#[test]
fn the_commands_about_simulations_run() {
    run("the_commands_about_simulations_run", "docs/sim.md");
}

#[test]
fn the_commands_about_many_hosts_run() {
    run("the_commands_about_many_hosts_run", "docs/many-hosts.md");
}

#[test]
fn the_commands_about_links_monitoring_and_trusted_switches_run() {
    let test = "the_commands_about_links_monitoring_and_trusted_switches_run";
    run(test, "docs/links.md");
    run(test, "docs/monitoring.md");
    run(test, "docs/trusted.md");
}

#[test]
fn the_commands_about_programs_run() {
    library();
    run("the_commands_about_programs_run", "docs/programs.md");
    run("the_commands_about_programs_run", "docs/netmap.md");
}

#[test]
fn the_commands_about_virtual_machines_run() {
    run("the_commands_about_virtual_machines_run", "docs/virtual-machines.md");
}

#[test]
fn every_metric_is_in_the_document_on_monitoring() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.p1]");
    let page = daemon.get("/metrics");
    let text = document("docs/monitoring.md");
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
    let pages = tempfile::tempdir().unwrap();
    daemon.done(&["man", pages.path().to_str().unwrap()]);
    let page = std::fs::read_to_string(pages.path().join("toklat-topology.5")).unwrap();
    let page = page.replace("\\-", "-");
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
