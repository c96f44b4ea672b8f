//! `toklat uplink`: guests get addresses, reach a server and each other, and can be reached;
//! passts and the switch may end meanwhile.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Stdio};

use harness::guests::{Guest, PATIENCE, can_run};
use harness::namespace::Namespace;
use harness::passt::{SERVER, lease, serve, world};
use harness::stack::{body, head};
use harness::underlay::Underlay;
use harness::{Daemon, kill_process, skip, wait};

const PAGE: &[u8] = b"a page of the world\n";

/// `toklat uplink` in the world.
fn uplink(daemon: &Daemon, world: &Namespace, args: &[&str]) -> Child {
    let program = [env!("CARGO_BIN_EXE_toklat"), "--dir", daemon.dir().to_str().unwrap(), "uplink"];
    let mut command = world.command(&[&program, args].concat());
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// The passts that an uplink has started.
fn passts(uplink: &Child) -> Vec<i32> {
    let children = format!("/proc/{0}/task/{0}/children", uplink.id());
    let children = std::fs::read_to_string(children).unwrap_or_default();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A passt gains no privilege, leaves no core file, and has no descriptor of the uplink's port.
fn assert_confined(passt: i32) {
    let of = |file: &str| std::fs::read_to_string(format!("/proc/{passt}/{file}")).unwrap();
    assert!(of("status").contains("NoNewPrivs:\t1"), "{}", of("status"));
    let core = of("limits").lines().find(|line| line.starts_with("Max core")).unwrap().to_owned();
    assert_eq!(core.split_whitespace().filter(|word| *word == "0").count(), 2, "{core}");
    let descriptors = std::fs::read_dir(format!("/proc/{passt}/fd")).unwrap();
    let leads = |fd: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(fd.unwrap().path()).unwrap().to_string_lossy().into_owned()
    };
    let memory: Vec<_> = descriptors.map(leads).filter(|to| to.contains("memfd")).collect();
    assert!(memory.is_empty(), "{memory:?}");
}

fn answer(mut stream: TcpStream) {
    let mut asked = [0; 4096];
    if stream.read(&mut asked).is_ok() {
        let _ = stream.write_all(&[head(PAGE.len()).as_bytes(), PAGE].concat());
    }
    let _ = stream.read(&mut asked);
}

/// A namespace with a web page, and a daemon with a switch. `None` if the test is skipped.
fn set_up(test: &str) -> Option<(Namespace, Daemon)> {
    if !can_run(test) {
        return None;
    }
    let world = world().inspect_err(|why| skip(test, why)).ok()?;
    serve(&world, 7000, answer);
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    Some((world, daemon))
}

/// Returns what a guest serves at its port 80, read through port 8080 of the world.
fn page_of_guest(world: &Namespace) -> Option<Vec<u8>> {
    let to = (Ipv4Addr::LOCALHOST, 8080);
    let mut stream = world.enter(|| TcpStream::connect(to)).ok()?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    stream.write_all(b"GET /name HTTP/1.0\r\n\r\n").ok()?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    // A passt of the year 2023 does not always forward the end of a connection.
    while let Ok(got @ 1..) = stream.read(&mut piece) {
        answer.extend(&piece[..got]);
        if body(&answer).is_some_and(|body| !body.is_empty()) {
            break;
        }
    }
    body(&answer).map(<[u8]>::to_vec)
}

/// Objective: one command connects all guests of a switch to the outside.
///
/// Steps: two guests get addresses of their own by DHCP, load a page from a server in another
/// namespace, and reach each other; the host reaches the second one's server at a forwarded port;
/// one guest's passt is killed, and it gets out again, as does the other; the switch goes, and with
/// it the uplink and its passts.
#[test]
fn guests_get_addresses_and_a_way_out_by_one_command() {
    let test = "guests_get_addresses_and_a_way_out_by_one_command";
    let Some((world, mut daemon)) = set_up(test) else { return };
    // The uplink does not create a switch by mistake.
    let mut wrong = uplink(&daemon, &world, &["vael0"]);
    assert_eq!(wait(&mut wrong, PATIENCE).and_then(|status| status.code()), Some(1));
    let mut out = uplink(&daemon, &world, &["vale0", "-p", "8080:10.0.2.16:80"]);
    daemon.wait_for("the uplink", |daemon| {
        daemon.json(&["port", "show"]).as_array().is_some_and(|ports| !ports.is_empty())
    });
    let [script, lease] = lease();
    let load = format!("timeout 10 wget -q -O - http://{SERVER}:7000/ | grep -q 'of the world'");
    let commands = |other: &str| {
        format!(
            "{script}; until {lease}; do sleep 0.2; done; \
             mkdir /w; ip -4 addr show dev eth0 | grep -o '10.0.2.[0-9]*/' >/w/name; \
             httpd -h /w; until {load}; do sleep 0.2; done; echo toklat-guest: loaded; \
             until ping -c 1 -W 1 {other} >/dev/null; do sleep 0.2; done; echo toklat-guest: met; \
             while :; do {load} && echo toklat-guest: again; sleep 0.2; done"
        )
    };
    let mut a = Guest::boot(&daemon, "a", 1, &[], &commands("10.0.2.16"));
    a.says("leased 10.0.2.15/24 of 10.0.2.1");
    let mut b = Guest::boot(&daemon, "b", 2, &[], &commands("10.0.2.15"));
    b.says("leased 10.0.2.16/24 of 10.0.2.1");
    for guest in [&mut a, &mut b] {
        guest.says("toklat-guest: loaded");
        guest.says("toklat-guest: met");
    }
    daemon.wait_for("the forwarded port", |_| {
        page_of_guest(&world).is_some_and(|page| page.starts_with(b"10.0.2.16/"))
    });
    let before = passts(&out);
    assert_eq!(before.len(), 2);
    before.iter().for_each(|passt| assert_confined(*passt));
    kill_process(before[0]);
    daemon.wait_for("another passt", |_| {
        let now = passts(&out);
        now.len() == 2 && !now.contains(&before[0])
    });
    for guest in [&mut a, &mut b] {
        guest.says("toklat-guest: again");
    }
    let left = passts(&out);
    drop((a, b));
    daemon.done(&["switch", "rm", "vale0"]);
    assert_eq!(wait(&mut out, PATIENCE).and_then(|status| status.code()), Some(1));
    for passt in left {
        daemon.wait_for("a passt to be gone", |_| !harness::is_alive(passt));
    }
}

/// Objective: `vm run --uplink` connects its machine to the outside, and leaves no uplink behind.
#[test]
fn a_machine_brings_its_way_out_along() {
    let test = "a_machine_brings_its_way_out_along";
    let Some((world, mut daemon)) = set_up(test) else { return };
    let [script, lease] = lease();
    let ask = format!(
        "{script}; until {lease}; do sleep 0.2; done; \
         until timeout 10 wget -q -O - http://{SERVER}:7000/ | grep 'of the world'; do sleep 0.2; done"
    );
    let program = [env!("CARGO_BIN_EXE_toklat"), "--dir", daemon.dir().to_str().unwrap()];
    let run = [
        "vm",
        "run",
        "--switch",
        "vale0",
        "--uplink",
        "--memory",
        "256",
        "--test-guest",
        "--run",
        &ask,
    ];
    let mut command = world.command(&[&program[..], &run].concat());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut machine = command.spawn().unwrap();
    daemon.wait_for("the uplink", |daemon| {
        daemon.ask("GET", "/v1/switches/vale0/ports/uplink", &serde_json::Value::Null).0 == 200
    });
    assert!(wait(&mut machine, PATIENCE).is_some_and(|status| status.success()));
    daemon.wait_for("all ports to be gone", |daemon| {
        daemon.json(&["port", "show"]).as_array().is_some_and(Vec::is_empty)
    });
}

/// Objective: DHCP tells guests an MTU that fits the switch's tunnels, or the one given.
///
/// Steps: a switch has a tunnel over an underlay of 1500 bytes; a guest asks for the option; an
/// uplink with a given MTU takes the place of the first, and another guest asks.
#[test]
fn guests_are_told_by_dhcp_what_fits_the_tunnels() {
    let test = "guests_are_told_by_dhcp_what_fits_the_tunnels";
    let Some((world, daemon)) = set_up(test) else { return };
    let underlay = match Underlay::new(1) {
        Ok(underlay) => underlay,
        Err(why) => return skip(test, why),
    };
    let netns = underlay.hosts[0].id().to_string();
    let tunnel = ["--vxlan", "7", "--local", "10.99.0.1", "--peer", "10.99.0.2"];
    let tunnel = [&["port", "add", "vale0:fabric"], &tunnel[..], &["--netns", &netns]].concat();
    daemon.done(&tunnel);
    let script = "printf '#!/bin/sh\\n[ $1 = bound ] || exit 0\\n\
         echo toklat-guest: mtu $mtu.\\n' >/tmp/mtu; chmod +x /tmp/mtu";
    let ask = format!(
        "{script}; until udhcpc -i eth0 -O mtu -n -q -t 20 -T 1 -s /tmp/mtu; do sleep 0.2; done"
    );
    for (number, args, said) in [(1, &[][..], "mtu 1450."), (2, &["--mtu", "1300"], "mtu 1300.")] {
        let mut out = uplink(&daemon, &world, &[&["vale0"], args].concat());
        let mut guest = Guest::boot(&daemon, &format!("g{number}"), number, &[], &ask);
        guest.says(said);
        drop(guest);
        out.kill().unwrap();
        out.wait().unwrap();
    }
}

/// Objective: an uplink that is killed leaves no passt behind.
#[test]
fn a_killed_uplink_leaves_nothing() {
    let test = "a_killed_uplink_leaves_nothing";
    let world = match world() {
        Ok(world) => world,
        Err(why) => return skip(test, why),
    };
    let mut daemon = Daemon::start();
    let mut out = uplink(&daemon, &world, &["vale0", "--create"]);
    // To the uplink, any program that broadcasts a frame is a guest: this one asks for the gateway.
    let mut asker = loop {
        if let Ok(port) = daemon.open("vale0:asker") {
            break port;
        }
    };
    let mut ask = [0; 60];
    frame::write_announcement(frame::Mac::local(7), Ipv4Addr::new(10, 0, 2, 1), &mut ask).unwrap();
    daemon.wait_for("a passt", |_| {
        asker.send(1).push(&ask);
        asker.flush().unwrap();
        passts(&out).len() == 1
    });
    let left = passts(&out);
    out.kill().unwrap();
    out.wait().unwrap();
    daemon.wait_for("the passt to be gone", |_| !harness::is_alive(left[0]));
    daemon.wait_for("the port to be gone", |daemon| {
        daemon.ask("GET", "/v1/switches/vale0/ports/uplink", &serde_json::Value::Null).0 == 404
    });
}
