//! The host behind an interface as a port, on a kernel without tcx (Linux 6.1), in a virtual
//! machine: filters of clsact move the host to its port, and let everything pass when the daemon
//! and the data process are killed.
//!
//! The daemon runs in the guest, and so does the host that it moves: the guest's own stack. A TCP
//! connection that the other side refuses shows that frames go and come.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use harness::guests::Guest;
use harness::inside::{PROGRAM, guest_with_program};
use harness::stack::Stack;
use harness::{Daemon, skip};

/// Modules of the guest's kernel that it does not have with it, in the order of their needs.
const MODULES: [&str; 3] =
    ["drivers/net/tun.ko", "net/sched/sch_ingress.ko", "net/sched/cls_bpf.ko"];

const SCRIPT: &str = r#"#!/bin/sh
t() { PROGRAM --dir /run/t "$@"; }
until_() { n=0; until "$@"; do n=$((n + 1)); [ $n -lt 300 ] || { echo "said: never: $* $(cat /tmp/page) $(tail -n 3 /tmp/log)"; exit 1; }; sleep 0.1; done; }
begin() { PROGRAM --dir /run/t daemon >>/tmp/log 2>&1 & d=$!; until_ t status >/tmp/status 2>&1; }
reached() { iperf3 -c 10.0.0.9 >/tmp/page 2>&1; grep -q refused /tmp/page; }
carried() { t --json stats | tr -d "\\n " | grep -q '"name":"host"[^}]*"in_frames":[1-9]'; }
for module in tun sch_ingress cls_bpf; do insmod /host/$module.ko || exit 1; done
mkdir -p /run/t /dev/net
[ -c /dev/net/tun ] || mknod /dev/net/tun c 10 200
uname -r >/tmp/release
until_ reached
begin
until_ t switch add vale0
until_ t port add vale0:wire --interface eth0
t port add vale0:host --host eth0 || { echo "said: $(t port add vale0:host --host eth0 2>&1)"; exit 1; }
echo "said: $(cat /tmp/release) $(t port show vale0:host | grep -o 'filters of clsact')"
for life in 1 2 3; do
    until_ reached
    until_ carried
    # Both processes are killed, in one order and in the other.
    data=$(t --json switch show vale0 | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)
    [ "$data" ] || { echo "said: no data process"; exit 1; }
    if [ $life = 2 ]; then kill -STOP $d; kill -9 $data; kill -9 $d; else kill -9 $d; kill -9 $data; fi
    wait $d
    free() { [ ! -e "/sys/class/net/eth0^" ]; }
    until_ free
    reached || { echo "said: cut off"; exit 1; }
    begin
    until_ [ -e "/sys/class/net/eth0^" ]
done
echo "said: alive"
exit 0
"#;

/// The modules, from the package of the guest's kernel; `None` if that is not here.
fn modules() -> Option<Vec<(String, Vec<u8>)>> {
    let packages = vm::guest::find().ok()?.join("packages");
    let is_kernel = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("linux-image-6.1.") && name.ends_with(".deb")
    };
    let mut files = std::fs::read_dir(packages).ok()?.flatten().map(|entry| entry.path());
    let package = files.find(|path| is_kernel(path))?;
    let to = tempfile::tempdir().unwrap();
    let unpacked = Command::new("dpkg-deb").arg("-x").arg(package).arg(to.path()).status();
    unpacked.ok().filter(std::process::ExitStatus::success)?;
    let release = std::fs::read_dir(to.path().join("lib/modules")).ok()?.flatten().next()?.path();
    let read = |module: &&str| {
        let path = release.join("kernel").join(module);
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((format!("host/{name}"), std::fs::read(path).ok()?))
    };
    MODULES.iter().map(read).collect()
}

#[test]
fn without_tcx_the_host_is_moved_by_filters_and_never_cut_off() {
    let test = "without_tcx_the_host_is_moved_by_filters_and_never_cut_off";
    let Some(dir) = guest_with_program(test) else { return };
    let Some(modules) = modules() else {
        return skip(
            test,
            "the package of the guest's kernel is not beside it, or dpkg-deb is not",
        );
    };
    vm::inside::put(dir.path(), &modules).unwrap();
    let script = SCRIPT.replace("PROGRAM", PROGRAM).into_bytes();
    vm::inside::put(dir.path(), &[("host/script".to_owned(), script)]).unwrap();
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.peer]");
    let port = daemon.open("vale0:peer").unwrap();
    let _stack = Stack::start(port, Ipv4Addr::new(10, 0, 0, 9), b"page".to_vec());
    let mut guest = Guest::boot_from(Some(dir.path()), &daemon, "host", 1, &[], "/host/script");
    let said = guest.says("said: ");
    assert!(said.starts_with("said: 6.1.") && said.ends_with("filters of clsact"), "{said}");
    assert_eq!(guest.says("said: "), "said: alive");
    guest.succeeds();
}
