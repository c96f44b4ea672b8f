//! What moves and deaths cost guests that ping at 10 ms.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use vm::Backend;

use super::super::lab::{Daemon, Lab, wait_until};
use super::tunnel::{lost_while, wait_for};
use super::{evpn, tap, with_guest};
use crate::hosts::crowd::Crowd;
use crate::hosts::migration::{Moving, Place};
use crate::hosts::pings::{self, Pings};
use crate::hosts::routers::{Frr, Reflector, Session, gobgpd};
use crate::hosts::{NEVER, Net};

/// Pings at 10 ms around a death: more than another start takes.
const PINGS: u32 = 1500;

/// Hosts with a guest each, 1, 3 and more, and a reflector, 2.
struct Pinging {
    daemons: Vec<Daemon>,
    _reflector: Reflector,
    net: Net,
}

impl Pinging {
    fn start(lab: &Lab, hosts: &[usize]) -> Result<Self> {
        let program = gobgpd()?;
        let mut net = Net::new(hosts.len() + 1, 1500)?;
        let reflector = Reflector::start(&net, 2, hosts, lab.dir())?;
        let mut daemons = Vec::new();
        for n in hosts {
            let lines = tap(&net, *n, 1400) + &evpn(&net, *n, 2, &program);
            daemons.push(with_guest(lab, &mut net, *n, &lines)?);
        }
        for daemon in &daemons {
            wait_for(daemon, "/v1/evpn", |evpn| {
                let floods = evpn["vteps"].as_array().into_iter().flatten();
                let floods = floods.filter(|vtep| vtep["floods"] == true).count();
                evpn["neighbors"][0]["state"] == "established" && floods == hosts.len() - 1
            })?;
        }
        net.reach("g1", "192.168.7.3", &NEVER)?;
        Ok(Self { daemons, _reflector: reflector, net })
    }

    /// Pings that are lost while something dies, and is there again before the last ping.
    fn lost_by(&mut self, die: impl FnOnce(&mut Daemon) -> Result<()>) -> Result<f64> {
        let first = &mut self.daemons[0];
        let lost = lost_while(&self.net, "192.168.7.3", PINGS, || {
            // Lets a few pings pass before the death.
            std::thread::sleep(Duration::from_millis(300));
            die(first)
        })?;
        Ok(f64::from(lost))
    }
}

fn kill(pid: i32) -> Result<()> {
    Ok(kill_process(Pid::from_raw(pid).context("no process")?, Signal::KILL)?)
}

/// Pings at 10 ms that are lost as gobgpd is killed.
pub fn without_gobgpd(lab: &Lab) -> Result<f64> {
    lab.once_missing("gobgpd", || {
        let mut pinging = Pinging::start(lab, &[1, 3])?;
        pinging.lost_by(|daemon| {
            let socket = daemon.dir().join("evpn/gobgp.sock");
            let socket = std::os::unix::net::UnixStream::connect(socket)?;
            kill(rustix::net::sockopt::socket_peercred(&socket)?.pid.as_raw_nonzero().get())?;
            wait_for(daemon, "/v1/evpn", |evpn| {
                evpn["restarts"] == 1 && evpn["neighbors"][0]["state"] == "established"
            })
        })
    })
}

/// Pings at 10 ms that are lost as the supervisor is killed, and another one started.
pub fn without_supervisor(lab: &Lab) -> Result<f64> {
    lab.once_missing("gobgpd", || {
        let mut pinging = Pinging::start(lab, &[1, 3])?;
        pinging.lost_by(|daemon| {
            daemon.kill_and_start_again()?;
            wait_for(daemon, "/v1/evpn", |evpn| evpn["neighbors"][0]["state"] == "established")
        })
    })
}

/// ms without answers as the data process of a host is killed: pings at 10 ms that are lost.
pub fn without_data_process(lab: &Lab) -> Result<f64> {
    lab.once_missing("gobgpd", || {
        let lost = Pinging::start(lab, &[1, 3])?.lost_by(|daemon| {
            let before = daemon.data_process()?;
            kill(before)?;
            wait_until(Duration::from_secs(10), || {
                daemon.data_process().is_ok_and(|pid| pid != before)
            })
        })?;
        Ok(lost * 10.0)
    })
}

/// ms from the end of the reflector's link until its routes are gone here, by BFD of 3 x 300 ms.
pub fn without_reflector(lab: &Lab) -> Result<f64> {
    lab.once_missing("gobgpd", || {
        let (program, net) = (gobgpd()?, Net::new(2, 1500)?);
        let session = Session { hold_time: 90, bfd_ms: Some(300), ..Session::default() };
        let reflector = Reflector::start_with(&net, 2, (&[1], session), lab.dir())?;
        let bfd = "hold_time_s = 90\nbfd = { interval_ms = 300, multiplier = 3 }\n";
        let daemon = lab.daemon(&(evpn(&net, 1, 2, &program) + bfd))?;
        Crowd { hosts: 1, stations: 1 }.appear(&reflector.socket())?;
        wait_for(&daemon, "/v1/evpn", |evpn| evpn["routes"] == 1)?;
        // BFD is up a second after the session.
        std::thread::sleep(Duration::from_secs(3));
        let begun = Instant::now();
        net.ip("h2", "link set u0 down")?;
        wait_for(&daemon, "/v1/evpn", |evpn| evpn["routes"] == 0)?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    })
}

/// The station that moves: an interface of its own in a guest, 192.168.7.9.
const MOVING: &str = "02:00:00:00:0a:01";

/// Makes the station in a guest; it says nothing until it is up, and then announces itself.
fn prepare(net: &Net, guest: &str) -> Result<()> {
    for setting in ["arp_ignore", "arp_notify"] {
        net.run(guest, &format!("sysctl -qw net.ipv4.conf.all.{setting}=1"))?;
    }
    net.ip(guest, &format!("link add link e0 name mv address {MOVING} type macvlan mode bridge"))?;
    net.ip(guest, "addr add 192.168.7.9/32 dev mv").map(drop)
}

/// Guest 1 pings the station while it leaves guest 3 and appears at guest 4.
fn lost_by_move(net: &Net) -> Result<f64> {
    prepare(net, "g3")?;
    prepare(net, "g4")?;
    net.ip("g3", "link set mv up")?;
    net.reach("g1", "192.168.7.9", &NEVER)?;
    let lost = lost_while(net, "192.168.7.9", 300, || {
        std::thread::sleep(Duration::from_millis(500));
        net.ip("g3", "link set mv down")?;
        net.ip("g4", "link set mv up").map(drop)
    })?;
    Ok(f64::from(lost))
}

/// Pings at 10 ms that are lost as a station moves between two hosts.
pub fn moved(lab: &Lab) -> Result<f64> {
    lab.once_missing("gobgpd", || lost_by_move(&Pinging::start(lab, &[1, 3, 4])?.net))
}

/// The same measurement between Linux hosts with FRR.
pub fn moved_between_frr(lab: &Lab) -> Result<f64> {
    lab.once_missing("FRR", || lost_by_move(&Linux::start(lab)?.net))
}

/// Linux hosts 1, 3 and 4 with FRR and a guest each, and a reflector, 2.
struct Linux {
    _frr: Vec<Frr>,
    _reflector: Reflector,
    net: Net,
}

impl Linux {
    fn start(lab: &Lab) -> Result<Self> {
        let mut net = Net::new(4, 1500)?;
        let reflector = Reflector::start(&net, 2, &[1, 3, 4], lab.dir())?;
        let mut frr = Vec::new();
        for n in [1, 3, 4] {
            net.kernel_tunnel(n, None, 1400)?;
            frr.push(Frr::start(&net, n, 2, lab.dir())?);
        }
        for (from, to) in [("g1", "192.168.7.3"), ("g1", "192.168.7.4"), ("g3", "192.168.7.4")] {
            net.reach(from, to, &NEVER)?;
        }
        // All hosts' FRRs have their routes.
        wait_until(Duration::from_secs(20), || {
            let table = net.run("h1", "bridge fdb show dev vx100").unwrap_or_default();
            table.lines().filter(|line| line.starts_with("00:00") && line.contains(" dst ")).count()
                == 2
        })?;
        Ok(Self { _frr: frr, _reflector: reflector, net })
    }
}

/// The address of the guest that migrates.
const GUEST: &str = "192.168.7.9";

/// Guest 1 pings a virtual machine that migrates: pings that are lost once it runs at the other
/// place.
fn lost_by_migration(lab: &Lab, net: &Net, places: &[Place; 2]) -> Result<f64> {
    let dir = tempfile::Builder::new().prefix("moving").tempdir_in(lab.dir())?;
    let (address, commands) = (format!("{GUEST}/24"), "while :; do sleep 1; done");
    let mut guest = Moving::boot(dir.path(), places, (&address, commands), &NEVER)?;
    net.reach("g1", GUEST, &NEVER)?;
    let pings = Pings::start(&mut net.command("g1", &format!("{} {GUEST}", pings::WORDS)))?;
    std::thread::sleep(Duration::from_millis(500));
    let at = guest.go()?;
    net.reach("g1", GUEST, &NEVER)?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(f64::from(pings.end()?.lost_from(at)?))
}

/// Pings at 10 ms that are lost once a guest runs that has migrated between two hosts.
pub fn guest_moved(lab: &Lab) -> Result<f64> {
    lab.once_missing("gobgpd", || {
        let pinging = Pinging::start(lab, &[1, 3, 4])?;
        let place = |daemon: &Daemon| -> Result<Place> {
            let socket = daemon.dir().join("vm.sock");
            let kind = serde_json::json!({ "vhost_user": { "path": socket, "client": false } });
            daemon.add_port("vm", &kind)?;
            Ok(Place { backend: Backend::VhostUser(socket), prefix: Vec::new() })
        };
        let places = [place(&pinging.daemons[1])?, place(&pinging.daemons[2])?];
        lost_by_migration(lab, &pinging.net, &places)
    })
}

/// The same measurement between Linux hosts with FRR; the guest is at a tap of their bridges.
pub fn guest_moved_between_frr(lab: &Lab) -> Result<f64> {
    lab.once_missing("FRR", || {
        let linux = Linux::start(lab)?;
        let place = |host: &str| -> Result<Place> {
            linux.net.ip(host, "tuntap add vm0 mode tap vnet_hdr")?;
            linux.net.ip(host, "link set vm0 mtu 1400 master br100 up")?;
            let backend = Backend::Tap { ifname: "vm0".into(), vhost: false };
            let prefix = ["ip", "netns", "exec", &linux.net.name(host)].map(Into::into).into();
            Ok(Place { backend, prefix })
        };
        lost_by_migration(lab, &linux.net, &[place("h3")?, place("h4")?])
    })
}
