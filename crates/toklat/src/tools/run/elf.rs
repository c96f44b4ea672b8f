//! How a program is linked: what its ELF headers say.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// What kind of program a file is, as far as loading a library matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linking {
    /// Libraries of this machine's kind.
    Dynamic,
    /// Nothing.
    Static,
    /// Libraries for another C library.
    Musl,
    /// Libraries of another machine's kind.
    OtherMachine,
    /// A script, or another file that names its interpreter.
    NoElf,
}

/// Bytes of the header of a 64-bit file.
const HEADER: usize = 64;
/// Bytes of a program header.
const ENTRY: usize = 56;
/// A program header that names the loader.
const INTERPRETER: u32 = 3;
/// A 64-bit, little-endian file.
const THIS_CLASS: [u8; 2] = [2, 1];
/// The ELF number of this machine's architecture.
#[cfg(target_arch = "x86_64")]
const THIS_MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const THIS_MACHINE: u16 = 183;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// How a program is linked.
pub fn linking(file: &File) -> Linking {
    let mut header = [0; HEADER];
    if file.read_exact_at(&mut header, 0).is_err() || header[..4] != *b"\x7fELF" {
        return Linking::NoElf;
    }
    if header[4..6] != THIS_CLASS || u16_at(&header, 18) != THIS_MACHINE {
        return Linking::OtherMachine;
    }
    let (at, count) = (u64_at(&header, 32), u16_at(&header, 56));
    for number in 0..u64::from(count) {
        let mut entry = [0; ENTRY];
        let place = at.saturating_add(number * ENTRY as u64);
        if file.read_exact_at(&mut entry, place).is_err() {
            break;
        }
        let kind = u32::from(u16_at(&entry, 0)) | u32::from(u16_at(&entry, 2)) << 16;
        if kind == INTERPRETER {
            return loader(file, u64_at(&entry, 8), u64_at(&entry, 32));
        }
    }
    Linking::Static
}

fn loader(file: &File, at: u64, len: u64) -> Linking {
    let mut name = vec![0; len.min(256) as usize];
    let read = file.read_exact_at(&mut name, at);
    let is_musl = read.is_ok() && String::from_utf8_lossy(&name).contains("/ld-musl");
    if is_musl { Linking::Musl } else { Linking::Dynamic }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linking_of(bytes: &[u8]) -> Linking {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        linking(&file)
    }

    /// A file with one program header of this kind, and a loader's name.
    fn program(kind: u8, loader: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + ENTRY];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&THIS_MACHINE.to_le_bytes());
        (bytes[32], bytes[56]) = (HEADER as u8, 1);
        let entry = &mut bytes[HEADER..];
        (entry[0], entry[8], entry[32]) = (kind, (HEADER + ENTRY) as u8, loader.len() as u8);
        bytes.extend_from_slice(loader);
        bytes
    }

    #[test]
    fn programs_tell_how_they_are_linked() {
        assert_eq!(linking_of(b"#!/bin/sh\n"), Linking::NoElf);
        assert_eq!(linking_of(&program(3, b"/lib64/ld-linux-x86-64.so.2\0")), Linking::Dynamic);
        assert_eq!(linking_of(&program(3, b"/lib/ld-musl-x86_64.so.1\0")), Linking::Musl);
        assert_eq!(linking_of(&program(1, b"")), Linking::Static);
        let mut other = program(3, b"/lib/ld.so\0");
        other[4] = 1;
        assert_eq!(linking_of(&other), Linking::OtherMachine);
        let mut cut = program(3, b"");
        cut.truncate(HEADER + 3);
        assert_eq!(linking_of(&cut), Linking::Static, "no header can be read");
    }

    #[test]
    fn this_test_is_a_program_of_this_machine() {
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(linking(&own), Linking::Dynamic);
    }
}
