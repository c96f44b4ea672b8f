//! A DNS responder on a port of a switch: names and addresses from the command line.
//!
//!     cargo run --release -p toklat-guest --example dns vale0:dns 10.0.0.5/24 web.example=10.0.0.2 kv.example=10.0.0.4

use std::error::Error;

use guest::Host;
use guest::apps::dns::Zone;

#[path = "host/mod.rs"]
mod host;

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::from_env()?;
    let mut zone = Zone::new(60);
    for word in host.args() {
        let (name, address) = word.split_once('=').ok_or("write names as NAME=ADDRESS")?;
        if !zone.add(name, address.parse()?) {
            return Err(format!("`{name}` is not a name").into());
        }
    }
    Ok(host.run(|mut stack| {
        let socket = stack.udp_bind(53)?;
        for address in stack.addresses() {
            println!("{address} port 53");
        }
        host::serve(&mut stack, |stack, now| {
            let mut served = false;
            while let Some((from, query)) = stack.udp_receive(socket) {
                if let Some(answer) = zone.answer(&query) {
                    // An answer that finds no room is dropped, as UDP allows.
                    let _ = stack.udp_send(socket, from, &answer, now);
                }
                served = true;
            }
            (served, None)
        })
    })?)
}
