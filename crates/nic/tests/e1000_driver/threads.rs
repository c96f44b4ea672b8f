//! Driver and worker run in a thread each, and both sleep whenever they are idle. A side that waits
//! too long has lost a wake-up.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use driver::e1000::{Config, E1000Driver, Interrupts, Request};
use driver::{Dma, Regs};
use nic::device::Model;
use port::{Delivered, FrameIdx, Limits, MapGuard, Nanos, Scratch};

use crate::all_modes;
use crate::bench::{BASE, MEMORY, pattern, plug};

const PATIENCE: Duration = Duration::from_secs(60);
const FRAMES: u64 = 2_000;
/// The maximum number of frames in flight: fewer than the smallest ring holds.
const WINDOW: u64 = 12;
const LIMITS: Limits = Limits { max_frame: 0x1_0000, lossless: false };

/// A register access in flight; a read also carries where its answer goes.
enum Access {
    Write { bar: usize, at: u64, data: Vec<u8> },
    Read { bar: usize, at: u64, len: usize, answer: Sender<Vec<u8>> },
}

struct Posted(Sender<Access>);

impl Posted {
    fn write(&self, bar: usize, at: u64, data: &[u8]) {
        // The worker may have ended.
        let _ = self.0.send(Access::Write { bar, at, data: data.to_vec() });
    }

    fn read(&self, bar: usize, at: u64, len: usize) -> Vec<u8> {
        let (answer, answered) = channel();
        self.0.send(Access::Read { bar, at, len, answer }).expect("a worker");
        answered.recv_timeout(PATIENCE).expect("an answer")
    }
}

impl Regs for Posted {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        u32::from_le_bytes(self.read(bar, at, 4).try_into().unwrap())
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        self.write(bar, at, &value.to_le_bytes());
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        u16::from_le_bytes(self.read(bar, at, 2).try_into().unwrap())
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        self.write(bar, at, &value.to_le_bytes());
    }
}

/// A worker that sends every frame back, with a count of its sleeps.
struct Worker<'a> {
    model: Model,
    accesses: Receiver<Access>,
    raised: Sender<u32>,
    start: Instant,
    naps: &'a AtomicU64,
}

impl Worker<'_> {
    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn carry_out(&self, access: Access) {
        let (device, now) = (&self.model.device, self.now());
        match access {
            Access::Write { bar, at, data } => device.write(bar, at, &data, now),
            Access::Read { bar, at, len, answer } => {
                let mut data = vec![0; len];
                device.read(bar, at, &mut data, now);
                let _ = answer.send(data);
            }
        }
        self.ask();
    }

    fn ask(&self) {
        let raised = self.model.device.interrupt(self.now());
        if raised.vectors != 0 {
            let _ = self.raised.send(raised.vectors);
        }
    }

    /// Runs until the driver is gone.
    fn run(mut self) {
        let mut scratch = Scratch::new(64);
        loop {
            while let Ok(access) = self.accesses.try_recv() {
                self.carry_out(access);
            }
            if self.turn(&mut scratch) > 0 || self.model.transmit[0].arm() {
                continue;
            }
            self.naps.fetch_add(1, Ordering::Relaxed);
            let again = self.model.transmit[0].deadline().map(|at| at - self.now());
            match self.accesses.recv_timeout(again.map_or(PATIENCE, Duration::from_nanos)) {
                Ok(access) => self.carry_out(access),
                Err(_) if again.is_some() => {}
                Err(_) => return,
            }
            self.model.transmit[0].disarm();
        }
    }

    /// Sends a batch back to the driver.
    #[allow(unsafe_code, reason = "the memory outlives the scratch")]
    fn turn(&mut self, scratch: &mut Scratch) -> usize {
        let now = self.now();
        scratch.clear();
        let gathered = self.model.transmit[0].gather(scratch, 64, now);
        if gathered == 0 {
            return 0;
        }
        // SAFETY: the guest's memory outlives the scratch.
        let map = unsafe { MapGuard::assume_mapped() };
        scratch.judge(&map, &mut [(); 64], |_, _| ());
        let list: Vec<FrameIdx> = (0..gathered as FrameIdx).collect();
        let Delivered { finished } =
            self.model.receive[0].deliver(&scratch.batch(&map), &list, LIMITS);
        assert_eq!(finished, gathered);
        self.model.transmit[0].complete(gathered);
        fence(Ordering::SeqCst);
        let kicks =
            [self.model.transmit[0].settle(now).kick, self.model.receive[0].settle(now).kick];
        if kicks.contains(&true) {
            self.ask();
        }
        gathered
    }
}

/// The driver's thread: sends numbered frames and receives each back, in order.
fn drive(driver: &mut E1000Driver<Posted>, raised: &Receiver<u32>) {
    let (mut sent, mut got) = (0, 0);
    let take = |driver: &mut E1000Driver<Posted>, got: &mut u64| {
        let before = *got;
        driver.receive(usize::MAX, |frame| {
            assert_eq!(frame.to_vec(), pattern(60 + *got as usize % 200, *got as usize));
            *got += 1;
        });
        *got > before
    };
    while got < FRAMES {
        while let Ok(vectors) = raised.try_recv() {
            driver.interrupt(vectors);
            take(driver, &mut got);
            driver.rearm();
        }
        driver.reclaim();
        if sent < FRAMES && sent - got < WINDOW && driver.room() > 0 {
            let frame = pattern(60 + sent as usize % 200, sent as usize);
            assert!(driver.send(&frame, &Request::default()));
            driver.flush();
            sent += 1;
        } else if !take(driver, &mut got) && got < FRAMES {
            driver.refill();
            let room = sent < FRAMES && sent - got < WINDOW && driver.wait_for_room(1);
            if !driver.wait_for_frames() && !room {
                let vectors = raised.recv_timeout(PATIENCE).expect("a wake-up was lost");
                driver.interrupt(vectors);
                take(driver, &mut got);
                driver.rearm();
            }
        }
    }
    assert_eq!(driver.counts().received, FRAMES);
}

fn run(config: Config) -> u64 {
    let (model, mapping) = plug(&config);
    let (access, accesses) = channel();
    let (raise, raised) = channel();
    let naps = AtomicU64::new(0);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        let start = Instant::now();
        let worker = Worker { model, accesses, raised: raise, start, naps: &naps };
        scope.spawn(|| worker.run());
        let mut dma = Dma::new(Arc::clone(&mapping), 0, MEMORY, BASE).unwrap();
        let mut driver = E1000Driver::new(Posted(access), &mut dma, config).expect("it comes up");
        let driven = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drive(&mut driver, &raised);
        }));
        *failed.lock().unwrap() = driven.err();
    });
    if let Some(panic) = failed.into_inner().unwrap() {
        eprintln!("{config:?}");
        std::panic::resume_unwind(panic);
    }
    naps.into_inner()
}

#[test]
fn no_wake_up_is_lost_between_two_threads() {
    for config in all_modes().filter(|config| config.interrupts != Interrupts::None) {
        let naps = run(Config { transmit: 16, receive: 24, refill: 3, ..config });
        assert!(naps > 0, "{config:?}: it never slept");
    }
}
