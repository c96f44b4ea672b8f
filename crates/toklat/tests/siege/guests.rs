//! Guests whose drivers attack the device.

use std::os::fd::AsFd;

use card::vfio_user::Client;
use dataplane::attach::virtio::message::code;
use nic::virtio::Features;

use super::blows::{Persistent, socket};
use super::pause;
use harness::frames::frame;
use harness::front_end::{FrontEnd, RECEIVE, TRANSMIT, memfd, say, send_raw};

/// Connects a vhost-user front end to the port, if the daemon is there to talk to.
fn front_end(port: &str) -> Option<FrontEnd> {
    let start = || FrontEnd::start(&socket(port), Features::VERSION_1);
    std::panic::catch_unwind(start).ok()
}

/// A receive queue whose entries all name one chain of empty descriptors, and a sender that has
/// frames go there.
pub fn chains() {
    let mut sender = Persistent::open("vale0:chains-sender");
    loop {
        let Some(front_end) = front_end("chains") else {
            pause();
            continue;
        };
        let queue = &front_end.queues[RECEIVE];
        let put = |at: u64, bytes: &[u8]| {
            front_end.memory.bytes(at, bytes.len() as u32).unwrap().copy_in(bytes);
        };
        let entries = 128u16;
        for n in 0..entries {
            let flags = if n + 1 == entries { 2 } else { 3u16 };
            let next = (n + 1) % entries;
            let descriptor = [
                &0x8_0000u64.to_le_bytes()[..],
                &0u32.to_le_bytes(),
                &flags.to_le_bytes(),
                &next.to_le_bytes(),
            ];
            put(queue.layout.descriptors + 16 * u64::from(n), &descriptor.concat());
            put(queue.layout.driver + 4 + 2 * u64::from(n), &[0, 0]);
        }
        put(queue.layout.driver + 2, &entries.to_le_bytes());
        for _ in 0..200 {
            // The flooded frames go to all ports, so also to the queue; the flood limit is that of
            // the switch.
            let mut flood = frame(7, 7, 0);
            flood[..6].fill(0xff);
            sender.push(&flood);
            pause();
        }
    }
}

/// A guest that switches its rings on and off.
pub fn rings() {
    loop {
        let Some(front_end) = front_end("rings") else {
            pause();
            continue;
        };
        let enable = |queue: usize, on: u32| {
            let payload = [queue as u32, on].map(u32::to_ne_bytes).concat();
            say(&front_end.socket, code::SET_VRING_ENABLE, &payload, &[])
        };
        while (0..100).all(|n| enable(RECEIVE, n % 2) && enable(TRANSMIT, n % 2)) {}
        send_raw(&front_end.socket, &[0xa5; 64]);
    }
}

/// Rings of an e1000 that lead anywhere, and descriptors of any content.
pub fn e1000() {
    const MEMORY: u64 = 1 << 20;
    let mut number = 1u64;
    // xorshift64: the same numbers each time.
    let mut next = move || {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        number
    };
    loop {
        let Ok(mut client) = Client::connect(&socket("card")) else {
            pause();
            continue;
        };
        let file = memfd(MEMORY);
        // Addresses in the memory for the most part, and lengths of all kinds.
        let words: Vec<u8> = (0..MEMORY / 16)
            .flat_map(|_| [next() % (2 * MEMORY), next()])
            .flat_map(u64::to_le_bytes)
            .collect();
        rustix::io::pwrite(&file, &words, 0).unwrap();
        let _ = client.dma_map(Some(file.as_fd()), 0, 0, MEMORY, true);
        // The command register: memory and bus mastering.
        let mut lives = client.write(7, 4, &[6, 0], false).is_ok();
        for _ in 0..200 {
            for (at, mask) in E1000 {
                let value = (next() as u32) & mask;
                lives = lives && client.write(0, *at, &value.to_le_bytes(), false).is_ok();
            }
            pause();
        }
        if !lives {
            pause();
        }
    }
}

/// Registers of an e1000, and the bits that are written: the rings' places, lengths and tails, and
/// what enables them.
const E1000: &[(u64, u32)] = &[
    (0x100, 0x0002_801e),
    (0x400, 0x0000_000a),
    (0x2800, 0x001f_fff0),
    (0x2808, 0x000f_ff80),
    (0x2818, 0x0000_ffff),
    (0x3800, 0x001f_fff0),
    (0x3808, 0x000f_ff80),
    (0x3818, 0x0000_ffff),
];
