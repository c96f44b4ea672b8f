//! Parts of the packaged service: `toklat service enable`, and what each lets the daemon do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::skip;

const PARTS: [&str; 4] = ["interfaces", "containers", "cards", "evpn"];

fn packaged(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

fn part_file(part: &str, kind: &str) -> Option<String> {
    fs::read_to_string(packaged(&format!("service/{part}.{kind}"))).ok()
}

/// What a port needs of systemd or AppArmor.
#[derive(Clone, Copy, Debug)]
enum Need {
    Capability(&'static str),
    Family(&'static str),
    Call(&'static str),
    Device(&'static str),
    /// A rule of AppArmor, as it is written.
    Rule(&'static str),
    /// Memory that is locked counts for no limit.
    Locks,
    /// udev gives the files to the daemon's user.
    Files(&'static str),
}
use Need::{Call, Capability, Device, Family, Files, Locks, Rule};

/// What opens ports of a kind, and in which part it is; "" is the unit and the profile themselves.
const NEEDS: &[(&str, &str, &[Need])] = &[
    ("null ring pcap_read pcap_write", "", &[Rule("/var/lib/toklat/** rwk,")]),
    (
        "stream dgram vhost_user vfio_user",
        "",
        &[Family("AF_UNIX"), Family("AF_INET"), Family("AF_INET6"), Rule("unix,")],
    ),
    (
        "vxlan",
        "",
        &[
            Family("AF_INET"),
            Family("AF_INET6"),
            Family("AF_NETLINK"),
            Rule("network inet dgram,"),
            Rule("network inet6 dgram,"),
            Rule("network netlink raw,"),
        ],
    ),
    (
        "tap",
        "",
        &[Capability("CAP_NET_ADMIN"), Device("/dev/net/tun rw"), Rule("/dev/net/tun rw,")],
    ),
    (
        "tap interface host",
        "containers",
        &[Capability("CAP_SYS_ADMIN"), Rule("/run/netns/* r,"), Rule("@{PROC}/@{pids}/ns/net r,")],
    ),
    // Every process may enter the namespaces that it may: systemd's list of calls has it.
    ("tap interface host", "", &[Call("setns"), Rule("capability sys_admin,")]),
    (
        "interface",
        "interfaces",
        &[
            Capability("CAP_NET_RAW"),
            Capability("CAP_BPF"),
            Family("AF_PACKET"),
            Family("AF_XDP"),
            Call("bpf"),
            Locks,
            Rule("capability net_raw,"),
            Rule("capability bpf,"),
            Rule("network packet raw,"),
            Rule("network xdp raw,"),
        ],
    ),
    ("host", "interfaces", &[Capability("CAP_BPF"), Call("bpf"), Rule("capability bpf,")]),
    ("host", "", &[Capability("CAP_NET_ADMIN"), Device("/dev/net/tun rw"), Family("AF_NETLINK")]),
    (
        "card",
        "cards",
        &[
            Device("/dev/vfio/vfio rw"),
            Device("char-vfio rw"),
            Locks,
            Files("vfio"),
            Rule("/dev/vfio/vfio rw,"),
            Rule("/dev/vfio/[0-9]* rw,"),
        ],
    ),
    // Of gobgpd, beside a tunnel.
    ("vxlan", "evpn", &[Rule("/usr/local/bin/gobgpd mrix,"), Rule("/usr/bin/gobgpd mrix,")]),
];

/// The words of all lines of a unit that set `key`.
fn words(unit: &str, key: &str) -> BTreeSet<String> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// True if a filter of calls has a call, itself or by a set.
fn has_call(filter: &BTreeSet<String>, call: &str) -> bool {
    filter.iter().any(|word| {
        let set = || {
            let mut analyze = Command::new("systemd-analyze");
            let output = analyze.args(["syscall-filter", word]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let within = |text: String| -> BTreeSet<String> {
            text.lines().skip(1).map(|line| line.trim().to_owned()).collect()
        };
        word == call || (word.starts_with('@') && has_call(&within(set()), call))
    })
}

/// True if the unit and the profile themselves, or a part of them, grant what is needed.
fn grants(part: &str, need: Need) -> bool {
    let (unit, rules) = match part {
        "" => (
            fs::read_to_string(packaged("systemd/toklat.service")).unwrap(),
            fs::read_to_string(packaged("apparmor/toklat-daemon")).unwrap(),
        ),
        part => (
            part_file(part, "conf").unwrap_or_default(),
            part_file(part, "apparmor").unwrap_or_default(),
        ),
    };
    let has = |key: &str, word: &str| words(&unit, key).contains(word);
    match need {
        Capability(name) => has("AmbientCapabilities", name) && has("CapabilityBoundingSet", name),
        Family(name) => has("RestrictAddressFamilies", name),
        Call(name) => has_call(&words(&unit, "SystemCallFilter"), name),
        Device(rule) => unit.lines().any(|line| line == format!("DeviceAllow={rule}")),
        Rule(rule) => rules.lines().any(|line| line.trim() == rule),
        Locks => has("LimitMEMLOCK", "infinity"),
        Files(subsystem) => part_file(part, "rules").is_some_and(|rules| {
            rules.contains(&format!("SUBSYSTEM==\"{subsystem}\", OWNER=\"toklat\", MODE=\"0600\""))
        }),
    }
}

/// Objective: what each kind of port needs is granted by the unit and the profile, or else by the
/// part that is named; and the table knows all kinds.
#[test]
fn each_kind_of_port_has_what_it_needs_in_one_part() {
    let name = "each_kind_of_port_has_what_it_needs_in_one_part";
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip(name, "systemd-analyze is missing; as root: apt-get install systemd");
    }
    for (kinds, part, needs) in NEEDS {
        for need in *needs {
            assert!(grants(part, *need), "{kinds}: {need:?} is not in {part:?}");
            assert!(part.is_empty() || !grants("", *need), "{kinds}: {need:?} is in the unit");
        }
    }
    let known: BTreeSet<&str> = NEEDS.iter().flat_map(|(kinds, ..)| kinds.split(' ')).collect();
    let documented =
        fs::read_to_string(packaged("../docs/adding-a-port-kind.md")).expect("the list of kinds");
    let kinds = documented.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let kinds: BTreeSet<&str> = kinds.collect();
    assert!(kinds.contains("vhost_user") && kinds.is_subset(&known), "{kinds:?} {known:?}");
}

/// Objective: systemd understands the unit with each part and with all, has no warnings, and rates
/// what they expose as SECURITY.md's readers may expect: no part but `containers` adds much.
#[test]
fn systemd_understands_the_unit_with_each_part() {
    let name = "systemd_understands_the_unit_with_each_part";
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip(name, "systemd-analyze is missing; as root: apt-get install systemd");
    }
    let cases: [(&[&str], f32); 5] = [
        (&[], MOST[0]),
        (&["interfaces"], MOST[1]),
        (&["containers"], MOST[2]),
        (&["cards"], MOST[3]),
        (&["interfaces", "containers", "cards"], MOST[4]),
    ];
    for (parts, most) in cases {
        let dir = tempfile::tempdir().unwrap();
        let unit = unit_with(dir.path(), parts);
        let analyze = |args: &[&str]| {
            let mut analyze = Command::new("systemd-analyze");
            let output = analyze.args(args).arg(&unit).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && said.trim().is_empty(), "{parts:?}: {said}");
            String::from_utf8(output.stdout).unwrap()
        };
        analyze(&["verify", "--man=no"]);
        let said = analyze(&["security", "--offline=true", "--no-pager"]);
        let last = said.lines().rfind(|line| line.contains("Overall exposure")).unwrap();
        let exposure = last.split_whitespace().find_map(|word| word.parse::<f32>().ok());
        assert!(exposure.unwrap() <= most, "{parts:?}: {last}");
    }
}

/// What systemd says at most of the unit, with each part, and with all.
const MOST: [f32; 5] = [3.5, 4.0, 3.7, 3.5, 4.2];

/// Writes the packaged units with these parts into a directory; returns the service's path. It
/// names the program where cargo built it.
fn unit_with(dir: &Path, parts: &[&str]) -> PathBuf {
    for unit in ["toklat.service", "toklat.socket", "toklat-control.socket"] {
        let text = fs::read_to_string(packaged("systemd").join(unit)).unwrap();
        let text = text.replace("/usr/bin/toklat", env!("CARGO_BIN_EXE_toklat"));
        fs::write(dir.join(unit), text).unwrap();
    }
    let dropins = dir.join("toklat.service.d");
    fs::create_dir(&dropins).unwrap();
    for part in parts {
        let text = part_file(part, "conf").unwrap();
        fs::write(dropins.join(format!("{part}.conf")), text).unwrap();
    }
    dir.join("toklat.service")
}

/// Makes a system in a directory that has the package's files of the parts, and AppArmor's profile
/// if that is wanted, with what it includes.
fn system(confined: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let shipped = dir.path().join("usr/lib/toklat/service");
    fs::create_dir_all(&shipped).unwrap();
    for file in fs::read_dir(packaged("service")).unwrap().map(|file| file.unwrap()) {
        fs::copy(file.path(), shipped.join(file.file_name())).unwrap();
    }
    if confined {
        let place = dir.path().join("etc/apparmor.d");
        fs::create_dir_all(&place).unwrap();
        fs::copy(packaged("apparmor/toklat-daemon"), place.join("toklat-daemon")).unwrap();
    }
    dir
}

/// Calls `toklat service`; returns whether it succeeded, and what it said.
fn service(root: &Path, args: &str) -> (bool, String) {
    let mut toklat = Command::new(env!("CARGO_BIN_EXE_toklat"));
    toklat.arg("service").args(args.split(' ')).arg("--root").arg(root);
    let output = toklat.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.success(), said)
}

/// All links below a directory, and where they lead.
fn links(root: &Path) -> Vec<(String, String)> {
    let find = Command::new("find").arg(root).args(["-type", "l", "-printf", "%P %l\n"]).output();
    let text = String::from_utf8(find.unwrap().stdout).unwrap();
    let mut links: Vec<(String, String)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(link, to)| (link.to_owned(), to.to_owned()))
        .collect();
    links.sort();
    links
}

/// Objective: a part is switched on by links to the package's files, once; off again without a
/// trace; and a file that is the operator's is not touched, nor is anything else then.
#[test]
fn parts_are_switched_on_and_off() {
    let system = system(true);
    let root = system.path();
    let (on, said) = service(root, "enable cards evpn");
    assert!(on && said.contains("systemctl restart toklat.service"), "{said}");
    let file = |name: &str| format!("/usr/lib/toklat/service/{name}");
    let wanted = [
        ("etc/apparmor.d/toklat-daemon.d/cards".to_owned(), file("cards.apparmor")),
        ("etc/apparmor.d/toklat-daemon.d/evpn".to_owned(), file("evpn.apparmor")),
        ("etc/systemd/system/toklat.service.d/cards.conf".to_owned(), file("cards.conf")),
        ("etc/udev/rules.d/70-toklat-cards.rules".to_owned(), file("cards.rules")),
    ];
    assert_eq!(links(root), wanted);
    for (link, to) in &wanted {
        assert!(root.join(to.trim_start_matches('/')).is_file(), "{link}");
    }
    let (_, again) = service(root, "enable cards");
    assert!(again.contains("nothing to change"), "{again}");
    let states = |parts: &[(&str, serde_json::Value)]| {
        let (_, said) = service(root, "list --json");
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        for (part, on) in parts {
            let all = said.as_array().unwrap();
            let state = all.iter().find(|state| state["part"] == *part).expect("the part");
            assert_eq!(state["on"], *on, "{part}: {said}");
        }
    };
    states(&[("cards", true.into()), ("evpn", true.into()), ("interfaces", false.into())]);
    let own = root.join("etc/systemd/system/toklat.service.d/interfaces.conf");
    fs::write(&own, "[Service]\n").unwrap();
    let (done, said) = service(root, "enable containers interfaces");
    assert!(!done && said.contains("interfaces.conf is not of toklat's package"), "{said}");
    assert_eq!((links(root).len(), fs::read_to_string(&own).unwrap().len()), (4, 10));
    fs::remove_file(&own).unwrap();
    assert!(service(root, "disable cards evpn").0);
    assert!(links(root).is_empty());
}

/// Objective: without AppArmor's profile `evpn` needs nothing, the others their drop-ins only; and
/// without the package the command says that there is none.
#[test]
fn parts_are_what_the_system_has() {
    let bare = system(false);
    let (_, said) = service(bare.path(), "enable interfaces evpn");
    assert_eq!(links(bare.path()).len(), 1, "{said}");
    let (_, said) = service(bare.path(), "list --json");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said[0]["on"], &said[3]["on"]), (&true.into(), &serde_json::Value::Null));
    let none = tempfile::tempdir().unwrap();
    let (done, said) = service(none.path(), "list");
    assert!(!done && said.contains("the package of toklat is not installed"), "{said}");
}

/// Objective: AppArmor understands the profile with each part as `toklat service enable` links it,
/// and with links that lead nowhere, as a removed package leaves them.
#[test]
fn apparmor_understands_the_profile_with_each_part() {
    let name = "apparmor_understands_the_profile_with_each_part";
    if Command::new("apparmor_parser").arg("--version").output().is_err() {
        return skip(name, "apparmor_parser is missing; as root: apt-get install apparmor");
    }
    for part in PARTS {
        let system = system(true);
        let base = system.path().join("etc/apparmor.d");
        assert!(service(system.path(), &format!("enable {part}")).0);
        // The parser follows links from the machine's root, not from this one.
        let link = base.join("toklat-daemon.d").join(part);
        let parse = |more: &[&str]| {
            let mut parser = Command::new("apparmor_parser");
            parser.args(["--skip-kernel-load", "--skip-cache", "--warn=all", "--Werror"]);
            parser.args(["--features-file", "/etc/apparmor.d/abi/3.0", "--Include"]).arg(&base);
            let output = parser.args(more).arg(base.join("toklat-daemon")).output().unwrap();
            assert!(output.status.success(), "{part}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let rules = part_file(part, "apparmor").unwrap();
        let rule = rules.lines().rfind(|line| line.ends_with(',')).unwrap();
        if !Path::new("/usr/lib/toklat/service").exists() {
            assert!(!parse(&["--preprocess"]).contains(rule), "{part}");
            parse(&[]);
        }
        fs::remove_file(&link).unwrap();
        fs::copy(packaged(&format!("service/{part}.apparmor")), &link).unwrap();
        assert!(parse(&["--preprocess"]).contains(rule), "{part}");
        parse(&[]);
    }
}
