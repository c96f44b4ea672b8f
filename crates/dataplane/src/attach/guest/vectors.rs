//! The interrupts of a device, raised through eventfds of its front end.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nic::device::{Device, Interrupt, InterruptMode};
use nic::pci::Config;
use port::Nanos;
use shmem::Shared;
use turn::attach::{QueueBells, Side, WakeOutcome};
use turn::state::BusCounters;
use turn::user::Waker;

use super::moderation::Moderation;

/// The time that means that no caller is about to ask.
const NEVER: u64 = u64::MAX;

/// Where the interrupts of a device go. Any worker may ask for them.
pub struct Vectors {
    device: Arc<dyn Device>,
    mode: InterruptMode,
    /// By vector.
    eventfds: Box<[Option<Arc<Waker>>]>,
    pin: Arc<Pin>,
    config: Arc<Config>,
    counters: Option<Shared<BusCounters>>,
    /// Moderation in addition to the device's own.
    moderation: Option<Moderation>,
    /// When a thread asks again by itself; [`NEVER`] if none will.
    ///
    /// # Protocol: `Vectors.asked_at` (held back interrupts of a card)
    /// - Writer: the thread that asks the device (`fetch_min`), the thread that asks late (store
    ///   `SeqCst`, fence)
    /// - Reader: the same
    /// - Ordering: `fetch_min` acquire-release: cleared before the device is asked
    /// - Partner: `Device::interrupt`
    /// - Without it: no thread asks for an interrupt that is due
    /// - Shown by: `vectors` tests
    asked_at: AtomicU64,
    /// Wakes the home worker, where guest memory is a copy that the home worker has to push.
    ///
    /// # Protocol: `Vectors.nudge` (an eventfd of a card whose memory is a copy)
    /// - Writer: the worker that delivered frames, after them
    /// - Reader: home worker, asleep: edge-triggered
    /// - Ordering: written after the lock of the receive queue was let go
    /// - Partner: the ring: descriptors between `pushed` and the head
    /// - Without it: frames stay until the next message
    /// - Shown by: `vfio_user_messages` tests
    nudge: Option<OwnedFd>,
}

/// The interrupt pin. It is level-triggered, but the front end gets an edge: one signal, until it
/// says that it has looked.
#[derive(Debug, Default)]
pub struct Pin {
    /// # Protocol: `Pin.masked` (a card's interrupt pin)
    /// - Writer: the thread that raises it (swap); worker, when the front end looks again; control
    ///   thread, when interrupts are set up
    /// - Reader: the thread that asks the device
    /// - Ordering: swap acquire-release / store release, then the device is asked again
    /// - Partner: the device's level
    /// - Without it: a guest that has a cause pending is not interrupted any more
    /// - Shown by: `vectors` tests
    masked: AtomicBool,
}

impl Pin {
    /// Masks the pin (the front end was signalled, or wants no signals) or unmasks it (it has
    /// looked).
    pub fn set_masked(&self, masked: bool) {
        self.masked.store(masked, Ordering::Release);
    }
}

/// The outcome of asking a device for interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The driver was interrupted.
    pub rung: bool,
    /// When to ask the device again.
    pub due: Option<Nanos>,
}

impl std::fmt::Debug for Vectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Vectors({:?}, {} vectors)", self.mode, self.eventfds.len())
    }
}

impl Vectors {
    /// The interrupts of a device, raised through these eventfds. The driver may disable the pin in
    /// `config`.
    #[must_use]
    pub fn new(
        device: Arc<dyn Device>,
        mode: InterruptMode,
        eventfds: Box<[Option<Arc<Waker>>]>,
        pin: Arc<Pin>,
        config: Arc<Config>,
    ) -> Self {
        let (counters, moderation, asked_at) = (None, None, AtomicU64::new(NEVER));
        let nudge = None;
        Self { device, mode, eventfds, pin, config, counters, moderation, asked_at, nudge }
    }

    /// Counts the interrupts that are raised.
    #[must_use]
    pub fn counted(self, counters: Shared<BusCounters>) -> Self {
        Self { counters: Some(counters), ..self }
    }

    /// Adds moderation, which coalesces the device's interrupts.
    #[must_use]
    pub fn moderated(self, moderation: Option<Moderation>) -> Self {
        Self { moderation, ..self }
    }

    /// Also signals this eventfd to the home worker whenever interrupts are asked for.
    #[must_use]
    pub fn nudging(self, nudge: Option<OwnedFd>) -> Self {
        Self { nudge, ..self }
    }

    /// The eventfd that wakes the home worker.
    #[must_use]
    pub fn nudge(&self) -> Option<&OwnedFd> {
        self.nudge.as_ref()
    }

    /// Asks the device which interrupts to raise, and raises them.
    pub fn ask(&self, now: Nanos) -> Asked {
        if let Some(moderation) = &self.moderation {
            let due = moderation.due(self.device.headroom().into(), now);
            if due > now {
                return Asked { rung: false, due: Some(due) };
            }
        }
        let Interrupt { vectors, due } = self.device.interrupt(now);
        let mut raised = 0;
        if self.mode == InterruptMode::Pin {
            raised = u64::from(vectors & 1 != 0 && self.raise_pin());
        } else {
            let mut left = vectors;
            while left != 0 {
                let vector = left.trailing_zeros() as usize;
                left &= left - 1;
                if let Some(Some(eventfd)) = self.eventfds.get(vector) {
                    eventfd.wake();
                    raised += 1;
                }
            }
        }
        if raised > 0 {
            self.counters.iter().for_each(|counters| counters.interrupts.add_shared(raised));
            self.moderation.iter().for_each(|moderation| {
                moderation.rung(now);
            });
        }
        Asked { rung: raised > 0, due }
    }

    /// True if the device asserts its pin. The caller must [ask](Self::ask) the device afterwards.
    pub fn wants_pin(&self, now: Nanos) -> bool {
        self.mode == InterruptMode::Pin && self.device.interrupt(now).vectors & 1 != 0
    }

    fn raise_pin(&self) -> bool {
        if self.config.pin_disabled() {
            return false;
        }
        let Some(Some(eventfd)) = self.eventfds.first() else { return false };
        let raise = !self.pin.masked.swap(true, Ordering::AcqRel);
        if raise {
            eventfd.wake();
        }
        raise
    }

    /// Like [`ask`](Self::ask), but only one caller gets the time to ask again, and must do so.
    pub fn ask_once(&self, now: Nanos) -> Asked {
        self.nudge.iter().for_each(|nudge| turn::signal(nudge.as_fd()));
        let Asked { rung, due } = self.ask(now);
        // A thread that asks at an earlier time clears `asked_at` first, and then finds the same
        // interrupt.
        let first = |due: &Nanos| self.asked_at.fetch_min(due.0, Ordering::AcqRel) > due.0;
        Asked { rung, due: due.filter(first) }
    }

    /// Like [`ask_once`](Self::ask_once), for the caller that got this time to ask again.
    pub fn ask_late(&self, now: Nanos) -> Asked {
        self.asked_at.store(NEVER, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        self.ask_once(now)
    }
}

impl QueueBells for Vectors {
    fn ring(&self, _side: Side, now: Nanos) -> WakeOutcome {
        self.ask_once(now).into()
    }

    fn ring_late(&self, _side: Side, now: Nanos) -> WakeOutcome {
        self.ask_late(now).into()
    }

    /// The device decides which interrupts are due.
    fn forget(&self, _side: Side, _now: Nanos) {}

    fn ring_all(&self, now: Nanos) {
        // If another interrupt is due later, the home worker asks for it.
        self.ask(now);
    }
}

impl From<Asked> for WakeOutcome {
    fn from(Asked { rung, due }: Asked) -> Self {
        match due {
            Some(due) => Self::Later { due, heavy: false },
            None if rung => Self::YES,
            None => Self::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use jail::strangers::Descriptor;
    use nic::device::Identity;
    use nic::pci;
    use rustix::event::EventfdFlags;
    use shmem::Mapping;

    use super::*;
    use crate::attach::card::loopback::IDENTITY;
    use turn::user::Payer;

    /// A device with fixed interrupts.
    #[derive(Default)]
    struct Wants(Mutex<Interrupt>);

    impl Device for Wants {
        fn identity(&self) -> Identity {
            IDENTITY
        }
        fn read(&self, _bar: usize, _at: u64, _data: &mut [u8], _now: Nanos) {}
        fn write(&self, _bar: usize, _at: u64, _data: &[u8], _now: Nanos) {}
        fn reset(&self, _now: Nanos) {}
        fn set_bus_master(&self, _on: bool) {}
        fn set_interrupt_mode(&self, _mode: InterruptMode) {}
        fn set_link(&self, _up: bool, _now: Nanos) {}
        fn interrupt(&self, _now: Nanos) -> Interrupt {
            *self.0.lock().unwrap()
        }
        fn headroom(&self) -> u32 {
            8
        }
        fn fault(&self) -> Option<&'static str> {
            None
        }
    }

    fn eventfd() -> Arc<Descriptor> {
        Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap().into())
    }

    fn wake(eventfd: &Arc<Descriptor>) -> Arc<Waker> {
        Payer::default().eventfd(Arc::clone(eventfd))
    }

    fn config() -> Arc<Config> {
        let words = Mapping::private(pci::SIZE).unwrap().shared(0).unwrap();
        Arc::new(Config::new(&Wants::default().identity(), words))
    }

    fn signals(eventfd: &Descriptor) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(eventfd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn a_pin_is_signalled_once_until_the_front_end_looks_again() {
        let (device, pin, fd) = (Arc::new(Wants::default()), Arc::new(Pin::default()), eventfd());
        let fds = vec![Some(wake(&fd))].into();
        let vectors = Vectors::new(
            Arc::clone(&device) as _,
            InterruptMode::Pin,
            fds,
            Arc::clone(&pin),
            config(),
        );
        assert!(!vectors.ask(Nanos(1)).rung);
        *device.0.lock().unwrap() = Interrupt { vectors: 1, due: None };
        assert!(vectors.ask(Nanos(1)).rung && !vectors.ask(Nanos(1)).rung);
        assert_eq!(signals(&fd), 1);
        pin.set_masked(false);
        assert!(vectors.ask(Nanos(1)).rung, "the level is still up");
        assert_eq!(signals(&fd), 1);
    }

    #[test]
    fn messages_go_to_their_vectors() {
        let (device, fds) = (Arc::new(Wants::default()), [eventfd(), eventfd()]);
        let table = vec![Some(wake(&fds[0])), None, Some(wake(&fds[1]))].into();
        let vectors = Vectors::new(
            Arc::clone(&device) as _,
            InterruptMode::Msix,
            table,
            Arc::default(),
            config(),
        );
        *device.0.lock().unwrap() = Interrupt { vectors: 0b1110, due: None };
        assert!(vectors.ask(Nanos(1)).rung);
        assert_eq!((signals(&fds[0]), signals(&fds[1])), (0, 1));
    }

    #[test]
    fn one_caller_sees_to_what_is_held_back() {
        let device = Arc::new(Wants::default());
        let vectors = Vectors::new(
            Arc::clone(&device) as _,
            InterruptMode::Msi,
            [].into(),
            Arc::default(),
            config(),
        );
        let due =
            |at: u64| *device.0.lock().unwrap() = Interrupt { vectors: 0, due: Some(Nanos(at)) };
        due(100);
        assert_eq!(vectors.ask_once(Nanos(1)).due, Some(Nanos(100)));
        assert_eq!(vectors.ask_once(Nanos(2)).due, None);
        due(50);
        assert_eq!(vectors.ask_once(Nanos(3)).due, Some(Nanos(50)), "it is earlier");
        due(200);
        assert_eq!(vectors.ask_late(Nanos(50)).due, Some(Nanos(200)));
    }
}
