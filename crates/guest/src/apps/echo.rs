//! Sends back what comes to port 7, by TCP and by UDP (RFC 862).

use std::error::Error;

use tcp::Bytes;

use crate::app::{App, Io};
use crate::clock;
use crate::guest::Guest;
use crate::nic::RingNic;
use crate::stack::Stack;

/// Its port.
pub const PORT: u16 = 7;

/// The part of the program that answers connections.
#[derive(Debug)]
struct Echo;

impl App for Echo {
    type Conn = ();

    fn accepted(&mut self, _: &mut Io<'_>) {}

    fn data(&mut self, _: &mut (), io: &mut Io<'_>, data: &[u8]) -> usize {
        io.send(Bytes::copy_from_slice(data));
        data.len()
    }
}

/// Serves for ever.
///
/// # Errors
/// A port is taken, or the NIC fails.
pub fn serve(stack: Stack<RingNic>) -> Result<(), Box<dyn Error>> {
    let mut guest = Guest::new(stack, Echo);
    guest.listen(PORT, 128)?;
    let socket = guest.stack().udp_bind(PORT)?;
    // UDP needs a loop of its own; without sockets, `Guest::run` does the same.
    loop {
        let now = clock::now();
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
