//! Drivers of the e1000 family in user space.
