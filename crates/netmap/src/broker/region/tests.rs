use super::*;

const SHAPE: Shape = Shape { tx_rings: 2, rx_rings: 1, tx_slots: 64, rx_slots: 128, host: [0; 2] };

fn region() -> Region {
    Region::create(5, 0, SHAPE.geometry(0)).unwrap()
}

fn u64_at(region: &Region, at: u64) -> u64 {
    let mut bytes = [0; 8];
    region.read(at, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn what_a_program_does_not_say_has_a_default_and_what_is_too_much_a_limit() {
    let shape = Shape::asked((0, 0), (99, 99_999));
    let limits = Shape { tx_rings: 1, rx_rings: 16, tx_slots: 1024, rx_slots: 4096, host: [0; 2] };
    assert_eq!(shape, limits);
}

#[test]
fn the_default_region_has_as_many_buffers_as_the_kernels() {
    let geometry = Shape::asked((0, 0), (0, 0)).geometry(0);
    assert_eq!((geometry.buf_num, geometry.ring_size, geometry.if_size), (20_482, 20_480, 1024));
    let info = pools(&geometry, 7);
    assert_eq!(info.memsize, geometry.region_size());
    assert_eq!(info.buf_offset, geometry.buf_offset());
    assert_eq!(global().region_size(), 343_019_520, "as programs know it from the kernel");
}

#[test]
fn an_interface_says_where_its_rings_are() {
    let mut region = region();
    let tx = region.add_rings(Direction::Send, (2, 64), Fill::Own).unwrap();
    let rx = region.add_rings(Direction::Receive, (1, 128), Fill::Own).unwrap();
    let interface = Interface {
        name: "vale0:p",
        tx,
        rx,
        bound: [1..2, 0..1],
        host: [RingSpec::default(); 2],
        bound_host: [0..0, 0..0],
    };
    let (number, extra) = region.add_interface(&interface, 3).unwrap();
    assert_eq!((number, extra), (0, 3));
    // Send rings, their host ring, receive rings, their host ring. Rings that are not bound have
    // offset 0.
    let offsets: Vec<u64> = (0..5).map(|i| u64_at(&region, IF_HEADER as u64 + 8 * i)).collect();
    let [second, third] = [1, 2].map(|ring| region.geometry.ring_offset(ring));
    assert_eq!(offsets, [0, second, 0, third, 0]);
    // The list of extra buffers.
    let mut next = region.read_u32(BUFS_HEAD).unwrap();
    let mut count = 0;
    while next != 0 {
        count += 1;
        next = region.read_u32(region.buffer_offset(next)).unwrap();
    }
    assert_eq!(count, 3);
}

#[test]
fn twins_have_the_same_buffers_and_only_one_gives_them_back() {
    let mut region = region();
    let free = region.free_buffers();
    let tx = region.add_rings(Direction::Send, (2, 64), Fill::Own).unwrap();
    let rx = region.add_rings(Direction::Receive, (2, 64), Fill::TwinOf(tx)).unwrap();
    for ring in 0..2 {
        let [ours, theirs] = [tx, rx].map(|spec| region.buffers_in(spec.first + ring, 64));
        assert_eq!(ours, theirs);
    }
    assert_eq!(region.free_buffers(), free - 128);
    region.remove_rings(rx, false);
    region.remove_rings(tx, true);
    assert_eq!(region.free_buffers(), free);
}

#[test]
fn extra_buffers_come_back_even_if_their_list_is_hostile() {
    let mut region = region();
    let free = region.free_buffers();
    let none = RingSpec::default();
    let interface = Interface {
        name: "x",
        tx: none,
        rx: none,
        bound: [0..0, 0..0],
        host: [RingSpec::default(); 2],
        bound_host: [0..0, 0..0],
    };
    let (number, _) = region.add_interface(&interface, 4).unwrap();
    // The second buffer of the list points to itself.
    let first = region.read_u32(BUFS_HEAD).unwrap();
    let second = region.read_u32(region.buffer_offset(first)).unwrap();
    region.write(region.buffer_offset(second), &second.to_le_bytes()).unwrap();
    region.remove_interface(number);
    assert_eq!(region.free_buffers(), free - 2, "the rest of the list is lost");
    // With the last user, everything is freed.
    region.join();
    region.leave();
    assert_eq!(region.free_buffers(), free);
    for head in [0, 1, u32::MAX] {
        let (number, _) = region.add_interface(&interface, 0).unwrap();
        region.write(region.interface_offset(number) + BUFS_HEAD, &head.to_le_bytes()).unwrap();
        region.remove_interface(number);
        assert_eq!(region.free_buffers(), free);
    }
}

#[test]
fn a_region_that_is_used_up_is_as_it_was() {
    let mut region = region();
    let free = region.free_buffers();
    let mut made = Vec::new();
    let refused = loop {
        match region.add_rings(Direction::Send, (1, 128), Fill::Own) {
            Ok(spec) => made.push(spec),
            Err(error) => break error,
        }
    };
    assert_eq!((refused, region.free_buffers()), (Errno::NOMEM, free % 128));
    made.into_iter().for_each(|spec| region.remove_rings(spec, true));
    assert_eq!(region.free_buffers(), free);
    assert_eq!(
        region.add_rings(Direction::Send, (1, 4096), Fill::Own),
        Err(Errno::NOMEM),
        "too long"
    );
}
