//! The operator's requests beside attackers, and what this machine does with any request.
//!
//! Whatever else runs on the CPU, a request waits until its server and its client are scheduled.
//! The probe shows how long that is: a server of another process, which answers each connection
//! with a byte, on the same CPU and with the same priority as the daemon.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::directory;

/// The longest time for a request on a CPU that has nothing else to do.
const BAR: Duration = Duration::from_millis(20);
/// How often a request of the operator's waits for its turn on the CPU, where the probe's waits
/// once: the daemon wakes up to accept it, to read it, to carry it out, and the client for the
/// answer. It may wait as often again behind what the daemon does for others.
const TURNS: u32 = 8;

/// Times of requests.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Does something, and notes how long that took.
    pub fn note<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = what();
        self.0.push(began.elapsed());
        done
    }

    /// The time that this share of the requests took at most.
    pub fn within(&self, share: f64) -> Duration {
        let mut times = self.0.clone();
        times.sort_unstable();
        let at = (times.len() as f64 * share).ceil() as usize;
        times.get(at.saturating_sub(1)).copied().unwrap_or_default()
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |share| self.within(share).as_secs_f64() * 1e3;
        write!(f, "{:.1}/{:.1}/{:.1}", ms(0.5), ms(0.99), ms(1.0))
    }
}

/// The requests of one phase.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// Of the operator, at the control socket and over TCP.
    pub control: Times,
    /// Of the honest user, who opens a port: printed, and not judged. Alone, half of them take some
    /// hundred milliseconds and none takes five seconds; after all other tests, one took half a
    /// minute, in which no data process started either. Why is not known.
    pub opened: Times,
    /// To the probe.
    pub probe: Times,
}

impl Requests {
    /// What is wrong with them, beside those of the control phase. All may take `stretch` times as
    /// long as on a CPU of the daemon's own.
    pub fn wrong(&self, control: &Self, stretch: f64) -> Option<String> {
        let too_long = |what: &str, share: f64, is: Duration, most: Duration| {
            let most = most.mul_f64(stretch);
            (is > most).then(|| format!("{share} of {what} take {is:?}, {most:?} at most"))
        };
        let of_operator = |share| {
            let quiet = control.control.within(share).max(BAR);
            let most = quiet + TURNS * self.probe.within(share);
            too_long("the requests", share, self.control.within(share), most)
        };
        [0.99, 1.0].into_iter().find_map(of_operator)
    }
}

fn path() -> PathBuf {
    directory().join("probe.sock")
}

/// Answers each connection with a byte, until the process is killed.
pub fn serve() {
    let listener = UnixListener::bind(path()).unwrap();
    loop {
        let Ok((mut stream, _)) = listener.accept() else { continue };
        let mut byte = [0];
        let _ = stream.read(&mut byte).and_then(|_| stream.write(&byte));
    }
}

/// Asks the probe in the daemon's directory `dir`.
pub fn ask_probe(dir: &std::path::Path) {
    let mut stream = UnixStream::connect(dir.join("probe.sock")).unwrap();
    let mut byte = [0];
    stream.write_all(&[1]).unwrap();
    stream.read_exact(&mut byte).unwrap();
}
