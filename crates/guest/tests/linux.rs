//! Linux as the peer: httpd on a port of a real daemon, curl and ping in a network namespace behind
//! a tap.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use frame::Mac;
use guest::{Config, Nanos, RingNic, Stack, UdpError};

use harness::namespace::Namespace;
use harness::{Daemon, Running, artifacts, skip, wait_for};

#[path = "world/peer.rs"]
mod peer;

use peer::{Peer, Wire};

/// A namespace, where there are the programs that all tests use.
fn namespace() -> Result<Namespace, &'static str> {
    for program in ["curl", "ping"] {
        if Command::new(program).arg("-V").output().is_err() {
            return Err("curl or ping is missing");
        }
    }
    Namespace::new()
}

fn run(namespace: &Namespace, args: &[&str]) -> Output {
    namespace.command(args).stdin(Stdio::null()).output().unwrap()
}

fn example(daemon: &Daemon, name: &str, args: &[&str]) -> Command {
    let mut command = daemon.client(&artifacts::example("toklat-guest", name));
    command.args(args);
    command
}

/// A daemon with a tap in the namespace, and an example program on another port.
struct House {
    namespace: Namespace,
    // These fields are dropped in this order.
    _guest: Running,
    daemon: Daemon,
}

impl House {
    fn new(test: &str, name: &str) -> Option<Self> {
        let (namespace, daemon) = Self::empty(test)?;
        let addresses = "10.9.0.2/24,fd09::2/64";
        let guest = example(&daemon, name, &["vale0:guest", addresses]).spawn().unwrap();
        Some(Self { namespace, _guest: Running(guest), daemon })
    }

    /// A daemon with a tap in a namespace.
    fn empty(test: &str) -> Option<(Namespace, Daemon)> {
        let namespace = namespace().map_err(|why| skip(test, why)).ok()?;
        let daemon = Daemon::with_switch("vale0");
        let id = namespace.id().to_string();
        daemon.done(&["port", "add", "vale0:host", "--tap", "tkguest0", "--netns", &id]);
        let out = run(&namespace, &["ip", "address", "add", "10.9.0.1/24", "dev", "tkguest0"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let out =
            run(&namespace, &["ip", "address", "add", "fd09::1/64", "dev", "tkguest0", "nodad"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Some((namespace, daemon))
    }

    /// Pings three times. After some replies, ping waits for the others for two round trips only,
    /// so each has a process of its own.
    fn ping(&self, to: &str) {
        for _ in 0..3 {
            let out = run(&self.namespace, &["ping", "-c", "1", "-W", "30", "-s", "1400", to]);
            let told = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(told.contains("1 received"), "{told}");
        }
    }

    fn curl(&self, args: &[&str]) -> Vec<u8> {
        let retry = ["--retry", "20", "--retry-all-errors", "--retry-delay", "0"];
        let common = ["curl", "--silent", "--show-error", "--fail", "--max-time", "30"];
        let out = run(&self.namespace, &[&common[..], &retry, args].concat());
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    }
}

#[test]
fn curl_fetches_pages_from_httpd_and_ping_is_answered() {
    let test = "curl_fetches_pages_from_httpd_and_ping_is_answered";
    let Some(house) = House::new(test, "httpd") else { return };
    let page = house.curl(&["http://10.9.0.2/"]);
    assert!(page.starts_with(b"<h1>It works"), "{}", String::from_utf8_lossy(&page));
    // A megabyte twice over one connection, and a part of it.
    let url = "http://10.9.0.2/1m";
    assert_eq!(house.curl(&[url, url]), vec![b'x'; 2 << 20]);
    assert_eq!(house.curl(&["--range", "10-29", url]), [b'x'; 20]);
    let head = String::from_utf8(house.curl(&["--head", url])).unwrap();
    assert!(head.contains("Content-Length: 1048576"), "{head}");
    // The server recognizes the document's tag.
    let tags = house.daemon.dir().join("tags");
    let tags = tags.to_str().unwrap();
    house.curl(&["--etag-save", tags, "--output", "/dev/null", url]);
    let args = ["--etag-compare", tags, "--write-out", "%{http_code}", url];
    assert_eq!(house.curl(&args), b"304");

    house.ping("10.9.0.2");
}

/// A port of the daemon.
struct Bare(netring::Port, Instant);

impl Wire for Bare {
    fn send(&mut self, frame: &[u8]) {
        assert!(self.0.send(1).push(frame));
        self.0.flush().unwrap();
    }

    fn now(&self) -> Duration {
        self.1.elapsed()
    }

    fn receive(&mut self, within: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + within;
        loop {
            let came = self.0.receive(1).next().map(|frame| frame.to_vec());
            let left = end.saturating_duration_since(Instant::now());
            if came.is_some() || left.is_zero() {
                self.0.flush().unwrap();
                return came;
            }
            self.0.wait(netring::Interest::READ, Some(left)).unwrap();
        }
    }
}

/// The script of `peers.rs`, to Linux's own stack: the table has its answers.
#[test]
fn linux_answers_the_peers_of_guests_as_the_table_says() {
    let test = "linux_answers_the_peers_of_guests_as_the_table_says";
    let server = "import socketserver as s
class H(s.BaseRequestHandler):
    def handle(t):
        try:
            while d := t.request.recv(9999): t.request.sendall(d)
        except OSError: pass
s.ThreadingTCPServer.allow_reuse_address = True
s.ThreadingTCPServer(('', 7), H).serve_forever()";
    if Command::new("python3").arg("-V").output().is_err() {
        return skip(test, "python3 is missing");
    }
    let Some((namespace, daemon)) = House::empty(test) else { return };
    let mut echo = Command::new("nsenter");
    echo.args(["-t", &namespace.id().to_string(), "-n", "python3", "-c", server]);
    let _echo = Running(echo.spawn().unwrap());
    wait_for("echo", || {
        let listens = run(&namespace, &["ss", "-Hltn", "sport", "=", "7"]).stdout;
        (!listens.is_empty()).then_some(())
    });
    let port = netring::Open::new("vale0:peer").directory(daemon.dir()).open().unwrap();
    let mut peer = Peer::new(
        Bare(port, Instant::now()),
        Ipv4Addr::new(10, 9, 0, 77),
        Ipv4Addr::new(10, 9, 0, 1),
    );
    peer.talk();
    peer.acknowledge_late();
    peer.ask_below();
}

/// hyper, unchanged: keep-alive, a body back, what is not there, ten clients at once.
#[test]
fn curl_fetches_pages_from_hyper_on_a_guest() {
    let test = "curl_fetches_pages_from_hyper_on_a_guest";
    let Some(house) = House::new(test, "hyper-httpd") else { return };
    let url = "http://10.9.0.2";
    assert_eq!(house.curl(&[url]), b"<h1>hyper, on a guest</h1>\n");
    let hello = format!("{url}/hello/light");
    let twice = house.curl(&["--write-out", "%{num_connects}", &hello, &hello]);
    assert_eq!(twice, b"Hello, light!\n1Hello, light!\n0", "one connection");
    let file = house.daemon.dir().join("body");
    let body: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    std::fs::write(&file, &body).unwrap();
    let data = format!("@{}", file.display());
    let echo = format!("{url}/echo");
    assert!(house.curl(&["--data-binary", &data, "--header", "Expect:", &echo]) == body);
    let missing = run(&house.namespace, &["curl", "--silent", "--head", &format!("{url}/no")]);
    assert!(missing.stdout.starts_with(b"HTTP/1.1 404"), "{missing:?}");
    let many = "http://[fd09::2]/hello/[1-50]";
    let pages = house.curl(&["--parallel", "--parallel-max", "10", many]);
    assert_eq!(pages.split(|byte| *byte == b'\n').count(), 51);
}

/// A bridge of Linux that forwards groups to listeners only learns a guest's groups: those of its
/// addresses. The guest is there before the bridge, so it has to be asked.
#[test]
fn a_snooping_bridge_learns_the_groups_of_a_guest() {
    let test = "a_snooping_bridge_learns_the_groups_of_a_guest";
    let Some(house) = House::new(test, "httpd") else { return };
    house.curl(&["http://[fd09::2]/1k"]);
    let make = "ip link add tkbridge0 type bridge mcast_snooping 1 mcast_querier 1 && \
                ip link set tkbridge0 up && ip link set tkguest0 master tkbridge0";
    let made = run(&house.namespace, &["sh", "-c", make]);
    if !made.status.success() {
        return skip(test, "the kernel has no bridge that snoops");
    }
    let groups = wait_for("groups", || {
        let shown = run(&house.namespace, &["bridge", "mdb", "show", "dev", "tkbridge0"]).stdout;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        shown.contains("port tkguest0 grp ff02::1:ff00:2").then_some(shown)
    });
    let local = own_address(0xfe80, "vale0:guest").segments();
    let local = format!("ff02::1:ff{:02x}:{:x}", local[6] & 0xff, local[7]);
    assert!(groups.contains(&format!("grp {local}")), "{local}: {groups}");
}

/// The address that a guest makes itself, in this network.
fn own_address(network: u16, port: &str) -> Ipv6Addr {
    let [a, b, c, d, e, f] = Mac::of_name(port).octets();
    let [a, b, c, d] = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]].map(u16::from_be_bytes);
    Ipv6Addr::new(network, 0, 0, 0, a, b, c, d)
}

/// dnsmasq as DHCP server and router: it lends an address for two minutes, with an MTU and a name
/// server, and advertises a network of IPv6.
#[test]
fn a_guest_gets_its_addresses_from_dnsmasq_and_renews_its_lease() {
    let test = "a_guest_gets_its_addresses_from_dnsmasq_and_renews_its_lease";
    if Command::new("dnsmasq").arg("--version").output().is_err() {
        return skip(test, "dnsmasq is missing (dnsmasq-base)");
    }
    let Some((namespace, daemon)) = House::empty(test) else { return };
    let mut server = Command::new("nsenter");
    server.args([
        "-t",
        &namespace.id().to_string(),
        "-n",
        "dnsmasq",
        "--keep-in-foreground",
        "--port=0",
    ]);
    server.args(["--conf-file=/dev/null", "--interface=tkguest0", "--leasefile-ro", "--no-ping"]);
    server.args(["--dhcp-range=10.9.0.100,10.9.0.199,2m", "--pid-file=", "--user=root"]);
    server.arg(format!("--dhcp-host={},10.9.0.77", Mac::of_name("vale0:guest")));
    server.args(["--dhcp-option=option:mtu,1400", "--dhcp-option=option:dns-server,10.9.0.53"]);
    server.args(["--enable-ra", "--dhcp-range=fd09::,ra-only"]);
    let server = Running(server.spawn().unwrap());

    let guest = example(&daemon, "httpd", &["vale0:guest", "dhcp,slaac"]).spawn().unwrap();
    let house = House { namespace, _guest: Running(guest), daemon };
    let own = own_address(0xfd09, "vale0:guest");
    for host in ["10.9.0.77".to_owned(), format!("[{own}]")] {
        assert_eq!(house.curl(&[&format!("http://{host}/1k")]).len(), 1024, "{host}");
    }

    // A host in this process, whose time passes as the test wants.
    let port = netring::Open::new("vale0:lease").directory(house.daemon.dir()).open().unwrap();
    let mut config = Config::new(Mac::of_name("vale0:lease"), Ipv4Addr::UNSPECIFIED, 0);
    config.dhcp = true;
    let mut stack = Stack::new(RingNic::new(port), &config);
    let (started, mut later) = (Instant::now(), 0);
    let mut until_lent = |stack: &mut Stack<RingNic>, seconds: u64, leases: u64| {
        later += seconds * Nanos::SECOND;
        wait_for("lease", || {
            let now = Nanos(Nanos::SECOND + later + started.elapsed().as_nanos() as u64);
            stack.poll(now).unwrap();
            (stack.counters().leases == leases).then_some(stack.address())
        })
    };
    let first = until_lent(&mut stack, 0, 1);
    assert_eq!((first.octets()[..3].to_vec(), stack.is_configured()), (vec![10, 9, 0], true));
    assert_eq!(stack.name_servers(), [Ipv4Addr::new(10, 9, 0, 53)]);
    let socket = stack.udp_bind(9).unwrap();
    let to = SocketAddr::from(([10, 9, 0, 1], 9));
    let long = stack.udp_send(socket, to, &[0; 1400], Nanos(0));
    assert_eq!(long, Err(UdpError::TooLong(1400, 1400 - 28)));
    // Half of the time, then half of what was renewed.
    assert_eq!(until_lent(&mut stack, 61, 2), first);
    assert_eq!(until_lent(&mut stack, 61, 3), first);
    // Its server does not hear it any more: the lease ends, and the address with it.
    drop(server);
    later += 130 * Nanos::SECOND;
    for _ in 0..2 {
        stack.poll(Nanos(Nanos::SECOND + later + started.elapsed().as_nanos() as u64)).unwrap();
    }
    assert_eq!((stack.address(), stack.is_configured()), (Ipv4Addr::UNSPECIFIED, false));
}

/// The same over IPv6: Linux finds the guest by neighbour discovery, and the guest finds Linux.
#[test]
fn curl_and_ping_reach_a_guest_by_ipv6() {
    let test = "curl_and_ping_reach_a_guest_by_ipv6";
    let Some(house) = House::new(test, "httpd") else { return };
    let url = "http://[fd09::2]/1m";
    assert_eq!(house.curl(&["-6", url, url]), vec![b'x'; 2 << 20]);
    house.ping("fd09::2");
    house.ping(&format!("{}%tkguest0", own_address(0xfe80, "vale0:guest")));
    // A guest is the client of another guest.
    let args = ["vale0:load", "fd09::3/64", "[fd09::2]:80", "/1k", "4", "0.2"];
    let out = example(&house.daemon, "http-load", &args).output().unwrap();
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && told.contains("0 errors, 0 of 4"), "{told} {out:?}");
}

/// libmemcached's tools act as an independent client.
#[test]
fn a_memcached_client_stores_and_finds_values_in_kv() {
    let test = "a_memcached_client_stores_and_finds_values_in_kv";
    if Command::new("memccat").arg("--version").output().is_err() {
        return skip(test, "memccat is missing (libmemcached-tools)");
    }
    let Some(house) = House::new(test, "kv") else { return };
    let file = house.daemon.dir().join("value");
    let value: Vec<u8> = (0..100_000u32).map(|i| b'a' + (i * 7 % 26) as u8).collect();
    std::fs::write(&file, &value).unwrap();
    let file = file.to_str().unwrap();
    let servers = "--servers=10.9.0.2";
    wait_for("cache", || {
        run(&house.namespace, &["memccp", servers, file]).status.success().then_some(())
    });
    let out = run(&house.namespace, &["memccat", servers, "value"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.stdout.starts_with(&value), "{} bytes", out.stdout.len());
    let removed = run(&house.namespace, &["memcrm", servers, "value"]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    let out = run(&house.namespace, &["memccat", servers, "value"]);
    assert!(!out.stdout.starts_with(b"a"), "it is gone");
}

/// iperf3's JSON, of a test to the address in the namespace.
fn iperf3(house: &House, args: &[&str]) -> serde_json::Value {
    let server = if args.contains(&"-6") { "fd09::2" } else { "10.9.0.2" };
    let common = ["iperf3", "-J", "-t", "1", "-c", server];
    let out = run(&house.namespace, &[&common[..], args].concat());
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    serde_json::from_str(&told).unwrap_or_else(|error| panic!("{args:?}: {error}: {told}"))
}

/// The real iperf3 as the client: both directions, several streams, both at once; what it asks for
/// that is not there is refused, and the next test is served.
#[test]
fn the_real_iperf3_measures_a_guest_that_is_its_server() {
    let test = "the_real_iperf3_measures_a_guest_that_is_its_server";
    if Command::new("iperf3").arg("--version").output().is_err() {
        return skip(test, "iperf3 is missing");
    }
    let Some(house) = House::new(test, "iperf3") else { return };
    let none: &[&str] = &[];
    wait_for("server", || iperf3(&house, none).get("error").is_none().then_some(()));
    for args in [none, &["-R"], &["-P", "3"], &["-R", "-P", "2"], &["--bidir"]] {
        let told = iperf3(&house, args);
        assert_eq!(told.get("error"), None, "{args:?}: {told}");
        let end = &told["end"];
        let bytes = |what: &str| end[what]["bytes"].as_u64().unwrap();
        // The receiver counts no more than the sender, and most of it.
        let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
        assert!(received > 100_000 && received <= sent, "{args:?}: {sent} {received}");
        if args == ["--bidir"] {
            assert!(bytes("sum_received_bidir_reverse") > 100_000, "{end}");
        }
    }
    for args in [
        &["-u", "-b", "20M"][..],
        &["-u", "-b", "20M", "-R", "--udp-counters-64bit"],
        &["-u", "-b", "5M", "-P", "3"],
        &["-u", "-b", "5M", "-P", "2", "-R"],
        &["-u", "-b", "5M", "--bidir"],
        &["-6", "-u", "-b", "20M"],
    ] {
        let told = iperf3(&house, args);
        assert_eq!(told.get("error"), None, "{args:?}: {told}");
        let sum = &told["end"]["sum"];
        let number = |what: &str| sum[what].as_f64().unwrap_or_else(|| panic!("{what}: {told}"));
        // Some may be lost while the cores are busy.
        let (packets, lost) = (number("packets"), number("lost_packets"));
        assert!(packets > 400.0 && lost < packets / 2.0, "{args:?}: {sum}");
        assert!(number("jitter_ms") < 1000.0 && number("bytes") > 400_000.0, "{args:?}: {sum}");
    }
    // Longer datagrams would be cut into fragments.
    let told = iperf3(&house, &["-u", "-l", "4000"]);
    assert!(told["error"].as_str().unwrap().contains("not implemented"), "{told}");
    assert_eq!(iperf3(&house, none).get("error"), None);
}

/// The real iperf3 as the server.
#[test]
fn a_guest_measures_the_real_iperf3() {
    let test = "a_guest_measures_the_real_iperf3";
    if Command::new("iperf3").arg("--version").output().is_err() {
        return skip(test, "iperf3 is missing");
    }
    let Some(house) = House::new(test, "echo") else { return };
    let id = house.namespace.id().to_string();
    let mut server = Command::new("nsenter");
    server.args(["-t", &id, "-n", "iperf3", "-s", "-J"]).stdout(Stdio::null());
    let _server = Running(server.spawn().unwrap());
    let run = |args: &[&str]| {
        let fixed = ["vale0:client", "10.9.0.3/24", "10.9.0.1", "-t", "1"];
        let out = example(&house.daemon, "iperf3", &[&fixed[..], args].concat());
        let out = { out }.stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&out.stdout).into_owned();
        serde_json::from_str::<serde_json::Value>(&told).ok()
    };
    wait_for("server", || run(&[]));
    for (args, sends, receives) in
        [(&[][..], true, false), (&["-R", "-P", "2"], false, true), (&["--bidir"], true, true)]
    {
        let told = run(args).unwrap_or_else(|| panic!("{args:?} failed"));
        let bytes = |what: &str| told[what].as_u64().unwrap();
        assert_eq!(
            (bytes("sent") > 100_000, bytes("received") > 100_000),
            (sends, receives),
            "{told}"
        );
        assert!(bytes("peer") > 100_000, "{told}");
    }
    for (args, sends, receives) in [
        (&["-u", "-b", "20M"][..], true, false),
        (&["-u", "-b", "10M", "-R", "-P", "2"], false, true),
        (&["-u", "-b", "10M", "--bidir"], true, true),
    ] {
        let told = run(args).unwrap_or_else(|| panic!("{args:?} failed"));
        let number = |what: &str| told[what].as_u64();
        // Each receiver knows how many were sent, and misses few of them.
        for (packets, lost, there) in
            [("packets", "lost", receives), ("peer_packets", "peer_lost", sends || receives)]
        {
            let counted = number(packets).zip(number(lost));
            assert_eq!(counted.is_some(), there, "{args:?}: {told}");
            assert!(counted.is_none_or(|(n, lost)| n > 400 && lost < n / 2), "{args:?}: {told}");
        }
    }
}
