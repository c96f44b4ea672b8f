//! A port, as Python programs have it.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::{Duration, Instant};

use netring::layout::MAX_FRAGS;
use netring::{Interest, Monitor, Open};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use shmem::Bytes;

use crate::errors::{self, Busy, Error, Full, Lent, Released};
use crate::memory::Buffers;
use crate::received::{Batch, Frame};
use crate::reserved::Reserved;

/// The longest sleep between two looks for signals: a sleep does not see one that came before it.
const NAP: Duration = Duration::from_secs(1);

/// See `__init__.pyi`.
#[pyclass(frozen, module = "toklat")]
pub struct Port {
    name: String,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The open port; `None` after it was closed.
    port: Option<netring::Port>,
    /// Refers to the lent batch, as long as that exists.
    lent: Weak<()>,
    /// Refers to the reserved slots of any queue, as long as they exist.
    reserved: Weak<()>,
    /// True if received frames must be given back by a flush.
    owed: bool,
}

impl Inner {
    fn port(&mut self) -> PyResult<&mut netring::Port> {
        self.port.as_mut().ok_or_else(|| Released::new_err("The port is closed"))
    }

    /// Fails if a batch is lent, because the caller would take it back.
    fn no_batch(&self) -> PyResult<()> {
        if self.lent.strong_count() == 0 {
            return Ok(());
        }
        let told = "A received batch is lent; leave its `with` block, or call its release(), first";
        Err(Lent::new_err(told))
    }

    /// Fails if slots are reserved, because the caller would take them.
    fn no_slots(&self) -> PyResult<()> {
        if self.reserved.strong_count() == 0 {
            return Ok(());
        }
        Err(Lent::new_err("Slots are reserved; commit them, or call their release(), first"))
    }

    fn flush(&mut self) -> PyResult<()> {
        self.port()?.flush().map_err(errors::of_port)?;
        self.owed = false;
        Ok(())
    }

    /// Publishes sent frames, unless that would take a lent batch back. In that case, releasing the
    /// batch publishes them.
    fn flush_if_free(&mut self) -> PyResult<()> {
        if self.lent.strong_count() == 0 { self.flush() } else { Ok(()) }
    }

    /// Forgets lent batches and slots, because the rings are new.
    fn forget(&mut self) {
        (self.lent, self.reserved, self.owed) = (Weak::new(), Weak::new(), false);
    }

    fn queue(&mut self, queue: usize, of: fn((usize, usize)) -> usize) -> PyResult<()> {
        let queues = of(self.port()?.queues());
        if queue < queues {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "The port has {queues} such queues, and no queue {queue}"
        )))
    }

    fn buffers(&mut self) -> PyResult<Buffers> {
        Buffers::of(self.port()?).ok_or_else(|| Error::new_err("The region is malformed"))
    }

    /// Bytes of the longest frame. In a pipe, the rings alone set a limit.
    fn longest(&mut self) -> PyResult<usize> {
        let port = self.port()?;
        if port.name().contains(['{', '}']) {
            return Ok(port.send(0).slot_bytes().saturating_mul(MAX_FRAGS));
        }
        Ok(port.max_frame())
    }

    /// Copies a frame into free slots; false if there is no room.
    fn push(&mut self, queue: usize, frame: &Bound<'_, PyAny>) -> PyResult<bool> {
        let buffer = PyBuffer::<u8>::get(frame)?;
        if !buffer.is_c_contiguous() {
            return Err(PyTypeError::new_err("A frame's bytes are not contiguous"));
        }
        let (len, longest) = (buffer.len_bytes(), self.longest()?);
        if !(1..=longest).contains(&len) {
            return Err(PyValueError::new_err(format!(
                "A frame has 1 to {longest} bytes, not {len}"
            )));
        }
        // SAFETY: the buffer has them, and stays until the end of this function. Others may write
        // to them, so they are a window; it is only read.
        let frame = unsafe { Bytes::from_raw(buffer.buf_ptr().cast(), len) };
        let mut out = self.port()?.queue(queue).send(MAX_FRAGS);
        if len > out.slot_bytes() {
            return Ok(out.push(&frame.to_vec()));
        }
        let Some(mut slot) = out.slot() else { return Ok(false) };
        frame.copy_to(slot.window());
        slot.set_len(len);
        Ok(true)
    }

    /// Copies frames in until there is no room, or one cannot be sent: how many, and why not more.
    fn push_all(&mut self, queue: usize, frames: &[Bound<'_, PyAny>]) -> (usize, PyResult<()>) {
        for (sent, frame) in frames.iter().enumerate() {
            match self.push(queue, frame) {
                Ok(true) => {}
                Ok(false) => return (sent, Ok(())),
                Err(error) => return (sent, Err(error)),
            }
        }
        (frames.len(), Ok(()))
    }
}

impl Port {
    /// Runs `call` on the port. A port is of one thread at a time: waiting for another one here
    /// would hold the interpreter up.
    fn enter<T>(&self, call: impl FnOnce(&mut Inner) -> PyResult<T>) -> PyResult<T> {
        match self.inner.try_lock() {
            Ok(mut inner) => call(&mut inner),
            Err(TryLockError::WouldBlock) => Err(Busy::new_err(format!(
                "Another thread uses {}; open a port for each thread",
                self.name
            ))),
            Err(TryLockError::Poisoned(_)) => {
                Err(Error::new_err("The library panicked; close the port, and open it again"))
            }
        }
    }

    /// Whether this is the batch that is lent.
    pub fn has_lent(&self, lent: &Arc<()>) -> PyResult<bool> {
        self.enter(|inner| Ok(inner.lent.as_ptr() == Arc::as_ptr(lent)))
    }

    /// Whether these are the slots that are reserved.
    pub fn has_reserved(&self, lent: &Arc<()>) -> PyResult<bool> {
        self.enter(|inner| Ok(inner.reserved.as_ptr() == Arc::as_ptr(lent)))
    }

    /// Gives the frames of the batch back to the ring.
    pub fn give_back(&self, lent: &Arc<()>) -> PyResult<()> {
        self.enter(|inner| {
            if inner.lent.as_ptr() != Arc::as_ptr(lent) || inner.port.is_none() {
                return Ok(());
            }
            inner.lent = Weak::new();
            inner.flush()
        })
    }

    /// Bytes of the longest frame.
    pub fn longest(&self) -> PyResult<usize> {
        self.enter(Inner::longest)
    }

    /// Sends the first reserved slots, if they are still the free ones.
    pub fn commit(
        &self,
        queue: usize,
        buffers: &Buffers,
        (offsets, lengths): (&[usize], &[usize]),
    ) -> PyResult<()> {
        self.enter(|inner| {
            let mut out = inner.port()?.queue(queue).send(lengths.len());
            let is_free = |(at, offset): (usize, &usize)| {
                out.window(at).and_then(|window| buffers.offset(window.as_ptr(), window.len()))
                    == Some(*offset)
            };
            if !offsets[..lengths.len()].iter().enumerate().all(is_free) {
                return Err(Released::new_err("The slots are not free any more; reserve others"));
            }
            for length in lengths {
                if let Some(mut slot) = out.slot() {
                    slot.set_len(*length);
                }
            }
            inner.reserved = Weak::new();
            inner.flush_if_free()
        })
    }

    /// Sleeps for a nap at most; whether something can be done.
    fn nap(&self, py: Python<'_>, interest: Interest, left: Option<Duration>) -> PyResult<bool> {
        let nap = left.map_or(NAP, |left| left.min(NAP));
        py.detach(|| {
            self.enter(|inner| {
                inner.no_batch()?;
                let ready = inner.port()?.wait(interest, Some(nap)).map_err(errors::of_port)?;
                inner.owed = false;
                Ok(is_wanted(ready, interest))
            })
        })
    }
}

fn is_wanted(ready: netring::Readiness, interest: Interest) -> bool {
    ready.readable && interest.contains(Interest::READ)
        || ready.writable && interest.contains(Interest::WRITE)
}

fn interest(read: bool, write: bool) -> PyResult<Interest> {
    match (read, write) {
        (false, false) => Err(PyValueError::new_err("Wait to read, to write, or for both")),
        (true, false) => Ok(Interest::READ),
        (false, true) => Ok(Interest::WRITE),
        (true, true) => Ok(Interest::all()),
    }
}

fn monitor(of: &str) -> PyResult<Monitor> {
    match of {
        "sent" => Ok(Monitor::Sent),
        "received" => Ok(Monitor::Received),
        "both" => Ok(Monitor::Both),
        _ => Err(PyValueError::new_err(format!(
            "monitor is \"sent\", \"received\" or \"both\", not {of:?}"
        ))),
    }
}

#[pymethods]
impl Port {
    #[new]
    #[pyo3(signature = (
        name, *, slots=1024, send_queues=1, receive_queues=1, monitor=None, exclusive=false,
        existing=false, unlimited=false, directory=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python names each")]
    fn open(
        py: Python<'_>,
        name: &str,
        slots: u32,
        send_queues: u32,
        receive_queues: u32,
        monitor: Option<&str>,
        exclusive: bool,
        existing: bool,
        unlimited: bool,
        directory: Option<std::path::PathBuf>,
    ) -> PyResult<Self> {
        let mut open = Open::new(name).slots(slots).queues(send_queues, receive_queues);
        if let Some(of) = monitor {
            open = open.monitor(self::monitor(of)?);
        }
        if let Some(directory) = directory {
            open = open.directory(directory);
        }
        open = if exclusive { open.exclusive() } else { open };
        open = if existing { open.existing() } else { open };
        open = if unlimited { open.unlimited() } else { open };
        let port = py.detach(|| open.open()).map_err(errors::of_open)?;
        let name = port.name().to_owned();
        let (lent, reserved) = (Weak::new(), Weak::new());
        let inner = Inner { port: Some(port), lent, reserved, owed: false };
        Ok(Self { name, inner: Mutex::new(inner) })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn max_frame(&self) -> PyResult<usize> {
        self.longest()
    }

    #[getter]
    fn queues(&self) -> PyResult<(usize, usize)> {
        self.enter(|inner| Ok(inner.port()?.queues()))
    }

    #[getter]
    fn slots(&self) -> PyResult<(usize, usize)> {
        self.enter(|inner| Ok(inner.port()?.slots()))
    }

    #[getter]
    fn closed(&self) -> PyResult<bool> {
        self.enter(|inner| Ok(inner.port.is_none()))
    }

    #[pyo3(signature = (max=64, *, queue=0))]
    fn receive(slf: &Bound<'_, Self>, max: usize, queue: usize) -> PyResult<Batch> {
        let port = slf.clone().unbind();
        slf.get().enter(|inner| {
            inner.no_batch()?;
            inner.queue(queue, |(_, receive)| receive)?;
            if inner.owed {
                inner.flush()?;
            }
            let buffers = inner.buffers()?;
            let mut frames = Vec::new();
            for frame in inner.port()?.queue(queue).receive(max) {
                let frame = Frame::lent(&frame, &buffers);
                frames.push(frame.ok_or_else(|| Error::new_err("The region is malformed"))?);
            }
            let lent = Arc::new(());
            (inner.lent, inner.owed) = (Arc::downgrade(&lent), true);
            Ok(Batch::new(port, buffers, frames, lent))
        })
    }

    #[pyo3(signature = (frames, *, queue=0))]
    fn send(&self, frames: &Bound<'_, PyAny>, queue: usize) -> PyResult<usize> {
        // The program's code may make the frames one by one, and may use this port for that.
        let frames: Vec<_> = frames.try_iter()?.collect::<PyResult<_>>()?;
        self.enter(|inner| {
            inner.no_slots()?;
            inner.queue(queue, |(send, _)| send)?;
            let (sent, done) = inner.push_all(queue, &frames);
            let flushed = inner.flush_if_free();
            done.and(flushed).map(|()| sent)
        })
    }

    #[pyo3(signature = (count, *, queue=0))]
    fn reserve(slf: &Bound<'_, Self>, count: usize, queue: usize) -> PyResult<Reserved> {
        let port = slf.clone().unbind();
        slf.get().enter(|inner| {
            inner.no_slots()?;
            inner.queue(queue, |(send, _)| send)?;
            let buffers = inner.buffers()?;
            let out = inner.port()?.queue(queue).send(count);
            let windows = (0..count).map_while(|at| out.window(at));
            let places = windows.map_while(|window| buffers.offset(window.as_ptr(), window.len()));
            let (offsets, capacity): (Vec<_>, _) = (places.collect(), out.slot_bytes());
            if offsets.is_empty() && count > 0 {
                return Err(Full::new_err("The ring has no room; call wait(write=True)"));
            }
            let lent = Arc::new(());
            inner.reserved = Arc::downgrade(&lent);
            Ok(Reserved::new(port, buffers, queue, (offsets, capacity), lent))
        })
    }

    fn flush(&self) -> PyResult<()> {
        self.enter(|inner| {
            inner.no_batch()?;
            inner.flush()
        })
    }

    #[pyo3(signature = (timeout=None, *, read=true, write=false))]
    fn wait(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        read: bool,
        write: bool,
    ) -> PyResult<bool> {
        let interest = interest(read, write)?;
        let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
        let timeout = timeout.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if self.nap(py, interest, left)? {
                return Ok(true);
            }
            py.check_signals()?;
            if deadline.is_some_and(|at| Instant::now() >= at) {
                return Ok(false);
            }
        }
    }

    fn fileno(&self) -> PyResult<i32> {
        self.enter(|inner| Ok(inner.port()?.as_raw_fd()))
    }

    #[pyo3(signature = (*, read=true, write=false))]
    fn arm(&self, read: bool, write: bool) -> PyResult<bool> {
        let interest = interest(read, write)?;
        self.enter(|inner| {
            let port = inner.port()?;
            port.check().map_err(errors::of_port)?;
            Ok(is_wanted(port.arm(interest), interest))
        })
    }

    fn disarm(&self) -> PyResult<()> {
        self.enter(|inner| inner.port()?.disarm().map_err(errors::of_port))
    }

    fn check(&self) -> PyResult<()> {
        self.enter(|inner| inner.port()?.check().map_err(errors::of_port))
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.enter(|inner| {
                if inner.port()?.check().is_ok() {
                    return Ok(());
                }
                inner.forget();
                inner.port()?.reset().map_err(errors::of_port)
            })
        })
    }

    fn reopen(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.enter(|inner| {
                inner.forget();
                inner.port()?.reopen().map_err(errors::of_open)
            })
        })
    }

    /// Works also after a panic. Another thread that waits keeps the port until it wakes.
    fn close(&self) -> PyResult<()> {
        let mut inner = match self.inner.try_lock() {
            Err(TryLockError::WouldBlock) => return self.enter(|_| Ok(())),
            Err(TryLockError::Poisoned(inner)) => inner.into_inner(),
            Ok(inner) => inner,
        };
        inner.forget();
        inner.port = None;
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (_kind, _value, _traceback))]
    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close()
    }

    fn __repr__(&self) -> String {
        format!("toklat.Port({:?})", self.name)
    }
}
