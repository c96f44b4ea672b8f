//! What a NIC needs of a driver, and the drivers that have it.

use card::vfio_user::{ClientError, Registers};
use driver::e1000::{Doorbells, E1000Driver, Request};
use driver::{Regs, one_access, pcnet};
use frame::{ETHERNET_HEADER, Mac};
use shmem::Bytes;

/// The longest frame of these devices, without a VLAN tag and check sequence.
const MAX_FRAME: usize = ETHERNET_HEADER + 1500;

/// Registers, with what else a driver's owner needs of their device.
pub trait Bus: Regs {
    /// The first access that failed since the last call.
    fn failure(&mut self) -> Option<ClientError> {
        None
    }

    /// Lets the device interrupt again.
    fn unmask(&mut self) {}
}

impl Bus for Registers {
    fn failure(&mut self) -> Option<ClientError> {
        self.client.take_failure()
    }

    fn unmask(&mut self) {
        // If the server is gone, the next access says so.
        let _ = self.client.unmask();
    }
}

impl<C: FnMut() -> port::Nanos> Bus for card::Direct<C> {}

/// A driver of a NIC whose frames lie in buffers of the driver.
pub trait Drive {
    /// The station address.
    fn mac(&mut self) -> Mac;

    /// The longest frame that it sends and receives, in bytes, without the check sequence.
    fn max_frame(&self) -> usize {
        MAX_FRAME
    }

    /// True if there is room for a frame. Reclaims sent frames if there is none.
    fn has_room(&mut self) -> bool;

    /// The buffer of the next frame to send.
    fn place(&self) -> Bytes<'_>;

    /// Queues the frame of `len` bytes that was written to [`place`](Self::place). Returns false
    /// without room.
    fn send_placed(&mut self, len: u32) -> bool;

    /// Tells the device of queued frames, and of buffers that were given back.
    fn publish(&mut self);

    /// Shows at most `most` received frames to `visit`, in pieces.
    fn receive(&mut self, most: usize, visit: &mut dyn FnMut(&[Bytes<'_>]));

    /// Prepares to sleep until a frame arrives or, with `room`, until there is room to send.
    /// Returns true if there is such work already.
    fn sleep(&mut self, room: bool) -> bool;

    /// Handles an interrupt, and allows the next one.
    fn interrupted(&mut self);

    /// The first access to registers that failed since the last call.
    fn failure(&mut self) -> Option<ClientError>;
}

impl<R: Bus> Drive for E1000Driver<R> {
    fn mac(&mut self) -> Mac {
        Self::mac(self)
    }

    fn has_room(&mut self) -> bool {
        // A frame takes one descriptor. The ring is never filled completely.
        self.room() > 1 || {
            self.reclaim();
            self.room() > 1
        }
    }

    fn place(&self) -> Bytes<'_> {
        Self::place(self, 0)
    }

    fn send_placed(&mut self, len: u32) -> bool {
        Self::send_placed(self, len, &Request::default())
    }

    fn publish(&mut self) {
        self.flush();
        self.refill();
    }

    fn receive(&mut self, most: usize, visit: &mut dyn FnMut(&[Bytes<'_>])) {
        Self::receive(self, most, |frame| {
            if frame.errors == 0 {
                visit(frame.pieces);
            }
        });
    }

    fn sleep(&mut self, room: bool) -> bool {
        room && self.wait_for_room(2) || self.wait_for_frames()
    }

    fn interrupted(&mut self) {
        self.interrupt(1);
        self.rearm();
        self.regs().unmask();
    }

    fn failure(&mut self) -> Option<ClientError> {
        self.regs().failure()
    }
}

impl<R: Bus> Drive for pcnet::Driver<R> {
    fn mac(&mut self) -> Mac {
        Self::mac(self)
    }

    fn has_room(&mut self) -> bool {
        self.room() > 0 || self.reap() > 0 && self.room() > 0
    }

    fn place(&self) -> Bytes<'_> {
        Self::place(self)
    }

    fn send_placed(&mut self, len: u32) -> bool {
        Self::send_placed(self, len)
    }

    fn publish(&mut self) {
        if self.has_unsent() {
            self.demand();
        }
    }

    fn receive(&mut self, most: usize, visit: &mut dyn FnMut(&[Bytes<'_>])) {
        Self::receive(self, most, |frame| visit(&[frame]));
    }

    fn sleep(&mut self, room: bool) -> bool {
        room && self.wait_for_room() || self.wait_for_frames()
    }

    fn interrupted(&mut self) {
        self.acknowledge();
        Self::unmask(self);
        self.regs().unmask();
    }

    fn failure(&mut self) -> Option<ClientError> {
        self.regs().failure()
    }
}

impl<R: Bus> Drive for one_access::Driver<R> {
    fn mac(&mut self) -> Mac {
        Self::mac(self)
    }

    fn has_room(&mut self) -> bool {
        Self::has_room(self)
    }

    fn place(&self) -> Bytes<'_> {
        Self::place(self)
    }

    fn send_placed(&mut self, len: u32) -> bool {
        Self::send_placed(self, len)
    }

    /// Each frame has told the device already.
    fn publish(&mut self) {}

    fn receive(&mut self, most: usize, visit: &mut dyn FnMut(&[Bytes<'_>])) {
        Self::receive(self, most, |frame| visit(&[frame]));
    }

    fn sleep(&mut self, room: bool) -> bool {
        room && Self::has_room(self)
    }

    fn interrupted(&mut self) {
        self.regs().unmask();
    }

    fn failure(&mut self) -> Option<ClientError> {
        self.regs().failure()
    }
}

/// How an e1000 is told of frames: by its status block where it has one.
pub(super) const BLOCK: Doorbells = Doorbells::Block(abi::csb::Version::Two);
