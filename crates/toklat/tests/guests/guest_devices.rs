//! Guests on NICs that they drive by themselves: cards over vfio-user, and virtio queues over
//! vhost-user.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use frame::Mac;
use guest::{App, Bytes, CardNic, Config, Guest, Io, Nanos, Nic, RingNic, Stack, VhostNic};

use harness::{Daemon, PATIENCE, kill_process, wait_until};

/// The devices: a port's kind in the topology file.
const DEVICES: [(&str, &str); 7] = [
    ("82540em", "vfio_user.nic = { model = '82540em' }"),
    ("82540em, doorbells in memory", "vfio_user.nic = { model = '82540em', doorbell = 'shared' }"),
    ("82574l", "vfio_user.nic = { model = '82574l' }"),
    ("pcnet", "vfio_user.nic = { model = 'am79c973' }"),
    ("one-access", "vfio_user.nic = { model = 'one-access' }"),
    ("split queues", "vhost_user = {}"),
    ("packed queues", "vhost_user = {}"),
];
/// Bytes of documents: one frame, some, and many.
const SIZES: [usize; 3] = [10, 5_000, 3_000_000];

fn daemon(kind: &str) -> Daemon {
    let daemon = Daemon::start();
    daemon.apply(&format!("[switch.vale0.port.device]\nkind.{kind}\n"));
    daemon
}

/// A document whose bytes tell where they were.
fn document(len: usize) -> Bytes {
    (0..len).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect::<Vec<_>>().into()
}

/// Gives each connection its documents, then sends back what comes.
struct Giver(Vec<Bytes>);

impl App for Giver {
    type Conn = ();

    fn accepted(&mut self, io: &mut Io<'_>) {
        self.0.iter().for_each(|document| io.send(document.clone()));
    }

    fn data(&mut self, (): &mut (), io: &mut Io<'_>, data: &[u8]) -> usize {
        io.send(Bytes::copy_from_slice(data));
        data.len()
    }
}

/// Sends a document, and takes what comes.
struct Taker {
    sends: Bytes,
    got: Vec<u8>,
    lost: bool,
}

impl App for Taker {
    type Conn = ();

    fn accepted(&mut self, _: &mut Io<'_>) {}

    fn connected(&mut self, (): &mut (), io: &mut Io<'_>) {
        io.send(self.sends.clone());
    }

    fn data(&mut self, (): &mut (), _: &mut Io<'_>, data: &[u8]) -> usize {
        self.got.extend_from_slice(data);
        data.len()
    }

    fn closed(&mut self, (): (), _: Option<guest::CloseReason>) {
        self.lost = true;
    }
}

fn stack<N: Nic>(nic: N, mac: Mac, host: u8) -> Stack<N> {
    Stack::new(nic, &Config::new(mac, [10, 0, 0, host].into(), 24))
}

/// Has a guest at a ring port exchange documents with one that runs on `nic`. `meanwhile` is called
/// with the bytes that came so far.
fn exchange<N: Nic + Send>(
    daemon: &Daemon,
    (nic, mac): (N, Mac),
    documents: &[Bytes],
    mut meanwhile: impl FnMut(usize),
) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut giver = Guest::new(stack(nic, mac, 1), Giver(documents.to_vec()));
            giver.listen(80, 4).unwrap();
            let begun = Instant::now();
            while !done.load(Ordering::Relaxed) {
                let now = Nanos(Nanos::SECOND) + begun.elapsed().as_nanos() as u64;
                let due = giver.poll(now).unwrap();
                // Sleeps a while at most, because the end is no frame.
                let later = now + Nanos::SECOND / 10;
                giver
                    .stack()
                    .wait(due.map_or(Some(later), |due| Some(due.min(later))), now)
                    .unwrap();
            }
        });
        let end = Ended(&done);
        let name = "vale0:taker";
        let (sends, port) = (document(500_000), daemon.open(name).unwrap());
        let wanted = [&documents.concat()[..], &sends].concat();
        let taker = Taker { sends, got: Vec::new(), lost: false };
        let stack = stack(RingNic::new(port), Mac::of_name(name), 2);
        let mut taker = Guest::new(stack, taker);
        taker.connect(SocketAddr::from(([10, 0, 0, 1], 80)), (), Nanos(Nanos::SECOND)).unwrap();
        let begun = Instant::now();
        let all = wanted.len();
        taker
            .run(|taker| {
                meanwhile(taker.got.len());
                assert!(begun.elapsed() < PATIENCE, "{} of {all} bytes", taker.got.len());
                assert!(!taker.lost, "the connection ended after {} bytes", taker.got.len());
                taker.got.len() >= all
            })
            .unwrap();
        let wrong = taker.app().got.iter().zip(&wanted).position(|(got, wanted)| got != wanted);
        assert_eq!((wrong, taker.app().got.len()), (None, all));
        drop(end);
    });
}

/// Ends the other guest, also if this one panics.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn socket(daemon: &Daemon) -> std::path::PathBuf {
    daemon.dir().join("vale0-device.sock")
}

fn card(path: &Path) -> (CardNic, Mac) {
    let nic = CardNic::connect(path).unwrap();
    let mac = nic.mac();
    (nic, mac)
}

fn vhost(path: &Path, name: &str) -> (VhostNic, Mac) {
    let nic = VhostNic::connect(path, name.starts_with("packed"), 4 << 20).unwrap();
    (nic, Mac::of_name("vale0:device"))
}

#[test]
fn guests_on_each_device_exchange_documents() {
    let documents = SIZES.map(document);
    for (name, kind) in DEVICES {
        println!("{name}");
        let daemon = daemon(kind);
        if kind.starts_with("vfio") {
            exchange(&daemon, card(&socket(&daemon)), &documents, |_| {});
        } else {
            let (nic, mac) = vhost(&socket(&daemon), name);
            // The last one is sent from its twin, the others by copies.
            assert!(nic.documents().add(&documents[2]));
            assert!(!nic.documents().add(&document(2 << 20)), "there is no room for it");
            let twins = nic.documents();
            exchange(&daemon, (nic, mac), &documents, |_| {});
            assert!(twins.sent() > 40, "{} pieces of 64 KiB", twins.sent());
        }
    }
}

#[test]
fn guests_do_not_notice_the_death_of_a_data_process() {
    for (name, kind) in [DEVICES[0], DEVICES[3], DEVICES[5]] {
        println!("{name}");
        let daemon = daemon(kind);
        let documents = [document(30_000_000)];
        let mut deaths = 0;
        let meanwhile = |got: usize| {
            if deaths < 3 && got > (deaths + 1) * 3_000_000 {
                kill_process(daemon.data_process("vale0"));
                deaths += 1;
            }
        };
        if kind.starts_with("vfio") {
            exchange(&daemon, card(&socket(&daemon)), &documents, meanwhile);
        } else {
            exchange(&daemon, vhost(&socket(&daemon), name), &documents, meanwhile);
        }
        assert_eq!(deaths, 3);
    }
}

#[test]
fn a_guest_learns_that_its_device_is_gone() {
    fn runs_until_it_is_gone<N: Nic + Send>(daemon: &Daemon, (nic, mac): (N, Mac)) {
        std::thread::scope(|scope| {
            let guest = scope.spawn(move || {
                let mut giver = Guest::new(stack(nic, mac, 1), Giver(Vec::new()));
                giver.run(|_| false).unwrap_err().to_string()
            });
            let (status, _) =
                daemon.ask("DELETE", "/v1/switches/vale0/ports/device", &serde_json::Value::Null);
            assert!(status < 300, "{status}");
            wait_until("the guest's end", || guest.is_finished());
        });
    }
    for (name, kind) in DEVICES {
        println!("{name}");
        let daemon = daemon(kind);
        match kind.starts_with("vfio") {
            true => runs_until_it_is_gone(&daemon, card(&socket(&daemon))),
            false => runs_until_it_is_gone(&daemon, vhost(&socket(&daemon), name)),
        }
    }
}
