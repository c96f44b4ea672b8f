//! The program's memory. The kernel reads and writes it, and answers a bad address with `EFAULT`.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::{pollfd, timespec};
use netmap::client::{Program, UserMemory};
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
        // SAFETY: the kernel checks both ranges; the program said that the remote one may be
        // written.
        let done = unsafe { libc::process_vm_writev(process(), &local, 1, &remote, 1, 0) };
        if done == bytes.len() as isize { Ok(()) } else { Err(Errno::FAULT) }
    }
}

impl Program for Memory {
    fn load(&self, at: u64) -> u32 {
        word(at).load(Ordering::Acquire)
    }

    fn store(&self, at: u64, value: u32) {
        word(at).store(value, Ordering::Release);
    }

    fn signal(&self, fd: i32) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes of ours. An invalid or full descriptor needs no signal.
        unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
    }

    fn wait(&self, fds: &[i32], own: &[BorrowedFd<'_>], time: Duration) {
        let entry = |fd| pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut list: Vec<_> = fds.iter().map(|fd| entry(*fd)).collect();
        list.extend(own.iter().map(|fd| entry(fd.as_raw_fd())));
        let left =
            timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
        let count = list.len() as libc::nfds_t;
        // SAFETY: a list of ours, and a time.
        unsafe { crate::real::ppoll(list.as_mut_ptr(), count, &left, std::ptr::null()) };
        for entry in list.iter().take(fds.len()).filter(|entry| entry.revents & libc::POLLIN != 0) {
            let mut count = [0_u8; 8];
            // SAFETY: the buffer is ours and has eight bytes.
            unsafe { libc::read(entry.fd, count.as_mut_ptr().cast(), count.len()) };
        }
    }
}

/// Borrows a word of the program's memory.
fn word<'a>(at: u64) -> &'a AtomicU32 {
    let at = std::ptr::with_exposed_provenance_mut::<u32>(at as usize);
    // SAFETY: the address was written when the program gave it. It is a multiple of four from an
    // address aligned to 64 bytes. The program keeps the memory as long as it uses the descriptor.
    unsafe { AtomicU32::from_ptr(at) }
}

/// Reads as much as is readable, up to the length of `into`.
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
