//! Ports whose frames come by system calls, into a buffer of the port's own.

pub mod dgram;
pub mod pcap;
pub mod stream;
pub mod tap;
