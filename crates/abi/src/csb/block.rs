//! The words of a block, and the protocol over the words of one queue. The protocol is what runs
//! under loom.

use shmem::Shareable;
#[cfg(not(loom))]
use shmem::SharedSlice;
use shmem::sync::{AtomicU32, Ordering, fence};

#[cfg(not(loom))]
use super::MAGIC;
use super::{NONE, QUEUES};

/// A 32-bit word of a block, little endian.
///
/// # Protocol: status block (`abi::csb`): tails
/// - Writer: driver
/// - Reader: worker, holder of a receive queue's lock
/// - Ordering: store release, `SeqCst` fence before the device's flag is read / load acquire
/// - Partner: descriptors before it; `ask`
/// - Without it: a doorbell is left out, and the device sleeps
/// - Shown by: loom (`abi`) `no_doorbell_is_left_out_that_is_needed`,
///   `without_the_drivers_fence_a_wake_up_is_lost`
///
/// # Protocol: status block: heads
/// - Writer: worker (transmit: complete), holder of a receive queue's lock
/// - Reader: driver
/// - Ordering: store release / load acquire
/// - Partner: descriptors before it; `want`
/// - Without it: a driver takes back a buffer that is still read
/// - Shown by: `nic` tests `csb`, `e1000_driver`
///
/// # Protocol: status block: `ask` (device sleeps), `want` (driver sleeps), with their index
/// - Writer: the side that sleeps
/// - Reader: the other
/// - Ordering: index relaxed, flag release, `SeqCst` fence, then the other's index read again /
///   load acquire after the reader's `SeqCst` fence
/// - Partner: tail, head
/// - Without it: a side sleeps for ever
/// - Shown by: loom (`abi`) `no_doorbell_...`, `no_interrupt_is_left_out_that_is_needed`,
///   `a_doorbell_at_an_index_...`
#[derive(Debug)]
#[repr(transparent)]
pub struct Word(AtomicU32);

impl Word {
    /// A word. In shared memory, words are mapped, not made.
    #[must_use]
    pub fn new(value: u32) -> Self {
        Self(AtomicU32::new(value.to_le()))
    }

    /// Reads the word, without ordering.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u32 {
        u32::from_le(self.0.load(Ordering::Relaxed))
    }

    /// Reads the word. Everything written before it was published is then visible.
    #[inline]
    #[must_use]
    pub fn observe(&self) -> u32 {
        u32::from_le(self.0.load(Ordering::Acquire))
    }

    /// Sets the word, without ordering.
    #[inline]
    pub fn set(&self, value: u32) {
        self.0.store(value.to_le(), Ordering::Relaxed);
    }

    /// Sets the word, after everything that was written before.
    #[inline]
    pub fn publish(&self, value: u32) {
        self.0.store(value.to_le(), Ordering::Release);
    }
}

/// Unused bytes.
#[derive(Debug)]
#[repr(transparent)]
pub struct Pad<const N: usize>([core::sync::atomic::AtomicU8; N]);

/// Version 1 of the block, from 2013 (see [the table](super)).
#[derive(Debug)]
#[repr(C, align(64))]
#[allow(missing_docs, reason = "the module's table says what they are")]
pub struct V1 {
    pub guest_tdt: Word,
    pub guest_need_txkick: Word,
    pub guest_need_rxkick: Word,
    pub guest_csb_on: Word,
    pub guest_rdt: Word,
    pub guest_txkick_at: Word,
    pub guest_use_msix: Word,
    /// Where version 2 has its magic number; zero in version 1.
    pub magic: Word,
    pub pad: Pad<32>,
    pub host_tdh: Word,
    pub host_need_txkick: Word,
    pub host_txcycles_lim: Word,
    pub host_txcycles: Word,
    pub host_rdh: Word,
    pub host_need_rxkick: Word,
    pub host_isr: Word,
    pub host_rxkick_at: Word,
    pub vnet_ring_high: Word,
    pub vnet_ring_low: Word,
}

/// What a v2 driver writes at set-up.
#[derive(Debug)]
#[repr(C, align(128))]
#[allow(missing_docs, reason = "the module's table says what they are")]
pub struct GuestSetup {
    pub zero: [Word; 7],
    pub magic: Word,
    pub version: Word,
    pub features: Word,
    pub queues: Word,
    pub spin_us: Word,
}

/// A device's answer to the set-up.
#[derive(Debug)]
#[repr(C, align(128))]
#[allow(missing_docs, reason = "the module's table says what they are")]
pub struct HostSetup {
    pub magic: Word,
    pub version: Word,
    pub features: Word,
    pub queues: Word,
    pub spin_us: Word,
    pub fault: Word,
}

/// What a v2 driver writes for a queue.
#[derive(Debug)]
#[repr(C, align(128))]
#[allow(missing_docs, reason = "the module's table says what they are")]
pub struct GuestLine {
    pub tail: Word,
    pub want: Word,
    pub want_at: Word,
    pub on: Word,
}

/// What a device writes for a queue.
#[derive(Debug)]
#[repr(C, align(128))]
#[allow(missing_docs, reason = "the module's table says what they are")]
pub struct HostLine {
    pub head: Word,
    pub ask: Word,
    pub ask_at: Word,
}

/// A queue of a v2 block.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "the module's table says what they are")]
pub struct QueueLines {
    pub guest: GuestLine,
    pub host: HostLine,
}

/// The v2 block (see [the table](super)).
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "the module's table says what they are")]
pub struct V2 {
    pub guest: GuestSetup,
    pub host: HostSetup,
    pub pad: Pad<0x300>,
    pub send: [QueueLines; QUEUES],
    pub receive: [QueueLines; QUEUES],
}

#[allow(unsafe_code, reason = "promises about types that lie in shared memory")]
mod shareable {
    use super::*;
    // SAFETY: the type consists of one atomic word.
    unsafe impl Shareable for Word {}
    // SAFETY: words and atomic bytes only; the padding of its alignment is never read.
    unsafe impl Shareable for V1 {}
    // SAFETY: as above.
    unsafe impl Shareable for V2 {}
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<V1>() == 0x80);
    assert!(offset_of!(V1, guest_csb_on) == 0x0c && offset_of!(V1, guest_use_msix) == 0x18);
    assert!(offset_of!(V1, host_tdh) == 0x40 && offset_of!(V1, host_rdh) == 0x50);
    assert!(offset_of!(V1, host_rxkick_at) == 0x5c && offset_of!(V1, vnet_ring_low) == 0x64);
    assert!(offset_of!(V1, magic) == offset_of!(GuestSetup, magic));
    assert!(offset_of!(V2, host) == 0x80 && offset_of!(V2, send) == 0x400);
    assert!(offset_of!(V2, receive) == 0x800 && size_of::<V2>() == 0xc00);
    assert!(offset_of!(QueueLines, host) == 0x80 && offset_of!(HostSetup, fault) == 0x14);
};

/// The version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1, from 2013.
    One,
    /// toklat's own.
    Two,
}

/// The direction of a queue, from the driver's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Transmit.
    Send,
    /// Receive.
    Receive,
}

/// Errors of a driver that stop its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[repr(u32)]
pub enum Fault {
    /// A tail beyond the ring's end.
    #[error("an index in the status block is beyond the ring's end")]
    Index = 1,
}

impl Fault {
    /// The name, as in `nic::device::Device::fault`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Index => "an index in the status block is beyond the ring's end",
        }
    }
}

/// True if a move from `from` to `to`, in a ring of `size`, reaches `at` or passes it.
#[inline]
fn passes(from: u32, to: u32, at: u32, size: u32) -> bool {
    let ahead = |index: u32| if index >= from { index - from } else { index + (size - from) };
    let good = from < size && to < size && at < size && at != from;
    good && ahead(at) <= ahead(to)
}

/// The words of one queue in a block of either version.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'b> {
    version: Version,
    tail: &'b Word,
    want: &'b Word,
    want_at: Option<&'b Word>,
    on: &'b Word,
    head: &'b Word,
    ask: &'b Word,
    ask_at: Option<&'b Word>,
}

impl<'b> Lane<'b> {
    /// A queue of a v1 block, which has one in each direction.
    #[inline]
    #[must_use]
    pub fn one(block: &'b V1, way: Direction) -> Self {
        let (version, on) = (Version::One, &block.guest_csb_on);
        match way {
            Direction::Send => Self {
                version,
                on,
                tail: &block.guest_tdt,
                want: &block.guest_need_txkick,
                want_at: Some(&block.guest_txkick_at),
                head: &block.host_tdh,
                ask: &block.host_need_txkick,
                ask_at: None,
            },
            Direction::Receive => Self {
                version,
                on,
                tail: &block.guest_rdt,
                want: &block.guest_need_rxkick,
                want_at: None,
                head: &block.host_rdh,
                ask: &block.host_need_rxkick,
                ask_at: Some(&block.host_rxkick_at),
            },
        }
    }

    /// A queue of a v2 block.
    #[inline]
    #[must_use]
    pub fn two(QueueLines { guest, host }: &'b QueueLines) -> Self {
        Self {
            version: Version::Two,
            tail: &guest.tail,
            want: &guest.want,
            want_at: Some(&guest.want_at),
            on: &guest.on,
            head: &host.head,
            ask: &host.ask,
            ask_at: Some(&host.ask_at),
        }
    }

    // --- both ends ---

    /// True if the queue uses the block.
    #[inline]
    #[must_use]
    pub fn is_on(self) -> bool {
        self.on.get() != 0
    }

    /// Arms `flag`, for when the other side's index comes to `at`. The other side can tell this
    /// arming from earlier ones. The caller then checks again for what it waits for.
    #[inline]
    fn set_flag(self, flag: &Word, index: Option<&Word>, last: &mut u32, at: u32) {
        if let Some(word) = index {
            word.set(at);
        }
        *last = match self.version {
            Version::One => 1,
            Version::Two => last.wrapping_add(1 + (*last & 1)),
        };
        flag.publish(*last);
        fence(Ordering::SeqCst);
    }

    /// Disarms `flag`.
    #[inline]
    fn clear_flag(self, flag: &Word, index: Option<&Word>, last: &mut u32) {
        if let Some(word) = index {
            word.set(NONE);
        }
        *last = match self.version {
            Version::One => 0,
            Version::Two => last.wrapping_add(*last & 1),
        };
        flag.set(*last);
    }

    /// True if `flag` is armed and not answered yet, and the move from `from` to `to` reaches the
    /// index it waits for. Each word is read once.
    #[inline]
    fn is_due(self, flag: &Word, at: Option<&Word>, answered: &mut u32, way: [u32; 3]) -> bool {
        let (value, [from, to, size]) = (flag.observe(), way);
        let at = at.map_or(NONE, Word::get);
        let armed = match self.version {
            // Devices made for version 1 of the block, from 2013, set either the flag or the index.
            Version::One => value != 0 || at != NONE,
            Version::Two => value & 1 == 1 && value != *answered,
        };
        let due = armed && (at == NONE || passes(from, to, at, size));
        if due {
            *answered = value;
        }
        due
    }

    // --- the device's end ---

    /// The device's flag. A rebuilt device continues to count its armings from there.
    #[must_use]
    pub fn asked(self) -> u32 {
        self.ask.get()
    }

    /// The driver's tail, read once, and checked against a ring of `size`.
    ///
    /// # Errors
    /// [`Fault::Index`].
    #[inline]
    pub fn tail(self, size: u32) -> Result<u32, Fault> {
        let tail = self.tail.observe();
        if tail < size { Ok(tail) } else { Err(Fault::Index) }
    }

    /// Publishes the device's head: once a batch, after the descriptors' contents.
    #[inline]
    pub fn publish_head(self, head: u32) {
        self.head.publish(head);
    }

    /// Asks for a doorbell, and returns the driver's tail, read afterwards. If that is not `seen`,
    /// the caller has work and [withdraws the request](Self::withdraw_doorbell). `at` is the index
    /// that is worth a doorbell, if any.
    ///
    /// # Errors
    /// [`Fault::Index`].
    #[inline]
    pub fn request_doorbell(self, last: &mut u32, at: u32, size: u32) -> Result<u32, Fault> {
        self.set_flag(self.ask, self.ask_at, last, at);
        self.tail(size)
    }

    /// Withdraws the request: the device is awake.
    #[inline]
    pub fn withdraw_doorbell(self, last: &mut u32) {
        self.clear_flag(self.ask, self.ask_at, last);
    }

    /// True if the driver must be interrupted for the head's move to `to`. `told` is where the head
    /// was at the previous decision; `None` if that is not known. The caller has published `to` and
    /// fenced (`SeqCst`), once for many queues.
    #[inline]
    #[must_use]
    pub fn wants_interrupt(
        self,
        answered: &mut u32,
        told: Option<u32>,
        to: u32,
        size: u32,
    ) -> bool {
        let value = self.want.observe();
        let at = self.want_at.map_or(NONE, Word::get);
        let armed = match self.version {
            Version::One => value != 0,
            Version::Two => value & 1 == 1 && value != *answered,
        };
        let wants = match (self.version, told) {
            (_, Some(from)) if from == to => false,
            (_, None) => armed,
            // In v1, the flag and the index are independent.
            (Version::One, Some(from)) => armed || passes(from, to, at, size),
            (Version::Two, Some(from)) => armed && (at == NONE || passes(from, to, at, size)),
        };
        if wants {
            *answered = value;
        }
        wants
    }

    // --- the driver's end ---

    /// The driver's flag. A driver continues to count its armings from there.
    #[must_use]
    pub fn wanted(self) -> u32 {
        self.want.get()
    }

    /// Sets the tail while the device does not read it.
    pub fn set_tail(self, tail: u32) {
        self.tail.publish(tail);
    }

    /// Turns the queue on or off. Call [`publish_tail`](Self::publish_tail) before turning it on.
    #[inline]
    pub fn turn(self, on: bool) {
        self.on.publish(u32::from(on));
    }

    /// Publishes the driver's tail, which was `from`, and returns true if the doorbell must be
    /// rung. `answered` is the arming that was answered last; 0 at first.
    #[inline]
    #[must_use = "a doorbell that is not rung leaves the device asleep"]
    pub fn publish_tail(self, answered: &mut u32, from: u32, to: u32, size: u32) -> bool {
        self.tail.publish(to);
        fence(Ordering::SeqCst);
        !self.is_on() || self.is_due(self.ask, self.ask_at, answered, [from, to, size])
    }

    /// The device's head.
    #[inline]
    #[must_use]
    pub fn head(self) -> u32 {
        self.head.observe()
    }

    /// Asks for an interrupt when the head comes to `at`, or at once ([`NONE`]). The caller then
    /// checks the head, or the descriptors, again.
    #[inline]
    pub fn request_interrupt(self, last: &mut u32, at: u32) {
        self.set_flag(self.want, self.want_at, last, at);
    }

    /// Withdraws the request: the driver is awake.
    #[inline]
    pub fn withdraw_interrupt(self, last: &mut u32) {
        self.clear_flag(self.want, self.want_at, last);
    }
}

/// True if a driver's set-up is that of a v2 block.
#[cfg(not(loom))]
#[must_use]
pub fn is_two(magic: u32, version: u32) -> bool {
    magic == MAGIC && version >= 2
}

/// A block's page, by its version.
#[cfg(not(loom))]
#[derive(Clone, Debug)]
pub enum Page {
    /// Version 1 of the block, from 2013.
    One(SharedSlice<V1>),
    /// The v2 block.
    Two(SharedSlice<V2>),
}

#[cfg(not(loom))]
impl Page {
    /// The words of a queue, if the block has them.
    #[inline]
    #[must_use]
    pub fn lane(&self, way: Direction, queue: usize) -> Option<Lane<'_>> {
        match self {
            Self::One(page) => page.first().filter(|_| queue == 0).map(|page| Lane::one(page, way)),
            Self::Two(page) => {
                let page = page.first()?;
                let queues = if way == Direction::Send { &page.send } else { &page.receive };
                queues.get(queue).map(Lane::two)
            }
        }
    }
}

#[cfg(loom)]
mod made {
    use super::*;

    impl<const N: usize> Pad<N> {
        fn new() -> Self {
            Self([const { core::sync::atomic::AtomicU8::new(0) }; N])
        }
    }

    impl QueueLines {
        /// A block of zeros.
        #[must_use]
        #[allow(clippy::new_without_default, reason = "for models only")]
        pub fn new() -> Self {
            let word = || Word::new(0);
            let guest = GuestLine { tail: word(), want: word(), want_at: word(), on: word() };
            Self { guest, host: HostLine { head: word(), ask: word(), ask_at: word() } }
        }
    }

    impl V1 {
        /// A block as a v1 driver sets it up.
        #[must_use]
        #[allow(clippy::new_without_default, reason = "for models only")]
        pub fn new() -> Self {
            let word = || Word::new(0);
            Self {
                guest_tdt: word(),
                guest_need_txkick: word(),
                guest_need_rxkick: word(),
                guest_csb_on: Word::new(1),
                guest_rdt: word(),
                guest_txkick_at: Word::new(NONE),
                guest_use_msix: word(),
                magic: word(),
                pad: Pad::new(),
                host_tdh: word(),
                host_need_txkick: word(),
                host_txcycles_lim: word(),
                host_txcycles: word(),
                host_rdh: word(),
                host_need_rxkick: word(),
                host_isr: word(),
                host_rxkick_at: Word::new(NONE),
                vnet_ring_high: word(),
                vnet_ring_low: word(),
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::passes;

    #[test]
    fn an_index_is_passed_as_on_a_circle() {
        const SIZE: u32 = 8;
        for from in 0..SIZE {
            for steps in 0..SIZE {
                let way: Vec<u32> = (1..=steps).map(|step| (from + step) % SIZE).collect();
                for at in 0..SIZE {
                    let to = (from + steps) % SIZE;
                    assert_eq!(passes(from, to, at, SIZE), way.contains(&at), "{from} {to} {at}");
                }
            }
        }
    }

    #[test]
    fn indices_beyond_the_ring_are_never_passed() {
        for bad in [8, 9, u32::MAX - 1, u32::MAX] {
            assert!(!passes(bad, 1, 0, 8) && !passes(0, bad, 1, 8) && !passes(0, 1, bad, 8));
        }
        assert!(!passes(0, 0, 0, 0), "no ring");
    }
}
