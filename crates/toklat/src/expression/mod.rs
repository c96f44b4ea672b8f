//! Filters of captures and rules: libpcap compiles the text, and [`frame::bpf`] runs the program.
#![allow(unsafe_code, reason = "libpcap is called, if it is there")]

pub mod process;

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use anyhow::{Context, bail};
use frame::bpf::{self, Ancillary, Instruction, Packet, Program};

/// Where libpcap is.
const LIBRARIES: [&CStr; 3] = [c"libpcap.so.0.8", c"libpcap.so.1", c"libpcap.so"];
/// `DLT_EN10MB`.
const ETHERNET: c_int = 1;
/// libpcap's largest snapshot length.
const SNAPSHOT: c_int = 262_144;
/// `PCAP_NETMASK_UNKNOWN`.
const NO_MASK: u32 = u32::MAX;

/// `struct bpf_program`.
#[repr(C)]
struct Compiled {
    len: u32,
    code: *mut [u8; 8],
}

/// A captured frame, as a filter sees it.
pub(crate) struct Seen<'a> {
    pub bytes: &'a [u8],
    /// The number of the port, from 1.
    pub interface: u32,
    pub sent: bool,
}

impl Packet for Seen<'_> {
    fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..)?.first_chunk().copied()
    }

    fn ancillary(&self, what: Ancillary) -> u32 {
        bpf::ancillary(self.bytes, what, self.interface, self.sent)
    }
}

/// Makes a program of a filter: an expression as in pcap-filter(7), or numbers as `tcpdump -ddd`
/// prints them.
///
/// # Errors
/// The expression is wrong, libpcap is missing, or the program asks for what is not known here.
pub fn compile(text: &str) -> anyhow::Result<Program> {
    if is_program(text) {
        return Ok(text.parse()?);
    }
    let library = Library::open()?;
    let code = library.compile(text).with_context(|| format!("Cannot use the filter {text:?}"))?;
    Ok(Program::new(code)?)
}

/// True for numbers, as `tcpdump -ddd` prints them.
fn is_program(text: &str) -> bool {
    let begins = text.contains(',') && text.starts_with(|c: char| c.is_ascii_digit());
    begins && text.bytes().all(|byte| b"0123456789 ,\n".contains(&byte))
}

/// libpcap, as far as it is needed.
struct Library {
    open_dead: unsafe extern "C" fn(c_int, c_int) -> *mut c_void,
    compile: unsafe extern "C" fn(*mut c_void, *mut Compiled, *const c_char, c_int, u32) -> c_int,
    free: unsafe extern "C" fn(*mut Compiled),
    error: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    close: unsafe extern "C" fn(*mut c_void),
}

impl Library {
    /// Loads the library; it stays loaded.
    fn open() -> anyhow::Result<Self> {
        // SAFETY: names that end with zero.
        let open = |name: &&CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        let handle = LIBRARIES.iter().map(open).find(|handle| !handle.is_null()).context(
            "libpcap compiles filters and is missing: apt-get install libpcap0.8, or pass the \
             numbers that `tcpdump -ddd -y EN10MB FILTER` prints, with commas",
        )?;
        let find = |name: &CStr| {
            // SAFETY: a library that is loaded, and a name.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if found.is_null() { bail!("libpcap has no {name:?}") } else { Ok(found) }
        };
        // SAFETY: libpcap's functions of these names have these signatures.
        unsafe {
            Ok(Self {
                open_dead: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(c_int, c_int) -> *mut c_void,
                >(find(c"pcap_open_dead")?),
                compile: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(
                        *mut c_void,
                        *mut Compiled,
                        *const c_char,
                        c_int,
                        u32,
                    ) -> c_int,
                >(find(c"pcap_compile")?),
                free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Compiled)>(
                    find(c"pcap_freecode")?,
                ),
                error: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void) -> *const c_char,
                >(find(c"pcap_geterr")?),
                close: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(find(
                    c"pcap_close",
                )?),
            })
        }
    }

    /// The instructions of a filter.
    fn compile(&self, text: &str) -> anyhow::Result<Vec<Instruction>> {
        let text = CString::new(text)?;
        let mut compiled = Compiled { len: 0, code: std::ptr::null_mut() };
        // SAFETY: a handle that libpcap has made; the program is copied before it is freed, and
        // the message before the handle is closed.
        unsafe {
            let handle = (self.open_dead)(ETHERNET, SNAPSHOT);
            if handle.is_null() {
                bail!("libpcap has no memory");
            }
            let done = (self.compile)(handle, &raw mut compiled, text.as_ptr(), 1, NO_MASK);
            let code = if done == 0 {
                let code = std::slice::from_raw_parts(compiled.code, compiled.len as usize);
                let code = code.iter().copied().map(Instruction::from_ne_bytes).collect();
                (self.free)(&raw mut compiled);
                Ok(code)
            } else {
                let said = CStr::from_ptr((self.error)(handle)).to_string_lossy().into_owned();
                Err(anyhow::Error::msg(said))
            };
            (self.close)(handle);
            code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_numbers_are_filters() {
        let numbers = compile("4,40 0 0 12,21 0 1 2054,6 0 0 262144,6 0 0 0").unwrap();
        let mut arp = [0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        let seen = |bytes| Seen { bytes, interface: 1, sent: true };
        assert!(numbers.admits(&seen(&arp)) && !numbers.admits(&seen(&[0; 60])));
        assert!(compile("2,6 0 0 0").is_err(), "a wrong count");
        if Library::open().is_err() {
            return;
        }
        assert_eq!(compile("arp").unwrap(), numbers);
        assert!(compile("outbound").unwrap().admits(&seen(&arp)));
        assert!(!compile("inbound").unwrap().admits(&seen(&arp)));
        let said = format!("{:#}", compile("no such thing").unwrap_err());
        assert!(said.contains("no such thing"), "{said}");
    }
}
