//! A descriptor of `/dev/netmap`: handles open, ioctl and mmap.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use netmap::abi::{Register, ioctl, option, reqtype};
use netmap::client::{self, Bound, Question, Waiter};
use netmap::wire::{self, Answer, Ask};
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::user::{Memory, read_some};
use crate::{extmem, marks, real};

/// The file that programs open.
const PATH: &[u8] = b"/dev/netmap\0";

/// The state behind a descriptor and its copies.
#[derive(Debug)]
pub struct Device {
    /// A number that is never reused.
    pub id: u64,
    bound: OnceLock<Bound>,
    calls: AtomicU64,
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(bound) = self.bound.get() {
            marks::lower(bound.internal_fds());
        }
    }
}

/// Borrows the descriptor for calls that need it.
pub fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the program has the descriptor open during the call that it makes with it. A program
    // that closes it meanwhile gets an error.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Device {
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, bound: OnceLock::new(), calls: AtomicU64::new(0) })
    }

    /// Returns the binding. Asks the daemon if this process knows none, as another process may have
    /// bound it.
    pub fn bound(&self, fd: RawFd) -> Option<&Bound> {
        if let Some(bound) = self.bound.get() {
            return Some(bound);
        }
        let (answer, fds) = client::identify(borrow(fd)).ok()??;
        self.bind(&answer, fds).ok()?;
        self.bound.get()
    }

    /// Returns the binding, if this process knows it.
    pub fn known_bound(&self) -> Option<&Bound> {
        self.bound.get()
    }

    /// Stores the binding from the daemon's answer, if there is one.
    ///
    /// # Errors
    /// Those of [`Bound::new`].
    pub fn bind(&self, answer: &Answer, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        inline::trusted::install_with(marks::raise);
        if answer.bound == wire::Bound::default() || self.bound.get().is_some() {
            return Ok(());
        }
        let bound = Bound::new(&answer.bound, fds, marks::raise)?;
        if let Err(second) = self.bound.set(bound.forwarding_all(forwards_all())) {
            // Another thread was first.
            marks::lower(second.internal_fds());
        }
        Ok(())
    }

    /// Begins to use what a request has bound.
    fn begin(&self) -> Result<(), Errno> {
        self.known_bound().map_or(Ok(()), Bound::begin)
    }

    fn ask(&self, fd: RawFd, question: &Ask) -> Result<Answer, Errno> {
        let (answer, fds) = client::ask(question, &[borrow(fd)])?;
        self.bind(&answer, fds)?;
        self.begin()?;
        Ok(answer)
    }

    /// Carries out the six requests.
    pub fn ioctl(&self, fd: RawFd, request: u32, arg: u64) -> Result<i32, Errno> {
        let ask = |question: &Ask| self.ask(fd, question);
        match request {
            ioctl::NIOCTXSYNC => self.synced(fd)?.sync_send(&Memory),
            ioctl::NIOCRXSYNC => self.synced(fd)?.sync_receive(&Memory),
            ioctl::NIOCCTRL => {
                client::control(&Memory, arg, |question| self.control(fd, question))?
            }
            ioctl::NIOCREGIF => client::legacy_register(&Memory, arg, ask)?,
            ioctl::NIOCGINFO => client::legacy_info(&Memory, arg, ask)?,
            // There are no switch modules to configure.
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(0)
    }

    /// Handles a request of the new interface: carries it out here, or asks the daemon.
    fn control(&self, fd: RawFd, question: &mut Question) -> Result<Answer, Errno> {
        let Question { ask, local } = question;
        match ask.reqtype {
            reqtype::REGISTER if local.csb.is_some() || local.extmem.is_some() => {
                self.register_with(fd, question)
            }
            reqtype::CSB_ENABLE => {
                let bound = self.bound(fd).ok_or(Errno::NXIO)?;
                let blocks = local.csb.ok_or(Errno::INVAL)?;
                let done = bound.use_blocks(blocks, &Memory, marks::raise);
                Ok(answer_for(ask, done, &[option::CSB]))
            }
            reqtype::SYNC_KLOOP_START => {
                let bound = self.bound(fd).ok_or(Errno::NXIO)?;
                let sleep =
                    u32::from_ne_bytes([ask.body[0], ask.body[1], ask.body[2], ask.body[3]]);
                let options = [option::SYNC_KLOOP_EVENTFDS, option::SYNC_KLOOP_MODE];
                match client::start_arguments(sleep, local) {
                    Ok(start) => {
                        let mut waiter = Waiter::new(marks::raise)?;
                        let done = bound.run_loop(&start, &Memory, &mut waiter);
                        marks::lower(std::iter::once(&waiter));
                        Ok(answer_for(ask, done, &options))
                    }
                    Err((errno, of)) => {
                        let wrong = options.into_iter().zip(of).filter(|(_, is_wrong)| *is_wrong);
                        let wrong: Vec<_> = wrong.map(|(option, _)| option).collect();
                        Ok(answer_for(ask, Err(errno), &wrong))
                    }
                }
            }
            reqtype::SYNC_KLOOP_STOP => {
                self.bound(fd).ok_or(Errno::NXIO)?.stop_loop();
                Ok(Answer::to(ask))
            }
            _ => self.ask(fd, ask),
        }
    }

    /// `REGISTER` with cursors in blocks of the program, or with its memory. Errors in these are
    /// found before the daemon binds the descriptor.
    fn register_with(&self, fd: RawFd, question: &mut Question) -> Result<Answer, Errno> {
        let Question { ask, local } = question;
        let register = Register::read_from_prefix(&ask.body).map_err(|_| Errno::INVAL)?.0;
        let is_new = self.known_bound().is_none();
        let mut memory = None;
        if let (Some(at), true) = (local.extmem, is_new) {
            match extmem::share(at, &ask.options.extmem) {
                Ok(file) => memory = Some(file),
                Err(errno) => return Ok(answer_for(ask, Err(errno), &[option::EXTMEM])),
            }
        }
        if let (Some(blocks), true) = (local.csb, is_new) {
            let checked = client::check_blocks(register.flags, blocks);
            if checked.is_err() {
                return Ok(answer_for(ask, checked, &[option::CSB]));
            }
            ask.options.given &= !(1 << option::CSB);
        }
        let mut with = vec![borrow(fd)];
        with.extend(memory.as_ref().map(AsFd::as_fd));
        let (mut answer, fds) = client::ask(ask, &with)?;
        self.bind(&answer, fds)?;
        self.begin()?;
        if let (Some(blocks), 0) = (local.csb, answer.status) {
            self.bound(fd).ok_or(Errno::NXIO)?.use_blocks(blocks, &Memory, marks::raise)?;
            answer.options.status[option::CSB as usize] = 0;
        }
        Ok(answer)
    }

    /// Returns the binding for a sync. Checks now and then whether the port still exists.
    fn synced(&self, fd: RawFd) -> Result<&Bound, Errno> {
        let bound = self.bound(fd).ok_or(Errno::NXIO)?;
        if bound.has_blocks() {
            return Err(Errno::BUSY);
        }
        let rarely = self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(32);
        if bound.is_gone() || (rarely && bound.look(borrow(fd))) {
            return Err(Errno::NXIO);
        }
        Ok(bound)
    }

    /// Checks whether the port still exists.
    pub fn look(&self, fd: RawFd) {
        if let Some(bound) = self.bound.get() {
            bound.look(borrow(fd));
        }
    }
}

/// Makes the answer to a request that the library itself carries out. The result is also the status
/// of these options.
fn answer_for(ask: &Ask, done: Result<(), Errno>, options: &[u32]) -> Answer {
    let mut answer = Answer::to(ask);
    answer.status = done.err().map_or(0, Errno::raw_os_error);
    for option in options {
        answer.options.status[*option as usize] = answer.status.unsigned_abs();
    }
    answer
}

/// Returns true for the path of the device.
pub fn is_device(path: *const libc::c_char) -> bool {
    let mut bytes = [0; PATH.len()];
    let got = read_some(path.expose_provenance() as u64, &mut bytes);
    got == Ok(PATH.len()) && bytes == *PATH
}

/// The arguments of `mmap`.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub at: *mut c_void,
    pub len: usize,
    pub protection: c_int,
    pub flags: c_int,
    pub offset: libc::off_t,
}

/// Maps the region that a descriptor is bound to.
pub fn mmap(device: &Device, fd: RawFd, wanted: &Wanted) -> Result<*mut c_void, Errno> {
    let (memory, size) = device.bound(fd).ok_or(Errno::INVAL)?.memory();
    let end = u64::try_from(wanted.offset).ok().and_then(|at| at.checked_add(wanted.len as u64));
    if end.is_none_or(|end| end > size) {
        return Err(Errno::INVAL);
    }
    let Wanted { at, len, protection, flags, offset } = *wanted;
    // SAFETY: this is the program's own call, applied to another file.
    let mapped = unsafe { real::mmap(at, len, protection, flags, memory.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED { Err(crate::errno()) } else { Ok(mapped) }
}

/// Returns true if the variable that stands for `dev.netmap.fwd` is set.
fn forwards_all() -> bool {
    static SET: OnceLock<bool> = OnceLock::new();
    *SET.get_or_init(|| std::env::var_os("TOKLAT_NETMAP_FWD").is_some_and(|value| value == "1"))
}
