//! What users who do not trust each other can do to each other's requests: nothing.

use std::time::{Duration, Instant};

use super::*;

const NEW: ValeNewif =
    ValeNewif { tx_slots: 2, rx_slots: 2, tx_rings: 0, rx_rings: 0, mem_id: 0, pad: 0 };

const ALL: Register = Register {
    offset: 0,
    memsize: 0,
    tx_slots: 0,
    rx_slots: 0,
    tx_rings: 0,
    rx_rings: 0,
    host_tx_rings: 0,
    host_rx_rings: 0,
    mem_id: 0,
    ringid: 0,
    mode: mode::ALL_NIC,
    pad: 0,
    extra_bufs: 0,
    flags: 0,
};

fn attach(broker: &mut Tested, cookie: u64, name: &str) -> Result<u32, Errno> {
    let asked = ValeAttach { register: ALL, port_index: 9, pad: 0 };
    control(broker, cookie, reqtype::VALE_ATTACH, name, &asked).map(|done| done.port_index)
}

fn listed(broker: &mut Tested, cookie: u64) -> Vec<String> {
    let (mut at, mut names) = (ValeList { bridge: 0, pad: 0, port: 0 }, Vec::new());
    loop {
        let (answer, _) = broker.control(cookie, &ask(reqtype::VALE_LIST, "", &at));
        if answer.status != 0 {
            return names;
        }
        names.push(crate::abi::text(&answer.name).unwrap().to_owned());
        at = ValeList::read_from_prefix(&answer.body).ok().unwrap().0;
        at.port += 1;
    }
}

/// Objective: one user's persistent port takes no name from another, nor root's.
#[test]
fn regression_a_name_that_one_user_takes_is_free_for_others() {
    let mut broker = broker();
    broker.open(21, 1001);
    control(&mut broker, 11, reqtype::VALE_NEWIF, "p1", &NEW).unwrap();
    for cookie in [21, 1] {
        let port = register(&mut broker, cookie, "vale0:p1");
        assert!(port.is_ok(), "{port:?}");
        broker.close(cookie);
    }
    broker.open(22, 1001);
    control(&mut broker, 22, reqtype::VALE_NEWIF, "p1", &NEW).unwrap();
    assert_eq!(attach(&mut broker, 22, "vale0:p1"), Ok(0));
    assert_eq!(attach(&mut broker, 11, "vale0:p1"), Ok(1), "until one of them is open");
    register(&mut broker, 22, "vale0:p1").unwrap();
    assert_eq!(
        register(&mut broker, 11, "vale0:p1"),
        Err(Errno::BUSY),
        "the switch has such a port"
    );
    broker.close(22);
    assert!(register(&mut broker, 11, "vale0:p1").is_ok());
    // The user's own does, as in netmap.
    control(&mut broker, 12, reqtype::VALE_NEWIF, "p2", &NEW).unwrap();
    assert_eq!(register(&mut broker, 12, "vale0:p2"), Err(Errno::INVAL));
}

/// Objective: a root program that opens a name which a user holds does not get this user's memory.
#[test]
fn regression_root_is_bound_to_another_users_memory_only_when_it_asks_for_it() {
    let mut broker = broker();
    let theirs = register(&mut broker, 11, "vale0:1").unwrap();
    assert_eq!(register(&mut broker, 1, "vale0:1"), Err(Errno::BUSY), "the port is taken");
    let pipe = register(&mut broker, 12, "vale0:1{3").unwrap();
    assert_eq!(pipe.mem_id, theirs.mem_id);
    let own = register(&mut broker, 1, "vale0:1{3").unwrap();
    assert_ne!(own.mem_id, theirs.mem_id, "a pipe of root's own");
    assert_eq!(broker.concerns(1, None), None);
    let asked = Register { mem_id: theirs.mem_id, ..ALL };
    let ask = ask(reqtype::REGISTER, "vale0:1", &asked);
    assert_eq!(broker.concerns(2, Some(&ask)), Some(1000), "it waits for this user's requests");
    let shared = register_as(&mut broker, 2, "vale0:1", asked).unwrap();
    assert_eq!((shared.mem_id, broker.concerns(2, None)), (theirs.mem_id, Some(1000)));
    assert_eq!(broker.adapters[&Key::new(1000, "vale0:1")].bindings, 2);
    broker.open(21, 1001);
    assert_eq!(register_as(&mut broker, 21, "vale0:9", asked), Err(Errno::ACCESS));
    assert_eq!(broker.concerns(21, Some(&ask)), None, "only root's requests concern others");
    [1, 2, 11, 12].into_iter().for_each(|cookie| broker.close(cookie));
    broker.assert_empty();
}

/// Objective: who monitors another user's port gets copies in own memory, and keeps nothing alive.
#[test]
fn regression_monitors_of_other_users_get_copies_in_their_own_memory() {
    let mut broker = broker();
    let theirs = register(&mut broker, 11, "vale0:1").unwrap();
    let watch = Register { flags: flags::ZCOPY_MON, ..ALL };
    let monitor = register_as(&mut broker, 1, "vale0:1", watch).unwrap();
    assert_ne!(monitor.mem_id, theirs.mem_id);
    assert_eq!(monitor.flags, flags::MONITOR_TX | flags::MONITOR_RX, "it is no zero-copy one");
    assert_eq!(ports(&broker), ["vale0:1", "vale0:1/#"], "the switch copies");
    let (answer, _) = broker.identify(1, &Ask::new(kind::IDENTIFY, 0));
    assert_eq!(answer.bound.port, port::SWITCHED);
    broker.close(11);
    assert!(!broker.has(1000, "vale0:1"), "its user pays no more for it");
    broker.close(1);
    broker.assert_empty();
}

#[test]
fn regression_memory_that_another_user_lent_is_not_bound() {
    use crate::abi::PoolsInfo;
    use shmem::{Memfd, Pages};

    let mut broker = broker();
    let wanted = PoolsInfo { memsize: 1 << 24, ..PoolsInfo::default() };
    let geometry = crate::extmem::geometry(&wanted).unwrap();
    let memory = Memfd::create("lent", geometry.file_size() as usize, Pages::Small).unwrap();
    let mut request = ask(reqtype::REGISTER, "vale0:1", &ALL);
    (request.options.given, request.options.extmem) = (1 << option::EXTMEM, wanted);
    let mut lend = |broker: &mut Tested, cookie, name: &str| {
        request.name = name_of(name);
        let file = Box::new(memory.as_fd().try_clone_to_owned().unwrap());
        let task = broker.broker.control(cookie, 1, &request, Some(file), Facts::default());
        broker.finish(task).0.status
    };
    assert_eq!(lend(&mut broker, 11, "vale0:1"), 0);
    assert_eq!(lend(&mut broker, 12, "vale0:2"), 0, "the same region");
    broker.open(21, 1001);
    for stranger in [21, 1] {
        let refused = lend(&mut broker, stranger, "vale0:3");
        assert_eq!(refused, Errno::ACCESS.raw_os_error(), "{stranger}");
    }
    [11, 12].into_iter().for_each(|cookie| broker.close(cookie));
    broker.assert_empty();
}

/// Objective: lists show the user's own names and root's; root sees all.
#[test]
fn regression_lists_do_not_show_the_names_of_other_users() {
    let mut broker = broker();
    broker.open(21, 1001);
    broker.switches.plugged = vec![("vale0".into(), "eth0".into())];
    register(&mut broker, 1, "vale0:root").unwrap();
    register(&mut broker, 11, "vale0:mine").unwrap();
    register(&mut broker, 21, "vale7:theirs").unwrap();
    assert_eq!(listed(&mut broker, 12), ["vale0:eth0", "vale0:root", "vale0:mine"]);
    assert_eq!(listed(&mut broker, 21), ["vale0:eth0", "vale0:root", "vale7:theirs"]);
    assert_eq!(listed(&mut broker, 2).len(), 4);
    let find = |broker: &mut Tested, cookie, name| {
        let asked = ValeList { bridge: 0, pad: 0, port: 0 };
        control(broker, cookie, reqtype::VALE_LIST, name, &asked).map(|list| list.port)
    };
    assert_eq!(find(&mut broker, 12, "vale7:theirs"), Err(Errno::NOENT));
    assert_eq!(find(&mut broker, 21, "vale0:mine"), Ok(255), "no such port");
    assert_eq!(find(&mut broker, 2, "vale7:theirs"), Ok(0));
}

/// Objective: what strangers hold makes no request of others slower. With 40 times as many foreign
/// ports, requests take as long as before, within the noise of a busy machine.
#[test]
fn regression_the_ports_of_strangers_cost_nothing_in_other_users_requests() {
    const FEW: u64 = 200;
    const MANY: u64 = 8000;

    let mut broker = broker();
    let mut made = 0;
    let mut costs = [FEW, MANY].map(|wanted| {
        while made < wanted {
            // A port in a switch each, by ten users.
            let (cookie, uid, name) = (1000 + made, 2000 + made as u32 % 10, format!("s{made}"));
            broker.open(cookie, uid);
            control(&mut broker, cookie, reqtype::VALE_NEWIF, &name, &NEW).unwrap();
            attach(&mut broker, cookie, &format!("vale{}:{name}", made % 500)).unwrap();
            made += 1;
        }
        cost_of_requests(&mut broker)
    });
    costs[0] += Duration::from_micros(200);
    assert!(costs[1] < 4 * costs[0], "{FEW} and {MANY} foreign ports: {costs:?}");
}

/// The time that requests of all kinds take, at best.
fn cost_of_requests(broker: &mut Tested) -> Duration {
    let asked = ValeList { bridge: 0, pad: 0, port: 0 };
    let zero_copy = Register { flags: flags::ZCOPY_MON, tx_slots: 2, rx_slots: 2, ..ALL };
    let mut once = || {
        let began = Instant::now();
        for _ in 0..4 {
            let next = control(broker, 12, reqtype::VALE_LIST, "", &asked);
            assert_eq!(next.map(drop), Err(Errno::NOENT));
            control(broker, 13, reqtype::PORT_INFO_GET, "vale0:x", &PortInfo::default()).unwrap();
            let small = Register { tx_slots: 2, rx_slots: 2, ..ALL };
            register_as(broker, 14, "vale0:x", small).unwrap();
            register_as(broker, 15, "vale0:x", zero_copy).unwrap();
            register_as(broker, 16, "q{1", small).unwrap();
            [15, 14, 16].into_iter().for_each(|cookie| {
                broker.close(cookie);
                broker.open(cookie, 1000);
            });
        }
        began.elapsed()
    };
    (0..8).map(|_| once()).min().unwrap()
}

#[test]
fn root_lists_persistent_ports_and_removes_them_by_their_user() {
    let mut broker = broker();
    control(&mut broker, 11, reqtype::VALE_NEWIF, "p", &NEW).unwrap();
    attach(&mut broker, 11, "vale0:p").unwrap();
    attach(&mut broker, 11, "vale1:p").unwrap();
    control(&mut broker, 1, reqtype::VALE_NEWIF, "p", &NEW).unwrap();
    register(&mut broker, 1, "p").unwrap();
    let known = broker.persistent_ports();
    assert_eq!(
        known.iter().map(|port| (port.uid, port.users)).collect::<Vec<_>>(),
        [(0, 1), (1000, 0)]
    );
    assert_eq!(
        (known[1].name.as_str(), &known[1].switches[..]),
        ("p", &["vale0", "vale1"].map(String::from)[..])
    );
    assert_eq!(broker.remove_persistent(7, "p").err(), Some(Errno::NXIO));
    assert_eq!(broker.remove_persistent(0, "p").err(), Some(Errno::BUSY), "a program has it open");
    let mut task = broker.remove_persistent(1000, "p").unwrap();
    let parted = broker.broker.next(&mut task);
    assert!(
        matches!(parted, Some(Effect::Part { switches, .. }) if switches == ["vale0", "vale1"])
    );
    broker.close(1);
    control(&mut broker, 2, reqtype::VALE_DELIF, "p", &NEW).unwrap();
    broker.assert_empty();
}

/// Objective: of a request that the accounts refuse, nothing is left, and all that is made is
/// charged.
#[test]
fn all_that_is_made_is_charged_and_goes_with_its_charge() {
    let mut broker = broker();
    let charged = |broker: &Tested| broker.charged.0.load(Ordering::Relaxed);
    let before = charged(&broker);
    control(&mut broker, 11, reqtype::VALE_NEWIF, "p", &NEW).unwrap();
    assert_eq!(charged(&broker) - before, 3, "region, adapter, persistent port");
    register(&mut broker, 11, "p{1").unwrap();
    assert_eq!(charged(&broker) - before, 5, "two ends");
    register(&mut broker, 12, "vale0:x").unwrap();
    assert_eq!(charged(&broker) - before, 7, "region and adapter");
    [11, 12].into_iter().for_each(|cookie| broker.close(cookie));
    control(&mut broker, 13, reqtype::VALE_DELIF, "p", &NEW).unwrap();
    broker.assert_empty();
}

/// Objective: users' requests are under way at the same time: one whose switch does not answer
/// holds up no other.
#[test]
fn a_request_that_waits_for_its_switch_holds_up_no_other() {
    let mut broker = broker();
    broker.open(21, 1001);
    let mut waiting = broker.begin(11, &ask(reqtype::REGISTER, "vale0:slow", &ALL));
    let Some(effect) = broker.broker.next(&mut waiting) else { panic!("it attaches its port") };
    register(&mut broker, 21, "vale1:quick").unwrap();
    assert_eq!(listed(&mut broker, 21), ["vale1:quick"]);
    // Its descriptor is closed meanwhile.
    let closing = broker.close_later(11);
    let outcome = broker.switches.carry_out(effect);
    broker.broker.told(&mut waiting, outcome);
    broker.finish(closing);
    broker.finish(waiting);
    broker.close(21);
    broker.assert_empty();
}
