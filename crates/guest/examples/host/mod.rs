//! Shared by the examples of datagram programs: the loop of a stack without connections.

use std::error::Error;

use guest::{Nanos, RingNic, Stack};

/// Runs a stack without connections. `work` returns whether it did anything, and when to call it
/// again.
#[allow(dead_code, reason = "of servers only")]
pub fn serve(
    stack: &mut Stack<RingNic>,
    mut work: impl FnMut(&mut Stack<RingNic>, Nanos) -> (bool, Option<Nanos>),
) -> Result<(), Box<dyn Error>> {
    serve_until(stack, |stack, now| {
        let (busy, due) = work(stack, now);
        (busy, due, false)
    })
}

/// Like [`serve`], until `work` returns that it is done.
#[allow(dead_code, reason = "of programs that end only")]
pub fn serve_until(
    stack: &mut Stack<RingNic>,
    mut work: impl FnMut(&mut Stack<RingNic>, Nanos) -> (bool, Option<Nanos>, bool),
) -> Result<(), Box<dyn Error>> {
    loop {
        let now = guest::now();
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
