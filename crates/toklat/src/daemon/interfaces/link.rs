//! The state of an interface, from the kernel (rtnetlink(7)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::RecvFlags;

use super::super::netlink::{self, Attributes, Message, Messages, REQUEST, attribute, word};

/// `RTM_NEWLINK`, `RTM_GETLINK`.
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
/// `RTMGRP_LINK`.
const LINKS: u32 = 1;
/// Bytes of `struct ifinfomsg`.
const INFO: usize = 16;
/// `IFLA_*`.
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const LINK_INFO: u16 = 18;
const STATISTICS: u16 = 23;
const PROMISCUITY: u16 = 30;
const XDP: u16 = 43;
const XDP_ATTACHED: u16 = 2;
/// `XDP_ATTACHED_SKB`.
const GENERIC: u8 = 2;
const INFO_KIND: u16 = 1;
/// `IFF_UP`, `IFF_LOWER_UP`.
const UP: u32 = 1;
const LOWER_UP: u32 = 1 << 16;

/// An interface as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// The interface is enabled.
    pub up: bool,
    /// The interface has a carrier.
    pub carrier: bool,
    /// The interface's largest payload, in bytes.
    pub mtu: u32,
    /// How many users have asked to receive all frames.
    pub promiscuity: u32,
    /// Its address.
    pub mac: Option<[u8; 6]>,
    /// The kind of a virtual interface, such as veth.
    pub kind: Option<String>,
    /// A program is attached by generic XDP.
    pub generic_xdp: bool,
    /// The interface's counters, in the order of `struct rtnl_link_stats64`.
    pub statistics: Vec<u64>,
}

/// Asks for interfaces of one namespace.
#[derive(Debug)]
pub struct Asker {
    socket: OwnedFd,
}

/// A socket that is readable after a change of an interface of this thread's namespace.
///
/// # Errors
/// The kernel's error.
pub fn changes() -> io::Result<OwnedFd> {
    netlink::open(None, LINKS)
}

/// Reads and discards the messages about changes. The caller then asks for the
/// interface's state.
pub fn forget(changes: &OwnedFd) {
    let mut bytes = [0; 8192];
    while rustix::net::recv(changes, &mut bytes, RecvFlags::DONTWAIT).is_ok_and(|got| got.0 > 0) {}
}

impl Asker {
    /// Opens a socket that asks about the interfaces of this thread's namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: netlink::open(None, 0)? })
    }

    /// The interface called `ifname`; `None` if there is none.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ask(&self, ifname: &str) -> io::Result<Option<Link>> {
        forget(&self.socket);
        netlink::send(&self.socket, GET_LINK, REQUEST, &question(ifname))?;
        parse(&netlink::receive(&self.socket)?)
    }
}

/// Has the kernel make no IPv6 addresses for an interface, for which it would send frames.
///
/// # Errors
/// The kernel has no IPv6, or this process may not change interfaces.
pub fn make_no_addresses(index: u32) -> io::Result<()> {
    /// `IFLA_AF_SPEC`, `IFLA_INET6_ADDR_GEN_MODE`, `IN6_ADDR_GEN_MODE_NONE`.
    const OF_FAMILIES: u16 = 26;
    const GENERATION: u16 = 8;
    const NONE: u8 = 1;
    let socket = netlink::open(None, 0)?;
    let inet6 = attribute(libc::AF_INET6 as u16, &attribute(GENERATION, &[NONE]));
    let mut bytes = vec![0; INFO];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes.extend(attribute(OF_FAMILIES, &inet6));
    netlink::change(&socket, NEW_LINK, 0, &bytes)
}

/// The request for an interface by its name.
fn question(ifname: &str) -> Vec<u8> {
    let name = [ifname.as_bytes(), &[0]].concat();
    [vec![0; INFO], attribute(NAME, &name)].concat()
}

/// The interface in an answer.
fn parse(bytes: &[u8]) -> io::Result<Option<Link>> {
    let info = match Messages(bytes).next() {
        Some(Message::Data(NEW_LINK, info)) if info.len() >= INFO => info,
        Some(Message::Error(libc::ENODEV)) => return Ok(None),
        Some(Message::Error(error)) => return Err(io::Error::from_raw_os_error(error)),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let (index, flags) = (word(info, 4).unwrap_or(0), word(info, 8).unwrap_or(0));
    let (up, carrier) = (flags & UP != 0, flags & LOWER_UP != 0);
    let mut link = Link { index, up, carrier, ..Link::default() };
    for (kind, value) in Attributes(&info[INFO..]) {
        match kind {
            ADDRESS => link.mac = value.try_into().ok(),
            MTU => link.mtu = word(value, 0).unwrap_or(0),
            PROMISCUITY => link.promiscuity = word(value, 0).unwrap_or(0),
            LINK_INFO => {
                let named = Attributes(value).find(|(kind, _)| *kind == INFO_KIND);
                link.kind = named.map(|(_, name)| text(name));
            }
            XDP => {
                let attached = Attributes(value).find(|(kind, _)| *kind == XDP_ATTACHED);
                link.generic_xdp = attached.is_some_and(|(_, how)| how == [GENERIC]);
            }
            STATISTICS => {
                let words = value.chunks_exact(8);
                link.statistics =
                    words.filter_map(|w| Some(u64::from_ne_bytes(w.try_into().ok()?))).collect();
            }
            _ => {}
        }
    }
    Ok(Some(link))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_and_another_is_not() {
        let asker = Asker::open().unwrap();
        let lo = asker.ask("lo").unwrap().unwrap();
        assert!(lo.mtu > 1500 && lo.index > 0 && lo.statistics.len() > 8, "{lo:?}");
        assert_eq!(asker.ask("none-of-ours").unwrap(), None);
        assert_eq!(asker.ask("lo").unwrap().unwrap().index, lo.index, "answers do not mix");
    }

    #[test]
    fn answers_of_any_bytes_end() {
        let mut bytes = [0; 64];
        bytes[4..6].copy_from_slice(&NEW_LINK.to_ne_bytes());
        for (at, len) in (16..64).flat_map(|at| (0..=64).map(move |len| (at, len))) {
            bytes[0] = len;
            for byte in [0, 1, 3, 4, 5, 0xff] {
                bytes[at] = byte;
                (0..64).for_each(|len| drop(parse(&bytes[..len])));
            }
        }
    }
}
