//! Lists of `poll`: netmap's descriptors, epoll sets with some in them, and others.

use std::sync::Arc;

use libc::{c_short, pollfd, sigset_t};
use rustix::io::Errno;

use crate::device::Device;
use crate::poll::{RECEIVE, Until, Wanted, wait};
use crate::{epoll, fds, marks};

/// Handles `poll` for a list with netmap descriptors.
pub fn poll(list: &mut [pollfd], until: Until, mask: Option<&sigset_t>) -> Result<i32, Errno> {
    if let [entry] = list
        && let Some(device) = fds::get(entry.fd)
    {
        return poll_one(entry, device, until, mask);
    }
    let mut wanted = Vec::with_capacity(1);
    // The list for the kernel, without the netmap descriptors.
    let mut others: Vec<pollfd> = Vec::new();
    let mut netmaps = 0;
    for (at, entry) in list.iter_mut().enumerate() {
        entry.revents = 0;
        let &mut pollfd { fd, events, .. } = entry;
        if let Some(device) = fds::get(fd) {
            netmaps += 1;
            wanted.push((at, Wanted { fd, device, events, told: 0, since: 0 }));
        } else if marks::EPOLL.has(fd) && events & RECEIVE != 0 {
            // The kernel knows the other members of the set.
            wanted.extend(epoll::inside(fd).into_iter().map(|wanted| (at, wanted)));
        }
    }
    if netmaps < list.len() {
        others.extend_from_slice(list);
        let netmaps = wanted.iter().filter(|(at, wanted)| list[*at].fd == wanted.fd);
        netmaps.for_each(|(at, _)| others[*at].fd = -1);
    }
    let netmaps: Vec<&Wanted> = wanted.iter().map(|(_, wanted)| wanted).collect();
    let found = wait(&netmaps, &mut others, until, mask)?;
    Ok(merge(list, &wanted, &found, &others))
}

/// Stores the events of a list's descriptors: of netmap's, of those in sets, of the others. Returns
/// how many have events.
fn merge(
    list: &mut [pollfd],
    wanted: &[(usize, Wanted)],
    found: &[c_short],
    others: &[pollfd],
) -> i32 {
    for (entry, other) in list.iter_mut().zip(others) {
        entry.revents = other.revents;
    }
    for ((at, wanted), &events) in wanted.iter().zip(found) {
        let entry = &mut list[*at];
        entry.revents |= match events {
            _ if entry.fd == wanted.fd => events,
            0 => 0,
            _ => RECEIVE & entry.events,
        };
    }
    list.iter().filter(|entry| entry.revents != 0).count() as i32
}

/// Handles the common case, one netmap descriptor, without lists.
fn poll_one(
    entry: &mut pollfd,
    device: Arc<Device>,
    until: Until,
    mask: Option<&sigset_t>,
) -> Result<i32, Errno> {
    let &mut pollfd { fd, events, .. } = entry;
    let wanted = Wanted { fd, device, events, told: 0, since: 0 };
    entry.revents = wanted.look();
    if entry.revents == 0 && !matches!(until, Until::Now) {
        let found = wait(&[&wanted], &mut Vec::new(), until, mask)?;
        entry.revents = found.first().copied().unwrap_or(0);
    }
    Ok(i32::from(entry.revents != 0))
}
