//! The records that an observer of the switch gets: samples, and dropped frames.

use ::frame::Mac;
use port::{DropReason, Nanos};
use shmem::{Mapping, Shared};
use toklat_fabric::{Fate, Forwarder, Observer, Record, Recorded, Recorder, Rules, VlanMode};

use crate::harness::{STALL_NS, Switch, frame, host, tagged};
use crate::{T0, learned, lossless_to_1, vlan};

/// Makes `switch` record into the returned recorder, as that asks.
fn observed(switch: &mut Switch) -> Shared<Recorder> {
    let recorder = Mapping::private(size_of::<Recorder>()).unwrap().shared(0).unwrap();
    switch.forwarder = Forwarder::new(64).recording(Shared::clone(&recorder));
    recorder
}

fn read(observer: &mut Observer) -> Vec<Record> {
    let mut records = Vec::new();
    observer.read(|record| records.push(record));
    records
}

fn fates(observer: &mut Observer) -> Vec<(u16, Fate)> {
    read(observer).iter().map(|record| (record.from, record.fate)).collect()
}

#[test]
fn samples_say_what_came_from_where_and_where_it_went() {
    let mut switch = learned(3);
    let recorder = observed(&mut switch);
    let mut observer = Observer::new(recorder.clone(), Recorded::Samples);
    switch.send(0, vec![frame(host(1), host(0), 0)], T0);
    assert_eq!(read(&mut observer), [], "nothing is sampled unless it is asked for");
    recorder.set_rate(1);
    let batch = [host(1), Mac::BROADCAST, host(2), host(0)];
    switch.send(0, batch.iter().map(|to| frame(*to, host(0), 9)).collect(), T0);
    let records = read(&mut observer);
    let fates: Vec<Fate> = records.iter().map(|record| record.fate).collect();
    let own = Fate::Dropped(DropReason::SamePort, None);
    assert_eq!(fates, [Fate::To(1), Fate::Flooded, Fate::To(2), own]);
    assert!(records.iter().all(|record| (record.from, record.len, record.at) == (0, 60, T0)));
    assert_eq!(records[0].head(), frame(host(1), host(0), 9));
    // The whole batch goes to one port.
    switch.send(1, vec![frame(host(2), host(1), 0); 5], T0);
    assert_eq!(read(&mut observer).iter().filter(|r| r.fate == Fate::To(2)).count(), 5);
    switch.assert_sums();
}

#[test]
fn one_in_so_many_frames_is_sampled_whatever_the_batches() {
    let mut switch = learned(2);
    let recorder = observed(&mut switch);
    recorder.set_rate(50);
    let mut observer = Observer::new(recorder, Recorded::Samples);
    let (mut sent, mut samples) = (0, 0);
    for turn in 0..3000 {
        let batch = 1 + turn * 7 % 64;
        switch.send(0, vec![frame(host(1), host(0), 0); batch], T0);
        sent += batch;
        samples += read(&mut observer).len();
        switch.take(1);
    }
    let wanted = sent / 50;
    assert!(samples.abs_diff(wanted) < wanted / 10, "{samples} of {sent}");
}

#[test]
fn every_dropped_frame_is_recorded_with_its_reason() {
    let mut switch = learned(3);
    let trunk = VlanMode::Trunk { allowed: vec![vlan(5)], native: None };
    switch.specs[2].rules = Rules { vlan: trunk, ..Rules::default() };
    switch.rebuild();
    let recorder = observed(&mut switch);
    recorder.record_drops(T0, 10);
    let mut observer = Observer::new(recorder.clone(), Recorded::Drops);
    switch.set_room(1, 2);
    let batch = [host(1), host(0), host(1), Mac::BROADCAST, host(1)];
    switch.send(0, batch.iter().map(|to| frame(*to, host(0), 0)).collect(), T0);
    switch.send(0, vec![vec![0; 13], frame(host(2), host(0), 0)], T0);
    switch.send(2, vec![tagged(frame(host(0), host(2), 0), 7)], T0);
    let at_1 = |reason| Fate::Dropped(reason, Some(1));
    let before = |reason| Fate::Dropped(reason, None);
    let expected = [
        (0, before(DropReason::SamePort)),
        (0, at_1(DropReason::Full)),
        (0, at_1(DropReason::Full)),
        (0, before(DropReason::Runt)),
        (0, before(DropReason::Vlan)),
        (2, before(DropReason::Vlan)),
    ];
    assert_eq!(fates(&mut observer), expected);
    // No observer asks any more.
    switch.send(0, vec![frame(host(0), host(0), 0)], T0 + 11 * Nanos::SECOND);
    assert_eq!(fates(&mut observer), []);
    switch.assert_sums();
}

#[test]
fn what_a_stalled_receiver_costs_is_recorded() {
    let mut switch = lossless_to_1();
    let recorder = observed(&mut switch);
    recorder.record_drops(T0, 10);
    let mut observer = Observer::new(recorder, Recorded::Drops);
    switch.set_room(1, 1);
    switch.send(0, (0..4).map(|n| frame(host(1), host(0), n)).collect(), T0);
    assert_eq!(fates(&mut observer), [], "they wait");
    switch.retry(0, T0 + 1);
    switch.retry(0, T0 + STALL_NS + 2);
    let stalled = (0, Fate::Dropped(DropReason::StallTimeout, Some(1)));
    assert_eq!(fates(&mut observer), [stalled; 3]);
    switch.send(0, vec![frame(host(1), host(0), 0)], T0 + STALL_NS + 3);
    assert_eq!(fates(&mut observer), [stalled], "at once, until there is room");
    switch.assert_sums();
}

#[test]
fn observed_traffic_arrives_as_it_does_unobserved() {
    let mut switches = [learned(3), learned(3)];
    observed(&mut switches[0]).record_drops(T0, 10);
    let got = switches.each_mut().map(|switch| {
        switch.set_room(2, 7);
        let to = |n: u8| [host(1), host(2), Mac::BROADCAST, host(9)][usize::from(n % 4)];
        switch.send(0, (0..40).map(|n| frame(to(n), host(0), n)).collect(), T0);
        switch.send(1, (0..3).map(|n| frame(host(0), host(1), n)).collect(), T0);
        switch.assert_sums();
        [0, 1, 2].map(|id| switch.take(id))
    });
    assert_eq!(got[0], got[1]);
}
