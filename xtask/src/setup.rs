//! Debian packages that tests, demo and benchmarks use, the test guest and a QEMU for it. Building
//! toklat itself needs none of them.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::tool::{self, command, installed};
use crate::{base, chroot, go, guest, qemu};

struct Package {
    name: &'static str,
    /// A program of it, or the path of another file, by which one sees whether it is there.
    program: &'static str,
    what_for: &'static str,
    /// Used by tests, not only by the demo, benchmarks and budgets.
    tests: bool,
}

const PACKAGES: &[Package] = &[
    Package { name: "gcc", program: "cc", what_for: "linking; the benchmarks' floor", tests: true },
    Package {
        name: "g++",
        program: "c++",
        what_for: "fuzz targets, also over their seeds in cargo xtask test",
        tests: true,
    },
    Package {
        name: "pkg-config",
        program: "pkg-config",
        what_for: "tests of programs in C",
        tests: true,
    },
    Package {
        name: "apparmor",
        program: "apparmor_parser",
        what_for: "the package's AppArmor profile",
        tests: true,
    },
    Package {
        name: "buildah",
        program: "buildah",
        what_for: "tests of the container image",
        tests: true,
    },
    Package { name: "make", program: "make", what_for: "the test guest's driver", tests: true },
    Package { name: "iproute2", program: "ip", what_for: "tests and demo of taps", tests: true },
    Package {
        name: "qemu-system-x86",
        program: "qemu-system-x86_64",
        what_for: "virtual machines in tests, demo and benchmarks",
        tests: true,
    },
    Package {
        name: "passt",
        program: "passt",
        what_for: "tests of a way out without root",
        tests: true,
    },
    Package { name: "iputils-ping", program: "ping", what_for: "demo of taps", tests: true },
    Package { name: "iperf3", program: "iperf3", what_for: "tests and demo of taps", tests: true },
    Package {
        name: "ipxe",
        program: "/boot/ipxe.lkrn",
        what_for: "tests of a boot loader on all cards",
        tests: true,
    },
    Package {
        name: "uidmap",
        program: "newuidmap",
        what_for: "tests of other users, run by an ordinary user",
        tests: true,
    },
    Package { name: "zsh", program: "zsh", what_for: "tests of zsh's completions", tests: true },
    Package { name: "groff", program: "groff", what_for: "tests of manual pages", tests: true },
    Package { name: "curl", program: "curl", what_for: "tests of docs/api.md", tests: true },
    Package {
        name: "systemd",
        program: "systemd-analyze",
        what_for: "tests of the package's units",
        tests: true,
    },
    Package {
        name: "libvirt-clients",
        program: "virt-xml-validate",
        what_for: "tests of libvirt's domain XML",
        tests: true,
    },
    Package {
        name: "libxml2-utils",
        program: "xmllint",
        what_for: "tests of libvirt's domain XML",
        tests: true,
    },
    Package {
        name: "containernetworking-plugins",
        program: "/usr/lib/cni/host-local",
        what_for: "tests of the CNI plugin",
        tests: true,
    },
    Package {
        name: "tshark",
        program: "tshark",
        what_for: "tests of captures by Wireshark",
        tests: true,
    },
    Package {
        name: "libpcap-dev",
        program: "/usr/include/pcap/pcap.h",
        what_for: "tests of programs that use libpcap",
        tests: true,
    },
    Package { name: "tcpdump", program: "tcpdump", what_for: "tests of libpcap", tests: true },
    Package { name: "arping", program: "arping", what_for: "tests of packet sockets", tests: true },
    Package { name: "nmap", program: "nmap", what_for: "tests of packet sockets", tests: true },
    Package {
        name: "python3-scapy",
        program: "/usr/lib/python3/dist-packages/scapy/all.py",
        what_for: "tests of packet sockets",
        tests: true,
    },
    Package {
        name: "python3-venv",
        program: "/usr/share/doc/python3-venv",
        what_for: "tests of programs in Python and of the API's description",
        tests: true,
    },
    Package {
        name: "tcpreplay",
        program: "tcpreplay",
        what_for: "tests of packet sockets",
        tests: true,
    },
    Package {
        name: "nginx-light",
        program: "nginx",
        what_for: "bench guest, tests of the light guests' web server",
        tests: true,
    },
    Package { name: "wrk", program: "wrk", what_for: "bench guest", tests: false },
    Package {
        name: "ethtool",
        program: "ethtool",
        what_for: "tests of tunnels, bench guest",
        tests: true,
    },
    Package {
        name: "libmemcached-tools",
        program: "memccp",
        what_for: "tests of the light guests' cache",
        tests: true,
    },
    Package {
        name: "memcached",
        program: "memcached",
        what_for: "tests of the light guests' cache",
        tests: true,
    },
    Package {
        name: "dnsmasq-base",
        program: "dnsmasq",
        what_for: "tests of the light guests' addresses",
        tests: true,
    },
    Package {
        name: "lintian",
        program: "lintian",
        what_for: "cargo xtask deb; tests of the Debian package",
        tests: true,
    },
    Package {
        name: "dpkg-dev",
        program: "dpkg-shlibdeps",
        what_for: "cargo xtask deb; tests of the Debian package",
        tests: true,
    },
    Package {
        name: "mmdebstrap",
        program: "mmdebstrap",
        what_for: "tests of the Debian package and of the container image",
        tests: true,
    },
    Package {
        name: "rpm",
        program: "rpmbuild",
        what_for: "cargo xtask rpm; tests of the RPM package",
        tests: true,
    },
    Package {
        name: "dpdk-dev",
        program: "dpdk-testpmd",
        what_for: "tests of vhost-user with DPDK",
        tests: true,
    },
    Package { name: "frr", program: "/usr/lib/frr/bgpd", what_for: "tests of EVPN", tests: true },
    Package {
        name: "valgrind",
        program: "valgrind",
        what_for: "cargo xtask perf, a part of check; tests of netmap programs",
        tests: true,
    },
];

/// Runs apt-get, which asks nothing: as root as it is, else by sudo, which asks nothing either.
fn apt_get(args: &[&str]) -> Result<()> {
    let quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
    match is_root() {
        true => tool::run(&mut command(quiet[0], &[&quiet[1..], args].concat())),
        false => tool::run(&mut command("sudo", &[&["-n"], &quiet[..], args].concat())),
    }
}

/// Returns true if root's rights are at hand: this is root, or sudo asks for no password.
fn may_install() -> bool {
    is_root() || tool::succeeds(&mut command("sudo", &["-n", "true"]))
}

fn install(packages: &[&Package]) -> Result<()> {
    apt_get(&["update", "-q"])?;
    let apt =
        |names: &[&str]| apt_get(&[&["install", "-y", "--no-install-recommends"], names].concat());
    let names: Vec<&str> = packages.iter().map(|p| p.name).collect();
    if apt(&names).is_ok() {
        return Ok(());
    }
    // One that this release does not have must not cost the others.
    let failed: Vec<&str> = names.into_iter().filter(|name| apt(&[name]).is_err()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("could not be installed: {}", failed.join(" "))
}

/// Things that are made, not installed: the name, what its lack costs, and how it is made.
type Made = (&'static str, &'static str, fn() -> Result<()>);

const MADE: [Made; 6] = [
    ("the test guest", "tests with virtual machines skip themselves", guest::make),
    (
        "a QEMU that speaks vfio-user",
        "tests with emulated NICs in virtual machines skip themselves",
        qemu::make,
    ),
    ("GoBGP", "tests of EVPN skip themselves", go::make_gobgpd),
    ("cnitool", "the test of the CNI plugin by CNI's own tool skips itself", go::make_cnitool),
    ("an earlier version", "tests of upgrades from it skip themselves", base::make),
    ("a bare Debian", "tests that install the package skip themselves", chroot::make),
];

pub fn run(ci: bool) -> Result<()> {
    let packages = packages(ci);
    // As any user, and after the packages: they need a compiler. Together, because some compile
    // while others wait for the network.
    std::thread::scope(|scope| {
        for (name, cost, make) in MADE {
            scope.spawn(move || {
                let start = Instant::now();
                match make() {
                    Ok(()) => println!("{name}: {} s", start.elapsed().as_secs()),
                    Err(error) => println!("skipped: {name} ({error:#}); {cost}"),
                }
            });
        }
    });
    packages
}

fn packages(ci: bool) -> Result<()> {
    let wanted = PACKAGES.iter().filter(|p| p.tests || !ci);
    let missing: Vec<&Package> = wanted.filter(|p| !installed(p.program)).collect();
    if missing.is_empty() {
        println!("nothing is missing");
        return Ok(());
    }
    for p in &missing {
        println!("missing: {:<14} {}", p.name, p.what_for);
    }
    let names: Vec<&str> = missing.iter().map(|p| p.name).collect();
    let names = names.join(" ");
    if !installed("apt-get") {
        bail!("this is not Debian: install with your package manager what {names} contain");
    }
    if !may_install() {
        bail!("run as root: apt-get install --no-install-recommends {names}");
    }
    println!("installing these, {}", if is_root() { "as root" } else { "by sudo" });
    install(&missing)
}

pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|l| l.starts_with("Uid:") && l.split_whitespace().nth(2) == Some("0"))
    })
}
