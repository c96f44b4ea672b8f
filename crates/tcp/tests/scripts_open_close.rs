//! Objective: opening, closing and resetting follow the RFCs.
//! Steps: packet scripts against one machine.

mod common;

use common::script::*;
use common::*;
use toklat_tcp::{CloseReason, Config, Drop, Events, Flags, OpenError, SendError, State};

fn connecting(config: Config) -> Script {
    let mut script = Script::new(config);
    script.id = Some(script.machine.connect((v4(1), 0), (v4(2), 5000), None, script.now).unwrap());
    script.transmit();
    script
}

#[test]
fn an_active_open_offers_all_options() {
    let mut script = connecting(config());
    let syn = script.expect("SEC", 0, None, 0);
    let options = syn.header.options;
    assert_eq!(
        (options.mss, options.window_scale, options.sack_permitted),
        (Some(1460), Some(7), true)
    );
    assert!(options.timestamp.is_some() && (49_152..).contains(&syn.header.flow.local_port()));
    script.stamps = Some(77);
    script.wait(MILLI);
    script.send(seg("SA", 0).ack(1).options(syn_options()));
    let ack = script.expect("A", 1, Some(1), 0);
    assert_eq!(ack.header.options.timestamp.unwrap().echo, 77);
    assert_eq!(script.machine.next_event().unwrap().1, Events::CONNECTED | Events::WRITABLE);
    let path = script.machine.path(script.id()).unwrap();
    assert_eq!((path.rtt, path.mss, path.send_window), (MILLI, 1448, 60_000));
}

#[test]
fn a_syn_is_sent_again_and_given_up() {
    let mut script = connecting(config());
    script.expect("SEC", 0, None, 0);
    let mut waits = Vec::new();
    for _ in 0..5 {
        waits.push((script.wait_for_segment() + 100 * MILLI) / SECOND);
        script.out.clear();
    }
    assert_eq!(waits, [1, 2, 4, 8, 16]);
    script.wait(180 * SECOND);
    assert_eq!(script.machine.close_reason(script.id()), Some(CloseReason::TimedOut));
}

#[test]
fn a_refused_connection_says_so() {
    let mut script = connecting(config());
    script.expect("SEC", 0, None, 0);
    script.send(seg("RA", 0).ack(2));
    assert_eq!(script.state(), Some(State::SynSent), "a reset for another number");
    script.send(seg("RA", 0).ack(1));
    assert_eq!(script.machine.close_reason(script.id()), Some(CloseReason::Refused));
    assert_eq!(script.machine.next_event().unwrap().1, Events::CLOSED);
}

#[test]
fn an_unreachable_peer_ends_an_open_only() {
    let mut script = connecting(config());
    let flow = script.expect("SEC", 0, None, 0).header.flow;
    script.machine.unreachable(&flow, script.iss + 1);
    assert_eq!(script.state(), Some(State::SynSent));
    script.machine.unreachable(&flow, script.iss);
    assert_eq!(script.machine.close_reason(script.id()), Some(CloseReason::Unreachable));
    let mut script = Script::accepted(config(), false);
    script.machine.unreachable(&script.flow(5000), script.iss);
    assert_eq!(script.state(), Some(State::Established));
}

#[test]
fn a_simultaneous_open_meets() {
    let mut script = connecting(config());
    script.expect("SEC", 0, None, 0);
    script.stamps = Some(5);
    script.send(seg("S", 0).options(syn_options()));
    script.expect("SA", 0, Some(1), 0);
    assert_eq!(script.state(), Some(State::SynReceived));
    script.send(seg("SA", 0).ack(1).options(syn_options()));
    script.out.clear();
    script.send(seg("A", 1).ack(1));
    assert_eq!(script.state(), Some(State::Established));
    script.write(100);
    script.expect("AP", 1, Some(1), 100);
}

#[test]
fn a_wrong_ack_of_a_syn_is_reset() {
    let mut script = connecting(config());
    script.expect("SEC", 0, None, 0);
    script.send(seg("SA", 0).ack(9).options(syn_options()));
    script.expect("R", 9, None, 0);
    assert_eq!((script.state(), script.dropped(Drop::BadAck)), (Some(State::SynSent), 1));
}

#[test]
fn a_passive_open_takes_data_with_the_ack() {
    let mut script = Script::new(config());
    script.listener = Some(script.machine.listen(None, 80, 2, None).unwrap());
    script.send(seg("SEC", 0).options(syn_options()));
    let answer = script.expect("SAE", 0, Some(1), 0);
    assert_eq!(
        (answer.header.options.timestamp, answer.header.options.window_scale),
        (None, Some(7))
    );
    assert_eq!(script.machine.usage().half_open, 1);
    script.send(seg("AP", 1).ack(1).data(30));
    script.expect("A", 1, Some(31), 0);
    script.id = script.machine.accept(script.listener.unwrap());
    let usage = script.machine.usage();
    assert_eq!((usage.half_open, usage.connections), (0, 1));
    assert_eq!(script.machine.next_event(), Some((script.id(), Events::READABLE)));
    assert_eq!(script.machine.receive(script.id(), |data| data.len()), 30);
}

#[test]
fn a_syn_ack_is_sent_again_and_given_up() {
    let mut script = Script::new(config());
    script.machine.listen(None, 80, 2, None).unwrap();
    script.send(seg("S", 0).options(syn_options()));
    script.expect("SA", 0, Some(1), 0);
    script.send(seg("S", 0).options(syn_options()));
    script.expect("SA", 0, Some(1), 0);
    script.wait(120 * SECOND);
    assert_eq!((script.out.len(), script.machine.usage().half_open), (5, 0));
    assert_eq!(script.machine.deadline(), None);
}

#[test]
fn a_half_open_connection_can_be_reset_by_its_peer_only() {
    let mut script = Script::new(config());
    script.machine.listen(None, 80, 2, None).unwrap();
    script.send(seg("S", 0).options(syn_options()));
    script.expect("SA", 0, Some(1), 0);
    script.send(seg("R", 2));
    assert_eq!((script.machine.usage().half_open, script.dropped(Drop::BadReset)), (1, 1));
    script.send(seg("A", 1).ack(5));
    script.expect("R", 5, None, 0);
    script.send(seg("R", 1));
    assert_eq!(script.machine.usage().half_open, 0);
    script.expect_nothing();
}

#[test]
fn a_closed_port_answers_with_a_reset() {
    let mut script = Script::new(config());
    script.send(seg("S", 0));
    let reset = script.out.pop_front().unwrap().header;
    assert_eq!((reset.flags, reset.seq.0, reset.ack), (Flags::RST | Flags::ACK, 0, PEER_ISN + 1));
    script.send(seg("A", 5).ack(9).data(10));
    let reset = script.out.pop_front().unwrap().header;
    assert_eq!((reset.flags, reset.seq.0), (Flags::RST, 9));
    script.send(seg("RA", 5).ack(9));
    script.send(seg("SF", 5));
    script.expect_nothing();
    assert_eq!((script.dropped(Drop::NoConnection), script.dropped(Drop::BadFlags)), (3, 1));
}

#[test]
fn an_active_close_waits_and_answers() {
    let mut script = Script::accepted(config(), true);
    let id = script.id();
    script.machine.shut_down(id);
    script.transmit();
    script.expect("FA", 1, Some(1), 0);
    assert_eq!(script.state(), Some(State::FinWait1));
    assert_eq!(script.machine.send_slice(id, b"x"), Err(SendError::Closed));
    script.send(seg("A", 1).ack(2));
    assert_eq!(script.state(), Some(State::FinWait2));
    script.send(seg("AP", 1).ack(2).data(5));
    script.expect("A", 2, Some(6), 0);
    script.send(seg("FA", 6).ack(2));
    script.expect("A", 2, Some(7), 0);
    assert_eq!(script.machine.close_reason(id), Some(CloseReason::Finished));
    // The data that arrived before the close can still be read.
    assert_eq!(script.machine.receive(id, |data| data.len()), 5);
    script.machine.close(id, script.now);
    let usage = script.machine.usage();
    assert_eq!((usage.connections, usage.time_wait, script.machine.state(id)), (0, 1, None));
    // A repeated FIN is acknowledged again. A reset is ignored, and a plain ACK gets no answer.
    script.send(seg("FA", 6).ack(2));
    script.expect("A", 2, Some(7), 0);
    script.send(seg("R", 7));
    script.send(seg("A", 7).ack(2));
    script.expect_nothing();
    assert_eq!(
        (script.machine.usage().time_wait > 0, script.dropped(Drop::TimeWaitReset)),
        (true, 1)
    );
    // A newer SYN opens a new connection, whose numbers start after the old one's (RFC 6191).
    script.send(seg("S", 7).stamp(1001).options(syn_options()));
    let old = script.iss + 2;
    let answer = script.out.pop_front().unwrap();
    assert_eq!(answer.header.flags, Flags::SYN | Flags::ACK);
    assert!(answer.header.seq.after(old + 0xffff));
}

#[test]
fn an_old_syn_does_not_end_time_wait() {
    let mut script = Script::accepted(config(), true);
    script.machine.shut_down(script.id());
    script.transmit();
    script.expect("FA", 1, Some(1), 0);
    script.send(seg("FA", 1).ack(2));
    script.expect("A", 2, Some(2), 0);
    script.send(seg("S", 100).stamp(999).options(syn_options()));
    script.expect("A", 2, Some(2), 0);
    script.wait(61 * SECOND);
    script.send(seg("S", 100).stamp(999).options(syn_options()));
    let answer = script.out.pop_front().unwrap();
    assert_eq!(answer.header.flags, Flags::SYN | Flags::ACK, "the wait is over");
}

#[test]
fn a_simultaneous_close_meets() {
    let mut script = Script::accepted(config(), false);
    script.machine.shut_down(script.id());
    script.transmit();
    script.expect("FA", 1, Some(1), 0);
    script.send(seg("FA", 1).ack(1));
    script.expect("A", 2, Some(2), 0);
    assert_eq!(script.state(), Some(State::Closing));
    script.send(seg("A", 2).ack(2));
    assert_eq!((script.state(), script.machine.usage().time_wait), (Some(State::Closed), 1));
}

#[test]
fn a_passive_close_needs_no_time_wait() {
    let mut script = Script::accepted(config(), false);
    let id = script.id();
    script.send(seg("FA", 1).ack(1));
    script.expect("A", 1, Some(2), 0);
    assert_eq!(script.state(), Some(State::CloseWait));
    assert!(script.machine.next_event().unwrap().1.contains(Events::PEER_CLOSED));
    assert!(script.machine.is_at_end(id));
    script.write(10);
    script.expect("AP", 1, Some(2), 10);
    script.machine.close(id, script.now);
    script.transmit();
    script.expect("FA", 11, Some(2), 0);
    script.send(seg("A", 2).ack(12));
    let usage = script.machine.usage();
    assert_eq!((usage.connections, usage.time_wait), (0, 0));
}

#[test]
fn a_fin_behind_a_gap_waits_for_it() {
    let mut script = Script::accepted(config(), false);
    script.send(seg("FA", 11).ack(1).data(10));
    script.expect("A", 1, Some(1), 0);
    assert_eq!(script.state(), Some(State::Established));
    script.send(seg("A", 1).ack(1).data(10));
    script.expect("A", 1, Some(22), 0);
    assert_eq!(
        (script.state(), script.machine.readable(script.id())),
        (Some(State::CloseWait), 20)
    );
    // The stream has ended: more data is refused.
    script.send(seg("A", 22).ack(1).data(10));
    assert_eq!((script.dropped(Drop::AfterClose), script.machine.readable(script.id())), (1, 20));
}

#[test]
fn a_reset_must_be_at_the_next_number() {
    let mut script = Script::accepted(config(), true);
    script.send(seg("R", 500));
    script.expect("A", 1, Some(1), 0);
    script.send(seg("R", 200_000));
    script.send(seg("R", 0));
    script.expect_nothing();
    assert_eq!((script.dropped(Drop::BlindReset), script.dropped(Drop::BadReset)), (1, 2));
    script.send(seg("R", 1));
    assert_eq!(script.machine.close_reason(script.id()), Some(CloseReason::Reset));
    script.machine.close(script.id(), script.now);
    assert_eq!(script.machine.usage().connections, 0);
    script.expect_nothing();
}

#[test]
fn challenges_are_limited() {
    let mut script = Script::accepted(config(), false);
    for _ in 0..30 {
        script.send(seg("S", 1));
    }
    assert_eq!((script.out.len(), script.dropped(Drop::ChallengeLimit)), (10, 20));
    assert_eq!(script.dropped(Drop::UnexpectedSyn), 30);
    script.wait(SECOND);
    script.out.clear();
    script.send(seg("S", 1));
    script.expect("A", 1, Some(1), 0);
}

#[test]
fn an_ack_of_what_was_never_sent_is_challenged() {
    let mut script = Script::accepted(config(), false);
    script.write(100);
    script.expect("AP", 1, Some(1), 100);
    script.send(seg("A", 1).ack(102).data(10));
    script.expect("A", 101, Some(1), 0);
    script.send(seg("A", 1).ack(0x8000_0000).data(10));
    script.expect("A", 101, Some(1), 0);
    assert_eq!((script.dropped(Drop::BadAck), script.machine.readable(script.id())), (2, 0));
    script.send(seg("P", 1).data(10));
    assert_eq!(script.dropped(Drop::NoAck), 1);
}

#[test]
fn unread_data_means_reset() {
    let mut script = Script::accepted(config(), false);
    script.send(seg("A", 1).ack(1).data(10));
    script.expect("A", 1, Some(11), 0);
    script.machine.close(script.id(), script.now);
    script.transmit();
    script.expect("RA", 1, Some(11), 0);
    let usage = script.machine.usage();
    assert_eq!((usage.connections, usage.memory), (0, 0));
}

#[test]
fn data_for_an_application_that_has_gone_means_reset() {
    let mut script = Script::accepted(config(), false);
    script.machine.close(script.id(), script.now);
    script.transmit();
    script.expect("FA", 1, Some(1), 0);
    script.send(seg("A", 1).ack(2).data(10));
    script.expect("RA", 2, Some(1), 0);
    assert_eq!((script.machine.usage().connections, script.dropped(Drop::AfterClose)), (0, 1));
}

#[test]
fn an_orphan_is_given_up() {
    let mut script = Script::accepted(config(), false);
    script.machine.close(script.id(), script.now);
    script.transmit();
    script.expect("FA", 1, Some(1), 0);
    script.send(seg("A", 1).ack(2));
    assert_eq!(script.machine.usage().connections, 1);
    script.wait(101 * SECOND);
    script.expect("RA", 2, Some(1), 0);
    assert_eq!(script.machine.usage().connections, 0);
}

#[test]
fn an_abort_resets() {
    let mut script = Script::accepted(config(), false);
    script.write(10);
    script.expect("AP", 1, Some(1), 10);
    let id = script.id();
    script.machine.abort(id, script.now);
    script.transmit();
    script.expect("RA", 11, Some(1), 0);
    assert_eq!((script.machine.usage().connections, script.machine.state(id)), (0, None));
    // A stale handle does no harm.
    script.machine.abort(id, script.now);
    assert_eq!(script.machine.send(id, "x".into()).unwrap_err().0, SendError::Closed);
}

#[test]
fn a_full_accept_queue_drops() {
    let mut script = Script::new(config());
    let listener = script.machine.listen(None, 80, 1, None).unwrap();
    for port in [1, 2] {
        script.send(seg("S", 0).port(port).options(syn_options()));
        script.expect("SA", 0, Some(1), 0);
    }
    // Each connection has an initial sequence number of its own.
    let second = script.iss;
    script.send(seg("S", 0).port(1).options(syn_options()));
    script.expect("SA", 0, Some(1), 0);
    script.send(seg("A", 1).ack(1).port(1));
    script.iss = second;
    script.send(seg("A", 1).ack(1).port(2));
    script.send(seg("S", 0).port(3).options(syn_options()));
    script.expect_nothing();
    assert_eq!((script.machine.waiting(listener), script.dropped(Drop::AcceptFull)), (1, 2));
    // The second connection is still half-open, and enters the queue when there is room.
    assert!(script.machine.accept(listener).is_some());
    script.send(seg("A", 1).ack(1).port(2));
    assert!(script.machine.accept(listener).is_some());
}

#[test]
fn a_full_syn_queue_answers_by_cookies() {
    let mut script = Script::new(Config { max_half_open: 1, ..config() });
    script.stamps = Some(9);
    let listener = script.machine.listen(None, 80, 8, None).unwrap();
    script.send(seg("S", 0).port(1).options(syn_options()));
    script.expect("SA", 0, Some(1), 0);
    script.send(seg("SEC", 0).port(2).options(syn_options()));
    let cookie = script.expect("SAE", 0, Some(1), 0);
    assert!(cookie.header.options.sack_permitted && cookie.header.options.window_scale.is_some());
    assert_eq!((script.machine.usage().half_open, script.machine.usage().connections), (1, 0));
    // Data before the start of its stream is dropped for a while, then reset.
    script.send(seg("A", 10).port(2).ack(1));
    script.expect_nothing();
    let kept = script.last_value;
    script.wait(4 * SECOND);
    script.out.clear();
    script.send(seg("A", 10).port(2).ack(1));
    script.expect("R", 1, None, 0);
    script.last_value = kept;
    // The right cookie makes a connection with all options and its data.
    script.send(seg("A", 1).port(2).ack(1).data(20).window(1000));
    let ack = script.expect("A", 1, Some(21), 0);
    assert_eq!(ack.header.options.timestamp.unwrap().echo, 9);
    script.id = script.machine.accept(listener);
    let path = script.machine.path(script.id()).unwrap();
    assert_eq!((path.send_window, path.mss), (1000 << 7, 1448));
    let counters = script.counters();
    assert_eq!(
        (counters.cookies_out, counters.cookies_in, counters.dropped(Drop::BadCookie)),
        (1, 1, 2)
    );
}

#[test]
fn without_timestamps_a_cookie_has_no_options() {
    let mut script = Script::new(Config { max_half_open: 0, ..config() });
    let listener = script.machine.listen(None, 80, 8, None).unwrap();
    script.send(seg("S", 0).options(syn_options()));
    let cookie = script.expect("SA", 0, Some(1), 0);
    assert_eq!(
        (cookie.header.options.sack_permitted, cookie.header.options.window_scale),
        (false, None)
    );
    script.send(seg("A", 1).ack(1).window(1000));
    script.id = script.machine.accept(listener);
    assert_eq!(script.machine.path(script.id()).unwrap().send_window, 1000);
}

#[test]
fn a_syn_flood_is_bounded() {
    let mut script = Script::new(Config { max_half_open: 100, max_replies: 64, ..config() });
    script.machine.listen(None, 80, 8, None).unwrap();
    let flood: Vec<_> = (1..60_000).map(|port| seg("S", 0).port(port)).collect();
    script.batch(&flood);
    let counters = script.counters();
    assert_eq!((script.out.len(), script.machine.usage().half_open), (64, 100));
    assert_eq!(counters.dropped(Drop::RepliesFull), 59_999 - 64);
}

#[test]
fn ports_and_tables_have_an_end() {
    let mut script =
        Script::new(Config { max_connections: 2, ephemeral: 50_000..=50_001, ..config() });
    let now = script.now;
    let mut connect = |remote: u16| script.machine.connect((v4(1), 0), (v4(2), remote), None, now);
    assert!(connect(1).is_ok() && connect(1).is_ok());
    assert_eq!(connect(1), Err(OpenError::NoPort));
    assert_eq!(connect(2), Err(OpenError::Full));
    assert_eq!(script.machine.connect((v4(1), 0), (v6(2), 1), None, now), Err(OpenError::Family));
    script.machine.listen(Some(v4(9)), 80, 1, None).unwrap();
    assert_eq!(script.machine.listen(None, 80, 1, None), Err(OpenError::InUse));
    script.out.clear();
    script.send(seg("S", 0));
    let reset = script.out.pop_front().unwrap().header.flags;
    assert_eq!(reset, Flags::RST | Flags::ACK, "the listener has another address");
}

#[test]
fn stopping_a_listener_resets_waiting_connections() {
    let mut script = Script::new(config());
    let listener = script.machine.listen(None, 80, 8, None).unwrap();
    script.send(seg("S", 0).options(syn_options()));
    script.expect("SA", 0, Some(1), 0);
    script.send(seg("A", 1).ack(1).data(5));
    script.out.clear();
    script.machine.stop_listening(listener, script.now);
    script.transmit();
    script.expect("RA", 1, Some(6), 0);
    assert_eq!((script.machine.usage().connections, script.machine.accept(listener)), (0, None));
}

#[test]
fn a_connection_that_ended_in_the_queue_is_told_when_accepted() {
    let mut script = Script::new(config());
    let listener = script.machine.listen(None, 80, 8, None).unwrap();
    script.send(seg("S", 0).options(syn_options()));
    script.expect("SA", 0, Some(1), 0);
    script.send(seg("A", 1).ack(1).data(5));
    script.send(seg("R", 6));
    let id = script.machine.accept(listener).unwrap();
    assert_eq!(script.machine.next_event(), Some((id, Events::READABLE | Events::CLOSED)));
    assert_eq!(script.machine.receive(id, |data| data.len()), 5);
    script.machine.close(id, script.now);
    assert_eq!((script.machine.usage().connections, script.machine.usage().memory), (0, 0));
}

#[test]
fn a_flood_costs_an_honest_connection_nothing() {
    let mut script = Script::accepted(Config { max_half_open: 10, ..config() }, false);
    let mut seq = 1;
    for round in 0..50u16 {
        let mut batch: Vec<_> =
            (0..64).map(|i| seg("S", 0).port(10_000 + round * 64 + i)).collect();
        batch.insert(32, seg("A", seq).ack(1).data(100));
        script.batch(&batch);
        seq += 100;
        script.machine.receive(script.id(), |data| data.len());
        assert!(script.out.len() <= 65, "{}", script.out.len());
        script.out.clear();
    }
    let usage = script.machine.usage();
    assert_eq!((script.counters().bytes_in, usage.half_open, usage.connections), (5000, 10, 1));
}
