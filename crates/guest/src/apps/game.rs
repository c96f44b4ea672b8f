//! The load of a game such as Quake. Players send small inputs; at each tick, a server sends each
//! player the state of its neighbours. Sans I/O: datagrams and time go in, datagrams come out.

use std::collections::HashMap;
use std::net::SocketAddr;

use tcp::Nanos;

/// Time between ticks.
pub const TICK: u64 = 20 * Nanos::MILLI;
/// A player that is silent for this long is removed.
const SILENCE: u64 = 5 * Nanos::SECOND;
/// The maximum number of players of a server.
pub const MOST_PLAYERS: usize = 1024;
/// The maximum number of neighbours in one update.
const SEEN: usize = 32;
/// Length of an input: a number, and a move in two directions.
const INPUT: usize = 8;
/// Length of an update before its neighbours: the tick, and the number of the last input.
const UPDATE: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Player {
    heard: Nanos,
    input: u32,
    x: i16,
    y: i16,
}

/// The server's state.
#[derive(Debug, Default)]
pub struct Server {
    players: HashMap<SocketAddr, Player>,
    tick: u32,
    due: Nanos,
    /// How many inputs were used.
    pub inputs: u64,
    /// How many datagrams were dropped: invalid, late, or from too many players.
    pub dropped: u64,
}

impl Server {
    /// Receives a datagram. An input older than the last one is dropped.
    pub fn input(&mut self, from: SocketAddr, data: &[u8], now: Nanos) {
        let room = self.players.len() < MOST_PLAYERS || self.players.contains_key(&from);
        let Some((number, step)) = data.split_first_chunk::<4>().filter(|_| room) else {
            self.dropped += 1;
            return;
        };
        let (Ok([a, b, c, d]), number) = (<[u8; 4]>::try_from(step), u32::from_le_bytes(*number))
        else {
            self.dropped += 1;
            return;
        };
        let new = Player { heard: now, input: number.wrapping_sub(1), x: 0, y: 0 };
        let player = self.players.entry(from).or_insert(new);
        if (number.wrapping_sub(player.input) as i32) <= 0 {
            self.dropped += 1;
            return;
        }
        (player.heard, player.input) = (now, number);
        player.x = player.x.wrapping_add(i16::from_le_bytes([a, b]));
        player.y = player.y.wrapping_add(i16::from_le_bytes([c, d]));
        self.inputs += 1;
    }

    /// Sends an update to each player if a tick is due. Returns when the next is.
    pub fn tick(&mut self, now: Nanos, mut send: impl FnMut(SocketAddr, &[u8])) -> Nanos {
        if now < self.due {
            return self.due;
        }
        self.due = now + TICK;
        self.tick += 1;
        self.players.retain(|_, player| now - player.heard < SILENCE);
        let mut around: Vec<Player> = self.players.values().copied().collect();
        around.sort_unstable_by_key(|player| (player.x, player.y));
        let mut update = Vec::with_capacity(UPDATE + 4 * SEEN);
        for (address, player) in &self.players {
            update.clear();
            update.extend(self.tick.to_le_bytes());
            update.extend(player.input.to_le_bytes());
            let at = around.partition_point(|other| other.x < player.x);
            let from = at.saturating_sub(SEEN / 2);
            for other in around[from..].iter().take(SEEN) {
                update.extend(other.x.to_le_bytes());
                update.extend(other.y.to_le_bytes());
            }
            send(*address, &update);
        }
        self.due
    }

    /// Returns the number of active players.
    #[must_use]
    pub fn players(&self) -> usize {
        self.players.len()
    }
}

/// A simulated player.
#[derive(Debug, Default)]
pub struct Client {
    input: u32,
    sent: Nanos,
    tick: u32,
    /// How many updates were received.
    pub updates: u64,
    /// How many updates are missing between received ones.
    pub missed: u64,
    /// Nanoseconds from the last input to the update that contains it.
    pub delay: u64,
}

impl Client {
    /// The next input.
    pub fn input(&mut self, now: Nanos) -> [u8; INPUT] {
        self.input += 1;
        self.sent = now;
        let mut bytes = [0; INPUT];
        bytes[..4].copy_from_slice(&self.input.to_le_bytes());
        bytes[4..6].copy_from_slice(&(self.input as i16 % 7 - 3).to_le_bytes());
        bytes[6..].copy_from_slice(&(self.input as i16 % 5 - 2).to_le_bytes());
        bytes
    }

    /// Receives an update; returns false if it is invalid, or older than the last.
    pub fn update(&mut self, data: &[u8], now: Nanos) -> bool {
        let Some((tick, rest)) = data.split_first_chunk::<4>() else { return false };
        let Some((input, _)) = rest.split_first_chunk::<4>() else { return false };
        let (tick, input) = (u32::from_le_bytes(*tick), u32::from_le_bytes(*input));
        if tick <= self.tick {
            return false;
        }
        if self.tick != 0 {
            self.missed += u64::from(tick - self.tick - 1);
        }
        self.tick = tick;
        self.updates += 1;
        if input == self.input {
            self.delay = now - self.sent;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn players_see_each_other_tick_by_tick() {
        let mut server = Server::default();
        let address = |i: u16| SocketAddr::new(Ipv4Addr::new(10, 0, 0, 9).into(), 1000 + i);
        let mut players: Vec<Client> = (0..100).map(|_| Client::default()).collect();
        let mut now = Nanos(Nanos::SECOND);
        for _ in 0..50 {
            for (i, player) in players.iter_mut().enumerate() {
                server.input(address(i as u16), &player.input(now), now);
            }
            now = server.tick(now, |to, update| {
                assert!(update.len() > UPDATE && update.len() <= UPDATE + 4 * SEEN);
                let player = &mut players[usize::from(to.port() - 1000)];
                assert!(player.update(update, now + 5));
                assert_eq!(player.delay, 5);
            });
        }
        assert_eq!((server.players(), server.inputs, server.dropped), (100, 5000, 0));
        assert!(players.iter().all(|player| (player.updates, player.missed) == (50, 0)));
        // Silent players are removed.
        server.tick(now + SILENCE, |_, _| unreachable!());
        assert_eq!(server.players(), 0);
    }

    #[test]
    fn nonsense_old_inputs_and_crowds_are_dropped() {
        let mut server = Server::default();
        let now = Nanos(Nanos::SECOND);
        let from = |i: u32| SocketAddr::new(Ipv4Addr::from(i).into(), 1);
        for data in [&b""[..], b"1234567", b"123456789"] {
            server.input(from(1), data, now);
        }
        let mut client = Client::default();
        let first = client.input(now);
        server.input(from(1), &client.input(now), now);
        server.input(from(1), &first, now);
        assert_eq!((server.inputs, server.dropped), (1, 4));
        for i in 0..5000 {
            server.input(from(i), &first, now);
        }
        assert_eq!(server.players(), MOST_PLAYERS);
        assert!(!client.update(b"123", now) && !client.update(&[0; 8], now));
    }
}
