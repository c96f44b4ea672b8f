//! libpcap's types, as its headers declare them.

use std::ffi::{c_char, c_uchar, c_uint, c_void};

/// `pcap_handler`.
pub type Callback = unsafe extern "C-unwind" fn(*mut c_uchar, *const Header, *const c_uchar);

/// `struct pcap_pkthdr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    pub time: libc::timeval,
    pub kept: u32,
    pub len: u32,
}

/// `struct bpf_program`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Program {
    pub len: c_uint,
    pub code: *const u64,
}

/// `struct pcap_stat`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Stats {
    pub received: c_uint,
    pub dropped: c_uint,
    pub dropped_by_card: c_uint,
}

/// `struct pcap_if`.
#[derive(Debug)]
#[repr(C)]
pub struct Entry {
    pub next: *mut Entry,
    pub name: *mut c_char,
    pub description: *mut c_char,
    pub addresses: *mut c_void,
    pub flags: c_uint,
}
