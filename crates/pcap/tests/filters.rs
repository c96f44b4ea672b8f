//! The interpreter beside the kernel's: the same programs, the same frames.
#![allow(unsafe_code, reason = "the kernel takes a program by a system call of libc")]

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use frame::bpf::{Instruction, Program};

/// How many bytes of a frame the kernel's interpreter keeps; `None` if it refuses the program.
fn kernel(code: &[Instruction], frame: &[u8]) -> Option<usize> {
    let (near, far) = UnixDatagram::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let sock_filter =
        |i: &Instruction| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k };
    let mut code: Vec<_> = code.iter().map(sock_filter).collect();
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    let (at, len) = ((&raw const program).cast(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: a program with this many instructions, which lives as long as the call.
    let done = unsafe { libc::setsockopt(near.as_raw_fd(), level, option, at, len) };
    (done == 0).then(|| {
        // The kernel says that a refused datagram was sent, or that it was not permitted.
        let _ = far.send(frame);
        near.recv(&mut [0; 256]).unwrap_or(0)
    })
}

/// Numbers that look random, and are the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }

    /// An instruction; its code is mostly one that exists.
    fn instruction(&mut self) -> Instruction {
        const CODES: [u16; 30] = [
            0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x80, 0x00, 0x60, 0x01, 0x61, 0x81, 0xb1, 0x02,
            0x03, 0x04, 0x0c, 0x1c, 0x3c, 0x54, 0x6c, 0x7c, 0x84, 0xa4, 0x05, 0x15, 0x25, 0x45,
            0x07, 0x87,
        ];
        let (pick, k) = (self.next(), self.next());
        let code = if pick.is_multiple_of(16) {
            (pick >> 8) as u16 & 0xff
        } else {
            CODES[pick as usize % 30]
        };
        let jumps = self.next();
        let k = match code {
            0x60 | 0x61 | 0x02 | 0x03 => k % 17,
            0x05 => k % 3,
            _ if k.is_multiple_of(8) => k % 0x7fff_ffff,
            _ => k % 70,
        };
        Instruction { code, jt: (jumps % 3) as u8, jf: (jumps >> 8) as u8 % 3, k }
    }
}

#[test]
fn programs_keep_what_the_kernel_keeps() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut run, mut kept) = (0, 0);
    for _ in 0..4000 {
        let len = 1 + numbers.next() % 12;
        let mut code: Vec<_> = (0..len).map(|_| numbers.instruction()).collect();
        // Memory is written before it is read, or the kernel refuses the program.
        let zero = Instruction { code: 0x02, jt: 0, jf: 0, k: 0 };
        code.splice(0..0, (0..16).map(|k| Instruction { k, ..zero }));
        let returned = if numbers.next().is_multiple_of(2) { 0x16 } else { 0x06 };
        code.push(Instruction { code: returned, jt: 0, jf: 0, k: numbers.next() % 80 });
        let frame: Vec<u8> = (0..64).map(|_| numbers.next() as u8 % 70).collect();
        let expected = kernel(&code, &frame);
        let ours = Program::new(code.clone());
        assert_eq!(ours.is_ok(), expected.is_some(), "{code:?}: {ours:?}");
        if let (Ok(program), Some(expected)) = (ours, expected) {
            let found = (program.run(&frame[..]) as usize).min(frame.len());
            assert_eq!(found, expected, "{code:?}");
            (run, kept) = (run + 1, kept + usize::from(found > 0));
        }
    }
    assert!(run > 1000 && kept > 300, "{run} programs were run, {kept} kept something");
}
