//! The packages, made from the program as it was built for tests and installed into a bare Debian.

mod booted;
mod chroot;

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use self::chroot::Chroot;
use harness::{PATIENCE, artifacts, skip};

const UNITS: &str = "usr/lib/systemd/system";
/// Users and groups stay, as Debian wants it: a number must not be used for another.
const USERS: [&str; 9] = [
    "etc/.pwd.lock",
    "etc/passwd",
    "etc/passwd-",
    "etc/group",
    "etc/group-",
    "etc/shadow",
    "etc/shadow-",
    "etc/gshadow",
    "etc/gshadow-",
];

/// The package that `cargo xtask artifacts` made, or the reason why it could not.
fn package(kind: &str) -> Result<PathBuf, String> {
    artifacts::made(kind)?;
    let directory = artifacts::target().join("artifacts/packages").join(kind);
    let mut files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    Ok(files.find(|file| file.extension().is_some_and(|end| end == kind)).expect("a package"))
}

/// Copies a package of this kind into a copy of a bare Debian; returns both, or the reason why it
/// cannot.
fn prepare(kind: &str) -> Result<(Chroot, PathBuf), String> {
    if artifacts::built().file_name().unwrap() != "debug" {
        return Err("it packs what the dev profile builds".into());
    }
    let package = package(kind)?;
    Ok((Chroot::new()?, package))
}

/// Objective: Debian's package, about which lintian has no warnings, installs; its units are as
/// systemd wants them; the daemon serves as its unit says; and nothing of the package is left after
/// its removal.
#[test]
fn the_debian_package_installs_serves_and_goes() {
    let name = "the_debian_package_installs_serves_and_goes";
    let (chroot, package) = match prepare("deb") {
        Ok(prepared) => prepared,
        Err(why) => return skip(name, &why),
    };
    let bare = chroot.files();
    std::fs::copy(package, chroot.path("tmp/toklat.deb")).unwrap();
    chroot.run("dpkg --install /tmp/toklat.deb");
    let version = concat!("toklat ", env!("CARGO_PKG_VERSION"));
    assert!(chroot.run("toklat --version").starts_with(version));
    assert_brings_what_it_should(&chroot, "vendor-completions", "/usr/lib/cni/toklat-cni");
    assert_units_are_understood(&chroot);
    let mut daemon = Unit::start(&chroot);
    assert_serves(&chroot);
    // The next version of the package keeps what the operator wrote, and the switch.
    let settings = chroot.read("etc/toklat/net.toml") + "# ours\n";
    std::fs::write(chroot.path("etc/toklat/net.toml"), &settings).unwrap();
    chroot.run("dpkg --install /tmp/toklat.deb");
    assert_eq!(chroot.read("etc/toklat/net.toml"), settings);
    assert!(chroot.run("toklat --dir /run/toklat switch show").contains("lan0"));
    chroot.run("dpkg --purge toklat && rm /tmp/toklat.deb");
    assert!(daemon.child.wait().unwrap().success());
    drop(daemon);
    assert_eq!(running(&chroot), "");
    // systemctl itself writes this directory.
    assert!(left(&chroot, &bare, &["run/systemd"]).is_empty());
}

/// Objective: the RPM installs, matches what was packed, and can be removed.
#[test]
fn the_rpm_installs_and_goes() {
    let name = "the_rpm_installs_and_goes";
    if Command::new("rpm").arg("--version").output().is_err() {
        return skip(name, "rpm is missing; cargo xtask setup");
    }
    let (chroot, package) = match prepare("rpm") {
        Ok(prepared) => prepared,
        Err(why) => return skip(name, &why),
    };
    let rpm = |args: &[&str]| {
        let mut rpm = Command::new("rpm");
        rpm.arg(format!("--root={}", chroot.path("").display())).args(args);
        let output = rpm.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        said
    };
    rpm(&["--initdb"]);
    let bare = chroot.files();
    let package = package.to_str().unwrap();
    rpm(&["--install", "--nodeps", package]);
    let listed: BTreeSet<String> = rpm(&["-ql", "toklat"]).lines().map(str::to_owned).collect();
    let packed: BTreeSet<String> = rpm(&["-qlp", package]).lines().map(str::to_owned).collect();
    assert!(listed == packed && packed.contains("/usr/bin/toklat"), "{packed:?}");
    assert_eq!(rpm(&["--verify", "--nodeps", "toklat"]), "");
    let version = concat!("toklat ", env!("CARGO_PKG_VERSION"));
    assert!(chroot.run("toklat --version").starts_with(version));
    assert_brings_what_it_should(&chroot, "site-functions", "/usr/libexec/cni/toklat-cni");
    assert_units_are_understood(&chroot);
    let mut daemon = Unit::start(&chroot);
    assert_serves(&chroot);
    rpm(&["--erase", "toklat"]);
    assert!(daemon.child.wait().unwrap().success());
    drop(daemon);
    assert_eq!(running(&chroot), "");
    // These belong to other packages on Fedora; and RPM leaves the files that programs made, for
    // the next installation.
    let kept = ["etc/libvirt", "usr/share/fish", "usr/share/zsh", "run", "var/lib/toklat"];
    let left = left(&chroot, &bare, &kept);
    // The directory of all licences belongs to the system.
    assert_eq!(left, [Path::new("usr/share/licenses")]);
}

/// Returns the files that are there in addition to those of a bare Debian, its users, and the files
/// below `kept`.
fn left(chroot: &Chroot, bare: &BTreeSet<PathBuf>, kept: &[&str]) -> Vec<PathBuf> {
    let is_kept = |path: &Path| {
        USERS.iter().any(|user| path == Path::new(user))
            || kept.iter().any(|kept| path.starts_with(kept))
    };
    chroot.files().difference(bare).filter(|path| !is_kept(path)).cloned().collect()
}

/// Manual pages are found, shells complete, all documents are there, and other programs find it by
/// its names.
fn assert_brings_what_it_should(chroot: &Chroot, zsh: &str, cni: &str) {
    let pages = "man -w toklat toklat-daemon toklat-port-add toklat-topology";
    assert_eq!(chroot.run(pages).lines().count(), 4);
    let complete = ". /usr/share/bash-completion/bash_completion; _completion_loader toklat; \
                    complete -p toklat";
    assert!(chroot.run(complete).contains("toklat"));
    for file in [
        format!("usr/share/zsh/{zsh}/_toklat"),
        "usr/share/fish/vendor_completions.d/toklat.fish".into(),
    ] {
        assert!(chroot.read(&file).contains("toklat"), "{file}");
    }
    let documents = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for document in std::fs::read_dir(documents).unwrap().map(|entry| entry.unwrap()) {
        let name = document.file_name().into_string().unwrap();
        let there = chroot.path(&format!("usr/share/doc/toklat/{name}"));
        let packed = ["", ".gz"]
            .iter()
            .any(|end| PathBuf::from(format!("{}{end}", there.display())).exists());
        assert!(packed, "{name}");
    }
    let cni = chroot.run(&format!("CNI_COMMAND=VERSION {cni} </dev/null"));
    assert!(cni.contains("cniVersion"), "{cni}");
}

/// systemd has nothing to say of the units, whose manual pages are there.
fn assert_units_are_understood(chroot: &Chroot) {
    let verify = "systemd-analyze verify --man=yes toklat.service toklat.socket \
                  toklat-control.socket";
    assert_eq!(chroot.run(verify), "");
}

/// Checks that the operators' group controls the daemon and other users do not, that a switch
/// forwards in its jail, that a socket of the recipes can be made, and that programs find the
/// library.
fn assert_serves(chroot: &Chroot) {
    let user = |groups: &str, script: &str| {
        let groups = if groups.is_empty() { "--clear-groups" } else { groups };
        chroot.output(&format!(
            "setpriv --reuid=nobody --regid=nogroup {groups} toklat --dir /run/toklat {script}"
        ))
    };
    let (admin, member) = ("--groups=toklat-admin", "--groups=toklat");
    let (allowed, said) = user(member, "switch add lan0");
    assert!(!allowed && said.contains("control.sock"), "{said}");
    assert!(user(admin, "switch add lan0").0);
    let (shown, said) = user(admin, "switch show lan0 --json");
    assert!(
        shown && said.contains(r#""state": "running""#) && said.contains("system_calls"),
        "{said}"
    );
    let (added, said) = user(admin, "port add lan0:vm1 --vhost-user /run/toklat/vm1.sock");
    assert!(added && chroot.path("run/toklat/vm1.sock").exists(), "{said}");
    let (allowed, said) = user("", "gen lan0:c --duration 1s");
    assert!(!allowed && said.contains("attach.sock"), "{said}");
    let (allowed, said) = user(member, "gen lan0:c --duration 10ms");
    assert!(allowed, "{said}");
    let (ran, said) = user(member, "run -- /usr/bin/true");
    assert!(ran, "{said}");
}

/// The programs of the package that run.
fn running(chroot: &Chroot) -> String {
    chroot.run("for p in /proc/[0-9]*; do readlink $p/exe; done | grep toklat; true")
}

/// The daemon as systemd starts it by the units that were installed.
struct Unit {
    child: Child,
    notify: PathBuf,
}

impl Unit {
    fn start(chroot: &Chroot) -> Self {
        let unit = chroot.read(&format!("{UNITS}/toklat.service"));
        let user = value(&unit, "User");
        for (kind, place) in [("RuntimeDirectory", "run"), ("StateDirectory", "var/lib")] {
            let directory = chroot.path(place).join(value(&unit, kind));
            std::fs::create_dir_all(&directory).unwrap();
            let id = chroot.id("etc/passwd", user);
            std::os::unix::fs::chown(&directory, Some(id), Some(id)).unwrap();
        }
        let attach = socket(chroot, "toklat.socket", SocketType::SEQPACKET);
        let control = socket(chroot, "toklat-control.socket", SocketType::STREAM);
        let notify = chroot.path("tmp/notify");
        let notices = UnixDatagram::bind(&notify).unwrap();
        std::fs::set_permissions(&notify, PermissionsExt::from_mode(0o777)).unwrap();
        notices.set_read_timeout(Some(PATIENCE)).unwrap();
        let capability =
            value(&unit, "AmbientCapabilities").trim_start_matches("CAP_").to_lowercase();
        assert_eq!(value(&unit, "NoNewPrivileges"), "yes");
        // The shell knows its process id, and keeps it when it becomes the daemon.
        let script = format!(
            "exec 3<&{} 4<&{}; export LISTEN_PID=$$; exec setpriv --reuid={user} --regid={} --init-groups \
             --inh-caps=-all,+{capability} --ambient-caps=-all,+{capability} \
             --bounding-set=-all,+{capability} --no-new-privs {}",
            attach.as_raw_fd(),
            control.as_raw_fd(),
            value(&unit, "Group"),
            value(&unit, "ExecStart"),
        );
        let mut daemon = chroot.command(&script);
        daemon.env("LISTEN_FDS", "2").env("NOTIFY_SOCKET", "/tmp/notify");
        daemon.env("STATE_DIRECTORY", "/var/lib/toklat").env("RUNTIME_DIRECTORY", "/run/toklat");
        let child = daemon.spawn().unwrap();
        let mut said = [0; 64];
        while {
            let len = notices.recv(&mut said).expect("the daemon says that it is ready");
            !String::from_utf8_lossy(&said[..len]).contains("READY=1")
        } {}
        // As systemd does: a daemon whose notices nothing takes waits once some ten are there.
        std::thread::spawn(move || while notices.recv(&mut said).is_ok() {});
        Self { child, notify }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.notify);
    }
}

/// Returns the value that a unit gives to `key`.
fn value<'a>(unit: &'a str, key: &str) -> &'a str {
    let mut lines = unit.lines().filter_map(|line| line.split_once('='));
    lines.find(|(name, _)| *name == key).map(|(_, value)| value).unwrap_or_else(|| panic!("{key}"))
}

/// A socket as systemd makes it by its unit.
fn socket(chroot: &Chroot, unit: &str, kind: SocketType) -> OwnedFd {
    let text = chroot.read(&format!("{UNITS}/{unit}"));
    let listen = if kind == SocketType::STREAM { "ListenStream" } else { "ListenSequentialPacket" };
    let path = chroot.path(value(&text, listen));
    let socket = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 64).unwrap();
    let user = chroot.id("etc/passwd", value(&text, "SocketUser"));
    let group = chroot.id("etc/group", value(&text, "SocketGroup"));
    std::os::unix::fs::chown(&path, Some(user), Some(group)).unwrap();
    let mode = u32::from_str_radix(value(&text, "SocketMode"), 8).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    socket
}
