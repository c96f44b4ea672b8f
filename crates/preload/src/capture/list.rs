//! `pcap_findalldevs`: lists the daemon's ports after the system's interfaces.

use std::ffi::{CString, c_char, c_uint};

use super::abi::Entry;

/// `PCAP_IF_UP | PCAP_IF_RUNNING | PCAP_IF_CONNECTION_STATUS_CONNECTED`.
const UP: c_uint = 0x2 | 0x4 | 0x10;

/// A string that `pcap_freealldevs` frees.
fn text(text: &str) -> Option<*mut c_char> {
    let text = CString::new(text).ok()?;
    // SAFETY: a string.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    (!copy.is_null()).then_some(copy)
}

fn entry(name: &str) -> Option<*mut Entry> {
    let name = text(name)?;
    let description = text("toklat port").unwrap_or(std::ptr::null_mut());
    // SAFETY: all zero bytes are a valid entry; the memory is libc's, as libpcap frees it.
    let made: *mut Entry = unsafe { libc::calloc(1, size_of::<Entry>()) }.cast();
    // SAFETY: null, or the memory that was just made.
    let entry = (unsafe { made.as_mut() })?;
    (entry.name, entry.description, entry.flags) = (name, description, UP);
    Some(made)
}

/// Appends the daemon's ports to a list. Without a daemon there are none.
///
/// # Safety
/// `first` is where a list of libpcap's begins.
pub unsafe fn append(first: *mut *mut Entry) {
    let mut end = first;
    // SAFETY: the caller passes a valid list, which ends with null.
    while let Some(entry) = unsafe { end.as_mut().and_then(|at| at.as_mut()) } {
        end = &raw mut entry.next;
    }
    let ports = netring::ports(&netring::attach::runtime_directory()).unwrap_or_default();
    // Ports of switches with other names need a prefix.
    let name = |port: String| {
        if port.starts_with("vale") { port } else { format!("toklat:{port}") }
    };
    // Programs search the list for the name that the user gave, even if that port is not open yet.
    let given = crate::packet::names::named().iter().map(|known| known.name.clone());
    let mut names: Vec<_> = given.chain(ports.into_iter().map(name)).collect();
    names.sort();
    names.dedup();
    for made in names.iter().filter_map(|name| entry(name)) {
        // SAFETY: the end of the list, and the entry that was just made.
        unsafe {
            end.write(made);
            end = &raw mut (*made).next;
        }
    }
}
