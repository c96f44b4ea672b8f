//! Epoll sets with netmap descriptors: these members are tracked here, the kernel has the others.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::{c_int, epoll_event, pollfd, sigset_t};
use rustix::io::Errno;

use crate::poll::{self, Until, Wanted};
use crate::{fds, marks, real};
use pcap::lock::Lock;

/// The netmap members of each set.
pub static SETS: Lock<BTreeMap<RawFd, Vec<Member>>> = Lock::new(BTreeMap::new());

/// A netmap descriptor in a set.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    fd: RawFd,
    events: u32,
    data: u64,
    /// The events last reported, for edge-triggered members.
    told: u32,
    /// A one-shot member that was reported and must be rearmed.
    spent: bool,
}

const FLAGS: u32 = (libc::EPOLLET | libc::EPOLLONESHOT) as u32;

/// Handles `epoll_ctl` for a netmap descriptor.
pub fn control(set: RawFd, op: c_int, fd: RawFd, event: Option<epoll_event>) -> Result<i32, Errno> {
    let mut sets = SETS.lock();
    let members = sets.entry(set).or_default();
    let at = members.iter().position(|member| member.fd == fd);
    match (op, at) {
        (libc::EPOLL_CTL_DEL, Some(at)) => drop(members.remove(at)),
        (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EXIST),
        (libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD, None) => return Err(Errno::NOENT),
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, at) => {
            let epoll_event { events, u64: data } = event.ok_or(Errno::FAULT)?;
            let member = Member { fd, events, data, told: 0, spent: false };
            match at.and_then(|at| members.get_mut(at)) {
                Some(place) => *place = member,
                None => members.push(member),
            }
        }
        _ => return Err(Errno::INVAL),
    }
    if members.is_empty() {
        sets.remove(&set);
        marks::EPOLL.clear(set);
    } else {
        marks::EPOLL.set(set);
    }
    Ok(0)
}

/// Forgets a set that is about to be closed.
pub fn forget_set(set: RawFd) {
    SETS.lock().remove(&set);
}

/// Forgets a descriptor that is about to be closed.
pub fn forget_member(fd: RawFd) {
    let mut sets = SETS.lock();
    for members in sets.values_mut() {
        members.retain(|member| member.fd != fd);
    }
    sets.retain(|set, members| {
        let stays = !members.is_empty();
        if !stays {
            marks::EPOLL.clear(*set);
        }
        stays
    });
}

/// Notes that a set was duplicated to another number.
pub fn copy_set(from: RawFd, to: RawFd) {
    let mut sets = SETS.lock();
    if let Some(members) = sets.get(&from).cloned() {
        sets.insert(to, members);
        marks::EPOLL.set(to);
    }
}

/// Handles `epoll_wait` for a set with netmap descriptors.
pub fn wait(
    set: RawFd,
    events: &mut [epoll_event],
    until: Until,
    mask: Option<&sigset_t>,
) -> Result<i32, Errno> {
    if events.is_empty() {
        return Err(Errno::INVAL);
    }
    loop {
        let members: Vec<_> = SETS.lock().get(&set).cloned().unwrap_or_default();
        let (members, wanted) = wanted(&members);
        let borrowed: Vec<_> = wanted.iter().collect();
        let mut kernel = vec![pollfd { fd: set, events: libc::POLLIN, revents: 0 }];
        // An edge-triggered member whose readiness was reported must not end the wait for the
        // others.
        let edge = members.iter().any(|member| member.events & libc::EPOLLET as u32 != 0);
        let found = poll::wait(&borrowed, &mut kernel, until, mask)?;
        let told = write_events(set, &members, &found, events);
        let rest = if kernel[0].revents == 0 { 0 } else { look(set, &mut events[told..])? };
        let count = told + rest;
        if count > 0 || matches!(until, Until::Now) || is_over(until) {
            return Ok(count as i32);
        }
        if edge && found.iter().any(|found| *found != 0) {
            // Ready members were all reported before: keep waiting for the others.
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

fn is_over(until: Until) -> bool {
    matches!(until, Until::At(at) if std::time::Instant::now() >= at)
}

/// Returns the members that wait for something, and what they wait for.
fn wanted(members: &[Member]) -> (Vec<Member>, Vec<Wanted>) {
    let live = members.iter().filter(|member| !member.spent);
    let wanted = |member: &Member| {
        let device = fds::get(member.fd)?;
        let events = (member.events & !FLAGS) as i16;
        Some((*member, Wanted { fd: member.fd, device, events }))
    };
    live.filter_map(wanted).unzip()
}

/// Writes the events of members; returns their number. One entry stays free for the kernel's
/// events, and the order rotates for fairness.
fn write_events(
    set: RawFd,
    members: &[Member],
    found: &[i16],
    events: &mut [epoll_event],
) -> usize {
    let room = if events.len() > 1 { events.len() - 1 } else { 1 };
    let mut told = 0;
    let mut sets = SETS.lock();
    for (member, found) in members.iter().zip(found) {
        let now = u32::from(found.cast_unsigned());
        let kept = sets.get_mut(&set).and_then(|all| all.iter_mut().find(|m| m.fd == member.fd));
        let Some(kept) = kept else { continue };
        let is_edge = kept.events & libc::EPOLLET as u32 != 0;
        let is_new = !is_edge || now & !kept.told != 0;
        kept.told = now;
        if now == 0 || !is_new || told == room {
            continue;
        }
        kept.spent = kept.events & libc::EPOLLONESHOT as u32 != 0;
        events[told] = epoll_event { events: now, u64: kept.data };
        told += 1;
    }
    if let Some(all) = sets.get_mut(&set).filter(|all| !all.is_empty()) {
        all.rotate_left(1);
    }
    told
}

/// Gets the kernel's events of the other members.
fn look(set: RawFd, events: &mut [epoll_event]) -> Result<usize, Errno> {
    if events.is_empty() {
        return Ok(0);
    }
    let most = i32::try_from(events.len()).unwrap_or(i32::MAX);
    // SAFETY: a slice of the given length.
    let got = unsafe { real::epoll_pwait(set, events.as_mut_ptr(), most, 0, std::ptr::null()) };
    crate::result(got).map(|got| got as usize)
}
