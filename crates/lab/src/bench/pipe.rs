//! Pipes: netmap's twin rings between two threads on two cores.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use netring::{PipeConfig, Port};

use super::lab::Lab;
use super::traffic::{self, Flow, SINK, SOURCE, on_core};

/// Runs `far` repeatedly on core 1, while `near` measures on core 0.
fn two_cores(
    mut far: impl FnMut() -> Result<()> + Send,
    near: impl FnOnce() -> Result<f64> + Send,
) -> Result<f64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let other = scope.spawn(move || {
            on_core(1, || {
                while !stop.load(Ordering::Relaxed) {
                    far()?;
                }
                Ok(())
            })
        });
        let measured = on_core(0, near);
        stop.store(true, Ordering::Relaxed);
        let done = other.join().unwrap_or_else(|_| anyhow::bail!("the other end panicked"));
        measured.and_then(|value| done.map(|()| value))
    })
}

fn ends() -> Result<(Port, Port)> {
    Ok(netring::pipe(&PipeConfig::default())?)
}

/// A producer that fills slots without touching buffers, and a consumer that reads lengths: Mpps.
pub fn throughput(lab: &Lab) -> Result<f64> {
    let ((mut left, mut right), time) = (ends()?, lab.duration());
    let flow = Flow::new(64, false);
    let produce = move || {
        left.send(traffic::BATCH).fill(traffic::BATCH, |_| 64);
        Ok(left.flush()?)
    };
    two_cores(produce, move || traffic::rate(time, || flow.sink(&mut right)))
}

/// Round trip of one frame in us, both ends polling.
pub fn round_trip(lab: &Lab) -> Result<f64> {
    let ((mut left, mut right), time) = (ends()?, lab.duration());
    let (there, back) = (traffic::message(SINK, SOURCE), traffic::message(SOURCE, SINK));
    let answer = move || {
        if traffic::take(&mut right) > 0 {
            traffic::send_one(&mut right, &back)?;
        }
        Ok(())
    };
    two_cores(answer, move || {
        traffic::median_us(time, || {
            traffic::send_one(&mut left, &there)?;
            traffic::await_one(&mut left)
        })
    })
}
