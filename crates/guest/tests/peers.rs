//! Peers that are not Linux, and the guest's answers to them: those of Linux, which gets the same
//! script in `linux.rs`.

use std::time::Duration;

use guest::{App, Bytes, Guest, Io, Nanos, RingNic};
use netring::Port;

#[path = "world/peer.rs"]
mod peer;
mod world;

use peer::{Peer, Wire};
use world::{CLIENT, SERVER, World};

struct Echo;

impl App for Echo {
    type Conn = ();
    fn accepted(&mut self, _: &mut Io<'_>) {}
    fn data(&mut self, _: &mut (), io: &mut Io<'_>, data: &[u8]) -> usize {
        io.send(Bytes::copy_from_slice(data));
        data.len()
    }
}

/// A guest on a switch, in virtual time.
struct Virtual {
    world: World,
    guest: Guest<RingNic, Echo>,
    bare: Port,
}

impl Wire for Virtual {
    fn send(&mut self, frame: &[u8]) {
        assert!(self.bare.send(1).push(frame));
        self.bare.flush().unwrap();
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.world.now.0)
    }

    fn receive(&mut self, within: Duration) -> Option<Vec<u8>> {
        let end = self.world.now + within.as_nanos() as u64;
        loop {
            if let Some(frame) = self.take() {
                return Some(frame);
            }
            self.world.turn();
            let due = self.guest.poll(self.world.now).unwrap();
            self.world.turn();
            if let Some(frame) = self.take() {
                return Some(frame);
            }
            if self.world.now >= end {
                return None;
            }
            // Nothing is on its way: the next event is a timer's, or the wait is over.
            self.world.now = due.unwrap_or(end).max(self.world.now).min(end);
        }
    }
}

impl Virtual {
    /// Takes a frame that is there.
    fn take(&mut self) -> Option<Vec<u8>> {
        let came = self.bare.receive(1).next().map(|frame| frame.to_vec());
        self.bare.flush().unwrap();
        came
    }
}

fn peer() -> Peer<Virtual> {
    let mut world = World::new();
    let mut guest = Guest::new(world.host(SERVER, None), Echo);
    guest.listen(7, 8).unwrap();
    let bare = world.plug("bare", frame::Mac::local(0x7977), None);
    assert!(world.now >= Nanos(Nanos::SECOND));
    Peer::new(Virtual { world, guest, bare }, CLIENT, SERVER)
}

#[test]
fn a_guest_serves_peers_with_odd_options_and_without_timestamps() {
    peer().talk();
}

#[test]
fn a_guest_sends_each_response_once_to_a_peer_that_acknowledges_late() {
    peer().acknowledge_late();
}

#[test]
fn a_guest_answers_fragments_and_reports_closed_ports() {
    peer().ask_below();
}
