//! The command line of programs that are an iperf3.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;

use super::wire::DATAGRAM;
use super::{Counted, PORT, Params, Report, Server, Udp, client};
use crate::guest::Guest;
use crate::nic::Nic;
use crate::stack::Stack;

const USAGE: &str = "usage: [SERVER[:PORT] [-t SECONDS] [-P STREAMS] [-l BYTES] [-R | --bidir] \
                     [-u [-b BITS[K|M|G]]]]";

/// What an iperf3 is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The server; `None` to be one.
    server: Option<SocketAddr>,
    params: Params,
}

impl Command {
    /// Reads the words of the command line.
    ///
    /// # Errors
    /// The usage.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let mut command = Self { server: None, params: Params::default() };
        let (mut rate, mut len) = (None, None);
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let mut number = || words.next().and_then(|word| word.parse().ok()).ok_or(USAGE);
            match word {
                "-s" => {}
                "-u" => command.params.udp = Some(Udp::default()),
                "-b" => rate = Some(words.next().and_then(bits).ok_or(USAGE)?),
                "-t" => command.params.seconds = number()?,
                "-P" => command.params.parallel = number()? as usize,
                "-l" => len = Some(number()? as usize),
                "-R" => command.params.reverse = true,
                "--bidir" => command.params.both = true,
                word => command.server = Some(address(word).ok_or(USAGE)?),
            }
        }
        match (&mut command.params.udp, rate) {
            (Some(udp), Some(rate)) => udp.rate = rate,
            (None, Some(_)) => return Err(USAGE.into()),
            (_, None) => {}
        }
        let usual = if command.params.udp.is_some() { DATAGRAM } else { command.params.piece };
        command.params.piece = len.unwrap_or(usual);
        match Params::read(&command.params.json()) == Some(command.params) {
            true => Ok(command),
            false => Err(USAGE.into()),
        }
    }

    /// Serves for ever, or makes one test and prints its result. `cpu` says how many seconds this
    /// thread has spent on a core.
    ///
    /// # Errors
    /// The test fails, or the NIC.
    pub fn run<N: Nic>(&self, mut stack: Stack<N>, cpu: fn() -> f64) -> Result<(), Box<dyn Error>>
    where
        N::Error: Error + 'static,
    {
        let Some(server) = self.server else {
            let server = Server::new(cpu).over_udp(&mut stack)?;
            let mut guest = Guest::new(stack, server);
            guest.listen(PORT, 1024)?;
            return Ok(guest.run_with(|stack, server, now| {
                let due = server.datagrams(stack, now);
                server.reports.drain(..).for_each(|report| print(&report));
                ControlFlow::Continue(due)
            })?);
        };
        print(&client::run(stack, server, self.params, cpu)?);
        Ok(())
    }
}

fn address(word: &str) -> Option<SocketAddr> {
    let alone = || Some(SocketAddr::new(word.parse::<IpAddr>().ok()?, PORT));
    word.parse().ok().or_else(alone)
}

/// Reads a rate as iperf3 does: a number, and thousands of bits.
fn bits(word: &str) -> Option<u64> {
    let (number, factor) = match word.char_indices().last()? {
        (at, 'k' | 'K') => (&word[..at], 1e3),
        (at, 'm' | 'M') => (&word[..at], 1e6),
        (at, 'g' | 'G') => (&word[..at], 1e9),
        _ => (word, 1.0),
    };
    let number: f64 = number.parse().ok()?;
    (0.0..=1e9).contains(&number).then_some((number * factor) as u64)
}

fn print(report: &Report) {
    let Report { seconds, sent, received, datagrams, peer } = report;
    let of_peer: u64 = peer.streams.iter().map(|stream| stream.bytes).sum();
    print!("{{\"seconds\":{seconds:.3},\"sent\":{sent},\"received\":{received},\"peer\":{of_peer}");
    if !datagrams.is_empty() {
        let sum = |of: fn(&Counted) -> u64| datagrams.iter().map(of).sum::<u64>();
        let (packets, lost) = (sum(|counted| counted.packets), sum(|counted| counted.lost));
        let reordered = sum(|counted| counted.reordered);
        let jitter = datagrams.iter().map(|counted| counted.jitter).sum::<f64>();
        let jitter = jitter / datagrams.len() as f64 * 1e3;
        print!(",\"packets\":{packets},\"lost\":{lost},\"reordered\":{reordered}");
        print!(",\"jitter_ms\":{jitter:.3}");
    }
    // What the other end has received.
    let of_peer: u64 = peer.streams.iter().map(|stream| stream.packets).sum();
    let lost: u64 = peer.streams.iter().map(|stream| stream.lost).sum();
    if of_peer > 0 {
        print!(",\"peer_packets\":{of_peer},\"peer_lost\":{lost}");
    }
    println!("}}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_iperf3_reads_them() {
        let read = |text: &str| {
            Command::read(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(read("").unwrap().server, None);
        let command = read("10.0.0.1 -t 2 -P 3 -R").unwrap();
        assert_eq!(command.server, Some("10.0.0.1:5201".parse().unwrap()));
        let Params { parallel, reverse, both, seconds, .. } = command.params;
        assert_eq!((parallel, reverse, both, seconds), (3, true, false, 2));
        assert_eq!(read("10.0.0.1:7").unwrap().server, Some("10.0.0.1:7".parse().unwrap()));
        let params = read("10.0.0.1 -u").unwrap().params;
        assert_eq!((params.udp, params.piece), (Some(Udp::default()), DATAGRAM));
        let params = read("10.0.0.1 -u -b 2.5M -l 100").unwrap().params;
        assert_eq!((params.udp.unwrap().rate, params.piece), (2_500_000, 100));
        assert_eq!(read("10.0.0.1 -b 0 -u").unwrap().params.udp.unwrap().rate, 0);
        for wrong in [
            "-t",
            "-P 129 10.0.0.1",
            "-P 0",
            "there",
            "-u -l 15",
            "-b 1M",
            "-u -b -1",
            "-u -b M",
            "-u -b nan",
        ] {
            assert!(read(wrong).is_err_and(|usage| usage.starts_with("usage")), "{wrong}");
        }
    }
}
