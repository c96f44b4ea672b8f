//! Others' programs, with toklat's libraries: netmap, pcap, Python.

mod netmap;
mod pcap;
mod python;
