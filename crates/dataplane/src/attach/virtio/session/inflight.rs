//! The areas where a back end records the buffers in flight for its successor. The front end holds
//! their file.

use std::sync::Arc;

use jail::strangers::Descriptor;
use nic::virtio::{Inflight, QueueError};
use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};
use shmem::Mapping;
use shmem::budget::Account;

use super::{Answer, Refused, Session};
use crate::attach::guest::memory::{self, MemoryError};
use crate::attach::virtio::message::InflightAreas;

/// The maximum number of bytes of the areas of one front end, which holds their file as long as it
/// likes.
const MAX_BYTES: u64 = 1 << 20;

/// The areas that a front end has set.
#[derive(Debug)]
pub struct Areas {
    pub file: Arc<Descriptor>,
    pub said: InflightAreas,
    mapping: Arc<Mapping>,
    /// Where the areas begin in the mapping.
    position: usize,
    /// For each queue: the buffers in flight are to be returned when the queue starts.
    pub adopt: Box<[bool]>,
}

/// The persistent state of the areas, for a successor of this process.
#[derive(Serialize, Deserialize)]
pub struct SavedAreas {
    said: InflightAreas,
    adopt: Vec<bool>,
}

/// The bytes of one queue's area, and of all areas. Refused if there are none, or too many.
fn sizes(said: InflightAreas, most: u16, packed: bool) -> Result<(usize, u64), Refused> {
    let InflightAreas { queues, queue_size, .. } = said;
    let each = Inflight::bytes(queue_size, packed);
    let all = u64::from(queues) * each as u64;
    let good = (1..=most).contains(&queues) && (1..=32_768).contains(&queue_size);
    if good && all <= MAX_BYTES { Ok((each, all)) } else { Err(Refused::Inflight) }
}

/// Makes a zeroed file of areas for the queues asked for, at most `most`.
pub fn make(
    asked: InflightAreas,
    most: u16,
    packed: bool,
) -> Result<(InflightAreas, Descriptor), Refused> {
    let (_, size) = sizes(asked, most, packed)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let make = || {
        let file = rustix::fs::memfd_create("toklat inflight", flags)?;
        // Sets the length, and allocates the last page only.
        rustix::io::pwrite(&file, &[0], size - 1)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    };
    let file = make().map_err(MemoryError::Inspect)?;
    Ok((InflightAreas { size, offset: 0, ..asked }, Descriptor::ours(file)))
}

impl Areas {
    /// Accepts areas for at most `most` queues.
    pub fn new(
        said: InflightAreas,
        file: Arc<Descriptor>,
        most: u16,
        packed: bool,
        account: &Arc<Account>,
    ) -> Result<Self, Refused> {
        let (_, all) = sizes(said, most, packed)?;
        // Each area takes a multiple of 64 bytes and begins at one.
        if !(all..=64 * MAX_BYTES).contains(&said.size) || !said.offset.is_multiple_of(64) {
            return Err(Refused::Inflight);
        }
        let window = memory::map_memory(&file, said.offset, said.size, account)?;
        let position = window.position(said.offset, said.size).ok_or(Refused::Inflight)?;
        let mapping = Arc::clone(window.mapping());
        let adopt = vec![true; said.queues.into()].into();
        let this = Self { file, said, mapping, position, adopt };
        let sound = (0..usize::from(said.queues)).all(|queue| this.area(queue, packed).is_ok());
        if sound { Ok(this) } else { Err(Refused::Inflight) }
    }

    /// The area of a queue, if it has one.
    pub fn area(&self, queue: usize, packed: bool) -> Result<Option<Inflight>, QueueError> {
        let Some(adopt) = self.adopt.get(queue) else { return Ok(None) };
        let size = self.said.queue_size;
        let at = self.position + queue * Inflight::bytes(size, packed);
        let area = Inflight::new(&self.mapping, at, size, packed).ok_or(QueueError::Inflight)?;
        Ok(Some(if *adopt { area.adopted() } else { area }))
    }

    pub fn saved(&self) -> SavedAreas {
        SavedAreas { said: self.said, adopt: self.adopt.to_vec() }
    }

    /// Restores the areas that a predecessor has kept.
    pub fn restore(
        saved: SavedAreas,
        file: Arc<Descriptor>,
        most: u16,
        packed: bool,
        account: &Arc<Account>,
    ) -> Option<Self> {
        let mut this = Self::new(saved.said, file, most, packed, account).ok()?;
        this.adopt = Some(saved.adopt).filter(|adopt| adopt.len() == this.adopt.len())?.into();
        Some(this)
    }
}

impl Session {
    /// The area where a queue marks its buffers in flight.
    ///
    /// # Errors
    /// [`QueueError::Inflight`] when the file cannot hold it there.
    pub fn inflight(&self, queue: usize) -> Result<Option<Inflight>, QueueError> {
        self.inflight.as_ref().map_or(Ok(None), |areas| areas.area(queue, self.is_packed()))
    }

    /// Notes that a queue has started and returned the buffers that were in flight.
    pub fn set_adopted(&mut self, queue: usize) {
        let areas = self.inflight.iter_mut();
        areas.filter_map(|areas| areas.adopt.get_mut(queue)).for_each(|adopt| *adopt = false);
    }

    pub(super) fn make_inflight(&self, asked: InflightAreas) -> Result<Answer, Refused> {
        let (areas, file) = make(asked, self.rings.len() as u16, self.is_packed())?;
        Ok(Answer::File(areas.bytes(), Arc::new(file)))
    }

    pub(super) fn set_inflight(
        &mut self,
        said: InflightAreas,
        file: Descriptor,
    ) -> Result<Answer, Refused> {
        let (most, packed) = (self.rings.len() as u16, self.is_packed());
        let areas = Areas::new(said, Arc::new(file), most, packed, &self.account)?;
        self.inflight = Some(areas);
        self.changes.rings = true;
        Ok(Answer::Done)
    }
}
