//! What the programs share: a stack on a daemon's port, by the words of a command line.

use std::error::Error;
use std::net::Ipv4Addr;

use frame::Mac;
use guest::{Config, RingNic, Stack};
use netring::Port;

/// A host at `address` (`10.0.0.2/24`) on the port `name` (`vale0:web`).
pub fn open(name: &str, address: &str) -> Result<Stack<RingNic>, Box<dyn Error>> {
    let wrong = || format!("`{address}` is not an address and prefix; write 10.0.0.2/24");
    let (ip, prefix) = address.split_once('/').ok_or_else(wrong)?;
    let ip: Ipv4Addr = ip.parse().map_err(|_| wrong())?;
    let prefix: u8 = prefix.parse().ok().filter(|bits| *bits <= 32).ok_or_else(wrong)?;
    let config = Config::new(Mac::of_name(name), ip, prefix);
    Ok(Stack::new(RingNic::new(Port::open(name)?), &config))
}
