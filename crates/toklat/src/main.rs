//! toklat
fn main() {}
