//! The Debian package as systemd runs it: a bare Debian whose first process is systemd, in
//! namespaces and a cgroup of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use harness::{PATIENCE, skip};

use super::chroot::unpack;

/// Makes what systemd expects of a machine, and becomes its first process.
const INIT: &str = r#"set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    : >dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir -p dev/net dev/pts dev/shm
: >dev/net/tun
mount --bind /dev/net/tun dev/net/tun
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
: >dev/console
PATH=$PATH:/usr/sbin:/sbin pivot_root . mnt
umount -l /mnt
# As systemd has it where it is not in a container: mounts reach the services.
mount --make-rshared /
exec env -i container=toklat PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd \
    --log-target=console --unit=multi-user.target"#;

/// A Debian that runs. All its processes end when it is dropped.
struct System {
    /// The program that waits for systemd, and ends it when it ends.
    outer: Child,
    /// systemd, as it is called outside.
    init: u32,
    cgroup: Cgroup,
    root: PathBuf,
    _dir: tempfile::TempDir,
}

/// A cgroup for the processes of a system, which is removed with those below it.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one, or returns the reason why it cannot.
    fn new() -> Result<Self, &'static str> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let place = mounts.find(|mount| mount[2] == "cgroup2").ok_or("there is no cgroup2")?;
        let own = Path::new(place[1]).join(format!("toklat-test-{}", std::process::id()));
        match std::fs::create_dir(&own) {
            Ok(()) => Ok(Self(own)),
            Err(_) => Err("cgroups cannot be made"),
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let find = Command::new("find").arg(&self.0).args(["-depth", "-type", "d"]).output();
        let all = String::from_utf8(find.unwrap().stdout).unwrap();
        for directory in all.lines() {
            let began = Instant::now();
            // Processes that have ended leave it a moment later.
            while std::fs::remove_dir(directory).is_err() && began.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
        }
    }
}

impl System {
    /// Boots one, or returns the reason why it cannot.
    fn boot() -> Result<Self, &'static str> {
        if !Path::new("/dev/net/tun").exists() {
            return Err("there is no /dev/net/tun");
        }
        let dir = unpack()?;
        let root = dir.path().join("root");
        let cgroup = Cgroup::new()?;
        let console = root.join("etc/systemd/system/console-getty.service");
        std::os::unix::fs::symlink("/dev/null", console).unwrap();
        let enter = "echo $$ >\"$1\"/cgroup.procs && exec unshare --mount --pid --uts --net --ipc \
                     --cgroup --fork --kill-child sh -c \"$3\" sh \"$2\"";
        let mut outer = Command::new("sh");
        outer.args(["-c", enter, "sh"]).arg(&cgroup.0).arg(&root).arg(INIT);
        let log = std::fs::File::create(dir.path().join("console")).unwrap();
        outer.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let outer = outer.spawn().unwrap();
        let mut system = Self { outer, init: 0, cgroup, root, _dir: dir };
        system.wait_until_up().map(|()| system)
    }

    /// Waits until systemd has started everything.
    fn wait_until_up(&mut self) -> Result<(), &'static str> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.outer.try_wait().unwrap().is_some() {
                return Err("namespaces with a cgroup and a systemd of their own are refused");
            }
            let id = self.outer.id();
            let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
            let first = children.unwrap_or_default();
            let is_systemd = |init: &u32| {
                let name = std::fs::read_to_string(format!("/proc/{init}/comm"));
                name.is_ok_and(|name| name == "systemd\n")
            };
            if let Some(init) = first.trim().parse().ok().filter(is_systemd) {
                self.init = init;
                let (_, said) = self.output("systemctl is-system-running --wait 2>/dev/null");
                if ["running", "degraded"].contains(&said.trim()) {
                    return Ok(());
                }
            }
            std::thread::yield_now();
        }
        panic!("systemd did not come up in {}", self.cgroup.0.display());
    }

    /// Returns whether a script succeeded in the system, and all its output.
    fn output(&self, script: &str) -> (bool, String) {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string()]);
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]);
        command.args(["/bin/bash", "-c", script]).stdin(Stdio::null());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        let output = command.env("TOKLAT_DIR", "/run/toklat").output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// Returns the output of a script, which has to succeed.
    fn run(&self, script: &str) -> String {
        let (succeeded, said) = self.output(script);
        assert!(succeeded, "{script}: {said}");
        said
    }

    /// Runs a script that is refused with these words.
    fn refused(&self, script: &str, words: &str) {
        let (succeeded, said) = self.output(script);
        assert!(!succeeded && said.contains(words), "{script}: {said}");
    }

    /// The number of the switch's data process.
    fn data_process(&self) -> u64 {
        let shown = self.run("toklat switch show vale0 --json");
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let switch = shown.get(0).unwrap_or(&shown);
        switch["pid"].as_u64().unwrap_or_else(|| panic!("{shown}"))
    }

    /// Waits until these ports, and no others, are attached.
    fn wait_for_ports(&self, names: &[&str]) {
        let began = Instant::now();
        loop {
            let shown = self.run("toklat port show vale0 --json");
            let ports: serde_json::Value = serde_json::from_str(&shown).unwrap();
            let ports = ports.as_array().unwrap();
            let is_there = |name: &&str| {
                ports.iter().any(|port| port["name"] == **name && port["state"] == "attached")
            };
            if ports.len() == names.len() && names.iter().all(is_there) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{names:?}: {shown}");
        }
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // When the first process of a process namespace ends, the others end, too.
        let _ = self.outer.kill();
        let _ = self.outer.wait();
    }
}

const INTERFACE: &str = "toklat port add vale0:lo --interface lo --engine packet";
const HOST: &str = "toklat port add vale0:host --host tap0";
const POD: &str = "toklat port add vale0:pod --tap eth0 --netns pod1";
const ENABLE: &str = "toklat service enable ";

/// Objective: the package as systemd runs it. Its unit refuses what no part allows, and says which
/// part does; a part allows it after a restart that traffic outlives; an upgrade keeps parts and
/// ports; and a part that is off again is refused again.
#[test]
fn parts_of_the_service_allow_under_systemd_what_its_unit_refuses() {
    let name = "parts_of_the_service_allow_under_systemd_what_its_unit_refuses";
    let prepared = super::package("deb").and_then(|package| Ok((System::boot()?, package)));
    let (system, package) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => return skip(name, &why),
    };
    std::fs::copy(package, system.root.join("opt/toklat.deb")).unwrap();
    system.run("dpkg --install /opt/toklat.deb && systemctl start toklat.service");
    system.run("toklat switch add vale0 && toklat port add vale0:tap0 --tap tap0");
    system.run("mkdir -p /run/netns && : >/run/netns/pod1 && unshare --net=/run/netns/pod1 true");
    refuses_both(&system);
    let process = system.data_process();
    system.run(&format!("{ENABLE}interfaces containers --restart"));
    system.run(INTERFACE);
    system.run(HOST);
    system.run(POD);
    let all = ["tap0", "lo", "host", "pod"];
    system.wait_for_ports(&all);
    assert_eq!(system.data_process(), process, "the data process runs on");
    // The same version over itself, as an upgrade is.
    system.run("dpkg --install /opt/toklat.deb && systemctl is-active toklat.service");
    system.wait_for_ports(&all);
    assert_ne!(system.data_process(), process, "the data process is replaced");
    system.run("toklat port rm vale0:lo vale0:host vale0:pod");
    system.run("toklat service disable interfaces containers --restart");
    system.wait_for_ports(&["tap0"]);
    refuses_both(&system);
    system.run(&format!("{ENABLE}interfaces containers cards"));
    system.run("dpkg --purge toklat");
    assert_eq!(system.run("find /etc -path '*toklat*'"), "");
}

/// The ports are refused, and the errors name the parts.
fn refuses_both(system: &System) {
    let interfaces = "as root: toklat service enable interfaces; systemctl restart toklat";
    system.refused(INTERFACE, interfaces);
    system.refused(HOST, interfaces);
    system.refused(POD, "as root: toklat service enable containers; systemctl restart toklat");
}
