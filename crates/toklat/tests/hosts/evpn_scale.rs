//! Many simulated hosts and one of toklat.

use harness::routers::{NEIGHBOR, evpn_lines, gobgpd, reflector};
use harness::underlay::Underlay;
use harness::{Daemon, wait_until};
use lab::hosts::crowd::Crowd;

/// Objective: no move of many is lost, and stations of many hosts are all in the table.
///
/// Steps: 100 hosts with 20 stations each appear at a route reflector at once; all are known here
/// and in the table; 1,000 move in each of three seconds; each is where it went last.
#[test]
fn thousands_of_moves_between_a_hundred_hosts_are_followed() {
    let test = "thousands_of_moves_between_a_hundred_hosts_are_followed";
    let make = || -> Result<_, &'static str> {
        let (program, underlay) = (gobgpd()?.display().to_string(), Underlay::new(2)?);
        let reflector = reflector(&underlay.hosts[1], "10.99.0.2", &["10.99.0.1"])?;
        Ok((program, underlay, reflector))
    };
    let (program, underlay, reflector) = match make() {
        Ok(made) => made,
        Err(why) => return harness::skip(test, why),
    };
    let mut daemon = Daemon::start();
    daemon.end_with_this_process();
    daemon.apply(&evpn_lines(1, &program, &underlay.hosts[0], NEIGHBOR));
    wait_until("the reflector's socket", || reflector.socket().exists());
    let crowd = Crowd { hosts: 100, stations: 2000 };
    crowd.appear(&reflector.socket()).unwrap();
    let settle = |daemon: &mut Daemon, moves: u32| {
        daemon.wait_for("all stations", |daemon| {
            crowd.lost(&daemon.get("/v1/evpn/macs"), moves) == 0
        });
        daemon.wait_for("the table", |daemon| {
            let table = daemon.get("/v1/switches/vale0/fdb");
            let entries = table.as_array().unwrap().iter();
            entries.filter(|entry| entry["origin"] == "remote").count() == 2000
        });
    };
    settle(&mut daemon, 0);
    crowd.move_on(&reflector.socket(), (1000, 3)).unwrap();
    settle(&mut daemon, 3000);
    let evpn = daemon.get("/v1/evpn");
    assert_eq!(evpn["vteps"].as_array().unwrap().len(), 100);
    assert_eq!(evpn["counters"]["over_limit"], 0, "{evpn}");
}
