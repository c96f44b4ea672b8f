//! The layout of the state, and what outlives a data process.

use fabric::Station;
use port::DropReason;

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
