//! Requests that cross from guest to guest, and the log of written pages.

mod support;

use std::sync::Arc;

use nic::virtio::Features;
use port::{Egress, OffloadSet};
use shmem::{DirtyLog, Mapping};
use support::{BASE, Guest, HEADER, LIMITS, forward, pattern};

#[test]
fn a_request_crosses_untouched_in_one_buffer_or_many() {
    let tso = Features::CSUM | Features::HOST_TSO4 | Features::GUEST_CSUM | Features::GUEST_TSO4;
    let header: [u8; HEADER] = [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
    for packed in [Features::empty(), Features::RING_PACKED] {
        let features = BASE | Features::MRG_RXBUF | tso | packed;
        for (len, buffer, buffers) in [(1000, 1526, 1), (60_000, 65_600, 1), (60_000, 1526, 40)] {
            let (mut sender, mut taker) = (Guest::new(features, 64), Guest::new(features, 64));
            let (mut from, to) = (sender.transmit(), taker.receiver());
            assert!(to.takes().tso4 && !to.takes().tso6);
            for header in [[0; HEADER], header, [0; HEADER]] {
                assert!(sender.send(header, &pattern(len, 0), &[], false));
            }
            while taker.add(&[buffer], true, false).is_some() {}
            sender.driver.publish();
            taker.driver.publish();
            let finished = if buffers == 40 { 1 } else { 3 };
            assert_eq!(forward(&mut from, &to, LIMITS).1, 3);
            for (i, asked) in [[0; HEADER], header, [0; HEADER]].iter().take(finished).enumerate() {
                let (got, frame) = taker.receive().expect("a frame");
                assert_eq!(got[..10], asked[..10], "frame {i}");
                assert_eq!(got[10..], [buffers, 0], "frame {i}");
                assert_eq!(frame, pattern(len, 0));
            }
        }
    }
}

#[test]
fn a_guest_says_what_it_takes() {
    for (features, takes) in [
        (Features::empty(), OffloadSet::NONE),
        (Features::GUEST_CSUM, OffloadSet { checksum: true, ..OffloadSet::NONE }),
        (Features::all(), OffloadSet::ALL),
        (Features::all() - Features::GUEST_USO6, OffloadSet { uso: false, ..OffloadSet::ALL }),
    ] {
        let guest = Guest::new(BASE | features, 8);
        assert_eq!(guest.receiver().takes(), takes);
    }
}

/// The pages that the log has marked.
fn marked(log: &Arc<Mapping>) -> Vec<u64> {
    let bytes = log.all().to_vec();
    (0..8 * bytes.len() as u64).filter(|i| bytes[*i as usize / 8] >> (i % 8) & 1 == 1).collect()
}

#[test]
fn every_page_that_is_written_is_in_the_log_and_no_page_of_what_is_read() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let features = BASE | packed | Features::MRG_RXBUF;
        let (mut sender, mut taker) = (Guest::new(features, 256), Guest::new(features, 256));
        let logs = [(); 2].map(|()| Mapping::private(4096).unwrap());
        for (guest, log) in [&mut sender, &mut taker].into_iter().zip(&logs) {
            guest.config.dirty = Some(Arc::new(DirtyLog::new(log, 0, log.len()).unwrap()));
        }
        let (mut from, to) = (sender.transmit(), taker.receiver());
        assert!(sender.send([0; HEADER], &pattern(5000, 0), &[], false));
        let place = taker.add(&[9000], true, false).unwrap();
        let unused = taker.add(&[9000], true, false).unwrap();
        sender.driver.publish();
        taker.driver.publish();
        assert_eq!(forward(&mut from, &to, LIMITS).1, 1);
        assert!(!from.arm());
        assert_eq!(taker.receive().unwrap().1, pattern(5000, 0));
        let layout = sender.config.layout;
        let pages = |at: u64, len: u64| at / 4096..=(at + len - 1) / 4096;
        let rings = [layout.descriptors, layout.driver, layout.device].map(|at| at / 4096);
        let [sent, received] = logs.each_ref().map(marked);
        let inside =
            |pages: &[u64]| pages.iter().all(|page| rings.iter().any(|at| page.abs_diff(*at) < 2));
        assert!(inside(&sent) && !sent.is_empty(), "rings only: {sent:?}");
        assert!(pages(place, 5012).all(|page| received.contains(&page)), "{received:?}");
        assert!(received.contains(
            &(if packed.is_empty() { layout.device } else { layout.descriptors } / 4096)
        ));
        assert!(pages(unused + 4096, 4096).all(|page| !received.contains(&page)));
        assert!(!received.contains(&(pages(place, 5012).last().unwrap() + 1)));
    }
}
