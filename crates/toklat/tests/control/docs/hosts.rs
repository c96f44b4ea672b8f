//! The commands of the document on many hosts.

use super::step::Place::{Directory, Network};
use super::step::{Step, cannot, ends, file, meanwhile, not, place, shows, test};

/// A host with the address 10.99.0.1 between the hosts; likewise others.
const HOST_1: Step = place(
    Network,
    "ip link add under type veth peer name wire && ip addr add 10.99.0.1/24 dev under && ip link set under up",
);
const HOST_2: Step = place(
    Network,
    "ip link add under type veth peer name wire && ip addr add 10.99.0.2/24 dev under && ip link set under up",
);

const PROXMOX: &str = "it is a command of Proxmox";

pub const MANY_HOSTS: &[Step] = &[
    HOST_1,
    ends("toklat switch add vale0"),
    ends("toklat port add vale0:fabric --vxlan 100 --local 10.99.0.1"),
    ends("toklat port add vale0:vm1 --vhost-user"),
    HOST_2,
    ends("toklat switch add vale0"),
    ends("toklat port add vale0:fabric --vxlan 100 --local 10.99.0.2"),
    ends("toklat port add vale0:vm2 --vhost-user"),
    HOST_1,
    file("[switch.vale0.port.fabric]", "net.toml"),
    meanwhile("toklat apply net.toml"),
    HOST_1,
    meanwhile("toklat switch add vale0"),
    ends("toklat port add vale0:fabric --vxlan --vxlan-vlan 10=10010"),
    ends("toklat port add vale0:vm1 --vhost-user --vlan-access 10"),
    HOST_1,
    file("[switch.vale0.port.fabric]", "net.toml"),
    meanwhile("toklat apply net.toml"),
    cannot(
        "go install github.com/osrg/gobgp",
        "it needs the internet; `cargo xtask setup` does it",
    ),
    HOST_2,
    file("[evpn]", "net.toml"),
    file("[switch.vale0.port.fabric]", "net.toml"),
    meanwhile("toklat apply --dry-run net.toml"),
    not("[global.config]", "settings of GoBGP, as those of the tests of EVPN"),
    HOST_2,
    file("[evpn]", "net.toml"),
    file("[switch.vale0.port.fabric]", "net.toml"),
    meanwhile("toklat apply --dry-run net.toml"),
    // The host of FRR, and then one with nothing of toklat's.
    place(
        Network,
        "ip link add under type veth peer name wire && ip addr add 10.99.0.3/24 dev under",
    ),
    ends("ip link add br100 type bridge"),
    ends("ip link add vx100 type vxlan id 100 local 10.99.0.3"),
    ends("ip link set vx100 master br100"),
    ends("ip link set vx100 type bridge_slave neigh_suppress on learning off"),
    ends("ip link set br100 up; ip link set vx100 up"),
    not("router bgp 65000", "settings of FRR, as those of the tests of EVPN"),
    cannot("pvesh create /cluster/sdn/controllers", PROXMOX),
    cannot("pvesh create /cluster/sdn/zones", PROXMOX),
    cannot("pvesh create /cluster/sdn/vnets", PROXMOX),
    cannot("pvesh set /cluster/sdn", PROXMOX),
    place(Directory, "toklat switch add vale0"),
    ends("toklat port add vale0:vm1 --vhost-user"),
    test(
        "qemu-system-x86_64 ... -incoming",
        "a_guest_that_moves_to_another_host_keeps_its_connection",
    ),
    test("(qemu) migrate -d", "a_guest_that_moves_to_another_host_keeps_its_connection"),
    HOST_2,
    ends("ip link add br100 type bridge"),
    ends("ip link add vx100 type vxlan id 100 local 10.99.0.2"),
    ends("bridge fdb append 00:00:00:00:00:00 dev vx100"),
    ends("ip link set vx100 master br100"),
    ends("ip link set br100 up; ip link set vx100 up"),
    not("[Interface]", "settings of WireGuard"),
    shows("toklat bench hosts --list", "hosts.vxlan.cpu.64"),
    ends("TOKLAT_GOBGPD=/usr/local/bin/gobgpd toklat bench hosts --row hosts.vxlan")
        .with(&[("--row hosts.vxlan", "--row hosts.vxlan.cpu.64 --quick")]),
];
