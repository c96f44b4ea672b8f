//! `select` and `pselect`, converted to `poll` and back.

use std::time::{Duration, Instant};

use libc::{c_int, c_short, fd_set, pollfd, sigset_t, timespec, timeval};
use rustix::io::Errno;

use crate::poll::{self, Until};
use crate::{list, marks};

const READ: c_short = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND;
const READ_TOLD: c_short = READ | libc::POLLHUP | libc::POLLERR;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;
const WRITE_TOLD: c_short = WRITE | libc::POLLERR;

/// The three sets: read, write, except.
pub type Sets<'a> = [Option<&'a mut fd_set>; 3];

/// For each set, the events to ask for, and the events that put a descriptor into it.
const KINDS: [(c_short, c_short); 3] =
    [(READ, READ_TOLD), (WRITE, WRITE_TOLD), (libc::POLLPRI, libc::POLLPRI)];

fn has(set: &fd_set, fd: c_int) -> bool {
    // SAFETY: a set, and a number below its size.
    unsafe { libc::FD_ISSET(fd, set) }
}

/// Limits the count to the capacity of a set.
fn bounded(count: c_int) -> c_int {
    count.clamp(0, libc::FD_SETSIZE as c_int)
}

/// Returns true if a netmap descriptor, or an epoll set with one, is in a set.
pub fn has_netmap(count: c_int, sets: &Sets<'_>) -> bool {
    let wanted = |fd: &c_int| sets.iter().flatten().any(|set| has(set, *fd));
    let is_ours = |fd: &c_int| marks::NETMAP.has(*fd) || marks::EPOLL.has(*fd);
    (0..bounded(count)).filter(is_ours).any(|fd| wanted(&fd))
}

/// Handles `select`, which stores the remaining time in its argument.
pub fn select_for(
    count: c_int,
    sets: &mut Sets<'_>,
    timeout: Option<&mut timeval>,
) -> Result<i32, Errno> {
    let Some(timeout) = timeout else { return select(count, sets, None, None) };
    let asked = timespec { tv_sec: timeout.tv_sec, tv_nsec: timeout.tv_usec * 1000 };
    let time = poll::of_timespec(Some(&asked))?;
    let started = Instant::now();
    let done = select(count, sets, time, None);
    let left = time.unwrap_or_default().saturating_sub(started.elapsed());
    timeout.tv_sec = left.as_secs().cast_signed();
    timeout.tv_usec = left.subsec_micros().into();
    done
}

/// Handles `select` for sets with netmap descriptors.
pub fn select(
    count: c_int,
    sets: &mut Sets<'_>,
    time: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Result<i32, Errno> {
    let mut asked_for = Vec::new();
    for fd in 0..bounded(count) {
        let asked = sets.iter().zip(KINDS);
        let asked = asked.filter(|(set, _)| set.as_ref().is_some_and(|set| has(set, fd)));
        let events = asked.fold(0, |events, (_, (ask, _))| events | ask);
        if events != 0 {
            asked_for.push(pollfd { fd, events, revents: 0 });
        }
    }
    list::poll(&mut asked_for, Until::after(time), mask)?;
    if asked_for.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Err(Errno::BADF);
    }
    let mut told = 0;
    for (set, (ask, tell)) in sets.iter_mut().zip(KINDS) {
        let Some(set) = set else { continue };
        for entry in &asked_for {
            if entry.events & ask != 0 && entry.revents & tell != 0 && has(set, entry.fd) {
                told += 1;
            } else {
                // SAFETY: as in `has`.
                unsafe { libc::FD_CLR(entry.fd, *set) };
            }
        }
    }
    Ok(told)
}
