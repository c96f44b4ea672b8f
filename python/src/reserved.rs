//! Free slots, lent to be filled in place.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::errors::Released;
use crate::memory::{self, Buffers};
use crate::port::Port;
use crate::received::place;

/// See `__init__.pyi`.
#[pyclass(frozen, module = "toklat")]
pub struct Reserved {
    port: Py<Port>,
    buffers: Buffers,
    queue: usize,
    /// Where each slot's bytes lie, from the first buffer on.
    offsets: Vec<usize>,
    /// How many bytes each slot takes.
    capacity: usize,
    /// The port holds a weak reference to this value. The slots are lent as long as the value
    /// exists.
    lent: Mutex<Option<Arc<()>>>,
}

impl Reserved {
    pub fn new(
        port: Py<Port>,
        buffers: Buffers,
        queue: usize,
        (offsets, capacity): (Vec<usize>, usize),
        lent: Arc<()>,
    ) -> Self {
        Self { port, buffers, queue, offsets, capacity, lent: Mutex::new(Some(lent)) }
    }

    fn check(&self) -> PyResult<()> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let told = "The slots were committed or given back, or the port was closed; reserve others";
        match &*lent {
            Some(lent) if self.port.get().has_reserved(lent)? => Ok(()),
            _ => Err(Released::new_err(told)),
        }
    }

    /// A length for each slot that is to be sent, from a number for all or from one for each.
    fn lengths(&self, lengths: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        let lengths = match lengths.extract::<usize>() {
            Ok(length) => vec![length; self.offsets.len()],
            Err(_) => {
                lengths.try_iter()?.map(|length| length?.extract()).collect::<PyResult<_>>()?
            }
        };
        let most = self.capacity.min(self.port.get().longest()?);
        if lengths.len() > self.offsets.len() {
            let told = format!("{} lengths for {} slots", lengths.len(), self.offsets.len());
            return Err(PyValueError::new_err(told));
        }
        match lengths.iter().find(|length| !(1..=most).contains(*length)) {
            Some(wrong) => {
                Err(PyValueError::new_err(format!("A slot takes 1 to {most} bytes, not {wrong}")))
            }
            None => Ok(lengths),
        }
    }
}

#[pymethods]
impl Reserved {
    fn __len__(&self) -> usize {
        self.offsets.len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: isize,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        self.check()?;
        let offset = self.offsets[place(index, self.offsets.len())?];
        self.buffers.view(py, offset, self.capacity, true)
    }

    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        self.check()?;
        self.buffers.all(py, true)
    }

    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        self.check()?;
        memory::numbers(py, self.offsets.iter().map(|offset| *offset as i64).collect())
    }

    #[getter]
    fn capacity(&self) -> usize {
        self.capacity
    }

    /// See `__init__.pyi`.
    fn commit(&self, lengths: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.check()?;
        let lengths = self.lengths(lengths)?;
        // The lengths came from the program's code, which may have committed meanwhile.
        self.check()?;
        self.port.get().commit(self.queue, &self.buffers, (&self.offsets, &lengths))?;
        self.give_up();
        Ok(lengths.len())
    }

    /// See `__init__.pyi`.
    #[pyo3(name = "release")]
    fn give_up(&self) {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner).take();
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
    ) {
        self.give_up();
    }
}
