use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::*;

const USER: u32 = 91_000;

fn send(to: impl AsFd, count: usize) -> Result<usize, Errno> {
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    let fds = vec![event.as_fd(); count];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(to, &[IoSlice::new(b"hi")], &mut control, SendFlags::empty())
}

/// True if this kernel knows SO_PASSRIGHTS.
fn kernel_refuses() -> bool {
    let (socket, _peer) = UnixStream::pair().unwrap();
    refuse(&socket);
    refuses(&socket)
}

#[test]
fn all_descriptors_that_a_message_can_have_are_received() {
    let (theirs, ours) = UnixStream::pair().unwrap();
    send(&theirs, MOST).unwrap();
    let got = receive(&ours, USER, &mut [0; 8], RecvFlags::empty()).unwrap();
    assert_eq!((got.bytes, got.truncated, got.descriptors.len()), (2, false, MOST));
    assert_eq!(format!("{:?}", got.descriptors[0]).split(" of ").nth(1), Some("user 91000)"));
}

#[test]
fn descriptors_sent_where_none_are_expected_fail_their_sender() {
    if !kernel_refuses() {
        let name = "descriptors_sent_where_none_are_expected_fail_their_sender";
        return harness::skip(name, "the kernel has no SO_PASSRIGHTS (Linux 6.16)");
    }
    let dir = std::env::temp_dir().join(format!("toklat-rights-{}", std::process::id()));
    let listener = UnixListener::bind(&dir).unwrap();
    refuse(&listener);
    let client = UnixStream::connect(&dir).unwrap();
    std::fs::remove_file(&dir).unwrap();
    assert_eq!(send(&client, 1), Err(Errno::PERM), "before it was accepted");
    let (server, _) = listener.accept().unwrap();
    assert!(refuses(&server), "an accepted socket is as its listener");
    accept(&server);
    send(&client, 1).unwrap();
    assert!(!refuses(&server));
}

/// Objective: bytes pass an inlet and descriptors do not, whether or not the kernel refuses them.
#[test]
fn an_inlet_takes_bytes_only() {
    for by_kernel in [true, false] {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        if by_kernel {
            refuse(&ours);
        }
        let inlet = Inlet::new(Descriptor::of(USER, ours.into()));
        assert_eq!(inlet.refuses(), by_kernel && kernel_refuses());
        theirs.write_all(b"hello").unwrap();
        let mut bytes = [0; 64];
        assert_eq!(inlet.recv(&mut bytes, RecvFlags::PEEK), Ok(5));
        assert_eq!(inlet.recv(&mut bytes, RecvFlags::empty()), Ok(5));
        assert_eq!(inlet.recv(&mut bytes, RecvFlags::DONTWAIT), Err(Errno::AGAIN));
        if inlet.refuses() {
            assert_eq!(send(&theirs, 2), Err(Errno::PERM));
        } else {
            send(&theirs, 2).unwrap();
            assert_eq!(inlet.recv(&mut bytes, RecvFlags::PEEK), Ok(2), "looked at, they stay");
            assert_eq!(inlet.recv(&mut bytes, RecvFlags::empty()), Err(Errno::BADMSG));
        }
        inlet.hang_up();
        assert_eq!(std::io::Read::read(&mut theirs, &mut bytes).unwrap(), 0);
    }
}

#[test]
fn what_is_ours_is_closed_at_once() {
    let (ours, mut other) = UnixStream::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    drop(Descriptor::of(USER, ours.into()).into_ours());
    assert_eq!(std::io::Read::read(&mut other, &mut [0; 1]).unwrap(), 0);
}
