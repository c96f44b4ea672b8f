//! All rules of a switch as bytes, for the memory file in which another process gets them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::program::Program;
use crate::rule::Prefix;

/// "TKRB", and the version of the layout.
const HEAD: [u32; 2] = [0x544b_5242, 1];
/// The most programs, ports and tables.
const MOST: u32 = 1 << 16;

/// The rules of a switch: whole, or not at all.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// Differs from that of the rules before; never 0.
    pub generation: u16,
    /// The programs.
    pub programs: Vec<Program>,
    /// The ports with rules.
    pub ports: Vec<BundlePort>,
    /// The prefixes of each table.
    pub tables: Vec<Vec<Prefix>>,
}

/// A port with rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundlePort {
    /// Its number.
    pub id: u16,
    /// The number of its program.
    pub program: u16,
    /// Its groups, a bit each.
    pub groups: u64,
    /// The addresses that are `me`; empty for any.
    pub ips: Vec<IpAddr>,
}

impl Bundle {
    /// The bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut words = HEAD.to_vec();
        words.push(self.generation.into());
        words.push(self.programs.len() as u32);
        for program in &self.programs {
            words.push(program.words().len() as u32);
            words.extend_from_slice(program.words());
        }
        words.push(self.ports.len() as u32);
        for port in &self.ports {
            let (low, high) = (port.groups as u32, (port.groups >> 32) as u32);
            words.extend([port.id.into(), port.program.into(), low, high, port.ips.len() as u32]);
            port.ips.iter().for_each(|ip| put(&mut words, *ip, 0));
        }
        words.push(self.tables.len() as u32);
        for table in &self.tables {
            words.push(table.len() as u32);
            table.iter().for_each(|prefix| put(&mut words, prefix.ip(), prefix.bits()));
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) made; zeros may follow. `None` if anything in it is
    /// damaged.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u32> =
            bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let mut rest = &words[..];
        if [word(&mut rest)?, word(&mut rest)?] != HEAD {
            return None;
        }
        let generation = u16::try_from(word(&mut rest)?).ok().filter(|own| *own != 0)?;
        let programs = list(&mut rest, |rest| {
            let len = word(rest)? as usize;
            let (own, after) = rest.split_at_checked(len)?;
            *rest = after;
            Program::load(own.into()).ok()
        })?;
        let ports = list(&mut rest, |rest| {
            let (id, program) = (word(rest)?, word(rest)?);
            let groups = u64::from(word(rest)?) | u64::from(word(rest)?) << 32;
            let ips = list(rest, |rest| address(rest).map(|(ip, _)| ip))?;
            let program = u16::try_from(program).ok()?;
            Some(BundlePort { id: u16::try_from(id).ok()?, program, groups, ips })
        })?;
        let tables = list(&mut rest, |rest| {
            let count = word(rest)? as usize;
            let mut prefixes = Vec::new();
            for _ in 0..count {
                let (ip, len) = address(rest)?;
                prefixes.push(Prefix::new(ip, len)?);
            }
            Some(prefixes)
        })?;
        let known = |port: &BundlePort| usize::from(port.program) < programs.len();
        ports.iter().all(known).then_some(Self { generation, programs, ports, tables })
    }
}

/// The family and a number, then four words of an address.
fn put(words: &mut Vec<u32>, ip: IpAddr, len: u8) {
    let (family, bits) = match ip {
        IpAddr::V4(ip) => (4, u128::from(ip.to_bits())),
        IpAddr::V6(ip) => (6, ip.to_bits()),
    };
    words.push(family << 8 | u32::from(len));
    words.extend([96, 64, 32, 0].map(|shift| (bits >> shift) as u32));
}

fn address(rest: &mut &[u32]) -> Option<(IpAddr, u8)> {
    let head = word(rest)?;
    let mut bits = 0u128;
    for _ in 0..4 {
        bits = bits << 32 | u128::from(word(rest)?);
    }
    let ip = match head >> 8 {
        4 => Ipv4Addr::from_bits(u32::try_from(bits).ok()?).into(),
        6 => Ipv6Addr::from_bits(bits).into(),
        _ => return None,
    };
    Some((ip, head as u8))
}

fn word(rest: &mut &[u32]) -> Option<u32> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    Some(*first)
}

fn list<T>(rest: &mut &[u32], mut one: impl FnMut(&mut &[u32]) -> Option<T>) -> Option<Vec<T>> {
    let count = word(rest).filter(|count| *count <= MOST)?;
    (0..count).map(|_| one(rest)).collect()
}
