//! Test guests on a daemon's switch, by `toklat vm run`.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use vm::{Accelerator, Boot, Qemu, Running, Version, guest};

use crate::{Daemon, program, skip};

/// How long a guest may take for anything, on a busy machine without KVM.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// True if QEMU and the test guest are installed; else reports that the test is skipped.
pub fn can_run(test: &str) -> bool {
    let found = Qemu::find(None).map_err(anyhow::Error::from);
    let found = found.and_then(|_| Ok(guest::find()?));
    found.inspect_err(|error| skip(test, &format!("{error:#}"))).is_ok()
}

/// True if QEMU speaks vfio-user and the test guest is here; else the test is skipped.
pub fn can_emulate(test: &str) -> bool {
    let found = Qemu::at_least(None, Version::VFIO_USER).map_err(anyhow::Error::from);
    let found = found.and_then(|_| Ok(guest::find()?));
    found.inspect_err(|error| skip(test, &format!("{error:#}"))).is_ok()
}

/// A QEMU that speaks vfio-user, for guests whose own NIC would do with another.
pub fn newer_qemu() -> Option<String> {
    let qemu = Qemu::at_least(None, Version::VFIO_USER).ok()?;
    qemu.program.into_os_string().into_string().ok()
}

/// A guest, and `toklat vm run`, which runs it.
pub struct Guest(Running);

/// Memory of a guest, in MiB.
pub const MEMORY: &str = "384";

impl Guest {
    /// Boots a guest at port `vale0:NAME` with address 10.0.0.NUMBER, which runs `commands`.
    pub fn boot(daemon: &Daemon, name: &str, number: u8, options: &[&str], commands: &str) -> Self {
        Self::boot_from(None, daemon, name, number, options, commands)
    }

    /// Like [`Guest::boot`], from the directory of another guest if one is named.
    pub fn boot_from(
        dir: Option<&Path>,
        daemon: &Daemon,
        name: &str,
        number: u8,
        options: &[&str],
        commands: &str,
    ) -> Self {
        let mut command = Command::new(program());
        command.envs(dir.map(|dir| (guest::VARIABLE, dir)));
        command.env("TOKLAT_DIR", daemon.dir()).args([
            "vm",
            "run",
            "--switch",
            "vale0",
            "--test-guest",
        ]);
        command.args([
            "--port",
            name,
            "--memory",
            MEMORY,
            "--address",
            &format!("10.0.0.{number}/24"),
        ]);
        command.args(["--run", commands]).args(options);
        Self(Running::spawn(name, command).unwrap())
    }

    /// Boots a guest by a documented command line, given without the word `toklat`. The test guest
    /// takes the place of the image.
    pub fn typed(daemon: &Daemon, words: &[&str], number: u8, commands: &str) -> Self {
        let image = words.iter().position(|word| *word == "--image").expect("an image");
        let mut command = Command::new(program());
        command.args(&words[..image]).args(&words[image + 2..]).env("TOKLAT_DIR", daemon.dir());
        command.args(["--test-guest", "--address", &format!("10.0.0.{number}/24")]);
        command.args(["--run", commands]);
        Self(Running::spawn(words[image + 1], command).unwrap())
    }

    /// Runs `script`, a line of a document that starts QEMU, in a shell: "qemu-system-x86_64 ..."
    /// boots the test guest with address 10.0.0.NUMBER, which runs `commands`.
    pub fn scripted(script: &str, number: u8, commands: &str) -> Self {
        const REST: &str = r#""$QEMU" -nodefaults -no-user-config -display none -serial stdio -monitor none \
            -accel "$ACCEL" -cpu "$CPU" -kernel "$KERNEL" -initrd "$INITRD" -append "$APPEND" -no-reboot \
            -device isa-debug-exit,iobase=0xf4,iosize=1 "#;
        let qemu = Qemu::at_least(None, Version::VFIO_USER).unwrap();
        let address = format!("10.0.0.{number}/24");
        let boot = guest::boot(&guest::find().unwrap(), Some(&address), Some(commands)).unwrap();
        let Boot::Kernel { kernel, initrd: Some(initrd), append } = boot else {
            panic!("{boot:?}")
        };
        let (accelerator, _) = Accelerator::choose();
        let mut command = Command::new("sh");
        command.args(["-c", &script.replace("qemu-system-x86_64 ...", &format!("exec {REST}"))]);
        command.env("QEMU", qemu.program).env("ACCEL", accelerator.name());
        command.env("CPU", accelerator.cpu()).env("KERNEL", kernel).env("INITRD", initrd);
        command.env("APPEND", append);
        Self(Running::spawn("scripted", command).unwrap())
    }

    /// Waits until the guest prints a line with `text`.
    pub fn says(&mut self, text: &str) -> String {
        loop {
            let line = self.0.wait_for(text, PATIENCE, &AtomicBool::new(false)).unwrap();
            // The command line that `vm run` prints has the guest's commands in it.
            if !line.starts_with("toklat: ") {
                return line;
            }
        }
    }

    /// Waits until the guest ends, which must succeed.
    pub fn succeeds(mut self) {
        let status = self.0.end(PATIENCE).unwrap();
        assert!(status.success(), "{status}: {}", self.0.said());
    }

    /// Waits until the guest ends, in whatever way; returns its output.
    pub fn ends(mut self) -> String {
        let status = self.0.end(PATIENCE).unwrap();
        format!("{status}: {}", self.0.said())
    }

    /// The process of `toklat vm run`.
    pub fn pid(&self) -> i32 {
        self.0.pid() as i32
    }

    /// The process of QEMU.
    pub fn qemu(&self) -> i32 {
        let children =
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap();
        // QEMU may run through its dynamic loader, under that name. The other child cleans up.
        let is_qemu = |pid: &i32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            !name.is_empty() && !name.starts_with("toklat")
        };
        let mut pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
        pids.find(is_qemu).expect("QEMU runs")
    }
}
