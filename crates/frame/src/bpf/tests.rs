use alloc::string::ToString as _;
use alloc::vec;

use proptest::prelude::*;

use super::*;

/// `tcpdump -ddd -y EN10MB udp port 53`.
const DNS: &str = "20
40 0 0 12
21 0 6 34525
48 0 0 20
21 0 15 17
40 0 0 54
21 12 0 53
40 0 0 56
21 10 11 53
21 0 10 2048
48 0 0 23
21 0 8 17
40 0 0 20
69 6 0 8191
177 0 0 14
72 0 0 14
21 2 0 53
72 0 0 16
21 0 1 53
6 0 0 262144
6 0 0 0";

fn program(code: &[(u16, u8, u8, u32)]) -> Result<Program, InvalidProgram> {
    let code = code.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k });
    Program::new(code.collect())
}

/// A frame to a group, of interface 7, that its owner sent or received.
struct Known(bool);

impl Packet for Known {
    fn len(&self) -> u32 {
        14
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        [1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 1, 8, 6].get(at..)?.first_chunk().copied()
    }

    fn ancillary(&self, what: Ancillary) -> u32 {
        ancillary(self, what, 7, self.0)
    }
}

#[test]
fn a_program_of_tcpdump_admits_what_it_names() {
    let program: Program = DNS.parse().unwrap();
    let mut frame = [0; 60];
    frame[12..16].copy_from_slice(&[8, 0, 0x46, 0]);
    frame[23] = 17;
    assert_eq!(program.run(&frame[..]), 0);
    // The header has one word of options.
    frame[38..42].copy_from_slice(&[0, 9, 0, 53]);
    assert_eq!(program.run(&frame[..]), 262_144);
    assert_eq!(program.run(&frame[..40]), 0, "the port is beyond the end");
    frame[20] = 0x1f;
    assert_eq!(program.run(&frame[..]), 0, "a later fragment has no ports");
    assert_eq!(DNS.replace('\n', ",").parse(), Ok(program), "iptables' form");
    for wrong in ["", "24", "1,6 0 0", "2,6 0 0 0", "1,6 0 0 0 0", "x,6 0 0 0", "1,6 0 0 -1"] {
        assert_eq!(wrong.parse::<Program>(), Err(ParseProgramError::Format), "{wrong}");
    }
}

#[test]
fn what_is_known_of_a_frame_is_answered_and_the_rest_refused_by_its_name() {
    let ask =
        |word: i32| program(&[(op::LD_H_ABS, 0, 0, (word - 0x1000) as u32), (op::RET_A, 0, 0, 0)]);
    let answers =
        [(0, 0x0806, 0x0806), (4, 2, 4), (8, 7, 7), (28, 1, 1), (44, 0, 0), (48, 0, 0), (60, 0, 0)];
    for (word, received, sent) in answers {
        let program = ask(word).unwrap();
        assert_eq!(
            (program.run(&Known(false)), program.run(&Known(true))),
            (received, sent),
            "{word}"
        );
    }
    for (word, name) in [
        (36, "SKF_AD_CPU"),
        (32, "SKF_AD_RXHASH"),
        (56, "SKF_AD_RANDOM"),
        (12, "SKF_AD_NLATTR"),
        (-4, "SKF_NET_OFF"),
        (-0xf_f000, "SKF_NET_OFF"),
        (-0xf_f004, "SKF_LL_OFF"),
    ] {
        let refused = ask(word).unwrap_err();
        assert!(refused.to_string().contains(name), "{word}: {refused}");
    }
    let indirect = [(op::LD_B_IND, 0, 0, ANCILLARY + 4), (op::RET_A, 0, 0, 0)];
    assert!(matches!(program(&indirect), Err(InvalidProgram::Word { at: 0, .. })));
}

#[test]
fn programs_that_the_kernel_refuses_are_refused() {
    use InvalidProgram::{End, Length, Unknown};
    let ret = (op::RET_K, 0, 0, 1);
    assert_eq!(program(&[]), Err(Length(0)));
    assert_eq!(program(&vec![ret; 4097]), Err(Length(4097)));
    assert!(program(&vec![ret; 4096]).is_ok());
    for (code, end) in [
        (vec![(op::LD_IMM, 0, 0, 1)], 0),
        (vec![(op::JMP, 0, 0, 1), ret], 0),
        (vec![(op::JMP, 0, 0, u32::MAX), ret], 0),
        (vec![(op::JMP | op::JEQ, 1, 0, 0), ret], 0),
        (vec![ret, (op::JMP | op::JEQ, 0, 255, 0), ret], 1),
    ] {
        assert_eq!(program(&code), Err(End(end)), "{code:?}");
    }
    let alu = |operation, k| (op::ALU | operation, 0, 0, k);
    for wrong in [
        (0xffff, 0, 0, 0),
        (0x0100, 0, 0, 0),
        (0x0e, 0, 0, 0),
        (op::ST, 0, 0, 16),
        (op::LDX_MEM, 0, 0, 16),
        alu(op::DIV, 0),
        alu(op::MOD, 0),
        alu(op::LSH, 32),
        alu(0xb0, 1),
        (op::JMP | 0x50, 0, 0, 0),
        (op::JMP | op::SOURCE_X, 0, 0, 0),
    ] {
        assert_eq!(program(&[wrong, ret]), Err(Unknown { at: 0, code: wrong.0 }), "{wrong:?}");
    }
}

#[test]
fn arithmetic_is_of_32_bits_and_a_division_by_zero_refuses_the_frame() {
    let run = |code: u16, a: u32, x: u32| {
        let start = [(op::LDX_IMM, 0, 0, x), (op::LD_IMM, 0, 0, a)];
        let rest = [(op::ALU | code | op::SOURCE_X, 0, 0, 0), (op::RET_A, 0, 0, 0)];
        program(&[start, rest].concat()).unwrap().run(&[0_u8; 14][..])
    };
    let max = u32::MAX;
    let cases =
        [(op::ADD, max, 2, 1), (op::SUB, 1, 2, max), (op::MUL, 1 << 31, 2, 0), (op::DIV, 7, 2, 3)];
    let more = [(op::MOD, 7, 4, 3), (op::XOR, 6, 3, 5), (op::LSH, 1, 33, 2), (op::RSH, max, 31, 1)];
    for (code, a, x, expected) in cases.into_iter().chain(more) {
        assert_eq!(run(code, a, x), expected, "{code:#x}");
    }
    assert_eq!((run(op::DIV, 7, 0), run(op::MOD, 7, 0)), (0, 0));
    let negated =
        program(&[(op::LD_IMM, 0, 0, 1), (op::ALU | op::NEG, 0, 0, 0), (op::RET_A, 0, 0, 0)]);
    assert_eq!(negated.unwrap().run(&[][..]), max);
    // Memory keeps what is stored, and the length is the frame's.
    let stored =
        [(op::LD_LEN, 0, 0, 0), (op::ST, 0, 0, 15), (op::LD_IMM, 0, 0, 0), (op::LDX_MEM, 0, 0, 15)];
    let all = [&stored[..], &[(op::TXA, 0, 0, 0), (op::RET_A, 0, 0, 0)]].concat();
    assert_eq!(program(&all).unwrap().run(&[0_u8; 61][..]), 61);
}

proptest! {
    #[test]
    fn any_program_that_is_admitted_ends(
        words in proptest::collection::vec((any::<u8>(), 0_u8..4, 0_u8..4, any::<u32>(), any::<bool>()), 1..40),
        frame in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut code = vec::Vec::new();
        for (byte, jt, jf, k, small) in words {
            let k = if small { k % 64 } else { k };
            code.push(Instruction { code: byte.into(), jt, jf, k });
        }
        code.push(Instruction { code: op::RET_A, jt: 0, jf: 0, k: 0 });
        if let Ok(program) = Program::new(code) {
            let _ = program.run(&frame[..]);
        }
    }
}
