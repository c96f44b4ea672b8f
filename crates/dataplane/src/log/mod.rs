//! Log lines. No thread waits for the log, and the number of lines that peers can cause is limited.
//!
//! ```text
//!   any thread --- say(about, reason, what) ---> Limiter ---> queue ---> writer thread ---> standard error
//!                                                 | one line a second          | may block: a full queue
//!                                                 | each; the rest counted     | drops lines, counted
//! ```
//!
//! Until the writer is [started](start), lines go straight to standard error, as in tests.

mod limit;

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use self::limit::{Limiter, Repeated};

/// The maximum number of lines that wait to be written.
const QUEUED: usize = 1024;
/// Bytes of a line; longer ones are cut off.
const LONGEST: usize = 2048;
/// How often repeated lines are summarized.
const TICK: Duration = Duration::from_secs(1);
/// How long a process that ends waits for its last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Set to `json` for a process that is to write JSON.
pub const FORMAT: &str = "TOKLAT_LOG_FORMAT";

/// Lines are objects of JSON.
static JSON: AtomicBool = AtomicBool::new(false);
static WRITER: OnceLock<Writer> = OnceLock::new();
static LIMITER: OnceLock<Mutex<Limiter<&'static str>>> = OnceLock::new();

/// Something to be written.
enum Entry {
    Line(Vec<u8>),
    /// Signalled when all earlier lines are written.
    Mark(SyncSender<()>),
}

struct Writer {
    queue: SyncSender<Entry>,
    /// Lines dropped because the queue was full, since that was last reported.
    dropped: AtomicU64,
}

/// Starts the writer, once in a process. It also calls `tick` once a second.
///
/// # Errors
/// The kernel has no thread left.
pub fn start(mut tick: impl FnMut() + Send + 'static) -> io::Result<()> {
    if std::env::var_os(FORMAT).is_some_and(|format| format == "json") {
        write_json();
    }
    let (writer, lines) = Writer::new();
    let Ok(()) = WRITER.set(writer) else { return Ok(()) };
    let thread = std::thread::Builder::new().name("log".to_owned());
    let tick = move || {
        repeat_said();
        tick();
    };
    let Some(writer) = WRITER.get() else { return Ok(()) };
    thread.spawn(move || writer.write_all(&lines, write, tick)).map(drop)
}

/// Logs a sentence about a port (or whatever `about` names), at most once a second for the same
/// `about` and `reason`. Further lines are counted and reported when the second is over.
pub fn say(about: &str, reason: &'static str, what: impl Display) {
    let line = || format!("{about}: {what}");
    if WRITER.get().is_none() || said().admit(reason, about, line) {
        write_line(line());
    }
}

/// Writes each line as an object of JSON from now on.
pub fn write_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// True if lines are objects of JSON.
#[must_use]
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Queues a line, without a rate limit.
pub fn write_line(line: String) {
    push(whole(line).into_bytes());
}

/// A line with its end, in the format of the log.
fn whole(line: String) -> String {
    let line = if is_json() { object(line) } else { line };
    line + "\n"
}

/// A line as an object. What is too long is cut off before, so that it stays one.
fn object(mut line: String) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    loop {
        let message = serde_json::to_string(&line).unwrap_or_default();
        let object = format!("{{\"at_ms\":{now},\"message\":{message}}}");
        if object.len() < LONGEST {
            return object;
        }
        let half = line.floor_char_boundary(line.len() / 2);
        line.truncate(half);
    }
}

/// Waits until all lines so far are written, at most a second, because this process is about to
/// end.
pub fn flush() {
    let Some(writer) = WRITER.get() else { return };
    repeat_said();
    let (mark, reached) = sync_channel(1);
    let end = Instant::now() + FLUSH_TIMEOUT;
    let mut entry = Entry::Mark(mark);
    while let Err(TrySendError::Full(back)) = writer.queue.try_send(entry) {
        if Instant::now() >= end {
            return;
        }
        entry = back;
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = reached.recv_timeout(end.saturating_duration_since(Instant::now()));
}

/// Sends panic messages through the writer. Otherwise a panicking thread would wait for the reader
/// of the log.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let trace = std::backtrace::Backtrace::capture();
        let trace = match trace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("\n{trace}"),
            _ => String::new(),
        };
        say(&format!("thread '{name}'"), "panic", format_args!("{panic}{trace}"));
    }));
}

fn said() -> MutexGuard<'static, Limiter<&'static str>> {
    LIMITER.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs how often lines were repeated.
fn repeat_said() {
    let repeated = said().tick();
    repeated.into_iter().for_each(|Repeated { what, times }| {
        write_line(format!("{what} (repeated {times} times)"));
    });
}

/// Truncates a line that is too long.
fn shorten(line: &mut Vec<u8>) {
    if line.len() > LONGEST {
        line.truncate(LONGEST - 1);
        line.push(b'\n');
    }
}

fn push(mut line: Vec<u8>) {
    shorten(&mut line);
    match WRITER.get() {
        Some(writer) => writer.push(line),
        // A failure cannot be reported anywhere.
        None => drop(io::stderr().write_all(&line)),
    }
}

impl Writer {
    fn new() -> (Self, Receiver<Entry>) {
        let (queue, lines) = sync_channel(QUEUED);
        (Self { queue, dropped: AtomicU64::new(0) }, lines)
    }

    fn push(&self, line: Vec<u8>) {
        if self.queue.try_send(Entry::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes lines until the queue is closed.
    fn write_all(
        &self,
        lines: &Receiver<Entry>,
        mut write: impl FnMut(&[u8]),
        mut tick: impl FnMut(),
    ) {
        let mut next = Instant::now() + TICK;
        loop {
            match lines.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Entry::Line(line)) => write(&line),
                Ok(Entry::Mark(reached)) => drop(reached.send(())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                let said = format!("{dropped} lines of the log were dropped: it was not read");
                write(whole(said).as_bytes());
            }
            if Instant::now() >= next {
                tick();
                next = Instant::now() + TICK;
            }
        }
    }
}

fn write(mut line: &[u8]) {
    let stderr = io::stderr();
    while !line.is_empty() {
        match rustix::io::write(&stderr, line) {
            Ok(written) => line = &line[written.min(line.len())..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(10)),
            // The reader of the log is gone.
            Err(_) => return,
        }
    }
}

/// A line under construction. It is queued as a whole when it is dropped.
#[derive(Debug, Default)]
pub struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            push(std::mem::take(&mut self.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_line_as_an_object_is_whole_however_long_it_is() {
        for line in ["vale0:p1: \"refused\"".to_owned(), "\u{1}é".repeat(3000)] {
            let object = object(line.clone());
            assert!(object.len() < LONGEST, "{} bytes", object.len());
            let read: serde_json::Value = serde_json::from_str(&object).unwrap();
            let message = read["message"].as_str().unwrap();
            assert!(line.starts_with(message) && message.len() > 100.min(line.len() - 1));
        }
    }

    /// Objective: lines that are not read are dropped and counted, and no thread waits for them.
    ///
    /// Steps: push twice as many lines as the queue holds while the first cannot be written; then
    /// unblock the writer.
    #[test]
    fn unread_lines_are_dropped_and_counted() {
        let (writer, lines) = Writer::new();
        let writer: &Writer = Box::leak(Box::new(writer));
        let ((stuck, is_stuck), (go, may_go), (written, all)) =
            (channel(), channel::<()>(), channel());
        std::thread::spawn(move || {
            let write = move |line: &[u8]| {
                let _ = stuck.send(());
                let _ = may_go.recv();
                let _ = written.send(String::from_utf8(line.to_vec()).unwrap());
            };
            writer.write_all(&lines, write, || ());
        });
        writer.push(b"first\n".to_vec());
        is_stuck.recv().unwrap();
        (0..2 * QUEUED).for_each(|_| writer.push(b"more\n".to_vec()));
        drop(go);
        let mut all = all.iter();
        assert_eq!(all.next().unwrap(), "first\n");
        let dropped = format!("{QUEUED} lines of the log were dropped: it was not read\n");
        assert_eq!(all.next().unwrap(), dropped);
        assert!(all.take(QUEUED).all(|line| line == "more\n"));
    }

    #[test]
    fn long_lines_are_cut() {
        let mut line = vec![b'x'; 2 * LONGEST];
        shorten(&mut line);
        assert_eq!((line.len(), line.last()), (LONGEST, Some(&b'\n')));
    }
}
