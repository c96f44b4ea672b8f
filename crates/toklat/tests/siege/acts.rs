//! Attacks that are told by data: frames, netmap requests, and requests over TCP.

use std::os::fd::AsFd;

use netmap::abi::{PoolsInfo, Register, ValeAttach, option, reqtype};
use rustix::io::Errno;
use serde_json::Value;
use shmem::{Memfd, Pages};
use zerocopy::{FromBytes, FromZeros};

use super::blows::Persistent;
use super::{directory, pause, rest};
use harness::netmap::{Program, all, ask, status};
use harness::tcp::AUTHORIZED;
use harness::try_exchange;

/// What an attacker does, again and again.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// Code of its own, which runs until its process is killed.
    Run(fn()),
    /// Sends frames from a port: `make` makes the nth.
    Frames { port: &'static str, slots: u32, burst: u32, make: fn(u32) -> Vec<u8> },
    /// Asks as a program that uses netmap's interface. `#` in a name is the round's number.
    Netmap(&'static [Step]),
    /// Asks over TCP with the token: method, path, body, and the status that is the answer. `#` is
    /// the round's number, `DIR` the daemon's directory.
    Token(&'static [(&'static str, &'static str, &'static str, u16)]),
}

/// A request of netmap's interface.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Makes a persistent port.
    New(&'static str),
    /// Attaches a persistent port to a switch.
    Attach(&'static str),
    /// Lists all ports.
    List,
    /// Opens a port by a descriptor of its own, which it keeps.
    Bind(&'static str),
    /// Lends memory for a port, and makes a persistent port in it.
    Lend(&'static str, &'static str),
}

impl Act {
    /// Attacks until the process is killed.
    pub fn play(self) {
        match self {
            Self::Run(run) => run(),
            Self::Frames { port, slots, burst, make } => {
                let mut port = Persistent::with_slots(port, slots);
                for round in 0u32.. {
                    let frames: Vec<_> =
                        (0..burst).map(|n| make(round.wrapping_mul(burst) + n)).collect();
                    port.push_all(&frames);
                    // Long batches come as seldom as it takes to make and to refuse them.
                    if burst > 64 { rest() } else { pause() }
                }
            }
            Self::Netmap(steps) => netmap_requests(steps),
            Self::Token(requests) => token_requests(requests),
        }
    }
}

fn netmap_requests(steps: &[Step]) {
    let mut kept = Vec::new();
    for round in 0u32.. {
        let Ok(program) = Program::connect(&directory()) else {
            kept.clear();
            pause();
            continue;
        };
        for step in steps {
            // Most are refused, by number.
            let _ = step.take(&program, round, &mut kept);
        }
        kept.push(program);
        if kept.len() > 200 {
            kept.drain(..50);
        }
        pause();
    }
}

impl Step {
    fn take(self, program: &Program, round: u32, kept: &mut Vec<Program>) -> Result<(), Errno> {
        let named = |name: &str| name.replace('#', &round.to_string());
        match self {
            Self::New(name) => program.new_port(&named(name), 0).map(drop),
            Self::Attach(name) => {
                let attach = ValeAttach { register: all(), ..ValeAttach::new_zeroed() };
                program.ask(reqtype::VALE_ATTACH, &named(name), &attach).map(drop)
            }
            Self::List => {
                let _ = program.list();
                Ok(())
            }
            Self::Bind(name) => {
                let another = Program::connect(&directory())?;
                let bound = another.register(&named(name)).map(drop);
                kept.push(another);
                bound
            }
            Self::Lend(name, stays) => {
                let wanted = PoolsInfo { memsize: 1 << 21, buf_total: 300, ..PoolsInfo::default() };
                let geometry = netmap::extmem::geometry(&wanted)?;
                let bytes = geometry.file_size() as usize;
                let memory =
                    Memfd::create("lent", bytes, Pages::Small).map_err(|_| Errno::NOMEM)?;
                let small = Register { tx_slots: 2, rx_slots: 2, ..all() };
                let mut request = ask(reqtype::REGISTER, &named(name), &small);
                (request.options.given, request.options.extmem) = (1 << option::EXTMEM, wanted);
                let answer = program.send(&request, Some(memory.as_fd()))?;
                status(&answer)?;
                let (bound, _) =
                    Register::read_from_prefix(&answer.body).map_err(|_| Errno::PROTO)?;
                program.new_port(&named(stays), bound.mem_id).map(drop)
            }
        }
    }
}

/// Asks, and checks that each request is answered as it is to be.
fn token_requests(requests: &[(&str, &str, &str, u16)]) {
    let address = std::env::var(super::TCP).unwrap();
    for round in 0u32.. {
        for (method, path, body, expected) in requests {
            let with = |text: &str| {
                text.replace('#', &round.to_string())
                    .replace("DIR", &directory().display().to_string())
            };
            let Ok(stream) = std::net::TcpStream::connect(&address) else { continue };
            let _ = stream.set_read_timeout(Some(harness::PATIENCE));
            let answer = try_exchange(stream, method, &with(path), AUTHORIZED, &with(body));
            let Ok((is, answer)): Result<(u16, Value), _> = answer else { continue };
            // A process that ends is an attacker that has given up, and fails the test.
            assert!(is == *expected, "{method} {path}: {is} {answer}");
        }
        rest();
    }
}
