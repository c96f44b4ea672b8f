//! Echoes all data to port 7, by TCP and by UDP (RFC 862).
//!
//!     cargo run --release -p toklat-guest --example echo vale0:echo 10.0.0.3/24

use std::error::Error;
use std::time::Instant;

use guest::{App, Bytes, Guest, Io, Nanos};

#[path = "../host/mod.rs"]
mod host;

struct Echo;

impl App for Echo {
    type Conn = ();

    fn accepted(&mut self, _: &mut Io<'_>) {}

    fn data(&mut self, _: &mut (), io: &mut Io<'_>, data: &[u8]) -> usize {
        io.send(Bytes::copy_from_slice(data));
        data.len()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: echo SWITCH:PORT ADDRESS/PREFIX";
    let (port, address) = args.next().zip(args.next()).ok_or(usage)?;
    let mut guest = Guest::new(host::open(&port, &address)?, Echo);
    guest.listen(7, 128)?;
    let socket = guest.stack().udp_bind(7)?;
    println!("{} port 7", guest.stack().address());
    // UDP needs a loop in the program; without sockets, `Guest::run` does the same.
    let started = Instant::now();
    loop {
        let now = Nanos(Nanos::SECOND) + started.elapsed().as_nanos() as u64;
        let deadline = guest.poll(now)?;
        let stack = guest.stack();
        let mut answered = false;
        while let Some((from, data)) = stack.udp_receive(socket) {
            // Data that finds no room is dropped, as UDP allows.
            let _ = stack.udp_send(socket, from, &data, now);
            answered = true;
        }
        if !answered {
            stack.wait(deadline, now)?;
        }
    }
}
