//! Filters in classic BPF, as libpcap compiles them and `SO_ATTACH_FILTER` takes them (Linux,
//! `Documentation/networking/filter.rst`; McCanne and Jacobson, 1993).
//!
//! A program is checked once. It only jumps forward, so a run ends after as many steps as it has
//! instructions at most. Each load is checked against the frame; one beyond its end refuses it.

mod check;
mod text;

use alloc::vec::Vec;

pub use check::InvalidProgram;
pub use text::ParseProgramError;

/// The maximum number of instructions (`BPF_MAXINSNS`).
pub const MAX_INSTRUCTIONS: usize = 4096;
/// The words of a program's memory (`BPF_MEMWORDS`).
const MEMORY: usize = 16;
/// Loads from here on are of what the system knows of a frame (`SKF_AD_OFF`).
const ANCILLARY: u32 = -0x1000_i32 as u32;

/// Operation codes: class, size, mode and operation (`linux/bpf_common.h`).
mod op {
    pub(super) const LD_W_ABS: u16 = 0x20;
    pub(super) const LD_H_ABS: u16 = 0x28;
    pub(super) const LD_B_ABS: u16 = 0x30;
    pub(super) const LD_W_IND: u16 = 0x40;
    pub(super) const LD_H_IND: u16 = 0x48;
    pub(super) const LD_B_IND: u16 = 0x50;
    pub(super) const LD_LEN: u16 = 0x80;
    pub(super) const LD_IMM: u16 = 0x00;
    pub(super) const LD_MEM: u16 = 0x60;
    pub(super) const LDX_IMM: u16 = 0x01;
    pub(super) const LDX_MEM: u16 = 0x61;
    pub(super) const LDX_LEN: u16 = 0x81;
    pub(super) const LDX_MSH: u16 = 0xb1;
    pub(super) const ST: u16 = 0x02;
    pub(super) const STX: u16 = 0x03;
    /// The class of arithmetic, and what of its codes is the operation.
    pub(super) const ALU: u16 = 0x04;
    pub(super) const ADD: u16 = 0x00;
    pub(super) const SUB: u16 = 0x10;
    pub(super) const MUL: u16 = 0x20;
    pub(super) const DIV: u16 = 0x30;
    pub(super) const OR: u16 = 0x40;
    pub(super) const AND: u16 = 0x50;
    pub(super) const LSH: u16 = 0x60;
    pub(super) const RSH: u16 = 0x70;
    pub(super) const NEG: u16 = 0x80;
    pub(super) const MOD: u16 = 0x90;
    pub(super) const XOR: u16 = 0xa0;
    /// The class of jumps, and their conditions.
    pub(super) const JMP: u16 = 0x05;
    pub(super) const JA: u16 = 0x00;
    pub(super) const JEQ: u16 = 0x10;
    pub(super) const JGT: u16 = 0x20;
    pub(super) const JGE: u16 = 0x30;
    pub(super) const JSET: u16 = 0x40;
    pub(super) const RET_K: u16 = 0x06;
    pub(super) const RET_A: u16 = 0x16;
    pub(super) const TAX: u16 = 0x07;
    pub(super) const TXA: u16 = 0x87;
    /// Set if the second operand is X, not the constant.
    pub(super) const SOURCE_X: u16 = 0x08;
    pub(super) const CLASS: u16 = 0x07;
    pub(super) const OPERATION: u16 = 0xf0;
}

/// An instruction (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// The instructions to skip if a condition is true.
    pub jt: u8,
    /// The instructions to skip if it is false.
    pub jf: u8,
    /// A constant: an operand, an offset, a number of instructions.
    pub k: u32,
}

impl Instruction {
    /// The instruction that these eight bytes are in memory.
    #[must_use]
    pub fn from_ne_bytes(bytes: [u8; 8]) -> Self {
        let [a, b, jt, jf, k @ ..] = bytes;
        Self { code: u16::from_ne_bytes([a, b]), jt, jf, k: u32::from_ne_bytes(k) }
    }
}

/// What a program may ask about a frame beyond its bytes (`SKF_AD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ancillary {
    /// `SKF_AD_PROTOCOL`: the frame's EtherType.
    Protocol,
    /// `SKF_AD_PKTTYPE`: [`PacketKind`]. libpcap's `inbound` and `outbound` ask for it.
    Kind,
    /// `SKF_AD_IFINDEX`: the number of the interface. libpcap's `ifindex` asks for it.
    Interface,
    /// `SKF_AD_HATYPE`: the interface's link type, 1 for Ethernet.
    HardwareType,
    /// `SKF_AD_VLAN_TAG`, `SKF_AD_VLAN_TAG_PRESENT`, `SKF_AD_VLAN_TPID`: a tag beside the frame.
    Vlan,
}

/// Whom a frame is for (`PACKET_HOST` and the like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PacketKind {
    /// For the receiver.
    Host = 0,
    /// For all.
    Broadcast = 1,
    /// For a group.
    Multicast = 2,
    /// For another station.
    Other = 3,
    /// Sent by the port.
    Outgoing = 4,
}

/// What a program looks at.
pub trait Packet {
    /// The bytes of the frame.
    fn len(&self) -> u32;

    /// True without bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `N` bytes at an offset, if all are there.
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]>;

    /// What is known of the frame besides.
    fn ancillary(&self, what: Ancillary) -> u32;
}

/// A private copy of a frame, of which nothing else is known.
impl Packet for [u8] {
    fn len(&self) -> u32 {
        self.len() as u32
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.get(at..)?.first_chunk().copied()
    }

    fn ancillary(&self, what: Ancillary) -> u32 {
        ancillary(self, what, 0, false)
    }
}

/// The usual answers: for a frame of interface `interface`, which its owner `sent` or received.
/// Tags stay in frames here, so there is none beside them.
pub fn ancillary<P: Packet + ?Sized>(
    frame: &P,
    what: Ancillary,
    interface: u32,
    sent: bool,
) -> u32 {
    match what {
        Ancillary::Protocol => frame.bytes(12).map_or(0, u16::from_be_bytes).into(),
        Ancillary::Kind if sent => PacketKind::Outgoing as u32,
        Ancillary::Kind => match frame.bytes::<6>(0) {
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => PacketKind::Broadcast as u32,
            Some([first, ..]) if first & 1 != 0 => PacketKind::Multicast as u32,
            _ => PacketKind::Host as u32,
        },
        Ancillary::Interface => interface,
        Ancillary::HardwareType => 1,
        Ancillary::Vlan => 0,
    }
}

/// A program that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(Vec<Instruction>);

/// The registers of a run.
struct Machine<'p, P: ?Sized> {
    packet: &'p P,
    a: u32,
    x: u32,
    memory: [u32; MEMORY],
}

/// What follows an instruction: instructions to skip, or the result.
enum Step {
    Skip(usize),
    Return(u32),
}

impl Program {
    /// Checks a program.
    ///
    /// # Errors
    /// The program is empty or too long, does not end, or has an instruction that is not known or
    /// cannot be answered here.
    pub fn new(code: Vec<Instruction>) -> Result<Self, InvalidProgram> {
        check::check(&code)?;
        Ok(Self(code))
    }

    /// Its instructions.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.0
    }

    /// How many bytes of the frame are wanted: 0 to refuse it.
    #[must_use]
    pub fn run<P: Packet + ?Sized>(&self, packet: &P) -> u32 {
        let mut machine = Machine { packet, a: 0, x: 0, memory: [0; MEMORY] };
        let mut at = 0;
        while let Some(instruction) = self.0.get(at) {
            match machine.step(*instruction) {
                Some(Step::Skip(more)) => at += 1 + more,
                Some(Step::Return(kept)) => return kept,
                None => return 0,
            }
        }
        0
    }

    /// True if the frame is wanted.
    #[must_use]
    pub fn admits<P: Packet + ?Sized>(&self, packet: &P) -> bool {
        self.run(packet) != 0
    }
}

impl<P: Packet + ?Sized> Machine<'_, P> {
    /// Runs an instruction; `None` if it looks beyond the frame or divides by zero.
    fn step(&mut self, instruction: Instruction) -> Option<Step> {
        let Instruction { code, jt, jf, k } = instruction;
        let operand = if code & op::SOURCE_X == 0 { k } else { self.x };
        match code & op::CLASS {
            op::ALU => self.a = self.calculate(code & op::OPERATION, operand)?,
            op::JMP if code & op::OPERATION == op::JA => return Some(Step::Skip(k as usize)),
            op::JMP => {
                let skip = if self.compare(code & op::OPERATION, operand) { jt } else { jf };
                return Some(Step::Skip(skip.into()));
            }
            _ => match code {
                op::RET_K => return Some(Step::Return(k)),
                op::RET_A => return Some(Step::Return(self.a)),
                op::TAX => self.x = self.a,
                op::TXA => self.a = self.x,
                op::ST => *self.memory.get_mut(k as usize)? = self.a,
                op::STX => *self.memory.get_mut(k as usize)? = self.x,
                op::LDX_IMM => self.x = k,
                op::LDX_MEM => self.x = *self.memory.get(k as usize)?,
                op::LDX_LEN => self.x = self.packet.len(),
                op::LDX_MSH => self.x = (self.load::<1>(k)? & 0xf) * 4,
                _ => self.a = self.loaded(code, k)?,
            },
        }
        Some(Step::Skip(0))
    }

    /// What an instruction loads into A.
    fn loaded(&self, code: u16, k: u32) -> Option<u32> {
        let indirect = k.wrapping_add(self.x);
        match code {
            op::LD_IMM => Some(k),
            op::LD_MEM => self.memory.get(k as usize).copied(),
            op::LD_LEN => Some(self.packet.len()),
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS if k >= ANCILLARY => {
                Some(self.packet.ancillary(check::word(k)?.ok()?))
            }
            op::LD_W_ABS => self.load::<4>(k),
            op::LD_H_ABS => self.load::<2>(k),
            op::LD_B_ABS => self.load::<1>(k),
            op::LD_W_IND => self.load::<4>(indirect),
            op::LD_H_IND => self.load::<2>(indirect),
            op::LD_B_IND => self.load::<1>(indirect),
            _ => None,
        }
    }

    /// A number of `N` bytes of the frame.
    fn load<const N: usize>(&self, at: u32) -> Option<u32> {
        let bytes = self.packet.bytes::<N>(at as usize)?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    fn calculate(&self, operation: u16, by: u32) -> Option<u32> {
        let a = self.a;
        match operation {
            op::ADD => Some(a.wrapping_add(by)),
            op::SUB => Some(a.wrapping_sub(by)),
            op::MUL => Some(a.wrapping_mul(by)),
            op::DIV => a.checked_div(by),
            op::MOD => a.checked_rem(by),
            op::OR => Some(a | by),
            op::AND => Some(a & by),
            op::XOR => Some(a ^ by),
            op::LSH => Some(a.wrapping_shl(by)),
            op::RSH => Some(a.wrapping_shr(by)),
            op::NEG => Some(a.wrapping_neg()),
            _ => None,
        }
    }

    fn compare(&self, condition: u16, with: u32) -> bool {
        match condition {
            op::JEQ => self.a == with,
            op::JGT => self.a > with,
            op::JGE => self.a >= with,
            op::JSET => self.a & with != 0,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
