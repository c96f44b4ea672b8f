//! Ranges in any order and number, and what a successor finds of them.

use std::time::Instant;

use jail::strangers::Descriptor;
use rustix::fs::MemfdFlags;
use shmem::Bytes;
use shmem::budget::{Budget, Extent, Limits};

use super::super::session::Session;
use super::*;

const BASE: u64 = 1 << 32;

fn memfd(len: u64) -> Arc<Descriptor> {
    let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    Arc::new(file.into())
}

/// Another descriptor of the same file, as a front end sends one with each range.
fn again(file: &Arc<Descriptor>) -> Arc<Descriptor> {
    Arc::new(std::os::fd::AsFd::as_fd(&**file).try_clone_to_owned().unwrap().into())
}

fn page(guest: u64, offset: u64) -> Region {
    let guest = BASE + guest * PAGE;
    Region { guest, size: PAGE, user: guest, offset: offset * PAGE }
}

fn map(ranges: &mut Ranges, region: Region, file: &Arc<Descriptor>) -> Result<(), MemoryError> {
    assert!(ranges.is_free(region), "{region:?}");
    let place = ranges.place(region, again(file))?;
    ranges.add(region, true, Some(place)).unwrap();
    Ok(())
}

fn ranges_of(pages: &[(u64, u64)], file: &Arc<Descriptor>) -> Ranges {
    let mut ranges = Ranges::new(&Account::unlimited());
    pages.iter().for_each(|(at, offset)| map(&mut ranges, page(*at, *offset), file).unwrap());
    ranges
}

fn unmap(ranges: &mut Ranges, at: u64, pages: u64) -> Result<u64, Errno> {
    ranges.remove(BASE + at * PAGE, BASE + (at + pages) * PAGE)
}

/// The sizes in pages of the pieces of `pages` pages from page 0 on; 0 where memory ends.
fn pieces(ranges: &Ranges, pages: u64) -> Vec<usize> {
    let mut found = Vec::new();
    let table = ranges.table();
    let visit = |bytes: Bytes<'_>| found.push(bytes.len() / PAGE as usize);
    if !table.near().for_each(BASE, (pages * PAGE) as u32, visit) {
        found.push(0);
    }
    found
}

#[test]
fn pages_that_follow_each_other_are_one_piece_until_one_of_them_goes() {
    let file = memfd(64 * PAGE);
    let mut ranges = ranges_of(&[(3, 13), (0, 10), (2, 12), (1, 11), (4, 20), (5, 21)], &file);
    assert_eq!(pieces(&ranges, 6), [4, 2]);
    assert_eq!((ranges.files.len(), ranges.windows.len()), (1, 1));
    assert_eq!(unmap(&mut ranges, 2, 1), Ok(PAGE));
    assert_eq!(pieces(&ranges, 6), [2, 0]);
    // The same page again, from elsewhere in the file.
    map(&mut ranges, page(2, 30), &file).unwrap();
    assert_eq!(pieces(&ranges, 6), [2, 1, 1, 2]);
    assert_eq!(unmap(&mut ranges, 2, 1), Ok(PAGE));
    map(&mut ranges, page(2, 12), &file).unwrap();
    assert_eq!(pieces(&ranges, 6), [4, 2]);
    assert_eq!(unmap(&mut ranges, 0, 100), Ok(6 * PAGE));
    assert_eq!((ranges.files.len(), ranges.windows.len(), ranges.mapped), (0, 0, 0));
    assert!(!ranges.lack_memory());
}

#[test]
fn ranges_that_overlap_or_are_unmapped_in_part_are_refused() {
    let file = memfd(64 * PAGE);
    let mut ranges = ranges_of(&[(1, 1)], &file);
    let large = Region { size: 4 * PAGE, ..page(4, 4) };
    map(&mut ranges, large, &file).unwrap();
    for (at, size, free) in [
        (0, 1, true),
        (0, 2, false),
        (1, 1, false),
        (2, 2, true),
        (2, 3, false),
        (0, 20, false),
        (5, 1, false),
        (7, 9, false),
        (8, 1, true),
        (8, 0, false),
    ] {
        let region = Region { size: size * PAGE, ..page(at, 0) };
        assert_eq!(ranges.is_free(region), free, "{at} {size}");
    }
    let wraps = Region { guest: u64::MAX, ..page(0, 0) };
    assert!(!ranges.is_free(wraps));
    for (at, count) in [(4, 3), (5, 3), (5, 1), (1, 4), (5, 0)] {
        assert_eq!(unmap(&mut ranges, at, count), Err(Errno::INVAL), "{at} {count}");
    }
    assert_eq!((unmap(&mut ranges, 2, 2), unmap(&mut ranges, 1, 0)), (Ok(0), Ok(0)));
    assert_eq!(ranges.by_address.len(), 2);
    assert_eq!(ranges.remove(0, u64::MAX), Ok(5 * PAGE));
    assert!(ranges.by_address.is_empty());
}

/// Limits of a port of this many bytes and mappings.
fn account(bytes: u64, mappings: u64) -> Arc<Account> {
    let all = Extent { bytes: 8 * bytes, mappings: 8 * mappings };
    let limits = Limits { port: Extent { bytes, mappings }, all, ports: 1 };
    Account::new(&Budget::new(limits), 1000)
}

/// Objective: pages share mappings that cost what they map; where the budget does not allow wide
/// ones, pages are mapped alone.
#[test]
fn pages_share_wide_windows_as_far_as_the_budget_allows() {
    let file = memfd(3 * WINDOW + PAGE);
    let pages = WINDOW / PAGE;
    let of = |account: &Arc<Account>, offsets: &[u64]| {
        let mut ranges = Ranges::new(account);
        for (at, offset) in (0..).zip(offsets) {
            map(&mut ranges, page(2 * at, *offset), &file).unwrap();
        }
        ranges
    };
    let large = account(16 * WINDOW, 8);
    let mut ranges = of(&large, &[0, 1, pages - 1, 7 * pages / 2, pages + 1][..3]);
    assert_eq!(large.used(), Extent { bytes: WINDOW, mappings: 1 });
    // The last window ends with the file.
    map(&mut ranges, page(100, 3 * pages), &file).unwrap();
    assert_eq!(large.used(), Extent { bytes: WINDOW + PAGE, mappings: 2 });
    assert_eq!(unmap(&mut ranges, 0, 50), Ok(3 * PAGE));
    assert_eq!(large.used(), Extent { bytes: PAGE, mappings: 1 });
    drop(ranges);
    assert_eq!(large.used(), Extent::default());
    let small = account(8 * PAGE, 8);
    let mut ranges = of(&small, &[0, 1, pages - 1]);
    assert_eq!(small.used(), Extent { bytes: 3 * PAGE, mappings: 3 });
    assert_eq!((small.refused(), pieces(&ranges, 1)), (0, vec![1]));
    (3..8).for_each(|at| map(&mut ranges, page(2 * at, 2 * at), &file).unwrap());
    let over = map(&mut ranges, page(100, 100), &file).unwrap_err();
    assert!(matches!(over, MemoryError::OverBudget(_)), "{over}");
    // A range that a window has costs nothing more.
    map(&mut ranges, page(200, 0), &file).unwrap();
}

/// Large ranges are mapped as they come, as long as there are few.
#[test]
fn only_many_ranges_are_mapped_wide() {
    let file = memfd(2 * WINDOW);
    let account = account(16 * WINDOW, 600);
    let mut ranges = Ranges::new(&account);
    let large = |n: u64| Region { size: 4 * PAGE, ..page(16 * n, 16 * n) };
    (0..EXACT as u64).for_each(|n| map(&mut ranges, large(n), &file).unwrap());
    let exact = Extent { bytes: EXACT as u64 * 4 * PAGE, mappings: EXACT as u64 };
    assert_eq!(account.used(), exact);
    (EXACT as u64..8000).for_each(|n| map(&mut ranges, large(n), &file).unwrap());
    assert_eq!(account.used().mappings, exact.mappings + 1);
    assert_eq!(account.used().bytes, exact.bytes + WINDOW);
}

/// The positions of `0..count` in an order in which neighbours are far apart.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |n| n * 3331 % count)
}

/// Objective: as many ranges as are allowed, none of which follows another in the file, are mapped
/// in the worst order, found, unmapped one by one and all at once; one file and few mappings serve
/// them. The time is only said, since machines differ; what a message may cost is bounded by the
/// number of steps, which the structure gives.
#[test]
fn all_ranges_are_found_whatever_their_order() {
    const ALL: u64 = MAX_RANGES as u64;
    let file = memfd(2 * ALL * PAGE);
    let mut ranges = Ranges::new(&Account::unlimited());
    let began = Instant::now();
    for at in scattered(ALL) {
        // Backwards in the file, with gaps.
        map(&mut ranges, page(at, 2 * (ALL - at) - 1), &file).unwrap();
    }
    println!("{ALL} ranges mapped in {:?}", began.elapsed());
    let over = map(&mut ranges, page(ALL, 0), &file).unwrap_err();
    assert!(matches!(over, MemoryError::Ranges(MAX_RANGES)), "{over}");
    assert_eq!(ranges.add(page(ALL, 0), true, None), Err(Errno::NOSPC));
    assert_eq!((ranges.files.len(), ranges.windows.len()), (1, 1));
    let began = Instant::now();
    let table = ranges.table();
    println!("their table made in {:?}", began.elapsed());
    for at in 0..ALL {
        table.bytes(BASE + at * PAGE, 8).unwrap().copy_in(&at.to_ne_bytes());
        assert!(table.bytes(BASE + at * PAGE, PAGE as u32 + 1).is_none());
    }
    let mut word = [0; 8];
    for at in (0..ALL).step_by(97) {
        rustix::io::pread(&*file, &mut word, (2 * (ALL - at) - 1) * PAGE).unwrap();
        assert_eq!(u64::from_ne_bytes(word), at);
    }
    drop(table);
    let began = Instant::now();
    for at in scattered(ALL).take(ALL as usize / 2) {
        assert_eq!(unmap(&mut ranges, at, 1), Ok(PAGE));
    }
    println!("half of them unmapped in {:?}", began.elapsed());
    for at in scattered(ALL).take(ALL as usize / 2) {
        map(&mut ranges, page(at, at), &file).unwrap();
    }
    let began = Instant::now();
    assert_eq!(ranges.remove(0, u64::MAX), Ok(ALL * PAGE));
    println!("all unmapped in {:?}", began.elapsed());
    assert_eq!((ranges.files.len(), ranges.windows.len()), (0, 0));
}

#[test]
fn files_are_limited() {
    let mut ranges = Ranges::new(&Account::unlimited());
    for n in 0..MAX_FILES as u64 {
        map(&mut ranges, page(n, 0), &memfd(PAGE)).unwrap();
    }
    let over = map(&mut ranges, page(1 << 20, 0), &memfd(PAGE)).unwrap_err();
    assert!(matches!(over, MemoryError::Files(MAX_FILES)), "{over}");
    assert_eq!(unmap(&mut ranges, 7, 1), Ok(PAGE));
    map(&mut ranges, page(1 << 20, 0), &memfd(PAGE)).unwrap();
    let mut numbers: Vec<_> = ranges.files.iter().map(|file| file.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), MAX_FILES);
}

/// A file that is no memory, or too short, leaves nothing behind.
#[test]
fn what_cannot_be_mapped_is_not_held() {
    let mut ranges = Ranges::new(&Account::unlimited());
    let short = ranges.place(page(0, 1), memfd(PAGE)).unwrap_err();
    assert!(matches!(short, MemoryError::Short(_)), "{short}");
    let other = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let other = ranges.place(page(0, 1), Arc::new(other.into())).unwrap_err();
    assert!(matches!(other, MemoryError::NoMemory), "{other}");
    assert!(ranges.files.is_empty() && ranges.windows.is_empty());
    ranges.add(page(0, 0), true, None).unwrap();
    assert!(ranges.lack_memory());
    assert!(ranges.table().bytes(BASE, 1).is_none());
}

/// Pages without files that follow each other are copied as one piece.
#[test]
fn a_copy_has_one_mapping_for_neighbours() {
    let account = account(1 << 30, 2);
    let mut ranges = Ranges::new(&account);
    scattered(1000).for_each(|at| ranges.add(page(at, 0), true, None).unwrap());
    ranges.add(page(1000, 0), false, None).unwrap();
    let copy = ranges.copy().unwrap();
    assert_eq!(account.used(), Extent { bytes: 1001 * PAGE, mappings: 2 });
    assert!(copy.is_copy() && copy.bytes(BASE, 1000 * PAGE as u32).is_some());
    assert!(copy.bytes_to_read(BASE + 1000 * PAGE, 1).is_some());
}

fn successor(ranges: &Ranges) -> Option<Ranges> {
    let mut kept = Kept::new();
    let commit = ranges.keep(&mut kept);
    Ranges::restore(&kept, commit, &Account::unlimited())
}

fn listed(ranges: &Ranges) -> Vec<(Region, bool, bool)> {
    let list = |range: &Range| (range.region, range.writable, range.place.is_some());
    ranges.by_address.values().map(list).collect()
}

#[test]
fn a_successor_has_all_ranges_and_goes_on() {
    let file = memfd(1 << 26);
    let mut ranges = ranges_of(&[], &file);
    for at in scattered(MAX_RANGES as u64) {
        map(&mut ranges, page(at, at), &file).unwrap();
    }
    assert_eq!(unmap(&mut ranges, 100, 60), Ok(60 * PAGE));
    ranges.add(page(100, 0), false, None).unwrap();
    let other = memfd(PAGE);
    map(&mut ranges, page(101, 0), &other).unwrap();
    let mut kept = Kept::new();
    ranges.keep(&mut kept);
    assert_eq!(kept.len(), 3, "two files and the records");
    let mut next = successor(&ranges).unwrap();
    assert_eq!(listed(&next), listed(&ranges));
    assert_eq!((next.files.len(), next.windows.len(), next.commit), (2, 2, ranges.commit));
    // The 58 records that are free are found, and no more.
    (102..160).for_each(|at| map(&mut next, page(at, at), &file).unwrap());
    let over = map(&mut next, page(1 << 20, 0), &file).unwrap_err();
    assert!(matches!(over, MemoryError::Ranges(_)), "{over}");
    let third = successor(&next).unwrap();
    assert_eq!(listed(&third), listed(&next));
}

/// Objective: a process that dies before the supervisor has a message's effects leaves none of
/// them, and one that dies after it leaves all.
#[test]
fn a_successor_finds_a_message_done_or_not_done() {
    let file = memfd(64 * PAGE);
    let mut ranges = ranges_of(&[(0, 0), (1, 1), (2, 2)], &file);
    let mut kept = Kept::new();
    let before = ranges.keep(&mut kept);
    let restore = |kept: &Kept, commit: Commit| {
        let next = Ranges::restore(kept, commit, &Account::unlimited()).unwrap();
        next.by_address.values().map(|range| (range.region.guest - BASE) / PAGE).collect::<Vec<_>>()
    };
    map(&mut ranges, page(3, 3), &file).unwrap();
    let mapped = ranges.keep(&mut kept);
    assert_eq!(restore(&kept, mapped), [0, 1, 2, 3]);
    unmap(&mut ranges, 1, 2).unwrap();
    let unmapped = ranges.keep(&mut kept);
    assert_eq!(restore(&kept, mapped), [0, 1, 2, 3]);
    assert_eq!(restore(&kept, unmapped), [0, 3]);
    // The restored one has removed them from the records for good.
    assert_eq!(restore(&kept, mapped), [0, 3]);
    map(&mut ranges, page(1, 1), &file).unwrap();
    assert_eq!(restore(&kept, ranges.keep(&mut Kept::new())), [0, 1, 3]);
    assert_eq!(restore(&kept, before), [0], "numbers after the commit do not count");
    assert!(Ranges::restore(&Kept::new(), before, &Account::unlimited()).is_none());
    kept.retain(|name, _| name == RECORDS);
    assert!(Ranges::restore(&kept, before, &Account::unlimited()).is_none(), "a file is missing");
}

/// Objective: a live upgrade from a version that kept ranges in the session's state goes on with
/// them, and keeps them in its own way.
#[test]
fn the_ranges_of_an_earlier_version_are_taken_over() {
    let identity = (nic::kind::I82574L.identity)(false);
    let account = Account::unlimited();
    let [first, second] = [page(0, 1), page(1, 2)];
    let ranges = serde_json::json!([
        [first, true, 5, true],
        [second, false, 7, true],
        [page(9, 0), true, 8, false]
    ]);
    let session = serde_json::json!({
        "agreed": true, "ranges": ranges, "enabled": [false, false, false], "last": [3, [1, 2]],
    });
    let file = memfd(8 * PAGE);
    let mut kept = Kept::from([
        ("session".into(), (session, None)),
        ("memory 5".into(), (serde_json::Value::Null, Some(Arc::clone(&file)))),
        ("memory 7".into(), (serde_json::Value::Null, Some(again(&file)))),
    ]);
    for round in 0..2 {
        let mut session = Session::restore(&identity, &kept, &account).unwrap();
        let memory = session.memory();
        assert!(memory.bytes(BASE, PAGE as u32).is_some(), "{round}");
        assert!(memory.bytes(BASE + PAGE, 1).is_none());
        assert!(memory.bytes_to_read(BASE + PAGE, PAGE as u32).is_some());
        assert!(memory.bytes_to_read(BASE + 9 * PAGE, 1).is_none());
        assert_eq!(session.last, (3, vec![1, 2]));
        kept = session.kept();
        let names: Vec<_> = kept.keys().map(String::as_str).collect();
        assert_eq!(names, ["file 0", "ranges", "session"]);
    }
    kept.remove("ranges");
    assert!(Session::restore(&identity, &kept, &account).is_none());
}
