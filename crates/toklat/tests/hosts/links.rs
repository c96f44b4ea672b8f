//! Linux TCP over taps through links, beside the kernel's own `tbf` where that exists.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use harness::namespace::Namespace;
use harness::underlay::{ip, pings};
use harness::{Daemon, skip};

/// Bits a second of the lines.
const RATE: f64 = 20e6;
/// Of these, what TCP gets: 1,448 bytes of payload in a frame of 1,514.
const THEORY: f64 = RATE * 1448.0 / 1514.0;
/// Bytes of a transfer: some half a second of the line.
const BYTES: usize = 1_500_000;
/// How long a transfer may stand still.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two hosts with a tap each at ports h1 and h2 of vale0: 10.78.0.1 and 10.78.0.2.
fn hosts(daemon: &Daemon) -> Result<[Namespace; 2], &'static str> {
    let hosts = [Namespace::new()?, Namespace::new()?];
    let port = |n: usize| {
        let netns = hosts[n - 1].id();
        format!("[switch.vale0.port.h{n}]\nkind.tap = {{ ifname = \"t0\", netns = \"{netns}\" }}\n")
    };
    daemon.apply(&format!("{}{}", port(1), port(2)));
    for (n, host) in (1..).zip(&hosts) {
        ip(host, &format!("address add 10.78.0.{n}/24 dev t0"));
        ip(host, "link set t0 up");
    }
    assert!(pings(&hosts[0], "10.78.0.2"));
    Ok(hosts)
}

/// What the second host gets from the first, as a share of what the line carries: in the whole
/// transfer, and from the first quarter of the bytes on.
fn goodput([from, to]: &[Namespace; 2]) -> (f64, f64) {
    let listener = to.enter(|| TcpListener::bind("10.78.0.2:0").unwrap());
    let at = listener.local_addr().unwrap();
    // The kernel takes the connection before it is accepted, so neither end waits for a dead one.
    let mut sender = from.enter(|| TcpStream::connect_timeout(&at, PATIENCE).unwrap());
    let (mut receiver, _) = listener.accept().unwrap();
    sender.set_write_timeout(Some(PATIENCE)).unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let share =
        |bytes: usize, since: Instant| bytes as f64 * 8.0 / since.elapsed().as_secs_f64() / THEORY;
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.write_all(&vec![7; BYTES]).unwrap());
        let (mut buffer, mut got) = (vec![0; 1 << 16], 0);
        let mut since: Option<(Instant, usize)> = None;
        while got < BYTES {
            let n = receiver.read(&mut buffer).unwrap();
            assert!(n > 0, "the transfer ended after {got} bytes");
            got += n;
            if got >= BYTES / 4 {
                since.get_or_insert_with(|| (Instant::now(), got));
            }
        }
        let (began, before) = since.unwrap();
        (share(got, start), share(got - before, began))
    })
}

/// Asserts that TCP gets what the headers leave of the rate, and no more. A busy machine may leave
/// the line idle in one transfer; so the best of several counts.
fn assert_gets_the_rate(hosts: &[Namespace; 2], what: &str) {
    let mut all = Vec::new();
    while all.len() < 8 {
        let (whole, found) = goodput(hosts);
        assert!(whole < 1.03, "{what}: {whole} of what the line carries");
        if found > 0.95 {
            return;
        }
        all.push(found);
    }
    panic!("{what}: {all:?} of what the line carries");
}

/// Objective: TCP with its offloads gets of a link's rate what the headers leave, in either
/// direction, as it does of the kernel's `tbf` of the same rate.
#[test]
fn linux_gets_of_a_links_rate_what_the_headers_leave() {
    let test = "linux_gets_of_a_links_rate_what_the_headers_leave";
    let daemon = Daemon::start();
    let hosts = match hosts(&daemon) {
        Ok(hosts) => hosts,
        Err(why) => return skip(test, why),
    };
    for (port, option) in [("vale0:h1", "--tx-link"), ("vale0:h2", "--rx-link")] {
        daemon.done(&["port", "set", port, option, "rate=20Mb/s,delay=1ms,queue=400frames"]);
        assert_gets_the_rate(&hosts, option);
        daemon.done(&["port", "set", port, option, "off"]);
    }
    let tbf = ["tc", "qdisc", "add", "dev", "t0", "root", "tbf", "rate", "20mbit", "burst", "16kb"];
    let limited = [&tbf[..], &["latency", "200ms"]].concat();
    if hosts[0].command(&limited).status().is_ok_and(|status| status.success()) {
        assert_gets_the_rate(&hosts, "tbf");
    } else {
        eprintln!("{test}: the kernel has no tbf");
    }
}
