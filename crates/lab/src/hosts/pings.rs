//! Pings at 10 ms, and which of them were lost.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// The command of a ping, without the address.
pub const WORDS: &str = "ping -n -D -i 0.01 -W 1";

/// A ping that runs until it is asked how many pings were lost.
#[derive(Debug)]
pub struct Pings(Child);

impl Pings {
    /// Starts pings by a command that ends with [`WORDS`] and an address.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?))
    }

    /// Ends the pings, and returns which were answered.
    ///
    /// # Errors
    /// The command prints nothing.
    pub fn end(mut self) -> Result<Answers> {
        kill_process(Pid::from_child(&self.0), Signal::INT)?;
        let (mut text, mut stdout) = (String::new(), self.0.stdout.take().context("no output")?);
        stdout.read_to_string(&mut text)?;
        Ok(Answers::read(&text))
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// When the answered pings of a run were sent, in seconds since the epoch, by their numbers.
#[derive(Debug)]
pub struct Answers(BTreeMap<u32, f64>);

impl Answers {
    /// From lines such as `[1700000000.5] 64 bytes from 10.0.0.1: icmp_seq=3 ttl=64 time=0.2 ms`.
    fn read(text: &str) -> Self {
        let of = |line: &str| -> Option<(u32, f64)> {
            let (at, rest) = line.strip_prefix('[')?.split_once(']')?;
            let after = |name: &str| rest.split_once(name)?.1.split(' ').next();
            let took: f64 = after("time=")?.parse().ok()?;
            Some((after("icmp_seq=")?.parse().ok()?, at.parse::<f64>().ok()? - took / 1e3))
        };
        Self(text.lines().filter_map(of).collect())
    }

    /// How many pings were lost. Counts those sent from time `at` since the epoch on, up to the
    /// last answered one.
    ///
    /// # Errors
    /// None was answered that was sent then or later.
    pub fn lost_from(&self, at: Duration) -> Result<u32> {
        let at = at.as_secs_f64();
        ensure!(self.0.values().any(|sent| *sent >= at), "no ping is answered any more");
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        let lost = pairs.map(|((first, from), (next, to))| {
            let each = (to - from) / f64::from(next - first);
            let sent = |n: &u32| from + each * f64::from(n - first);
            (first + 1..*next).filter(|n| sent(n) >= at).count() as u32
        });
        Ok(lost.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_lost_from_a_time_on_up_to_the_last_answer() {
        let line = |n: u32, at: f64| {
            format!("[{at:.6}] 64 bytes from 10.0.0.1: icmp_seq={n} ttl=64 time=2.00 ms\n")
        };
        // 3 to 6 are lost: they were sent at 100.02 to 100.05.
        let text = line(1, 100.002) + "PING\n" + &line(2, 100.012) + &line(7, 100.062);
        let answers = Answers::read(&text);
        let lost = |millis: u64| answers.lost_from(Duration::from_millis(millis));
        assert_eq!(lost(0).unwrap(), 4);
        assert_eq!(lost(100_035).unwrap(), 2);
        assert_eq!(lost(100_055).unwrap(), 0);
        assert!(lost(100_065).is_err());
    }
}
