//! The e1000 family: 82540EM and 82574L.

pub mod driver;
