//! Two test guests that measure the path between them.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use frame::Mac;

use anyhow::Result;
use vm::{Accelerator, Backend, Boot, Console, Machine, Model, Nic, Qemu, Running, guest};

/// How two NICs are connected, and how their QEMUs are started.
#[derive(Clone, Debug)]
pub struct Between {
    /// The network backend of each guest.
    pub backends: [Backend; 2],
    /// Prefix of the commands that run QEMU.
    pub prefix: Vec<OsString>,
}

/// Two connected guests. The first one is the server.
#[derive(Debug)]
pub struct Pair {
    guests: [Running; 2],
    seconds: u32,
}

/// The result of the TCP test.
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    /// Bits per second, as the receiver counts them.
    pub bits: f64,
    /// Host processor time outside of virtual processors, in nanoseconds per byte.
    pub ns_per_byte: f64,
    /// The part of that time that QEMU did not use.
    pub served_ns_per_byte: f64,
}

/// Booting takes seconds even without KVM, on a machine that does nothing else.
const BOOT: Duration = Duration::from_secs(120);
const SERVER: &str = "10.77.78.1";

impl Pair {
    /// Boots both guests, and waits until they reach each other. Their TCP test will run for
    /// `seconds`.
    ///
    /// # Errors
    /// They do not reach each other.
    pub fn boot(qemu: &Qemu, between: &Between, seconds: u32, stop: &AtomicBool) -> Result<Self> {
        let dir = guest::find()?;
        let accelerator = Accelerator::choose().0;
        let ask = format!(
            "{}; pkt ask {SERVER} 7 64 50 >/dev/null; pkt ask {SERVER} 7 64 2000; echo toklat-guest: tcp; \
             iperf3 -c {SERVER} -t {seconds} -i 0 -J >/tmp/report; echo toklat-guest: tcp over; cat /tmp/report; \
             echo toklat-guest: reported; pkt udp {SERVER} 9 64 6; echo toklat-guest: flooded; sleep 100",
            guest::reach(SERVER)
        );
        let start = |i: usize, commands: &str| -> Result<Running> {
            let machine = machine(&dir, i, commands, accelerator, &between.backends[i])?;
            Running::start(qemu, &machine, &between.prefix)
        };
        let mut server = start(0, guest::SERVE)?;
        // If both QEMUs share a socket, this one has made it by now.
        server.wait_for("toklat-guest: ready", BOOT, stop)?;
        let mut client = start(1, &ask)?;
        client.wait_for("toklat-guest: reached", BOOT, stop)?;
        Ok(Self { guests: [server, client], seconds })
    }

    /// Measures UDP round trips; returns the median in microseconds.
    ///
    /// # Errors
    /// No round trip succeeded.
    pub fn round_trip(&mut self, stop: &AtomicBool) -> Result<f64> {
        let line = self.guests[1].wait_for("us_median", BOOT, stop)?;
        let report: serde_json::Value =
            serde_json::from_str(&line).with_context(|| line.clone())?;
        report["us_median"].as_f64().with_context(|| line.clone())
    }

    /// Measures TCP. `served` returns the processor time of the process that forwards the guests'
    /// frames. Call this function once, after [`Self::round_trip`].
    ///
    /// # Errors
    /// The test failed.
    pub fn tcp(&mut self, served: impl Fn() -> Duration, stop: &AtomicBool) -> Result<Tcp> {
        self.guests[1].wait_for("toklat-guest: tcp", BOOT, stop)?;
        let outside = |pair: &Self| {
            let of_qemu = pair.guests.iter().map(Running::time_outside_guest).sum::<Duration>();
            [of_qemu, served()]
        };
        let before = outside(self);
        let limit = BOOT + Duration::from_secs(self.seconds.into());
        self.guests[1].wait_for("toklat-guest: tcp over", limit, stop)?;
        let after = outside(self);
        let [of_qemu, served] = std::array::from_fn(|i| after[i].saturating_sub(before[i]));
        let from = self.guests[1].said().len();
        self.guests[1].wait_for("toklat-guest: reported", BOOT, stop)?;
        let said = &self.guests[1].said()[from..];
        let report = said.rsplit_once("toklat-guest").map_or(said, |(report, _)| report);
        let report: serde_json::Value = serde_json::from_str(report).context("iperf3's report")?;
        let number = |at: &str| {
            report.pointer(at).and_then(serde_json::Value::as_f64).context("iperf3's report")
        };
        let bytes = number("/end/sum_received/bytes")?;
        let bits = number("/end/sum_received/bits_per_second")?;
        let per_byte = |time: Duration| time.as_nanos() as f64 / bytes.max(1.0);
        let (ns_per_byte, served_ns_per_byte) = (per_byte(of_qemu + served), per_byte(served));
        Ok(Tcp { bits, ns_per_byte, served_ns_per_byte })
    }

    /// Has one guest flood the other with small datagrams for 6 s, and calls `look_on` meanwhile.
    /// Call it once, after [`Self::tcp`].
    ///
    /// # Errors
    /// `look_on` fails, or the guests end.
    pub fn flood<T>(
        &mut self,
        look_on: impl FnOnce() -> Result<T>,
        stop: &AtomicBool,
    ) -> Result<T> {
        std::thread::sleep(Duration::from_millis(500));
        let seen = look_on()?;
        self.guests[1].wait_for("toklat-guest: flooded", BOOT, stop)?;
        Ok(seen)
    }
}

fn machine(
    dir: &Path,
    i: usize,
    commands: &str,
    accelerator: Accelerator,
    backend: &Backend,
) -> Result<Machine> {
    let address = format!("10.77.78.{}/24", i + 1);
    let boot: Boot = guest::boot(dir, Some(&address), Some(commands))?;
    let mac = Mac::new([0x52, 0x54, 0, 0x77, 0x78, i as u8 + 1]);
    let nic = Nic { model: Model::Virtio, mac, backend: backend.clone(), queues: 1, packed: false };
    Ok(Machine {
        name: format!("guest-{i}"),
        accelerator,
        memory: 256,
        cpus: 1,
        boot,
        iommu: false,
        nic,
        console: Console::Plain,
        more: Vec::new(),
    })
}
