//! A DNS responder on a port of a switch: names and addresses from the command line.
//!
//!     cargo run --release -p toklat-guest --example dns vale0:dns 10.0.0.5/24 web.example=10.0.0.2 kv.example=10.0.0.4

use std::error::Error;
use std::ops::ControlFlow;

use guest::apps::dns::{PORT, Server, Zone};
use guest::{Guest, Host};

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
        let socket = stack.udp_bind(PORT)?;
        for address in stack.addresses() {
            println!("{address} port {PORT}");
        }
        let mut guest = Guest::new(stack, Server::new(zone.clone()));
        guest.listen(PORT, 128)?;
        Ok(guest.run_with(|stack, server, now| {
            server.datagrams(stack, socket, now);
            ControlFlow::Continue(None)
        })?)
    })?)
}
