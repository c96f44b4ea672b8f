//! A running guest moves from one host to another: two switches, which know each other by EVPN.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use harness::guests::can_run;
use harness::namespace::Namespace;
use harness::routers::{NEIGHBOR, Router, evpn_lines, gobgpd, reflector, tap_lines};
use harness::underlay::{Underlay, ip, pings};
use harness::{Daemon, PATIENCE, wait_until};
use lab::hosts::NEVER;
use lab::hosts::migration::{MAC, Moving, Place};
use lab::hosts::pings::{Pings, WORDS};
use serde_json::{Value, json};
use vm::Backend;

const GUEST: &str = "192.168.7.9";

/// Hosts 1, 3 and 4 are toklat's, host 2 the reflector. A station at host 1 looks on; a guest is to
/// move from 3 to 4.
struct Fabric {
    first: Daemon,
    looker: Namespace,
    others: [Daemon; 2],
    _reflector: Router,
    _underlay: Underlay,
}

impl Fabric {
    fn new() -> Result<Self, &'static str> {
        let (program, underlay) = (gobgpd()?.display().to_string(), Underlay::new(4)?);
        let clients = ["10.99.0.1", "10.99.0.3", "10.99.0.4"];
        let reflector = reflector(&underlay.hosts[1], "10.99.0.2", &clients)?;
        let looker = Namespace::new()?;
        let start = |number: usize, more: &str| {
            let daemon = Daemon::start();
            daemon.end_with_this_process();
            let lines = evpn_lines(number, &program, &underlay.hosts[number - 1], NEIGHBOR);
            daemon.apply(&(lines + more));
            daemon
        };
        let first = start(1, &tap_lines(&looker));
        let others = [start(3, ""), start(4, "")];
        ip(&looker, "address add 192.168.7.1/24 dev tap-vale0");
        let mut fabric = Self { first, looker, others, _reflector: reflector, _underlay: underlay };
        fabric.first.wait_for("both hosts", |daemon| {
            let vteps = daemon.get("/v1/evpn")["vteps"].as_array().unwrap().clone();
            vteps.iter().filter(|vtep| vtep["floods"] == true).count() == 2
        });
        Ok(fabric)
    }

    /// Ports for the guest at both hosts; the backend of QEMU for a port with this socket.
    fn places(&self, kind: &str, backend: fn(PathBuf) -> Backend) -> [Place; 2] {
        [0, 1].map(|n| {
            let socket = self.others[n].dir().join(format!("{kind}.sock"));
            let path = if kind == "stream" { "address" } else { "path" };
            let port = json!({ "name": "vm", "mtu": 1400, "kind": { kind: { path: socket } } });
            let answer = self.others[n].ask("POST", "/v1/switches/vale0/ports", &port);
            assert_eq!(answer.0, 201, "{answer:?}");
            Place { backend: backend(socket), prefix: Vec::new() }
        })
    }

    /// Waits until the first host knows that the guest is behind the host with this name.
    fn wait_for_guest_at(&mut self, host: &str) {
        let mac = MAC.to_string();
        self.first.wait_for(&format!("the guest at {host}"), |daemon| {
            let macs = daemon.get("/v1/evpn/macs");
            macs.as_array().unwrap().iter().any(|info| info["mac"] == *mac && info["host"] == host)
        });
    }
}

fn fabric(test: &str) -> Option<Fabric> {
    if !can_run(test) {
        return None;
    }
    Fabric::new().inspect_err(|why| harness::skip(test, why)).ok()
}

/// Reads numbers, each one more than the last, and stores the newest in `last`.
fn read_numbers(stream: TcpStream, last: &AtomicU32) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let number: u32 = line.parse().unwrap();
        assert_eq!(last.swap(number, Ordering::Relaxed) + 1, number, "each line comes once");
    }
}

/// Objective: a guest keeps its TCP connection and is soon reached again as it moves to another
/// host, at a vhost-user port as at a stream port.
///
/// Steps: a station at a third host pings the guest and reads numbers that it sends; it moves; more
/// numbers come over the same connection; the third host has it behind the other one.
#[test]
fn a_guest_that_moves_to_another_host_keeps_its_connection() {
    let test = "a_guest_that_moves_to_another_host_keeps_its_connection";
    for (kind, backend) in
        [("vhost_user", Backend::VhostUser as fn(PathBuf) -> Backend), ("stream", Backend::Stream)]
    {
        let Some(mut fabric) = fabric(test) else { return };
        let places = fabric.places(kind, backend);
        keeps_its_connection(&mut fabric, &places);
    }
}

fn keeps_its_connection(fabric: &mut Fabric, places: &[Place; 2]) {
    let at: SocketAddr = "192.168.7.1:5000".parse().unwrap();
    let listener = fabric.looker.enter(|| TcpListener::bind(at).unwrap());
    let commands = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done | nc 192.168.7.1 5000";
    let dir = tempfile::tempdir().unwrap();
    let address = format!("{GUEST}/24");
    let mut guest = Moving::boot(dir.path(), places, (&address, commands), &NEVER).unwrap();
    let last = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (stream, _) = listener.accept().unwrap();
        let end = stream.try_clone().unwrap();
        let reader = scope.spawn(|| read_numbers(stream, &last));
        assert!(pings(&fabric.looker, GUEST), "{}", fabric.first.log());
        let words: Vec<&str> = WORDS.split(' ').chain([GUEST]).collect();
        let pings_on = Pings::start(&mut fabric.looker.command(&words)).unwrap();
        wait_until("numbers", || last.load(Ordering::Relaxed) > 5);
        let runs_since = guest.go().unwrap();
        let before = last.load(Ordering::Relaxed);
        wait_until("numbers after the move", || last.load(Ordering::Relaxed) > before + 10);
        fabric.wait_for_guest_at("10.99.0.4");
        assert!(pings(&fabric.looker, GUEST));
        let now = last.load(Ordering::Relaxed);
        wait_until("traffic after the last pings", || last.load(Ordering::Relaxed) > now + 5);
        let lost = pings_on.end().unwrap().lost_from(runs_since).unwrap();
        assert!(lost <= 200, "{lost} pings at 10 ms once it ran there");
        end.shutdown(std::net::Shutdown::Both).unwrap();
        reader.join().unwrap();
    });
}

/// Objective: a guest that says nothing is announced where it has moved to.
///
/// Steps: the guest says one frame and is silent; it moves; nothing asks for it, and the third host
/// has it behind the other one.
#[test]
fn a_silent_guest_is_announced_where_it_has_moved_to() {
    let test = "a_silent_guest_is_announced_where_it_has_moved_to";
    let Some(mut fabric) = fabric(test) else { return };
    let places = fabric.places("vhost_user", Backend::VhostUser);
    let commands = format!(
        "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; arping -U -c 1 -I eth0 {GUEST}; \
         echo toklat-guest: silent; while :; do sleep 100; done"
    );
    let dir = tempfile::tempdir().unwrap();
    let address = format!("{GUEST}/24");
    let mut guest = Moving::boot(dir.path(), &places, (&address, &commands), &NEVER).unwrap();
    guest.says(0, "toklat-guest: silent", &NEVER).unwrap();
    fabric.wait_for_guest_at("10.99.0.3");
    guest.go().unwrap();
    fabric.wait_for_guest_at("10.99.0.4");
    // The guest's first host has withdrawn its route.
    fabric.others[0].wait_for("the guest elsewhere", |daemon| {
        let macs: Value = daemon.get("/v1/evpn/macs");
        let mac = MAC.to_string();
        macs.as_array()
            .unwrap()
            .iter()
            .any(|info| info["mac"] == *mac && info["host"] == "10.99.0.4")
    });
}
