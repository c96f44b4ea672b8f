//! Carries a guest's memory to a copy of it and back, at once.

use std::sync::Arc;

use nic::device::Device;
use nic::remote::{Held, Out};
use port::Nanos;
use shmem::{GuestMemory, Mapping};

/// Writes what a device pushes into the guest's memory.
struct Writes<'a>(&'a GuestMemory, Vec<(u64, usize)>);

impl Out for Writes<'_> {
    fn has_room(&self) -> bool {
        true
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.0.bytes(at, bytes.len() as u32).unwrap().copy_in(bytes);
        self.1.push((at, bytes.len()));
    }
}

/// An empty copy of `bytes` bytes.
pub fn copy(bytes: u64) -> Arc<GuestMemory> {
    let mapping = Mapping::sparse(bytes as usize).unwrap();
    Arc::new(GuestMemory::of(mapping, 0).unwrap().into_copy())
}

/// Fetches the bytes that the device wants, and stores the bytes that it pushed. Returns where and
/// how many these were, and the causes to remind the driver of.
pub fn carry(
    device: &dyn Device,
    guest: &GuestMemory,
    held: &mut Held,
    now: Nanos,
) -> (Vec<(u64, usize)>, u32) {
    let remote = device.remote().unwrap();
    let (mut writes, mut causes) = (Writes(guest, Vec::new()), 0);
    for _ in 0..8 {
        held.begin();
        remote.fetch(held, now);
        held.sweep();
        causes |= remote.push(&mut writes);
        remote.note_sent();
        while let Some(part) = held.next_part(4096) {
            held.asked(part);
            held.receive_part(part, &guest.bytes(part.at, part.len as u32).unwrap().to_vec());
        }
    }
    (writes.1, causes)
}

/// Stores the bytes that the device pushed, and dies before it can confirm that.
#[allow(dead_code, reason = "not all tests kill anybody")]
pub fn take_and_die(device: &dyn Device, guest: &GuestMemory) {
    device.remote().unwrap().push(&mut Writes(guest, Vec::new()));
}
