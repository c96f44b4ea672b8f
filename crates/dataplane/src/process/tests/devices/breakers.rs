//! Front ends that break the rules, or end at any moment.

use super::*;

/// True if a front end is disconnected that sends these bytes after the version, with this many
/// descriptors.
fn is_hung_up_on(host: &mut Host, say: &[u8], fds: usize) -> bool {
    let mut guest = Guest::start(host.plug(0), 2);
    let sent: Vec<_> = (0..fds).map(|_| eventfd()).collect();
    let sent: Vec<_> = sent.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    if fds > 0 {
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&sent)));
    }
    let parts = [std::io::IoSlice::new(say)];
    let socket = guest.client.socket().try_clone().unwrap();
    rustix::net::sendmsg(&socket, &parts, &mut control, rustix::net::SendFlags::empty()).unwrap();
    let mut data = [0; 4];
    let ended = guest.client.read(0, 0, &mut data).is_err();
    host.remove(0);
    ended
}

#[test]
fn front_ends_that_break_the_rules_are_hung_up_on() {
    let mut host = Host::start();
    let message = |command: u16, size: u32, flags: u32, body: &[u8]| {
        let head = u32::from(command) << 16 | 1;
        [&words(&[head, size, flags, 0])[..], body].concat()
    };
    let whole = |command: u16, body: &[u8]| {
        message(command, (HEADER + body.len()) as u32, flags::NO_REPLY, body)
    };
    let mut write = [0; 20];
    write[12..16].copy_from_slice(&4u32.to_ne_bytes());
    let mut half = whole(command::DMA_MAP, &[0; 32]);
    half.truncate(20);
    assert!(!is_hung_up_on(&mut host, &whole(command::REGION_WRITE, &write), 0), "it is good");
    let irqs = |count: u32| words(&[20, irq::TRIGGER | irq::DATA_EVENTFD, 2, 0, count]);
    assert!(!is_hung_up_on(&mut host, &whole(command::DEVICE_SET_IRQS, &irqs(2)), 2), "good");
    let reply = message(command::REGION_READ, 16, flags::REPLY, &[]);
    assert!(!is_hung_up_on(&mut host, &reply, 0), "it is answered with an error");
    let odd = message(command::DEVICE_RESET, 16, 1 << 31, &[]);
    assert!(!is_hung_up_on(&mut host, &odd, 0), "so are odd flags");
    let version = whole(command::VERSION, &[0; 4]);
    assert!(!is_hung_up_on(&mut host, &version, 0), "so is a second version");
    for (what, bytes, fds) in [
        ("no size", message(command::REGION_READ, 0, 0, &[]), 0),
        ("a large one", message(command::REGION_READ, u32::MAX, 0, &[]), 0),
        ("half a message with a file", half, 1),
        ("too many descriptors", whole(command::DEVICE_SET_IRQS, &irqs(33)), 33),
        (
            "a bug of the device's",
            {
                let mut bug = write;
                bug[16..].copy_from_slice(&0xdeadu32.to_ne_bytes());
                whole(command::REGION_WRITE, &bug)
            },
            0,
        ),
    ] {
        assert!(is_hung_up_on(&mut host, &bytes, fds), "{what}");
    }
    // The version comes first: what comes before it is answered with an error.
    let mut early = host.plug(0);
    early.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let info = message(command::DEVICE_GET_INFO, 32, 0, &[0; 16]);
    std::io::Write::write_all(&mut early, &info).unwrap();
    let mut answer = [0; HEADER];
    std::io::Read::read_exact(&mut early, &mut answer).unwrap();
    assert_eq!(answer[8..12], (flags::REPLY | flags::ERROR).to_ne_bytes());
    host.remove(0);
    // The next front end finds a working port.
    let (mut a, mut b) = (Guest::start(host.plug(0), 2), Guest::start(host.plug(1), 1));
    exchange(&mut a, &mut b, 9);
}

#[test]
fn descriptors_go_with_the_message_they_came_with() {
    let mut host = Host::start();
    let mut guest = Guest::start(host.plug(0), 2);
    let right = memfd(0x1000);
    let map = |address: u64| {
        let body = [words(&[32, 3]), longs(&[0, address, 0x1000])].concat();
        let head = u32::from(command::DMA_MAP) << 16 | 5;
        [words(&[head, 48, flags::NO_REPLY, 0]), body].concat()
    };
    // The kernel returns all of these messages together, because only the last one comes with a
    // file.
    let mut socket = guest.client.socket().try_clone().unwrap();
    std::io::Write::write_all(&mut socket, &[map(1 << 40), map(2 << 40)].concat()).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [right.as_fd()];
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let last = map(3 << 40);
    let parts = [std::io::IoSlice::new(&last)];
    rustix::net::sendmsg(&socket, &parts, &mut control, rustix::net::SendFlags::empty()).unwrap();
    guest.read(CAUSE);
    host.listen();
    let session = host.kept[&(0, "session".into())].0.clone();
    let records = host.kept.remove(&(0, "ranges".into())).unwrap().1.unwrap();
    let ranges = crate::attach::card::recorded(records, &session["commit"]);
    assert_eq!(ranges, [(0, true), (1 << 40, false), (2 << 40, false), (3 << 40, true)]);
}

#[test]
fn a_front_end_that_ends_at_any_moment_leaves_a_port_for_the_next() {
    let mut host = Host::start();
    let mut b = Guest::start(host.plug(1), 0);
    let seen = AtomicU32::new(0);
    for round in 0..20u32 {
        let mut a = Guest::start(host.plug(0), 2);
        std::thread::scope(|scope| {
            let socket = a.client.socket().try_clone().unwrap();
            scope.spawn(|| {
                for text in 0..u8::MAX {
                    let body = [0; 20];
                    if a.client.say(command::REGION_WRITE, true, &body, &[]).is_err() {
                        break;
                    }
                    seen.fetch_add(u32::from(text > 0), Ordering::Relaxed);
                }
            });
            std::thread::sleep(Duration::from_micros(u64::from(20 * round)));
            let _ = socket.shutdown(std::net::Shutdown::Both);
        });
        host.remove(0);
    }
    let mut a = Guest::start(host.plug(0), 1);
    exchange(&mut a, &mut b, 77);
}
