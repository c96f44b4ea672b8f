//! Requests to the web server of light guests: its answers do not depend on where the stream is
//! cut.
#![no_main]

use guest::Bytes;
use guest::apps::site::Site;
use guest::fuzz::converse;
use libfuzzer_sys::fuzz_target;

fn site() -> Site {
    let mut site = Site::default();
    site.add("/", Bytes::from_static(b"<h1>It works</h1>"));
    site.add("/page", Bytes::from(vec![b'x'; 5000]));
    site
}

// The first byte says how many of the next ones are lengths of pieces.
fuzz_target!(|input: &[u8]| {
    let Some((count, rest)) = input.split_first() else { return };
    let (cuts, stream) = rest.split_at(rest.len().min(usize::from(*count % 16)));
    let answer = converse(&mut site(), stream, cuts);
    // A head of more than 8 KiB may be refused by its length or by what is wrong in it.
    if stream.len() <= 4096 {
        assert_eq!(answer, converse(&mut site(), stream, &[]));
    }
});
