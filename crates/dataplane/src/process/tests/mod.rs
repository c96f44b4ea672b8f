//! Tests of the control thread without a supervisor: they call its methods as commands would.

mod devices;

use std::time::Instant;

use port::{Effects, Ingress, Scratch};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use shmem::Pages;
use turn::attach::Source;
use turn::serve::Served;

use super::*;
use crate::attach::virtio::{VhostUserConfig, message};
use crate::config::{Attachment, Policy, WorkerConfig};
use rustix::net::sockopt;

fn process(config: SwitchConfig) -> Process {
    let memory = Memfd::create("state", state::file_size(&config), Pages::Small).unwrap();
    Process::start(memory, "test".to_owned(), config).unwrap()
}

fn add(process: &mut Process, id: PortId, policy: Policy) -> Result<(), String> {
    let name = format!("p{id}");
    let config =
        PortConfig { name, policy, worker: None, attachment: Attachment::Null, uid: 0, pid: None };
    let (worker, served) = process.add_port(id, config, Vec::new(), false)?;
    process.publish();
    process.common.workers[usize::from(worker)].send(Job::Serve(served));
    Ok(())
}

/// A send queue with a bug.
struct Broken;

impl Source for Broken {
    fn queues(&self) -> usize {
        1
    }

    fn queue(&mut self, _queue: usize) -> Option<&mut dyn Ingress> {
        Some(self)
    }
}

impl Ingress for Broken {
    fn gather(&mut self, _scratch: &mut Scratch, _max: usize, _now: Nanos) -> usize {
        panic!("a bug, for the test")
    }

    fn complete(&mut self, _frames: usize) {}

    fn settle(&mut self, _now: Nanos) -> Effects {
        Effects::default()
    }
}

#[test]
fn a_port_whose_code_panics_leaves_the_table_until_it_is_removed() {
    let mut process = process(SwitchConfig { max_ports: 4, ..SwitchConfig::default() });
    for id in 0..2 {
        add(&mut process, id, Policy::default()).unwrap();
    }
    drop(process.release(1, 0).unwrap());
    let state = process.state.port(1).unwrap();
    let served = Served::new(1, Box::new(Broken), state.ingress().unwrap(), clock());
    process.common.workers[0].send(Job::Serve(Box::new(served)));
    let started = Instant::now();
    assert!(!state.has_failed());
    // A reader of the state memory sees the failure.
    while !state.has_failed() {
        assert!(started.elapsed() < Duration::from_secs(60), "the worker survives it and says so");
        std::thread::yield_now();
        process.take_out_failed();
    }
    let egresses = |process: &Process, id: usize| {
        process.ports[id].as_ref().map(|record| record.spec.egresses.len())
    };
    assert_eq!((egresses(&process, 0), egresses(&process, 1)), (Some(1), Some(0)));
    assert_eq!(process.state.workers(1)[0].panics, 1);
    assert!(process.move_port(1, 0).unwrap_err().contains("failed"));
    let removed = process.take_port(1).unwrap();
    process.publish();
    process.retire_port(removed);
    assert!(!state.has_failed());
    add(&mut process, 1, Policy::default()).unwrap();
    assert_eq!(egresses(&process, 1), Some(1), "the number serves again");
    process.finish();
}

#[test]
fn a_worker_whose_cpu_is_not_there_runs_on_any() {
    let on = |cpu| WorkerConfig { cpu };
    let workers = vec![on(Some(u16::MAX)), on(Some(1023)), on(None)];
    let process = process(SwitchConfig { max_ports: 4, workers, ..SwitchConfig::default() });
    assert_eq!(process.state.workers(3).iter().map(|w| w.cpu).collect::<Vec<_>>(), [None; 3]);
    process.finish();
}

#[test]
fn addresses_that_find_no_room_are_refused_and_change_nothing() {
    let config = SwitchConfig { max_ports: 4, fdb_entries: 16, ..SwitchConfig::default() };
    let mut process = process(config);
    let policy = |macs: std::ops::Range<u32>| Policy {
        macs: macs.map(frame::Mac::local).collect(),
        ..Policy::default()
    };
    let refused = add(&mut process, 0, policy(1..1000)).unwrap_err();
    assert!(refused.contains("fdb_entries"), "{refused}");
    assert!(!process.state.switch().has_port(0) && process.common.fdb.is_empty());
    add(&mut process, 0, policy(1..3)).unwrap();
    process.set_policy(0, &policy(1..1000)).unwrap_err();
    assert_eq!(process.common.fdb.len(), 2);
    assert_eq!(process.ports[0].as_ref().unwrap().config.policy, policy(1..3));
    process.finish();
}

#[test]
fn ports_added_and_removed_in_a_row_are_answered_in_order() {
    let mut process = process(SwitchConfig { max_ports: 4, ..SwitchConfig::default() });
    let (ours, theirs) = pair(SocketType::SEQPACKET);
    let add = |id: PortId| {
        let (name, attachment) = (format!("p{id}"), Attachment::Null);
        let config = PortConfig {
            name,
            policy: Policy::default(),
            worker: None,
            attachment,
            uid: 0,
            pid: None,
        };
        Command::AddPort { id, config, resume: false }
    };
    let remove = |id| Command::RemovePort { id };
    let commands = [add(0), add(1), add(2), remove(1), remove(3), remove(0), add(1), remove(1)];
    for command in commands.into_iter().chain([Command::ListPorts]) {
        control::send(&theirs, &command, &[]).unwrap();
    }
    while is_readable(ours.as_fd()) {
        process.answer(ours.as_fd()).unwrap();
    }
    let mut answers = Vec::new();
    while is_readable(theirs.as_fd()) {
        answers.push(control::receive::<Answer>(&theirs).unwrap().0);
    }
    let there = |answer: &Answer| matches!(answer, Answer::Port { id: 2, .. });
    let failed = |answer: &Answer| matches!(answer, Answer::Failed { .. });
    let (added, done) = (Answer::Added { worker: 0 }, Answer::Done);
    assert_eq!(answers[..4], [added.clone(), added.clone(), added.clone(), done.clone()]);
    assert!(failed(&answers[4]), "there is no port 3");
    assert_eq!(answers[5..8], [done.clone(), added, done.clone()]);
    assert!(there(&answers[8]) && answers[9] == done && answers.len() == 10);
    assert_eq!(process.state.workers(1)[0].ports, 1);
    process.finish();
}

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

/// Adds a guest's port, number 0; returns the front end's socket.
fn add_guest(process: &mut Process, resume: bool) -> OwnedFd {
    let (front_end, socket) = pair(SocketType::STREAM);
    let attachment = VhostUserConfig { queue_pairs: 1 }.into();
    let (name, policy) = ("guest".to_owned(), Policy::default());
    let config = PortConfig { name, policy, worker: None, attachment, uid: 0, pid: None };
    process.add_port(0, config, vec![socket.into()], resume).unwrap();
    front_end
}

/// Puts code with a bug into a port's place, and waits until its worker has hit the bug.
fn break_port(process: &mut Process, id: PortId) {
    let panics = process.state.workers(1)[0].panics;
    drop(process.release(id, 0));
    let counters = process.state.port(id).unwrap().ingress().unwrap();
    let served = Served::new(id, Box::new(Broken), counters, clock());
    process.common.workers[0].send(Job::Serve(Box::new(served)));
    let started = Instant::now();
    while process.state.workers(1)[0].panics == panics {
        assert!(started.elapsed() < Duration::from_secs(60), "the worker survives it and says so");
        std::thread::yield_now();
    }
}

#[test]
fn regression_a_guests_port_that_failed_is_not_served_at_its_next_message() {
    let mut process = process(SwitchConfig { max_ports: 1, ..SwitchConfig::default() });
    // In the first case the control thread already knows of the failure. In the second it finds out
    // when it makes the port's halves again.
    for known in [true, false] {
        let front_end = add_guest(&mut process, false);
        let announce = |process: &mut Process| {
            let rarp = message::code::SEND_RARP;
            message::send(&front_end, rarp, false, &[2; 8], &[]).unwrap();
            process.serve_guest(0);
        };
        announce(&mut process);
        assert!(process.release(0, 0).is_some(), "it is served");
        break_port(&mut process, 0);
        if known {
            process.take_out_failed();
        }
        for _ in 0..2 {
            announce(&mut process);
            assert!(process.release(0, 0).is_none(), "served, {known}");
            assert!(process.has_failed(0), "{known}");
            assert_eq!(process.ports[0].as_ref().unwrap().spec.egresses.len(), 0, "{known}");
        }
        message::send(&front_end, message::code::GET_FEATURES, false, &[], &[]).unwrap();
        process.serve_guest(0);
        assert!(is_readable(front_end.as_fd()), "it is answered");
        // Removes and adds the port, as when the front end connects again.
        let removed = process.take_port(0).unwrap();
        process.publish();
        process.retire_port(removed);
        assert!(!process.has_failed(0));
    }
    let front_end = add_guest(&mut process, false);
    message::send(&front_end, message::code::SEND_RARP, false, &[2; 8], &[]).unwrap();
    process.serve_guest(0);
    assert!(process.release(0, 0).is_some(), "the next one is served");
    process.finish();
}

#[test]
fn regression_what_a_supervisor_did_not_take_in_time_is_kept_once_it_does() {
    let mut process = process(SwitchConfig { max_ports: 1, ..SwitchConfig::default() });
    let (ours, keeper) = pair(SocketType::SEQPACKET);
    sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
    sockopt::set_socket_timeout(&ours, sockopt::Timeout::Send, Some(Duration::from_millis(1)))
        .unwrap();
    process.supervisor = Some(ours);
    let front_end = add_guest(&mut process, false);
    let mut calls = Vec::new();
    for _ in 0..100 {
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let call = rustix::event::eventfd(0, flags).unwrap();
        message::send(&front_end, message::code::SET_VRING_CALL, false, &[0; 8], &[call.as_fd()])
            .unwrap();
        process.serve_guest(0);
        calls.push(call);
    }
    let kept_calls = || {
        let mut kept = Vec::new();
        while is_readable(keeper.as_fd()) {
            match control::receive::<Answer>(&keeper).unwrap() {
                (Answer::Keep { key, .. }, fds) if key == "call 0" => kept.extend(fds),
                _ => {}
            }
        }
        kept
    };
    assert!((1..100).contains(&kept_calls().len()), "it was to have no room for all");
    process.look_after_guests();
    let kept = kept_calls();
    assert_eq!(kept.len(), 1);
    turn::signal(kept[0].as_fd());
    assert!(rustix::io::read(&calls[99], &mut [0; 8]).is_ok(), "not the last one");
    process.finish();
}

/// If an announcement counted as a queue, frames of a guest with one queue would not be spread over
/// a receiver's queues.
#[test]
fn regression_an_announcement_is_no_queue_of_the_guest() {
    let mut process = process(SwitchConfig { max_ports: 1, ..SwitchConfig::default() });
    let front_end = add_guest(&mut process, false);
    let mut say = |code, words: &[u64], fds: &[BorrowedFd<'_>]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        message::send(&front_end, code, false, &bytes, fds).unwrap();
        process.serve_guest(0);
        let record = process.ports[0].as_ref().unwrap();
        (record.guest.as_ref().unwrap().front_end().is_live(), record.spec.send_queues)
    };
    // Runs with and without a running queue.
    let announce = [u64::from_ne_bytes([2; 8])];
    assert_eq!(say(message::code::SEND_RARP, &announce, &[]), (true, 1), "it is announced");
    let memory = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 1 << 16).unwrap();
    let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    say(message::code::SET_FEATURES, &[1 << 32], &[]);
    say(message::code::SET_MEM_TABLE, &[1, 0, 1 << 16, 1 << 40, 0], &[memory.as_fd()]);
    say(message::code::SET_VRING_NUM, &[1 | 8 << 32], &[]);
    let [descriptors, used, available] = [0, 1 << 12, 2 << 12].map(|at| (1 << 40) + at);
    say(message::code::SET_VRING_ADDR, &[1, descriptors, used, available, 0], &[]);
    assert_eq!(say(message::code::SET_VRING_KICK, &[1], &[kick.as_fd()]), (true, 1), "it runs");
    assert_eq!(say(message::code::SEND_RARP, &announce, &[]), (true, 1), "and is announced");
    process.finish();
}

#[test]
fn what_is_kept_says_whether_the_message_it_is_of_was_taken() {
    let mut process = process(SwitchConfig { max_ports: 1, ..SwitchConfig::default() });
    let (ours, keeper) = pair(SocketType::SEQPACKET);
    process.supervisor = Some(ours);
    let front_end = add_guest(&mut process, false);
    let memory = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    let region: Vec<u8> =
        [0, 0, 4096, 1 << 40, 0_u64].iter().flat_map(|word| word.to_ne_bytes()).collect();
    message::send(&front_end, message::code::ADD_MEM_REG, false, &region, &[memory.as_fd()])
        .unwrap();
    process.serve_guest(0);
    let mut kept = Vec::new();
    while is_readable(keeper.as_fd()) {
        match control::receive::<Answer>(&keeper).unwrap().0 {
            Answer::Keep { key, value, .. } if key == "session" => {
                kept.push((!value["untaken"].is_null(), value["slots"].as_array().unwrap().len()));
            }
            _ => {}
        }
    }
    assert_eq!(kept, [(true, 1), (false, 1)]);
    process.finish();
}

/// Restores what a data process kept, as far as `until` allows, in a successor. True if that hangs
/// up.
fn is_hung_up_on(until: impl Fn(&Answer) -> bool) -> bool {
    let mut first = process(SwitchConfig { max_ports: 1, ..SwitchConfig::default() });
    let (ours, keeper) = pair(SocketType::SEQPACKET);
    first.supervisor = Some(ours);
    let front_end = add_guest(&mut first, false);
    message::send(&front_end, message::code::GET_FEATURES, false, &[], &[]).unwrap();
    first.serve_guest(0);
    let mut next = process(SwitchConfig { max_ports: 1, ..SwitchConfig::default() });
    while is_readable(keeper.as_fd()) {
        let (answer, fds) = control::receive::<Answer>(&keeper).unwrap();
        if until(&answer) {
            break;
        }
        match answer {
            Answer::Keep { id, key, value, .. } => {
                drop(next.restore(id, 0, key, value, fds).unwrap())
            }
            Answer::Forget { id, key } => drop(next.restored.get_mut(&id).unwrap().remove(&key)),
            answer => panic!("{answer:?}"),
        }
    }
    let front_end = add_guest(&mut next, true);
    // The hang-up is done by another thread. A front end that is still connected gets an answer.
    let _ = message::send(&front_end, message::code::GET_FEATURES, false, &[], &[]);
    next.serve_guest(0);
    let reply = rustix::net::recv(&front_end, &mut [0; 64][..], RecvFlags::empty());
    let hung_up = !matches!(reply, Ok((_, 1..)));
    first.finish();
    next.finish();
    hung_up
}

/// The message is taken and its reply is missing, so the front end would wait forever.
#[test]
fn regression_after_a_death_while_answering_the_front_end_starts_over() {
    assert!(is_hung_up_on(|answer| matches!(answer, Answer::Forget { .. })));
    assert!(!is_hung_up_on(|_| false), "it had answered");
    assert!(!is_hung_up_on(|_| true), "nothing was taken from the socket");
}
