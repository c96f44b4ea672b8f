//! A test guest that moves from one host to another while it runs.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Result;
use frame::Mac;
use vm::{Accelerator, Backend, Console, Machine, Model, Nic, Qemu, Qmp, Running, guest};

/// Booting takes seconds even without KVM, on a machine that does nothing else.
const BOOT: Duration = Duration::from_secs(120);

/// Where a machine runs: what its NIC is plugged into, and the prefix of the command of its QEMU.
#[derive(Clone, Debug)]
pub struct Place {
    /// The network backend.
    pub backend: Backend,
    /// The prefix, such as `ip netns exec h3`.
    pub prefix: Vec<OsString>,
}

/// A guest at the first of two places. A second QEMU waits at the other.
#[derive(Debug)]
pub struct Moving {
    guests: [Running; 2],
    monitors: [Qmp; 2],
    uri: String,
}

/// The guest's address.
pub const MAC: Mac = Mac::new([0x52, 0x54, 0, 0x77, 0x79, 9]);

impl Moving {
    /// Boots a guest with this address, such as `192.168.7.9/24`, which runs `commands`. Sockets
    /// of both QEMUs are in `dir`.
    ///
    /// # Errors
    /// The test guest or QEMU is missing, or the guest does not boot.
    pub fn boot(
        dir: &Path,
        places: &[Place; 2],
        (address, commands): (&str, &str),
        stop: &AtomicBool,
    ) -> Result<Self> {
        let qemu = Qemu::for_test_guests()?;
        let uri = format!("unix:{}", dir.join("migration").display());
        let start = |n: usize| -> Result<(Running, Qmp)> {
            let monitor = dir.join(format!("monitor{n}"));
            let at = format!("unix:{},server=on,wait=off", monitor.display());
            let mut more: Vec<OsString> = ["-qmp", &at].map(OsString::from).into();
            if n == 1 {
                more.extend(["-incoming", &uri].map(OsString::from));
            }
            let machine = machine(&places[n].backend, (address, commands), more)?;
            let mut running = Running::start(&qemu, &machine, &places[n].prefix)?;
            if n == 0 {
                running.wait_for("toklat-guest: ready", BOOT, stop)?;
            }
            super::until("QEMU's monitor", || monitor.exists())?;
            Ok((running, Qmp::connect(&monitor)?))
        };
        let [(here, first), (there, second)] = [start(0)?, start(1)?];
        Ok(Self { guests: [here, there], monitors: [first, second], uri })
    }

    /// Moves the guest. Returns the time since the epoch at which it began to run at the other
    /// place.
    ///
    /// # Errors
    /// It does not move.
    pub fn go(&mut self) -> Result<Duration> {
        self.monitors[0].migrate(&self.uri)?;
        self.monitors[1].resumed()
    }

    /// Waits until the guest prints a line with `text`, at place 0 or 1.
    ///
    /// # Errors
    /// It does not.
    pub fn says(&mut self, place: usize, text: &str, stop: &AtomicBool) -> Result<String> {
        self.guests[place].wait_for(text, BOOT, stop)
    }
}

fn machine(
    backend: &Backend,
    (address, commands): (&str, &str),
    more: Vec<OsString>,
) -> Result<Machine> {
    let words = Some("toklat.mtu=1400");
    let boot = guest::boot_with(&guest::find()?, Some(address), words, Some(commands))?;
    let backend = backend.clone();
    let nic = Nic { model: Model::Virtio, mac: MAC, backend, queues: 1, packed: false };
    Ok(Machine {
        name: "moving".into(),
        accelerator: Accelerator::choose().0,
        memory: 192,
        cpus: 1,
        boot,
        iommu: false,
        nic,
        console: Console::Plain,
        more,
    })
}
