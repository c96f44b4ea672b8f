//! Echoes all data to port 7, by TCP and by UDP (RFC 862).
//!
//!     cargo run --release -p toklat-guest --example echo vale0:echo 10.0.0.3/24

use std::error::Error;
use std::time::Instant;

use guest::{App, Bytes, Guest, Host, Io, Nanos, RingNic, Stack};

struct Echo;

impl App for Echo {
    type Conn = ();

    fn accepted(&mut self, _: &mut Io<'_>) {}

    fn data(&mut self, _: &mut (), io: &mut Io<'_>, data: &[u8]) -> usize {
        io.send(Bytes::copy_from_slice(data));
        data.len()
    }
}

fn echo(stack: Stack<RingNic>) -> Result<(), Box<dyn Error>> {
    let mut guest = Guest::new(stack, Echo);
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

fn main() -> Result<(), Box<dyn Error>> {
    Ok(Host::from_env()?.run(echo)?)
}
