//! libpcap's handle of a port: `pcap_create` makes it, and the other calls change it.
//!
//! No lock is held while a program's callback runs, so it may make any call, even on the same
//! handle.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use frame::bpf::Program;
use rustix::io::Errno;

use crate::failure::{Code, Failure};
use crate::interface::{Counts, Interface};
use crate::lock::Lock;
use crate::name::Device;
use crate::queue::{Frame, FrameQueue};
use crate::reader::{Reader, Sleeper};
use crate::waker::ReaderWaker;

/// Settings before a capture is activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Snapshot length: number of bytes that are kept of a frame.
    pub snapshot: u32,
    /// How long a call waits for a frame; `None` for no limit.
    pub timeout: Option<Duration>,
    /// Memory for queued frames, in bytes.
    pub buffer: usize,
    /// Timestamps in nanoseconds, not microseconds.
    pub nanoseconds: bool,
}

/// libpcap's largest snapshot length, which is also the default.
pub const LONGEST_SNAPSHOT: u32 = 262_144;
/// libpcap's buffer on Linux.
const BUFFER: usize = 2 << 20;

impl Default for Settings {
    fn default() -> Self {
        let snapshot = LONGEST_SNAPSHOT;
        Self { snapshot, timeout: None, buffer: BUFFER, nanoseconds: false }
    }
}

/// The result of a call that waits for one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A frame.
    Frame,
    /// Nothing: the time is over.
    Timeout,
}

/// When a call that delivers many frames ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The call ends when all queued frames are delivered, or its time is over: `pcap_dispatch`.
    Empty,
    /// The call ends when the requested number of frames is delivered: `pcap_loop`.
    Full,
}

/// Turns a panic into an error. The program's callback runs outside, so a cancelled thread or an
/// exception in it unwinds through.
fn calm<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let failed = || Failure::new(Code::Error, Errno::IO, "The library failed; close the capture");
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(failed()))
}

/// A capture.
#[derive(Debug)]
pub struct Capture {
    device: Device,
    state: Lock<State>,
    /// `pcap_breakloop` was called.
    ///
    /// # Protocol: `Capture.stop`
    /// - Writer: any thread or signal handler (sets), the call that it ends (clears)
    /// - Reader: the thread that reads frames
    /// - Ordering: sequentially consistent, set before the bell is rung
    /// - Partner: `Bell.rung`
    /// - Without it: a call that was to end goes back to sleep
    /// - Shown by: `pcap` test `a_stop_ends_a_loop_that_waits_and_one_that_is_to_come`
    stop: AtomicBool,
    nonblocking: AtomicBool,
    /// Present once the capture is activated.
    sleeper: OnceLock<Sleeper>,
}

#[derive(Debug, Default)]
struct State {
    settings: Settings,
    reader: Option<Reader>,
}

impl State {
    fn reader(&mut self) -> Result<&mut Reader, Failure> {
        self.reader.as_mut().ok_or_else(Failure::not_activated)
    }
}

impl Capture {
    /// A capture that is not activated.
    #[must_use]
    pub fn new(device: Device) -> Self {
        Self {
            device,
            state: Lock::new(State::default()),
            stop: AtomicBool::new(false),
            nonblocking: AtomicBool::new(false),
            sleeper: OnceLock::new(),
        }
    }

    /// Returns the device that is captured.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the capture's settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.state.lock().settings
    }

    /// Changes the settings.
    ///
    /// # Errors
    /// The capture is activated.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if state.reader.is_some() {
            let said = "The capture is activated already";
            return Err(Failure::new(Code::Activated, Errno::INVAL, said));
        }
        change(&mut state.settings);
        Ok(())
    }

    /// Opens the port and starts to capture.
    ///
    /// # Errors
    /// The capture is activated already, or the port cannot be opened.
    pub fn activate(
        &self,
        open: impl FnOnce(&Device) -> Result<Arc<Interface>, Failure>,
    ) -> Result<(), Failure> {
        self.set(|_| ())?;
        let interface = open(&self.device)?;
        let mut state = self.state.lock();
        let Settings { snapshot, buffer, .. } = state.settings;
        let mut reader = Reader::new(&interface, snapshot as usize, buffer)?;
        // After this, the port wakes us for the first frame.
        reader.fetch()?;
        let _ = self.sleeper.set(reader.sleeper());
        state.reader = Some(reader);
        Ok(())
    }

    /// True from [`activate`](Self::activate) on.
    #[must_use]
    pub fn is_activated(&self) -> bool {
        self.sleeper.get().is_some()
    }

    fn sleeper(&self) -> Result<&Sleeper, Failure> {
        self.sleeper.get().ok_or_else(Failure::not_activated)
    }

    /// Returns the port.
    ///
    /// # Errors
    /// The capture is not activated.
    pub fn interface(&self) -> Result<&Interface, Failure> {
        self.sleeper().map(Sleeper::interface)
    }

    /// Ends the waiting call, or the next one. A signal handler may call it.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(bell) = self.sleeper.get().map(Sleeper::bell) {
            ReaderWaker::ring(bell);
        }
    }

    /// Sets whether calls return at once when there is no frame.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// True if calls do not wait.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Sets the filter. Frames that do not pass it are not delivered.
    ///
    /// # Errors
    /// The capture is not activated.
    pub fn set_filter(&self, filter: Option<Program>) -> Result<(), Failure> {
        self.state.lock().reader()?.set_filter(filter);
        Ok(())
    }

    /// Returns how many frames it received and lost.
    ///
    /// # Errors
    /// The capture is not activated.
    pub fn counts(&self) -> Result<Counts, Failure> {
        self.state.lock().reader().map(|reader| reader.counts())
    }

    /// Returns a descriptor that is readable when there are frames.
    ///
    /// # Errors
    /// The capture is not activated, or the system has no descriptor left.
    pub fn descriptor(&self) -> Result<i32, Failure> {
        use std::os::fd::AsRawFd;
        self.state.lock().reader()?.descriptor().map(|fd| fd.as_raw_fd())
    }

    /// Delivers one frame. Its bytes stay in place until the next call for this capture.
    ///
    /// # Errors
    /// The capture is not activated, was stopped, or the port is gone.
    pub fn next(&self, take: impl FnOnce(Frame<'_>)) -> Result<Next, Failure> {
        let until = self.deadline(Until::Empty);
        loop {
            self.check_stop()?;
            let mut state = self.state.lock();
            let reader = state.reader()?;
            if reader.fetch()? {
                if let Some(frame) = reader.take() {
                    take(frame);
                }
                reader.settle_after_one();
                return Ok(Next::Frame);
            }
            drop(state);
            if !self.wait(until)? {
                self.state.lock().reader()?.settle();
                return Ok(Next::Timeout);
            }
        }
    }

    /// Delivers frames, at most `most` (0 for no limit); returns how many.
    ///
    /// # Errors
    /// The capture is not activated, was stopped before there was a frame, or the port is gone.
    pub fn run(
        &self,
        most: usize,
        until: Until,
        mut each: impl FnMut(Frame<'_>),
    ) -> Result<usize, Failure> {
        let deadline = self.deadline(until);
        let is_full = |count| most > 0 && count >= most;
        let mut count = 0;
        loop {
            let is_over = is_full(count) || (until == Until::Empty && count > 0);
            let was_told = until == Until::Full || count == 0;
            let Some(mut queue) = calm(|| self.step(is_over, was_told, deadline))? else {
                return Ok(count);
            };
            while !is_full(count)
                && !self.stop.load(Ordering::Relaxed)
                && let Some(frame) = queue.pop()
            {
                count += 1;
                each(frame);
            }
            calm(|| self.state.lock().reader().map(|reader| reader.take_back(queue)))?;
        }
    }

    /// Returns the next frames to deliver, perhaps none; `None` when the call should end.
    fn step(
        &self,
        is_over: bool,
        tell_stop: bool,
        deadline: Option<Instant>,
    ) -> Result<Option<FrameQueue>, Failure> {
        if is_over || self.stop.load(Ordering::Relaxed) {
            if tell_stop && !is_over {
                self.check_stop()?;
            }
            self.state.lock().reader()?.settle();
            return Ok(None);
        }
        let mut state = self.state.lock();
        let reader = state.reader()?;
        if reader.fetch()? {
            return Ok(Some(reader.lend()));
        }
        drop(state);
        if self.wait(deadline)? {
            return Ok(Some(FrameQueue::default()));
        }
        self.state.lock().reader()?.settle();
        Ok(None)
    }

    fn check_stop(&self) -> Result<(), Failure> {
        if self.stop.load(Ordering::Relaxed) && self.stop.swap(false, Ordering::SeqCst) {
            return Err(Failure::stopped());
        }
        Ok(())
    }

    /// Returns when a call that finds no frame ends; `None` for never.
    fn deadline(&self, until: Until) -> Option<Instant> {
        let timeout = self.settings().timeout.filter(|_| until == Until::Empty)?;
        Instant::now().checked_add(timeout)
    }

    /// Waits; returns false in nonblocking mode or when the time is over.
    fn wait(&self, deadline: Option<Instant>) -> Result<bool, Failure> {
        if self.is_nonblocking() {
            return Ok(false);
        }
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
        self.sleeper()?.wait(left)?;
        Ok(true)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
