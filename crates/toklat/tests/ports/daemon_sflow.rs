//! sFlow as a collector sees it, decoded by Wireshark's own decoder.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::{Daemon, kill_process, skip};
use serde_json::{Value, json};

/// Makes a socket for a collector. Returns its address as commands take it.
fn collector() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

/// Receives the datagrams that have arrived.
fn take(collector: &UdpSocket) -> Vec<Vec<u8>> {
    let mut buffer = [0; 2000];
    std::iter::from_fn(|| collector.recv(&mut buffer).ok().map(|n| buffer[..n].to_vec())).collect()
}

/// Writes datagrams as a capture of UDP to port 6343.
fn write_capture(file: &Path, datagrams: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 101] {
        bytes.extend(word.to_le_bytes());
    }
    for datagram in datagrams {
        let len = datagram.len() as u16 + 28;
        for word in [0, 0, u32::from(len), u32::from(len)] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([0x45, 0]);
        bytes.extend(len.to_be_bytes());
        bytes.extend([0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        for word in [40_000u16, 6343, len - 20, 0] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(datagram);
    }
    std::fs::write(file, bytes).unwrap();
}

/// Objective: Wireshark's decoder reads the samples and the counters of a real switch as they are
/// meant.
///
/// Steps: a switch that samples every frame; frames from a to b, floods, and to the sender itself;
/// what came is decoded.
#[test]
fn wireshark_decodes_the_samples_and_counters_of_a_switch() {
    let test = "wireshark_decodes_the_samples_and_counters_of_a_switch";
    if Command::new("tshark").arg("--version").output().is_err() {
        return skip(test, "tshark is missing; as root: apt-get install tshark");
    }
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]\n[switch.vale0.port.c]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let (socket, address) = collector();
    let options = ["--sflow-rate", "1", "--sflow-polling", "1"];
    let mut set = vec!["switch", "set", "vale0", "--sflow", &address];
    set.extend(options);
    daemon.done(&set);
    for to in [2, 9, 1] {
        send(&mut a, &frame(1, to, 7));
    }
    let mut datagrams = Vec::new();
    daemon.wait_for("samples and counters", |daemon| {
        datagrams.extend(take(&socket));
        daemon.get("/v1/switches/vale0")["sflow"]["samples"] == 3 && datagrams.len() >= 3
    });
    let file = daemon.dir().join("sflow.pcap");
    write_capture(&file, &datagrams);
    let args = ["-V", "-O", "sflow", "-r"];
    let output = Command::new("tshark").args(args).arg(&file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let interface = |port: &str| {
        let path = format!("/v1/switches/vale0/ports/{port}");
        daemon.get(&path)["sflow_interface"].as_u64().unwrap()
    };
    let (from, to) = (interface("a"), interface("b"));
    for line in [
        "InMon sFlow".to_owned(),
        "Agent address: 127.0.0.1".into(),
        "Sub-agent ID: 1".into(),
        "Flow sample".into(),
        "Sampling rate: 1 out of 1 packets".into(),
        format!("= Index: {from}"),
        format!("Input interface (ifIndex): {from}"),
        format!("= Output interface value: {to}"),
        "unknown number of interfaces greater than 1".into(),
        "= Output interface format: packet discarded (1)".into(),
        "Raw packet header".into(),
        "Header protocol: Ethernet".into(),
        "Frame Length: 68".into(),
        "Sampled header length: 64".into(),
        "Src: 02:00:00:00:00:01 (02:00:00:00:00:01), Dst: 02:00:00:00:00:02".into(),
        "Counters sample".into(),
        "Generic interface counters".into(),
        "Interface Type: 6".into(),
    ] {
        assert!(text.contains(&line), "no {line:?} in\n{text}");
    }
    assert!(!text.contains("Malformed") && !text.contains("_ws.expert"), "{text}");
    let shown = daemon.done(&["switch", "show", "vale0"]);
    assert!(
        shown.contains(&format!("sflow: to {address}, 1 in 1: 3 samples (0 missed)")),
        "{shown}"
    );
    let shown = daemon.done(&["port", "show", "vale0:a"]);
    assert!(shown.contains(&format!("sflow: interface {from}")), "{shown}");
    let metrics = daemon.get("/metrics");
    let samples = "toklat_sflow_samples_total{switch=\"vale0\"} 3";
    assert!(metrics.as_str().unwrap().contains(samples), "{metrics}");
}

/// Objective: sampling survives a restart of the data process and of the daemon, and ends on
/// request.
#[test]
fn a_switch_is_sampled_until_it_is_told_otherwise() {
    let mut daemon = Daemon::start();
    let (socket, address) = collector();
    daemon.apply(&format!(
        "[switch.vale0]\nsflow = \"{address}\"\nsflow_rate = 1\nsflow_polling_s = 3600\n\
         [switch.vale0.port.a]\n[switch.vale0.port.b]"
    ));
    let exported = daemon.done(&["export"]);
    assert!(exported.contains(&format!("sflow = \"{address}\"")), "{exported}");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    let mut sampled = |daemon: &mut Daemon, what: &str| {
        take(&socket);
        daemon.wait_for(what, |_| {
            until_traffic_flows(&mut a, &mut b, &mut number);
            // A flow sample is the first in its datagram, or the only one.
            take(&socket).iter().any(|datagram| datagram[28..32] == [0, 0, 0, 1])
        });
    };
    sampled(&mut daemon, "samples");
    kill_process(daemon.data_process("vale0"));
    sampled(&mut daemon, "samples of the successor");
    daemon.kill();
    daemon.start_again();
    sampled(&mut daemon, "samples of the next daemon");
    daemon.done(&["switch", "set", "vale0", "--sflow", "none"]);
    assert_eq!(daemon.get("/v1/switches/vale0")["sflow"], Value::Null);
    take(&socket);
    until_traffic_flows(&mut a, &mut b, &mut number);
    assert_eq!(take(&socket), Vec::<Vec<u8>>::new());
    // The sampling rate stays when the collector is removed.
    let topology = daemon.get("/v1/topology");
    assert_eq!(topology["switch"]["vale0"]["sflow_rate"], json!(1));
}

/// Objective: a collector that is not there costs the switch nothing, and the operator is told.
#[test]
fn a_collector_that_does_not_answer_costs_no_frame() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]\nlossless = true");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    // The collector's socket is closed, so sending may fail, or may be ignored.
    let (socket, address) = collector();
    drop(socket);
    daemon.done(&["switch", "set", "vale0", "--sflow", &address, "--sflow-rate", "1"]);
    let (first, mut got) = (number + 1, 0u64);
    let mut sent = 0u64;
    daemon.wait_for("every frame", |_| {
        while sent < 20_000 && a.send(1).push(&frame(1, 2, first + sent)) {
            sent += 1;
        }
        a.flush().unwrap();
        got += receive(&mut b).into_iter().filter(|seen| *seen >= first).count() as u64;
        got == 20_000
    });
    assert_eq!(daemon.counters("a")["in_drops"], json!({}));
    daemon.wait_for("refusals to be counted", |daemon| {
        let sflow = &daemon.get("/v1/switches/vale0")["sflow"];
        sflow["refused"].as_u64().unwrap() > 0
    });
    // If there is no route to the collector's address, the daemon reports that and does not wait.
    let (status, body) =
        daemon.ask("PATCH", "/v1/switches/vale0", &json!({ "sflow": "255.255.255.255" }));
    assert_eq!(status, 200, "{body}");
    daemon.wait_for("the reason", |daemon| {
        daemon.get("/v1/switches/vale0")["sflow"]["failure"].is_string()
    });
    for bad in [json!({"sflow": "collector"}), json!({"sflow_rate": 0}), json!({"sflow": 7})] {
        assert_eq!(daemon.ask("PATCH", "/v1/switches/vale0", &bad).0, 400, "{bad}");
    }
}
