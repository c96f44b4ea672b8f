//! Two guests at a switch, and the datagrams between them.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use frame::{Mac, Offload};
use guest::tcp::Full;
use guest::{Config, Frame, Nanos, Nic, Pieces, Stack, UdpId};
use inline::{Inline, SwitchConfig};
use port::stamp::{self, Stage, scope};

use super::nics::{Plug, Station};
use crate::bench::stages::{Block, DATAGRAMS};

/// The UDP port of both guests.
const PORT: u16 = 9;

/// A NIC whose calls are stages.
pub struct Stamped<N>(N);

impl<N: Nic> Nic for Stamped<N> {
    type Error = N::Error;

    fn max_frame(&self) -> usize {
        self.0.max_frame()
    }

    fn receive(&mut self, mut take: impl FnMut(&[Frame<'_>])) -> usize {
        let _scope = scope(Stage::Driver);
        self.0.receive(|frames| {
            let _scope = scope(Stage::Stack);
            take(frames);
        })
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        offload: Offload,
    ) -> Result<(), Full> {
        let _scope = scope(Stage::Driver);
        self.0.send(head, payload, offload)
    }

    fn flush(&mut self) -> Result<(), N::Error> {
        let _scope = scope(Stage::Kick);
        self.0.flush()
    }

    fn wait(&mut self, room: bool, timeout: Option<Duration>) -> Result<(), N::Error> {
        self.0.wait(room, timeout)
    }
}

struct Guest<N> {
    stack: Stack<Stamped<N>>,
    socket: UdpId,
    accesses: std::rc::Rc<std::cell::Cell<u64>>,
}

impl<N: Nic> Guest<N> {
    fn new<P: Plug<Nic = N>>(plug: &P, switch: &mut Inline, number: u8) -> Result<Self> {
        let mac = Mac::local(number.into());
        let Station { nic, accesses } = plug.plug(switch, mac)?;
        let config = Config::new(mac, address(number), 24);
        let mut stack = Stack::new(Stamped(nic), &config);
        let socket = stack.udp_bind(PORT)?;
        Ok(Self { stack, socket, accesses })
    }
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

/// Sends datagrams of `len` bytes for `time`, after a tenth of it.
pub fn run<P: Plug>(plug: &P, len: usize, time: Duration) -> Result<Vec<Block>> {
    let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..SwitchConfig::default() })?;
    let mut from = Guest::new(plug, &mut switch, 1)?;
    let mut to = Guest::new(plug, &mut switch, 2)?;
    let (start, mut payload) = (Instant::now(), vec![0; len]);
    let clock = || Nanos(Nanos::SECOND) + start.elapsed().as_nanos() as u64;
    to.stack.introduce(address(1), from.stack.mac(), clock());
    from.stack.introduce(address(2), to.stack.mac(), clock());
    // What they have to say to each other first.
    for _ in 0..4 {
        for guest in [&mut from, &mut to] {
            guest.stack.poll(clock())?;
            switch.turn_and_wake(port::Nanos(clock().0), |_, _| ());
        }
    }
    let mut blocks = Vec::new();
    let mut last = start;
    while last - start < time || blocks.len() < 4 {
        let mut block = Block::default();
        for _ in 0..DATAGRAMS {
            let now = clock();
            let before = [from.accesses.get(), to.accesses.get()];
            datagram(&mut switch, &mut from, &mut to, &mut payload, now, &mut block)?;
            let after = [from.accesses.get(), to.accesses.get()];
            (0..2).for_each(|i| block.accesses[i] += after[i] - before[i]);
            // The sender takes its buffers back. The datagram has arrived long before.
            from.stack.poll(now)?;
            switch.turn_and_wake(port::Nanos(now.0), |_, _| ());
        }
        last = Instant::now();
        if last - start >= time / 10 {
            blocks.push(block);
        }
    }
    Ok(blocks)
}

/// One datagram.
fn datagram<N: Nic>(
    switch: &mut Inline,
    from: &mut Guest<N>,
    to: &mut Guest<N>,
    payload: &mut [u8],
    now: Nanos,
    block: &mut Block,
) -> Result<()> {
    let _ = stamp::take();
    let begin = stamp::ticks();
    send(from, payload, now)?;
    let sent = stamp::take();
    {
        let _scope = scope(Stage::Switch);
        switch.turn_and_wake(port::Nanos(now.0), |_, _| ());
    }
    let switched = stamp::take();
    let bytes = receive(to, now)?;
    let received = stamp::take();
    block.total += stamp::ticks() - begin;
    let expected = u64::from(now.0 as u8) * payload.len() as u64;
    ensure!(bytes == expected, "the datagram was damaged");
    block.add(sent, switched, received);
    Ok(())
}

/// Writes a datagram, and sends it.
#[inline(never)]
fn send<N: Nic>(guest: &mut Guest<N>, payload: &mut [u8], now: Nanos) -> Result<()> {
    let _scope = scope(Stage::Application);
    payload.fill(now.0 as u8);
    std::hint::black_box(&mut *payload);
    let to = SocketAddrV4::new(address(2), PORT);
    let _scope = scope(Stage::Stack);
    guest.stack.udp_send(guest.socket, to, payload, now)?;
    guest.stack.transmit(now)?;
    Ok(())
}

/// Receives a datagram, and reads it: returns the sum of its bytes.
#[inline(never)]
fn receive<N: Nic>(guest: &mut Guest<N>, now: Nanos) -> Result<u64> {
    let _scope = scope(Stage::Application);
    let data = {
        let _scope = scope(Stage::Stack);
        guest.stack.receive(now, &mut guest::tcp::Buffered);
        guest.stack.udp_receive(guest.socket).context("no datagram came")?.1
    };
    let sum = data.iter().map(|byte| u64::from(*byte)).sum();
    drop(data);
    let _scope = scope(Stage::Stack);
    guest.stack.transmit(now)?;
    Ok(sum)
}
