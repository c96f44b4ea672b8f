//! What a vhost-user front end says: any messages, in any order, with any descriptors, are carried out,
//! refused or end the session; the queues that run by then are served without a fault of ours, and what
//! is kept of the session is the same when it is taken back.
#![no_main]

use std::os::fd::{AsFd, OwnedFd};

use dataplane::attach::vhost_user::FrontEnd;
use dataplane::attach::vhost_user::message;
use dataplane::attach::vhost_user::session::{Offer, Session};
use dataplane::config::SwitchConfig;
use dataplane::state::State;
use libfuzzer_sys::fuzz_target;
use port::{Nanos, Scratch};
use rustix::event::EventfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

const OFFER: Offer = Offer { queue_pairs: 2, mac: None, mtu: 1500, link: true };
/// Bytes of a guest's memory: more says nothing new.
const MEMORY: u64 = 64 << 10;

/// A descriptor of a kind that a front end may send, or should not.
fn descriptor(kind: u8) -> Option<OwnedFd> {
    match kind % 4 {
        0 | 1 => rustix::event::eventfd(0, EventfdFlags::NONBLOCK).ok(),
        2 => {
            let file = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
            rustix::fs::ftruncate(&file, MEMORY).ok()?;
            Some(file)
        }
        _ => rustix::pipe::pipe().ok().map(|(end, _)| end),
    }
}

/// Takes bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(n.min(bytes.len()));
    *bytes = rest;
    taken
}

/// Sends the next message of `bytes`: code, flags, descriptors, length, payload.
fn send(to: &OwnedFd, bytes: &mut &[u8]) {
    let [code, flags, fds, len] = *take(bytes, 4) else { return };
    let payload = take(bytes, usize::from(len));
    let fds: Vec<_> = (0..fds % 4).filter_map(|i| descriptor(fds / 4 + i)).collect();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let _ = message::send(to, u32::from(code % 48), flags & 1 != 0, payload, &fds);
}

/// Serves the queues that run.
fn serve(front_end: &mut FrontEnd) {
    let Ok((mut attached, _)) = front_end.halves() else { return };
    let mut scratch = Scratch::new(64);
    for queue in 0..attached.source.queues() {
        let ingress = attached.source.queue(queue);
        let frames = ingress.gather(&mut scratch, 64, Nanos(0));
        ingress.complete(frames);
        let _ = ingress.settle(Nanos(0));
        scratch.clear();
    }
    let _ = attached.source.arm();
    for egress in &attached.egresses {
        let _ = egress.settle(Nanos(0));
    }
}

fuzz_target!(|bytes: &[u8]| {
    shmem::guard::install();
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok((theirs, ours)) = rustix::net::socketpair(family, kind, flags, None) else { return };
    let config = SwitchConfig { max_ports: 1, fdb_entries: 16, ..SwitchConfig::default() };
    let state = State::private(&config).expect("memory");
    let state = state.port(0).expect("a port");
    let mut front_end = FrontEnd::new(ours, OFFER, &state, None).expect("a socket");
    let mut rest = bytes;
    while !rest.is_empty() {
        send(&theirs, &mut rest);
        match front_end.receive() {
            Ok(Some(message)) => {
                if front_end.session.handle(message.request).is_err() {
                    break;
                }
            }
            Ok(None) => {}
            Err(_) => break,
        }
        let _ = front_end.session.take_changes();
        serve(&mut front_end);
    }
    let kept = front_end.session.kept();
    if let Some(restored) = Session::restore(OFFER, &kept) {
        let again = restored.kept();
        assert!(kept.keys().eq(again.keys()));
        assert!(kept.values().map(|(value, _)| value).eq(again.values().map(|(value, _)| value)));
    }
});
