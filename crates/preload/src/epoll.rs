//! Epoll sets with netmap descriptors. These members are tracked here, and the kernel has the
//! others. A set may also be a member of another set, or wait in `poll`: then the netmap
//! descriptors in it count there, too.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;

use libc::{c_int, epoll_event, pollfd, sigset_t};
use rustix::io::Errno;

use crate::poll::{self, Until, Wanted};
use crate::{fds, marks, real};
use pcap::lock::Lock;

/// The members that are tracked here, by their set.
type Sets = BTreeMap<RawFd, Vec<Member>>;

/// The members of each set that are netmap descriptors, or sets.
pub static SETS: Lock<Sets> = Lock::new(BTreeMap::new());

/// How deep sets may be nested. The kernel allows fewer.
const DEPTH: usize = 8;

/// The kind of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A netmap descriptor, which the kernel does not know as a member.
    Netmap,
    /// Another set, which the kernel knows, too.
    Set,
}

/// A member of a set.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    kind: Kind,
    fd: RawFd,
    events: u32,
    data: u64,
    /// The events that were reported of an edge-triggered member, and the position of its rings at
    /// that time.
    told: u32,
    since: u64,
    /// A one-shot member that was reported and must be rearmed.
    spent: bool,
}

impl Member {
    fn new(kind: Kind, fd: RawFd, epoll_event { events, u64: data }: epoll_event) -> Self {
        Self { kind, fd, events, data, told: 0, since: 0, spent: false }
    }

    /// What to look for, if the member is a netmap descriptor.
    fn wanted(&self) -> Option<Wanted> {
        let device = fds::get(self.fd).filter(|_| self.kind == Kind::Netmap && !self.spent)?;
        let events = (self.events & !FLAGS) as i16;
        Some(Wanted { fd: self.fd, device, events, told: self.told as i16, since: self.since })
    }
}

const FLAGS: u32 = (libc::EPOLLET | libc::EPOLLONESHOT) as u32;

/// Handles `epoll_ctl` for a netmap descriptor.
pub fn control(set: RawFd, op: c_int, fd: RawFd, event: Option<epoll_event>) -> Result<i32, Errno> {
    change(set, op, (Kind::Netmap, fd), event)
}

/// Notes what the kernel has done for a set within another set.
pub fn control_set(set: RawFd, op: c_int, fd: RawFd, event: Option<epoll_event>) {
    // A set that was a member before this library was loaded is not known.
    let _ = change(set, op, (Kind::Set, fd), event);
}

fn change(
    set: RawFd,
    op: c_int,
    (kind, fd): (Kind, RawFd),
    event: Option<epoll_event>,
) -> Result<i32, Errno> {
    let mut sets = SETS.lock();
    let members = sets.entry(set).or_default();
    let at = members.iter().position(|member| member.fd == fd);
    match (op, at) {
        (libc::EPOLL_CTL_DEL, Some(at)) => drop(members.remove(at)),
        (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EXIST),
        (libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD, None) => return Err(Errno::NOENT),
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, at) => {
            let member = Member::new(kind, fd, event.ok_or(Errno::FAULT)?);
            match at.and_then(|at| members.get_mut(at)) {
                Some(place) => *place = member,
                None => members.push(member),
            }
        }
        _ => return Err(Errno::INVAL),
    }
    mark(&mut sets);
    Ok(0)
}

/// Marks the sets that have netmap descriptors in them, at any depth. Forgets sets without members.
fn mark(sets: &mut Sets) {
    sets.retain(|set, members| {
        if members.is_empty() {
            marks::EPOLL.clear(*set);
        }
        !members.is_empty()
    });
    let mut marked = BTreeSet::new();
    for _ in 0..DEPTH {
        let has_some = |members: &[Member]| {
            members.iter().any(|member| member.kind == Kind::Netmap || marked.contains(&member.fd))
        };
        let with = sets.iter().filter(|(_, members)| has_some(members)).map(|(set, _)| *set);
        marked = with.collect();
    }
    for set in sets.keys() {
        match marked.contains(set) {
            true => _ = marks::EPOLL.set(*set),
            false => _ = marks::EPOLL.clear(*set),
        }
    }
}

/// Forgets a set that is about to be closed.
pub fn forget_set(set: RawFd) {
    marks::EPOLL.clear(set);
    SETS.lock().remove(&set);
    forget_member(set);
}

/// Forgets a descriptor that is about to be closed.
pub fn forget_member(fd: RawFd) {
    let mut sets = SETS.lock();
    for members in sets.values_mut() {
        members.retain(|member| member.fd != fd);
    }
    mark(&mut sets);
}

/// Notes that a set was duplicated to another number.
pub fn copy_set(from: RawFd, to: RawFd) {
    marks::SETS.set(to);
    let mut sets = SETS.lock();
    if let Some(members) = sets.get(&from).cloned() {
        sets.insert(to, members);
        mark(&mut sets);
    }
}

/// Returns what to look for to know whether netmap descriptors make a set readable.
pub fn inside(set: RawFd) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    if marks::EPOLL.has(set) {
        collect(&SETS.lock(), set, &mut wanted, DEPTH);
    }
    wanted
}

fn collect(sets: &Sets, set: RawFd, wanted: &mut Vec<Wanted>, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for member in sets.get(&set).into_iter().flatten() {
        match member.kind {
            Kind::Netmap => wanted.extend(member.wanted()),
            Kind::Set if !member.spent && marks::EPOLL.has(member.fd) => {
                collect(sets, member.fd, wanted, depth);
            }
            Kind::Set => (),
        }
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
        let (members, wanted) = watched(set);
        let borrowed: Vec<_> = wanted.iter().map(|(_, wanted)| wanted).collect();
        let mut kernel = vec![pollfd { fd: set, events: libc::POLLIN, revents: 0 }];
        let found = poll::wait(&borrowed, &mut kernel, until, mask)?;
        let mut now = vec![0; members.len()];
        for ((at, _), found) in wanted.iter().zip(found) {
            now[*at] |= match members[*at].kind {
                Kind::Netmap => u32::from(found.cast_unsigned()),
                Kind::Set if found == 0 => 0,
                Kind::Set => READABLE & members[*at].events,
            };
        }
        let told = write_events(set, &members, &now, events);
        let rest = if kernel[0].revents == 0 { 0 } else { look(set, told, events)? };
        let count = told + rest;
        if count > 0 || matches!(until, Until::Now) || is_over(until) {
            return Ok(count as i32);
        }
    }
}

/// The events of a set that has something to report.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

fn is_over(until: Until) -> bool {
    matches!(until, Until::At(at) if std::time::Instant::now() >= at)
}

/// Returns the members that are tracked here, and what to look for, each with the index of its
/// member.
fn watched(set: RawFd) -> (Vec<Member>, Vec<(usize, Wanted)>) {
    let sets = SETS.lock();
    let members = sets.get(&set).cloned().unwrap_or_default();
    let mut all = Vec::new();
    for (at, member) in members.iter().enumerate() {
        let mut wanted = Vec::new();
        match member.kind {
            Kind::Netmap => wanted.extend(member.wanted()),
            Kind::Set if !member.spent => collect(&sets, member.fd, &mut wanted, DEPTH),
            Kind::Set => (),
        }
        all.extend(wanted.into_iter().map(|wanted| (at, wanted)));
    }
    (members, all)
}

/// Writes the events of members; returns their number. One entry stays free for the kernel's
/// events, and the order rotates for fairness.
fn write_events(set: RawFd, members: &[Member], now: &[u32], events: &mut [epoll_event]) -> usize {
    let room = if events.len() > 1 { events.len() - 1 } else { 1 };
    let mut told = 0;
    let mut sets = SETS.lock();
    for (member, now) in members.iter().zip(now) {
        let kept = sets.get_mut(&set).and_then(|all| all.iter_mut().find(|m| m.fd == member.fd));
        let Some(kept) = kept.filter(|_| *now != 0 && told < room) else { continue };
        if kept.events & libc::EPOLLET as u32 != 0 && kept.kind == Kind::Netmap {
            kept.told |= now;
            kept.since = poll::position(kept.fd);
        }
        kept.spent = kept.events & libc::EPOLLONESHOT as u32 != 0;
        events[told] = epoll_event { events: *now, u64: kept.data };
        told += 1;
        if kept.spent && kept.kind == Kind::Set {
            let mut none = epoll_event { events: libc::EPOLLONESHOT as u32, u64: kept.data };
            // SAFETY: a value that lives as long as the call.
            unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_MOD, kept.fd, &raw mut none) };
        }
    }
    if let Some(all) = sets.get_mut(&set).filter(|all| !all.is_empty()) {
        all.rotate_left(1);
    }
    told
}

/// Gets the kernel's events of the other members, after the first `told`. Returns their number.
fn look(set: RawFd, told: usize, events: &mut [epoll_event]) -> Result<usize, Errno> {
    let (told, free) = events.split_at_mut(told);
    if free.is_empty() {
        return Ok(0);
    }
    let most = i32::try_from(free.len()).unwrap_or(i32::MAX);
    // SAFETY: a slice of the given length.
    let got = unsafe { real::epoll_pwait(set, free.as_mut_ptr(), most, 0, std::ptr::null()) };
    let got = crate::result(got)? as usize;
    let mut sets = SETS.lock();
    let inner = sets.get_mut(&set).into_iter().flatten().filter(|m| m.kind == Kind::Set);
    let inner: Vec<_> = inner.collect();
    if inner.is_empty() {
        return Ok(got);
    }
    // A set in this one is ready for both reasons, but is reported once.
    let mut kept = 0;
    let mut spent = Vec::new();
    for at in 0..got {
        let data = free[at].u64;
        if inner.iter().any(|set| set.data == data) {
            spent.push(data);
            if told.iter().any(|told| { told.u64 } == data) {
                continue;
            }
        }
        free[kept] = free[at];
        kept += 1;
    }
    for set in inner.into_iter().filter(|set| spent.contains(&set.data)) {
        set.spent |= set.events & libc::EPOLLONESHOT as u32 != 0;
    }
    Ok(kept)
}
