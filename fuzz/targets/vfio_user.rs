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
use dataplane::config::{NicConfig, NicModel};
use libfuzzer_sys::fuzz_target;
use port::{Nanos, Scratch};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use toklat_fuzz::{MAC, assert_same, connection, descriptors, port_state, take};

/// Messages of one input.
const MESSAGES: u64 = 64;

/// Sends the next message of `bytes`: command, flags, descriptors, length, body.
fn send(to: &OwnedFd, bytes: &mut &[u8]) {
    let [command, flags, fds, len] = *take(bytes, 4) else { return };
    let body = take(bytes, usize::from(len));
    let fds = descriptors(fds);
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
    let Ok((theirs, ours)) = connection() else { return };
    let state = port_state();
    let models = [NicModel::I82540em, NicModel::I82574l, NicModel::Am79c970a, NicModel::Am79c973];
    let nic = NicConfig {
        model: models[usize::from(*choice) % 4],
        csb: true,
        combine: None,
        doorbell: Default::default(),
    };
    let plug = Plug { nic, mac: MAC, link: true };
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
    assert_same(&kept, &restored.to_keep());
});
