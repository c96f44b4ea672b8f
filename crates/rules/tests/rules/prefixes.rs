//! Tables of prefixes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::rules::{Prefix, Prefixes};
use proptest::prelude::*;

fn prefix() -> impl Strategy<Value = Prefix> {
    prop_oneof![
        (0u32..1 << 10, 8u8..=32).prop_map(|(ip, len)| {
            Prefix::new(Ipv4Addr::from_bits(0x0a00_0000 | ip << 7).into(), len).unwrap()
        }),
        (any::<u16>(), 16u8..=128).prop_map(|(low, len)| {
            Prefix::new(IpAddr::from([0x2001, 0, 0, 0, 0, 0, 0, low % 8]), len).unwrap()
        }),
    ]
}

proptest! {
    /// A table contains what any of its prefixes contains, after any changes.
    #[test]
    fn a_table_is_the_union_of_its_prefixes(
        changes in proptest::collection::vec((prefix(), any::<bool>()), 1..60),
        asked in proptest::collection::vec(any::<u32>(), 60),
    ) {
        let (table, mut truth) = (Prefixes::default(), BTreeSet::new());
        for (prefix, add) in changes {
            let changed = if add { table.add(prefix) } else { table.remove(prefix) };
            prop_assert_eq!(changed, if add { truth.insert(prefix) } else { truth.remove(&prefix) });
            prop_assert_eq!(table.len(), truth.len());
            for bits in &asked {
                let v4 = IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 | (bits % (1 << 17))));
                let v6 = IpAddr::from([0x2001, 0, 0, 0, 0, 0, 0, (bits % 8) as u16]);
                for ip in [v4, v6] {
                    let expected = truth.iter().any(|prefix| prefix.contains(ip));
                    prop_assert_eq!(table.contains(ip), expected, "{} in {:?}", ip, truth);
                }
            }
        }
    }
}

/// While other entries change, no address that stays in the table is missing for a moment.
#[test]
fn an_address_stays_in_the_table_while_others_change() {
    let table = Prefixes::default();
    let stays: Vec<Prefix> = ["10.1.2.3", "10.1.2.128/25", "10.2.0.0/16", "10.3.7.0/24"]
        .map(|p| p.parse().unwrap())
        .into();
    stays.iter().for_each(|prefix| assert!(table.add(*prefix)));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looked = 0u64;
            while !done.load(Ordering::Relaxed) || looked < 1000 {
                assert!(stays.iter().all(|prefix| table.contains(prefix.ip())));
                looked += 1;
            }
        });
        for i in 0..600u32 {
            for text in ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.4"] {
                let prefix: Prefix = text.parse().unwrap();
                assert!(if i % 2 == 0 { table.add(prefix) } else { table.remove(prefix) });
            }
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert!(!table.contains("10.1.2.4".parse().unwrap()));
}
