//! A web server on a NIC that it drives by itself. The port is one for virtual machines:
//!
//!     toklat port add vale0:web --nic 82574l
//!     cargo run --release -p toklat-guest --example any-nic card SOCKET 10.0.0.2/24
//!
//!     toklat port add vale0:web --vhost-user
//!     cargo run --release -p toklat-guest --example any-nic split SOCKET 10.0.0.2/24
//!
//! With `packed` in place of `split`, the queues are packed ones. `toklat port show` has the
//! socket's path.

use std::error::Error;
use std::net::Ipv4Addr;
use std::path::Path;

use frame::Mac;
use guest::apps::site::Site;
use guest::{Bytes, CardNic, Config, Guest, Nic, Stack, VhostNic};

type Fallible = Result<(), Box<dyn Error>>;

fn serve(nic: impl Nic, mac: Mac, (address, prefix): (Ipv4Addr, u8), page: &Bytes) -> Fallible {
    let mut site = Site::default();
    site.add("/", page.clone());
    let mut guest = Guest::new(Stack::new(nic, &Config::new(mac, address, prefix)), site);
    guest.listen(80, 1024)?;
    println!("http://{address}/");
    Ok(guest.run(|_| false)?)
}

fn main() -> Fallible {
    let usage = "usage: any-nic card|split|packed SOCKET ADDRESS/PREFIX";
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, socket, address] = &args[..] else { return Err(usage.into()) };
    let (address, prefix) = address.split_once('/').ok_or(usage)?;
    let address = (address.parse()?, prefix.parse()?);
    let page = Bytes::from(vec![b'x'; 1 << 20]);
    match kind.as_str() {
        "card" => {
            let nic = CardNic::connect(Path::new(socket))?;
            let mac = nic.mac();
            serve(nic, mac, address, &page)
        }
        "split" | "packed" => {
            let nic = VhostNic::connect(Path::new(socket), kind == "packed", page.len())?;
            // The page goes out of memory that it is in already.
            nic.documents().add(&page);
            let mac = nic.mac().unwrap_or_else(|| Mac::of_name(socket));
            serve(nic, mac, address, &page)
        }
        _ => Err(usage.into()),
    }
}
