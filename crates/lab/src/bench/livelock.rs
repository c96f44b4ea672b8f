//! A confined guest that is offered more datagrams than it can take.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use frame::Mac;
use frame::checksum::checksum;
use netring::Port;

use super::confined::{FIRST, OWN, cpu_of, pids, start};
use super::lab::Lab;
use super::traffic::{BATCH, on_core};

const MAC: Mac = Mac::local(99);
/// Bytes of a datagram's data.
const DATA: usize = 64;
/// Datagrams under way when a guest is at its peak.
const PEAK: u64 = 64;
/// After this time without an answer, what was under way is lost.
const LOST: Duration = Duration::from_millis(20);

/// The datagram, as a frame to `to`.
fn datagram(to: Mac) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, (28 + DATA) as u8, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet.extend(OWN.octets().into_iter().chain(FIRST.octets()));
    let sum = checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    // From port 9 to the echo's, without a checksum.
    packet.extend([0, 9, 0, 7, 0, (8 + DATA) as u8, 0, 0]);
    packet.resize(28 + DATA, 7);
    [&to.octets()[..], &MAC.octets(), &[8, 0], &packet].concat()
}

/// The answer to an ARP request for [`OWN`].
fn arp(to: Mac, who: Ipv4Addr) -> Vec<u8> {
    let head = [&to.octets()[..], &MAC.octets(), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    [&head[..], &MAC.octets(), &OWN.octets(), &to.octets(), &who.octets()].concat()
}

/// The sending port, and counts of sent and answered datagrams.
struct Generator {
    port: Port,
    guest: Mac,
    frame: Vec<u8>,
    sent: u64,
    got: u64,
    heard: Instant,
}

impl Generator {
    /// Takes the answers, and sends as long as at most `window` datagrams are in flight.
    fn turn(&mut self, window: u64) -> Result<()> {
        let (mut asked, mut got) = (false, 0);
        for frame in self.port.receive(usize::MAX) {
            // Only answers and ARP frames arrive, and ARP frames are short.
            match frame.len() > 64 {
                true => got += 1,
                false => asked = true,
            }
        }
        self.got += got;
        if got > 0 {
            self.heard = Instant::now();
        } else if self.heard.elapsed() > LOST {
            (self.sent, self.heard) = (self.got, Instant::now());
        }
        if asked {
            self.port.send(1).push(&arp(self.guest, FIRST));
        }
        let room = window.saturating_sub(self.sent.saturating_sub(self.got)).min(BATCH as u64);
        let sent = self.port.send(room as usize).fill(room as usize, |slot| {
            slot.copy_in(&self.frame);
            self.frame.len()
        });
        self.sent += sent as u64;
        Ok(self.port.flush()?)
    }
}

/// Datagrams that a confined echo answers for each second of its own on a core: with `window` of
/// them under way.
fn answered(lab: &Lab, window: u64) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let _guest = start(&daemon, ["echo", "echo"], (FIRST, 1), &[])?;
    let all = pids(&daemon, "echo")?;
    let guest = Mac::of_name("vale0:echo");
    let port = daemon.open("generator").slots(1024).open()?;
    let (frame, heard) = (datagram(guest), Instant::now());
    let mut generator = Generator { port, guest, frame, sent: 0, got: 0, heard };
    let seconds = lab.seconds();
    on_core(0, move || {
        generator.port.send(1).push(&arp(guest, FIRST));
        let began = Instant::now();
        while generator.got < 1000 {
            generator.turn(window)?;
            ensure!(began.elapsed().as_secs() < 10, "the echo does not answer");
        }
        let (before, cpu, began) = (generator.got, cpu_of(&all), Instant::now());
        while began.elapsed().as_secs_f64() < seconds {
            for _ in 0..16 {
                generator.turn(window)?;
            }
        }
        Ok((generator.got - before) as f64 / (cpu_of(&all) - cpu) / 1e6)
    })
}

/// The rate of answers at the guest's peak.
pub fn peak(lab: &Lab) -> Result<f64> {
    answered(lab, PEAK)
}

/// The rate of answers when senders send as much as the switch takes.
pub fn flooded(lab: &Lab) -> Result<f64> {
    answered(lab, u64::MAX / 2)
}
