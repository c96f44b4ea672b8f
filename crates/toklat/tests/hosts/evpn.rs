//! EVPN between toklat, GoBGP as a route reflector, and Linux with FRR, in network namespaces.

use harness::namespace::Namespace;
use harness::routers::{
    Linux, NEIGHBOR, Router, THEIRS, evpn_lines, gobgpd, linux_sends_to, reflector, tap_lines,
};
use harness::underlay::{Underlay, ip, pings};
use harness::{Daemon, wait_until};
use serde_json::{Value, json};

const STATION: &str = "02:00:00:00:07:01";

/// Host 1 is toklat's, host 2 the reflector, host 3 Linux with FRR.
struct Fabric {
    daemon: Daemon,
    guest: Namespace,
    underlay: Underlay,
    _reflector: Router,
    linux: Linux,
}

impl Fabric {
    fn new() -> Result<Self, &'static str> {
        let program = gobgpd()?;
        let underlay = Underlay::new(3)?;
        let reflector = reflector(&underlay.hosts[1], "10.99.0.2", &["10.99.0.1", "10.99.0.3"])?;
        let linux = Linux::start(&underlay.hosts[2], "10.99.0.3", "10.99.0.2", "192.168.7.3/24")?;
        let guest = Namespace::new()?;
        let daemon = Daemon::start();
        daemon.end_with_this_process();
        daemon.apply(&topology_of(1, &program.display().to_string(), &underlay, &guest));
        ip(&guest, &format!("link set tap-vale0 address {STATION}"));
        ip(&guest, "address add 192.168.7.1/24 dev tap-vale0");
        Ok(Self { daemon, guest, underlay, _reflector: reflector, linux })
    }

    fn linux(&self) -> &Namespace {
        &self.underlay.hosts[2]
    }

    /// Waits until both hosts know the other's stations, and pings.
    fn converge(&mut self) {
        self.daemon.wait_for("the neighbour", |daemon| {
            let evpn = daemon.get("/v1/evpn");
            evpn["neighbors"][0]["state"] == "established" && evpn["vteps"][0]["floods"] == true
        });
        assert!(pings(&self.guest, "192.168.7.3"), "{}", self.daemon.log());
    }

    fn gobgpd(&self) -> i32 {
        // The process is the one that listens at the socket.
        let socket = self.daemon.dir().join("evpn/gobgp.sock");
        let socket = std::os::unix::net::UnixStream::connect(socket).unwrap();
        rustix::net::sockopt::socket_peercred(&socket).unwrap().pid.as_raw_nonzero().get()
    }

    /// Pings for a while every 10 ms, calls `what` meanwhile, and returns how many pings were lost.
    fn lost_while(&mut self, what: impl FnOnce(&mut Self)) -> u32 {
        let args = ["ping", "-n", "-q", "-i", "0.01", "-c", "600", "-W", "1", "192.168.7.3"];
        let child = self.guest.command(&args).stdout(std::process::Stdio::piped()).spawn().unwrap();
        what(self);
        let said = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let number = |word: &str| -> u32 {
            let before = said.split(word).next().unwrap();
            before.split([' ', '\n']).rfind(|w| !w.is_empty()).unwrap().parse().unwrap()
        };
        number(" packets transmitted") - number(" received")
    }
}

/// The topology of host `number`, counted from 1, with one guest.
fn topology_of(number: usize, program: &str, underlay: &Underlay, guest: &Namespace) -> String {
    let host = &underlay.hosts[number - 1];
    format!("{}\n{}", evpn_lines(number, program, host, NEIGHBOR), tap_lines(guest))
}

fn fabric(test: &str) -> Option<Fabric> {
    Fabric::new().inspect_err(|why| harness::skip(test, why)).ok()
}

fn fdb_kind(daemon: &Daemon, mac: &str) -> Option<String> {
    let table = daemon.get("/v1/switches/vale0/fdb");
    let entry = table.as_array()?.iter().find(|entry| entry["mac"] == mac)?;
    Some(entry["origin"].as_str()?.to_owned())
}

/// Objective: stations of one are known to the other by routes, and frames pass.
///
/// Steps: a guest and Linux ping; each has the other in its table by a route; a station that speaks
/// at Linux speaks here, while Linux still advertises it, and then at Linux again.
#[test]
fn linux_with_frr_and_toklat_know_each_others_stations_and_their_moves() {
    let test = "linux_with_frr_and_toklat_know_each_others_stations_and_their_moves";
    let Some(mut fabric) = fabric(test) else { return };
    fabric.converge();
    wait_until("entry at Linux", || {
        linux_sends_to(fabric.linux(), STATION).as_deref() == Some("10.99.0.1")
    });
    fabric
        .daemon
        .wait_for("entry here", |daemon| fdb_kind(daemon, THEIRS).as_deref() == Some("remote"));
    let macs = fabric.daemon.get("/v1/evpn/macs");
    let of = |mac: &str| macs.as_array().unwrap().iter().find(|m| m["mac"] == mac).unwrap().clone();
    assert_eq!((&of(THEIRS)["host"], &of(STATION)["host"]), (&json!("10.99.0.3"), &Value::Null));
    // This station sends nothing by itself. FRR takes no routes for addresses of its own
    // interfaces.
    let mac = "02:00:00:00:09:09";
    let there = &fabric.linux.station;
    ip(fabric.linux(), &format!("link add m0 type veth peer name m1 netns {}", there.id()));
    ip(fabric.linux(), "link set m0 master br100 up");
    ip(there, "link set m1 addrgenmode none");
    ip(there, &format!("link set m1 address {mac} up"));
    let speak = |host: &Namespace, device: &str| {
        let args = ["arping", "-q", "-c", "1", "-w", "1", "-0", "-i", device, "192.168.7.250"];
        host.command(&args).output().unwrap();
    };
    let here = |daemon: &Daemon, host: &Value| {
        let macs = daemon.get("/v1/evpn/macs");
        macs.as_array().unwrap().iter().any(|m| m["mac"] == mac && m["host"] == *host)
    };
    wait_until("station at Linux", || {
        speak(there, "m1");
        here(&fabric.daemon, &json!("10.99.0.3"))
    });
    ip(&fabric.guest, &format!("link add link tap-vale0 name mv address {mac} type macvlan"));
    ip(&fabric.guest, "link set mv up");
    wait_until("station here", || {
        speak(&fabric.guest, "mv");
        here(&fabric.daemon, &Value::Null)
            && linux_sends_to(fabric.linux(), mac).as_deref() == Some("10.99.0.1")
    });
    ip(&fabric.guest, "link del mv");
    wait_until("station at Linux again", || {
        speak(there, "m1");
        here(&fabric.daemon, &json!("10.99.0.3"))
            && fdb_kind(&fabric.daemon, mac).as_deref() == Some("remote")
    });
    let tunnel = fabric.daemon.get("/v1/switches/vale0/ports/fabric")["tunnel"].clone();
    assert_eq!(tunnel["peers"][0]["address"], "10.99.0.3", "{tunnel}");
    assert_eq!(tunnel["inner_mtu"], 1450);
}

#[test]
fn no_death_of_a_daemon_costs_known_stations_frames() {
    let test = "no_death_of_a_daemon_costs_known_stations_frames";
    let Some(mut fabric) = fabric(test) else { return };
    fabric.converge();
    wait_until("entry at Linux", || linux_sends_to(fabric.linux(), STATION).is_some());
    let lost = fabric.lost_while(|fabric| {
        let before = fabric.gobgpd();
        harness::kill_process(before);
        fabric.daemon.wait_for("another gobgpd", |daemon| {
            let evpn = daemon.get("/v1/evpn");
            evpn["restarts"] == 1 && evpn["neighbors"][0]["state"] == "established"
        });
        assert_ne!(fabric.gobgpd(), before);
    });
    assert_eq!(lost, 0, "as gobgpd died");
    assert!(linux_sends_to(fabric.linux(), STATION).is_some());
    let before = fabric.gobgpd();
    let lost = fabric.lost_while(|fabric| {
        fabric.daemon.kill();
        fabric.daemon.start_again();
        fabric.daemon.wait_for("EVPN again", |daemon| {
            daemon.get("/v1/evpn")["neighbors"][0]["state"] == "established"
        });
    });
    assert_eq!((lost, fabric.gobgpd()), (0, before), "as the supervisor died; the same gobgpd");
    let lost = fabric.lost_while(|fabric| {
        let before = fabric.daemon.data_process("vale0");
        harness::kill_process(before);
    });
    assert!(lost <= 100, "{lost} at 10 ms as the data process died");
    assert!(pings(&fabric.guest, "192.168.7.3"));
    // The routing daemon ends with the toklat daemon when the latter is told to stop.
    fabric.daemon.stop(&json!({}));
    wait_until("end of gobgpd", || {
        rustix::process::test_kill_process(rustix::process::Pid::from_raw(before).unwrap()).is_err()
    });
}

/// Objective: each VLAN of a tunnel is a segment of its own, with routes of its own, beside FRR.
///
/// Steps: a tunnel of one segment is changed to one of two VLANs, of which the second is new at
/// both ends; guests and machines at Linux ping in both; the same address is a station of both;
/// the data process and the daemon are killed; one segment gives way to another.
#[test]
fn vlans_of_a_tunnel_are_segments_of_their_own_to_frr() {
    let test = "vlans_of_a_tunnel_are_segments_of_their_own_to_frr";
    let Some(mut fabric) = fabric(test) else { return };
    fabric.converge();
    let (guest, there) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let host = &fabric.underlay.hosts[2];
    ip(host, "link add br200 type bridge");
    ip(host, "link add vx200 type vxlan id 200 local 10.99.0.3 dstport 4789 nolearning");
    ip(host, "link set vx200 master br200");
    ip(host, "link set vx200 type bridge_slave neigh_suppress on learning off");
    for link in ["br200", "vx200"] {
        ip(host, &format!("link set {link} addrgenmode none"));
        ip(host, &format!("link set {link} mtu 1400 up"));
    }
    ip(host, &format!("link add q1 type veth peer name q0 netns {}", there.id()));
    ip(host, "link set q1 master br200 up");
    ip(&there, "address add 192.168.8.3/24 dev q0");
    // The same address as the station's in the other segment.
    ip(&there, &format!("link set q0 address {THEIRS} mtu 1400 up"));
    let program = gobgpd().unwrap().display().to_string();
    let net = topology_of(1, &program, &fabric.underlay, &fabric.guest)
        .replace("vni = 100", r#"vlans = { "10" = 100, "20" = 200 }"#)
        .replace("mtu = 1400", "mtu = 1400\nvlan.access = 10");
    let more = format!(
        r#"[switch.vale0.port.other]
        mtu = 1400
        vlan.access = 20
        kind = {{ tap = {{ ifname = "other", netns = "{}" }} }}"#,
        guest.id()
    );
    fabric.daemon.apply(&format!("{net}\n{more}"));
    ip(&guest, &format!("link set other address {STATION}"));
    ip(&guest, "address add 192.168.8.1/24 dev other");
    let reach = |fabric: &Fabric, when: &str| {
        assert!(pings(&fabric.guest, "192.168.7.3"), "{when}: {}", fabric.daemon.log());
        assert!(pings(&guest, "192.168.8.3"), "{when}: {}", fabric.daemon.log());
    };
    fabric.daemon.wait_for("hosts of both segments", |daemon| {
        let evpn = daemon.get("/v1/evpn");
        let vteps = evpn["vteps"].as_array().unwrap();
        let floods = |vni: u32| vteps.iter().any(|v| v["vni"] == vni && v["floods"] == true);
        floods(100) && floods(200)
    });
    reach(&fabric, "at first");
    fabric.daemon.wait_for("stations of both segments", |daemon| {
        let macs = daemon.get("/v1/evpn/macs");
        let has = |vni: u32, mac: &str, host: Value| {
            let its = |m: &&Value| m["vni"] == vni && m["mac"] == mac && m["host"] == host;
            macs.as_array().unwrap().iter().find(its).is_some()
        };
        [100, 200]
            .iter()
            .all(|vni| has(*vni, STATION, Value::Null) && has(*vni, THEIRS, json!("10.99.0.3")))
    });
    wait_until("both at Linux", || {
        ["vx100", "vx200"].iter().all(|device| {
            let table = fabric.linux().run(&["bridge", "fdb", "show", "dev", device]);
            table.lines().any(|line| line.starts_with(STATION) && line.contains("dst 10.99.0.1"))
        })
    });
    let entries = |daemon: &Daemon| {
        let table = daemon.get("/v1/switches/vale0/fdb");
        let far = table.as_array().unwrap().iter().filter(|e| e["mac"] == THEIRS);
        let mut all: Vec<_> = far
            .map(|e| (e["vlan"].as_u64().unwrap(), e["origin"].as_str().unwrap().to_owned()))
            .collect();
        all.sort_unstable();
        all
    };
    let remote = |vlan| (vlan, "remote".to_owned());
    assert_eq!(entries(&fabric.daemon), [remote(10), remote(20)]);
    let before = fabric.daemon.data_process("vale0");
    harness::kill_process(before);
    fabric.daemon.wait_for("another data process", |daemon| {
        let info = daemon.get("/v1/switches/vale0");
        info["state"] == "running" && info["pid"] != before
    });
    reach(&fabric, "after the data process");
    fabric.daemon.kill();
    fabric.daemon.start_again();
    reach(&fabric, "after the daemon");
    assert_eq!(entries(&fabric.daemon), [remote(10), remote(20)]);
    // The tunnel is replaced for one segment's sake: the other has its hosts and stations again.
    fabric.daemon.apply(&format!("{net}\n{more}").replace("\"20\" = 200", "\"20\" = 300"));
    fabric.daemon.wait_for("the stations of the segment that stays", |daemon| {
        entries(daemon) == [remote(10)]
    });
    assert!(pings(&fabric.guest, "192.168.7.3"), "{}", fabric.daemon.log());
}

/// Objective: a question for an address of another host's station is answered at the tunnel.
///
/// Steps: two toklats learn each other's stations with their addresses; the other guest falls
/// silent; an address is asked for that this guest has forgotten, and one that no station has.
#[test]
fn questions_for_addresses_of_another_host_are_answered_here() {
    let test = "questions_for_addresses_of_another_host_are_answered_here";
    let make = || -> Result<_, &'static str> {
        let (program, underlay) = (gobgpd()?, Underlay::new(3)?);
        let reflector = reflector(&underlay.hosts[1], "10.99.0.2", &["10.99.0.1", "10.99.0.3"])?;
        let guests = [Namespace::new()?, Namespace::new()?];
        Ok((program.display().to_string(), underlay, reflector, guests))
    };
    let (program, underlay, _reflector, guests) = match make() {
        Ok(made) => made,
        Err(why) => return harness::skip(test, why),
    };
    let mut daemons = [1, 3].map(|number| {
        let (daemon, guest) = (Daemon::start(), &guests[number / 2]);
        daemon.end_with_this_process();
        daemon.apply(&topology_of(number, &program, &underlay, guest));
        ip(guest, &format!("address add 192.168.7.{number}/24 dev tap-vale0"));
        daemon
    });
    assert!(pings(&guests[0], "192.168.7.3"), "{}", daemons[0].log());
    daemons[0].wait_for("the route with the address", |daemon| {
        let routes = daemon.get("/v1/evpn/routes");
        let has = |route: &Value| route["ip"] == "192.168.7.3" && route["used"] == true;
        routes.as_array().unwrap().iter().any(has)
    });
    ip(&guests[1], "link set tap-vale0 down");
    let knows = |address: &str| {
        let _ = guests[0].command(&["ping", "-n", "-c", "1", "-W", "1", address]).output();
        guests[0].run(&["ip", "neigh", "show", address]).contains("lladdr")
    };
    wait_until("answer for a silent guest", || {
        ip(&guests[0], "neigh flush all");
        knows("192.168.7.3")
    });
    assert!(!knows("192.168.7.99"), "no station has it");
}
