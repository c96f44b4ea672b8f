//! The layout of the state, and what outlives a data process.

use fabric::Station;
use port::DropReason;
use port::stats::PortStats;

use super::*;

#[test]
fn ports_do_not_overlap_and_start_at_zero() {
    let config = SwitchConfig { max_ports: 8, ..SwitchConfig::default() };
    let file = Memfd::create("state", file_size(&config), shmem::Pages::Small).unwrap();
    let state = State::map(&file, &config).unwrap();
    let (a, b) = (state.port(0).unwrap(), state.port(7).unwrap());
    a.spares(RINGS - 1).unwrap()[MAX_SLOTS as usize - 1]
        .store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
    b.ingress().unwrap().frames.add(5);
    assert_eq!(state.port(1).unwrap().snapshot(), PortStats::default());
    assert_eq!(a.snapshot(), PortStats::default());
    assert_eq!(b.snapshot().in_frames, 5);
    assert!(state.port(8).is_none());
}

#[test]
fn state_is_gone_on_from_unless_it_is_of_another_version() {
    let config = SwitchConfig { max_ports: 2, ..SwitchConfig::default() };
    let file = Memfd::create("state", file_size(&config), shmem::Pages::Small).unwrap();
    let state = State::take_over(&file, &config).unwrap();
    assert!(state.is_fresh() && !state.is_used());
    state.set_used();
    state.port(1).unwrap().ingress().unwrap().frames.add(3);
    let mac = frame::Mac::local(1);
    assert!(state.open_fdb().unwrap().add_static(0, mac, 1, Nanos(0)));

    let next = State::take_over(&file, &config).unwrap();
    assert!(!next.is_fresh());
    assert_eq!(next.open_fdb().unwrap().lookup(0, mac.word()).map(Station::port), Some(1));
    next.switch.magic.set(MAGIC - 1);
    assert!(!next.is_used(), "who looks sees that there is nothing to read");
    let other = State::take_over(&file, &config).unwrap();
    assert!(other.is_fresh());
    assert_eq!(other.port(1).unwrap().snapshot(), PortStats::default());
    assert!(other.open_fdb().unwrap().is_empty());
}

#[test]
fn what_a_removed_port_counted_is_kept() {
    let config = SwitchConfig { max_ports: 2, ..SwitchConfig::default() };
    let state = State::private(&config).unwrap();
    let port = state.port(1).unwrap();
    port.ingress().unwrap().frames.add(3);
    port.egress(2).unwrap().drop_frames(DropReason::Full, 4);
    port.retire(state.switch());
    assert_eq!(port.snapshot(), PortStats::default());
    let gone = state.switch().snapshot().gone;
    assert_eq!((gone.in_frames, gone.out_drops[&DropReason::Full]), (3, 4));
}

/// Whatever a dying process had counted, the sums agree afterwards.
#[test]
fn regression_frames_of_a_process_that_died_as_it_counted_are_accounted_for() {
    let config = SwitchConfig { max_ports: 2, ..SwitchConfig::default() };
    let state = State::private(&config).unwrap();
    let sums_agree = || {
        let snapshot = state.switch().snapshot();
        snapshot.gone.unaccounted() == i128::from(snapshot.lost_in_restarts)
    };
    state.switch().gone_ingress.frames.add(5);
    state.count_lost();
    assert!(sums_agree(), "five were lost");
    state.switch().gone_egress.frames.add(21);
    state.count_lost();
    assert!(sums_agree(), "what went out beyond that were copies");
    state.count_lost();
    assert!(sums_agree());
    assert_eq!(state.switch().snapshot().lost_in_restarts, 5);
}

/// These numbers never change: a data process of another version finds its ports by them.
#[test]
fn where_ports_stand_never_moves() {
    use std::mem::offset_of;
    let config =
        |max_ports, fdb_entries| SwitchConfig { max_ports, fdb_entries, ..SwitchConfig::default() };
    let (small, large) = (config(8, 64), config(4096, 65_536));
    let places = [&small, &large].map(|config| (queues_at(config), ports_at(config)));
    assert_eq!(places, [(589_824, 622_592), (2_682_880, 19_460_096)]);
    assert_eq!((offset_of!(SwitchState, magic), offset_of!(SwitchState, ports)), (0, 656));
    assert_eq!((size_of::<ReceiveState>(), size_of::<SendState>(), RINGS), (256, 64, 16));
    assert_eq!((size_of::<IngressCounters>(), offset_of!(IngressPage, send)), (384, 384));
    assert_eq!((offset_of!(SendState, taken), offset_of!(SendState, queue)), (0, 8));
    let receive = [
        offset_of!(ReceiveState, published),
        offset_of!(ReceiveState, released),
        offset_of!(ReceiveState, primed),
        offset_of!(ReceiveState, queue),
    ];
    assert_eq!(receive, [0, 4, 8, 224]);
    assert_eq!((PORT, SPARES_AT, SPARES), (266_240, 4096, 16_384));
}

#[test]
fn a_later_layout_goes_on_where_ports_stand_and_begins_anew_with_the_rest() {
    let config = SwitchConfig { max_ports: 70, ..SwitchConfig::default() };
    let file = Memfd::create("state", file_size(&config), shmem::Pages::Small).unwrap();
    let state = State::take_over(&file, &config).unwrap();
    state.set_used();
    let mac = frame::Mac::local(1);
    assert!(state.open_fdb().unwrap().add_static(0, mac, 1, Nanos(0)));
    for id in [0, 69] {
        let (port, n) = (state.port(id).unwrap(), u32::from(id));
        state.switch.set_port(id, true);
        port.ingress().unwrap().frames.add(3);
        port.set_failed(true);
        let (send, receive) = (port.send(15).unwrap(), port.receive(3).unwrap());
        send.taken.publish(n + 1);
        send.queue.0[3].store(9, std::sync::atomic::Ordering::Relaxed);
        receive.published.publish(n + 2);
        receive.released.publish(n + 3);
        receive.primed.store(1, std::sync::atomic::Ordering::Relaxed);
        receive.queue.0[0].store(8, std::sync::atomic::Ordering::Relaxed);
        port.spares(3).unwrap()[7].store(n + 4, std::sync::atomic::Ordering::Relaxed);
    }
    let next = State::take_over_as(&file, &config, MAGIC + 1).unwrap();
    assert!(!next.is_fresh(), "its ports are resumed");
    assert_eq!(next.ports().collect::<Vec<_>>(), [0, 69]);
    assert!(next.open_fdb().unwrap().is_empty());
    for id in [0, 69] {
        let (port, n) = (next.port(id).unwrap(), u32::from(id));
        assert_eq!(port.snapshot(), PortStats::default());
        assert!(!port.has_failed());
        let (send, receive) = (port.send(15).unwrap(), port.receive(3).unwrap());
        let stands = [send.taken.own(), receive.published.own(), receive.released.own()];
        assert_eq!(stands, [n + 1, n + 2, n + 3]);
        assert_eq!(receive.primed.load(std::sync::atomic::Ordering::Relaxed), 1);
        let words = [&send.queue.0[3], &receive.queue.0[0]];
        assert_eq!(words.map(|word| word.load(std::sync::atomic::Ordering::Relaxed)), [9, 8]);
        let spare = &port.spares(3).unwrap()[7];
        assert_eq!(spare.load(std::sync::atomic::Ordering::Relaxed), n + 4);
    }
    // A layout that no one before this one has had is not guessed at.
    assert!(State::take_over_as(&file, &config, MAGIC - 1).unwrap().is_fresh());
}
