//! A pcapng file that records all frames.
//!
//! Workers append to a buffer under the egress's lock, and a thread of the port writes it to the
//! file. A frame counts as delivered once it is written: frames that a dying data process had not
//! written count as lost in the restart. Each data process appends a section to the file
//! (draft-ietf-opsawg-pcapng, section 4.1). If writing fails, as on a full disk, the file is
//! truncated after the last complete packet, and the port has failed.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ::pcap::file;
use jail::strangers::Descriptor;
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos,
    Software,
};
use rustix::io::Errno;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use shmem::{Bytes, Shared};
use turn::attach::null::Silent;
use turn::attach::{AttachError, Attached};
use turn::state::PortState;

use super::PcapError;
use crate::attach::{Kind, Place, one};
use crate::log;

/// The maximum number of bytes that wait to be written. As many again may be in the hands of the
/// writer.
const BUFFER: usize = 8 << 20;
/// How long frames wait for more frames before they are written.
const LINGER: Duration = Duration::from_millis(50);

/// Frames into a pcapng file. Descriptors: the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapWriteConfig {
    /// The most bytes that the file may have; `None` for any number. At that size, writing fails as
    /// on a full disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

impl Kind for PcapWriteConfig {
    fn attach(&self, fds: Vec<Descriptor>, place: Place<'_>) -> Result<Attached, AttachError> {
        attach(one(fds, "a file for frames")?.into_ours(), place.state, self.max_bytes)
    }

    fn has_stranger(&self) -> bool {
        false
    }
}

/// Attaches a file, and writes it from its current position on.
///
/// # Errors
/// [`AttachError`] when it is not a regular file, or the writer cannot be started.
pub fn attach(
    file: OwnedFd,
    state: &PortState,
    max_bytes: Option<u64>,
) -> Result<Attached, AttachError> {
    let end = super::ordinary(&file)? as u64;
    state.set_write_error(None);
    let counters = state.egress(0).ok_or(AttachError::Counters)?;
    let mut bytes = Vec::with_capacity(BUFFER);
    file::section(&mut bytes);
    file::interface(&mut bytes, None, 0);
    let spooled =
        Spooled { bytes, waiting: Written::default(), counters, failed: false, closing: false };
    let spool = Arc::new(Spool { spooled: Mutex::new(spooled), wake: Condvar::new() });
    let most = max_bytes.unwrap_or(u64::MAX);
    let output = Output { file: File::from(file), end, most, state: state.clone() };
    let writer = std::thread::Builder::new().name("pcap writer".to_owned());
    let thread = writer.spawn({
        let spool = Arc::clone(&spool);
        move || spool.write_out(output)
    });
    let thread = Some(thread.map_err(PcapError::File)?);
    let egress = PcapEgress { spool, thread };
    Ok(Attached {
        source: Box::new(Silent),
        egresses: vec![Arc::new(egress).into()],
        bells: Default::default(),
    })
}

struct PcapEgress {
    spool: Arc<Spool>,
    thread: Option<JoinHandle<()>>,
}

/// The buffer that workers fill and the writer empties.
struct Spool {
    spooled: Mutex<Spooled>,
    /// Signalled when there is something to write, when there is much, or when the port is removed.
    wake: Condvar,
}

struct Spooled {
    /// Whole blocks.
    bytes: Vec<u8>,
    /// The frames that wait to be written.
    waiting: Written,
    counters: Shared<EgressCounters>,
    /// A write has failed; no other one is tried.
    failed: bool,
    closing: bool,
}

#[derive(Clone, Copy, Default)]
struct Written {
    frames: u64,
    bytes: u64,
}

impl Spool {
    fn lock(&self) -> MutexGuard<'_, Spooled> {
        self.spooled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer's thread.
    fn write_out(&self, mut output: Output) {
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
            let written = if failed { Written::default() } else { output.write(&bytes, writing) };
            bytes.clear();

            spooled = self.lock();
            spooled.count(writing, written);
            if spooled.closing && spooled.bytes.is_empty() {
                break;
            }
        }
    }
}

/// The file, as the writer's thread uses it.
struct Output {
    file: File,
    /// Where the file's last complete block ends.
    end: u64,
    /// The most bytes that it may have.
    most: u64,
    state: PortState,
}

impl Output {
    /// Writes complete blocks with these frames. Returns the frames that are in the file.
    fn write(&mut self, bytes: &[u8], frames: Written) -> Written {
        let room = usize::try_from(self.most.saturating_sub(self.end)).unwrap_or(usize::MAX);
        let fits = &bytes[..bytes.len().min(room)];
        let (at, error) = write_all(&mut self.file, fits);
        let too_large = || Errno::FBIG.into();
        let Some(error) = error.or_else(|| (fits.len() < bytes.len()).then(too_large)) else {
            self.end += bytes.len() as u64;
            return frames;
        };
        let (border, whole) = whole_blocks(&bytes[..at]);
        self.end += border as u64;
        // A partial block would confuse readers of the file, and hide the section that follows.
        let cut = rustix::fs::ftruncate(&self.file, self.end);
        self.state.set_write_error(Some(&error));
        let cut =
            cut.map_or_else(|e| format!("; it cannot be cut off there: {e}"), |()| String::new());
        log::say(
            "pcap writer",
            "unwritten",
            format_args!("a file ends early, at byte {}: {error}{cut}", self.end),
        );
        whole
    }
}

/// Writes as much as possible. Returns the number of bytes, and the error that stopped it.
fn write_all(file: &mut File, bytes: &[u8]) -> (usize, Option<std::io::Error>) {
    let mut at = 0;
    while at < bytes.len() {
        match file.write(&bytes[at..]) {
            Ok(0) => return (at, Some(std::io::ErrorKind::WriteZero.into())),
            Ok(n) => at += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return (at, Some(error)),
        }
    }
    (at, None)
}

/// Where the last complete block ends, and the frames up to there. An enhanced packet block has
/// type 6, and the length of its frame at byte 20.
fn whole_blocks(bytes: &[u8]) -> (usize, Written) {
    let word = |at: usize| {
        let word = bytes.get(at..at + 4)?;
        Some(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
    };
    let (mut border, mut tally) = (0, Written::default());
    while let Some(len) = word(border + 4) {
        let next = border + len as usize;
        if next > bytes.len() || len == 0 {
            break;
        }
        if word(border) == Some(6) {
            tally.frames += 1;
            tally.bytes += u64::from(word(border + 20).unwrap_or(0));
        }
        border = next;
    }
    (border, tally)
}

impl Spooled {
    /// Counts the frames of a batch: `written` as delivered, the rest as dropped.
    fn count(&mut self, tally: Written, written: Written) {
        self.counters.frames.add(written.frames);
        self.counters.bytes.add(written.bytes);
        if written.frames < tally.frames {
            self.failed = true;
            self.counters.drop_frames(DropReason::Io, tally.frames - written.frames);
        }
    }

    /// Appends frame `i` as an enhanced packet block, or returns the reason why not.
    fn append(
        &mut self,
        batch: &Batch<'_>,
        i: FrameIdx,
        max_frame: u32,
        time: Duration,
    ) -> Result<(), DropReason> {
        let len = batch.frame(i).len();
        if len > max_frame as usize {
            return Err(DropReason::TooLong);
        }
        if self.failed {
            return Err(DropReason::Io);
        }
        let block = file::BLOCK + len.next_multiple_of(4);
        if self.bytes.len() + block > BUFFER {
            return Err(DropReason::Full);
        }
        let start = file::begin_packet(&mut self.bytes, 0, time, len, len);
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        batch.copy_frame(i, Bytes::of(&mut self.bytes[at..]));
        file::end_packet(&mut self.bytes, start);
        self.waiting.frames += 1;
        self.waiting.bytes += len as u64;
        Ok(())
    }
}

impl Egress for PcapEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let time = rustix::time::clock_gettime(ClockId::Realtime);
        let time = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
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

/// Runs on the control thread, when no worker delivers here any more.
impl Drop for PcapEgress {
    fn drop(&mut self) {
        self.spool.lock().closing = true;
        self.spool.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, frame: u32) -> Vec<u8> {
        let len = file::BLOCK as u32 + frame.next_multiple_of(4);
        let words = [kind, len, 0, 0, 0, frame, frame].map(u32::to_ne_bytes);
        let mut block = words.concat();
        block.resize(len as usize - 4, 0);
        block.extend(len.to_ne_bytes());
        block
    }

    #[test]
    fn a_file_is_cut_off_behind_its_last_whole_block() {
        let blocks = [block(0x0a0d_0d0a, 0), block(6, 61), block(6, 100)];
        let all = blocks.concat();
        let ends = [blocks[0].len(), blocks[0].len() + blocks[1].len(), all.len()];
        for at in 0..=all.len() {
            let (border, whole) = whole_blocks(&all[..at]);
            let frames = ends[1..].iter().filter(|end| **end <= at).count();
            assert_eq!(border, ends.iter().copied().filter(|end| *end <= at).max().unwrap_or(0));
            assert_eq!(whole.frames, frames as u64);
            assert_eq!(whole.bytes, [0, 61, 161][frames]);
        }
    }
}
