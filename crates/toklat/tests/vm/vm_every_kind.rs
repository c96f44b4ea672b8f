//! Real TCP between every two kinds of ports, both ways.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use vm::Running;

use harness::guests::{Guest, PATIENCE, can_emulate};
use harness::namespace::Namespace;
use harness::stack::{Stack, body, head};
use harness::{Daemon, skip, small};

/// How a guest comes to its switch.
enum Attachment {
    /// `toklat vm run` with these options attaches it.
    Run(&'static [&'static str]),
    /// By a QEMU with its own `-netdev`, where `DIR` stands for the daemon's directory. `kind` is
    /// the port's.
    Own { kind: &'static str, netdev: &'static str },
}

/// Names of ports, each with the last byte of its guest's address.
const GUESTS: [(&str, u8, Attachment); 6] = [
    ("virtio", 1, Attachment::Run(&[])),
    ("e1000", 2, Attachment::Run(&["--nic", "82574l", "--combine", "16,50"])),
    ("pcnet", 3, Attachment::Run(&["--nic", "am79c973"])),
    ("stream", 4, Attachment::Run(&["--nic", "e1000"])),
    (
        "server",
        5,
        Attachment::Own {
            kind: "stream = { address = 'DIR/server', client = true }",
            netdev: "stream,id=net0,server=on,addr.type=unix,addr.path=DIR/server",
        },
    ),
    (
        "dgram",
        6,
        Attachment::Own {
            kind: "dgram = { local = 'DIR/ours', remote = 'DIR/theirs' }",
            netdev: "dgram,id=net0,local.type=unix,local.path=DIR/theirs,remote.type=unix,remote.path=DIR/ours",
        },
    ),
];
/// The stations of the host's stack, at a tap, and of a program's stack, at a ring port.
const HOST: u8 = 8;
const PROGRAM: u8 = 9;

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

fn page() -> Vec<u8> {
    b"toklat\n".iter().copied().cycle().take(300_000).collect()
}

fn stations() -> Vec<u8> {
    GUESTS.iter().map(|guest| guest.1).chain([HOST, PROGRAM]).collect()
}

/// Returns the commands by which a guest serves its page, fetches those of all others, compares
/// them, and prints the result of each.
fn commands(number: u8) -> String {
    let others = stations().into_iter().filter(|other| *other != number);
    let others = others.map(|other| other.to_string()).collect::<Vec<_>>().join(" ");
    format!(
        "mkdir /w; yes toklat | head -c 300000 >/w/f; httpd -h /w; for n in {others}; do \
         until timeout 10 wget -q -O /tmp/g http://10.0.0.$n/f; do sleep 0.3; done; \
         cmp /tmp/g /w/f && echo toklat-guest: whole $n; done; while :; do sleep 1; done"
    )
}

/// Starts a guest by QEMU with the arguments of `toklat vm run --print` but another `-netdev`.
fn own(daemon: &Daemon, name: &str, number: u8, netdev: &str) -> Running {
    let mut print = Command::new(env!("CARGO_BIN_EXE_toklat"));
    print.env("TOKLAT_DIR", daemon.dir()).args(["vm", "run", "--switch", "vale0", "--test-guest"]);
    print.args([
        "--print",
        "--nic",
        "e1000",
        "--memory",
        "256",
        "--port",
        &format!("{name}-print"),
    ]);
    print.args(["--address", &format!("{}/24", address(number)), "--run", &commands(number)]);
    let printed = String::from_utf8(print.output().unwrap().stdout).unwrap();
    let mut words = printed.lines().last().unwrap().split(' ').collect::<Vec<_>>();
    let at = words.iter().position(|word| *word == "-netdev").unwrap() + 1;
    words[at] = netdev;
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {}", words.join(" "))]);
    Running::spawn(name, command).unwrap()
}

fn answer(mut stream: TcpStream, page: &[u8]) {
    let (mut asked, mut piece) = (Vec::new(), [0; 4096]);
    while body(&asked).is_none() {
        let Ok(got @ 1..) = stream.read(&mut piece) else { return };
        asked.extend(&piece[..got]);
    }
    let _ = stream.write_all(head(page.len()).as_bytes()).and_then(|()| stream.write_all(page));
}

/// Serves a page on the host, at its tap, until the test ends.
fn serve(host: &Namespace) {
    let listener = host.enter(|| TcpListener::bind((address(HOST), 80)).unwrap());
    let page = page();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let page = page.clone();
            std::thread::spawn(move || answer(stream, &page));
        }
    });
}

fn fetch(host: &Namespace, from: Ipv4Addr) -> Vec<u8> {
    let Ok(mut stream) = host.enter(|| TcpStream::connect((from, 80))) else { return Vec::new() };
    let mut answer = Vec::new();
    let _ = stream.write_all(b"GET /f HTTP/1.0\r\n\r\n");
    let _ = stream.read_to_end(&mut answer);
    body(&answer).unwrap_or_default().to_vec()
}

/// Fetches a page until one arrives whole: guests take a while to boot.
fn until_complete(from: u8, mut fetch: impl FnMut(Ipv4Addr) -> Vec<u8>) {
    let started = Instant::now();
    loop {
        let got = fetch(address(from));
        if got.len() == page().len() {
            return assert!(got == page(), "the page of {from}");
        }
        assert!(started.elapsed() < PATIENCE, "{from} serves no page: {} bytes", got.len());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Objective: TCP works between any two kinds of ports.
///
/// Steps: guests with six kinds of NICs and sockets, the host at a tap and a program at rings with
/// a stack of its own serve a page each; each fetches those of all others and compares them, so
/// that bulk goes both ways.
#[test]
fn every_two_kinds_of_ports_exchange_tcp() {
    let test = "every_two_kinds_of_ports_exchange_tcp";
    if !can_emulate(test) {
        return;
    }
    let host = match Namespace::new() {
        Ok(host) => host,
        Err(why) => return skip(test, why),
    };
    let daemon = Daemon::start();
    let place = |text: &str| text.replace("DIR", daemon.dir().to_str().unwrap());
    let mut topology = format!(
        "[switch.vale0.port.host]\nkind = {{ tap = {{ ifname = 'tkhost', netns = '{}' }} }}\n",
        host.id()
    );
    for (name, _, way) in &GUESTS {
        if let Attachment::Own { kind, .. } = way {
            // The queue of a datagram socket holds only ten datagrams.
            let kind = place(kind);
            topology += &format!("[switch.vale0.port.{name}]\nkind.{kind}\nlossless = true\n");
        }
    }
    daemon.apply(&topology);
    let local = format!("{}/24", address(HOST));
    host.run(&["ip", "addr", "add", &local, "dev", "tkhost"]);
    host.run(&["ip", "link", "set", "tkhost", "up"]);
    serve(&host);
    let port = small("vale0:program").slots(1024).directory(daemon.dir()).open().unwrap();
    let program = Stack::start(port, address(PROGRAM), page());

    let (mut ran, mut owned) = (Vec::new(), Vec::new());
    for (name, number, way) in &GUESTS {
        match way {
            Attachment::Run(options) => {
                let guest = Guest::boot(&daemon, name, *number, options, &commands(*number));
                ran.push((*number, guest));
            }
            Attachment::Own { netdev, .. } => {
                owned.push((*number, own(&daemon, name, *number, &place(netdev))));
            }
        }
    }
    for (_, number, _) in GUESTS {
        until_complete(number, |from| fetch(&host, from));
        until_complete(number, |from| program.fetch(from));
    }
    until_complete(PROGRAM, |from| fetch(&host, from));
    until_complete(HOST, |from| program.fetch(from));
    let others = |number| stations().into_iter().filter(move |other| *other != number);
    for (number, guest) in &mut ran {
        for other in others(*number) {
            guest.says(&format!("whole {other}"));
        }
    }
    for (number, guest) in &mut owned {
        for other in others(*number) {
            let text = format!("whole {other}");
            guest.wait_for(&text, PATIENCE, &AtomicBool::new(false)).unwrap();
        }
    }
    // With a rate limit, the page takes at least the time that its bytes need and is whole. Two
    // parts need no time: the 25 kB in the bucket, and the last segment of 64 KiB, for which the
    // bucket goes into debt.
    let least = Duration::from_secs_f64((page().len() - 25_000 - 65_536) as f64 * 8.0 / 2e6);
    let ports = GUESTS.iter().map(|(name, number, _)| (*name, *number));
    for (name, number) in ports.chain([("program", PROGRAM)]) {
        daemon.done(&["port", "set", &format!("vale0:{name}"), "--tx-limit", "2Mb/s"]);
        let began = Instant::now();
        until_complete(number, |from| fetch(&host, from));
        assert!(began.elapsed() >= least, "{name}: {:?}", began.elapsed());
    }
    daemon.done(&["port", "set", "vale0:host", "--tx-limit", "2Mb/s"]);
    let began = Instant::now();
    until_complete(HOST, |from| program.fetch(from));
    assert!(began.elapsed() >= least, "the host: {:?}", began.elapsed());
}
