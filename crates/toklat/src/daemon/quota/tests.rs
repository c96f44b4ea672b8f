//! The rules of the ledger.

use super::*;

const MACHINE: Machine = Machine { descriptors: 4096, memory: 1 << 30 };

fn ledger(base: Quota) -> Arc<Ledger> {
    Ledger::new(1000, base, MACHINE)
}

fn port(switch: &str) -> Item {
    Item::Port { switch: switch.into(), port: "p".into(), of: 16, own: false }
}

/// Charges as many items as the user may have.
fn take_all(ledger: &Arc<Ledger>, uid: u32, item: &Item) -> Vec<Charge> {
    std::iter::from_fn(|| ledger.charge(uid, item.clone()).ok()).take(10_000).collect()
}

#[test]
fn however_many_users_are_greedy_the_next_finds_room_and_root_more() {
    let ledger = ledger(Quota::default());
    let held: Vec<_> = (1..6).map(|uid| take_all(&ledger, uid, &Item::Pipe)).collect();
    assert!(held.iter().all(|held| !held.is_empty() && held.len() <= 128));
    assert!(!take_all(&ledger, 6, &Item::Pipe).is_empty());
    for trusted in [0, 1000] {
        assert!(ledger.charge(trusted, Item::Pipe).is_ok());
    }
    // The pipes of this user hold all descriptors that it may have.
    assert_eq!(take_all(&ledger, 1, &port("a")).len(), 0);
    let ports = take_all(&ledger, 7, &port("a"));
    assert_eq!(ports.len(), 4, "a quarter of one switch's");
    assert_eq!(take_all(&ledger, 7, &port("b")).len(), 4, "and of another's");
    drop(ports);
    assert_eq!(take_all(&ledger, 7, &port("a")).len(), 4, "what is dropped is given back");
}

#[test]
fn a_file_that_is_lent_twice_counts_once_until_its_last_charge_goes() {
    let base = Quota { memory: Some(Limit::AtMost(100)), ..Quota::default() };
    let ledger = ledger(base);
    let file = |id, len| Item::Memory(File { id: (1, id), len });
    let first = ledger.charge(1, file(1, 100)).unwrap();
    let second = ledger.charge(1, file(1, 100)).unwrap();
    assert_eq!(ledger.charge(1, file(2, 1)).unwrap_err().code, ErrorCode::Limit);
    drop(first);
    assert!(ledger.charge(1, file(2, 1)).is_err(), "it is lent still");
    drop(second);
    ledger.charge(1, file(2, 1)).unwrap();
    assert_eq!(ledger.info().refused.memory, 2);
    assert!(ledger.info().users.is_empty());
}

#[test]
fn the_state_of_a_trusted_switch_counts_with_lent_memory() {
    let base = Quota { memory: Some(Limit::AtMost(100)), ..Quota::default() };
    let ledger = ledger(base);
    let state = |bytes| Item::State { switch: "vale9".into(), ports: 7, bytes };
    let held = ledger.charge(1, state(60)).unwrap();
    let file = Item::Memory(File { id: (1, 1), len: 40 });
    let lent = ledger.charge(1, file.clone()).unwrap();
    let refused = ledger.charge(1, state(1)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Limit);
    assert!(refused.reason.contains("vale9 with 7 ports needs 1 bytes"), "{refused}");
    assert!(refused.remedy.contains("max_ports"), "{refused}");
    drop(held);
    assert_eq!(ledger.info().users[0].usage.memory, 40);
    drop(lent);
    assert!(ledger.info().users.is_empty());
}

#[test]
fn switches_come_eight_at_once_and_then_one_in_a_while() {
    let ledger = ledger(Quota::default());
    let now = Instant::now();
    let pace = |uid, at| ledger.pace(uid, Paced::Switch, at);
    assert!((0..8).all(|_| pace(1, now).is_zero()));
    let each = Duration::from_millis(250);
    assert_eq!(pace(1, now), each);
    assert!(pace(2, now).is_zero() && pace(0, now).is_zero());
    assert!(pace(1, now + 3 * each).is_zero());
}

#[test]
fn requests_come_two_hundred_a_second_after_a_burst_and_no_user_is_kept_for_ever() {
    let ledger = ledger(Quota::default());
    let now = Instant::now();
    let pace = |uid, at| ledger.pace(uid, Paced::Request, at);
    assert!((0..400).all(|_| pace(1, now).is_zero()));
    let waits: Vec<_> = (0..200).map(|_| pace(1, now)).collect();
    assert_eq!(waits.last(), Some(&Duration::from_secs(1)));
    assert!(pace(2, now).is_zero() && pace(0, now).is_zero());
    let later = now + Duration::from_secs(60);
    assert!((3..10_000).all(|uid| pace(uid, later + Duration::from_secs(uid.into())).is_zero()));
    assert!(locked(&ledger.book).paces.len() <= PACES);
}

#[test]
fn what_is_configured_comes_first_and_names_root_too() {
    let few = Quota { ports: Some(Limit::AtMost(2)), ..Quota::default() };
    let ledger = ledger(few);
    let held = take_all(&ledger, 1, &port("a"));
    assert_eq!(held.len(), 2);
    let one = Quota { ports: Some(Limit::AtMost(3)), ..Quota::default() };
    ledger.configure(Quotas { each: Quota::default(), user: [(0, one), (1, one)].into() });
    assert_eq!(take_all(&ledger, 1, &port("a")).len(), 1);
    assert_eq!(take_all(&ledger, 0, &port("b")).len(), 3);
    assert_eq!(take_all(&ledger, 2, &port("b")).len(), 2, "as the daemon was started");
}

#[test]
fn a_user_sees_own_ports_and_roots_in_order_and_root_sees_all() {
    let ledger = ledger(Quota::default());
    let open = |uid, switch: &str, port: &str| {
        let (switch, port) = (switch.to_owned(), port.to_owned());
        ledger.count(uid, Item::Port { switch, port, of: 16, own: false })
    };
    let walk = |uid| {
        let next = |after: &String| ledger.next_port(uid, after);
        std::iter::successors(next(&String::new()), next).collect::<Vec<_>>()
    };
    let held = [open(0, "b", "root"), open(1, "a", "z"), open(2, "b", "x"), open(1000, "c", "d")];
    let twice = open(1, "a", "z");
    assert_eq!(walk(1), ["a:z", "b:root", "c:d"]);
    assert_eq!(walk(2), ["b:root", "b:x", "c:d"]);
    assert_eq!(walk(3), ["b:root", "c:d"]);
    for trusted in [0, 1000] {
        assert_eq!(walk(trusted), ["a:z", "b:root", "b:x", "c:d"]);
    }
    drop(held);
    assert_eq!((walk(1), walk(0)), (vec!["a:z".to_owned()], vec!["a:z".to_owned()]));
    drop(twice);
    assert!(walk(0).is_empty());
}

#[test]
fn the_descriptors_kept_for_items_are_a_quota_and_an_eighth_is_roots() {
    let ledger = ledger(Quota::default());
    let none = Quota { netmap_objects: Some(Limit::None), ..Quota::default() };
    ledger.configure(Quotas { each: none, ..Quotas::default() });
    let greedy = take_all(&ledger, 1, &Item::NetmapRegion);
    let own = |uid| {
        let users = ledger.info().users;
        users.iter().find(|user| user.uid == uid).map_or(0, |user| user.usage.descriptors)
    };
    assert_eq!((greedy.len() as u64 * 2, own(1)), (own(1), 1792), "half of what is not root's");
    let refused = ledger.charge(1, Item::NetmapRegion).unwrap_err();
    assert!(refused.reason.contains("descriptors"), "{refused}");
    assert!(refused.remedy.contains("descriptors=N"), "{refused}");
    assert!(ledger.charge(1, port("a")).is_err(), "it takes descriptors, too");
    let others: Vec<_> = (2..12).map(|uid| take_all(&ledger, uid, &Item::NetmapRegion)).collect();
    assert!(others[0].len() > 100, "the next one finds room");
    let all: u64 = (1..12).map(own).sum();
    assert!(all <= 4096 - 4096 / 8, "{all}");
    assert!(take_all(&ledger, 0, &Item::NetmapRegion).len() >= 4096 / 16, "root finds an eighth");
    assert!(ledger.info().refused.descriptors > 10);
    drop((greedy, others));
    assert!(ledger.info().users.is_empty());
}
