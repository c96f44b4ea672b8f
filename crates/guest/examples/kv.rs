//! A cache for memcached clients, on a port of a switch.
//!
//!     cargo run --release -p toklat-guest --example kv vale0:kv 10.0.0.4/24 [MEBIBYTES]

use std::error::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use guest::apps::kv::Kv;
use guest::{Guest, Host};

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::from_env()?;
    let most: usize = host.args().first().map_or(Ok(64), |word| word.parse())?;
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    Ok(host.run(|stack| {
        for address in stack.addresses() {
            println!("{}", std::net::SocketAddr::new(address, 11211));
        }
        let mut guest = Guest::new(stack, Kv::new(most << 20, epoch));
        guest.listen(11211, 1024)?;
        Ok(guest.run(|_| false)?)
    })?)
}
