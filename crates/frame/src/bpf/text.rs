//! Programs in decimal numbers, as `tcpdump -ddd` prints them and iptables' `bpf` match takes them.

use alloc::vec::Vec;
use core::str::FromStr;

use super::{Instruction, InvalidProgram, Program};

/// The reason why a text is no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseProgramError {
    /// It is not a number of instructions and as many of four numbers each.
    #[error("Not a filter as `tcpdump -ddd` prints it: a count, then CODE JT JF K each")]
    Format,
    /// The program cannot be run.
    #[error(transparent)]
    Invalid(#[from] InvalidProgram),
}

/// Instructions are separated by line ends or commas; the first is their number.
impl FromStr for Program {
    type Err = ParseProgramError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut lines = text.split(['\n', ',']).map(str::trim).filter(|line| !line.is_empty());
        let count = lines.next().and_then(|count| count.parse::<usize>().ok());
        let code: Option<Vec<_>> = lines.map(instruction).collect();
        let code = code.filter(|code| count == Some(code.len()));
        Ok(Self::new(code.ok_or(ParseProgramError::Format)?)?)
    }
}

fn instruction(line: &str) -> Option<Instruction> {
    let mut numbers = line.split_ascii_whitespace();
    let (code, jt, jf, k) = (numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?);
    let instruction = Instruction {
        code: code.parse().ok()?,
        jt: jt.parse().ok()?,
        jf: jf.parse().ok()?,
        k: k.parse().ok()?,
    };
    numbers.next().is_none().then_some(instruction)
}
