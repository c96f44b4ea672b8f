//! Offloads between real network stacks: TCP and UDP through a switch, both ways, between taps with
//! and without checksum and segmentation offloads. The content is compared byte by byte. Runs as
//! root, in network namespaces of its own.
#![allow(unsafe_code, reason = "there is no safe call that asks for UDP segmentation")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fabric::VlanMode;
use frame::VlanId;
use harness::{PATIENCE, skip};
use host::{Namespace, obstacle};
use inline::Inline;
use port::stats::PortStats;
use port::{Batch, Delivered, Effects, Egress, FrameIdx, Limits, Nanos, OffloadSet, Software};
use toklat_dataplane::SwitchConfig;
use toklat_dataplane::attach::buffered;
use toklat_dataplane::config::Policy;
use toklat_dataplane::state::PortState;
use turn::attach::{AttachError, Attached, Exit};

mod host;

/// `TUN_F_*`: nothing; checksums; checksums, TCP and UDP segments.
const NONE: libc::c_ulong = 0;
const CHECKSUM: libc::c_ulong = 1;
const ALL: libc::c_ulong = 0x6f;
/// Bytes to send in each direction.
const BYTES: usize = 3 << 20;

/// Two hosts at a switch, which runs in a thread of its own.
struct Lab {
    hosts: [Namespace; 2],
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<PortStats>>,
    _alone: MutexGuard<'static, ()>,
}

/// The threads of a lab spin, so only one lab runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

impl Lab {
    fn new(hosts: [Namespace; 2], mut switches: Vec<Inline>) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            let since = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let now = Nanos(since.elapsed().as_nanos() as u64);
                if switches.iter_mut().map(|switch| switch.turn(now)).sum::<usize>() == 0 {
                    std::thread::yield_now();
                }
            }
            let stats = |switch: &Inline| [0, 1].map(|id| switch.stats(id));
            switches.iter().flat_map(stats).collect()
        };
        Self { hosts, stop, thread: std::thread::spawn(run), _alone: alone }
    }

    /// Two taps whose owners accept these offloads, with `queues` queues each.
    fn of_taps(offloads: [libc::c_ulong; 2], queues: usize, policies: [Policy; 2]) -> Self {
        Self::of_taps_that_take(OffloadSet::ALL, offloads, queues, policies)
    }

    /// The same, but the receivers accept these requests.
    fn of_taps_that_take(
        takes: OffloadSet,
        offloads: [libc::c_ulong; 2],
        queues: usize,
        policies: [Policy; 2],
    ) -> Self {
        let (hosts, taps) = hosts(offloads, queues);
        let mut switch = switch();
        for (queues, policy) in taps.into_iter().zip(policies) {
            let attach = |state: &PortState| {
                let mut attached = buffered::tap::attach(queues, true, state)?;
                for egress in &mut attached.egresses {
                    *egress = Arc::new(Taking(egress.clone(), takes)).into();
                }
                Ok(attached)
            };
            switch.add_attached("tap", policy, attach).unwrap();
        }
        Self::new(hosts, vec![switch])
    }

    /// Two switches with a tap each, and between them a pair of sockets.
    fn over<T: Into<OwnedFd>>(
        sockets: (T, T),
        attach: fn(OwnedFd, &PortState) -> Result<Attached, AttachError>,
    ) -> Self {
        let (hosts, taps) = hosts([ALL, ALL], 1);
        let between = [sockets.0.into(), sockets.1.into()];
        let switches = taps.into_iter().zip(between).map(|(queues, socket)| {
            let mut switch = switch();
            let tap = |state: &PortState| buffered::tap::attach(queues, true, state);
            switch.add_attached("tap", Policy::default(), tap).unwrap();
            let socket = |state: &PortState| attach(socket, state);
            // A Unix socket has room for few datagrams only (net.unix.max_dgram_qlen).
            let lossless = Policy { lossless: true, ..Policy::default() };
            switch.add_attached("socket", lossless, socket).unwrap();
            switch
        });
        Self::new(hosts, switches.collect())
    }

    fn finish(self) -> Vec<PortStats> {
        self.stop.store(true, Ordering::Relaxed);
        let stats = self.thread.join().unwrap();
        assert_eq!(stats.iter().map(PortStats::unaccounted).sum::<i128>(), 0, "{stats:#?}");
        stats
    }

    /// Sends [`BYTES`] over TCP each way at the same time.
    fn exchange_tcp(&self, address: &str) {
        let listener = self.hosts[1].run(|| TcpListener::bind((address, 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let there = std::thread::spawn(move || exchange(listener.accept().unwrap().0, 1));
        let connect = || TcpStream::connect_timeout(&to, PATIENCE).unwrap();
        exchange(self.hosts[0].run(connect), 0);
        there.join().unwrap();
    }

    /// Sends datagrams whose segmentation is left to the receiver, if the kernel can.
    fn send_udp(&self, from: &str, to: &str) {
        const SIZE: usize = 1000;
        let [from, to] = [(0, from), (1, to)]
            .map(|(at, address)| self.hosts[at].run(|| UdpSocket::bind((address, 0)).unwrap()));
        let size = SIZE as libc::c_int;
        // SAFETY: the option is an int that lives during the call.
        let set = unsafe {
            let (level, option) = (libc::SOL_UDP, libc::UDP_SEGMENT);
            let value = (&raw const size).cast();
            libc::setsockopt(
                from.as_raw_fd(),
                level,
                option,
                value,
                size_of::<libc::c_int>() as u32,
            )
        };
        assert_eq!(set, 0, "UDP_SEGMENT");
        to.set_read_timeout(Some(PATIENCE)).unwrap();
        let to_address: SocketAddr = to.local_addr().unwrap();
        let bytes = content(7, 30 * SIZE + 17);
        from.send_to(&bytes, to_address).unwrap();
        let mut datagram = [0; 2 * SIZE];
        for expected in bytes.chunks(SIZE) {
            let len = to.recv(&mut datagram).expect("a datagram was lost");
            assert!(datagram[..len] == *expected, "a datagram was changed");
        }
    }
}

/// An egress that accepts these requests on behalf of its receiver.
struct Taking(Exit, OffloadSet);

impl Egress for Taking {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        assert!(list.iter().all(|i| self.1.takes(&batch.offload(*i))));
        self.0.deliver(batch, list, limits)
    }

    fn settle(&self, now: Nanos) -> Effects {
        self.0.settle(now)
    }

    fn takes(&self) -> OffloadSet {
        self.1
    }

    fn count_software(&self, done: Software) {
        self.0.count_software(done);
    }
}

/// Two hosts with a tap each, whose owner accepts these offloads.
fn hosts(offloads: [libc::c_ulong; 2], queues: usize) -> ([Namespace; 2], [Vec<OwnedFd>; 2]) {
    let hosts = [Namespace::new(), Namespace::new()];
    let taps = [0, 1].map(|i| {
        let addresses = [format!("10.9.8.{}/24", i + 1), format!("fd00::{}/64", i + 1)];
        hosts[i].tap(&addresses.each_ref().map(String::as_str), queues, offloads[i])
    });
    (hosts, taps)
}

fn switch() -> Inline {
    Inline::new(SwitchConfig { max_ports: 2, ..SwitchConfig::default() }).unwrap()
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Sends side `me`'s content and checks the other's.
fn exchange(stream: TcpStream, me: u64) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        writer.write_all(&content(me, BYTES)).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    { stream }.read_to_end(&mut got).unwrap();
    assert!(got == content(1 - me, BYTES), "{} bytes of {BYTES} came, or others", got.len());
    sender.join().unwrap();
}

fn plain() -> [Policy; 2] {
    [Policy::default(), Policy::default()]
}

/// The mean length in bytes of the frames that a port handed in.
fn mean_len(stats: &PortStats) -> u64 {
    stats.in_bytes / stats.in_frames.max(1)
}

#[test]
fn hosts_talk_whatever_their_taps_leave_to_others() {
    if let Some(why) = obstacle() {
        return skip("hosts_talk_whatever_their_taps_leave_to_others", why);
    }
    for offloads in [[NONE, NONE], [ALL, NONE], [NONE, ALL], [CHECKSUM, ALL], [ALL, ALL]] {
        let lab = Lab::of_taps(offloads, 1, plain());
        lab.exchange_tcp("10.9.8.2");
        lab.exchange_tcp("fd00::2");
        lab.send_udp("10.9.8.1", "10.9.8.2");
        lab.send_udp("fd00::1", "fd00::2");
        for (stats, offloads) in lab.finish().iter().zip(offloads) {
            // A tap accepts all requests, so software does nothing for it.
            assert_eq!((stats.out_segmented, stats.out_checksums), (0, 0), "{offloads:x}");
            assert_eq!(mean_len(stats) > 1514, offloads == ALL, "{offloads:x}: {stats:#?}");
        }
    }
}

#[test]
fn hosts_understand_what_was_cut_and_summed_up_in_software() {
    if let Some(why) = obstacle() {
        return skip("hosts_understand_what_was_cut_and_summed_up_in_software", why);
    }
    let checksum = OffloadSet { checksum: true, ..OffloadSet::NONE };
    let tcp4 = OffloadSet { tso4: true, ecn: true, ..checksum };
    for takes in [OffloadSet::NONE, checksum, tcp4] {
        let lab = Lab::of_taps_that_take(takes, [ALL, ALL], 1, plain());
        lab.exchange_tcp("10.9.8.2");
        lab.exchange_tcp("fd00::2");
        lab.send_udp("10.9.8.1", "10.9.8.2");
        lab.send_udp("fd00::1", "fd00::2");
        for stats in lab.finish() {
            assert!(stats.out_segmented > 0, "{takes:?}");
            assert_eq!(stats.out_checksums > 0, !takes.checksum, "{takes:?}");
        }
    }
}

#[test]
fn long_packets_keep_their_requests_through_vlans() {
    if let Some(why) = obstacle() {
        return skip("long_packets_keep_their_requests_through_vlans", why);
    }
    let access = || Policy { vlan: VlanMode::Access(VlanId::new(7).unwrap()), ..Policy::default() };
    let lab = Lab::of_taps([ALL, ALL], 1, [access(), access()]);
    lab.exchange_tcp("10.9.8.2");
    lab.finish();
}

#[test]
fn a_tap_with_several_queues_is_served_on_all() {
    if let Some(why) = obstacle() {
        return skip("a_tap_with_several_queues_is_served_on_all", why);
    }
    let lab = Lab::of_taps([ALL, ALL], 4, plain());
    for _ in 0..4 {
        lab.exchange_tcp("10.9.8.2");
    }
    lab.finish();
}

#[test]
fn what_crosses_a_socket_is_cut_before_it() {
    if let Some(why) = obstacle() {
        return skip("what_crosses_a_socket_is_cut_before_it", why);
    }
    let stream =
        |socket, state: &PortState| buffered::stream::attach(OwnedFd::into(socket), state, false);
    let dgram = |socket, state: &PortState| buffered::dgram::attach(OwnedFd::into(socket), state);
    let labs: [&dyn Fn() -> Lab; 2] = [&|| Lab::over(UnixStream::pair().unwrap(), stream), &|| {
        Lab::over(UnixDatagram::pair().unwrap(), dgram)
    }];
    for make in labs {
        let lab = make();
        lab.exchange_tcp("10.9.8.2");
        lab.exchange_tcp("fd00::2");
        lab.send_udp("10.9.8.1", "10.9.8.2");
        for [tap, socket] in lab.finish().as_chunks().0 {
            assert!(mean_len(tap) > 1514 && mean_len(socket) < 1514, "{tap:#?} {socket:#?}");
            assert!(socket.out_segmented > 0 && socket.out_checksums > 0);
        }
    }
}
