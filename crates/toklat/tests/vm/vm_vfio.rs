//! Our drivers on cards of a machine, by VFIO: the machine is virtual, and the cards are QEMU's
//! own, which know nothing of our models, or our models behind QEMU's IOMMU; the kernel's IOMMU
//! driver and VFIO are real.
//!
//! In the guest, the kernel's driver releases the card. `toklat card` then sends requests through
//! it to a port of the test's, polling and with interrupts. The test compares requests and the
//! guest compares replies, byte by byte.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use frame::Mac;
use netring::Port;
use serde_json::Value;

use harness::Daemon;
use harness::frames::send;
use harness::guests::{Guest, can_emulate};
use harness::inside::{PROGRAM, guest_with_program};

/// The card's address, and the test's.
const CARD: Mac = Mac::local(1);
const PEER: Mac = Mac::local(2);
/// Bytes of frames, and how many of each are sent.
const SIZES: [u16; 3] = [60, 777, 1514];
const FRAMES: u64 = 300;
/// Returns a request of the protocol of `toklat ping` as it has to be, with the filler bytes that
/// the program uses.
fn request(number: u64, size: usize) -> Vec<u8> {
    let mut frame = [PEER.octets(), CARD.octets()].concat();
    frame.extend([0x88, 0xb5, 0x70, 0x71]);
    frame.extend(number.to_be_bytes());
    let filling = (0..).map(|i| number.wrapping_add(i)).map(|n| (n ^ n >> 8) as u8);
    frame.extend(filling.take(size - frame.len()));
    frame
}

/// Answers requests until it is told to end; returns how many requests came.
fn serve(mut port: Port, over: &AtomicBool) -> u64 {
    let mut answered = 0;
    while !over.load(Ordering::Relaxed) {
        let frames: Vec<_> = port.receive(64).map(|frame| frame.to_vec()).collect();
        port.flush().unwrap();
        for mut frame in frames {
            if frame[..6] != PEER.octets() {
                continue;
            }
            let number = u64::from_be_bytes(frame[16..24].try_into().unwrap());
            assert_eq!(frame, request(number, frame.len()), "request {number}");
            frame[..12].copy_from_slice(&[CARD.octets(), PEER.octets()].concat());
            frame[15] = 0x72;
            while !send(&mut port, &frame) {
                std::thread::yield_now();
            }
            answered += u64::from(number < FRAMES);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    answered
}

/// A model of network card, of QEMU's or of ours.
struct Nic {
    /// The name of the model for `vm run`.
    model: &'static str,
    /// The NIC's driver in the kernel.
    driver: &'static str,
    /// The NIC's kind, as the program says it.
    kind: &'static str,
    /// Pages of 2 MiB that the guest has. QEMU's e1000e drops a frame that it is to send if the
    /// frame's bytes do not follow each other in the guest's memory, page by page, as the IOMMU has
    /// them (`net_tx_pkt_add_raw_fragment`).
    huge_pages: u8,
    /// More options for `vm run`.
    options: &'static [&'static str],
}

/// An IOMMU beside QEMU's own cards.
const QEMUS: &[&str] =
    &["--", "-machine", "kernel-irqchip=split", "-device", "intel-iommu,intremap=on"];

const NICS: [Nic; 3] = [
    Nic { model: "e1000", driver: "e1000", kind: "82540EM", huge_pages: 0, options: QEMUS },
    Nic { model: "e1000e", driver: "e1000e", kind: "82574L", huge_pages: 4, options: QEMUS },
    Nic { model: "pcnet", driver: "pcnet32", kind: "PCnet", huge_pages: 0, options: QEMUS },
];

/// An IOMMU that tells our process what the guest maps: each page, wherever it is.
const OURS: &[&str] = &["--iommu"];
/// The same, of a card that offers a shared status block.
const WITH_BLOCK: &[&str] = &["--iommu", "--csb"];

const OUR_NICS: [Nic; 3] = [
    Nic { model: "82540em", driver: "e1000", kind: "82540EM", huge_pages: 0, options: WITH_BLOCK },
    Nic { model: "82574l", driver: "e1000e", kind: "82574L", huge_pages: 0, options: WITH_BLOCK },
    Nic { model: "am79c970a", driver: "pcnet32", kind: "PCnet", huge_pages: 0, options: OURS },
];

/// Has a guest's program drive a card that the kernel's driver has given up.
fn drive(dir: &Path, nic: &Nic) {
    let Nic { model, driver, kind, huge_pages, options: more } = nic;
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.peer]");
    let port = daemon.open("vale0:peer").unwrap();
    let sizes = SIZES.map(|size| size.to_string()).join(" ");
    let commands = format!(
        "run() {{ {PROGRAM} --json card $card --to {PEER} -n {FRAMES} $* >/tmp/said 2>&1; s=$?; \
         echo said: $(cat /tmp/said); return $s; }}; \
         card=$(basename $(readlink /sys/class/net/eth0/device)); run; \
         echo {huge_pages} >/proc/sys/vm/nr_hugepages; vfio eth0 && \
         for size in {sizes}; do run -s $size && run -s $size --interrupts || exit 1; done; \
         s=$?; echo faults: $(dmesg | grep -cE 'DMAR:.\\[(DMA|INTR)'); exit $s"
    );
    let mac = CARD.to_string();
    let options = ["--nic", model, "--mac", &mac, "--append", "intel_iommu=on iommu=nopt"];
    let options = [&options[..], more].concat();
    let over = AtomicBool::new(false);
    let answered = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(port, &over));
        // Whatever happens here, the server ends, too.
        let _over = Over(&over);
        let mut guest = Guest::boot_from(Some(dir), &daemon, "card", 1, &options, &commands);
        // While the kernel has the card, no other process can use it.
        let refusal = guest.says("said: ");
        assert!(refusal.contains(&format!("The driver {driver} has 0000:")), "{refusal}");
        for size in SIZES {
            for interrupts in [false, true] {
                let said = guest.says("said: ");
                let report: Value = serde_json::from_str(said.trim_start_matches("said: "))
                    .unwrap_or_else(|_| panic!("{model}: {said}"));
                println!("{model}, {size} bytes: {report}");
                let card = report["card"].as_str().unwrap();
                assert!(card.starts_with(&format!("{kind} at 0000:")), "{card}");
                assert_eq!(report["mac"], CARD.to_string());
                for (count, is) in [("received", FRAMES), ("lost", 0), ("wrong", 0)] {
                    assert_eq!(report[count], is, "{model}, {size} bytes: {report}");
                }
                assert_eq!(report["interrupts"].as_u64() > Some(0), interrupts, "{report}");
            }
        }
        assert_eq!(guest.says("faults: "), "faults: 0");
        guest.succeeds();
        over.store(true, Ordering::Relaxed);
        server.join().unwrap()
    });
    assert_eq!(answered, 2 * SIZES.len() as u64 * FRAMES, "{model}");
}

/// Sets the flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn our_drivers_drive_cards_of_the_machine_by_vfio() {
    let Some(dir) = guest_with_program("our_drivers_drive_cards_of_the_machine_by_vfio") else {
        return;
    };
    NICS.iter().for_each(|nic| drive(dir.path(), nic));
}

/// Objective: our models behind QEMU's IOMMU reach all of what a guest maps, however many pages
/// that is.
#[test]
fn our_drivers_drive_our_models_behind_an_iommu_of_qemu() {
    const TEST: &str = "our_drivers_drive_our_models_behind_an_iommu_of_qemu";
    let Some(dir) = can_emulate(TEST).then(|| guest_with_program(TEST)).flatten() else { return };
    OUR_NICS.iter().for_each(|nic| drive(dir.path(), nic));
}
