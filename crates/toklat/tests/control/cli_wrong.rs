//! Wrong inputs: each is answered in a few lines with what to do, by the exit codes of the README,
//! and nothing is changed or left behind.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use harness::Daemon;
use harness::users::may_be_others;

/// A command, its exit code, and words of its output.
const WRONG: &[(&str, i32, &str)] = &[
    // Usage.
    ("switch add", 2, "NAME"),
    ("switch add va/le", 2, "va/le"),
    ("switch add vale1 --workers 0", 2, "1..=64"),
    ("switch add vale1 --workers 2 --cpus 0,1", 2, "cannot be used with"),
    ("switch add vale1 --cpus 1-", 2, "not a number"),
    ("switch add vale1 --cpus 3-1", 2, "ends before it begins"),
    ("switch add vale1 --batch 1025", 2, "1..=1024"),
    ("switch add vale1 --idle maybe", 2, "auto"),
    ("port add vale0", 2, "SWITCH:PORT"),
    ("port add vale0:n --vlan-access 5000", 2, "5000"),
    ("port add vale0:n --vlan-trunk 9-8", 2, "ends before it begins"),
    ("port add vale0:n --vlan-trunk 4095", 2, "not a VLAN"),
    ("port add vale0:n --native 3", 2, "--vlan-trunk"),
    ("port add vale0:n --mac 02:00", 2, "02:00"),
    ("port add vale0:n --nic rtl8139", 2, "82540em"),
    ("port set vale0:a", 2, "--help"),
    ("port set vale0:a --tx-limit fast", 2, "100M (bits a second), 1Gb/s or 100kpps"),
    ("port set vale0:a --tx-limit 1000", 2, "100M (bits a second), 1Gb/s or 100kpps"),
    ("port set vale0:a --rx-limit 1Gb/s,2Gb/s", 2, "one rate in bits"),
    ("port add vale0:n --rx-limit 900000Gb/s", 2, "from 1 to"),
    ("fdb add vale0:a no-mac", 2, "no-mac"),
    ("fdb add vale0:b 02:00:00:00:00:01", 1, "fixed at vale0:a"),
    ("switch set vale0 --sflow collector.example", 2, "192.0.2.1:6343"),
    ("switch set vale0 --sflow-rate 0", 2, "1..=16777216"),
    ("cap vale9 -w /dev/null", 1, "vale9"),
    ("cap vale9 --drops", 1, "no switch vale9"),
    ("cap vale0:zz --drops", 1, "zz"),
    ("stats --watch=0", 2, "0.1 to 3600"),
    ("stats --watch 1", 2, "--watch=1"),
    ("apply --yes x.toml", 2, "--prune"),
    ("apply --check --prune x.toml", 2, "cannot be used with"),
    ("cap vale0:a -w - -C 1", 2, "standard output"),
    ("cap vale0:a -w x -W 3", 2, "--file-size"),
    ("extcap", 2, "--extcap-interfaces"),
    ("extcap --capture --extcap-interface vale0:a", 2, "--fifo"),
    ("extcap --capture --extcap-interface vale0:zz --fifo /dev/null", 1, "zz"),
    ("frobnicate", 2, "frobnicate"),
    ("swich add vale1", 2, "a similar subcommand exists: 'switch'"),
    ("switch set vale0", 2, "nothing to change"),
    ("switch add vale1 --max-guest-memory x", 2, "256MiB"),
    ("port add vale0:n --vlan-access 5 --vlan-trunk 5", 2, "cannot be used with"),
    ("port add vale0:n --loosless", 2, "'--lossless'"),
    ("gen vale0:a --count x", 2, "10k"),
    ("gen vale0:a --rate fast", 2, "10Gb/s"),
    ("bench", 2, "subcommand"),
    ("completions tcsh", 2, "'zsh'"),
    ("top vale0", 2, "terminal"),
    ("guest run", 2, "<ADDRESS/PREFIX>"),
    ("guest run httpd vale0:w 10.0.0.2/99", 2, "10.0.0.2/24"),
    ("guest run httpd vale0 10.0.0.2/24", 2, "vale0:web"),
    ("guest stop", 2, "NAMES"),
    // Objects that already exist, and objects that do not.
    ("switch add vale0", 1, "exists"),
    ("switch show vale9", 1, "no switch vale9"),
    ("switch rm vale9", 1, "no switch vale9"),
    ("switch rm vael0", 1, "did you mean vale0?"),
    ("switch set vale9 --batch 8", 1, "vale9"),
    ("port add vale0:a", 1, "vale0:a"),
    ("port add vale9:a", 1, "toklat switch add vale9"),
    ("port add vael0:n", 1, "did you mean vale0?"),
    ("fdb add vale0:a 02:00:00:00:00:99 --vlan 7", 1, "vale0:a is in no VLAN"),
    ("fdb add vale0:acc 02:00:00:00:00:99 --vlan 8", 1, "in VLAN 7, not in 8"),
    ("fdb add vale0:tr 02:00:00:00:00:99", 1, "--vlan"),
    ("fdb add vale0:tr 02:00:00:00:00:99 --vlan 9", 1, "not in VLAN 9"),
    ("fdb rm vale0 02:00:00:00:00:01 --vlan 7", 1, "nothing was changed"),
    ("guest run httpd vael0:w 10.0.0.2/24", 1, "did you mean vale0?"),
    ("guest run -d httpd vael0:w 10.0.0.2/24", 1, "did you mean vale0?"),
    ("guest run nothing vale0:w 10.0.0.2/24", 1, "toklat guest programs"),
    ("guest show web", 1, "toklat guest list"),
    ("evpn show", 1, "[evpn]"),
    ("port reattach vale0:zz --qmp /no/such", 1, "zz"),
    ("port add vale0:n --pcap-write /dev/full", 1, "is not a file"),
    ("port rm vale0:zz", 1, "zz"),
    ("port set vale0:zz --lossless", 1, "zz"),
    ("port show vale0:zz", 1, "zz"),
    ("stats vale0:zz", 1, "toklat port show"),
    ("fdb rm vale0 02:00:00:00:00:99", 1, "nothing was changed"),
    ("fdb add vale0:zz 02:00:00:00:00:99", 1, "zz"),
    ("quota set --user nobody-of-this-name ports=1", 2, "nobody-of-this-name"),
    ("apply /no/such/file", 1, "Cannot read"),
    ("apply /dev/null", 1, "empty"),
    ("apply /", 1, "name a topology file"),
    ("cap vale0:zz -w /dev/null", 1, "zz"),
    // Settings that are not valid.
    ("switch add vale1 --cpus 0,0", 1, "CPU 0"),
    ("switch add vale1 --cpus 60000", 1, "60000"),
    ("switch set vale0 --stall-timeout 10001", 1, "0 to 10000"),
    ("port add vale0:n --mac 02:00:00:00:00:01", 1, "used twice: by vale0:a and vale0:n"),
    ("port set vale0:b --mac 02:00:00:00:00:01", 1, "used twice"),
    ("port add vale0:n --mac 01:00:00:00:00:01", 1, "group address"),
    ("port add vale0:n --vlan-trunk 10-12 --native 13", 1, "native VLAN 13"),
    ("port add vale0:n --mirror-in gone", 1, "does not exist"),
    ("port add vale0:n --guard", 1, "--mac"),
    ("port add vale0:n --mtu 9999", 2, "9999"),
    ("port add vale0:n --worker 7", 1, "worker"),
    ("port set vale0:a --link down", 1, "remove the port"),
    ("port add vale0:n --stream 127.0.0.1:99999", 1, "not an address with a port"),
    ("port add vale0:n --stream 192.0.2.1:5000", 1, "127.0.0.1"),
    ("port add vale0:n --dgram /tmp/x --remote 127.0.0.1:5000", 1, "two paths"),
    ("port add vale0:n --pcap-read /no/such.pcap", 1, "/no/such.pcap"),
    ("port add vale0:n --pcap-write /no/such/x.pcap", 1, "/no/such/x.pcap"),
    ("port add vale0:n --tap a/b", 1, "a/b"),
    ("port add vale0:n --vhost-user /no/such/dir/x.sock", 1, "/no/such/dir/x.sock"),
    ("port add vale0:n --tap --owner nobody-of-this-name", 2, "nobody-of-this-name"),
    ("gen vale0:a --size 1", 2, "60 to 9234"),
    ("sink vael0:b", 1, "did you mean vale0?"),
    ("gen vale9:b --count 1", 1, "--create makes a switch"),
    ("bridge vale0:x vael0:y", 1, "did you mean vale0?"),
    ("uplink vael0 --passt true", 1, "did you mean vale0?"),
    ("uplink vale0 --passt /no/such/passt", 1, "apt install passt"),
    ("uplink vale0 -p 8080", 2, "8080:80"),
    ("uplink vale0 -p 8080:10.0.3.20:80", 1, "--subnet"),
    ("uplink vale0 --subnet 10.0.0.0/8", 2, "10.0.2.0/24"),
    ("upgrade vael0", 1, "did you mean vale0?"),
    ("daemon", 1, "runs in"),
    // Invalid impairments, tunnels and sampling settings.
    ("port set vale0:a --rx-impair loss=200%", 2, "0.1%"),
    ("port set vale0:a --tx-impair loss=1%,loss=2%", 2, "say loss= once"),
    ("port set vale0:a --rx-impair wobble=1", 2, "jitter="),
    ("port set vale0:a --rx-impair delay=fast", 2, "10ms or 250us"),
    ("port set vale0:a --rx-impair jitter=5ms", 2, "at most its delay"),
    ("port add vale0:n --vxlan 100", 2, "--local"),
    ("port add vale0:n --vxlan 0 --local 127.0.0.1 --peer 127.0.0.2", 2, "1 to 16777215"),
    ("port add vale0:n --vxlan 7 --local nowhere --peer 127.0.0.2", 2, "nowhere"),
    ("port add vale0:n --vxlan 7 --local 127.0.0.1 --peer 127.0.0.1", 1, "is this host"),
    ("port add vale0:n --vxlan 7 --local 127.0.0.1 --peer ::1", 1, "one IP version"),
    ("port add vale0:n --vxlan 7 --local 192.0.2.77 --peer 192.0.2.78", 1, "ip address"),
    ("port add vale0:n --vxlan 7 --local 127.0.0.1 --peer 127.0.0.2 --peer 127.0.0.2", 1, "twice"),
    ("port add vale0:n --peer 127.0.0.2", 2, "--vxlan"),
    ("switch set vale0 --sflow 127.0.0.1:0", 2, "192.0.2.1:6343"),
    ("switch set vale0 --sflow-polling 0", 2, "1..=3600"),
    // Invalid uses of programs, machines and cards.
    ("run", 2, "PROGRAM"),
    ("run --port vale0 -- true", 2, "vale0:p1"),
    ("run --port vale0:n=10.0.0.1/40 -- true", 2, "10.0.0.1/24"),
    ("run --netns --port vale0:n -- /no/such/program", 1, "/no/such/program"),
    ("vm run --switch vale0", 2, "--image"),
    ("vm run --switch vale0 --image /no/such.qcow2", 1, "no file /no/such.qcow2"),
    ("card nothing", 1, "0000:03:00.0"),
    ("card 0000:99:99.9", 1, "lspci"),
    ("quota set ports=x", 2, "2GiB"),
    ("quota set wheels=1", 2, "memory"),
    ("port set vale0:a --nic 82540em", 2, "--nic"),
    ("port add vale0:n --dgram /tmp/x", 2, "--remote"),
    ("ping vale0:a 02:00:00:00:00:77 --count 3", 1, "None of 3 requests was answered"),
];

const NET: &str = "
    [switch.vale0.port.a]
    macs = ['02:00:00:00:00:01']
    [switch.vale0.port.b]
    [switch.vale0.port.acc]
    vlan = { access = 7 }
    [switch.vale0.port.tr]
    vlan = { trunk = { allowed = [7, 8] } }
";

/// Mistakes in a topology file, and words of the answer.
const WRONG_FILES: &[(&str, &str)] = &[
    ("[swich.vale0]", "swich: there is no such table. Did you mean switch?"),
    (
        "[switch.vale0]\nidel = 'auto'",
        "switch.vale0.idel: there is no such setting. Did you mean idle?",
    ),
    ("[switch.vale0]\nidle = 'maybe'", "switch.vale0.idle: maybe is none of auto, "),
    ("[switch.vale0]\nport = 3", "line 2: 3 is given, and a table of settings belongs there"),
    ("[switch.vale0.port.n]\nmtu = 'x'", "line 2: switch.vale0.port.n.mtu: x is not in 1..=9216"),
    ("[switch.vale0.port.n]\nkind = 'foo'", "foo is none of ring, null, tap"),
    ("[switch.vale0.port.n]\nmirror_ingress = 'gone'", "vale0:gone, which does not exist"),
    ("[switch.vale0", "line 1: "),
    ("switch = []", "line 1: "),
    ("[guest.web]\napp = 'httpd'", "guest.web: port is missing"),
    ("[gest.web]\napp = 'httpd'", "gest: there is no such table. Did you mean guest?"),
];

/// Names of all files below the daemon's directory.
fn files(daemon: &Daemon) -> BTreeSet<String> {
    let entries = std::fs::read_dir(daemon.dir()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn wrong_inputs_are_answered_with_what_to_do_and_change_nothing() {
    let daemon = Daemon::start();
    daemon.apply(NET);
    let (topology, there) = (daemon.get("/v1/topology"), files(&daemon));
    let mut faults = Vec::new();
    for (command, code, words) in WRONG {
        let args: Vec<&str> = command.split_whitespace().collect();
        let (ended, _, said) = daemon.run(&args);
        let lines = said.lines().filter(|line| !line.trim().is_empty()).count();
        let mut fault = |what: &str| faults.push(format!("{command}: {what}: {ended:?} {said}"));
        if ended != Some(*code) {
            fault(&format!("not {code}"));
        }
        if !said.contains(words) {
            fault(&format!("no {words:?}"));
        }
        if !(1..=2).contains(&lines) {
            fault("many words");
        }
        if daemon.get("/v1/topology") != topology {
            fault("it changed something");
        }
        if files(&daemon) != there {
            fault("it left something behind");
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(WRONG.len() >= 60, "{}", WRONG.len());
}

/// Objective: a mistake in a topology file is named with its place, in one line, and changes
/// nothing.
#[test]
fn wrong_files_are_answered_with_the_place_and_what_there_is() {
    let daemon = Daemon::start();
    daemon.apply(NET);
    let topology = daemon.get("/v1/topology");
    let file = daemon.dir().join("wrong.toml");
    for (net, words) in WRONG_FILES {
        std::fs::write(&file, net).unwrap();
        for options in [&["apply"][..], &["apply", "--dry-run"], &["apply", "--check"]] {
            let (code, _, said) = daemon.run(&[options, &[file.to_str().unwrap()]].concat());
            assert_eq!(code, Some(1), "{net}: {said}");
            assert!(said.contains(words) && said.lines().count() == 1, "{net}: {said}");
            assert!(said.contains("wrong.toml: ") && said.contains("; "), "{net}: {said}");
        }
        assert_eq!(daemon.get("/v1/topology"), topology, "{net}");
    }
}

/// Requests that a daemon of an ordinary user cannot carry out, with words of the answer.
const UNPRIVILEGED: &[(&str, &str)] = &[
    ("port add vale0:up --interface lo", "CAP_NET_RAW"),
    ("port add vale0:up --interface no0", "There is no interface no0; see `ip link`"),
    ("port add vale0:n --tap", "CAP_NET_ADMIN"),
    ("port add vale0:n --tap --netns /proc/1/ns/net", "CAP_SYS_ADMIN"),
    ("port add vale0:n --pcap-write /proc/x.pcap", "/proc/x.pcap"),
    ("port add vale0:n --vhost-user /proc/n.sock", "/proc/n.sock"),
];

/// Objective: what needs a privilege that the daemon lacks is refused in one line with the remedy,
/// and leaves nothing behind.
#[test]
fn what_needs_a_privilege_says_which() {
    if !may_be_others("what_needs_a_privilege_says_which") {
        return;
    }
    let daemon = Daemon::start_as(4001, &[]);
    daemon.apply("[switch.vale0]");
    let there = files(&daemon);
    for (command, words) in UNPRIVILEGED {
        let args: Vec<&str> = command.split_whitespace().collect();
        let (code, _, said) = daemon.run(&args);
        assert_eq!(code, Some(1), "{command}: {said}");
        assert!(said.contains(words) && said.contains("; "), "{command}: {said}");
        assert_eq!(said.lines().count(), 1, "{command}: {said}");
        assert_eq!((daemon.ports("vale0"), files(&daemon)), (vec![], there.clone()), "{command}");
    }
}

/// Objective: a user without access to the sockets is told so, and not that there is no daemon.
#[test]
fn a_user_without_permission_is_told_so() {
    if !may_be_others("a_user_without_permission_is_told_so") {
        return;
    }
    let daemon = Daemon::start();
    std::fs::set_permissions(daemon.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = daemon.open_as(4001, "vale0:a").unwrap_err().to_string();
    assert!(refused.contains("Not allowed to use"), "{refused}");
}
