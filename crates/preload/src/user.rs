//! The program's memory, read and written by the kernel, which answers a bad address with `EFAULT`.

use netmap::client::UserMemory;
use rustix::io::Errno;

/// This process's memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory;

impl UserMemory for Memory {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        if read_some(at, into) == Ok(into.len()) { Ok(()) } else { Err(Errno::FAULT) }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        let local = iovec(bytes.as_ptr().expose_provenance(), bytes.len());
        let remote = iovec(at as usize, bytes.len());
        // SAFETY: the kernel checks both ranges; the program said that the remote one may be written.
        let done = unsafe { libc::process_vm_writev(process(), &local, 1, &remote, 1, 0) };
        if done == bytes.len() as isize { Ok(()) } else { Err(Errno::FAULT) }
    }
}

/// Reads as much as there is, up to the end of what can be read.
pub fn read_some(at: u64, into: &mut [u8]) -> Result<usize, Errno> {
    if into.is_empty() {
        return Ok(0);
    }
    let local = iovec(into.as_mut_ptr().expose_provenance(), into.len());
    let remote = iovec(at as usize, into.len());
    // SAFETY: the kernel checks both ranges; the local one is ours.
    let done = unsafe { libc::process_vm_readv(process(), &local, 1, &remote, 1, 0) };
    usize::try_from(done).map_err(|_| crate::errno())
}

fn iovec(at: usize, len: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(at), iov_len: len }
}

fn process() -> libc::pid_t {
    std::process::id().cast_signed()
}
