use std::sync::atomic::Ordering;

use zerocopy::IntoBytes;

use self::bed::Tested;
use super::*;
use crate::abi::{
    PortHeader, PortInfo, ValeAttach, ValeList, ValeNewif, ValePolling, flags, mode, option,
    polling,
};
use crate::wire::kind;

mod bed;
mod strangers;

/// Makes a broker with descriptors 1 to 9 of root, and 11 to 19 of another user.
fn broker() -> Tested {
    let mut broker = Tested::new();
    (1..10).for_each(|cookie| broker.open(cookie, 0));
    (11..20).for_each(|cookie| broker.open(cookie, 1000));
    broker
}

fn ports(broker: &Tested) -> Vec<String> {
    broker.switches.ports.clone()
}

fn ask<T: IntoBytes + zerocopy::Immutable>(reqtype: u16, name: &str, body: &T) -> Ask {
    let mut ask = Ask::new(kind::CONTROL, reqtype);
    ask.name = name_of(name);
    ask.body[..size_of::<T>()].copy_from_slice(body.as_bytes());
    ask
}

fn control<T: IntoBytes + FromBytes + zerocopy::Immutable>(
    broker: &mut Tested,
    cookie: u64,
    reqtype: u16,
    name: &str,
    body: &T,
) -> Result<T, Errno> {
    let (answer, _) = broker.control(cookie, &ask(reqtype, name, body));
    match answer.status {
        0 => Ok(T::read_from_prefix(&answer.body).ok().map(|(body, _)| body).unwrap()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

fn register(broker: &mut Tested, cookie: u64, name: &str) -> Result<Register, Errno> {
    register_as(broker, cookie, name, Register { mode: mode::ALL_NIC, ..Register::default() })
}

fn register_as(
    broker: &mut Tested,
    cookie: u64,
    name: &str,
    request: Register,
) -> Result<Register, Errno> {
    control(broker, cookie, reqtype::REGISTER, name, &request)
}

#[test]
fn a_port_is_in_its_switch_from_its_first_descriptor_to_its_last() {
    let mut broker = broker();
    let first = register(&mut broker, 1, "vale0:a").unwrap();
    let second = register(&mut broker, 2, "vale0:a").unwrap();
    assert_eq!((ports(&broker), first.mem_id), (vec!["vale0:a".to_owned()], second.mem_id));
    assert_ne!(first.offset, second.offset, "an interface each");
    broker.close(1);
    assert_eq!(ports(&broker).len(), 1);
    broker.close(2);
    assert!(ports(&broker).is_empty() && broker.adapters.is_empty() && broker.regions.is_empty());
    assert_eq!(register(&mut broker, 1, "vale0:a"), Err(Errno::NXIO), "a closed descriptor");
}

#[test]
fn a_switch_that_refuses_leaves_nothing_behind() {
    let mut broker = broker();
    broker.switches.refuse = true;
    assert_eq!(register(&mut broker, 1, "vale0:a"), Err(Errno::NOMEM));
    assert!(broker.adapters.is_empty() && broker.regions.is_empty());
    broker.switches.refuse = false;
    assert!(register(&mut broker, 1, "vale0:a").is_ok(), "the descriptor can be used");
}

#[test]
fn the_answer_describes_what_is_bound_with_its_descriptors() {
    let mut broker = broker();
    let request = Register {
        mode: mode::ONE_NIC,
        ringid: 1,
        tx_rings: 2,
        rx_rings: 2,
        ..Register::default()
    };
    let (answer, fds) = broker.control(1, &ask(reqtype::REGISTER, "vale0:a", &request));
    assert_eq!((answer.bound.port, fds.len()), (port::SWITCHED, 3));
    assert_eq!((answer.bound.tx.rings, answer.bound.rx.rings), (1, 1));
    let (again, fds) = broker.identify(1, &Ask::new(kind::IDENTIFY, 0));
    assert_eq!((again.bound, fds.len()), (answer.bound, 3));
    let (unbound, fds) = broker.identify(2, &Ask::new(kind::IDENTIFY, 0));
    assert_eq!((unbound.status, unbound.bound, fds.len()), (0, Bound::default(), 0));
    assert_ne!(broker.identify(77, &Ask::new(kind::IDENTIFY, 0)).0.status, 0);
}

#[test]
fn both_ends_of_a_pipe_have_twin_rings_and_wake_each_other() {
    let mut broker = broker();
    register(&mut broker, 1, "vale0:p{1").unwrap();
    register(&mut broker, 2, "vale0:p}1").unwrap();
    let bound = |cookie| broker.identify(cookie, &Ask::new(kind::IDENTIFY, 0));
    let ((master, fds), (slave, _)) = (bound(1), bound(2));
    assert_eq!((master.bound.port, fds.len()), (port::PIPE, 4));
    assert_eq!((master.bound.twin_rx, master.bound.twin_tx), (slave.bound.rx, slave.bound.tx));
    assert!(ports(&broker).is_empty(), "the port itself is not open");
    broker.close(1);
    register(&mut broker, 3, "vale0:p{1").unwrap();
    broker.close(2);
    broker.close(3);
    assert!(broker.adapters.is_empty() && broker.regions.is_empty());
}

#[test]
fn a_port_that_pipes_made_goes_with_the_last_of_them() {
    let mut broker = broker();
    register(&mut broker, 1, "made{a").unwrap();
    register(&mut broker, 2, "made{b").unwrap();
    register(&mut broker, 3, "made").unwrap();
    [1, 2].into_iter().for_each(|cookie| broker.close(cookie));
    assert!(broker.has(0, "made"), "it is open itself");
    broker.close(3);
    assert!(broker.adapters.is_empty());
}

#[test]
fn regions_are_their_users_own() {
    let mut broker = broker();
    let theirs = register(&mut broker, 11, "vale0:a").unwrap();
    let into = Register { mode: mode::ALL_NIC, mem_id: theirs.mem_id, ..Register::default() };
    broker.open(21, 1001);
    assert_eq!(register_as(&mut broker, 21, "vale0:b", into), Err(Errno::ACCESS));
    assert_eq!(register(&mut broker, 21, "vale0:a"), Err(Errno::BUSY), "the switch has it");
    let own = register(&mut broker, 21, "vale0:a{1").unwrap();
    assert_ne!(own.mem_id, theirs.mem_id, "a pipe of their own");
    let root = register_as(&mut broker, 1, "vale0:b", into).unwrap();
    assert_eq!(root.mem_id, theirs.mem_id);
}

#[test]
fn persistent_ports_stay_and_move() {
    let mut broker = broker();
    let new = ValeNewif { tx_slots: 0, rx_slots: 0, tx_rings: 0, rx_rings: 0, mem_id: 0, pad: 0 };
    control(&mut broker, 11, reqtype::VALE_NEWIF, "vi0", &new).unwrap();
    let register_1 = Register { mode: mode::ALL_NIC, ..Register::default() };
    let attach = ValeAttach { register: register_1, port_index: 9, pad: 0 };
    broker.open(21, 1001);
    let refused = control(&mut broker, 21, reqtype::VALE_ATTACH, "vale0:vi0", &attach);
    assert_eq!(refused.err(), Some(Errno::INVAL), "another user's name");
    let done = control(&mut broker, 11, reqtype::VALE_ATTACH, "vale0:vi0", &attach).unwrap();
    assert_eq!((done.port_index, done.register.mem_id), (0, 0));
    assert!(ports(&broker).is_empty(), "nobody has it open");
    register(&mut broker, 12, "vale0:vi0").unwrap();
    assert_eq!(ports(&broker), ["vale0:vi0"]);
    broker.close(12);
    assert!(ports(&broker).is_empty() && broker.has(1000, "vi0"));
}

#[test]
fn an_interface_is_a_port_of_a_switch_of_its_own_which_lists_do_not_show() {
    let mut broker = broker();
    let none = PortInfo::default();
    let info = control(&mut broker, 1, reqtype::PORT_INFO_GET, "eth0", &none).unwrap();
    assert_eq!((info.tx_rings, info.tx_slots, broker.adapters.len()), (1, 1024, 0));
    let watch = Register { mode: mode::ALL_NIC, flags: flags::MONITOR_RX, ..Register::default() };
    assert_eq!(register_as(&mut broker, 1, "eth0", watch), Err(Errno::INVAL), "nothing is open");
    assert!(broker.adapters.is_empty() && ports(&broker).is_empty());
    register(&mut broker, 1, "eth0").unwrap();
    register(&mut broker, 2, "also-eth0").unwrap();
    assert_eq!(ports(&broker), ["os-eth0:netmap", "nic-eth0:netmap"]);
    let info = control(&mut broker, 4, reqtype::PORT_INFO_GET, "also-eth0", &none).unwrap();
    assert_eq!(
        info.mem_id,
        broker.adapters[&Key::new(0, "netmap:eth0")].region,
        "by any of its names"
    );
    register_as(&mut broker, 3, "eth0", watch).unwrap();
    let first = ValeList { bridge: 0, pad: 0, port: 0 };
    assert!(control(&mut broker, 4, reqtype::VALE_LIST, "", &first).is_err(), "no switch");
    (1..4).for_each(|cookie| broker.close(cookie));
    assert!(broker.adapters.is_empty() && ports(&broker).is_empty());
    assert_eq!(register(&mut broker, 4, "eth1"), Err(Errno::NXIO));
}

#[test]
fn a_switch_polls_while_any_of_its_interfaces_is_polled() {
    let mut broker = broker();
    let place = |ifname: &str| ("vale0".to_owned(), ifname.to_owned());
    broker.switches.plugged = vec![place("eth0"), place("eth1")];
    let asked = ValePolling { mode: polling::MULTI_CPU, first_cpu: 1, cpus: 2, pad: 0 };
    let poll = |broker: &mut Tested, on: bool, name: &str| {
        let reqtype = if on { reqtype::VALE_POLLING_ENABLE } else { reqtype::VALE_POLLING_DISABLE };
        control(broker, 1, reqtype, name, &asked).map(drop)
    };
    assert_eq!(poll(&mut broker, false, "vale0:eth0"), Err(Errno::FAULT));
    assert_eq!(poll(&mut broker, true, "vale0:eth0"), Ok(()));
    assert_eq!(poll(&mut broker, true, "vale0:eth1"), Ok(()));
    assert_eq!(poll(&mut broker, true, "vale0:eth1"), Err(Errno::FAULT));
    assert_eq!(poll(&mut broker, false, "vale0:eth0"), Ok(()));
    let said = ["vale0:eth0 Some(3)", "vale0:eth1 Some(3)"];
    assert_eq!(broker.switches.polled, said, "the other is polled");
    // What leaves its switch by other ways is not polled any more.
    broker.switches.plugged = vec![place("eth0")];
    assert_eq!(poll(&mut broker, false, "vale0:eth1"), Err(Errno::NXIO));
    assert_eq!(broker.switches.polled[2..], ["vale0:eth1 None"]);
    assert_eq!(poll(&mut broker, true, "eth0"), Err(Errno::INVAL));
}

#[test]
fn regression_a_pipe_of_an_interface_is_not_a_port_of_its_own() {
    let mut broker = broker();
    let name = "eth0{1";
    let info = |broker: &mut Tested, name: &str| {
        control(broker, 1, reqtype::PORT_INFO_GET, name, &PortInfo::default()).unwrap()
    };
    let before = info(&mut broker, name);
    let end = register(&mut broker, 1, name).unwrap();
    assert_eq!((end.mem_id, end.memsize), (before.mem_id, before.memsize));
    assert!(ports(&broker).is_empty() && !broker.has(0, "eth0"));
    let other = Register { tx_slots: 64, rx_slots: 64, ..Register::default() };
    let other = register_as(&mut broker, 2, "eth0}2", Register { mode: mode::ALL_NIC, ..other });
    assert_eq!(other.unwrap().mem_id, end.mem_id, "in the region of the interface");
    assert_eq!(info(&mut broker, "eth0{2").tx_slots, 64);
    let header = PortHeader { len: 9, pad: 0 };
    let header = control(&mut broker, 1, reqtype::PORT_HDR_GET, "eth0", &header).unwrap();
    assert_eq!(header.len, 0);
    // It does not keep the interface from being opened, and stays when that is closed.
    let nic = register(&mut broker, 3, "eth0").unwrap();
    assert_eq!((nic.mem_id, ports(&broker).len()), (end.mem_id, 2));
    broker.close(3);
    assert!(ports(&broker).is_empty() && broker.has(0, "netmap:eth0{1"));
    (1..3).for_each(|cookie| broker.close(cookie));
    assert!(broker.adapters.is_empty() && broker.regions.is_empty());
    // For those who may not open the interface, the name is free.
    register(&mut broker, 11, name).unwrap();
    assert!(broker.has(1000, "eth0{1"));
}

#[test]
fn a_port_may_ask_for_the_region_that_it_was_said_to_get() {
    let mut broker = broker();
    let asked = PortInfo::default();
    let info = control(&mut broker, 1, reqtype::PORT_INFO_GET, "vale0:a", &asked).unwrap();
    let with = |mem_id| Register { mode: mode::ALL_NIC, mem_id, ..Register::default() };
    let other = register_as(&mut broker, 1, "vale0:a", with(info.mem_id + 1));
    assert_eq!(other, Err(Errno::INVAL));
    let got = register_as(&mut broker, 1, "vale0:a", with(info.mem_id)).unwrap();
    assert_eq!((got.mem_id, got.memsize), (info.mem_id, info.memsize));
}

#[test]
fn an_interface_has_host_rings_if_its_host_can_have_a_port() {
    let mut broker = broker();
    let free = |broker: &Tested| broker.regions.get(2).unwrap().free_buffers();
    let sw = Register { mode: mode::SW, ..Register::default() };
    let host = register_as(&mut broker, 1, "eth0", sw).unwrap();
    assert_eq!((host.host_tx_rings, host.host_rx_rings, host.tx_rings), (1, 1, 1));
    let before = free(&broker);
    let all = Register { mode: mode::NIC_SW, ..Register::default() };
    let all = register_as(&mut broker, 2, "eth0", all).unwrap();
    assert_eq!((all.mem_id, all.host_rx_rings), (host.mem_id, 1));
    assert_eq!(free(&broker), before, "the same rings");
    let ask = Ask::new(kind::IDENTIFY, 0);
    let bound = |broker: &Tested, cookie| broker.identify(cookie, &ask).0.bound;
    let (one, both) = (bound(&broker, 1), bound(&broker, 2));
    assert_eq!((one.tx.rings, one.host_tx.rings, one.up.rings, one.down.rings), (0, 1, 1, 0));
    assert_eq!((both.tx.rings, both.host_rx.rings, both.up.rings, both.down.rings), (1, 1, 1, 1));
    assert_eq!(both.down.first, both.tx.first + 1, "the port of the card has it, too");
    assert_eq!(both.up.first, both.host_tx.first + 1);
    let fds = broker.identify(2, &ask).1;
    assert_eq!(fds.len(), 4, "memory, bell and two tokens");
    (1..3).for_each(|cookie| broker.close(cookie));
    assert!(broker.adapters.is_empty() && broker.regions.is_empty() && ports(&broker).is_empty());
    // Without a port, the host's rings are as if there were none.
    broker.switches.refused = Some("os-eth0");
    assert_eq!(register_as(&mut broker, 3, "eth0", sw), Err(Errno::INVAL));
    assert!(ports(&broker).is_empty());
    let card = register(&mut broker, 3, "eth0").unwrap();
    assert_eq!((card.host_tx_rings, bound(&broker, 3).up.rings), (0, 0));
    broker.close(3);
    // Without the card, its host is left alone.
    broker.switches.refused = Some("nic-eth0");
    assert!(register(&mut broker, 4, "eth0").is_err());
    assert!(broker.adapters.is_empty() && ports(&broker).is_empty());
    let wide =
        Register { mode: mode::SW, host_tx_rings: 99, host_rx_rings: 3, ..Register::default() };
    broker.switches.refused = None;
    let wide = register_as(&mut broker, 4, "eth0", wide).unwrap();
    assert_eq!((wide.host_tx_rings, wide.host_rx_rings), (15, 3));
}

#[test]
fn regression_a_user_cannot_take_an_interfaces_name_before_others() {
    let mut broker = broker();
    let new = ValeNewif { tx_slots: 0, rx_slots: 0, tx_rings: 0, rx_rings: 0, mem_id: 0, pad: 0 };
    control(&mut broker, 11, reqtype::VALE_NEWIF, "eth0", &new).unwrap();
    let second = control(&mut broker, 1, reqtype::VALE_NEWIF, "eth0", &new);
    assert_eq!(second.err(), Some(Errno::EXIST));
    register(&mut broker, 11, "eth0").unwrap();
    assert!(ports(&broker).is_empty(), "a port of the user's own");
    register(&mut broker, 1, "eth0").unwrap();
    assert_eq!(ports(&broker), ["os-eth0:netmap", "nic-eth0:netmap"]);
}

#[test]
fn monitors_are_ports_of_their_own() {
    let mut broker = broker();
    let watch = Register { mode: mode::ALL_NIC, flags: flags::MONITOR_RX, ..Register::default() };
    assert_eq!(register_as(&mut broker, 2, "vale0:a", watch), Err(Errno::INVAL), "nothing is open");
    register(&mut broker, 1, "vale0:a").unwrap();
    let monitor = register_as(&mut broker, 2, "vale0:a", watch).unwrap();
    assert_eq!((monitor.tx_rings, monitor.rx_rings), (1, 1));
    assert_eq!(ports(&broker), ["vale0:a", "vale0:a/#"]);
    let zero_copy = Register { flags: flags::ZCOPY_MON, ..watch };
    let watcher = register_as(&mut broker, 3, "vale0:a", zero_copy).unwrap();
    let both = flags::MONITOR_TX | flags::MONITOR_RX | flags::ZCOPY_MON;
    assert_eq!((watcher.flags, watcher.mem_id != monitor.mem_id), (both, true));
    assert_eq!(ports(&broker), ["vale0:a", "vale0:a/#"], "it is in no switch");
    broker.close(1);
    assert!(broker.has(0, "vale0:a"), "its monitors are open");
    broker.close(2);
    broker.close(3);
    assert!(broker.adapters.is_empty() && ports(&broker).is_empty());
}

#[test]
fn rings_of_closed_zero_copy_monitors_are_used_again_and_go_with_their_port() {
    let mut broker = broker();
    let port = register(&mut broker, 1, "vale0:a").unwrap();
    let free = |broker: &Tested| broker.regions.get(port.mem_id).unwrap().free_buffers();
    let alone = free(&broker);
    let request = Register { mode: mode::ALL_NIC, flags: flags::ZCOPY_MON, ..Register::default() };
    register_as(&mut broker, 2, "vale0:a", request).unwrap();
    let with_one = free(&broker);
    assert!(with_one < alone);
    for _ in 0..100 {
        broker.close(2);
        broker.open(2, 0);
        register_as(&mut broker, 2, "vale0:a", request).unwrap();
        assert_eq!(free(&broker), with_one);
    }
    // Another descriptor keeps the region; the rings of the port and its monitors are free.
    let null = Register { mode: mode::NULL, mem_id: port.mem_id, ..Register::default() };
    register_as(&mut broker, 3, "none", null).unwrap();
    broker.close(2);
    broker.close(1);
    assert_eq!(
        free(&broker),
        broker.regions.get(port.mem_id).unwrap().geometry.buf_num as usize - 2
    );
}

#[test]
fn lists_show_interfaces_however_they_came() {
    let mut broker = broker();
    register(&mut broker, 1, "vale0:a").unwrap();
    let mut walk = |plugged: &[(&str, &str)]| {
        let owned = plugged.iter().map(|(switch, port)| (switch.to_string(), port.to_string()));
        broker.switches.plugged = owned.collect();
        let mut at = ValeList { bridge: 0, pad: 0, port: 0 };
        let mut names = Vec::new();
        loop {
            let ask = ask(reqtype::VALE_LIST, "", &at);
            let (answer, _) = broker.control(2, &ask);
            if answer.status != 0 {
                return names;
            }
            names.push(crate::abi::text(&answer.name).unwrap().to_owned());
            at = ValeList::read_from_prefix(&answer.body).ok().unwrap().0;
            at.port += 1;
        }
    };
    let both = [("vale0", "eth0"), ("vale0", "eth0^"), ("lan", "eth1"), ("vale7", "eth2")];
    assert_eq!(walk(&both), ["vale0:a", "vale0:eth0", "vale0:eth0^", "vale7:eth2"]);
    assert_eq!(walk(&both[3..]), ["vale0:a", "vale7:eth2"]);
    assert_eq!(walk(&[]), ["vale0:a"]);
}

#[test]
fn the_switches_of_interfaces_have_names_of_at_most_15_bytes() {
    for (ifname, card, host) in
        [("eth0", "nic-eth0", "os-eth0"), ("enp0s31f6.1", "nic-enp0s31f6.1", "os-enp0s31f6.1")]
    {
        assert_eq!(
            (End::Card.switch(ifname), End::Host.switch(ifname)),
            (card.into(), host.into())
        );
    }
    let long = ["enp0s31f6.1000", "enp0s31f6.1001", "enp0s31f6.1000x", "br#1", "br!1", "\u{e9}0"];
    let names: Vec<_> = [End::Card, End::Host]
        .into_iter()
        .flat_map(|end| long.map(|ifname| (end, end.switch(ifname))))
        .collect();
    for (at, (end, name)) in names.iter().enumerate() {
        let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        assert!(name.len() <= 15 && name.chars().all(letter), "{name}");
        assert_eq!(End::of(name), Some(*end));
        assert!(names[..at].iter().all(|(_, other)| other != name), "{name}");
    }
    assert_eq!(End::of("vale0"), None);
}

#[test]
fn monitors_of_host_rings_are_ports_of_the_hosts_switch() {
    let mut broker = broker();
    let with = |mode, flags| Register { mode, flags, ..Register::default() };
    let copy = flags::MONITOR_TX | flags::MONITOR_RX;
    for watch in [copy, flags::ZCOPY_MON] {
        assert_eq!(register_as(&mut broker, 1, "eth0", with(mode::SW, watch)), Err(Errno::INVAL));
    }
    let wide = Register { host_tx_rings: 2, host_rx_rings: 3, ..with(mode::ALL_NIC, 0) };
    register_as(&mut broker, 1, "eth0", wide).unwrap();
    register_as(&mut broker, 2, "eth0", with(mode::SW, copy)).unwrap();
    register_as(&mut broker, 3, "eth0", with(mode::NIC_SW, copy)).unwrap();
    register_as(&mut broker, 4, "eth0", with(mode::NIC_SW, flags::ZCOPY_MON)).unwrap();
    register_as(&mut broker, 5, "eth0", with(mode::ONE_SW, flags::ZCOPY_MON)).unwrap();
    let names = ports(&broker);
    let (host, card) = ("os-eth0:netmap", "nic-eth0:netmap");
    let copies = [&format!("{host}/#"), &format!("{host}/#"), &format!("{card}/#")];
    assert_eq!(names[..2], [host, card]);
    assert_eq!(names[2..].iter().collect::<Vec<_>>(), copies);
    for (cookie, rings, fds) in [(2, (0, 3), 3), (3, (1, 3), 4), (4, (1, 3), 2), (5, (0, 3), 2)] {
        let (answer, given) = broker.identify(cookie, &Ask::new(kind::IDENTIFY, 0));
        let Bound { rx, host_rx, tx, host_tx, up, down, .. } = answer.bound;
        assert_eq!((rx.rings, host_rx.rings), rings, "{cookie}");
        assert_eq!([tx, host_tx, up, down].map(|spec| spec.rings), [0; 4], "{cookie}");
        assert_eq!(given.len(), fds, "{cookie}");
    }
    // A zero-copy monitor is in the chain of each ring that it was made for.
    let of_port = &broker.adapters[&Key::new(0, "netmap:eth0")].watchers;
    let watched = |way: usize| of_port[way].iter().filter(|watcher| watcher.is_some()).count();
    assert_eq!([watched(0), watched(1), watched(2), watched(3)], [1, 1, 2, 3]);
    (1..6).for_each(|cookie| broker.close(cookie));
    assert!(broker.adapters.is_empty() && broker.regions.is_empty() && ports(&broker).is_empty());
    // Without host rings there is nothing to see.
    broker.switches.refused = Some("os-eth0");
    (1..3).for_each(|cookie| broker.open(cookie, 0));
    register(&mut broker, 1, "eth0").unwrap();
    assert_eq!(register_as(&mut broker, 2, "eth0", with(mode::SW, copy)), Err(Errno::INVAL));
}

#[test]
fn a_refused_option_has_its_status() {
    let mut broker = broker();
    let port = register(&mut broker, 1, "vale0:a").unwrap();
    let free = |broker: &Tested| broker.regions.get(port.mem_id).unwrap().free_buffers();
    let request = Register { mode: mode::ALL_NIC, flags: flags::ZCOPY_MON, ..Register::default() };
    let mut ask = ask(reqtype::REGISTER, "vale0:a", &request);
    ask.options.given = 1 << option::OFFSETS;
    ask.options.status.fill(0);
    let (answer, _) = broker.control(2, &ask);
    let refused = Errno::OPNOTSUPP.raw_os_error();
    let status = answer.options.status[option::OFFSETS as usize];
    assert_eq!((answer.status, status), (refused, refused.unsigned_abs()));
    assert_eq!(broker.adapters.len(), 1);
    // The rings of the monitor stay with the port.
    let before = free(&broker);
    ask = Ask { name: name_of("vale0:b"), ..ask };
    let request = Register { mode: mode::ALL_NIC, mem_id: port.mem_id, ..Register::default() };
    ask.body[..size_of::<Register>()].copy_from_slice(request.as_bytes());
    ask.options.offsets.bits = 99;
    assert_eq!(broker.control(2, &ask).0.status, Errno::INVAL.raw_os_error());
    assert_eq!((free(&broker), broker.adapters.len()), (before, 1));
}

#[test]
fn what_would_be_made_is_told_without_making_it() {
    let mut broker = broker();
    let none = PortInfo::default();
    let info = control(&mut broker, 1, reqtype::PORT_INFO_GET, "vale0:a", &none).unwrap();
    assert!(broker.adapters.is_empty());
    let made = register(&mut broker, 1, "vale0:a").unwrap();
    assert_eq!((info.memsize, info.mem_id), (made.memsize, made.mem_id));
    let of_memory = PortInfo { mem_id: made.mem_id, ..PortInfo::default() };
    let info = control(&mut broker, 2, reqtype::PORT_INFO_GET, "", &of_memory).unwrap();
    assert_eq!((info.memsize, info.tx_rings), (made.memsize, 0));
}

#[test]
fn what_a_user_may_not_have_is_not_made() {
    let mut broker = broker();
    let much = |extra_bufs| Register { mode: mode::ALL_NIC, extra_bufs, ..Register::default() };
    // The first request exceeds the quota, the second what any user but root may have.
    for extra in [50_000, 200_000] {
        assert_eq!(register_as(&mut broker, 11, "vale0:a", much(extra)), Err(Errno::NOMEM));
    }
    assert!(broker.regions.is_empty() && broker.adapters.is_empty());
    assert!(register_as(&mut broker, 1, "vale0:a", much(50_000)).is_ok());
}

#[test]
fn many_pipes_use_a_region_up_and_give_it_back() {
    let mut broker = broker();
    (100..200).for_each(|cookie| broker.open(cookie, 0));
    let mut refused = 0;
    for cookie in 100..200 {
        refused += u32::from(register(&mut broker, cookie, &format!("vale0:p{{{cookie}")).is_err());
    }
    assert!((50..100).contains(&refused), "{refused}");
    (100..200).for_each(|cookie| broker.close(cookie));
    assert!(broker.adapters.is_empty() && broker.regions.is_empty());
}
