//! Kicks and interrupts: they come when wanted, are left out otherwise, and are never lost.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nic::virtio::Features;
use port::{Egress, Ingress, Nanos, Scratch};
use support::{BASE, Guest, HEADER, LIMITS, forward, pattern};

fn kinds() -> impl Iterator<Item = Features> {
    let choices = [Features::empty(), Features::RING_PACKED];
    let events = [Features::empty(), Features::EVENT_IDX];
    choices.into_iter().flat_map(move |kind| events.map(|event| BASE | kind | event))
}

fn send(guest: &mut Guest) -> bool {
    assert!(guest.send([0; HEADER], &pattern(60, 0), &[], false));
    guest.driver.publish()
}

#[test]
fn the_driver_kicks_only_a_device_that_is_armed() {
    for features in kinds() {
        let (mut sender, mut taker) = (Guest::new(features, 8), Guest::new(features, 8));
        let (mut from, to) = (sender.transmit(), taker.receiver());
        // A device that never asked seems to ask for the first index.
        send(&mut sender);
        for _ in 0..20 {
            taker.add(&[200], true, false).expect("room");
            taker.driver.publish();
            assert_eq!(forward(&mut from, &to, LIMITS).0, 1);
            assert!(!from.arm(), "nothing to do");
            assert!(send(&mut sender), "{features:?}: armed");
            assert!(from.has_work());
            from.disarm();
            assert!(!send(&mut sender), "{features:?}: awake");
            assert!(from.arm(), "work came before it was armed");
            assert!(!send(&mut sender), "{features:?}: so it is awake");
            taker.add(&[200], true, false).expect("room");
            taker.add(&[200], true, false).expect("room");
            taker.driver.publish();
            assert_eq!(forward(&mut from, &to, LIMITS).0, 3);
            send(&mut sender);
            sender.reap();
            while taker.receive().is_some() {}
        }
    }
}

#[test]
fn the_device_interrupts_only_a_driver_that_asked() {
    for features in kinds() {
        let (mut sender, mut taker) = (Guest::new(features, 8), Guest::new(features, 8));
        let (mut from, to) = (sender.transmit(), taker.receiver());
        let mut round = |asks: bool, frames: usize| {
            sender.driver.want_interrupts(asks);
            taker.driver.want_interrupts(asks);
            for _ in 0..frames {
                send(&mut sender);
                taker.add(&[200], true, false).expect("room");
                taker.driver.publish();
            }
            let (_, _, sent, received) = forward(&mut from, &to, LIMITS);
            assert_eq!(sender.reap(), frames);
            for _ in 0..frames {
                taker.receive().expect("a frame");
            }
            (sent.kick, received.kick)
        };
        assert_eq!(
            round(false, 1),
            (true, true),
            "a new device does not know what was said before"
        );
        for i in 0..30 {
            assert_eq!(round(false, 1 + i % 3), (false, false), "{features:?} {i}");
            assert_eq!(round(true, 1 + i % 4), (true, true), "{features:?} {i}");
        }
        assert!(!from.settle(Nanos(0)).kick, "nothing new");
        assert!(!to.settle(Nanos(0)).kick);
    }
}

/// A side that sleeps until it is woken. If it waits too long, a wake-up was lost.
struct Sleep(mpsc::Receiver<()>);

impl Sleep {
    fn until_woken(&self) {
        self.0.recv_timeout(Duration::from_secs(60)).expect("a wake-up was lost");
    }
}

#[test]
fn no_wake_up_is_lost_between_two_threads() {
    const FRAMES: u64 = 20_000;
    for features in kinds() {
        let mut guest = Guest::new(features, 4);
        let mut from = guest.transmit();
        let (kick, kicked) = mpsc::channel();
        let (interrupt, interrupted) = mpsc::channel();
        let sleeps = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (kicked, interrupt) = (Sleep(kicked), interrupt);
                let mut scratch = Scratch::new(64);
                let mut frames = 0;
                while frames < FRAMES {
                    scratch.clear();
                    let gathered = from.gather(&mut scratch, 64, Nanos(0));
                    if gathered == 0 && !from.arm() {
                        sleeps.fetch_add(1, Ordering::Relaxed);
                        kicked.until_woken();
                        from.disarm();
                    }
                    from.complete(gathered);
                    std::sync::atomic::fence(Ordering::SeqCst);
                    if gathered > 0 && from.settle(Nanos(0)).kick {
                        let _ = interrupt.send(());
                    }
                    frames += gathered as u64;
                }
            });
            let interrupted = Sleep(interrupted);
            let mut sent = 0;
            while sent < FRAMES {
                guest.reap();
                if guest.driver.room() == 0 {
                    guest.driver.want_interrupts(true);
                    if guest.reap() == 0 {
                        interrupted.until_woken();
                    }
                    guest.driver.want_interrupts(false);
                    continue;
                }
                if send(&mut guest) {
                    let _ = kick.send(());
                }
                sent += 1;
            }
        });
        assert!(sleeps.into_inner() > 0, "{features:?}: it never slept");
    }
}
