//! What a vhost-user front end says: any messages, in any order, with any descriptors, are carried out,
//! refused or end the session; the queues that run by then are served without a fault of ours, and what
//! is kept of the session is the same when it is taken back.
#![no_main]

use std::os::fd::{AsFd, OwnedFd};

use dataplane::attach::vhost_user::FrontEnd;
use dataplane::attach::vhost_user::message;
use dataplane::attach::vhost_user::session::{Offer, Session};
use libfuzzer_sys::fuzz_target;
use port::{Nanos, Scratch};
use toklat_fuzz::{assert_same, connection, descriptors, port_state, take};

const OFFER: Offer = Offer { queue_pairs: 2, mac: None, mtu: 1500, link: true };

/// Sends the next message of `bytes`: code, flags, descriptors, length, payload.
fn send(to: &OwnedFd, bytes: &mut &[u8]) {
    let [code, flags, fds, len] = *take(bytes, 4) else { return };
    let payload = take(bytes, usize::from(len));
    let fds = descriptors(fds);
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
    let Ok((theirs, ours)) = connection() else { return };
    let state = port_state();
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
        assert_same(&kept, &restored.kept());
    }
});
