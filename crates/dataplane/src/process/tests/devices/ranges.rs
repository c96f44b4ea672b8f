//! Memory of thousands of ranges, as behind an IOMMU.

use super::*;

const PAGE: u64 = 4096;
/// As many ranges as a session may have, beside that of the guest's other memory.
const PAGES: u64 = 8191;
/// Guest-physical address of the first page. Registers of the device hold 32 bits.
const BASE: u64 = 0x1000_0000;
/// Messages before the front end waits for an answer.
const BURST: u64 = 64;

/// Where a page is in the file: backwards, so that none follows the one before it.
fn offset(page: u64) -> u64 {
    (PAGES - page) * PAGE
}

/// The pages in an order in which neighbours are far apart.
fn scattered() -> impl Iterator<Item = u64> {
    (0..PAGES).map(|n| n * 3331 % PAGES)
}

/// A front end that says what to map or unmap in bursts, and its file.
struct Mapper {
    guest: Guest,
    file: OwnedFd,
    pages: Arc<Mapping>,
}

impl Mapper {
    fn new(guest: Guest) -> Self {
        let file = memfd((PAGES + 1) * PAGE);
        let pages = Mapping::unsealed(file.as_fd(), ((PAGES + 1) * PAGE) as usize).unwrap();
        Self { guest, file, pages }
    }

    fn map(&mut self, page: u64, posted: bool) {
        let body = longs(&[offset(page), BASE + page * PAGE, PAGE]);
        let body = [words(&[32, 3]), body].concat();
        self.guest.client.say(command::DMA_MAP, posted, &body, &[self.file.as_fd()]).unwrap();
        if !posted {
            self.guest.client.reply(command::DMA_MAP).unwrap();
        }
    }

    fn unmap(&mut self, page: u64, posted: bool) {
        let body = [words(&[24, 0]), longs(&[BASE + page * PAGE, PAGE])].concat();
        self.guest.client.say(command::DMA_UNMAP, posted, &body, &[]).unwrap();
        if !posted {
            self.guest.client.reply(command::DMA_UNMAP).unwrap();
        }
    }

    fn map_all(&mut self) {
        for (n, page) in (1..).zip(scattered()) {
            self.map(page, n % BURST != 0 && n != PAGES);
        }
    }

    /// Has the device receive frames into a page, until one with this text is there.
    fn receive_into(&mut self, from: &mut Guest, page: u64, text: u8) {
        self.guest.write(0x10, (BASE + page * PAGE) as u32);
        wait_until("a frame", || {
            self.guest.offer();
            from.send(1, 2, text);
            self.guest.read(0x14);
            self.pages.bytes(offset(page) as usize + 14, 50).unwrap().to_vec() == [text; 50]
        });
    }
}

/// Does something on another thread, while the supervisor reads what it is told, and `also` is
/// done.
fn meanwhile<T: Send>(
    host: &mut Host,
    mut also: impl FnMut(),
    work: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(work);
        while !thread.is_finished() {
            also();
            host.listen();
        }
        thread.join().unwrap()
    })
}

/// Objective: a front end that maps as many pages as it may, in the worst order, is served; a
/// process that goes on with its session finds all of them; what is unmapped is not touched.
/// Meanwhile, others are served.
///
/// Steps: map all pages while another front end asks the control thread; receive into some; one
/// page more is refused; replace the process; receive again; unmap every eighth page and map it
/// again; unmap all. Times are only printed.
#[test]
fn thousands_of_pages_are_mapped_kept_and_unmapped() {
    const NOSPC: i32 = 28;
    let mut host = Host::start();
    let mut mapper = Mapper::new(Guest::start(host.plug(0), 2));
    let mut other = Guest::start(host.plug(1), 2);
    let (mut served, mut slowest, start) = (0, Duration::ZERO, Instant::now());
    let also = || {
        let began = Instant::now();
        other.client.ask(command::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]), &[]).unwrap();
        (served, slowest) = (served + 1, slowest.max(began.elapsed()));
    };
    meanwhile(&mut host, also, || mapper.map_all());
    println!("all are mapped after {:?}", start.elapsed());
    println!("{served} messages of another front end were served, one in {slowest:?}");
    assert!(served > 1);
    let kept = host.kept.keys().filter(|(id, _)| *id == 0).count();
    assert!(kept < 10, "{kept} parts of a session are kept");
    let places = [0, 1, 4095, 4096, PAGES - 1];
    let text = |page: u64| page as u8 | 1;
    places.iter().for_each(|page| mapper.receive_into(&mut other, *page, text(*page)));
    let more = [words(&[32, 3]), longs(&[0, 1 << 40, PAGE])].concat();
    let file = mapper.file.try_clone().unwrap();
    assert_eq!(mapper.guest.refused(command::DMA_MAP, &more, &[file.as_fd()]), NOSPC);
    host.replace(|| ());
    places.iter().for_each(|page| mapper.receive_into(&mut other, *page, !text(*page)));
    let some = || (1..).zip((0..PAGES).step_by(8));
    let start = Instant::now();
    meanwhile(
        &mut host,
        || (),
        || {
            some().for_each(|(n, page)| mapper.unmap(page, n % BURST != 0));
            some().for_each(|(n, page)| mapper.map(page, n % BURST != 0));
        },
    );
    println!("{} are unmapped and mapped after {:?}", some().count(), start.elapsed());
    let start = Instant::now();
    meanwhile(
        &mut host,
        || (),
        || {
            some().take(64).for_each(|(_, page)| mapper.unmap(page, false));
            some().take(64).for_each(|(_, page)| mapper.map(page, false));
        },
    );
    println!("64 of them, one at a time, after {:?}", start.elapsed());
    mapper.receive_into(&mut other, 4096, 77);
    mapper.guest.offer();
    mapper.guest.client.dma_unmap(BASE, PAGES * PAGE).unwrap();
    mapper.pages.all().fill(0);
    other.send(1, 2, 78);
    other.read(CAUSE);
    assert_eq!(mapper.pages.bytes(offset(4096) as usize, 64).unwrap().to_vec(), [0; 64]);
    let state = state::State::map(&host.memory, &config()).unwrap();
    let bytes = || state.port(0).unwrap().memory().bytes;
    wait_until("the pages to be given back", || bytes() == MEMORY);
}
