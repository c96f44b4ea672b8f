//! The commands of the document on virtual machines.

use super::step::Place::{Directory, Network};
use super::step::{Step, cannot, ends, goes_on, interrupt, not, place, test};

/// The tests that run the lines for QEMU as they stand.
const TWO_MACHINES: &str = "three_commands_lead_from_the_package_to_two_machines";
const QEMU: &str = "the_documents_lines_for_qemu_run_as_they_stand";
const MOVES: &str = "a_guest_pings_on_while_it_moves";
const INCUS: &str = "it is a command of Incus";

pub const VIRTUAL_MACHINES: &[Step] = &[
    place(Directory, "touch debian.qcow2 old-debian.qcow2"),
    test("toklat switch add vale0", TWO_MACHINES),
    test("toklat vm run --switch vale0 --image one.qcow2", TWO_MACHINES),
    test("toklat vm run --switch vale0 --image two.qcow2", TWO_MACHINES),
    test("toklat vm run --switch vale0 --image debian.qcow2", "queues_of_all_kinds_meet"),
    test("toklat port add vale0:vm1 --vhost-user", QEMU),
    test("qemu-system-x86_64 ... \\", QEMU),
    test("umask 0002", QEMU),
    test("qemu-system-x86_64 ... -chardev socket,id=vm1", QEMU),
    test("toklat port add vale0:vm1 --vhost-user /run/toklat/peers/vm1.sock --client", QEMU),
    test("toklat port add vale0:vm2 --stream", QEMU),
    test("qemu-system-x86_64 ... -netdev stream", QEMU),
    test(
        "toklat vm run --switch vale0 --image old-debian.qcow2 --nic",
        "drivers_of_every_guest_reach_the_switch",
    ),
    test("toklat port add vale0:vm1 --nic 82574l", QEMU),
    test("qemu-system-x86_64 ... \\", QEMU),
    not("<metadata>", "a part of docs/examples/libvirt-domain.xml"),
    not("<qemu:override", "a part of a domain of libvirt"),
    place(Network, "toklat switch add vale0"),
    ends("toklat port add vale0:web1 --vhost-user --guard"),
    ends("toklat port add vale0:vm1 --vhost-user"),
    cannot("cloud-hypervisor ...", "Cloud Hypervisor is not packaged, and there is no KVM"),
    place(Network, "toklat switch add vale0"),
    ends("toklat port add vale0:vm1 --tap tapvm1"),
    ends("ip link set tapvm1 up"),
    not("\"network-interfaces\":", "Firecracker's settings"),
    ends("ip tuntap add tap-firecracker mode tap").with(&[("$USER", "$(id -un)")]),
    ends("ip link add br-vm1 type bridge"),
    ends("ip link set tapvm1 master br-vm1"),
    ends("ip link set tap-firecracker master br-vm1 up"),
    ends("ip link set br-vm1 up"),
    ends("toklat port add vale0:incus --tap tincus"),
    ends("ip link add br-vale0 type bridge"),
    ends("ip link set tincus master br-vale0 up"),
    cannot("incus config device add INSTANCE eth0", INCUS),
    ends("toklat port add vale0:c1 --tap tc1 --guard --mac"),
    cannot("incus config device add c1 eth0", INCUS),
    ends("toklat port add vale0:host --tap"),
    ends("ip addr add 10.0.0.254/24 dev host"),
    goes_on("toklat uplink vale0 -p 8080:80", "toklat port show vale0:uplink").needs(&["passt"]),
    interrupt(),
    test("passt --foreground --socket", "a_guest_reaches_the_world_through_passt_which_may_die"),
    ends("toklat port add vale0:up --stream /run/toklat/peers/up.sock --client"),
    place(Directory, "toklat switch add vale0"),
    ends("toklat port add vale0:vm1 --vhost-user"),
    ends("toklat port add vale0:vm1-new --vhost-user"),
    test("qemu-system-x86_64 ... -incoming", MOVES),
    test("(qemu) migrate -d unix:/tmp/migrate.sock", MOVES),
    test("toklat vm run --switch vale0 --test-guest --address 10.0.0.1/24", TWO_MACHINES),
    test("toklat vm run --switch vale0 --test-guest --address 10.0.0.2/24", TWO_MACHINES),
    test(
        "toklat vm run --switch vale0 --nic 82574l --csb --test-guest",
        "our_driver_of_the_82574l_passes_frames_and_leaves_doorbells_out",
    ),
    test(
        "TOKLAT_GUEST=target/guest/dpdk toklat vm run",
        "dpdk_s_driver_passes_frames_both_ways_with_checksums_on",
    ),
    test("testpmd -i -a", "dpdk_s_driver_passes_frames_both_ways_with_checksums_on"),
    test(
        "toklat vm run --switch vale0 --nic e1000 --test-guest",
        "our_drivers_drive_cards_of_the_machine_by_vfio",
    ),
];
