//! The shared status block: a page of the guest's memory in which driver and device tell each other
//! their positions. While one side is awake, the other needs no trap or interrupt to reach it.
//!
//! ```text
//!   driver                                             device
//!     tail = n;  fence;  ask armed?  -> doorbell         tail != head: work;  head = n, once a batch
//!     ring full, or dry:                                 nothing to do:
//!       want armed;  fence;  head, DD once more            ask armed;  fence;  tail once more;  sleep
//!     interrupt  <-------------- fence;  want armed? ----  after each batch
//! ```
//!
//! The block works for any NIC with rings. There are two versions:
//!
//! - **v1** is the block of the paravirtual e1000 (2013), byte for byte. It has one pair of queues,
//!   its flags are booleans, and words of both directions share cache lines.
//! - **v2** is toklat's own: up to [`QUEUES`] pairs, and one writer for each word. Each side's
//!   words of each queue have cache lines of their own. Every arming of a flag has a number, so
//!   that it is answered once.
//!
//! All words are 32 bits, little endian, at their natural alignment.
//!
//! | v1 at | name | writer | v1 at | name | writer |
//! |---|---|---|---|---|---|
//! | 00 | `guest_tdt` | driver | 40 | `host_tdh` | device |
//! | 04 | `guest_need_txkick` | driver | 44 | `host_need_txkick` | device; preset by the driver |
//! | 08 | `guest_need_rxkick` | driver | 48 | `host_txcycles_lim` | driver, read at set-up |
//! | 0C | `guest_csb_on` | driver | 4C | `host_txcycles` | device, for information |
//! | 10 | `guest_rdt` | driver | 50 | `host_rdh` | device |
//! | 14 | `guest_txkick_at` | driver | 54 | `host_need_rxkick` | device |
//! | 18 | `guest_use_msix` | driver, read at set-up | 58 | `host_isr` | device |
//! | | | | 5C | `host_rxkick_at` | device |
//!
//! | v2 at | name | writer | meaning |
//! |---|---|---|---|
//! | 00-1B | zero | driver | a v1 device takes this for a block that is off |
//! | 1C | `magic` | driver | [`MAGIC`] |
//! | 20 | `version` | driver | the highest that it supports: 2 |
//! | 24 | `features` | driver | requested bits; none are defined |
//! | 28 | `queues` | driver | transmit queues, receive queues << 16 |
//! | 2C | `spin_us` | driver | how long to poll before it sleeps; the device has its own limit |
//! | 80 | `magic` | device | [`MAGIC`]: the device supports v2; written last |
//! | 84 | `version` | device | the version in use: 2 |
//! | 88 | `features` | device | those of the requested bits that it supports |
//! | 8C | `queues` | device | how many of the driver's queues it serves, as above |
//! | 90 | `spin_us` | device | how long it polls |
//! | 94 | `fault` | device | why it has stopped: [`Fault`]; 0 while it runs |
//! | 400 + 100q | transmit queue q: `tail`, `want`, `want_at`, `on` | driver | |
//! | 480 + 100q | transmit queue q: `head`, `ask`, `ask_at` | device | |
//! | 800 + 100q | receive queue q: `tail`, `want`, `want_at`, `on` | driver | |
//! | 880 + 100q | receive queue q: `head`, `ask`, `ask_at` | device | |
//!
//! - `tail`, `head`: indices into the ring, as its registers have them. Descriptors from `head` up
//!   to, not including, `tail` are the device's. v1's `guest_rdt` is such a tail too: drivers that
//!   store the index refilled last keep that one buffer back.
//! - `on`: the queue uses the block. While it is 0, the queue uses its registers, and `tail` may be
//!   stored anyway.
//! - `want`: the driver sleeps; interrupt it. `want_at`: the interrupt is due when
//!   `head` comes to this index or passes it; [`NONE`]: at once. v1 has the index for transmit
//!   queues only.
//! - `ask`: the device sleeps; ring its doorbell. Any write to the tail's register
//!   does; its value does not count while the queue is on. `ask_at`: the doorbell is due when
//!   `tail` comes to this index or passes it; [`NONE`]: at once. v1 has the index for receive
//!   queues only.
//! - v1's flags are 0 or not. v2's are armed while odd, and each arming is one more than the last.
//!   The side that answers remembers which arming it has answered.
//!
//! # Order of things
//!
//! Set-up: the driver fills in its part of a zeroed page, aligned to 4 KiB. It writes the page's
//! guest-physical address, **high half first**: the low half makes the device look. Address 0 takes
//! the block away. Then it reads v2's answer at 80: no magic, no v2. To turn a queue on, it stores
//! `tail`, then `on`, then rings its doorbell once. To turn it off, it stores `on` = 0, then writes
//! the tail's register.
//!
//! A reset by the driver keeps the address and `on`. Heads become 0, and every doorbell and
//! interrupt is asked for. The driver stores its tails before it enables the rings again. Power-on
//! forgets the block.
//!
//! # What both sides must do
//!
//! A side that is about to sleep: sets its flag, runs a **full fence**, and checks for work again.
//! A side that has made work: stores its index, runs a **full fence**, and reads the flag. v1
//! drivers without that fence lose wake-ups. For them, the device checks again a moment after it
//! fell asleep (`nic::csb::QueueHost::look_again_at`).
//!
//! Everything in the block may change at any time, to anything. Each word is read once per
//! decision, and an index beyond its ring stops the device ([`Fault`]). The device does not read
//! back from the block what it must know itself.

mod block;

pub use block::{
    Direction, Fault, GuestLine, GuestSetup, HostLine, HostSetup, Lane, Pad, QueueLines, V1, V2,
    Version, Word,
};
#[cfg(not(loom))]
pub use block::{Page, is_two};

/// Offset of the register with the low half of the block's address, in e1000 NICs.
pub const CSBAL: u64 = 0x2830;
/// Offset of the register with the high half.
pub const CSBAH: u64 = 0x2834;
/// PCI subsystem id of a NIC that has the registers for a block.
pub const SUBSYSTEM: u16 = 0x1101;
/// "CSB2", where v1 has padding.
pub const MAGIC: u32 = 0x3242_5343;
/// No index: a flag is due at once.
pub const NONE: u32 = u32::MAX;
/// The number of queues of each direction in a v2 block.
pub const QUEUES: usize = 4;
/// A block's size in bytes, and its alignment.
pub const PAGE: u32 = 4096;
