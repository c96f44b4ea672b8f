//! The command line of programs that are an iperf3.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};

use super::{PORT, Params, Report, Server, client};
use crate::guest::Guest;
use crate::nic::Nic;
use crate::stack::Stack;

const USAGE: &str = "usage: [SERVER[:PORT] [-t SECONDS] [-P STREAMS] [-l BYTES] [-R | --bidir]]";

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
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let mut number = || words.next().and_then(|word| word.parse().ok()).ok_or(USAGE);
            match word {
                "-s" => {}
                "-t" => command.params.seconds = number()?,
                "-P" => command.params.parallel = number()? as usize,
                "-l" => command.params.piece = number()? as usize,
                "-R" => command.params.reverse = true,
                "--bidir" => command.params.both = true,
                word => command.server = Some(address(word).ok_or(USAGE)?),
            }
        }
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
    pub fn run<N: Nic>(&self, stack: Stack<N>, cpu: fn() -> f64) -> Result<(), Box<dyn Error>>
    where
        N::Error: Error + 'static,
    {
        let Some(server) = self.server else {
            let mut guest = Guest::new(stack, Server::new(cpu));
            guest.listen(PORT, 1024)?;
            return Ok(guest.run(|server| {
                server.reports.drain(..).for_each(|report| print(&report));
                false
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

fn print(report: &Report) {
    let Report { seconds, sent, received, peer } = report;
    let of_peer: u64 = peer.streams.iter().map(|stream| stream.bytes).sum();
    println!(
        "{{\"seconds\":{seconds:.3},\"sent\":{sent},\"received\":{received},\"peer\":{of_peer}}}"
    );
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
        for wrong in ["-t", "-P 129 10.0.0.1", "-P 0", "there"] {
            assert!(read(wrong).is_err_and(|usage| usage.starts_with("usage")), "{wrong}");
        }
    }
}
