//! A port whose card toklat's own driver drives (`port add --card`), and netmap programs that drive
//! a card (`netmap:card0`), in a virtual machine with an IOMMU: the cards are QEMU's own, which
//! know nothing of our models, and one of ours; the kernel's IOMMU driver and VFIO are real.
//!
//! The daemon runs in the guest. The test sends requests to the card's cable, and a program at
//! another port of the guest's switch answers them: through the card, the process that drives it,
//! and the switch, and back. The test compares replies byte by byte.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use frame::Mac;
use netring::{Interest, Port};

use harness::Daemon;
use harness::frames::send;
use harness::guests::{Guest, PATIENCE, can_emulate};
use harness::inside::{PROGRAM, guest_with_program};

/// The card's own address, that of the program that answers, and the test's.
const CARD: Mac = Mac::local(1);
const ANSWERS: Mac = Mac::local(3);
const ASKS: Mac = Mac::local(2);
/// Bytes of frames, and how many of each are sent.
const SIZES: [usize; 3] = [60, 777, 1514];
const FRAMES: u64 = 50;
/// Frames of a flood: more than a card's ring has slots, and fewer than the test's port has.
const FLOOD: u32 = 600;

/// What all guests run first: a daemon with a port for the card, when its driver in the kernel has
/// it and when that has given it up.
const BEGIN: &str = r#"#!/bin/sh
t() { PROGRAM --dir /run/t "$@"; }
until_() { n=0; until "$@"; do n=$((n + 1)); [ $n -lt 600 ] || { echo "said: never: $*"; cat /tmp/log; exit 1; }; sleep 0.1; done; }
begin() { PROGRAM --dir /run/t daemon >>/tmp/log 2>&1 & d=$!; until_ t status >/tmp/status 2>&1; }
info() { t --json port show vale0:up | tr -d "\\n" | sed 's/": /":/g'; }
is() { info | grep -q "\"state\":\"$1\""; }
# The process of the port's card, and the command register of the card: bit 2 is bus master.
driver() { ps | sed -n "s/^ *\([0-9]*\) .*[c]ard-process.*$card.*/\1/p" | grep .; }
command() { dd if=$device/config bs=1 skip=4 count=1 2>/dev/null | od -An -tu1; }
masters() { echo $(($(command) >> 2 & 1)); }
dead() { grep -q "^State:.Z" /proc/$1/status; }
card=$(basename $(readlink /sys/class/net/eth0/device))
device=/sys/bus/pci/devices/$card
mkdir -p /run/t
begin
until_ t switch add vale0
until_ t port add vale0:b
echo "said: $(t port add vale0:up --card $card 2>&1)"
echo PAGES >/proc/sys/vm/nr_hugepages
vfio eth0 >/tmp/vfio
t port add vale0:up --card $card || exit 1
t ping --server vale0:b >/tmp/ping 2>&1 &
until_ t --json port show vale0:b >/tmp/b
t cap --rx vale0:b >/tmp/cap 2>&1 &
until_ is attached
works() { info | grep -q "\"carrier\":true"; }
until_ works
echo "said: $(info)"
# The test has its replies: it says so by a frame of this station.
told() { until_ grep -q "02:00:00:00:01:0$1" /tmp/cap; }
"#;

/// Kills the process of the card while the daemon cannot see it; takes the card away before a new
/// one can start, and gives it back.
const KILL: &str = r#"
told 1
echo "said: $(t gen vale0:up -n 1 2>&1)"
old=$(driver)
before=$(masters)
kill -STOP $d
kill -9 $old
until_ dead $old
echo "said: masters $before and $(masters)"
echo $card >/sys/bus/pci/drivers/vfio-pci/unbind
kill -CONT $d
until_ is waiting
echo "said: $(info)"
echo $card >/sys/bus/pci/drivers_probe
until_ is attached
[ "$(driver)" != $old ] || exit 1
echo "said: again"
"#;

/// Kills the daemon, whose successor finds the port at work; and removes the port.
const SUCCEED: &str = r#"
told 2
old=$(driver)
kill -9 $d
wait $d
begin
until_ is attached
[ "$(driver)" = $old ] || { echo "said: another process"; exit 1; }
echo "said: again"
"#;

/// Has the card carry long frames, after it has refused those that are too long for it.
const LENGTHEN: &str = r#"
told 4
echo "said: $(t port set vale0:up --mtu 9001 2>&1)"
t port set vale0:b --mtu 9000 || exit 1
t port set vale0:up --mtu 9000 2>/tmp/refused
long() { info | grep -q "\"mtu\":9000"; }
[ -s /tmp/refused ] || until_ long
until_ is attached
echo "said: again"
"#;

const END: &str = r#"
told 3
t port rm vale0:up || exit 1
gone() { ! driver >/dev/null; }
until_ gone
echo "said: masters $(masters)"
echo "faults: $(dmesg | grep -cE 'DMAR:.*(DMA|INTR)[^.]*fault')"
exit 0
"#;

/// Programs that open the card by netmap's interface. Before vfio-pci has it, there is none. The
/// second one is killed, the third one's child drives the card, the fourth one floods.
const NETMAP: &str = r#"#!/bin/sh
t() { PROGRAM --dir /run/t "$@"; }
until_() { n=0; until "$@"; do n=$((n + 1)); [ $n -lt 600 ] || { echo "said: never: $*"; cat /tmp/*log; exit 1; }; sleep 0.1; done; }
card=$(basename $(readlink /sys/class/net/eth0/device))
device=/sys/bus/pci/devices/$card
command() { dd if=$device/config bs=1 skip=4 count=1 2>/dev/null | od -An -tu1; }
masters() { echo $(($(command) >> 2 & 1)); }
free() { [ $(masters) = 0 ]; }
mkdir -p /run/t
PROGRAM --dir /run/t daemon >/tmp/log 2>&1 & d=$!
until_ t status >/tmp/status 2>&1
echo "said: $(t run -- /host/answer card0 2>&1)"
vfio eth0 >/tmp/vfio
t run -- /host/answer card0 >/tmp/answer.log 2>&1 & p=$!
wait $p || { echo "said: $(cat /tmp/answer.log /tmp/log)"; exit 1; }
until_ free
# By its other name, which stays when other cards come and go.
t run -- /host/answer card$(echo ${card#0000:} | tr : .) >/tmp/answer.log 2>&1 & p=$!
wait $p
echo "said: $?"
until_ free
t run -- /host/answer card0 fork >/tmp/answer.log 2>&1 & p=$!
wait $p || { echo "said: $(cat /tmp/answer.log /tmp/log)"; exit 1; }
t run -- /host/answer card0 flood >/tmp/answer.log 2>&1 || { echo "said: $(cat /tmp/answer.log /tmp/log)"; exit 1; }
until_ free
echo "faults: $(dmesg | grep -cE 'DMAR:.*(DMA|INTR)[^.]*fault')"
exit 0
"#;

struct Nic {
    /// The name of the model for `vm run`.
    model: &'static str,
    /// The NIC's driver in the kernel.
    driver: &'static str,
    /// The NIC's kind, as the port says it.
    kind: &'static str,
    /// Pages of 2 MiB that the guest has: see `vm_vfio`.
    huge_pages: u8,
    /// The card's largest MTU.
    mtu: usize,
}

const NICS: [Nic; 3] = [
    Nic { model: "e1000", driver: "e1000", kind: "82540EM", huge_pages: 0, mtu: 9216 },
    Nic { model: "e1000e", driver: "e1000e", kind: "82574L", huge_pages: 6, mtu: 9000 },
    Nic { model: "pcnet", driver: "pcnet32", kind: "PCnet", huge_pages: 0, mtu: 1500 },
];

/// A request of the protocol of `toklat ping`, and its reply.
fn frames(number: u64, size: usize) -> (Vec<u8>, Vec<u8>) {
    let frame = |to: Mac, from: Mac, kind: u8| {
        let mut frame = [to.octets(), from.octets()].concat();
        frame.extend([0x88, 0xb5, 0x70, kind]);
        frame.extend(number.to_be_bytes());
        let filling = (0..).map(|i| number.wrapping_add(i)).map(|n| (n ^ n >> 8) as u8);
        frame.extend(filling.take(size - frame.len()));
        frame
    };
    (frame(ANSWERS, ASKS, 0x71), frame(ASKS, ANSWERS, 0x72))
}

/// Asks until there is an answer, and then asks everything once, in small groups. All replies must
/// be right.
fn ask(port: &mut Port, first: u64, sizes: &[usize]) {
    let started = Instant::now();
    let (attempt, reply) = frames(u64::MAX, 61);
    while !receive(port).contains(&reply) {
        assert!(started.elapsed() < PATIENCE, "no request is answered");
        send(port, &attempt);
        port.wait(Interest::READ, Some(Duration::from_millis(200))).unwrap();
    }
    let mut number = first;
    for size in sizes.iter().copied() {
        for group in 0..FRAMES / 10 {
            let started = Instant::now();
            let numbers: Vec<u64> = (0..10).map(|i| number + 10 * group + i + 1).collect();
            numbers.iter().for_each(|number| assert!(send(port, &frames(*number, size).0)));
            let mut missing: Vec<_> = numbers.iter().map(|n| frames(*n, size).1).collect();
            while !missing.is_empty() {
                assert!(started.elapsed() < PATIENCE, "{} replies are missing", missing.len());
                port.wait(Interest::READ, Some(Duration::from_millis(200))).unwrap();
                // Replies to other attempts may be late.
                for frame in receive(port).into_iter().filter(|frame| *frame != reply) {
                    let at = missing.iter().position(|expected| *expected == frame);
                    assert!(at.is_some(), "{} bytes, not a reply to these", frame.len());
                    missing.remove(at.unwrap());
                }
            }
        }
        number += FRAMES;
    }
}

/// Replies that are there now.
fn receive(port: &mut Port) -> Vec<Vec<u8>> {
    let reply =
        |frame: &Vec<u8>| frame[..6] == ASKS.octets() && frame[12..16] == [0x88, 0xb5, 0x70, 0x72];
    let frames = port.receive(64).map(|frame| frame.to_vec()).filter(reply).collect();
    port.flush().unwrap();
    frames
}

/// Tells the guest that all replies are here, by a frame of station `number`.
fn tell(port: &mut Port, number: u8) {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&ANSWERS.octets());
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 1, number]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert!(send(port, &frame));
}

fn script(parts: &[&str], nic: &Nic) -> String {
    let script = parts.concat().replace("PROGRAM", PROGRAM);
    script.replace("PAGES", &nic.huge_pages.to_string())
}

/// Boots a guest with a daemon of its own, which drives its card.
fn boot(dir: &Path, daemon: &Daemon, nic: &Nic, more: &[&str], parts: &[&str]) -> Guest {
    let mac = CARD.to_string();
    let iommu = "intel_iommu=on iommu=nopt";
    let options = ["--nic", nic.model, "--mac", &mac, "--iommu", "--append", iommu];
    let options = [more, &options].concat();
    // A kernel's command line has no room for all this.
    vm::inside::put(dir, &[("host/script".to_owned(), script(parts, nic).into_bytes())]).unwrap();
    Guest::boot_from(Some(dir), daemon, "card", 1, &options, "/host/script")
}

/// Has a guest drive its card for a port; `parts` is what happens between exchanges of frames.
fn drive(dir: &Path, nic: &Nic, kills: bool) {
    let Nic { model, driver, kind, .. } = nic;
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.peer]\nmtu = 9000");
    let mut port = daemon.open("vale0:peer").unwrap();
    let parts: &[&str] =
        if kills { &[BEGIN, KILL, SUCCEED, LENGTHEN, END] } else { &[BEGIN, LENGTHEN, END] };
    let mut guest = boot(dir, &daemon, nic, &[], parts);
    let refused = guest.says("said: ");
    assert!(refused.contains(&format!("The driver {driver} has 0000:")), "{refused}");
    let info = guest.says("said: ");
    println!("{info}");
    assert!(info.contains(r#""engine":"vfio""#) && info.contains(kind), "{info}");
    assert!(info.contains(r#""carrier":true"#) && info.contains(&CARD.to_string()), "{info}");
    ask(&mut port, 0, &SIZES);
    if kills {
        tell(&mut port, 1);
        // No other client gets the port.
        let busy = guest.says("said: ");
        assert!(busy.contains("in use"), "{model}: {busy}");
        assert_eq!(guest.says("said: "), "said: masters 1 and 0", "{model}");
        let waiting = guest.says("said: ");
        assert!(waiting.contains("No driver has 0000:"), "{model}: {waiting}");
        assert_eq!(guest.says("said: "), "said: again", "{model}");
        ask(&mut port, 10_000, &SIZES);
        tell(&mut port, 2);
        assert_eq!(guest.says("said: "), "said: again", "{model}");
        ask(&mut port, 20_000, &SIZES);
    }
    daemon.done(&["port", "set", "vale0:card", "--mtu", "9000"]);
    tell(&mut port, 4);
    let refused = guest.says("said: ");
    let most = format!("carries packets of {} bytes", nic.mtu);
    assert_eq!(refused.contains(&most), nic.mtu < 9001, "{refused}");
    assert_eq!(guest.says("said: "), "said: again", "{model}");
    ask(&mut port, 30_000, &[60, nic.mtu.min(9000) + 14]);
    tell(&mut port, 3);
    assert_eq!(guest.says("said: "), "said: masters 0", "{model}");
    assert_eq!(guest.says("faults: "), "faults: 0", "{model}");
    guest.succeeds();
}

#[test]
fn a_port_s_card_is_driven_in_a_process_that_may_die() {
    let Some(dir) = guest_with_program("a_port_s_card_is_driven_in_a_process_that_may_die") else {
        return;
    };
    NICS.iter().for_each(|nic| drive(dir.path(), nic, nic.model == "e1000"));
}

/// A netmap program in a guest drives the guest's card itself, by toklat's own driver.
fn run_netmap(test: &str, nic: &Nic, more: &[&str]) {
    let Some(dir) = guest_with_program(test) else { return };
    let (answer, library) = (dir.path().join("answer"), dir.path().join("library"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/netmap/answer.c");
    let built = Command::new("cc").args(["-O1", "-w", "-o"]).args([&answer, &source]).status();
    assert!(built.expect("a C compiler, cc").success());
    vm::inside::strip(harness::library(), &library).unwrap();
    let read = |path: &Path| std::fs::read(path).unwrap();
    vm::inside::put(
        dir.path(),
        &[
            ("host/answer".to_owned(), read(&answer)),
            ("host/libtoklat_preload.so".to_owned(), read(&library)),
        ],
    )
    .unwrap();
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.peer]");
    let open = netring::Open::new("vale0:peer").directory(daemon.dir());
    let mut port = open.slots(1024).open().unwrap();
    let mut guest = boot(dir.path(), &daemon, nic, more, &[NETMAP]);
    let none = guest.says("said: ");
    assert!(none.contains("No such device or address"), "{none}");
    // It ends, is killed, and leaves the card to a child.
    ask(&mut port, 0, &SIZES);
    tell(&mut port, 1);
    ask(&mut port, 10_000, &SIZES);
    tell(&mut port, 2);
    assert_eq!(guest.says("said: "), "said: 137");
    ask(&mut port, 20_000, &SIZES);
    tell(&mut port, 1);
    // More frames than the card's ring has slots: each buffer is the program's only when it is
    // sent.
    let (mut came, started) = (Vec::new(), Instant::now());
    while came.len() < FLOOD as usize {
        assert!(started.elapsed() < PATIENCE, "{} of a flood's frames came", came.len());
        port.wait(Interest::READ, Some(Duration::from_millis(200))).unwrap();
        for frame in port.receive(64).map(|frame| frame.to_vec()) {
            if frame[12..14] == [0x88, 0xb6] {
                came.push(u32::from_le_bytes(frame[14..18].try_into().unwrap()));
            }
        }
        port.flush().unwrap();
    }
    assert!(came.into_iter().eq(0..FLOOD), "frames were overwritten before they were sent");
    assert_eq!(guest.says("faults: "), "faults: 0");
    guest.succeeds();
}

#[test]
fn a_netmap_program_in_a_guest_drives_qemu_s_e1000() {
    run_netmap("a_netmap_program_in_a_guest_drives_qemu_s_e1000", &NICS[0], &[]);
}

#[test]
fn a_netmap_program_in_a_guest_drives_qemu_s_pcnet() {
    run_netmap("a_netmap_program_in_a_guest_drives_qemu_s_pcnet", &NICS[2], &[]);
}

/// toklat's own NIC, whose status block leaves the doorbells out.
#[test]
fn a_netmap_program_in_a_guest_drives_toklat_s_82540em() {
    let test = "a_netmap_program_in_a_guest_drives_toklat_s_82540em";
    let nic = Nic { model: "82540em", driver: "e1000", kind: "82540EM", huge_pages: 0, mtu: 9216 };
    if can_emulate(test) {
        run_netmap(test, &nic, &["--csb"]);
    }
}
