//! What each thread of a data process is doing, to be read after its death.
//!
//! A thread notes which port it serves before it touches anything of that port. The handler of
//! fatal signals notes the thread. Both are in state memory, so the supervisor knows which port a
//! data process died of.

use std::sync::atomic::{AtomicPtr, Ordering};

use port::{Counter, PortId};
use serde::{Deserialize, Serialize};
use shmem::Shareable;

/// The kind of work for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Activity {
    /// A worker's turn: frames of its queues are taken and delivered.
    Turn = 1,
    /// A worker handles events on the port's descriptors.
    Wake = 2,
    /// The control thread reads from the port's front end, or answers it.
    Message = 3,
}

/// A thread's note.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Work {
    thread: Counter,
    /// The port's number plus one in the low 32 bits, [`Activity`] above.
    note: Counter,
}

// SAFETY: the type consists of counters only.
unsafe impl Shareable for Work {}

impl Work {
    /// Notes the calling thread as the one that writes here.
    pub fn set_writer(&self) {
        self.note.set(0);
        self.thread.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into());
    }

    /// Notes that the thread serves a port.
    #[inline(always)]
    pub fn serve(&self, port: PortId, doing: Activity) {
        self.note.set((u64::from(port) + 1) | (doing as u64) << 32);
    }

    /// Notes that the thread serves no port.
    #[inline(always)]
    pub fn rest(&self) {
        self.note.set(0);
    }

    /// Reads the thread's number, and its work.
    pub(super) fn read(&self) -> (u64, Option<(PortId, Activity)>) {
        let note = self.note.get();
        let doing = match note >> 32 {
            1 => Some(Activity::Turn),
            2 => Some(Activity::Wake),
            3 => Some(Activity::Message),
            _ => None,
        };
        let port = (note as u32).checked_sub(1).and_then(|port| PortId::try_from(port).ok());
        (self.thread.get(), port.zip(doing))
    }
}

/// Where the handler notes the thread that died.
static DIED_IN: AtomicPtr<Counter> = AtomicPtr::new(std::ptr::null_mut());

/// Makes fatal signals of this process store their thread in `died_in`, which must stay mapped
/// until the process ends.
pub(super) fn note_deaths(died_in: &'static Counter) {
    DIED_IN.store(std::ptr::from_ref(died_in).cast_mut(), Ordering::Release);
    let handler: extern "C" fn(libc::c_int) = on_death;
    // SAFETY: a zeroed sigaction is one without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // The default action follows: the instruction is tried again, or abort(3) raises the signal
    // again.
    action.sa_flags = libc::SA_ONSTACK | libc::SA_RESETHAND;
    for signal in [libc::SIGSEGV, libc::SIGABRT, libc::SIGILL, libc::SIGFPE] {
        // SAFETY: the handler makes one system call and stores one atomic word, as handlers may.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

extern "C" fn on_death(_signal: libc::c_int) {
    let died_in = DIED_IN.load(Ordering::Acquire);
    // SAFETY: null or a counter that stays mapped (`note_deaths`).
    if let Some(died_in) = unsafe { died_in.as_ref() } {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        died_in.set(u64::from(thread.unsigned_abs()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_which_port_is_served_and_how() {
        let work = Work::default();
        assert_eq!(work.read(), (0, None));
        work.set_writer();
        let (thread, doing) = work.read();
        assert!(thread > 0 && doing.is_none());
        for (port, doing) in
            [(0, Activity::Turn), (7, Activity::Wake), (PortId::MAX, Activity::Message)]
        {
            work.serve(port, doing);
            assert_eq!(work.read(), (thread, Some((port, doing))));
        }
        work.rest();
        assert_eq!(work.read(), (thread, None));
    }
}
