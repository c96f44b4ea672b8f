use super::*;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

fn pair() -> (OwnedFd, Descriptor) {
    let flags = SocketFlags::CLOEXEC;
    let (front, back) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    (front, back.into())
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn next(socket: &Descriptor) -> Result<Option<Message>, ProtocolError> {
    let mut receiver = Receiver::default();
    let received = receiver.receive(socket)?;
    receiver.done(socket).map(|()| received)
}

#[test]
fn a_message_in_pieces_is_put_together() {
    let (front, back) = pair();
    let bytes = packet(code::SET_FEATURES, VERSION | NEED_REPLY, &words(&[0x1234]));
    let mut receiver = Receiver::default();
    for byte in &bytes[..bytes.len() - 1] {
        rustix::io::write(&front, &[*byte]).unwrap();
        assert!(receiver.receive(&back).unwrap().is_none());
    }
    rustix::io::write(&front, &bytes[bytes.len() - 1..]).unwrap();
    let message = receiver.receive(&back).unwrap().unwrap();
    assert!(matches!(message.request, Request::SetFeatures(0x1234)) && message.need_reply);
}

#[test]
fn a_successor_finds_what_was_not_done() {
    let (front, back) = pair();
    for number in [1, 2] {
        let payload = words(&[number]);
        send(&front, code::SET_VRING_CALL, false, &payload, &[front.as_fd()]).unwrap();
    }
    let queue = |receiver: &mut Receiver| match receiver.receive(&back).unwrap() {
        Some(Message { request: Request::SetRingCall { queue, fd: Some(_) }, .. }) => queue,
        other => panic!("{other:?}"),
    };
    let mut killed = Receiver::default();
    assert_eq!(queue(&mut killed), 1);
    let mut successor = Receiver::default();
    assert_eq!((queue(&mut successor), queue(&mut successor)), (1, 2));
    successor.done(&back).unwrap();
    assert!(Receiver::default().receive(&back).unwrap().is_none());
}

#[test]
fn nothing_beyond_a_message_is_read() {
    let (front, back) = pair();
    send(&front, code::SET_OWNER, false, &[], &[]).unwrap();
    send(&front, code::SET_VRING_CALL, false, &words(&[3]), &[front.as_fd()]).unwrap();
    assert!(matches!(next(&back).unwrap().unwrap().request, Request::SetOwner));
    let call = next(&back).unwrap().unwrap().request;
    assert!(matches!(call, Request::SetRingCall { queue: 3, fd: Some(_) }));
    assert!(next(&back).unwrap().is_none());
}

#[test]
fn a_memory_table_comes_with_its_files() {
    let (front, back) = pair();
    let table = words(&[2, 1, 2, 3, 4, 5, 6, 7, 8]);
    let fds = [front.as_fd(), back.as_fd()];
    send(&front, code::SET_MEM_TABLE, false, &table, &fds).unwrap();
    let Request::SetMemoryTable(got) = next(&back).unwrap().unwrap().request else { panic!() };
    let regions: Vec<_> = got.iter().map(|(region, _)| *region).collect();
    let region = |a| Region { guest: a, size: a + 1, user: a + 2, offset: a + 3 };
    assert_eq!(regions, [region(1), region(5)]);
}

#[test]
fn wrong_sizes_and_numbers_of_descriptors_are_refused() {
    let table = |n: u64| words(&[n, 1, 2, 3, 4]);
    let cases: &[(u32, Vec<u8>, usize)] = &[
        (code::GET_FEATURES, words(&[0]), 0),
        (code::SET_FEATURES, vec![0; 7], 0),
        (code::SET_FEATURES, words(&[0]), 1),
        (code::SET_MEM_TABLE, table(1), 0),
        (code::SET_MEM_TABLE, table(1), 2),
        (code::SET_MEM_TABLE, table(2), 2),
        (code::SET_MEM_TABLE, table(u64::from(u32::MAX)), 1),
        (code::SET_MEM_TABLE, Vec::new(), 0),
        (code::ADD_MEM_REG, words(&[0, 1, 2, 3, 4]), 0),
        (code::SET_LOG_BASE, words(&[1, 2]), 0),
        (code::SET_VRING_KICK, words(&[0]), 0),
        (code::SET_VRING_KICK, words(&[NO_DESCRIPTOR]), 1),
        (code::SET_VRING_ADDR, words(&[0, 1, 2, 3]), 0),
        (code::GET_CONFIG, vec![0xff; 12], 0),
        (code::GET_CONFIG, vec![0; 13], 0),
        (code::SET_BACKEND_REQ_FD, Vec::new(), 0),
        (code::GET_INFLIGHT_FD, words(&[0, 0]), 0),
        (code::GET_INFLIGHT_FD, words(&[0, 0, 0]), 1),
        (code::SET_INFLIGHT_FD, words(&[0, 0, 0, 0]), 1),
        (code::SET_INFLIGHT_FD, words(&[0, 0, 0]), 0),
        (code::SET_INFLIGHT_FD, words(&[0, 0, 0]), 2),
    ];
    for (code, payload, fds) in cases {
        let (front, back) = pair();
        send(&front, *code, false, payload, &vec![front.as_fd(); *fds]).unwrap();
        let refused = next(&back).unwrap_err();
        let right =
            matches!(refused, ProtocolError::Size { .. } | ProtocolError::Descriptors { .. });
        assert!(right, "{code} with {} bytes, {fds}: {refused}", payload.len());
    }
}

#[test]
fn what_was_never_offered_and_what_is_too_much_is_refused() {
    let (front, back) = pair();
    send(&front, 28, false, &[], &[]).unwrap();
    assert!(matches!(next(&back), Err(ProtocolError::Unknown(28))));
    let (front, back) = pair();
    rustix::io::write(&front, &packet(1, 2, &[])).unwrap();
    assert!(matches!(next(&back), Err(ProtocolError::Flags(2))));
    let (front, back) = pair();
    let endless = [code::SET_CONFIG, VERSION, u32::MAX].map(u32::to_ne_bytes).concat();
    rustix::io::write(&front, &endless).unwrap();
    assert!(matches!(next(&back), Err(ProtocolError::Size { .. })));
    let (front, back) = pair();
    let many = vec![front.as_fd(); 2 * MAX_REGIONS];
    send(&front, code::SET_MEM_TABLE, false, &words(&[1, 0, 0, 0, 0]), &many).unwrap();
    assert!(matches!(next(&back), Err(ProtocolError::Descriptors { .. })));
    let (front, back) = pair();
    drop(front);
    assert!(matches!(next(&back), Err(ProtocolError::Closed)));
}
