//! A host's network interface: a ring port whose frames are noted.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use frame::{Offload, OffloadSet};
use guest::{Frame, Nic, Pieces, RingNic};
use netring::PortError;
use tcp::Full;

use crate::trace::{Direction, HostId, Trace};

/// The interface of a simulated host. Each frame that passes is in the world's trace.
#[derive(Debug)]
pub struct SimNic {
    ring: RingNic,
    host: HostId,
    trace: Rc<RefCell<Trace>>,
}

impl SimNic {
    pub(crate) fn new(ring: RingNic, host: HostId, trace: Rc<RefCell<Trace>>) -> Self {
        Self { ring, host, trace }
    }
}

impl Nic for SimNic {
    type Error = PortError;

    fn max_frame(&self) -> usize {
        self.ring.max_frame()
    }

    fn offloads(&self) -> OffloadSet {
        self.ring.offloads()
    }

    fn receive(&mut self, mut take: impl FnMut(&[Frame<'_>])) -> usize {
        let Self { ring, host, trace } = self;
        ring.receive(|frames| {
            for frame in frames {
                let pieces: Vec<&[u8]> =
                    std::iter::once(frame.front).chain(frame.rest.iter().copied()).collect();
                trace.borrow_mut().note(*host, Direction::Received, &pieces);
            }
            take(frames);
        })
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        offload: Offload,
    ) -> Result<(), Full> {
        let Pieces { pieces, len } = payload;
        let pieces: Vec<&[u8]> = pieces.collect();
        self.ring.send(head, Pieces { pieces: pieces.iter().copied(), len }, offload)?;
        let whole: Vec<&[u8]> = std::iter::once(head).chain(pieces).collect();
        self.trace.borrow_mut().note(self.host, Direction::Sent, &whole);
        Ok(())
    }

    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        let Self { ring, host, trace } = self;
        ring.build(max, |frame| {
            let len = build(frame).min(frame.len());
            if len > 0 {
                trace.borrow_mut().note(*host, Direction::Sent, &[&frame[..len]]);
            }
            len
        })
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.ring.flush()
    }

    /// Time does not pass here: a world waits for its hosts.
    fn wait(&mut self, _room: bool, _timeout: Option<Duration>) -> Result<(), PortError> {
        self.ring.flush()
    }
}
