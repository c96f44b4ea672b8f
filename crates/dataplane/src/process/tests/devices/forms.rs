//! The forms of messages: a malformed message gets an error, and the session goes on.

use super::*;

const INVAL: i32 = 22;

/// The head of a message that reads or writes this many bytes.
fn access(region: u32, at: u64, count: u32) -> Vec<u8> {
    [&at.to_ne_bytes()[..], &region.to_ne_bytes(), &count.to_ne_bytes()].concat()
}

/// One register write in a message of several.
fn entry(at: u64, value: u32, count: u32) -> Vec<u8> {
    [access(0, at, count), u64::from(value).to_ne_bytes().to_vec()].concat()
}

/// A message of several writes.
fn several(entries: &[Vec<u8>]) -> Vec<u8> {
    [(entries.len() as u64).to_ne_bytes().to_vec(), entries.concat()].concat()
}

#[test]
fn regression_messages_of_wrong_form_are_answered_and_the_session_goes_on() {
    let mut host = Host::start();
    let mut guest = Guest::start(host.plug(0), 2);
    let (file, call) = (memfd(MEMORY), eventfd());
    let map = [words(&[32, 3]), longs(&[0, 1 << 40, 0x1000])].concat();
    let unmap = [words(&[24, 0]), longs(&[0, MEMORY])].concat();
    let write = [access(0, 0x10, 4), vec![0; 4]].concat();
    let irqs = words(&[20, irq::TRIGGER | irq::DATA_EVENTFD, 2, 0, 2]);
    let several = several(&[entry(0x10, 0, 4)]);
    let cut = |body: &[u8]| body[..body.len() - 1].to_vec();
    let more = |body: &[u8]| [body, &[0]].concat();
    let files = [file.as_fd(), file.as_fd()];
    let calls = [call.as_fd()];
    for (what, command, body, fds) in [
        ("a short read", command::REGION_READ, cut(&access(0, 0, 4)), &[][..]),
        ("a long read", command::REGION_READ, more(&access(0, 0, 4)), &[]),
        ("a short write", command::REGION_WRITE, cut(&write), &[]),
        ("a long write", command::REGION_WRITE, more(&write), &[]),
        ("a write with a file", command::REGION_WRITE, write.clone(), &files[..1]),
        ("fewer writes than it says", command::REGION_WRITE_MULTI, cut(&several), &[]),
        ("several writes and more", command::REGION_WRITE_MULTI, more(&several), &[]),
        ("no writes", command::REGION_WRITE_MULTI, vec![0; 8], &[]),
        ("a reset with something", command::DEVICE_RESET, vec![0; 4], &[]),
        ("a reset with a file", command::DEVICE_RESET, vec![], &files[..1]),
        ("a short map", command::DMA_MAP, cut(&map), &files[..1]),
        ("a long map", command::DMA_MAP, more(&map), &files[..1]),
        ("a map of two files", command::DMA_MAP, map.clone(), &files),
        ("a short unmap", command::DMA_UNMAP, cut(&unmap), &[]),
        ("a question without its index", command::DEVICE_GET_IRQ_INFO, words(&[16, 0]), &[]),
        ("one vector too few", command::DEVICE_SET_IRQS, irqs, &calls),
        ("short interrupts", command::DEVICE_SET_IRQS, words(&[16, 33, 2, 0]), &[]),
        ("half a feature", command::DEVICE_FEATURE, vec![0; 4], &[]),
        ("less state than it says", command::MIG_DATA_WRITE, words(&[16, 8]), &[]),
        ("a small map", command::DMA_MAP, [words(&[31, 3]), map[8..].into()].concat(), &files[..1]),
        ("small device info", command::DEVICE_GET_INFO, words(&[15, 0, 0, 0]), &[]),
        (
            "small region info",
            command::DEVICE_GET_REGION_INFO,
            words(&[31, 0, 0, 0, 0, 0, 0, 0]),
            &[],
        ),
        ("small interrupt info", command::DEVICE_GET_IRQ_INFO, words(&[15, 0, 0, 0]), &[]),
        ("small interrupts", command::DEVICE_SET_IRQS, words(&[19, 17, 0, 0, 1]), &[]),
    ] {
        assert_eq!(guest.refused(command, &body, fds), INVAL, "{what}");
        assert_eq!(guest.read(0x10), RECEIVE_AT as u32, "{what}");
        // A message that does not ask for a reply gets none.
        guest.client.say(command, true, &body, fds).unwrap();
        assert_eq!(guest.read(0x10), RECEIVE_AT as u32, "{what}");
    }
    // Well-formed messages still work: the memory and the interrupts are intact.
    let mut other = Guest::start(host.plug(1), 2);
    exchange(&mut other, &mut guest, 5);
}

#[test]
fn regression_the_kinds_of_interrupts_are_those_that_there_are() {
    let mut host = Host::start();
    let mut guest = Guest::start(host.plug(0), 0);
    let info = guest.client.ask(command::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]), &[]).unwrap();
    let field =
        |bytes: &[u8], n: usize| u32::from_ne_bytes(bytes[4 * n..][..4].try_into().unwrap());
    let kinds = field(&info, 3);
    assert_eq!(kinds, 3);
    for kind in 0..kinds {
        let body = words(&[16, 0, kind, 0]);
        let info = guest.client.ask(command::DEVICE_GET_IRQ_INFO, &body, &[]).unwrap();
        assert_eq!((field(&info, 0), field(&info, 2)), (16, kind));
        assert!(field(&info, 3) > 0, "vectors of kind {kind}");
    }
    for kind in [kinds, kinds + 1, u32::MAX] {
        let body = words(&[16, 0, kind, 0]);
        assert_eq!(guest.refused(command::DEVICE_GET_IRQ_INFO, &body, &[]), INVAL);
    }
}

#[test]
fn regression_posted_writes_to_where_nothing_is_do_nothing() {
    let mut host = Host::start();
    let mut guest = Guest::start(host.plug(0), 2);
    for (region, at, count) in
        [(0, 4096, 4), (0, u64::MAX - 1, 4), (2, 0, 4), (9, 0, 4), (0, 0x10, 3)]
    {
        let body = [access(region, at, count), vec![0xff; count as usize]].concat();
        guest.client.say(command::REGION_WRITE, true, &body, &[]).unwrap();
        assert_eq!(guest.read(0x10), RECEIVE_AT as u32, "region {region}, {at:#x}");
        assert_eq!(guest.refused(command::REGION_WRITE, &body, &[]), INVAL);
    }
}

#[test]
fn several_writes_come_in_one_message() {
    let mut host = Host::start();
    let mut a = Guest::start(host.plug(0), 2);
    let mut b = Guest::start(host.plug(1), 2);
    // The writes are carried out in order: a frame's address, then its length, which sends it.
    let [to, from] = [2, 1].map(|n| Mac::local(n).octets());
    let frame = [&to[..], &from, &[0x88, 0xb5], &[3; 50]].concat();
    a.memory.bytes(SEND_AT as usize, frame.len()).unwrap().copy_in(&frame);
    let send = several(&[entry(8, SEND_AT as u32, 4), entry(12, frame.len() as u32, 4)]);
    b.send(1, 2, 0);
    wait_until("a frame", || {
        a.client.say(command::REGION_WRITE_MULTI, true, &send, &[]).unwrap();
        b.received() == Some(3)
    });
    // The reply has the number of writes. All valid writes are carried out, even if others are not
    // valid.
    let good = several(&[entry(4, 0, 4), entry(4, 2, 4)]);
    let reply = a.client.ask(command::REGION_WRITE_MULTI, &good, &[]).unwrap();
    assert_eq!((reply, a.read(MASK)), (longs(&[2]), 2));
    for (what, bad) in [
        ("nowhere", entry(4096, 1, 4)),
        ("more bytes than there are", entry(4, 1, 9)),
        ("no bytes", entry(4, 1, 0)),
        ("three bytes", entry(4, 1, 3)),
    ] {
        a.write(MASK, 0);
        let one = several(&[bad.clone(), entry(4, 2, 4)]);
        assert_eq!(a.refused(command::REGION_WRITE_MULTI, &one, &[]), INVAL, "{what}");
        assert_eq!(a.read(MASK), 2, "{what}");
        a.client.say(command::REGION_WRITE_MULTI, true, &several(&[bad]), &[]).unwrap();
        assert_eq!(a.read(MASK), 2, "{what}, and nobody asks");
    }
}
