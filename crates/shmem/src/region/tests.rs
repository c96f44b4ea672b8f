use super::*;
use crate::Cursor;
use crate::budget::{Budget, Extent, Limits};

#[test]
fn a_region_cannot_be_resized_by_any_holder() {
    let memfd = Memfd::create("test", 5000, Pages::Small).unwrap();
    assert_eq!(memfd.len(), 8192);
    assert!(rustix::fs::ftruncate(&memfd, 0).is_err());
    assert!(rustix::fs::ftruncate(&memfd, 1 << 20).is_err());
}

#[test]
fn an_unsealed_file_is_refused() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    assert!(matches!(Memfd::adopt(file), Err(RegionError::NotSealed)));
}

#[test]
fn two_mappings_see_the_same_words() {
    let memfd = Memfd::create("test", 4096, Pages::Small).unwrap();
    let (ours, theirs) = (memfd.map().unwrap(), memfd.map().unwrap());
    let (write, read) = (ours.shared::<Cursor>(64).unwrap(), theirs.shared::<Cursor>(64).unwrap());
    write.publish(77);
    assert_eq!(read.observe(), 77);
    assert!(ours.shared::<Cursor>(4093).is_none(), "misaligned");
    assert!(ours.shared::<Cursor>(4096).is_none(), "outside");
    assert!(ours.shared_slice::<Cursor>(4092, 2).is_none(), "half outside");
}

#[test]
fn what_is_lent_is_charged_for_and_not_dumped() {
    let file = rustix::fs::memfd_create("lent", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    let limit = Extent { bytes: 16 << 10, mappings: 2 };
    let limits = Limits { port: limit, all: Extent { bytes: 1 << 20, mappings: 64 }, ports: 1 };
    let account = Account::new(&Budget::new(limits), 1000);
    let lent = |offset, len| Mapping::lent(file.as_fd(), offset, len, &account);
    let first = lent(4096, 100).unwrap();
    assert_eq!(account.used(), Extent { bytes: 4096, mappings: 1 });
    first.bytes(0, 5).unwrap().copy_in(b"there");
    let mut there = [0; 5];
    rustix::io::pread(&file, &mut there, 4096).unwrap();
    assert_eq!(&there, b"there", "it is the file's second page");
    assert!(matches!(lent(0, 12289), Err(RegionError::OverBudget(_))));
    let copy = Mapping::reserved(12 << 10, &account).unwrap();
    assert!(matches!(lent(0, 1), Err(RegionError::OverBudget(_))), "of mappings");
    for mapping in [&first, &copy] {
        assert!(flags_of(mapping).contains(&"dd".to_owned()), "{:?}", flags_of(mapping));
    }
    drop((first, copy));
    assert_eq!(account.used(), Extent::default());
    assert!(matches!(lent(0, usize::MAX), Err(RegionError::Map { .. })));
}

/// The flags that the kernel reports for a mapping.
fn flags_of(mapping: &Mapping) -> Vec<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", mapping.address());
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"));
    flags.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn punched_pages_read_as_zero() {
    let memfd = Memfd::create("test", 8192, Pages::Small).unwrap();
    let map = memfd.map().unwrap();
    map.bytes(4096, 4).unwrap().copy_in(&[1, 2, 3, 4]);
    memfd.punch(4096, 4096).unwrap();
    assert_eq!(map.bytes(4096, 4).unwrap().to_vec(), [0; 4]);
}
