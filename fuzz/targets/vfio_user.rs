//! What a vfio-user front end says: any messages, in any order and any pieces, with any descriptors, are
//! carried out, refused or end the session; what runs by then is served without a fault of ours, and what
//! is kept of the session is the same when it is taken back.
#![no_main]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use dataplane::attach::vfio_user::message::write_header;
use dataplane::attach::vfio_user::{Plug, Server, Summons};
use dataplane::config::{NicConfig, NicModel, SwitchConfig};
use dataplane::state::State;
use frame::Mac;
use libfuzzer_sys::fuzz_target;
use port::{Nanos, Scratch};
use rustix::event::EventfdFlags;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Bytes of a guest's memory: more says nothing new.
const MEMORY: u64 = 64 << 10;
/// Messages of one input.
const MESSAGES: u64 = 64;

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

/// Sends the next message of `bytes`: command, flags, descriptors, length, body.
fn send(to: &OwnedFd, bytes: &mut &[u8]) {
    let [command, flags, fds, len] = *take(bytes, 4) else { return };
    let body = take(bytes, usize::from(len));
    let fds: Vec<_> = (0..fds % 4).filter_map(|i| descriptor(fds / 4 + i)).collect();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut message = Vec::new();
    write_header(&mut message, 1, u16::from(command % 20), body.len(), u32::from(flags & 0x30));
    message.extend(body);
    // Some are cut off, or have another size than they say.
    let end = if flags & 1 != 0 { message.len().saturating_sub(3) } else { message.len() };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let parts = [IoSlice::new(&message[..end])];
    let _ = rustix::net::sendmsg(to, &parts, &mut control, SendFlags::NOSIGNAL);
}

/// What a worker does with what there is, once.
fn serve(server: &mut Server, now: Nanos) {
    let Ok(mut attached) = server.halves(now) else { return };
    let mut scratch = Scratch::new(64);
    for queue in (0..attached.source.queues()).rev() {
        attached.source.disarm();
        let ingress = attached.source.queue(queue);
        let frames = ingress.gather(&mut scratch, 64, now);
        ingress.complete(frames);
        let _ = ingress.settle(now);
        scratch.clear();
    }
    let _ = (attached.source.arm(), attached.source.deadline());
    for egress in &attached.egresses {
        let _ = egress.settle(now);
    }
    server.is_quiet();
}

fuzz_target!(|bytes: &[u8]| {
    shmem::guard::install();
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok((theirs, ours)) = rustix::net::socketpair(family, kind, flags, None) else { return };
    let config = SwitchConfig { max_ports: 1, fdb_entries: 16, ..SwitchConfig::default() };
    let state = State::private(&config).expect("memory");
    let state = state.port(0).expect("a port");
    let models = [NicModel::I82540em, NicModel::I82574l, NicModel::Am79c970a, NicModel::Am79c973];
    let nic = NicConfig { model: models[usize::from(*choice) % 4], csb: true, combine: None, doorbell: Default::default() };
    let plug = Plug { nic, mac: Mac::local(1), link: true };
    let summons = Arc::new(Summons::new().expect("an eventfd"));
    let again = ours.try_clone().expect("a descriptor");
    let server = Server::new((ours, None), plug, (0, &state), None, Arc::clone(&summons));
    let mut server = server.expect("a port");
    for turn in 1..MESSAGES {
        if rest.is_empty() {
            break;
        }
        send(&theirs, &mut rest);
        // Replies that nobody reads would be the end of it.
        while matches!(
            rustix::net::recv(&theirs, &mut [0; 4096][..], rustix::net::RecvFlags::DONTWAIT),
            Ok((_, 1..))
        ) {}
        serve(&mut server, Nanos(turn * 1_000_000));
        if summons.take().is_empty() {
            continue;
        }
        let done = server.next_message().and_then(|message| match message {
            Some(message) => {
                let done = server.handle(message)?;
                server.done(&done)
            }
            None => Ok(()),
        });
        if done.is_err() {
            server.end();
            return;
        }
        server.unpark();
    }
    let kept = server.to_keep();
    drop(server);
    let restored = Server::new((again, None), plug, (0, &state), Some(kept.clone()), summons);
    let restored = restored.expect("a port");
    assert!(!restored.has_ended());
    let again = restored.to_keep();
    assert!(kept.keys().eq(again.keys()));
    assert!(kept.values().map(|(value, _)| value).eq(again.values().map(|(value, _)| value)));
});
