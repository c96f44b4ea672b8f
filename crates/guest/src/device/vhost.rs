//! Virtio queues that a vhost-user back end serves, as a guest's NIC.
//!
//! ```text
//!   memory, shared:  both queues | receive buffers | send slots | twins of documents
//!
//!   a sent frame:    slot [virtio-net header, headers of the frame, payload]
//!                    slot [virtio-net header, headers of the frame] -> twin -> twin ...
//! ```
//!
//! The back end may write to the shared memory at any time, so documents themselves are private.
//! Each has a twin in shared memory, to which descriptors point: the payload of a document is
//! copied once in its life, not once each time it is sent.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abi::virtio::Features;
use card::vhost_user::{Bells, FrontEnd, FrontEndError};
use driver::virtio::{Buffer, Driver, NotGiven, layout_at, queue_bytes};
use frame::{MIN_FRAME, Mac, OFFLOAD_HEADER, Offload, OffloadSet};
use rustix::io::Errno;
use shmem::{GuestMemory, GuestRange, Memfd, Pages};
use tcp::{Bytes, Full};

use super::{Arena, bell, send_built, sleep};
use crate::nic::{Frame, Nic, Pieces};

/// Entries of a queue, and bytes of a receive buffer.
const ENTRIES: u16 = 256;
const BUFFER: u64 = 2048;
/// Bytes of the header before a frame (virtio 1.2, 5.1.6.1).
const HEADER: usize = 12;
/// The longest frame, with or without a segmentation request: a packet of 64 KiB.
const LONGEST: usize = 14 + u16::MAX as usize;
/// Send slots, and bytes of one: a frame of any length.
const SLOTS: u64 = 128;
const SLOT: u64 = (HEADER + LONGEST).next_multiple_of(4096) as u64;
/// Descriptors of a sent frame, at most.
const PIECES: usize = 17;
/// The numbers of the queues.
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

/// Without these features there is no session.
const NEEDED: Features = Features::VERSION_1.union(Features::MRG_RXBUF);
/// These are used where they are offered.
const WISHED: Features = Features::CSUM
    .union(Features::GUEST_CSUM)
    .union(Features::GUEST_TSO4)
    .union(Features::GUEST_TSO6)
    .union(Features::GUEST_ECN)
    .union(Features::HOST_TSO4)
    .union(Features::HOST_TSO6)
    .union(Features::HOST_ECN)
    .union(Features::EVENT_IDX)
    .union(Features::MAC)
    .union(Features::MTU);

/// The reason why a back end cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VhostError {
    /// The session did not begin.
    #[error(transparent)]
    Session(#[from] FrontEndError),
    /// There is no memory to share.
    #[error("No memory can be shared with the back end")]
    Memory(#[from] shmem::RegionError),
    /// The queues do not lie in memory.
    #[error("The queues do not lie in the shared memory")]
    Queues,
    /// The back end broke the rules of a queue.
    #[error(transparent)]
    Queue(#[from] NotGiven),
    /// A received frame has other buffers than it says.
    #[error("The back end says that a frame has {0} buffers, and it has not")]
    Buffers(u16),
    /// An eventfd cannot be made or waited for, or the back end hung up.
    #[error("Cannot wait for the back end")]
    Wait(#[from] Errno),
}

/// A NIC that is the front end of a vhost-user port.
pub struct VhostNic {
    session: FrontEnd,
    memory: Arc<GuestMemory>,
    queues: [Queue; 2],
    documents: Documents,
    mac: Option<Mac>,
    mtu: usize,
    arena: Arena,
    scratch: Vec<u8>,
    /// What the back end did wrong. Nothing is sent or received after it.
    broken: Option<VhostError>,
}

/// A queue, its eventfds, and its free buffers.
struct Queue {
    driver: Driver,
    bells: Bells,
    /// The buffer or slot of each chain, by the chain's number.
    held: Box<[u64]>,
    free: Vec<u64>,
}

impl Queue {
    /// Makes chains available, and wakes the device if it wants that.
    fn publish(&mut self) {
        if self.driver.publish() {
            // It fails only if the count is at its end, and then the device is awake.
            let _ = rustix::io::write(&self.bells.kick, &1u64.to_ne_bytes());
        }
    }
}

impl fmt::Debug for VhostNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let features = self.session.features();
        f.debug_struct("VhostNic").field("features", &features).finish_non_exhaustive()
    }
}

impl VhostNic {
    /// Connects to a back end, such as a port of kind `vhost_user`, with packed or split queues.
    /// There is room for `shared` bytes of [documents](Self::documents).
    ///
    /// # Errors
    /// [`VhostError`].
    pub fn connect(path: &Path, packed: bool, shared: usize) -> Result<Self, VhostError> {
        let more = if packed { Features::RING_PACKED } else { Features::empty() };
        Self::on(FrontEnd::connect(path, NEEDED | more, WISHED)?, shared)
    }

    fn on(mut session: FrontEnd, shared: usize) -> Result<Self, VhostError> {
        let queue_len = queue_bytes(ENTRIES).next_multiple_of(4096);
        let receive = 2 * queue_len;
        let slots = receive + u64::from(ENTRIES) * BUFFER;
        let twins = slots + SLOTS * SLOT;
        let len = (twins as usize + shared).next_multiple_of(4096);
        let file = Memfd::create("nic", len, Pages::Small)?;
        let range =
            GuestRange { guest: 0, user: 0, size: len as u64, mapping: file.map()?, offset: 0 };
        let memory = Arc::new(GuestMemory::new(vec![range]).map_err(|_| VhostError::Queues)?);
        session.share(file.as_fd(), len as u64)?;
        let (mac, mtu) = configuration(&mut session)?;
        let features = session.features();
        let queue = |number: u64| -> Result<_, VhostError> {
            let layout = layout_at(number * queue_len, ENTRIES);
            let driver = Driver::new(&memory, layout, features).ok_or(VhostError::Queues)?;
            let bells = Bells { kick: bell()?, call: bell()? };
            let (first, count, size) = match number as usize {
                RECEIVE => (receive, ENTRIES.into(), BUFFER),
                _ => (slots, SLOTS, SLOT),
            };
            let free = (0..count).rev().map(|i| first + i * size).collect();
            Ok((layout, Queue { driver, bells, held: vec![0; ENTRIES.into()].into(), free }))
        };
        let [(first, receiving), (second, sending)] = [queue(0)?, queue(1)?];
        session.start_queue(RECEIVE as u32, first, &receiving.bells)?;
        session.start_queue(TRANSMIT as u32, second, &sending.bells)?;
        let documents = Documents::new(Arc::clone(&memory), twins, len as u64);
        let mut nic = Self {
            session,
            memory,
            queues: [receiving, sending],
            documents,
            mac,
            mtu,
            // Room for several of the longest frames.
            arena: Arena::new(4 * LONGEST),
            scratch: Vec::new(),
            broken: None,
        };
        nic.queues[TRANSMIT].driver.want_interrupts(false);
        nic.refill();
        nic.queues[RECEIVE].publish();
        Ok(nic)
    }

    /// The station address that the port has, if it has one. The front end chooses it else.
    #[must_use]
    pub fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Documents whose payload the device reads where it lies.
    #[must_use]
    pub fn documents(&self) -> Documents {
        self.documents.clone()
    }

    /// Gives the device all free receive buffers.
    fn refill(&mut self) {
        let Queue { driver, free, held, .. } = &mut self.queues[RECEIVE];
        while let Some(at) = free.pop() {
            let buffer = Buffer { at, len: BUFFER as u32, writable: true };
            let Some(number) = driver.add(&[buffer], None) else {
                free.push(at);
                return;
            };
            held[usize::from(number)] = at;
        }
    }

    /// Takes back the slots of frames that were sent.
    fn reclaim(&mut self) {
        let Queue { driver, free, held, .. } = &mut self.queues[TRANSMIT];
        loop {
            match driver.take_used() {
                Ok(None) => return,
                Ok(Some((number, _))) => free.push(held[usize::from(number)]),
                Err(error) => {
                    self.broken.get_or_insert_with(|| error.into());
                    return;
                }
            }
        }
    }

    /// Takes the next received buffer: its place and the bytes in it.
    fn take_buffer(&mut self) -> Result<Option<(u64, usize)>, VhostError> {
        let Queue { driver, free, held, .. } = &mut self.queues[RECEIVE];
        let Some((number, len)) = driver.take_used()? else { return Ok(None) };
        let at = held[usize::from(number)];
        free.push(at);
        Ok(Some((at, (len as usize).min(BUFFER as usize))))
    }

    /// Copies the next received frame to the arena; false if there is none.
    fn copy_frame(&mut self) -> Result<bool, VhostError> {
        let Some((at, len)) = self.take_buffer()? else { return Ok(false) };
        let first = self.memory.bytes(at, len as u32).ok_or(VhostError::Queues)?;
        let mut header = [0; HEADER];
        if first.copy_out(&mut header) < HEADER {
            return Err(VhostError::Buffers(0));
        }
        let buffers = u16::from_le_bytes([header[10], header[11]]);
        let mut copied = first.suffix(HEADER).copy_out(self.arena.free());
        for _ in 1..buffers {
            let Some((at, len)) = self.take_buffer()? else {
                return Err(VhostError::Buffers(buffers));
            };
            let piece = self.memory.bytes(at, len as u32).ok_or(VhostError::Queues)?;
            copied += piece.copy_out(&mut self.arena.free()[copied..]);
        }
        let mut offload = [0; OFFLOAD_HEADER];
        offload.copy_from_slice(&header[..OFFLOAD_HEADER]);
        let allowed = self.session.features().guest_offloads();
        // With a request that was not negotiated, the frame is worth nothing.
        if let Some(offload) = Offload::from_header(&offload).from_sender(&allowed) {
            self.arena.keep(copied, offload);
        }
        Ok(true)
    }

    /// True if a frame of this many pieces can be sent.
    fn has_room(&mut self, pieces: usize) -> bool {
        let enough =
            |queue: &Queue| usize::from(queue.driver.room()) >= pieces && !queue.free.is_empty();
        if !enough(&self.queues[TRANSMIT]) {
            self.reclaim();
        }
        self.broken.is_none() && enough(&self.queues[TRANSMIT])
    }
}

/// The address that a device has, if it has one, and its MTU, which is else Ethernet's.
fn configuration(session: &mut FrontEnd) -> Result<(Option<Mac>, usize), VhostError> {
    let [a, b, c, d, e, f, .., low, high]: [u8; 12] = session.configuration()?;
    let has = |feature| session.features().contains(feature);
    let mac = has(Features::MAC).then(|| Mac::new([a, b, c, d, e, f]));
    let mtu = if has(Features::MTU) { u16::from_le_bytes([low, high]).max(576) } else { 1500 };
    Ok((mac, mtu.into()))
}

impl Nic for VhostNic {
    type Error = VhostError;

    fn max_frame(&self) -> usize {
        frame::ETHERNET_HEADER + self.mtu
    }

    fn offloads(&self) -> OffloadSet {
        let (sends, takes) =
            (self.session.features().host_offloads(), self.session.features().guest_offloads());
        OffloadSet::from_bits(sends.bits() & takes.bits())
    }

    fn receive(&mut self, take: impl FnMut(&[Frame<'_>])) -> usize {
        while self.broken.is_none() && self.arena.has_room(LONGEST) {
            match self.copy_frame() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => self.broken = Some(error),
            }
        }
        self.refill();
        self.arena.lend(take)
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        offload: Offload,
    ) -> Result<(), Full> {
        let len = head.len() + payload.len;
        if !self.has_room(PIECES) || len > LONGEST {
            return Err(Full);
        }
        let Queue { driver, free, held, .. } = &mut self.queues[TRANSMIT];
        let Some(at) = free.pop() else { return Err(Full) };
        let Some(slot) = self.memory.bytes(at, SLOT as u32) else { return Err(Full) };
        slot.copy_in(&offload.header());
        slot.write(OFFLOAD_HEADER, [0u8; 2]);
        let mut filled = HEADER + slot.suffix(HEADER).copy_in(head);
        // Twins follow the slot. A piece after a twin that has no twin itself is copied behind
        // what the slot holds, and has a descriptor of its own.
        let mut chain = [Buffer { at, len: filled as u32, writable: false }; PIECES];
        let mut used = 1;
        for piece in payload.pieces {
            // What is padded ends in the slot.
            let may_point = len >= MIN_FRAME && used + 1 < PIECES;
            let twin = may_point.then(|| self.documents.twin(piece)).flatten();
            let start = at + filled as u64;
            let (place, len) = match twin {
                Some(twin) => (twin, piece.len()),
                None => (start, slot.suffix(filled).copy_in(piece)),
            };
            if twin.is_none() {
                filled += len;
            }
            let last = &mut chain[used - 1];
            if last.at + u64::from(last.len) == place {
                last.len += len as u32;
            } else if used < PIECES {
                chain[used] = Buffer { at: place, len: len as u32, writable: false };
                used += 1;
            } else {
                free.push(at);
                return Err(Full);
            }
        }
        if len < MIN_FRAME {
            let last = &mut chain[used - 1];
            slot.suffix(filled).prefix(MIN_FRAME - len).fill(0);
            last.len += (MIN_FRAME - len) as u32;
        }
        match driver.add(&chain[..used], None) {
            Some(number) => {
                held[usize::from(number)] = at;
                Ok(())
            }
            None => {
                free.push(at);
                Err(Full)
            }
        }
    }

    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        if !self.has_room(PIECES) {
            return Err(Full);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let sent = send_built(self, &mut scratch, max, build);
        self.scratch = scratch;
        sent
    }

    fn flush(&mut self) -> Result<(), VhostError> {
        self.queues.iter_mut().for_each(Queue::publish);
        self.broken.take().map_or(Ok(()), Err)
    }

    fn wait(&mut self, room: bool, timeout: Option<Duration>) -> Result<(), VhostError> {
        self.flush()?;
        let [receive, transmit] = &mut self.queues;
        receive.driver.want_interrupts(true);
        transmit.driver.want_interrupts(room);
        let ready = receive.driver.has_used() || room && transmit.driver.has_used();
        let slept = match ready {
            true => Ok(true),
            false => {
                sleep(&[&receive.bells.call, &transmit.bells.call], self.session.socket(), timeout)
            }
        };
        receive.driver.want_interrupts(false);
        transmit.driver.want_interrupts(false);
        slept?;
        Ok(())
    }
}

/// Documents with twins in the shared memory of a [`VhostNic`]. They stay as long as it does.
#[derive(Clone)]
pub struct Documents {
    memory: Arc<GuestMemory>,
    inner: Arc<Mutex<Twins>>,
}

struct Twins {
    /// By the address of the document: the document, and the guest-physical address of its twin.
    of: BTreeMap<usize, (Bytes, u64)>,
    /// The free part of the memory.
    next: u64,
    end: u64,
    /// Pieces that were sent from twins.
    sent: u64,
}

impl fmt::Debug for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let twins = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Documents")
            .field("documents", &twins.of.len())
            .field("free_bytes", &(twins.end - twins.next))
            .finish()
    }
}

impl Documents {
    fn new(memory: Arc<GuestMemory>, next: u64, end: u64) -> Self {
        let twins = Twins { of: BTreeMap::new(), next, end, sent: 0 };
        Self { memory, inner: Arc::new(Mutex::new(twins)) }
    }

    /// Gives a document a twin. Returns false if there is no room for it; it is then sent by
    /// copies. The document's memory is kept as long as the NIC.
    pub fn add(&self, document: &Bytes) -> bool {
        let mut twins = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, len) = (twins.next, document.len() as u64);
        if document.is_empty() || len > twins.end - at {
            return false;
        }
        let Some(twin) = u32::try_from(len).ok().and_then(|len| self.memory.bytes(at, len)) else {
            return false;
        };
        twin.copy_in(document);
        twins.next = at + len;
        // The document is kept, so no other memory can have its address.
        twins.of.insert(document.as_ptr().addr(), (document.clone(), at));
        true
    }

    /// How many pieces of documents were sent without a copy.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).sent
    }

    /// The guest-physical address of the twin of a part of a document.
    fn twin(&self, piece: &[u8]) -> Option<u64> {
        let mut twins = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let at = piece.as_ptr().addr();
        let (start, (document, twin)) = twins.of.range(..=at).next_back()?;
        let offset = at - start;
        let found = (offset + piece.len() <= document.len()).then_some(*twin + offset as u64);
        twins.sent += u64::from(found.is_some());
        found
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use abi::vhost_user::{HEADER as MESSAGE, NEED_REPLY, REPLY, VERSION, code};
    use driver::virtio::layout_at;

    use super::*;

    /// Answers the requests of a front end, and does nothing else.
    fn answer(mut socket: UnixStream) -> std::io::Result<()> {
        loop {
            let mut header = [0; MESSAGE];
            socket.read_exact(&mut header)?;
            let word = |i: usize| u32::from_ne_bytes(header[4 * i..4 * i + 4].try_into().unwrap());
            let (request, flags, mut payload) = (word(0), word(1), vec![0; word(2) as usize]);
            socket.read_exact(&mut payload)?;
            payload = match request {
                code::GET_FEATURES | code::GET_PROTOCOL_FEATURES => {
                    (!Features::RING_PACKED.bits()).to_ne_bytes().into()
                }
                code::GET_CONFIG => payload,
                _ if flags & NEED_REPLY == 0 => continue,
                _ => vec![0; 8],
            };
            let head = [request, VERSION | REPLY, payload.len() as u32].map(u32::to_ne_bytes);
            socket.write_all(&[&head.concat()[..], &payload].concat())?;
        }
    }

    /// A NIC, before whose receive queue `harm` is done to the used entry 0: its chain, its bytes,
    /// and how many buffers the frame says it has.
    fn nic(chain: u32, len: u32, buffers: u16) -> (VhostNic, std::thread::JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let back_end = std::thread::spawn(move || answer(theirs).unwrap_err().to_string().clear());
        let session = FrontEnd::on(ours, NEEDED, WISHED).unwrap();
        let nic = VhostNic::on(session, 1 << 16).unwrap();
        let used = layout_at(0, ENTRIES).device;
        let held = nic.queues[RECEIVE].held[chain as usize % usize::from(ENTRIES)];
        nic.memory.bytes(held + 10, 2).unwrap().copy_in(&buffers.to_le_bytes());
        let entry = [1u32 << 16, chain, len].map(u32::to_le_bytes).concat();
        nic.memory.bytes(used, 12).unwrap().copy_in(&entry);
        (nic, back_end)
    }

    #[test]
    fn a_back_end_that_breaks_rules_is_an_error_and_no_more() {
        for (harm, wanted) in [
            ((3, 72, 1), None),
            // As many bytes as no buffer has.
            ((3, u32::MAX, 1), None),
            ((700, 72, 1), Some("the device returned chain 700, which it was not given")),
            ((3, 5, 1), Some("The back end says that a frame has 0 buffers, and it has not")),
            ((3, 72, 2), Some("The back end says that a frame has 2 buffers, and it has not")),
        ] {
            let (chain, len, buffers) = harm;
            let (mut nic, back_end) = nic(chain, len, buffers);
            let mut lens = Vec::new();
            nic.receive(|frames| lens.extend(frames.iter().map(|frame| frame.front.len())));
            let error = nic.flush().err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), wanted, "{harm:?}");
            let len = (len as usize).min(BUFFER as usize) - HEADER.min(len as usize);
            assert_eq!(lens, if wanted.is_none() { vec![len] } else { Vec::new() }, "{harm:?}");
            drop(nic);
            back_end.join().unwrap();
        }
    }

    #[test]
    fn a_wait_ends_when_the_back_end_goes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = theirs.try_clone().unwrap();
        let back_end = std::thread::spawn(move || answer(theirs).is_err());
        let mut nic = VhostNic::on(FrontEnd::on(ours, NEEDED, WISHED).unwrap(), 0).unwrap();
        socket.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(back_end.join().unwrap());
        assert!(matches!(nic.wait(false, None), Err(VhostError::Wait(Errno::PIPE))));
    }
}
