//! Frames for the other tests.

use std::net::IpAddr;

use crate::rules::{Packet, Sides};
use frame::{Facts, Mac};

/// What a frame is made of.
#[derive(Clone, Debug)]
pub struct Made {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: u8,
    pub ports: (u16, u16),
    pub flags: u8,
    /// Of IPv4: flags and offset. Of IPv6: a fragment header with it, unless it is 0.
    pub fragment: u16,
    pub id: u16,
    pub payload: Vec<u8>,
}

impl Default for Made {
    fn default() -> Self {
        Self {
            from: [10, 0, 0, 1].into(),
            to: [10, 0, 0, 2].into(),
            protocol: 6,
            ports: (4000, 22),
            flags: 2,
            fragment: 0,
            id: 7,
            payload: Vec::new(),
        }
    }
}

impl Made {
    /// The frame's bytes. ICMP messages begin with the ports' four bytes: type and code, then the
    /// checksum; the flags are the identifier.
    pub fn bytes(&self) -> Vec<u8> {
        let mut upper = Vec::new();
        let later = self.fragment & 0x1fff != 0;
        match self.protocol {
            _ if later => upper.extend([0x55; 16]),
            6 => {
                upper.extend([self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat());
                upper.extend([0; 8]);
                upper.extend([0x50, self.flags, 0, 0, 0, 0, 0, 0]);
            }
            1 | 58 => {
                let kind = self.ports.0 as u8;
                upper.extend([kind, 0, 0, 0, 0, self.flags, 0, 1]);
            }
            _ => {
                upper.extend([self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat());
                upper.extend([0, 8, 0, 0]);
            }
        }
        upper.extend(&self.payload);
        let mut bytes = [Mac::local(2).octets(), Mac::local(1).octets()].concat();
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                bytes.extend([8, 0, 0x45, 0]);
                bytes.extend((20 + upper.len() as u16).to_be_bytes());
                bytes.extend(self.id.to_be_bytes());
                bytes.extend(self.fragment.to_be_bytes());
                bytes.extend([64, self.protocol, 0, 0]);
                bytes.extend([from.octets(), to.octets()].concat());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let extra = if self.fragment == 0 { 0 } else { 8 };
                bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                bytes.extend((extra + upper.len() as u16).to_be_bytes());
                bytes.extend([if extra == 0 { self.protocol } else { 44 }, 64]);
                bytes.extend([from.octets(), to.octets()].concat());
                if extra != 0 {
                    let offset = (self.fragment & 0x1fff) << 3 | self.fragment >> 13 & 1;
                    bytes.extend([self.protocol, 0]);
                    bytes.extend(offset.to_be_bytes());
                    bytes.extend(u32::from(self.id).to_be_bytes());
                }
            }
            _ => bytes.extend([8, 6, 0, 1]),
        }
        bytes.extend(upper);
        bytes
    }

    /// The same connection's packet in the other direction.
    pub fn reply(&self, flags: u8) -> Self {
        let ports = (self.ports.1, self.ports.0);
        Self { from: self.to, to: self.from, ports, flags, ..self.clone() }
    }
}

/// Looks at a frame as the rules do.
pub fn with<T>(frame: &[u8], sides: Sides, draw: u32, look: impl FnOnce(&Packet<'_>) -> T) -> T {
    let head = &frame[..frame.len().min(128)];
    let facts = Facts::of(head).unwrap();
    look(&Packet { facts: &facts, head, len: frame.len() as u32, sides, draw })
}
