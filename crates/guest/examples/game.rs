//! The load of a game. One program is the server, which sends the state of the world to all players
//! fifty times a second. The other simulates the players.
//!
//!     cargo run --release -p toklat-guest --example game vale0:game 10.0.0.6/24
//!     cargo run --release -p toklat-guest --example game vale0:players 10.0.0.7/24 10.0.0.6:26000
//!     [PLAYERS [SECONDS]]

use std::error::Error;
use std::net::SocketAddr;

use guest::apps::game::{Client, Server, TICK};
use guest::{Host, Nanos, RingNic, Stack};

#[path = "host/mod.rs"]
mod host;

const PORT: u16 = 26000;

type Fallible = Result<(), Box<dyn Error>>;

fn server(stack: &mut Stack<RingNic>) -> Fallible {
    let (mut server, socket) = (Server::default(), stack.udp_bind(PORT)?);
    for address in stack.addresses() {
        println!("{address} port {PORT}");
    }
    host::serve(stack, |stack, now| {
        let mut came = false;
        while let Some((from, input)) = stack.udp_receive(socket) {
            server.input(from, &input, now);
            came = true;
        }
        let due = server.tick(now, |to, update| {
            // An update that finds no room is dropped, as UDP allows.
            let _ = stack.udp_send(socket, to, update, now);
        });
        (came, Some(due))
    })
}

fn players(stack: &mut Stack<RingNic>, to: SocketAddr, count: u16, seconds: u64) -> Fallible {
    let sockets: Result<Vec<_>, _> = (0..count).map(|i| stack.udp_bind(1024 + i)).collect();
    let sockets = sockets?;
    let mut players: Vec<Client> = (0..count).map(|_| Client::default()).collect();
    let (mut due, mut end) = (Nanos(0), None);
    host::serve_until(stack, |stack, now| {
        let mut came = false;
        for (player, socket) in players.iter_mut().zip(&sockets) {
            while let Some((_, update)) = stack.udp_receive(*socket) {
                came |= player.update(&update, now);
            }
            if due <= now {
                let _ = stack.udp_send(*socket, to, &player.input(now), now);
            }
        }
        due = if due <= now { now + TICK } else { due };
        let end = *end.get_or_insert(now + seconds * Nanos::SECOND);
        (came, Some(due.min(end)), now >= end)
    })?;
    let sum = |of: fn(&Client) -> u64| players.iter().map(of).sum::<u64>();
    let mut delays: Vec<u64> = players.iter().map(|player| player.delay).collect();
    delays.sort_unstable();
    let median = delays.get(delays.len() / 2).map_or(0, |delay| delay / 1000);
    let (updates, missed) = (sum(|player| player.updates), sum(|player| player.missed));
    println!("{count} players: {updates} updates, {missed} missed, input to update {median} us");
    Ok(())
}

fn main() -> Fallible {
    let host = Host::from_env()?;
    let args = host.args().to_vec();
    let Some(to) = args.first() else { return Ok(host.run(|mut stack| server(&mut stack))?) };
    let to = to.parse()?;
    let count = args.get(1).map_or(Ok(64), |word| word.parse())?;
    let seconds = args.get(2).map_or(Ok(5), |word| word.parse())?;
    Ok(host.run(|mut stack| players(&mut stack, to, count, seconds))?)
}
