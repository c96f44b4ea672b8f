//! A pcapng file that takes everything.
//!
//! Workers append to a buffer under the egress's lock; a thread of the port's own writes it out. A frame
//! counts as delivered when it has been written: what a dying data process had not yet written is among
//! the frames that a restart lost. The file itself is appended to, each data process beginning a section
//! (draft-ietf-opsawg-pcapng, section 4.1).

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos,
    Software,
};
use rustix::time::ClockId;
use shmem::{Bytes, Shared};

use super::PcapError;
use crate::attach::null::Silent;
use crate::attach::{AttachError, Attached};
use crate::state::PortState;

/// Bytes that wait to be written at most; as many again are being written.
const BUFFER: usize = 8 << 20;
/// How long frames wait for more before they are written.
const LINGER: Duration = Duration::from_millis(50);
/// Bytes of an enhanced packet block without its frame (section 4.3).
const BLOCK: usize = 32;

/// Attaches a file, which is written from its present position on.
///
/// # Errors
/// [`AttachError`] when it is not an ordinary file, or the writer cannot be started.
pub fn attach(file: OwnedFd, state: &PortState) -> Result<Attached, AttachError> {
    super::ordinary(&file)?;
    let expected = "counters in the state memory";
    let counters = state.egress(0).ok_or(AttachError::Descriptors { expected })?;
    let mut bytes = Vec::with_capacity(BUFFER);
    begin_section(&mut bytes).map_err(|e| PcapError::File(std::io::Error::other(e)))?;
    let spooled =
        Spooled { bytes, waiting: Tally::default(), counters, failed: false, closing: false };
    let spool = Arc::new(Spool { spooled: Mutex::new(spooled), wake: Condvar::new() });
    let writer = std::thread::Builder::new().name("pcap writer".to_owned());
    let thread = writer.spawn({
        let (spool, file) = (Arc::clone(&spool), File::from(file));
        move || spool.write_out(file)
    });
    let thread = Some(thread.map_err(PcapError::File)?);
    let egress = PcapEgress { spool, thread };
    Ok(Attached {
        source: Box::new(Silent),
        egresses: vec![Arc::new(egress).into()],
        bells: Default::default(),
    })
}

fn begin_section(to: &mut Vec<u8>) -> Result<(), pcap_file::PcapError> {
    let mut writer = PcapNgWriter::with_endianness(to, Endianness::native())?;
    let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
    interface.options = vec![InterfaceDescriptionOption::IfTsResol(9)];
    writer.write_pcapng_block(interface)?;
    Ok(())
}

struct PcapEgress {
    spool: Arc<Spool>,
    thread: Option<JoinHandle<()>>,
}

/// What workers fill and the writer empties.
struct Spool {
    spooled: Mutex<Spooled>,
    /// There is something to write, much to write, or the port is going.
    wake: Condvar,
}

struct Spooled {
    /// Whole blocks.
    bytes: Vec<u8>,
    /// The frames in them.
    waiting: Tally,
    counters: Shared<EgressCounters>,
    /// Writing has failed; nothing more is tried.
    failed: bool,
    closing: bool,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    frames: u64,
    bytes: u64,
}

impl Spool {
    fn lock(&self) -> MutexGuard<'_, Spooled> {
        self.spooled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer's thread.
    fn write_out(&self, mut file: File) {
        let mut bytes = Vec::with_capacity(BUFFER);
        let mut spooled = self.lock();
        loop {
            let idle = |s: &mut Spooled| s.bytes.is_empty() && !s.closing;
            spooled = self.wake.wait_while(spooled, idle).unwrap_or_else(PoisonError::into_inner);
            let few = |s: &mut Spooled| s.bytes.len() < BUFFER / 2 && !s.closing;
            let waited = self.wake.wait_timeout_while(spooled, LINGER, few);
            spooled = waited.unwrap_or_else(PoisonError::into_inner).0;

            std::mem::swap(&mut spooled.bytes, &mut bytes);
            let writing = std::mem::take(&mut spooled.waiting);
            let failed = spooled.failed;
            drop(spooled);
            let written = !failed && file.write_all(&bytes).is_ok();
            bytes.clear();

            spooled = self.lock();
            spooled.count(writing, written);
            if spooled.closing && spooled.bytes.is_empty() {
                break;
            }
        }
    }
}

impl Spooled {
    fn count(&mut self, tally: Tally, written: bool) {
        if written {
            self.counters.frames.add(tally.frames);
            self.counters.bytes.add(tally.bytes);
        } else {
            self.failed = true;
            self.counters.drop_frames(DropReason::Io, tally.frames);
        }
    }

    /// Appends frame `i` as an enhanced packet block, or says why not.
    fn append(
        &mut self,
        batch: &Batch<'_>,
        i: FrameIdx,
        max_frame: u32,
        time: u64,
    ) -> Result<(), DropReason> {
        let len = batch.frame(i).len();
        if len > max_frame as usize {
            return Err(DropReason::TooLong);
        }
        if self.failed {
            return Err(DropReason::Io);
        }
        let block = BLOCK + len.next_multiple_of(4);
        if self.bytes.len() + block > BUFFER {
            return Err(DropReason::Full);
        }
        let words = [6, block as u32, 0, (time >> 32) as u32, time as u32, len as u32, len as u32];
        for word in words {
            self.bytes.extend_from_slice(&word.to_ne_bytes());
        }
        let at = self.bytes.len();
        self.bytes.resize(at + len.next_multiple_of(4), 0);
        batch.copy_frame(i, Bytes::of(&mut self.bytes[at..at + len]));
        self.bytes.extend_from_slice(&(block as u32).to_ne_bytes());
        self.waiting.frames += 1;
        self.waiting.bytes += len as u64;
        Ok(())
    }
}

impl Egress for PcapEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let time = rustix::time::clock_gettime(ClockId::Realtime);
        let time = time.tv_sec as u64 * Nanos::SECOND + time.tv_nsec as u64;
        let mut finished = list.len();
        let mut spooled = self.spool.lock();
        let before = spooled.bytes.len();
        for (at, i) in list.iter().enumerate() {
            match spooled.append(batch, *i, limits.max_frame, time) {
                Ok(()) => (),
                Err(DropReason::Full) if limits.lossless => {
                    finished = at;
                    break;
                }
                Err(reason) => spooled.counters.drop_frames(reason, 1),
            }
        }
        // At most twice in the time that frames linger.
        let after = spooled.bytes.len();
        if after > 0 && before == 0 || after >= BUFFER / 2 && before < BUFFER / 2 {
            self.spool.wake.notify_one();
        }
        Delivered { finished }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }

    fn count_software(&self, done: Software) {
        self.spool.lock().counters.add_software(done);
    }
}

/// Detached: on the control thread, when no worker delivers here any more.
impl Drop for PcapEgress {
    fn drop(&mut self) {
        self.spool.lock().closing = true;
        self.spool.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
