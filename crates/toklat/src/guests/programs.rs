//! Guests' programs that are built in: for the demo, the benchmarks, and a first try.

use std::error::Error;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use guest::apps::bulk::Bulk;
use guest::apps::kv::Kv;
use guest::apps::load::{Fetch, Load};
use guest::apps::site::Site;
use guest::{Guest, Host, Nanos, RingNic, Stack};

/// Names, and what they do.
pub const PROGRAMS: [(&str, &str); 5] = [
    ("httpd", "a web server with pages /1k, /4k, /16k, /64k, /1m"),
    ("kv", "a cache for memcached clients; [MEBIBYTES]"),
    ("load", "requests pages; SERVER:PORT PATH [CONNECTIONS [SECONDS]]"),
    ("sink", "takes bulk data at port 5001"),
    ("source", "sends bulk data; SERVER:PORT [SECONDS]"),
];

/// The file of a program, and the first words of its command line.
pub fn find(app: &str) -> (PathBuf, Vec<String>) {
    match PROGRAMS.iter().any(|(name, _)| *name == app) {
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
/// [`guest::HostError`], or an argument is wrong.
pub fn run(program: &str, args: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let host = Host::from_env()?;
    let word = |i: usize| args.get(i).map(String::as_str);
    let number = |i: usize, default: f64| word(i).map_or(Ok(default), str::parse);
    let server = |usage: &'static str| -> Result<SocketAddrV4, Box<dyn Error + Send + Sync>> {
        Ok(word(0).ok_or(usage)?.parse()?)
    };
    match program {
        "httpd" => {
            let site = pages();
            host.run(|stack| serve(Guest::new(stack, site.clone()), 80))?;
        }
        "kv" => {
            let bytes = (number(0, 64.0)? * f64::from(1 << 20)) as usize;
            host.run(|stack| serve(Guest::new(stack, Kv::new(bytes, 0)), 11211))?;
        }
        "load" => {
            let server = server("usage: load SERVER:PORT PATH [CONNECTIONS [SECONDS]]")?;
            let path = word(1).unwrap_or("/1k").to_owned();
            let (connections, seconds) = (number(2, 16.0)?, number(3, 5.0)?);
            host.run(|stack| load(stack, server, &path, connections as usize, seconds))?;
        }
        "sink" => host.run(|stack| serve(Guest::new(stack, Bulk::sink(true)), 5001))?,
        "source" => {
            let server = server("usage: source SERVER:PORT [SECONDS]")?;
            let seconds = number(1, 5.0)?;
            host.run(|stack| source(stack, server, seconds))?;
        }
        _ => return Err(format!("There is no program {program}").into()),
    }
    Ok(())
}

/// Pages of some sizes.
fn pages() -> Site {
    let mut site = Site::default();
    site.add("/", guest::Bytes::from_static(b"<h1>It works, without a kernel's sockets.</h1>\n"));
    for (path, len) in [("/1k", 1), ("/4k", 4), ("/16k", 16), ("/64k", 64), ("/1m", 1024)] {
        site.add(path, vec![b'x'; len << 10].into());
    }
    site
}

fn serve<A: guest::App>(mut guest: Guest<RingNic, A>, port: u16) -> Fallible {
    guest.listen(port, 1024)?;
    Ok(guest.run(|_| false)?)
}

/// A clock that is read once in a turn.
fn after(time: f64) -> impl FnMut() -> bool {
    let (start, time) = (std::time::Instant::now(), Duration::from_secs_f64(time.clamp(0.0, 1e6)));
    move || start.elapsed() >= time
}

fn load(
    stack: Stack<RingNic>,
    server: SocketAddrV4,
    path: &str,
    connections: usize,
    seconds: f64,
) -> Fallible {
    let mut guest = Guest::new(stack, Load::new(&server.to_string(), path));
    for _ in 0..connections {
        guest.connect(server, Fetch::default(), Nanos(Nanos::SECOND))?;
    }
    let (mut done, start) = (after(seconds), std::time::Instant::now());
    guest.run(|_| done())?;
    let (took, load) = (start.elapsed().as_secs_f64(), guest.app());
    let median = load.latencies.value_at_quantile(0.5) as f64 / 1e3;
    println!(
        "{{\"answers\":{},\"bytes\":{},\"errors\":{},\"lost\":{},\"seconds\":{took:.3},\"median_us\":{median:.1}}}",
        load.answers, load.bytes, load.errors, load.lost
    );
    Ok(())
}

fn source(stack: Stack<RingNic>, server: SocketAddrV4, seconds: f64) -> Fallible {
    let mut guest = Guest::new(stack, Bulk::source(true));
    guest.connect(server, (), Nanos(Nanos::SECOND))?;
    let (mut done, start) = (after(seconds), std::time::Instant::now());
    guest.run(|_| done())?;
    let (took, made) = (start.elapsed().as_secs_f64(), guest.app().made);
    let bytes = guest.stack().tcp().counters().bytes_out;
    println!("{{\"bytes\":{bytes},\"connections\":{made},\"seconds\":{took:.3}}}");
    Ok(())
}
