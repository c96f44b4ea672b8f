//! A load generator for web servers: a number of connections, each with one request at a time.
//! Prints latencies by percentile.
//!
//!     cargo run --release -p toklat-guest --example http-load vale0:load 10.0.0.9/24 10.0.0.2:80
//!     /1k [CONNECTIONS [SECONDS]]
//!
//! The loop is closed: a slow answer delays the next request. So under overload the latencies look
//! better than for users who arrive independently (coordinated omission). Times are measured by the
//! turns of this program's loop.

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use guest::apps::load::{Fetch, Load};
use guest::{Guest, Host, RingNic, Stack};

/// Latencies in microseconds.
fn percentiles(load: &Load) -> String {
    let at = |p: f64| load.latencies.value_at_quantile(p / 100.0) as f64 / 1e3;
    let [p50, p90, p99, p999] = [50.0, 90.0, 99.0, 99.9].map(at);
    let max = load.latencies.max() as f64 / 1e3;
    format!("p50 {p50:.1}, p90 {p90:.1}, p99 {p99:.1}, p99.9 {p999:.1}, max {max:.1} us")
}

type Fallible = Result<(), Box<dyn Error>>;

fn load(
    stack: Stack<RingNic>,
    (server, path): (SocketAddr, &str),
    connections: usize,
    seconds: f64,
) -> Fallible {
    let mut guest = Guest::new(stack, Load::new(&server.to_string(), path));
    for _ in 0..connections {
        guest.connect(server, Fetch::default(), guest::now())?;
    }
    let mut began = None;
    let time = Duration::from_secs_f64(seconds);
    let give_up = Instant::now() + time + Duration::from_secs(10);
    guest.run(|load| {
        if began.is_none() && load.answers > 0 {
            began = Some(Instant::now());
        }
        let all_lost = load.lost == connections as u64;
        all_lost || Instant::now() > give_up || began.is_some_and(|began| began.elapsed() > time)
    })?;
    let load = guest.app();
    let Some(began) = began else { return Err(format!("{server} does not answer").into()) };
    let took = began.elapsed().as_secs_f64();
    let rate = load.answers as f64 / took;
    let megabits = load.bytes as f64 * 8.0 / took / 1e6;
    println!("{} answers, {rate:.0} a second, {megabits:.0} Mb/s of bodies", load.answers);
    println!("latency: {}", percentiles(load));
    println!("{} errors, {} of {connections} connections lost", load.errors, load.lost);
    Ok(())
}

fn main() -> Fallible {
    let host = Host::from_env()?;
    let args = host.args().to_vec();
    let usage =
        "usage: http-load [SWITCH:PORT ADDRESS/PREFIX] SERVER:PORT PATH [CONNECTIONS [SECONDS]]";
    let [server, path, rest @ ..] = &args[..] else { return Err(usage.into()) };
    let server: SocketAddr = server.parse()?;
    let connections: usize = rest.first().map_or(Ok(16), |word| word.parse())?;
    let seconds: f64 = rest.get(1).map_or(Ok(5.0), |word| word.parse())?;
    Ok(host.run(|stack| load(stack, (server, path), connections, seconds))?)
}
