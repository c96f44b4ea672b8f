//! A cache for memcached clients, on a port of a switch.
//!
//!     cargo run --release -p toklat-guest --example kv vale0:kv 10.0.0.4/24 [MEBIBYTES]

use std::error::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use guest::Guest;
use guest::apps::kv::Kv;

#[path = "host/mod.rs"]
mod host;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: kv SWITCH:PORT ADDRESS/PREFIX [MEBIBYTES]";
    let (port, address) = args.next().zip(args.next()).ok_or(usage)?;
    let most: usize = args.next().map_or(Ok(64), |word| word.parse())?;
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut guest = Guest::new(host::open(&port, &address)?, Kv::new(most << 20, epoch));
    guest.listen(11211, 1024)?;
    println!("{}:11211", guest.stack().address());
    Ok(guest.run(|_| false)?)
}
