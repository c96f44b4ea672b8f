//! Presents ports as interfaces by name and number: the requests `SIOCGIF*`, `/proc/net/dev`, the
//! program's arguments.

use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use libc::{c_char, c_ulong};
use netmap::client::UserMemory;
use pcap::Device;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::capture::INTERFACES;
use crate::user::Memory;

/// Bytes of an interface's name.
const NAME: usize = libc::IFNAMSIZ;
/// The kernel's list of interfaces.
pub const LIST: &CStr = c"/proc/net/dev";
/// Bytes of `struct ifreq`.
const REQUEST: usize = 40;
/// Names the ports that a program knows, and their addresses: `vale0:1=10.0.0.1/24,vale0:2`.
const VARIABLE: &str = "TOKLAT_PORTS";
/// `IFF_UP | IFF_BROADCAST | IFF_RUNNING | IFF_MULTICAST`.
const FLAGS: i16 = 0x1 | 0x2 | 0x40 | 0x1000;
const MTU: i32 = 1500;
const QUEUE: i32 = 1000;
/// `ARPHRD_ETHER`.
const ETHERNET: u16 = 1;

/// A port that the user has named for the program.
#[derive(Clone, Debug)]
pub struct Named {
    /// The name as the user wrote it.
    pub name: String,
    /// The port that the name means.
    pub device: Device,
    /// The port's address, and the prefix length of its network.
    address: Option<(Ipv4Addr, u32)>,
}

/// Returns the ports in [`VARIABLE`] and in the program's arguments.
pub fn named() -> &'static [Named] {
    static NAMED: OnceLock<Vec<Named>> = OnceLock::new();
    NAMED.get_or_init(|| {
        let variable = std::env::var(VARIABLE).unwrap_or_default();
        let mut all: Vec<Named> = variable.split(',').filter_map(parse).collect();
        let line = read_file(c"/proc/self/cmdline").unwrap_or_default();
        for argument in String::from_utf8_lossy(&line).split('\0') {
            let value = argument.rsplit('=').next().unwrap_or_default();
            let short = argument.get(2..).filter(|_| argument.starts_with('-'));
            let device = |name: &str| Device::parse(name).map(|device| (name.to_owned(), device));
            let found = [Some(argument), Some(value), short].into_iter().flatten().find_map(device);
            let Some((name, device)) = found else { continue };
            let address = all.iter().find(|known| known.device == device).and_then(|k| k.address);
            all.push(Named { name, device, address });
        }
        all
    })
}

fn parse(entry: &str) -> Option<Named> {
    let (name, address) = entry.split_once('=').unwrap_or((entry, ""));
    let (address, bits) = address.split_once('/').unwrap_or((address, "32"));
    let address = address.parse().ok().zip(bits.parse().ok().filter(|bits| *bits <= 32));
    Some(Named { name: name.to_owned(), device: Device::parse(name)?, address })
}

/// Returns the address of a port, and its network mask.
pub fn address(device: &Device) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let known = named().iter().find(|known| known.device == *device && known.address.is_some());
    let (address, bits) = known?.address?;
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    Some((address, Ipv4Addr::from(mask)))
}

/// Returns true for the requests that [`request`] handles.
pub fn is_request(number: c_ulong) -> bool {
    matches!(number, 0x8910..=0x8949)
}

/// Answers a request about an interface; `None` if the interface is not one of our ports.
pub fn request(number: c_ulong, at: *mut c_void) -> Option<Result<i32, Errno>> {
    let at = at.expose_provenance() as u64;
    let mut bytes = [0; REQUEST];
    Memory.read(at, &mut bytes).ok()?;
    let (name, value) = bytes.split_at_mut(NAME);
    if number == libc::SIOCGIFNAME {
        let index = i32::from_ne_bytes(value[..4].try_into().ok()?);
        let device = super::device(index)?;
        name.fill(0);
        let spelt = device.interface();
        name[..spelt.len()].copy_from_slice(spelt.as_bytes());
        return Some(Memory.write(at, &bytes).map(|()| 0));
    }
    let device = Device::parse_bytes(name)?;
    let answered = answer(number, &device, value);
    Some(answered.and_then(|()| Memory.write(at, &bytes)).map(|()| 0))
}

fn answer(number: c_ulong, device: &Device, value: &mut [u8]) -> Result<(), Errno> {
    let mut put = |bytes: &[u8]| value[..bytes.len()].copy_from_slice(bytes);
    match number {
        libc::SIOCGIFINDEX => put(&INTERFACES.lock().index(device).to_ne_bytes()),
        libc::SIOCGIFFLAGS => put(&FLAGS.to_ne_bytes()),
        libc::SIOCGIFMTU => put(&MTU.to_ne_bytes()),
        libc::SIOCGIFMETRIC => put(&0_i32.to_ne_bytes()),
        libc::SIOCGIFTXQLEN => put(&QUEUE.to_ne_bytes()),
        libc::SIOCGIFHWADDR => {
            put(&ETHERNET.to_ne_bytes());
            value[2..8].copy_from_slice(&device.address());
        }
        libc::SIOCGIFADDR | libc::SIOCGIFNETMASK | libc::SIOCGIFBRDADDR | libc::SIOCGIFDSTADDR => {
            let (address, mask) = address(device).ok_or(Errno::ADDRNOTAVAIL)?;
            let address = match number {
                libc::SIOCGIFNETMASK => mask,
                libc::SIOCGIFBRDADDR => address | !mask,
                _ => address,
            };
            value[..8].fill(0);
            value[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            value[4..8].copy_from_slice(&address.octets());
        }
        // Flags such as up or promiscuous are accepted without effect.
        libc::SIOCSIFFLAGS => (),
        _ => return Err(Errno::OPNOTSUPP),
    }
    Ok(())
}

/// Returns the number of the port with this interface name.
pub fn index(name: &[u8]) -> Option<u32> {
    let device = Device::parse_bytes(name)?;
    Some(INTERFACES.lock().index(&device))
}

/// Writes the name of the port with this number; returns false if there is none.
///
/// # Safety
/// `to` has [`NAME`] writable bytes.
pub unsafe fn name(index: c_int, to: *mut c_char) -> bool {
    let Some(device) = super::device(index) else { return false };
    let mut bytes = [0_u8; NAME];
    let spelt = device.interface();
    bytes[..spelt.len()].copy_from_slice(spelt.as_bytes());
    // SAFETY: the caller keeps this function's contract.
    unsafe { to.cast::<[u8; NAME]>().write(bytes) };
    true
}

/// Reads a file by direct system calls, because the C library's `open` is replaced.
fn read_file(path: &CStr) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|_| Errno::IO)?;
    Ok(bytes)
}

/// Makes a copy of `/proc/net/dev` that includes the ports that the program knows.
pub fn interfaces() -> Result<OwnedFd, Errno> {
    let mut text = read_file(LIST).unwrap_or_default();
    let mut names: Vec<String> = named().iter().map(|known| known.device.interface()).collect();
    names.extend(INTERFACES.lock().names().iter().map(Device::interface));
    names.sort();
    names.dedup();
    for name in names {
        text.extend_from_slice(format!("{name:>6}:{}\n", " 0".repeat(16)).as_bytes());
    }
    let file = rustix::fs::memfd_create("toklat-interfaces", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    let written = file.write_all(&text).and_then(|()| file.seek(SeekFrom::Start(0)));
    written.map_err(|_| Errno::IO)?;
    Ok(file.into())
}
