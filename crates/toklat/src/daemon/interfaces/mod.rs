//! Network interfaces of the host that are ports. The supervisor opens what reaches them; the data
//! process only polls and sends.

mod bpf;
pub mod clsact;
mod ethtool;
pub mod host;
mod link;
mod packet;
pub(super) mod tun;
pub mod watch;
pub mod watched;
mod xdp;

use std::io;
use std::os::fd::OwnedFd;

use ::host::part::Part;
use dataplane::config::{Engine, InterfaceConfig};
use topology::{Interface, InterfaceEngine};

use self::link::{Asker, Link};
use self::xdp::Card;
use crate::api::{ApiError, ErrorCode, system};

/// Opens an interface, in this thread's namespace. Returns what its data process gets.
///
/// # Errors
/// There is no such interface, or the daemon may not use it so.
pub fn open(settings: &Interface) -> Result<(InterfaceConfig, Vec<OwnedFd>), ApiError> {
    let ifname = &settings.ifname;
    let link = find(ifname)?;
    let (engine, fds, queues, why) = match settings.engine {
        InterfaceEngine::Packet => by_packets(settings, &link, "as configured".into())?,
        InterfaceEngine::Xdp => {
            let opened = by_xdp(ifname, &link).map_err(|why| refused(ifname, &why))?;
            let zero_copy = if is_zero_copy(&opened.0) { "zero-copy" } else { "the kernel copies" };
            (opened.0, opened.1, opened.2, format!("as configured; {zero_copy}"))
        }
        InterfaceEngine::Auto => choose(settings, &link)?,
    };
    let (ifname, netns) = (ifname.clone(), settings.netns.clone());
    Ok((InterfaceConfig { ifname, netns, index: link.index, queues, engine, why }, fds))
}

/// The way to receive and send frames, its descriptors, the number of queues, and the reason for
/// the choice.
type Chosen = (Engine, Vec<OwnedFd>, u16, String);

/// AF_XDP where the card reads and writes our memory itself; else packet sockets, because they
/// carry offloads.
fn choose(settings: &Interface, link: &Link) -> Result<Chosen, ApiError> {
    const ELSE: &str = "packet sockets carry TCP in packets of 64 KiB";
    // A program on a virtual interface would only take offloads from its other end.
    if let Some(kind) = &link.kind {
        return by_packets(settings, link, format!("{kind} has no zero-copy; {ELSE}"));
    }
    match by_xdp(&settings.ifname, link) {
        Ok((engine, fds, queues)) if is_zero_copy(&engine) => {
            Ok((engine, fds, queues, "the card has zero-copy".into()))
        }
        Ok(_) => by_packets(settings, link, format!("the card has no zero-copy; {ELSE}")),
        Err(why) => by_packets(settings, link, format!("AF_XDP: {why}; {ELSE}")),
    }
}

fn by_packets(settings: &Interface, link: &Link, why: String) -> Result<Chosen, ApiError> {
    let failed = |e| privileged(&format!("Cannot use interface {}", settings.ifname), e);
    let (engine, fds) = packet::open(link.index, settings.queues).map_err(failed)?;
    Ok((engine, fds, settings.queues, why))
}

/// Opens all receive queues by AF_XDP, or returns the reason why it cannot.
fn by_xdp(ifname: &str, link: &Link) -> Result<(Engine, Vec<OwnedFd>, u16), String> {
    let card = card(ifname, link)?;
    // Generic XDP would take what a switch sends to the host behind the interface.
    let is_taken = Asker::open().is_ok_and(|asker| host::is_taken(&asker, ifname, link.index));
    let opened = xdp::open(card, is_taken).map_err(|error| {
        let why = xdp::refusal(&error);
        if is_taken { format!("{why} (natively, because the host's end is a port)") } else { why }
    })?;
    Ok((Engine::Xdp(Box::new(opened.umem)), opened.fds, card.queues))
}

/// Returns what AF_XDP needs to know about an interface, or the reason why it cannot be used.
fn card(ifname: &str, link: &Link) -> Result<Card, String> {
    let queues = xdp::receive_queues(ifname);
    let most = u32::from(Interface::MAX_QUEUES);
    if queues > most {
        let remedy = format!("ethtool -L {ifname} combined {most}");
        return Err(format!("it has {queues} receive queues, and {most} are served ({remedy})"));
    }
    let chunk_len = xdp::chunk_len(link.mtu)
        .ok_or_else(|| format!("its MTU of {} is more than a page holds", link.mtu))?;
    Ok(Card { index: link.index, queues: queues as u16, chunk_len })
}

/// True if packets of `mtu` bytes fit what the data process has of the interface.
pub fn fits(engine: &Engine, mtu: u16) -> bool {
    match engine {
        Engine::Packet(_) => true,
        Engine::Xdp(umem) => xdp::chunk_len(mtu.into()).is_some_and(|len| len <= umem.chunk_len),
    }
}

/// True if AF_XDP has chunks for packets of `mtu` bytes.
#[must_use]
pub fn fits_xdp(mtu: u16) -> bool {
    xdp::chunk_len(mtu.into()).is_some()
}

/// Returns true if this thread's namespace has an interface of this name.
#[must_use]
pub fn exists(ifname: &str) -> bool {
    find(ifname).is_ok()
}

/// Returns true if this thread's namespace has an interface of this name that is no tap.
#[must_use]
pub fn is_no_tap(ifname: &str) -> bool {
    find(ifname).is_ok_and(|link| link.kind.as_deref() != Some("tun"))
}

/// The MTU of an interface of this thread's namespace.
///
/// # Errors
/// There is no such interface, or it cannot be seen.
pub fn mtu(ifname: &str) -> Result<u32, ApiError> {
    Ok(find(ifname)?.mtu)
}

fn is_zero_copy(engine: &Engine) -> bool {
    matches!(engine, Engine::Xdp(umem) if umem.zero_copy)
}

/// Opens the AF_XDP sockets of an interface again, for the next data process. `kept` are the map
/// and the link, the last descriptors of the old one.
///
/// # Errors
/// The interface is gone, or the kernel refuses.
pub fn open_again(
    config: &InterfaceConfig,
    kept: Vec<OwnedFd>,
) -> Result<(InterfaceConfig, Vec<OwnedFd>), ApiError> {
    let ifname = &config.ifname;
    let link = find(ifname)?;
    let gone = || refused(ifname, "it is another interface by now");
    let mut kept = kept.into_iter();
    let (Some(map), Some(attached)) = (kept.next(), kept.next()) else { return Err(gone()) };
    if link.index != config.index {
        return Err(gone());
    }
    let card = card(ifname, &link).map_err(|why| refused(ifname, &why))?;
    let card = Card { queues: config.queues, ..card };
    let opened = xdp::open_again(card, map, attached);
    let opened = opened.map_err(|error| refused(ifname, &xdp::refusal(&error)))?;
    let engine = Engine::Xdp(Box::new(opened.umem));
    Ok((InterfaceConfig { engine, ..config.clone() }, opened.fds))
}

/// The interface called `ifname`.
fn find(ifname: &str) -> Result<Link, ApiError> {
    let failed = |e| system(&format!("Cannot see interface {ifname}"), e);
    let found = Asker::open().and_then(|asker| asker.ask(ifname)).map_err(failed)?;
    found.ok_or_else(|| {
        let reason = format!("There is no interface {ifname}");
        let remedy = "see `ip link`; `netns` names the namespace it is in";
        ApiError::new(ErrorCode::NotFound, reason, remedy)
    })
}

fn refused(ifname: &str, why: &str) -> ApiError {
    let reason = format!("Cannot use interface {ifname} by AF_XDP: {why}");
    ApiError::new(ErrorCode::System, reason, "leave --engine to auto, or say packet")
}

/// The reason why an interface cannot be used, and the remedy.
fn privileged(what: &str, error: io::Error) -> ApiError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::EAFNOSUPPORT) => ApiError::new(
            ErrorCode::NeedsPrivilege,
            format!("{what}: {error}"),
            Part::Interfaces.remedy(
                &error,
                "run the daemon as root or give it CAP_NET_RAW (systemd: AmbientCapabilities=)",
            ),
        ),
        _ => system(what, error),
    }
}
