//! Replaces the socket calls for packet sockets on ports. All other calls go to the C library.
#![allow(
    clippy::missing_safety_doc,
    reason = "what each function demands is what the C library's of the same name does"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::ptr;

use libc::{iovec, msghdr, size_t, sockaddr, sockaddr_ll, socklen_t, ssize_t};
use rustix::io::Errno;

use super::{Destination, Packet, find, names, options, route};
use crate::export::export;
use crate::{real, returned, set_errno};

/// Returns the address that a call passes, if it names a port.
unsafe fn port_of(address: *const sockaddr, len: socklen_t) -> Option<sockaddr_ll> {
    if address.is_null() || (len as usize) < size_of::<sockaddr_ll>() - 2 {
        return None;
    }
    let mut copy = [0_u8; size_of::<sockaddr_ll>()];
    let len = copy.len().min(len as usize);
    // SAFETY: the caller passes this many readable bytes.
    unsafe { ptr::copy_nonoverlapping(address.cast(), copy.as_mut_ptr(), len) };
    // SAFETY: any bytes are a valid address.
    let address: sockaddr_ll = unsafe { std::mem::transmute(copy) };
    let is_packet = address.sll_family == libc::AF_PACKET as u16;
    (is_packet && super::device(address.sll_ifindex).is_some()).then_some(address)
}

/// Returns the destination of a call that sends to a port.
unsafe fn destination(
    packet: &Packet,
    address: *const sockaddr,
    len: socklen_t,
) -> Option<Destination> {
    if address.is_null() {
        return packet.bound_to();
    }
    // SAFETY: the caller keeps this function's contract.
    unsafe { port_of(address, len) }.map(|to| Destination::of(&to))
}

/// Sends the bytes of a call to a port; `None` if the kernel must send them.
unsafe fn send_parts(
    fd: c_int,
    parts: &[iovec],
    (address, len): (*const sockaddr, socklen_t),
) -> Option<ssize_t> {
    let packet = find(fd)?;
    // SAFETY: the caller keeps this function's contract.
    let Some(to) = (unsafe { destination(&packet, address, len) }) else {
        if packet.is_ours {
            set_errno(Errno::PERM);
            return Some(-1);
        }
        return None;
    };
    let sent = returned(|| {
        let mut frame = Vec::new();
        for part in parts.iter().filter(|part| part.iov_len > 0) {
            // SAFETY: the caller passes this many readable bytes.
            let bytes = unsafe { std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len) };
            frame.extend_from_slice(bytes);
        }
        packet.send(&to, &frame).map(|sent| sent as i32)
    });
    Some(sent as ssize_t)
}

fn part(bytes: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: bytes.cast_mut(), iov_len: len }]
}

const NOWHERE: (*const sockaddr, socklen_t) = (ptr::null(), 0);

export! {
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
        if family == libc::AF_PACKET {
            return returned(|| super::socket(kind, protocol));
        }
        // SAFETY: the caller keeps this function's contract.
        unsafe { real::socket(family, kind, protocol) }
    }
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        if let (Some(packet), Some(to)) = (find(fd), unsafe { port_of(address, len) }) {
            return returned(|| packet.bind(fd, &to).map(|()| 0));
        }
        // SAFETY: the caller keeps this function's contract.
        unsafe { real::bind(fd, address, len) }
    }
    fn sendto(
        fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
        address_len: socklen_t
    ) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            let ours = send_parts(fd, &part(bytes, len), (address, address_len));
            ours.unwrap_or_else(|| real::sendto(fd, bytes, len, flags, address, address_len))
        }
    }
    fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            let ours = send_parts(fd, &part(bytes, len), NOWHERE);
            ours.unwrap_or_else(|| real::send(fd, bytes, len, flags))
        }
    }
    fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            if crate::io::refuses(fd) {
                return -1;
            }
            if !super::PACKET.has(fd) {
                return real::write(fd, bytes, len);
            }
            let ours = send_parts(fd, &part(bytes, len), NOWHERE);
            ours.unwrap_or_else(|| real::write(fd, bytes, len))
        }
    }
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            let Some(given) = message.as_ref() else { return real::sendmsg(fd, message, flags) };
            let parts = if given.msg_iovlen == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(given.msg_iov, given.msg_iovlen)
            };
            if super::PACKET.has(fd) {
                let to = (given.msg_name.cast_const().cast(), given.msg_namelen);
                if let Some(sent) = send_parts(fd, parts, to) {
                    return sent;
                }
            } else if let Some(sent) = ask(fd, parts) {
                return sent;
            }
            real::sendmsg(fd, message, flags)
        }
    }
}

/// Intercepts a netlink question about a route through a port.
unsafe fn ask(fd: c_int, parts: &[iovec]) -> Option<ssize_t> {
    let [one] = parts else { return None };
    // Questions about a route have at least this size; other messages are passed on unread.
    if !(28..=512).contains(&one.iov_len) || !is_netlink(fd) {
        return None;
    }
    // SAFETY: the caller passes this many readable bytes.
    let question = unsafe { std::slice::from_raw_parts(one.iov_base.cast(), one.iov_len) };
    let is_ours = returned(|| Ok(route::asked(fd, question).into())) == 1;
    is_ours.then_some(one.iov_len as ssize_t)
}

fn is_netlink(fd: c_int) -> bool {
    let (mut family, mut len) = (0, size_of::<c_int>() as socklen_t);
    let (level, option) = (libc::SOL_SOCKET, libc::SO_DOMAIN);
    // SAFETY: the buffer has this many bytes.
    let done =
        unsafe { real::getsockopt(fd, level, option, (&raw mut family).cast(), &raw mut len) };
    done == 0 && family == libc::AF_NETLINK
}

/// Writes the source address of a frame.
unsafe fn write_source(fd: c_int, bytes: &[u8], address: *mut c_void, len: &mut socklen_t) {
    let Some(index) = find(fd).and_then(|packet| packet.port()) else { return };
    // SAFETY: all zero bytes are a valid address.
    let mut from: sockaddr_ll = unsafe { std::mem::zeroed() };
    from.sll_family = libc::AF_PACKET as u16;
    (from.sll_ifindex, from.sll_hatype, from.sll_halen) = (index.cast_signed(), 1, 6);
    if let Some(header) = bytes.get(..14) {
        from.sll_protocol = u16::from_ne_bytes([header[12], header[13]]);
        from.sll_addr[..6].copy_from_slice(&header[6..12]);
        from.sll_pkttype = match header[..6] {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => libc::PACKET_BROADCAST,
            [first, ..] if first & 1 != 0 => libc::PACKET_MULTICAST,
            _ => libc::PACKET_HOST,
        };
    }
    let room = size_of_val(&from).min(*len as usize);
    // SAFETY: the caller passes `len` writable bytes.
    unsafe { ptr::copy_nonoverlapping((&raw const from).cast::<u8>(), address.cast(), room) };
    *len = size_of_val(&from) as socklen_t;
}

fn is_bound(fd: c_int) -> bool {
    super::PACKET.has(fd) && find(fd).is_some_and(|packet| packet.port().is_some())
}

export! {
    fn recvfrom(
        fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            if address.is_null() || address_len.is_null() || !is_bound(fd) {
                return real::recvfrom(fd, bytes, len, flags, address, address_len);
            }
            let got = real::recvfrom(fd, bytes, len, flags, ptr::null_mut(), ptr::null_mut());
            if let Ok(got) = usize::try_from(got) {
                let frame = std::slice::from_raw_parts(bytes.cast(), got.min(len));
                write_source(fd, frame, address.cast(), &mut *address_len);
            }
            got
        }
    }
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            let Some(given) = message.as_mut() else { return real::recvmsg(fd, message, flags) };
            if route::ASKED.has(fd) {
                return hand_over(fd, given);
            }
            if !is_bound(fd) {
                return real::recvmsg(fd, message, flags);
            }
            let (name, mut len) = (given.msg_name, given.msg_namelen);
            (given.msg_name, given.msg_namelen) = (ptr::null_mut(), 0);
            let got = real::recvmsg(fd, message, flags);
            if let (Ok(got), false, Some(part)) =
                (usize::try_from(got), name.is_null(), given.msg_iov.as_ref())
            {
                let frame = std::slice::from_raw_parts(part.iov_base.cast(), got.min(part.iov_len));
                write_source(fd, frame, name, &mut len);
            }
            (given.msg_name, given.msg_namelen) = (name, len);
            got
        }
    }
}

/// Copies the answer about a route into the caller's message.
unsafe fn hand_over(fd: c_int, message: &mut msghdr) -> ssize_t {
    let Some(answer) = route::answer(fd) else {
        set_errno(Errno::AGAIN);
        return -1;
    };
    // SAFETY: the caller passes a list with the number of parts that it states.
    let Some(part) = (unsafe { message.msg_iov.as_ref() }) else { return 0 };
    let len = answer.len().min(part.iov_len);
    // SAFETY: the caller passes this many writable bytes.
    unsafe { ptr::copy_nonoverlapping(answer.as_ptr(), part.iov_base.cast(), len) };
    // SAFETY: all zero bytes are a valid address.
    let mut kernel: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    kernel.nl_family = libc::AF_NETLINK as u16;
    let room = size_of_val(&kernel).min(message.msg_namelen as usize);
    if !message.msg_name.is_null() {
        let from = (&raw const kernel).cast::<u8>();
        // SAFETY: the caller passes this many writable bytes.
        unsafe { ptr::copy_nonoverlapping(from, message.msg_name.cast(), room) };
    }
    (message.msg_flags, message.msg_controllen) = (0, 0);
    len as ssize_t
}

export! {
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            if !is_bound(fd) || address.is_null() || len.is_null() {
                return real::getsockname(fd, address, len);
            }
            write_source(fd, &[], address.cast(), &mut *len);
        }
        0
    }
    fn setsockopt(
        fd: c_int, level: c_int, option: c_int, value: *const c_void, len: socklen_t
    ) -> c_int {
        let packet = if super::PACKET.has(fd) { find(fd) } else { None };
        let Some(packet) = packet else {
            // SAFETY: the caller keeps this function's contract.
            return unsafe { real::setsockopt(fd, level, option, value, len) };
        };
        let bytes = options::value_of(value, len);
        if packet.is_ours || packet.port().is_some() {
            if let Some(done) = packet.options.set(level, option, &bytes) {
                return returned(|| done.map(|()| 0));
            }
        } else if (level, option) == (libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP) {
            // The request begins with the number of the interface.
            let index = bytes.first_chunk().copied().map_or(0, c_int::from_ne_bytes);
            if super::device(index).is_some() {
                return 0;
            }
        }
        // SAFETY: the caller keeps this function's contract.
        let done = unsafe { real::setsockopt(fd, level, option, value, len) };
        if done == 0 {
            packet.options.keep(level, option, &bytes);
        }
        done
    }
    fn if_nametoindex(name: *const c_char) -> c_uint {
        // SAFETY: the caller keeps this function's contract.
        let ours = unsafe { CStr::from_ptr(name) };
        match names::index(ours.to_bytes()) {
            Some(index) => index,
            // SAFETY: the caller keeps this function's contract.
            None => unsafe { real::if_nametoindex(name) },
        }
    }
    fn if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            if names::name(index.cast_signed(), name) {
                return name;
            }
            real::if_indextoname(index, name)
        }
    }
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut c_void {
        // SAFETY: the caller keeps this function's contract.
        unsafe { open_list(path).unwrap_or_else(|| real::fopen(path, mode)) }
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void {
        // SAFETY: the caller keeps this function's contract.
        unsafe { open_list(path).unwrap_or_else(|| real::fopen64(path, mode)) }
    }
}

/// Returns true for the kernel's list of interfaces, which must also show our ports.
pub unsafe fn is_list(path: *const c_char) -> bool {
    // SAFETY: null or the caller's string.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == names::LIST
}

/// Opens the list of interfaces as a stream.
unsafe fn open_list(path: *const c_char) -> Option<*mut c_void> {
    // SAFETY: the caller keeps this function's contract.
    if !unsafe { is_list(path) } {
        return None;
    }
    let fd = names::interfaces().ok()?.into_raw_fd();
    // SAFETY: a descriptor that is open.
    Some(unsafe { libc::fdopen(fd, c"r".as_ptr()) }.cast())
}
