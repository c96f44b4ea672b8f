//! Calls an `rpc-server`, checks its replies, and prints the times of requests in microseconds.
//!
//!     cargo run --release -p toklat-guest --example rpc-load vale0:load vale0:calls 100000 10
//!
//! The last two are the number of requests, and their bytes. `W` after them has the server answer
//! on another thread.

use std::error::Error;
use std::time::{Duration, Instant};

use frame::Mac;
use guest::rpc::{CallError, Calling, Config, Failure, SessionId};
use guest::{Bytes, Nanos, RingNic};
use hdrhistogram::Histogram;
use netring::Open;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, server, count, len, rest @ ..] = &args[..] else {
        return Err("usage: rpc-load SWITCH:PORT SWITCH:SERVER REQUESTS BYTES [W]".into());
    };
    let (count, len): (u64, usize) = (count.parse()?, len.parse()?);
    let mac = Mac::of_name(name);
    let nic = RingNic::new(Open::new(name).open()?);
    let mut calling = Calling::new(nic, Config { checksum: false, ..Config::new(mac) });
    let started = Instant::now();
    let clock = || Nanos(Nanos::SECOND) + started.elapsed().as_nanos() as u64;
    let mut request = vec![b'x'; len];
    if let (Some(first), [_, ..]) = (request.first_mut(), rest) {
        *first = b'W';
    }
    let request = Bytes::from(request);
    let mut session = calling.connect(Mac::of_name(server), clock());
    let mut times = Histogram::<u64>::new_with_bounds(1, 60 * Nanos::SECOND, 3)?;
    let (mut asked, mut done) = (0, 0);
    let mut sent = std::collections::HashMap::new();
    while done < count {
        let now = clock();
        while asked < count {
            match calling.call_bytes(session, asked, request.clone(), now) {
                Ok(()) => {
                    if asked == 0 {
                        eprintln!("connected");
                    }
                    sent.insert(asked, now);
                    asked += 1;
                }
                Err(CallError::Opening | CallError::Busy | CallError::Full) => break,
                // The server may start later than this program.
                Err(CallError::Closed) if asked == 0 => {
                    calling.close(session);
                    session = calling.connect(Mac::of_name(server), now);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let mut failed = None;
        let due =
            calling.poll(now, &mut |_: SessionId, tag: u64, reply: Result<&[u8], Failure>| {
                done += 1;
                let took = sent.remove(&tag).map_or(0, |then| clock() - then);
                times.saturating_record(took);
                match reply {
                    Ok(reply) if reply == &request[..] => {}
                    Ok(_) => failed = Some("a reply differs from its request".to_owned()),
                    Err(error) => failed = Some(error.to_string()),
                }
            })?;
        if let Some(failed) = failed {
            return Err(failed.into());
        }
        if due.is_some_and(|due| due > now) && done < count {
            let rest = due.map_or(u64::MAX, |due| due - now);
            calling.wait(Some(Duration::from_nanos(rest.min(1_000_000))))?;
        }
    }
    let us = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "{done} replies; us: {:.1} median, {:.1} p99, {:.1} p99.9",
        us(0.5),
        us(0.99),
        us(0.999)
    );
    Ok(())
}
