//! Which programs are run, as in Linux's `bpf_check_classic`.

use super::{Ancillary, Instruction, MAX_INSTRUCTIONS, MEMORY, op};

/// Loads from here on are relative to the network header (`SKF_NET_OFF`) or the link's.
const LINK: u32 = -0x20_0000_i32 as u32;
const NETWORK: u32 = -0x10_0000_i32 as u32;

/// The reason why a program is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidProgram {
    /// It has no instruction or more than [`MAX_INSTRUCTIONS`].
    #[error("A filter has 1 to {MAX_INSTRUCTIONS} instructions, not {0}")]
    Length(usize),
    /// It may run beyond its last instruction.
    #[error(
        "Instruction {0} of the filter jumps beyond its end, or is its end and returns nothing"
    )]
    End(usize),
    /// An instruction is not known, or its constant cannot be.
    #[error("Instruction {at} of the filter cannot be run (code {code:#04x})")]
    Unknown {
        /// The number of the instruction, from 0.
        at: usize,
        /// Its code.
        code: u16,
    },
    /// It asks for what is not known here.
    #[error("The filter asks for {word} (instruction {at}), which is not known of a port's frames")]
    Word {
        /// The number of the instruction, from 0.
        at: usize,
        /// What it asks for, by the kernel's name.
        word: &'static str,
    },
}

/// What a load of the system's knowledge asks for: `None` for the frame's bytes, an error with the
/// kernel's name for what cannot be answered.
pub(super) fn word(k: u32) -> Option<Result<Ancillary, &'static str>> {
    let known = match k.checked_sub(super::ANCILLARY) {
        Some(word) => word,
        None if k >= NETWORK => return Some(Err("SKF_NET_OFF")),
        None if k >= LINK => return Some(Err("SKF_LL_OFF")),
        None => return None,
    };
    Some(match known {
        0 => Ok(Ancillary::Protocol),
        4 => Ok(Ancillary::Kind),
        8 => Ok(Ancillary::Interface),
        12 => Err("SKF_AD_NLATTR"),
        16 => Err("SKF_AD_NLATTR_NEST"),
        20 => Err("SKF_AD_MARK"),
        24 => Err("SKF_AD_QUEUE"),
        28 => Ok(Ancillary::HardwareType),
        32 => Err("SKF_AD_RXHASH"),
        36 => Err("SKF_AD_CPU"),
        40 => Err("SKF_AD_ALU_XOR_X"),
        44 | 48 | 60 => Ok(Ancillary::Vlan),
        52 => Err("SKF_AD_PAY_OFFSET"),
        56 => Err("SKF_AD_RANDOM"),
        _ => Err("an unknown SKF_AD"),
    })
}

/// Checks each instruction, and that the program ends.
pub(super) fn check(code: &[Instruction]) -> Result<(), InvalidProgram> {
    if !(1..=MAX_INSTRUCTIONS).contains(&code.len()) {
        return Err(InvalidProgram::Length(code.len()));
    }
    for (at, instruction) in code.iter().enumerate() {
        if !is_known(*instruction) {
            return Err(InvalidProgram::Unknown { at, code: instruction.code });
        }
        let next = at + 1 + furthest(*instruction);
        if next >= code.len() && !matches!(instruction.code, op::RET_K | op::RET_A) {
            return Err(InvalidProgram::End(at));
        }
        if let Some(word) = refused(*instruction) {
            return Err(InvalidProgram::Word { at, word });
        }
    }
    Ok(())
}

/// The most instructions that one may skip.
fn furthest(Instruction { code, jt, jf, k }: Instruction) -> usize {
    match code & op::CLASS {
        op::JMP if code & op::OPERATION == op::JA => k as usize,
        op::JMP => jt.max(jf).into(),
        _ => 0,
    }
}

/// What an instruction asks for and does not get.
fn refused(Instruction { code, k, .. }: Instruction) -> Option<&'static str> {
    match code {
        op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => word(k)?.err(),
        // These know the bytes of the frame alone.
        op::LD_W_IND | op::LD_H_IND | op::LD_B_IND | op::LDX_MSH => {
            word(k).map(|word| word.err().unwrap_or("SKF_AD_OFF at an index"))
        }
        _ => None,
    }
}

fn is_known(Instruction { code, k, .. }: Instruction) -> bool {
    let by_x = code & op::SOURCE_X != 0;
    match code & op::CLASS {
        // Bits above are not of any code.
        _ if code > 0xff => false,
        op::ALU => match code & op::OPERATION {
            op::ADD | op::SUB | op::MUL | op::OR | op::AND | op::XOR => true,
            op::DIV | op::MOD => by_x || k != 0,
            op::LSH | op::RSH => by_x || k < 32,
            op::NEG => !by_x,
            _ => false,
        },
        op::JMP => match code & op::OPERATION {
            op::JA => !by_x,
            op::JEQ | op::JGT | op::JGE | op::JSET => true,
            _ => false,
        },
        _ => match code {
            op::LD_MEM | op::LDX_MEM | op::ST | op::STX => (k as usize) < MEMORY,
            op::LD_W_ABS | op::LD_H_ABS | op::LD_B_ABS => true,
            op::LD_W_IND | op::LD_H_IND | op::LD_B_IND => true,
            op::LD_LEN | op::LD_IMM | op::LDX_IMM | op::LDX_LEN | op::LDX_MSH => true,
            op::RET_K | op::RET_A | op::TAX | op::TXA => true,
            _ => false,
        },
    }
}
