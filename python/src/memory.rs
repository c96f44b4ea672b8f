//! Memory that memoryviews lie over. A view keeps it mapped, so no view ever points to nothing.

use std::any::Any;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;

use netring::Port;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use shmem::{Bytes, Mapping};

/// The buffers of a port's region.
#[derive(Clone, Debug)]
pub struct Buffers {
    mapping: Arc<Mapping>,
    /// The address where the buffers begin.
    start: usize,
    /// The number of bytes of all buffers together.
    len: usize,
}

impl Buffers {
    /// The buffers of the port's region. `None` if the region's geometry does not fit the mapping.
    pub fn of(port: &Port) -> Option<Self> {
        let rings = port.rings();
        let geometry = rings.geometry;
        let start = usize::try_from(geometry.buf_offset()).ok()?;
        let len = (geometry.buf_size as usize).checked_mul(geometry.buf_num as usize)?;
        rings.mapping.bytes(start, len)?;
        Some(Self { mapping: rings.mapping, start, len })
    }

    /// The offset of `address` from the first buffer, if `len` bytes from there are inside the
    /// buffers.
    pub fn offset(&self, address: *const u8, len: usize) -> Option<usize> {
        let at = address.addr().checked_sub(self.mapping.address())?.checked_sub(self.start)?;
        (at.checked_add(len)? <= self.len).then_some(at)
    }

    /// The `len` bytes from `offset` on.
    fn window(&self, offset: usize, len: usize) -> PyResult<Bytes<'_>> {
        let within = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let window = self.mapping.bytes(self.start + offset, len).filter(|_| within);
        window.ok_or_else(|| PyBufferError::new_err("The bytes are outside of the region"))
    }

    /// A copy of the `len` bytes from `offset` on.
    pub fn copy<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        len: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let window = self.window(offset, len)?;
        PyBytes::new_with(py, len, |to| {
            window.copy_out(to);
            Ok(())
        })
    }

    /// A view of `len` bytes from `offset` on.
    pub fn view<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        len: usize,
        writable: bool,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        let window = self.window(offset, len)?;
        let keep = Arc::clone(&self.mapping);
        view(py, Memory::new(window.as_ptr(), (len, 1), c"B", writable, keep))
    }

    /// Returns a view of all buffers.
    pub fn all<'py>(&self, py: Python<'py>, writable: bool) -> PyResult<Bound<'py, PyMemoryView>> {
        self.view(py, 0, self.len, writable)
    }
}

/// A read-only view of bytes of the library's own.
pub fn bytes(py: Python<'_>, bytes: Arc<Vec<u8>>) -> PyResult<Bound<'_, PyMemoryView>> {
    let (at, len) = (bytes.as_ptr().cast_mut(), bytes.len());
    view(py, Memory::new(at, (len, 1), c"B", false, bytes))
}

/// A read-only view of numbers of the library's own.
pub fn numbers(py: Python<'_>, numbers: Vec<i64>) -> PyResult<Bound<'_, PyMemoryView>> {
    let numbers = Arc::new(numbers);
    let (at, len) = (numbers.as_ptr().cast_mut().cast(), numbers.len());
    view(py, Memory::new(at, (len, size_of::<i64>()), c"q", false, numbers))
}

fn view(py: Python<'_>, memory: Memory) -> PyResult<Bound<'_, PyMemoryView>> {
    PyMemoryView::from(Bound::new(py, memory)?.as_any())
}

/// What a memoryview lies over.
#[pyclass(frozen, module = "toklat")]
pub struct Memory {
    at: *mut u8,
    /// The number of items, in a field that the buffer protocol can point to.
    shape: isize,
    /// Bytes of an item.
    stride: isize,
    format: &'static CStr,
    writable: bool,
    /// Keeps the bytes at `at` where they are.
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `at` is only handed out. Its bytes stay as long as `_keep`, which threads may share.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(
        at: *mut u8,
        (items, size): (usize, usize),
        format: &'static CStr,
        writable: bool,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let (shape, stride) = (items as isize, size as isize);
        Self { at, shape, stride, format, writable, _keep: keep }
    }
}

#[pymethods]
impl Memory {
    /// # Safety
    /// Python calls it, with a place for the description.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("The view is null"));
        }
        let memory = slf.get();
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE && !memory.writable {
            return Err(PyBufferError::new_err("Received frames can only be read"));
        }
        let asked = |flag| flags & flag == flag;
        let when = |is_so, at: *const isize| if is_so { at.cast_mut() } else { ptr::null_mut() };
        let format = if asked(ffi::PyBUF_FORMAT) { memory.format.as_ptr() } else { ptr::null() };
        // SAFETY: the caller's. The object that owns shape and stride does not move, and the view
        // has a reference to it.
        unsafe {
            (*view).buf = memory.at.cast();
            (*view).len = memory.shape * memory.stride;
            (*view).readonly = c_int::from(!memory.writable);
            (*view).itemsize = memory.stride;
            (*view).format = format.cast_mut();
            (*view).ndim = 1;
            (*view).shape = when(asked(ffi::PyBUF_ND), &raw const memory.shape);
            (*view).strides = when(asked(ffi::PyBUF_STRIDES), &raw const memory.stride);
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }
}
