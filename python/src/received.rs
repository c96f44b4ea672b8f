//! A batch of received frames, lent until it is released.

use std::sync::{Arc, Mutex, PoisonError};

use netring::Received;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::errors::Released;
use crate::memory::{self, Buffers};
use crate::port::Port;

/// The place of a frame in memory.
#[derive(Debug)]
pub struct Frame {
    /// The offset of the frame's first slot, from the first buffer on.
    offset: usize,
    /// How many bytes the first slot has.
    len: usize,
    /// A copy of the whole frame, if it has several slots.
    joined: Option<Arc<Vec<u8>>>,
}

impl Frame {
    /// The place of a frame. `None` if it lies outside of the buffers.
    pub fn lent(frame: &Received<'_>, buffers: &Buffers) -> Option<Self> {
        let window = frame.window();
        let (len, several) = (window.len(), frame.slot_count() > 1);
        let offset = buffers.offset(window.as_ptr(), len)?;
        Some(Self { offset, len, joined: several.then(|| Arc::new(frame.to_vec())) })
    }
}

/// See `__init__.pyi`.
#[pyclass(frozen, module = "toklat")]
pub struct Batch {
    port: Py<Port>,
    buffers: Buffers,
    frames: Vec<Frame>,
    /// The port holds a weak reference to this value. The batch is lent as long as the value
    /// exists.
    lent: Mutex<Option<Arc<()>>>,
}

impl Batch {
    pub fn new(port: Py<Port>, buffers: Buffers, frames: Vec<Frame>, lent: Arc<()>) -> Self {
        Self { port, buffers, frames, lent: Mutex::new(Some(lent)) }
    }

    /// Refuses a batch that was released, or whose port was closed, reset or reopened.
    fn check(&self) -> PyResult<()> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let told =
            "The batch was released, or its port closed; copy what you need later: bytes(frame)";
        match &*lent {
            Some(lent) if self.port.get().has_lent(lent)? => Ok(()),
            _ => Err(Released::new_err(told)),
        }
    }

    fn view<'py>(&self, py: Python<'py>, frame: &Frame) -> PyResult<Bound<'py, PyMemoryView>> {
        match &frame.joined {
            Some(joined) => memory::bytes(py, Arc::clone(joined)),
            None => self.buffers.view(py, frame.offset, frame.len, false),
        }
    }
}

/// The place that Python means by `index`, which counts from the end if it is negative.
pub fn place(index: isize, len: usize) -> PyResult<usize> {
    let at = if index < 0 { index.checked_add_unsigned(len) } else { Some(index) };
    let at = at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < len);
    at.ok_or_else(|| PyIndexError::new_err("index out of range"))
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.frames.len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: isize,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        self.check()?;
        self.view(py, &self.frames[place(index, self.frames.len())?])
    }

    /// See `__init__.pyi`.
    fn copies<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        self.check()?;
        let copy = |frame: &Frame| match &frame.joined {
            Some(joined) => Ok(PyBytes::new(py, joined)),
            None => self.buffers.copy(py, frame.offset, frame.len),
        };
        self.frames.iter().map(copy).collect()
    }

    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        self.check()?;
        self.buffers.all(py, false)
    }

    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        self.check()?;
        memory::numbers(py, self.frames.iter().map(|frame| frame.offset as i64).collect())
    }

    #[getter]
    fn lengths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        self.check()?;
        memory::numbers(py, self.frames.iter().map(|frame| frame.len as i64).collect())
    }

    #[getter]
    fn released(&self) -> bool {
        self.check().is_err()
    }

    /// See `__init__.pyi`. A second call does nothing.
    fn release(&self) -> PyResult<()> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner).take();
        lent.map_or(Ok(()), |lent| self.port.get().give_back(&lent))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, _value, _traceback))]
    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let released = self.release();
        // The program's own exception says more.
        if kind.is_none() { released } else { Ok(()) }
    }
}
