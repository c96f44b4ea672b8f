//! QEMU's monitor in JSON (QMP), with the commands needed to replug a card that lost its port, and
//! to migrate a machine.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// Time limit for a reply of QEMU.
const ANSWER: Duration = Duration::from_secs(5);
/// Time limit for a guest to release a device.
const UNPLUG: Duration = Duration::from_secs(20);

/// Time limit for a migration.
const MIGRATION: Duration = Duration::from_secs(120);

/// A monitor.
#[derive(Debug)]
pub struct Qmp {
    socket: BufReader<UnixStream>,
    /// Devices that are gone.
    deleted: Vec<String>,
    /// When the machine last began to run, since the epoch.
    resumed: Option<Duration>,
}

impl Qmp {
    /// Connects to a monitor (`-qmp unix:PATH,server=on,wait=off`).
    ///
    /// # Errors
    /// Nothing listens at the path, or it is not a QMP monitor.
    pub fn connect(path: &Path) -> anyhow::Result<Self> {
        let socket = UnixStream::connect(path)
            .with_context(|| format!("QEMU has no monitor at {}", path.display()))?;
        socket.set_read_timeout(Some(ANSWER))?;
        let mut qmp = Self { socket: BufReader::new(socket), deleted: Vec::new(), resumed: None };
        let greeting =
            qmp.line().context("This is not a QMP monitor, or another client uses it")?;
        if greeting.get("QMP").is_none() {
            bail!("{} is not a QMP monitor", path.display());
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.socket.read_line(&mut line)? == 0 {
            bail!("QEMU closed its monitor");
        }
        let value: Value = serde_json::from_str(&line)?;
        if value["event"] == "DEVICE_DELETED"
            && let Some(device) = value["data"]["device"].as_str()
        {
            self.deleted.push(device.to_owned());
        }
        if value["event"] == "RESUME" {
            let part = |name: &str| value["timestamp"][name].as_u64().unwrap_or(0);
            let micros = Duration::from_micros(part("microseconds"));
            self.resumed = Some(Duration::from_secs(part("seconds")) + micros);
        }
        Ok(value)
    }

    /// Executes a command; the error is QEMU's description.
    fn try_execute(&mut self, what: &str, how: &Value) -> anyhow::Result<Result<Value, String>> {
        say(self.socket.get_mut(), &json!({ "execute": what, "arguments": how }))?;
        loop {
            let mut answer = self.line().context("QEMU does not answer")?;
            if let Some(done) = answer.get_mut("return") {
                return Ok(Ok(done.take()));
            }
            if let Some(error) = answer.get("error") {
                return Ok(Err(error["desc"].as_str().unwrap_or("no reason").to_owned()));
            }
        }
    }

    fn execute(&mut self, what: &str, how: &Value) -> anyhow::Result<Value> {
        let done = self.try_execute(what, how)?;
        done.map_err(|reason| anyhow::anyhow!("QEMU refuses {what}: {reason}"))
    }

    /// Unplugs a device, if it is there, and waits until the guest has released it.
    fn unplug(&mut self, id: &str) -> anyhow::Result<()> {
        let started = Instant::now();
        match self.try_execute("device_del", &json!({ "id": id }))? {
            Ok(_) => {}
            Err(reason) if reason.contains("not found") => return Ok(()),
            Err(reason) => bail!("QEMU refuses to take {id} out: {reason}"),
        }
        while !self.deleted.iter().any(|device| device == id) {
            if started.elapsed() > UNPLUG {
                bail!("The guest does not let go of {id}; is it running, and knows hot-plugging?");
            }
            // QEMU may be silent for a while.
            let _ = self.line();
        }
        Ok(())
    }

    /// Returns the place where a device is plugged in; `None` lets QEMU choose a place.
    fn bus_of(&mut self, id: &str) -> anyhow::Result<Option<String>> {
        let path = json!({ "path": format!("/machine/peripheral/{id}"), "property": "parent_bus" });
        let Ok(bus) = self.try_execute("qom-get", &path)? else { return Ok(None) };
        let name = bus.as_str().and_then(|bus| bus.rsplit('/').next());
        Ok(name.filter(|name| !name.is_empty()).map(str::to_owned))
    }

    /// Migrates the machine to the QEMU that waits at this URI (`-incoming`), and waits until it is
    /// there.
    ///
    /// # Errors
    /// QEMU refuses, or the migration fails or takes longer than two minutes.
    pub fn migrate(&mut self, uri: &str) -> anyhow::Result<()> {
        self.execute("migrate", &json!({ "uri": uri }))?;
        let started = Instant::now();
        loop {
            let info = self.execute("query-migrate", &json!({}))?;
            match info["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => bail!("The migration failed: {info}"),
                _ if started.elapsed() > MIGRATION => bail!("The migration takes long: {info}"),
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// When the machine last began to run after this connected, since the epoch; waits for that.
    ///
    /// # Errors
    /// The machine does not run.
    pub fn resumed(&mut self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        loop {
            let status = self.execute("query-status", &json!({}))?;
            match self.resumed {
                Some(at) if status["running"] == true => return Ok(at),
                _ if started.elapsed() > ANSWER => bail!("The machine does not run: {status}"),
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Replugs a vfio-user device that lost its server, at the same place.
    ///
    /// # Errors
    /// QEMU refuses, or the guest does not release the old device.
    pub fn replug(&mut self, id: &str, socket: &Path) -> anyhow::Result<()> {
        let bus = self.bus_of(id)?;
        self.unplug(id)?;
        let mut device = json!({
            "driver": "vfio-user-pci",
            "id": id,
            "socket": { "type": "unix", "path": socket },
        });
        if let Some(bus) = bus {
            device["bus"] = bus.into();
        }
        self.execute("device_add", &device).map(drop)
    }
}

/// Sends a command with its newline in one write. QEMU executes the command at the closing brace,
/// so it may exit before a second write.
fn say(mut to: impl Write, command: &Value) -> std::io::Result<()> {
    to.write_all(format!("{command}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Runs a monitor with scripted replies; returns the commands it got.
    fn monitor(path: &Path, answers: Vec<Value>) -> std::thread::JoinHandle<Vec<Value>> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            writeln!(socket, "{}", json!({ "QMP": {} })).unwrap();
            let mut asked = Vec::new();
            let mut lines = BufReader::new(socket.try_clone().unwrap()).lines();
            for answer in answers {
                if answer.get("event").is_none() {
                    let line = lines.next().unwrap().unwrap();
                    asked.push(serde_json::from_str(&line).unwrap());
                }
                writeln!(socket, "{answer}").unwrap();
            }
            asked
        })
    }

    #[test]
    fn a_card_goes_out_and_in_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let deleted = json!({ "event": "DEVICE_DELETED", "data": { "device": "nic0" } });
        let monitor = monitor(
            &path,
            vec![
                json!({ "return": {} }),
                json!({ "return": "/machine/q35/pcie.0/port1" }),
                json!({ "return": {} }),
                deleted,
                json!({ "return": {} }),
            ],
        );
        Qmp::connect(&path).unwrap().replug("nic0", Path::new("/s")).unwrap();
        let asked = monitor.join().unwrap();
        let names: Vec<_> = asked.iter().map(|a| a["execute"].as_str().unwrap()).collect();
        assert_eq!(names, ["qmp_capabilities", "qom-get", "device_del", "device_add"]);
        let added = &asked[3]["arguments"];
        assert_eq!((&added["bus"], &added["socket"]["path"]), (&json!("port1"), &json!("/s")));
    }

    #[test]
    fn a_command_goes_out_in_one_piece() {
        struct Pieces(Vec<Vec<u8>>);
        impl Write for Pieces {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut pieces = Pieces(Vec::new());
        say(&mut pieces, &json!({ "execute": "quit" })).unwrap();
        assert_eq!(pieces.0, [b"{\"execute\":\"quit\"}\n"]);
    }

    #[test]
    fn a_migration_is_over_when_qemu_says_so_and_its_start_there_has_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let status = |status: &str| json!({ "return": { "status": status } });
        let time = json!({ "seconds": 7, "microseconds": 250_000 });
        let monitor = monitor(
            &path,
            vec![
                json!({ "return": {} }),
                json!({ "return": {} }),
                status("active"),
                status("completed"),
                json!({ "event": "RESUME", "timestamp": time }),
                json!({ "return": { "running": true } }),
                json!({ "return": {} }),
                status("failed"),
            ],
        );
        let mut qmp = Qmp::connect(&path).unwrap();
        qmp.migrate("unix:/there").unwrap();
        assert_eq!(qmp.resumed().unwrap(), Duration::from_millis(7250));
        assert!(qmp.migrate("unix:/there").unwrap_err().to_string().contains("failed"));
        let asked = monitor.join().unwrap();
        assert_eq!(asked[1]["arguments"]["uri"], "unix:/there");
    }

    #[test]
    fn a_refusal_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let error = |desc: &str| json!({ "error": { "class": "x", "desc": desc } });
        let monitor = monitor(
            &path,
            vec![
                json!({ "return": {} }),
                error("no such property"),
                error("Device 'nic0' not found"),
                error("Bus 'pcie.0' does not support hotplugging"),
            ],
        );
        let done = Qmp::connect(&path).unwrap().replug("nic0", Path::new("/s"));
        assert!(done.unwrap_err().to_string().contains("hotplugging"));
        assert!(monitor.join().unwrap()[3]["arguments"].get("bus").is_none());
    }
}
