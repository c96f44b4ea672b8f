//! Shared by the examples: opens a stack on a daemon's port from command line arguments.

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Instant;

use frame::{Mac, OffloadSet};
use guest::{Config, Nanos, RingNic, Stack};
use netring::Open;

/// Opens a host at `address` (`10.0.0.2/24`) on the port `name` (`vale0:web`).
pub fn open(name: &str, address: &str) -> Result<Stack<RingNic>, Box<dyn Error>> {
    let wrong = || format!("`{address}` is not an address and prefix; write 10.0.0.2/24");
    let (ip, prefix) = address.split_once('/').ok_or_else(wrong)?;
    let ip: Ipv4Addr = ip.parse().map_err(|_| wrong())?;
    let prefix: u8 = prefix.parse().ok().filter(|bits| *bits <= 32).ok_or_else(wrong)?;
    let config = Config::new(Mac::of_name(name), ip, prefix);
    Ok(Stack::new(RingNic::new(Open::new(name).offloads(OffloadSet::ALL).open()?), &config))
}

/// Runs a stack without connections. `work` returns whether it did anything, and when to call it
/// again.
#[allow(dead_code, reason = "of datagram servers only")]
pub fn serve(
    stack: &mut Stack<RingNic>,
    mut work: impl FnMut(&mut Stack<RingNic>, Nanos) -> (bool, Option<Nanos>),
) -> Result<(), Box<dyn Error>> {
    serve_until(stack, |stack, now| {
        let (busy, due) = work(stack, now);
        (busy, due, false)
    })
}

/// As [`serve`], until `work` returns that it is done.
#[allow(dead_code, reason = "of datagram programs only")]
pub fn serve_until(
    stack: &mut Stack<RingNic>,
    mut work: impl FnMut(&mut Stack<RingNic>, Nanos) -> (bool, Option<Nanos>, bool),
) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    loop {
        let now = Nanos(Nanos::SECOND) + started.elapsed().as_nanos() as u64;
        let deadline = stack.poll(now)?;
        let (busy, due, done) = work(stack, now);
        if done {
            return Ok(());
        }
        if !busy {
            stack.wait(deadline.into_iter().chain(due).min(), now)?;
        }
    }
}
