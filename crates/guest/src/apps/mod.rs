//! Applications that programs, benchmarks and fuzz targets share; the examples run them.

pub mod bulk;
pub mod dns;
pub mod echo;
pub mod game;
pub mod iperf3;
pub mod kv;
pub mod load;
pub mod programs;
pub mod site;
