use std::os::fd::OwnedFd;

use netring::{PipeConfig, Port};

use super::*;
use crate::interface::Descriptors;

const UNCHANGED: Descriptors = Descriptors { raise: |fd: OwnedFd| fd, lower: |_| () };

/// Returns a port, and an interface over its other end.
fn interface() -> (Port, Arc<Interface>) {
    let (far, near) = netring::pipe(&PipeConfig::default()).unwrap();
    let device = Device::parse("vale0:p}1").unwrap();
    (far, Arc::new(Interface::over(device, near, true, UNCHANGED)))
}

fn capture(interface: &Arc<Interface>, change: impl FnOnce(&mut Settings)) -> Capture {
    let capture = Capture::new(interface.device().clone());
    capture.set(change).unwrap();
    capture.activate(|_| Ok(Arc::clone(interface))).unwrap();
    capture
}

fn send(port: &mut Port, frames: &[&[u8]]) {
    frames.iter().for_each(|frame| assert!(port.send(8).push(frame)));
    port.flush().unwrap();
}

fn dispatch(capture: &Capture, most: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    capture.run(most, Until::Empty, |frame| got.push(frame.bytes.to_vec())).unwrap();
    got
}

#[test]
fn frames_come_in_order_and_cut_to_the_snapshot() {
    let (mut far, interface) = interface();
    let capture = capture(&interface, |settings| settings.snapshot = 4);
    capture.set_nonblocking(true);
    send(&mut far, &[b"abc", b"defgh", b"i"]);
    assert_eq!(dispatch(&capture, 2), [&b"abc"[..], b"defg"]);
    let mut len = 0;
    assert_eq!(capture.next(|frame| len = frame.len).unwrap(), Next::Frame);
    assert_eq!(len, 1);
    assert_eq!(capture.next(|_| ()).unwrap(), Next::Timeout);
}

#[test]
fn each_capture_of_a_port_gets_what_passes_its_filter() {
    let (mut far, interface) = interface();
    let all = capture(&interface, |_| ());
    let some = capture(&interface, |_| ());
    some.set_filter(Some("4,48 0 0 0,21 0 1 98,6 0 0 65535,6 0 0 0".parse().unwrap())).unwrap();
    all.set_nonblocking(true);
    some.set_nonblocking(true);
    send(&mut far, &[b"aa", b"bb", b"bc"]);
    assert_eq!(dispatch(&all, 0), [b"aa", b"bb", b"bc"]);
    assert_eq!(dispatch(&some, 0), [b"bb", b"bc"]);
    assert_eq!(some.counts().unwrap(), Counts { received: 2, dropped: 0 });
}

#[test]
fn what_a_slow_reader_has_no_room_for_is_counted() {
    let (mut far, interface) = interface();
    let slow = capture(&interface, |settings| settings.buffer = 200);
    let fast = capture(&interface, |_| ());
    slow.set_nonblocking(true);
    fast.set_nonblocking(true);
    for _ in 0..10 {
        send(&mut far, &[&[7; 100]]);
        assert_eq!(dispatch(&fast, 0).len(), 1);
    }
    let Counts { received, dropped } = slow.counts().unwrap();
    assert_eq!(received, 10);
    assert_eq!(dropped + dispatch(&slow, 0).len() as u64, 10);
    assert!(dropped > 0, "200 bytes hold no ten frames of 100");
}

#[test]
fn a_stop_ends_a_loop_that_waits_and_one_that_is_to_come() {
    let (_far, interface) = interface();
    let capture = capture(&interface, |_| ());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| capture.run(0, Until::Full, |_| ()));
        capture.stop();
        assert_eq!(waits.join().unwrap().unwrap_err().code, Code::Break);
    });
    capture.stop();
    assert_eq!(capture.next(|_| ()).unwrap_err().code, Code::Break);
    capture.set_nonblocking(true);
    assert_eq!(capture.next(|_| ()).unwrap(), Next::Timeout, "the stop is used up");
}

#[test]
fn a_sleeper_is_woken_by_a_frame_also_after_another_reader_took_it() {
    let (mut far, interface) = interface();
    let [one, two] = [0, 1].map(|_| capture(&interface, |_| ()));
    std::thread::scope(|scope| {
        let sleepers = [&one, &two].map(|capture| {
            scope
                .spawn(|| (0..100).map(|_| capture.next(|_| ()).unwrap()).all(|n| n == Next::Frame))
        });
        for _ in 0..100 {
            send(&mut far, &[b"frame"]);
            std::thread::yield_now();
        }
        assert!(sleepers.map(|sleeper| sleeper.join().unwrap()) == [true; 2]);
    });
}

#[test]
fn a_callback_may_send_and_read_on_its_own_capture() {
    let (mut far, interface) = interface();
    let capture = capture(&interface, |_| ());
    capture.set_nonblocking(true);
    send(&mut far, &[b"1", b"2"]);
    let mut order = Vec::new();
    let count = capture.run(0, Until::Empty, |frame| {
        order.push(frame.bytes[0]);
        capture.interface().unwrap().send(b"answer").unwrap();
        if order.len() == 1 {
            send(&mut far, &[b"3"]);
            let mut third = 0;
            capture.next(|frame| third = frame.bytes[0]).unwrap();
            order.push(third);
        }
    });
    assert_eq!((count.unwrap(), order), (2, b"132".to_vec()));
    assert_eq!(far.receive(8).count(), 2);
}

#[test]
fn the_descriptor_is_readable_exactly_when_there_is_something_to_read() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (mut far, interface) = interface();
    let capture = capture(&interface, |_| ());
    capture.set_nonblocking(true);
    let fd = capture.descriptor().unwrap();
    let is_readable = || {
        // SAFETY: the descriptor belongs to the capture, which keeps it open.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    assert!(!is_readable());
    send(&mut far, &[b"a", b"b"]);
    assert!(is_readable());
    assert_eq!(dispatch(&capture, 1).len(), 1);
    assert!(is_readable(), "one is left");
    assert_eq!(dispatch(&capture, 0).len(), 1);
    assert!(!is_readable(), "none is left");
    send(&mut far, &[b"c"]);
    assert!(is_readable(), "it is told of the next one, too");
}

#[test]
fn settings_stand_once_a_capture_is_activated() {
    let (_far, interface) = interface();
    let fresh = Capture::new(interface.device().clone());
    assert_eq!(fresh.next(|_| ()).unwrap_err().code, Code::NotActivated);
    assert_eq!(fresh.interface().unwrap_err().code, Code::NotActivated);
    let capture = capture(&interface, |_| ());
    assert_eq!(capture.set(|_| ()).unwrap_err().code, Code::Activated);
    let again = capture.activate(|_| Ok(Arc::clone(&interface)));
    assert_eq!(again.unwrap_err().code, Code::Activated);
}

#[test]
fn what_is_no_frame_is_not_sent() {
    let (_far, interface) = interface();
    assert_eq!(interface.send(b"").unwrap_err().errno, Errno::MSGSIZE);
    let long = vec![0; 10 << 20];
    assert!(interface.send(&long).is_err());
    let (_far, near) = netring::pipe(&PipeConfig::default()).unwrap();
    let device = Device::parse("vale0:p").unwrap();
    let monitor = Interface::over(device, near, false, UNCHANGED);
    assert_eq!(monitor.send(b"frame").unwrap_err().errno, Errno::BUSY);
}

#[test]
fn a_timeout_ends_a_call_without_frames() {
    let (_far, interface) = interface();
    let capture = capture(&interface, |settings| settings.timeout = Some(Duration::from_millis(5)));
    assert_eq!(capture.next(|_| ()).unwrap(), Next::Timeout);
    assert_eq!(capture.run(0, Until::Empty, |_| ()).unwrap(), 0);
}
