//! What all tools share: when to stop, how to idle, and rates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use netring::{Interest, OpenError, Port};
use rustix::io::Errno;
use rustix::time::ClockId;
use signal_hook::consts::{SIGINT, SIGTERM};

use client::Global;
use client::table::{bps, pps};
use client::units;

/// Options of every tool.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RunArgs {
    /// Stop after this time, such as 10s or 500ms
    #[arg(long, value_parser = units::duration, value_name = "TIME")]
    pub duration: Option<Duration>,
    /// Stop after this many frames
    #[arg(short = 'n', long, value_parser = units::count, value_name = "N")]
    pub count: Option<u64>,
    /// Run on this CPU
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Print no line each second
    #[arg(short, long)]
    pub quiet: bool,
    /// What to do when idle.
    #[command(flatten)]
    pub idle: IdleArgs,
}

/// What to do when there is nothing to do. Without any: spin for 5 us, let others run, and sleep
/// after 50 us.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[group(multiple = false)]
pub struct IdleArgs {
    /// When idle, let other processes use this CPU (sched_yield)
    #[arg(long = "yield")]
    pub yields: bool,
    /// When idle, spin: needs a CPU of its own
    #[arg(long)]
    pub spin: bool,
    /// When idle, sleep at once
    #[arg(long)]
    pub sleep: bool,
}

/// Nanoseconds of the monotonic clock, which all processes share.
#[must_use]
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A run of a tool. It ends by a signal, after its time, or when the tool is done.
#[derive(Debug)]
pub struct Session {
    stop: Arc<AtomicBool>,
    until: u64,
}

impl Session {
    /// Pins the thread, installs signal handlers and starts the clock.
    ///
    /// # Errors
    /// If the CPU cannot be had, or a signal handler cannot be installed.
    pub fn start(args: &RunArgs) -> anyhow::Result<Self> {
        if let Some(cpu) = args.cpu {
            client::pin(cpu)?;
        }
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let until = args.duration.map_or(u64::MAX, |time| now().saturating_add(nanos(time)));
        Ok(Self { stop: stop_on_signals()?, until })
    }

    /// Returns false when it is time to end.
    #[inline]
    #[must_use]
    pub fn goes_on(&self, now: u64) -> bool {
        now < self.until && !self.stop.load(Ordering::Relaxed)
    }
}

/// A flag that SIGINT and SIGTERM set; the second of them ends the process at once.
///
/// # Errors
/// If a handler cannot be installed.
pub fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("Cannot listen to signals")?;
    }
    Ok(stop)
}

/// The daemon's error code for a switch or port that does not exist.
const ENOENT: i32 = Errno::NOENT.raw_os_error();

/// How tools open ports.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct OpenArgs {
    /// Create the switch if it does not exist
    #[arg(long)]
    create: bool,
}

impl OpenArgs {
    /// Opens a port for a tool.
    ///
    /// # Errors
    /// [`netring::OpenError`], with the name.
    pub fn port(self, name: &str, global: &Global) -> anyhow::Result<Port> {
        self.open(netring::Open::new(name), name, global)
    }

    /// Opens the port of this name as `open` says.
    ///
    /// # Errors
    /// [`netring::OpenError`], with the name.
    pub fn open(self, open: netring::Open, name: &str, global: &Global) -> anyhow::Result<Port> {
        let open = open.directory(global.dir());
        let opened = if self.create { open } else { open.existing() }.open();
        let is_missing =
            matches!(&opened, Err(OpenError::Refused { errno, .. }) if *errno == ENOENT);
        let hint = if is_missing { " (--create makes a switch that is not there)" } else { "" };
        opened.with_context(|| format!("Cannot open {name}{hint}"))
    }
}

/// Chooses between spinning, yielding and sleeping.
#[derive(Clone, Copy, Debug)]
pub struct Idler {
    how: IdleArgs,
    since: Option<u64>,
    /// How often the thread has yielded since it last had work.
    yields: u32,
}

/// How an idle thread passes the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Check again at once.
    Spin,
    /// Yield the CPU, then look again.
    Yield,
    /// Sleep until woken, or for this long.
    Sleep(Duration),
}

/// How long to spin before yielding. The awaited frame may come from a process on the same CPU.
const SPIN: u64 = 5_000;
/// How long to poll before sleeping. At least the minimum is kept, even if other processes run long
/// meanwhile.
const LOOK_OUT: (u64, u32) = (50_000, 16);
/// The longest sleep, after which signals and the clock are checked again.
const NAP: u64 = 100_000_000;
/// How much longer than requested a sleep may last.
const OVERSLEEP: u64 = 100_000;

impl Idler {
    /// Makes an idler that rests as the options say.
    #[must_use]
    pub fn new(how: IdleArgs) -> Self {
        Self { how, since: None, yields: 0 }
    }

    /// Notes that there was work to do.
    #[inline]
    pub fn worked(&mut self) {
        self.since = None;
    }

    /// Records that there was nothing to do at `now`, and that the clock requires nothing before
    /// `until`.
    #[inline]
    pub fn idle(&mut self, now: u64, until: u64) -> Rest {
        if self.how.yields {
            return Rest::Yield;
        }
        let left = until.saturating_sub(now);
        if self.how.spin || left == 0 {
            return Rest::Spin;
        }
        let nap = Rest::Sleep(Duration::from_nanos(left.min(NAP)));
        if self.how.sleep {
            return nap;
        }
        let Some(since) = self.since else {
            (self.since, self.yields) = (Some(now), 0);
            return Rest::Spin;
        };
        let waited = now - since;
        if waited < SPIN {
            return Rest::Spin;
        }
        self.yields += 1;
        let looked_out = waited >= LOOK_OUT.0 && self.yields > LOOK_OUT.1;
        if looked_out && left > OVERSLEEP { nap } else { Rest::Yield }
    }
}

impl Rest {
    /// Idles by the chosen action; `port` ends a sleep.
    ///
    /// # Errors
    /// [`netring::PortError`].
    pub fn take(self, port: &mut Port, interest: Interest) -> Result<(), netring::PortError> {
        match self {
            Self::Spin => std::hint::spin_loop(),
            Self::Yield => rustix::thread::sched_yield(),
            Self::Sleep(time) => {
                port.wait(interest, Some(time))?;
            }
        }
        Ok(())
    }

    /// Idles by the chosen action. Any of the ports ends a sleep when it has received something, or
    /// is gone.
    ///
    /// # Errors
    /// [`netring::PortError`], of the first port that has one.
    pub fn take_all(self, ports: &mut [Port], interest: Interest) -> anyhow::Result<()> {
        let time = match (self, &mut *ports) {
            (rest, []) => {
                let Self::Sleep(time) = rest else { return Ok(()) };
                std::thread::sleep(time);
                return Ok(());
            }
            (rest, [one]) => return Ok(rest.take(one, interest)?),
            (Self::Sleep(time), _) => time,
            (rest, [first, ..]) => return Ok(rest.take(first, interest)?),
        };
        let ready = ports.iter_mut().fold(false, |ready, port| port.arm(interest).any() | ready);
        if !ready {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let mut fds: Vec<_> = ports.iter().map(|p| PollFd::new(p, PollFlags::IN)).collect();
            match poll(&mut fds, Some(&Timespec::try_from(time).unwrap_or_default())) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("Waiting for the ports failed"),
            }
        }
        let mut done = Ok(());
        for port in ports {
            let one = port.disarm();
            done = done.and(one);
        }
        Ok(done?)
    }
}

/// Frames and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Volume {
    fn add_assign(&mut self, more: Self) {
        self.frames += more.frames;
        self.bytes += more.bytes;
    }
}

/// Counts frames and prints their rate each second.
#[derive(Debug)]
pub struct Meter {
    /// All frames and bytes so far.
    pub total: Volume,
    started: u64,
    first: Option<u64>,
    last: u64,
    line_at: u64,
    line: (u64, Volume),
    quiet: bool,
}

/// One line of progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    /// Seconds since the start.
    pub at: f64,
    /// Frames a second since the last line.
    pub pps: f64,
    /// Bits a second since the last line.
    pub bps: f64,
}

const SECOND: u64 = 1_000_000_000;

impl Meter {
    /// A meter that starts at `now`.
    #[must_use]
    pub fn new(now: u64, quiet: bool) -> Self {
        let line = (now, Volume::default());
        let total = Volume::default();
        Self { total, started: now, first: None, last: now, line_at: now + SECOND, line, quiet }
    }

    /// Counts frames that were sent or received at `now`.
    #[inline]
    pub fn add(&mut self, volume: Volume, now: u64) {
        if volume.frames > 0 {
            self.first = self.first.or(Some(now));
            self.last = now;
            self.total += volume;
        }
    }

    /// The line of progress that is due at `now`, once a second.
    #[inline]
    pub fn due(&mut self, now: u64) -> Option<Second> {
        if now < self.line_at {
            return None;
        }
        let (from, before) = self.line;
        let seconds = (now - from) as f64 / 1e9;
        self.line = (now, self.total);
        while self.line_at <= now {
            self.line_at += SECOND;
        }
        Some(Second {
            at: (now - self.started) as f64 / 1e9,
            pps: (self.total.frames - before.frames) as f64 / seconds,
            bps: (self.total.bytes - before.bytes) as f64 * 8.0 / seconds,
        })
    }

    /// Prints the line that is due; `more`, which begins with a comma or is empty, is put at its
    /// end.
    #[inline]
    pub fn tick(&mut self, now: u64, name: &str, more: impl FnOnce() -> String) {
        if let Some(second) = self.due(now)
            && !self.quiet
        {
            let Second { at, pps: frames, bps: bits } = second;
            eprintln!("{name} {at:>5.0} s  {:>10}  {:>10}{}", pps(frames), bps(bits), more());
        }
    }

    /// Seconds from the first frame to the last.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.first.map_or(0.0, |first| (self.last - first) as f64 / 1e9)
    }

    /// Returns the totals of the measurement.
    #[must_use]
    pub fn totals(&self, port: &str) -> Totals {
        let seconds = self.seconds();
        let Volume { frames, bytes } = self.total;
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let (pps, bps) = (rate(frames as f64), rate(bytes as f64 * 8.0));
        Totals { port: port.to_owned(), frames, bytes, seconds, pps, bps }
    }
}

/// A finished run in numbers.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// The port.
    pub port: String,
    /// Frames.
    pub frames: u64,
    /// The frames' bytes, without check sequences.
    pub bytes: u64,
    /// Seconds from the first frame to the last.
    pub seconds: f64,
    /// Frames a second; 0 if all went at once.
    pub pps: f64,
    /// Bits a second; 0 if all went at once.
    pub bps: f64,
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { port, frames, seconds, pps: rate, bps: bits, .. } = self;
        if *seconds == 0.0 {
            let s = if *frames == 1 { "" } else { "s" };
            return write!(f, "{port}: {frames} frame{s}");
        }
        write!(f, "{port}: {frames} frames in {seconds:.3} s, {}, {}", pps(*rate), bps(*bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn an_idler_spins_then_yields_then_sleeps_but_never_beyond_what_is_due() {
        let mut idler = Idler::new(IdleArgs::default());
        assert_eq!(idler.idle(0, u64::MAX), Rest::Spin);
        assert_eq!(idler.idle(SPIN - 1, u64::MAX), Rest::Spin);
        for _ in 0..LOOK_OUT.1 {
            assert_eq!(idler.idle(LOOK_OUT.0, u64::MAX), Rest::Yield);
        }
        assert_eq!(idler.idle(LOOK_OUT.0, u64::MAX), Rest::Sleep(Duration::from_nanos(NAP)));
        assert_eq!(idler.idle(MS, 3 * MS), Rest::Sleep(Duration::from_millis(2)));
        assert_eq!(idler.idle(MS, MS + OVERSLEEP), Rest::Yield);
        assert_eq!(idler.idle(MS, MS), Rest::Spin);
        idler.worked();
        assert_eq!(idler.idle(10 * MS, u64::MAX), Rest::Spin);
    }

    #[test]
    fn idlers_do_as_told() {
        let idle = |how| Idler::new(how).idle(0, u64::MAX);
        let how = IdleArgs::default();
        assert_eq!(idle(IdleArgs { yields: true, ..how }), Rest::Yield);
        assert_eq!(idle(IdleArgs { spin: true, ..how }), Rest::Spin);
        assert_eq!(idle(IdleArgs { sleep: true, ..how }), Rest::Sleep(Duration::from_nanos(NAP)));
    }

    #[test]
    fn rates_are_per_second_and_lines_come_once_a_second() {
        let mut meter = Meter::new(5 * MS, true);
        meter.add(Volume { frames: 1000, bytes: 60_000 }, 500 * MS);
        assert_eq!(meter.due(1004 * MS), None);
        let second = meter.due(1505 * MS).unwrap();
        assert!((second.pps - 1000.0 / 1.5).abs() < 1e-6, "{second:?}");
        assert_eq!(meter.due(1600 * MS), None);
        meter.add(Volume { frames: 1, bytes: 60 }, 1700 * MS);
        let second = meter.due(2005 * MS).unwrap();
        assert!((second.pps - 2.0).abs() < 1e-6 && (second.at - 2.0).abs() < 1e-6, "{second:?}");
        assert!((meter.totals("x").seconds - 1.2).abs() < 1e-6);
    }

    #[test]
    fn regression_one_frame_has_no_rate() {
        let mut meter = Meter::new(5 * MS, true);
        assert_eq!(meter.totals("x").to_string(), "x: 0 frames");
        meter.add(Volume { frames: 1, bytes: 60 }, 5 * MS);
        let totals = meter.totals("x");
        assert_eq!(totals.to_string(), "x: 1 frame");
        assert_eq!((totals.pps, totals.bps), (0.0, 0.0));
    }
}
