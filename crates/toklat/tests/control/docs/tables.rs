//! What is done with each command of the documents, in their order.
//!
//! A document without commands has an empty table. `docs/atomics.md` and `docs/registers.md` are
//! made by `cargo xtask`, from the sources.

use super::step::Place::{Directory, Network};
use super::step::{
    Step, cannot, daemon, ends, file, goes_on, interrupt, meanwhile, not, place, shows, terminal,
    test,
};

/// The documents, and their tables.
pub const DOCUMENTS: &[(&str, &[Step])] = &[
    ("README.md", README),
    ("examples/README.md", EXAMPLES),
    ("docs/adding-a-nic.md", ADDING_A_NIC),
    ("docs/adding-a-port-kind.md", &[]),
    ("docs/adding-a-rule.md", ADDING_A_RULE),
    ("docs/api.md", API),
    ("docs/atomics.md", &[]),
    ("docs/cards.md", CARDS),
    ("docs/confined-guests.md", CONFINED_GUESTS),
    ("docs/containers.md", CONTAINERS),
    ("docs/day-two.md", DAY_TWO),
    ("docs/guests.md", GUESTS),
    ("docs/links.md", LINKS),
    ("docs/many-hosts.md", super::hosts::MANY_HOSTS),
    ("docs/monitoring.md", MONITORING),
    ("docs/netmap.md", NETMAP),
    ("docs/ownership.md", &[]),
    ("docs/performance.md", &[]),
    ("docs/programs.md", PROGRAMS),
    ("docs/recovery.md", &[]),
    ("docs/registers.md", &[]),
    ("docs/rules.md", RULES),
    ("docs/sim.md", SIM),
    ("docs/trusted.md", TRUSTED),
    ("docs/virtual-machines.md", super::machines::VIRTUAL_MACHINES),
];

const FENCED: &str = "groups_fence_ports_and_are_shown_counted_and_changed";
const TAKEN: &str = "every_recipe_of_the_page_is_taken";
const RULES: &[Step] = &[
    test("toklat fw set web 'allow tcp from any to me 80,443' 'allow icmp from any to me'", FENCED),
    test("toklat port set vale0:web --groups web", FENCED),
    test("toklat fw show vale0", FENCED),
    test("toklat fw connections vale0", FENCED),
    test(
        "toklat why vale0:desk vale0:web tcp 10.0.0.1:4000 10.0.0.2:22",
        "log_writes_what_a_rule_denies_and_why_names_the_rule",
    ),
    not("[LABEL:] ACTION", "what a rule may say"),
    test("[group.admin]", TAKEN).whole(),
    test("[group.blue]", TAKEN).whole(),
    test("[group.kiosk]", TAKEN).whole(),
    test("[table.management]", TAKEN).whole(),
    test("[table.blocked]", TAKEN).whole(),
    test("[group.bastion]", TAKEN).whole(),
    test("toklat fw load FILE --ipfw --group NAME", "a_file_of_ipfw_is_loaded"),
];

/// A benchmark measures for minutes. One of its rows shows that it does.
const README: &[Step] = &[
    place(Directory, "touch debian.qcow2"),
    test("cargo run --release -- demo", "the_demo_loses_nothing_and_cleans_up").whole(),
    daemon("toklat daemon"),
    ends("toklat switch add vale0"),
    // What `vm_uplink` runs is only planned here, with an image that has nothing in it.
    shows("toklat vm run --switch vale0 --image debian.qcow2 --uplink", "vhost-user")
        .with(&[("--uplink", "--uplink --print")])
        .needs(&["qemu-system-x86_64"]),
    goes_on("toklat sink vale0:b --check", "toklat port show vale0:b"),
    goes_on("toklat gen  vale0:a", "toklat stats vale0:a | grep -q '^frames  *[1-9]'"),
    test("toklat uplink vale0 -p 8080:80", "guests_get_addresses_and_a_way_out_by_one_command"),
    ends("toklat port add vale0:web --lossless"),
    ends("toklat port set vale0:web --rx-limit"),
    ends("toklat port set vale0:web --rx-link"),
    goes_on("toklat stats vale0 --watch", "[ -s $OUT ]"),
    terminal("toklat top", "vale0:web"),
    goes_on("toklat ping vale0:x vale0:y", "toklat stats vale0:x | grep -q '^frames  *[1-9]'"),
    shows("toklat why vale0:x vale0:y", "passes"),
    goes_on("toklat cap vale0:a -w - | wireshark", "[ -s $OUT ]")
        .with(&[("wireshark -k -i -", "cat")]),
    ends("toklat port show vale0:web"),
    shows("toklat apply --dry-run docs/examples/net.toml", "vale0"),
    // What had arrived is counted as it goes on. The file closes the programs' ports.
    meanwhile("until toklat stats vale0:b | grep '^frames .* [1-9][0-9]*$'; do :; done"),
    interrupt(),
    ends("toklat apply docs/examples/net.toml"),
    not("let mut port", "Rust"),
    shows("toklat bench switch", "Mpps")
        .with(&[("toklat bench switch", "toklat bench switch --row switch.inline.64 --quick")]),
    test("toklat bench vm", "nothing_is_left_of_a_killed_benchmark"),
    shows("toklat bench nic", "ns/frame")
        .with(&[("toklat bench nic", "toklat bench nic --row nic.model.64.tx.82574l --quick")]),
];

const SIM: &[Step] = &[
    place(Directory, ""),
    shows("toklat sim docs/examples/sim.toml --seed 7 --until 5s", "hash"),
    shows("toklat sim docs/examples/sim.toml --seed 7 --until 200ms --trace", "TCP"),
    ends("toklat sim docs/examples/sim.toml --seed 7 --until 200ms --pcap sim.pcapng"),
    not("sim::sweep(1..10_000", "Rust"),
    ends("toklat sim docs/examples/sim.toml --seed 7 --until 5s > before"),
    ends("sed 's/loss=1%/loss=5%/'"),
    ends("toklat sim changed.toml --seed 7 --until 5s > after"),
    shows("diff before after; true", "seed 7"),
];

const EXAMPLES: &[Step] = &[
    place(Directory, ""),
    daemon("cargo run --release -- daemon"),
    goes_on("cargo run --release --bin sink vale0:sink", "toklat port show vale0:sink")
        .with(&[("cargo run --release --bin ", "$TARGET/")]),
    goes_on(
        "toklat gen vale0:gen --dst broadcast",
        "toklat stats vale0:sink | grep -q '^frames .* [1-9][0-9]*$'",
    ),
    interrupt(),
    goes_on(
        "cargo run --release --bin bridge",
        "toklat port show vale0:left && toklat port show vale1:right",
    )
    .with(&[("cargo run --release --bin ", "$TARGET/")]),
    shows("cargo run --release --bin inline", "1000000 frames")
        .with(&[("cargo run --release --bin ", "$TARGET/")]),
    shows("cargo run --release --bin ports", "vale0:left is ring")
        .with(&[("cargo run --release --bin ", "$TARGET/")]),
    cannot("cargo xtask test", "it runs this test"),
];

const ADDING_A_RULE: &[Step] = &[not("--- crates/fabric/src/rules.rs", "a change")];

const ADDING_A_NIC: &[Step] = &[not("bus (vfio-user)", "a drawing")];

const API: &[Step] = &[
    place(Directory, ""),
    ends("export TOKLAT_DIR="),
    shows("api http://localhost/v1/status", "\"version\""),
    shows("api \"http://localhost/v1/events?since=0\"", "\"next\""),
    shows("api -X POST http://localhost/v1/switches", "\"vacant\""),
    ends("api -X PUT http://localhost/v1/guests/site"),
    shows("api -X PUT \"http://localhost/v1/topology?file=mine&dry_run=true\"", "vale7:db"),
    shows("tag=$(api -D -", "\"changes\""),
    ends("api -X PATCH http://localhost/v1/quotas"),
    not("{\"type\": \"about:blank\"", "an answer"),
    ends("api -X DELETE http://localhost/v1/switches/vale7"),
];

/// The test that runs the packaged service under systemd.
const SERVICE: &str = "parts_of_the_service_allow_under_systemd_what_its_unit_refuses";

const CARDS: &[Step] = &[
    place(Network, "ip link add eth0 type veth peer name wire && ip link set wire up"),
    ends("toklat switch add vale0"),
    ends("toklat port add vale0:up --interface eth0"),
    ends("ip addr flush dev eth0"),
    ends("ip link set eth0 up"),
    meanwhile("until toklat port show vale0:up | grep 'vale0:up .*attached'; do :; done"),
    test("toklat service enable interfaces --restart", SERVICE),
    place(Network, "ip link add eth0 type veth peer name wire; toklat switch add vale0"),
    ends("toklat port add vale0:up --interface eth0"),
    ends("toklat port add vale0:host --host eth0").needs(&["CAP_BPF"]),
    test("toklat port add vale0:up --card", "a_port_s_card_is_driven_in_a_process_that_may_die"),
    cannot("modprobe vfio-pci", "it takes a card of this machine from its driver"),
    cannot("cd /sys/bus/pci/devices/", "as the line before"),
    cannot("echo vfio-pci >driver_override", "as the line before"),
    cannot("echo 0000:03:00.0 >driver/unbind", "as the line before"),
    cannot("echo 0000:03:00.0 >/sys/bus/pci/drivers_probe", "as the line before"),
];

/// What arrives in a second or two is enough to see it.
const DAY_TWO: &[Step] = &[
    place(
        Directory,
        "toklat switch add vale0 && toklat port add vale0:app && toklat port add vale0:spy && \
         toklat port add vale0:db --rx-limit 1kpps && export HOME=$PWD",
    ),
    goes_on("toklat sink vale0:db --duration 3s", "toklat port show vale0:db | grep attached")
        .with(&[("--duration 3s", "")]),
    ends("toklat gen vale0:app --rate 20kpps").with(&[("--duration 2s", "--count 2k")]),
    shows("toklat doctor", "vale0:db has lost"),
    shows("toklat stats vale0:db", "rate_limit"),
    interrupt(),
    ends("toklat port set vale0:db --rx-limit 10Mbit"),
    goes_on("toklat sink vale0:db --duration 2s", "toklat port show vale0:db | grep attached")
        .with(&[("--duration 2s", "")]),
    shows("toklat gen vale0:app --size 1000", "Mb/s").with(&[("--duration 3s", "--duration 1s")]),
    interrupt(),
    ends("toklat port set vale0:db --rx-limit off"),
    shows("toklat ping vale0:app vale0:db", "50").with(&[("--count 400", "--count 100")]),
    ends("toklat port set vale0:db --rx-impair off"),
    ends("toklat port set vale0:db --mirror-in spy"),
    ends("toklat port set vale0:db --mirror-in none"),
    ends("mkdir -p ~/.local/lib/wireshark"),
    shows("toklat extcap --extcap-interfaces", "vale0:db"),
    shows("toklat upgrade", "ms"),
    shows("toklat status", "runs as process"),
    ends("toklat export > backup.toml"),
    ends("toklat switch rm vale0"),
    shows("toklat apply --dry-run backup.toml", "vale0:db"),
    ends("toklat apply backup.toml"),
    test("toklat stop", "the_debian_package_installs_serves_and_goes"),
    test("apt remove --purge toklat", "the_debian_package_installs_serves_and_goes"),
    shows("toklat logs -n 20", "command"),
    shows("toklat events", "switch rm vale0"),
    meanwhile(
        "toklat sink vale0:app --quiet >sink 2>&1 & \
         toklat sink vale0:db --mac 02:00:00:00:00:07 --quiet >sink 2>&1 & \
         until toklat port show | grep -c attached | grep 2; do :; done",
    ),
    ends("toklat port set vale0:db --vlan-access 10"),
    shows("toklat why vale0:app vale0:db icmp 10.0.0.1 10.0.0.2 ||", "STOPS"),
    ends("toklat port set vale0:db --vlan-unaware"),
    shows("toklat why vale0:app vale0:db icmp 10.0.0.1 10.0.0.2", "passes"),
];

const CONFINED_GUESTS: &[Step] = &[
    place(Directory, "toklat switch add vale0 && cp $TARGET/examples/dns . && mkdir www"),
    ends("toklat guest run -d httpd vale0:web"),
    shows("toklat guest run load vale0:load", "\"answers\":"),
    shows("toklat guest show web", "running"),
    ends("toklat guest stop web"),
    not("use guest::apps::site::Site;", "Rust"),
    not("fn main()", "Rust"),
    cannot("cargo build --release -p toklat-guest --examples", "the tests' build has made them"),
    goes_on(
        "toklat guest run target/release/examples/dns",
        "toklat guest show dns | grep -q running",
    )
    .with(&[("target/release/examples", "$PLACE")]),
    file("[guest.web]", "net.toml"),
    file("[guest.cache]", "net.toml"),
    // The program that the section before has the reader write.
    meanwhile("sed -i 's,/usr/local/bin/web,httpd,; s,^args.*,,; s,^require_walls.*,,' net.toml"),
    shows("toklat apply --dry-run net.toml", "web"),
    ends("toklat apply net.toml"),
    meanwhile("until toklat guest show cache-99 | grep running; do :; done"),
    not("web: tried a forbidden system call", "a line of a log"),
    not("web: needed more than its", "a line of a log"),
];

const CONTAINERS: &[Step] = &[
    place(Network, "mkdir cni && toklat switch add vale0"),
    ends("ln -s /usr/bin/toklat /opt/cni/bin/toklat-cni")
        .with(&[("/usr/bin/toklat", "$PLACE/bin/toklat"), ("/opt/cni/bin", "cni")]),
    test("toklat service enable containers --restart", SERVICE),
    file("{", "20-toklat.conflist"),
    ends("ip netns add pod1"),
    test("CNI_PATH=/usr/lib/cni cnitool add vale0", "cnitool_drives_it"),
    shows("ip -n pod1 addr", "lo:"),
    ends("toklat port show vale0"),
    test("CNI_PATH=/usr/lib/cni cnitool del vale0", "cnitool_drives_it"),
];

const EXAMPLE: &[(&str, &str)] =
    &[("cargo run --release -p toklat-guest --example ", "$TARGET/examples/")];
const CARD: &[(&str, &str)] = &[EXAMPLE[0], ("SOCKET", "$TOKLAT_DIR/vale0-web.sock")];

const CALLS: &[(&str, &str)] = &[EXAMPLE[0], (" 100000 ", " 1000 ")];

const GUESTS: &[Step] = &[
    place(Directory, ""),
    daemon("toklat daemon &"),
    ends("toklat switch add vale0"),
    goes_on("cargo run --release -p toklat-guest --example httpd", "grep http://10.0.0.2 $OUT")
        .with(EXAMPLE),
    interrupt(),
    goes_on("cargo run --release -p toklat-guest --example httpd", "grep http://.fd00::2 $OUT")
        .with(EXAMPLE),
    place(Directory, "toklat switch add vale0"),
    ends("toklat port add vale0:web --nic 82574l"),
    goes_on(
        "cargo run --release -p toklat-guest --example any-nic card",
        "grep http://10.0.0.2 $OUT",
    )
    .with(CARD),
    place(Directory, "toklat switch add vale0"),
    goes_on(
        "cargo run --release -p toklat-guest --example hyper-httpd",
        "grep http://10.0.0.2 $OUT",
    )
    .with(EXAMPLE),
    interrupt(),
    goes_on("cargo run --release -p toklat-guest --example rpc-server", "[ -s $OUT ]")
        .with(EXAMPLE),
    // Each call wakes both programs: fewer of them do on a busy machine.
    shows("cargo run --release -p toklat-guest --example rpc-load", "1000 replies").with(CALLS),
    shows("toklat bench guest --list", "guest.rpc.rtt"),
    shows("toklat bench guest --row guest.rpc", "guest.rpc.rate")
        .with(&[("guest.rpc", "guest.rpc.rate --quick")]),
    // Without stamps, which are another build, the rows are sums, and there are no stages to draw.
    ends("cargo run --release --features stamps -- bench guest --row guest.dispatch").with(&[
        ("cargo run --release --features stamps --", "toklat"),
        ("guest.dispatch --svg dispatch.svg", "guest.dispatch.ring.100 --quick"),
    ]),
];

const LINKS: &[Step] = &[
    place(Directory, ""),
    ends("toklat switch add vale0"),
    ends("toklat port add vale0:web"),
    ends("toklat port set vale0:web --tx-link rate=10Mb/s"),
    shows("toklat link show vale0:web", "aqm=fq_codel"),
    ends("toklat port set vale0:web --tx-link off --rx-link lte"),
    file("[link.office]", "office.toml"),
    ends("toklat apply office.toml"),
    shows("toklat port show vale0:web", "tx-link office"),
    ends("toklat switch set vale0 --max-link-memory"),
    ends("toklat port set vale0:web --tx-link off --rx-link rate=10Gb/s"),
];

const MONITORING: &[Step] = &[
    place(Directory, "toklat switch add vale0"),
    not("scrape_configs:", "Prometheus's settings"),
    ends("toklat switch set vale0 --sflow 192.0.2.1"),
];

const PKT_GEN: &str =
    "netmap's own programs are in no package; ours in `tests/netmap` make the same calls";

const NETMAP: &[Step] = &[
    place(Directory, ""),
    daemon("toklat daemon"),
    cannot("toklat run -- pkt-gen -i vale0:1 -f rx", PKT_GEN),
    cannot("toklat run -- pkt-gen -i vale0:2 -f tx", PKT_GEN),
    cannot("toklat run -- pkt-gen -i netmap:eth0 -f rx", PKT_GEN),
    cannot("toklat run -- bridge -i netmap:eth0 -i netmap:eth0^", PKT_GEN),
    cannot("toklat run -- pkt-gen -i netmap:card03.00.0 -f rx", PKT_GEN),
    cannot("vale-ctl -a vale0:eth0", PKT_GEN),
    cannot("vale-ctl -h vale0:eth0", PKT_GEN),
];

const PROGRAMS: &[Step] = &[
    place(Network, "export PYTHONUNBUFFERED=1 TOKLAT_PRELOAD=$TARGET/libtoklat_preload.so"),
    test("cargo xtask capi --prefix /usr/local", "pkg_config_names_version_and_place"),
    test("cc -o echo examples/c/echo.c", "the_echo_outlives_a_killed_data_process"),
    test("cc -o generator examples/c/generator.c", "the_echo_outlives_a_killed_data_process"),
    daemon("toklat daemon &"),
    test("./echo vale0:echo &", "the_echo_outlives_a_killed_data_process"),
    test("./generator vale0:generator 1000", "the_echo_outlives_a_killed_data_process"),
    not("toklat_flush(port);", "C"),
    test("pip install ./python", "the_python_package_installs_and_passes_its_tests"),
    test("python python/examples/echo.py", "the_python_package_installs_and_passes_its_tests"),
    test("python python/examples/generator.py", "the_python_package_installs_and_passes_its_tests"),
    not("import numpy as np, toklat", "Python"),
    not("with toklat.Port(\"vale0:p1\") as port:", "Python"),
    // A neighbour that answers, and frames for all.
    meanwhile("toklat switch add vale0 && toklat guest run -d httpd vale0:web 10.0.0.2/24"),
    meanwhile("toklat gen vale0:gen --dst broadcast --rate 100 >/dev/null 2>&1 &"),
    goes_on("toklat run -- tcpdump -i vale0:dump", "[ $(wc -l <$OUT) -gt 2 ]").needs(&["tcpdump"]),
    interrupt(),
    goes_on("toklat run -- dumpcap -i vale0:dump -w file.pcapng", "[ -s file.pcapng ]")
        .needs(&["dumpcap"]),
    interrupt(),
    goes_on("toklat run -- arping -i vale0.me", "grep 'bytes from' $OUT").needs(&["arping"]),
    interrupt(),
    meanwhile("toklat cap vale0:gen -n 10 -w file.pcap"),
    shows("toklat run -- tcpreplay -i vale0.me file.pcap", "Successful packets:")
        .needs(&["tcpreplay"]),
    shows("toklat run --port vale0:me=10.0.0.9/24 -- nmap", "80/tcp open").needs(&["nmap"]),
    goes_on("toklat run -- python3 -c 'from scapy.all import *", "grep Ether $OUT")
        .with(&[("python3", "/usr/bin/python3")])
        .needs(&["/usr/bin/scapy"]),
    interrupt(),
    goes_on("toklat run --netns --port vale0:me=10.0.0.9/24 -- ping", "grep 'bytes from' $OUT")
        .needs(&["ping"]),
];

const TRUSTED: &[Step] = &[
    place(Directory, ""),
    ends("toklat switch add vale9 --trusted --user alice").with(&[("alice", "$(id -un)")]),
    not("region (memory file", "a drawing"),
];
