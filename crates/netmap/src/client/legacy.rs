//! `NIOCREGIF` and `NIOCGINFO`, the interface before API 14: converted to requests of the new one
//! (`net/netmap_legacy.h`).

use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::UserMemory;
use crate::abi::{
    API, Legacy, PortHeader, PortInfo, Register, ValeAttach, ValeList, ValeNewif, ValePolling,
    flags, mode, name_of, polling, reqtype, text,
};
use crate::wire::{Answer, Ask, kind};

/// `nr_cmd`.
mod cmd {
    pub(super) const REGISTER: u16 = 0;
    pub(super) const ATTACH: u16 = 1;
    pub(super) const DETACH: u16 = 2;
    pub(super) const LIST: u16 = 4;
    pub(super) const HEADER_SET: u16 = 5;
    pub(super) const NEWIF: u16 = 6;
    pub(super) const DELIF: u16 = 7;
    pub(super) const POLLING_ON: u16 = 10;
    pub(super) const POLLING_OFF: u16 = 11;
    pub(super) const HEADER_GET: u16 = 12;
}

/// Bits of `nr_ringid` and `nr_flags`.
mod bits {
    pub(super) const HW_RING: u16 = 0x4000;
    pub(super) const SW_RING: u16 = 0x2000;
    pub(super) const NO_TX_POLL: u16 = 0x1000;
    pub(super) const DO_RX_POLL: u16 = 0x8000;
    pub(super) const RING: u16 = 0x0fff;
    pub(super) const MODE: u32 = 0xf;
}

/// A function that asks the daemon.
type Asker<'a> = &'a mut dyn FnMut(&Ask) -> Result<Answer, Errno>;

/// `NIOCREGIF`.
///
/// # Errors
/// The error number for the program.
pub fn legacy_register(
    user: &dyn UserMemory,
    at: u64,
    mut ask: impl FnMut(&Ask) -> Result<Answer, Errno>,
) -> Result<(), Errno> {
    with_request(user, at, |request| match request.cmd {
        cmd::REGISTER => register(request, &mut ask),
        cmd::ATTACH => attach(request, &mut ask),
        cmd::NEWIF => newif(request, &mut ask),
        cmd::HEADER_SET | cmd::HEADER_GET => port_header(request, &mut ask),
        cmd::DETACH => call(request, reqtype::VALE_DETACH, &[0_u8; 0], &mut ask).map(drop),
        cmd::DELIF => call(request, reqtype::VALE_DELIF, &[0_u8; 0], &mut ask).map(drop),
        cmd::POLLING_ON | cmd::POLLING_OFF => polling(request, &mut ask),
        _ => Err(Errno::INVAL),
    })
}

/// `NIOCGINFO`.
///
/// # Errors
/// The error number for the program.
pub fn legacy_info(
    user: &dyn UserMemory,
    at: u64,
    mut ask: impl FnMut(&Ask) -> Result<Answer, Errno>,
) -> Result<(), Errno> {
    with_request(user, at, |request| match request.cmd {
        cmd::LIST => list(request, &mut ask),
        _ => info(request, &mut ask),
    })
}

/// Copies a request in, and out again on success and on failure.
fn with_request(
    user: &dyn UserMemory,
    at: u64,
    carry_out: impl FnOnce(&mut Legacy) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if at == 0 {
        return Err(Errno::INVAL);
    }
    let mut bytes = [0; size_of::<Legacy>()];
    user.read(at, &mut bytes)?;
    let mut request = Legacy::read_from_bytes(&bytes).map_err(|_| Errno::INVAL)?;
    request.name[15] = 0;
    let done = match request.version < u32::from(API) {
        true => Err(Errno::INVAL),
        false => carry_out(&mut request),
    };
    user.write(at, request.as_bytes())?;
    done
}

/// Asks the daemon, with the request's name and this body.
fn call(
    request: &Legacy,
    reqtype: u16,
    body: &(impl IntoBytes + Immutable + ?Sized),
    ask: Asker<'_>,
) -> Result<Answer, Errno> {
    call_named(text(&request.name).ok_or(Errno::INVAL)?, reqtype, body, ask)
}

fn call_named(
    name: &str,
    reqtype: u16,
    body: &(impl IntoBytes + Immutable + ?Sized),
    ask: Asker<'_>,
) -> Result<Answer, Errno> {
    let mut question = Ask::new(kind::CONTROL, reqtype);
    question.name = name_of(name);
    let body = body.as_bytes();
    question.body[..body.len()].copy_from_slice(body);
    let answer = ask(&question)?;
    match answer.status {
        0 => Ok(answer),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

fn body<T: FromBytes>(answer: &Answer) -> Result<T, Errno> {
    T::read_from_prefix(&answer.body).map(|(body, _)| body).map_err(|_| Errno::PROTO)
}

/// Returns mode, ring and flags of the new interface, and the name, to which a pipe's number is
/// appended.
fn modern(request: &Legacy) -> Result<(Register, String), Errno> {
    let mut name = text(&request.name).ok_or(Errno::INVAL)?.to_owned();
    let mut wanted = Register {
        tx_slots: request.tx_slots,
        rx_slots: request.rx_slots,
        tx_rings: request.tx_rings,
        rx_rings: request.rx_rings,
        mem_id: request.arg2,
        ringid: request.ringid & bits::RING,
        mode: request.flags & bits::MODE,
        extra_bufs: request.arg3,
        flags: u64::from(request.flags & !bits::MODE),
        ..Register::default()
    };
    if request.ringid & bits::NO_TX_POLL != 0 {
        wanted.flags |= flags::NO_TX_POLL;
    }
    if request.ringid & bits::DO_RX_POLL != 0 {
        wanted.flags |= flags::DO_RX_POLL;
    }
    wanted.mode = match wanted.mode {
        0 if request.ringid & bits::SW_RING != 0 => mode::SW,
        0 if request.ringid & bits::HW_RING != 0 => mode::ONE_NIC,
        0 => mode::ALL_NIC,
        mode => mode,
    };
    if matches!(wanted.mode, mode::PIPE_MASTER | mode::PIPE_SLAVE) {
        name.push(if wanted.mode == mode::PIPE_MASTER { '{' } else { '}' });
        name.push_str(&wanted.ringid.to_string());
        (wanted.mode, wanted.ringid) = (mode::ALL_NIC, 0);
    }
    Ok((wanted, name))
}

fn register(request: &mut Legacy, ask: Asker<'_>) -> Result<(), Errno> {
    let (wanted, name) = modern(request)?;
    let got: Register = body(&call_named(&name, reqtype::REGISTER, &wanted, ask)?)?;
    (request.offset, request.memsize) = (got.offset as u32, got.memsize as u32);
    (request.tx_slots, request.rx_slots) = (got.tx_slots, got.rx_slots);
    (request.tx_rings, request.rx_rings) = (got.tx_rings, got.rx_rings);
    (request.arg2, request.arg3) = (got.mem_id, got.extra_bufs);
    Ok(())
}

fn attach(request: &mut Legacy, ask: Asker<'_>) -> Result<(), Errno> {
    let (mut wanted, _) = modern(request)?;
    wanted.mode = if request.arg1 & 1 != 0 { mode::NIC_SW } else { mode::ALL_NIC };
    (wanted.ringid, wanted.flags) = (0, 0);
    let attach = ValeAttach { register: wanted, port_index: 0, pad: 0 };
    call(request, reqtype::VALE_ATTACH, &attach, ask).map(|_| ())
}

fn newif(request: &mut Legacy, ask: Asker<'_>) -> Result<(), Errno> {
    let Legacy { tx_slots, rx_slots, tx_rings, rx_rings, arg2, .. } = *request;
    let wanted = ValeNewif { tx_slots, rx_slots, tx_rings, rx_rings, mem_id: arg2, pad: 0 };
    let got: ValeNewif = body(&call(request, reqtype::VALE_NEWIF, &wanted, ask)?)?;
    (request.tx_slots, request.rx_slots) = (got.tx_slots, got.rx_slots);
    (request.tx_rings, request.rx_rings) = (got.tx_rings, got.rx_rings);
    request.arg2 = got.mem_id;
    Ok(())
}

fn polling(request: &Legacy, ask: Asker<'_>) -> Result<(), Errno> {
    let mode = match request.flags & bits::MODE {
        mode::ONE_NIC => polling::MULTI_CPU,
        mode::ALL_NIC => polling::SINGLE_CPU,
        _ => 0,
    };
    let first_cpu = u32::from(request.ringid & bits::RING);
    let wanted = ValePolling { mode, first_cpu, cpus: request.arg1.into(), pad: 0 };
    let reqtype = match request.cmd {
        cmd::POLLING_ON => reqtype::VALE_POLLING_ENABLE,
        _ => reqtype::VALE_POLLING_DISABLE,
    };
    call(request, reqtype, &wanted, ask).map(drop)
}

fn port_header(request: &mut Legacy, ask: Asker<'_>) -> Result<(), Errno> {
    let header = PortHeader { len: request.arg1.into(), pad: 0 };
    if request.cmd == cmd::HEADER_SET {
        return call(request, reqtype::PORT_HDR_SET, &header, ask).map(|_| ());
    }
    let got: PortHeader = body(&call(request, reqtype::PORT_HDR_GET, &header, ask)?)?;
    request.arg1 = got.len as u16;
    Ok(())
}

fn list(request: &mut Legacy, ask: Asker<'_>) -> Result<(), Errno> {
    let wanted = ValeList { bridge: request.arg1, pad: 0, port: request.arg2.into() };
    let answer = call(request, reqtype::VALE_LIST, &wanted, ask)?;
    let got: ValeList = body(&answer)?;
    (request.arg1, request.arg2) = (got.bridge, got.port as u16);
    request.name.copy_from_slice(&answer.name[..16]);
    request.name[15] = 0;
    Ok(())
}

fn info(request: &mut Legacy, ask: Asker<'_>) -> Result<(), Errno> {
    let wanted = PortInfo {
        tx_slots: request.tx_slots,
        rx_slots: request.rx_slots,
        tx_rings: request.tx_rings,
        rx_rings: request.rx_rings,
        mem_id: request.arg2,
        ..PortInfo::new_zeroed()
    };
    let got: PortInfo = body(&call(request, reqtype::PORT_INFO_GET, &wanted, ask)?)?;
    request.memsize = got.memsize as u32;
    (request.tx_slots, request.rx_slots) = (got.tx_slots, got.rx_slots);
    (request.tx_rings, request.rx_rings) = (got.tx_rings, got.rx_rings);
    request.arg2 = got.mem_id;
    Ok(())
}
