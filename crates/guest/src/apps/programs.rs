//! Guests' programs that are built in: for the demo, the benchmarks, and a first try.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::bulk::Bulk;
use super::iperf3;
use super::kv::Kv;
use super::load::{Fetch, Load};
use super::site::Site;
use crate::rpc::{self, Answer, Calling, Failure, Serving, SessionId};
use crate::{Guest, Host, Nanos, RingNic, Stack};
use hdrhistogram::Histogram;

/// The names of programs, and what each does.
pub const PROGRAMS: [(&str, &str); 9] = [
    ("call", "makes remote procedure calls; SWITCH:PORT [SECONDS]"),
    ("calls", "answers remote procedure calls with their own bytes"),
    ("echo", "sends back what comes to port 7, by TCP and UDP"),
    ("httpd", "a web server with pages /1k, /4k, /16k, /64k, /1m"),
    (
        "iperf3",
        "an iperf3 server, or a client; [SERVER[:PORT] [-t N] [-P N] [-l N] [-R | --bidir] [-u [-b N]]]",
    ),
    ("kv", "a cache for memcached clients; [MEBIBYTES]"),
    ("load", "requests pages; SERVER:PORT PATH [CONNECTIONS [SECONDS]]"),
    ("sink", "takes bulk data at port 5001"),
    ("source", "sends bulk data; SERVER:PORT [SECONDS [CONNECTIONS]]"),
];

/// Whether a program is built in.
pub fn is_built_in(app: &str) -> bool {
    PROGRAMS.iter().any(|(name, _)| *name == app)
}

/// The file to run for a program, and the first words of its command line.
pub fn find(app: &str) -> (PathBuf, Vec<String>) {
    match is_built_in(app) {
        true => {
            let words = ["toklat", "guest-program", app].map(str::to_owned);
            ("/proc/self/exe".into(), words.into())
        }
        false => (app.into(), vec![app.to_owned()]),
    }
}

type Fallible = Result<(), Box<dyn Error>>;

/// Runs a program, in the process of a guest.
///
/// # Errors
/// [`HostError`](crate::HostError), or an argument is wrong.
pub fn run(program: &str, args: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let host = Host::from_env()?;
    let word = |i: usize| args.get(i).map(String::as_str);
    let number = |i: usize, default: f64| word(i).map_or(Ok(default), str::parse);
    let server = |usage: &'static str| -> Result<SocketAddr, Box<dyn Error + Send + Sync>> {
        Ok(word(0).ok_or(usage)?.parse()?)
    };
    match program {
        "call" => {
            let (to, time) = (word(0).ok_or("usage: call SWITCH:PORT [SECONDS]")?, number(1, 5.0)?);
            host.run(|stack| call(stack, frame::Mac::of_name(to), after(time)))?;
        }
        "calls" => host.run(answer_calls)?,
        "echo" => host.run(super::echo::serve)?,
        "httpd" => {
            let site = site(epoch());
            host.run(|stack| serve(Guest::new(stack, site.clone()), 80))?;
        }
        "iperf3" => {
            let command = iperf3::Command::read(args)?;
            let _ = busy();
            host.run(|stack| command.run(stack, busy))?;
        }
        "kv" => {
            // A quarter of the memory, which the kernel may count to half of its limit.
            let epoch = epoch();
            let fits = host.memory().map_or(64.0, |bytes| (bytes >> 22) as f64);
            let bytes = (number(0, fits.clamp(1.0, 64.0))? * f64::from(1 << 20)) as usize;
            host.run(|stack| serve(Guest::new(stack, Kv::new(bytes, epoch)), 11211))?;
        }
        "load" => {
            let server = server("usage: load SERVER:PORT PATH [CONNECTIONS [SECONDS]]")?;
            let path = word(1).unwrap_or("/1k").to_owned();
            let (connections, seconds) = (number(2, 16.0)?, number(3, 5.0)?);
            let _ = busy();
            host.run(|stack| load(stack, server, &path, connections as usize, seconds))?;
        }
        "sink" => host.run(|stack| serve(Guest::new(stack, Bulk::sink(true)), 5001))?,
        "source" => {
            let server = server("usage: source SERVER:PORT [SECONDS [CONNECTIONS]]")?;
            let (seconds, connections) = (number(1, 5.0)?, number(2, 1.0)?);
            host.run(|stack| source(stack, server, seconds, connections as usize))?;
        }
        _ => return Err(format!("There is no program {program}").into()),
    }
    Ok(())
}

/// The site of `httpd`, with pages of several sizes. `epoch`: the time of day at which the guest's
/// clock was 0, in seconds since 1970.
#[must_use]
pub fn site(epoch: u64) -> Site {
    let mut site = Site::default();
    site.tell_time(epoch);
    site.add("/", crate::Bytes::from_static(b"<h1>It works, without a kernel's sockets.</h1>\n"));
    for (path, len) in [("/1k", 1), ("/4k", 4), ("/16k", 16), ("/64k", 64), ("/1m", 1024)] {
        site.add(path, vec![b'x'; len << 10].into());
    }
    site
}

/// The time of day at which guests' clocks were 0, in seconds since 1970.
fn epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    since.saturating_sub(crate::now().0 / Nanos::SECOND)
}

fn serve<A: crate::App>(mut guest: Guest<RingNic, A>, port: u16) -> Fallible {
    guest.listen(port, 1024)?;
    Ok(guest.run(|_| false)?)
}

/// A clock that is read once in a turn.
fn after(time: f64) -> impl FnMut() -> bool {
    let (start, time) = (Instant::now(), Duration::from_secs_f64(time.clamp(0.0, 1e6)));
    move || start.elapsed() >= time
}

fn load(
    stack: Stack<RingNic>,
    server: SocketAddr,
    path: &str,
    connections: usize,
    seconds: f64,
) -> Fallible {
    let mut guest = Guest::new(stack, Load::new(&server.to_string(), path));
    for _ in 0..connections {
        guest.connect(server, Fetch::default(), crate::now())?;
    }
    let (mut done, start) = (after(seconds), Instant::now());
    guest.run(|_| done())?;
    let (took, load) = (start.elapsed().as_secs_f64(), guest.app());
    let median = load.latencies.value_at_quantile(0.5) as f64 / 1e3;
    println!(
        "{{\"answers\":{},\"bytes\":{},\"errors\":{},\"lost\":{},\"seconds\":{took:.3},\"median_us\":{median:.1},\"busy\":{:.3}}}",
        load.answers,
        load.bytes,
        load.errors,
        load.lost,
        busy()
    );
    Ok(())
}

/// Seconds that this thread has spent on a core. Its first call asks the kernel where the clock is,
/// which a sealed guest may not: call it before.
fn busy() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Sends data until the time is over, or no connection is left.
fn source(stack: Stack<RingNic>, server: SocketAddr, seconds: f64, connections: usize) -> Fallible {
    let mut guest = Guest::new(stack, Bulk::source(true));
    for _ in 0..connections {
        guest.connect(server, (), crate::now())?;
    }
    let (mut done, start) = (after(seconds), Instant::now());
    guest.run(|bulk| done() || bulk.lost >= connections as u64)?;
    let (took, made, lost) = (start.elapsed().as_secs_f64(), guest.app().made, guest.app().lost);
    let bytes = guest.stack().tcp().counters().bytes_out;
    println!("{{\"bytes\":{bytes},\"connections\":{made},\"lost\":{lost},\"seconds\":{took:.3}}}");
    Ok(())
}

/// How long a server of calls polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Bytes of a request.
const REQUEST: usize = 10;

/// A clock for programs that have none of their own.
fn clock() -> impl Fn() -> Nanos {
    let started = Instant::now();
    move || Nanos(Nanos::SECOND) + started.elapsed().as_nanos() as u64
}

/// Answers each request with its own bytes.
fn answer_calls(stack: Stack<RingNic>) -> Fallible {
    let config = rpc::Config { checksum: false, ..rpc::Config::new(stack.mac()) };
    let handler = |_: rpc::Call, request: &[u8], reply: &mut [u8]| {
        let Some(place) = reply.get_mut(..request.len()) else {
            return Answer::Whole(crate::Bytes::copy_from_slice(request));
        };
        place.copy_from_slice(request);
        Answer::Here(request.len())
    };
    let (mut serving, now) = (Serving::new(stack.into_nic(), config, handler), clock());
    let mut last = Instant::now();
    loop {
        if serving.poll(now())? > 0 {
            last = Instant::now();
        } else if last.elapsed() > SPIN {
            serving.wait(None)?;
        }
    }
}

/// Makes one call after the other.
fn call(stack: Stack<RingNic>, server: frame::Mac, mut done: impl FnMut() -> bool) -> Fallible {
    let config = rpc::Config { checksum: false, ..rpc::Config::new(stack.mac()) };
    let (mut calling, now) = (Calling::new(stack.into_nic(), config), clock());
    let mut session = calling.connect(server, now());
    let mut times = Histogram::<u64>::new_with_bounds(1, 60 * Nanos::SECOND, 3)?;
    let (mut asked, mut calls, mut failed) = (None, 0u64, 0u64);
    while !done() {
        let at = now();
        let due =
            calling.poll(at, &mut |_: SessionId, _: u64, reply: Result<&[u8], Failure>| {
                let took = asked.take().map_or(0, |asked| now() - asked);
                calls += 1;
                match reply {
                    Ok(_) => times.saturating_record(took),
                    Err(_) => failed += 1,
                }
            })?;
        let client = calling.client();
        if client.is_closed(session) {
            // The server may start later than this program.
            calling.close(session);
            session = calling.connect(server, at);
        } else if asked.is_none() && client.is_open(session) {
            calling.call(session, calls, &[7; REQUEST], at)?;
            asked = Some(at);
        } else if !client.is_open(session) {
            let rest = due.map_or(1_000_000, |due| due - at);
            calling.wait(Some(Duration::from_nanos(rest.min(1_000_000))))?;
        }
    }
    let median = times.value_at_quantile(0.5) as f64 / 1e3;
    println!("{{\"calls\":{calls},\"failed\":{failed},\"median_us\":{median:.2}}}");
    Ok(())
}
