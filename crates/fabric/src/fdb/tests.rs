//! Tests of the table: rule by rule, and against a map.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const SECOND: u64 = Nanos::SECOND;

fn here(port: u16) -> Station {
    Station::at(port, Origin::Learned)
}

fn at(fdb: &Fdb, mac: u64) -> Option<u16> {
    fdb.lookup(0, mac).map(Station::port)
}

fn learn(fdb: &Fdb, mac: u64, port: u16, seconds: u64) -> Learned {
    fdb.learn(0, mac, here(port), u32::MAX, true, Nanos(seconds * SECOND))
}

#[test]
fn a_full_table_finds_room_for_all_its_entries() {
    // Several tables, because each has its own hash.
    for _ in 0..8 {
        let fdb = Fdb::private(8192, 1024).unwrap();
        for i in 0..8192u32 {
            let mac = Mac::local(i).word();
            assert_eq!(learn(&fdb, mac, (i % 1024) as u16, 1), Learned::Known, "entry {i}");
        }
        let more = Mac::local(9000).word();
        assert_eq!(learn(&fdb, more, 1, 1), Learned::NoRoom, "the limit holds");
        for i in 0..8192u32 {
            assert_eq!(at(&fdb, Mac::local(i).word()), Some((i % 1024) as u16));
        }
    }
}

#[test]
fn a_port_cannot_fill_the_table_beyond_its_share() {
    let fdb = Fdb::private(64, 4).unwrap();
    let learn = |i: u32| fdb.learn(0, Mac::local(i).word(), here(1), 10, true, Nanos(0));
    assert!((0..10).all(|i| learn(i) == Learned::Known));
    assert_eq!(learn(10), Learned::NoRoom);
    fdb.flush(Some(1), None);
    assert_eq!(learn(10), Learned::Known);
}

#[test]
fn addresses_age_unless_seen_or_static() {
    let fdb = Fdb::private(64, 4).unwrap();
    learn(&fdb, 2, 1, 0);
    learn(&fdb, 4, 1, 0);
    assert!(fdb.add_static(0, Mac::from_word(6), 2, Nanos(0)));
    learn(&fdb, 2, 1, 200);
    assert_eq!(fdb.age(300, Nanos(301 * SECOND)), 1);
    assert_eq!((at(&fdb, 2), at(&fdb, 4), at(&fdb, 6)), (Some(1), None, Some(2)));
    assert_eq!(fdb.age(0, Nanos(9999 * SECOND)), 0, "0 is never");
}

#[test]
fn an_address_seen_after_the_clock_was_read_is_young() {
    let fdb = Fdb::private(64, 4).unwrap();
    learn(&fdb, 2, 1, 65_536);
    assert_eq!(fdb.age(u32::MAX, Nanos(65_535 * SECOND)), 0, "seen a second from now");
    assert_eq!(fdb.age(u32::MAX, Nanos((65_536 + 32_766) * SECOND)), 0);
    assert_eq!(fdb.age(u32::MAX, Nanos((65_536 + 32_767) * SECOND)), 1);
}

#[test]
fn regression_an_address_that_flaps_goes_back_to_where_it_was() {
    let fdb = Fdb::private(64, 8).unwrap();
    learn(&fdb, 2, 1, 0);
    // Two thieves of the address send in turns, while its owner is silent.
    for turn in 0..4 {
        assert_eq!(learn(&fdb, 2, 5 + turn % 2, 16), Learned::Known, "a move may be one");
    }
    assert_eq!(learn(&fdb, 2, 5, 17), Learned::Refused);
    assert_eq!(at(&fdb, 2), Some(1), "at home");
    assert_eq!(learn(&fdb, 2, 1, 18), Learned::Known);
    for second in 19..60 {
        assert_eq!(learn(&fdb, 2, 5, second), Learned::Refused, "as long as they try");
        assert_eq!(at(&fdb, 2), Some(1));
    }
    assert_eq!(learn(&fdb, 2, 5, 67), Learned::Known, "after eight seconds of rest it may move");
    assert_eq!(at(&fdb, 2), Some(5));
}

#[test]
fn an_address_that_flaps_moves_where_no_guard_is_set() {
    let fdb = Fdb::private(64, 8).unwrap();
    for turn in 0..20 {
        assert_eq!(fdb.learn(0, 2, here(turn % 2), u32::MAX, false, Nanos(0)), Learned::Known);
        assert_eq!(at(&fdb, 2), Some(turn % 2));
    }
}

/// Objective: a user who takes all addresses takes none from another user.
///
/// Steps: one user's ports learn more addresses than the table has; others learn theirs, and keep
/// them.
#[test]
fn regression_a_full_table_has_room_for_every_user() {
    let fdb = Fdb::private(256, 8).unwrap();
    for port in 0..4 {
        fdb.set_user(port, 1000, Some(u32::MAX));
    }
    fdb.set_user(6, 2000, None);
    fdb.set_user(7, 3000, None);
    let mac = |n: u32| Mac::local(n).word();
    for n in 0..2000 {
        let _ = learn(&fdb, mac(n), (n % 4) as u16, 0);
    }
    assert_eq!(fdb.len(), 256, "the greedy one has it all");
    for n in 0..60 {
        assert_eq!(learn(&fdb, mac(10_000 + n), 6, 0), Learned::Known, "{n}");
        assert_eq!(learn(&fdb, mac(20_000 + n), 7, 0), Learned::Known, "{n}");
        let _ = learn(&fdb, mac(30_000 + n), 0, 0);
    }
    for n in 0..60 {
        assert_eq!(at(&fdb, mac(10_000 + n)), Some(6));
        assert_eq!(at(&fdb, mac(20_000 + n)), Some(7));
    }
    assert!(fdb.len() <= 256);
}

#[test]
fn a_user_has_a_quota_over_all_its_ports_and_static_entries_do_not_count() {
    let fdb = Fdb::private(256, 8).unwrap();
    fdb.set_user(1, 1000, Some(3));
    fdb.set_user(2, 1000, Some(3));
    assert!(fdb.add_static(0, Mac::local(99), 1, Nanos(0)));
    let all: Vec<_> =
        (0..5).map(|n| learn(&fdb, Mac::local(n).word(), 1 + (n % 2) as u16, 0)).collect();
    assert_eq!(all[..3], [Learned::Known; 3]);
    assert_eq!(all[3..], [Learned::NoRoom; 2]);
    fdb.detach(1);
    assert_eq!(learn(&fdb, Mac::local(7).word(), 2, 0), Learned::Known, "room again");
    // The next port with this number belongs to another user.
    fdb.set_user(1, 2000, Some(1));
    assert_eq!(learn(&fdb, Mac::local(8).word(), 1, 0), Learned::Known);
    assert_eq!(learn(&fdb, Mac::local(9).word(), 1, 0), Learned::NoRoom);
}

#[test]
fn a_static_address_is_not_learned_elsewhere() {
    let fdb = Fdb::private(64, 4).unwrap();
    assert!(fdb.add_static(0, Mac::from_word(2), 1, Nanos(0)));
    assert_eq!(learn(&fdb, 2, 3, 1), Learned::Refused);
    fdb.flush(None, None);
    assert_eq!(at(&fdb, 2), Some(1), "a flush forgets what was learned only");
    assert_eq!(fdb.detach(1), 1);
}

#[test]
fn an_address_that_became_static_meanwhile_is_not_moved_and_its_port_is_not_counted_twice() {
    let fdb = Fdb::private(64, 4).unwrap();
    assert!(fdb.add_static(0, Mac::from_word(2), 1, Nanos(0)));
    // Learns as a worker does that has searched before the entry was there.
    let late = |port| fdb.learn_slowly(entry_of(0, 2), here(port), u32::MAX, true, Nanos(0));
    assert_eq!((late(3), late(1)), (Learned::Refused, Learned::Known));
    fdb.flush(None, None);
    assert_eq!((at(&fdb, 2), fdb.len()), (Some(1), 1), "still static");
}

/// Objective: of several places for an address, the one with the highest precedence holds, in any
/// order of arrival.
///
/// Steps: each of two origins, in both orders, names its own place.
#[test]
fn an_address_is_where_the_origin_with_precedence_says() {
    let mac = Mac::from_word(2);
    for first in Origin::ALL {
        for second in Origin::ALL {
            let fdb = Fdb::private(64, 8).unwrap();
            let say = |origin: Origin, port| {
                let there = Station::behind(port, 9, origin);
                match origin.is_dynamic() {
                    true => fdb.learn(0, 2, there, u32::MAX, true, Nanos(0)),
                    false => fdb.enter(0, mac, there, Nanos(0)),
                }
            };
            assert_eq!(say(first, 1), Learned::Known);
            let later_wins = second.precedence() >= first.precedence();
            let answer = if later_wins { Learned::Known } else { Learned::Refused };
            assert_eq!(say(second, 2), answer, "{first:?}, then {second:?}");
            let (port, origin) = if later_wins { (2, second) } else { (1, first) };
            assert_eq!(fdb.lookup(0, 2), Some(Station::behind(port, 9, origin)));
            assert_eq!(fdb.len(), 1);
        }
    }
}

#[test]
fn addresses_behind_one_port_move_between_its_destinations_and_only_frames_entries_age() {
    let fdb = Fdb::private(64, 8).unwrap();
    let behind = |via| Station::behind(3, via, Origin::Tunnel);
    let learn = |mac, there| fdb.learn(0, mac, there, u32::MAX, true, Nanos(0));
    assert_eq!((learn(2, behind(1)), learn(2, behind(2))), (Learned::Known, Learned::Known));
    assert_eq!(fdb.lookup(0, 2), Some(behind(2)));
    let remote = Station::behind(3, 7, Origin::Remote);
    assert_eq!(fdb.enter(0, Mac::from_word(4), remote, Nanos(0)), Learned::Known);
    assert_eq!(fdb.age(1, Nanos(9 * SECOND)), 1);
    assert_eq!((fdb.lookup(0, 2), fdb.lookup(0, 4)), (None, Some(remote)));
    fdb.flush(None, None);
    assert_eq!(fdb.lookup(0, 4), Some(remote), "a flush forgets what was learned only");
    assert_eq!(learn(4, here(1)), Learned::Known, "a local frame is a move");
    assert_eq!(fdb.lookup(0, 4), Some(here(1)));
}

#[test]
fn an_origin_has_no_more_entries_than_its_capacity() {
    let fdb = Fdb::private(64, 8).unwrap();
    fdb.set_capacity(Origin::Remote, 2);
    let remote = |mac| {
        let there = Station::behind(3, 1, Origin::Remote);
        fdb.enter(0, Mac::from_word(mac), there, Nanos(0))
    };
    assert_eq!([2, 4, 6].map(remote), [Learned::Known, Learned::Known, Learned::NoRoom]);
    assert_eq!(learn(&fdb, 8, 1, 0), Learned::Known, "others have theirs");
    assert!(fdb.remove(0, Mac::from_word(2)));
    assert_eq!(remote(6), Learned::Known);
}

#[test]
fn no_station_has_address_zero_or_a_group_address() {
    let fdb = Fdb::private(64, 4).unwrap();
    assert_eq!(at(&fdb, 0), None, "an empty way is not an entry");
    assert!(!fdb.add_static(0, Mac::from_word(0), 1, Nanos(0)));
    assert!(!fdb.add_static(0, Mac::BROADCAST, 1, Nanos(0)));
    assert!(!fdb.remove(0, Mac::from_word(0)));
    assert!(fdb.is_empty());
}

#[test]
fn a_port_at_its_limit_gets_no_address_of_another() {
    let fdb = Fdb::private(64, 4).unwrap();
    let learn = |mac, port| fdb.learn(0, mac, here(port), 1, true, Nanos(0));
    assert_eq!((learn(2, 1), learn(4, 2)), (Learned::Known, Learned::Known));
    assert_eq!(learn(2, 2), Learned::NoRoom);
    assert_eq!(at(&fdb, 2), Some(1));
}

#[test]
fn tables_hash_differently_and_a_table_opened_again_as_before() {
    let mapping = Mapping::private(Fdb::bytes(8192)).unwrap();
    let places = |fdb: &Fdb| -> Vec<usize> {
        let first = |i| fdb.entries.first(fdb.entries.place(0, Mac::local(i).word()));
        let start = std::ptr::from_ref(&fdb.entries.buckets[0]).addr();
        (0..100).map(|i| std::ptr::from_ref(first(i)).addr() - start).collect()
    };
    let open = || places(&Fdb::open(&mapping, 0, 8192, 4).unwrap());
    assert_eq!(open(), open());
    assert_ne!(open(), places(&Fdb::private(8192, 4).unwrap()));
}

#[test]
fn a_bucket_whose_writer_died_is_emptied() {
    let mapping = Mapping::private(Fdb::bytes(64)).unwrap();
    let fdb = Fdb::open(&mapping, 0, 64, 4).unwrap();
    learn(&fdb, 2, 1, 0);
    fdb.entries.first(fdb.entries.place(0, 2)).sequence.store(7, Ordering::Relaxed);
    let fdb = Fdb::open(&mapping, 0, 64, 4).unwrap();
    assert_eq!((at(&fdb, 2), fdb.len()), (None, 0));
}

#[derive(Clone, Debug)]
enum Op {
    Learn(u16, u64, u16),
    Remove(u16, u64),
    Flush(Option<u16>, Option<u16>),
}

fn op() -> impl Strategy<Value = Op> {
    let (filter, mac, port) = (0..3u16, 1..40u64, 0..6u16);
    prop_oneof![
        6 => (filter.clone(), mac.clone(), port.clone()).prop_map(|(f, m, p)| Op::Learn(f, m, p)),
        2 => (filter.clone(), mac).prop_map(|(f, m)| Op::Remove(f, m)),
        1 => (proptest::option::of(port), proptest::option::of(filter))
            .prop_map(|(p, f)| Op::Flush(p, f)),
    ]
}

proptest! {
    #[test]
    fn the_table_is_a_map(ops in proptest::collection::vec(op(), 0..200)) {
        let fdb = Fdb::private(1024, 8).unwrap();
        let mut oracle = HashMap::new();
        for op in ops {
            match op {
                Op::Learn(filter, mac, port) => {
                    fdb.learn(filter, mac, here(port), u32::MAX, false, Nanos(0));
                    oracle.insert((filter, mac), port);
                }
                Op::Remove(filter, mac) => {
                    let removed = fdb.remove(filter, Mac::from_word(mac));
                    prop_assert_eq!(removed, oracle.remove(&(filter, mac)).is_some());
                }
                Op::Flush(port, filter) => {
                    fdb.flush(port, filter);
                    oracle.retain(|(f, _), p| {
                        port.is_some_and(|port| port != *p)
                            || filter.is_some_and(|filter| filter != *f)
                    });
                }
            }
            prop_assert_eq!(fdb.len() as usize, oracle.len());
        }
        for filter in 0..3 {
            for mac in 1..40 {
                let found = fdb.lookup(filter, mac).map(Station::port);
                prop_assert_eq!(found, oracle.get(&(filter, mac)).copied());
            }
        }
    }
}

/// A writer puts two addresses in turns into one place, each with its own port. No reader may see
/// one address with the other's port.
#[test]
fn a_read_beside_a_write_is_of_one_entry() {
    let fdb = Fdb::private(16, 4).unwrap();
    let done = &std::sync::atomic::AtomicBool::new(false);
    let bucket = &fdb.entries.buckets[0];
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for key in [1, 2] {
                    let found = bucket.find(key);
                    assert!(found.is_none_or(|found| found == (0, here(key as u16))));
                }
            }
        });
        for round in 0..2_000_000 {
            let key = 1 + round % 2;
            bucket.write(0, key, here(key as u16), 0);
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}
