//! The shared status block: memory through which a driver and a device tell each other what they would
//! otherwise tell by register accesses and interrupts.
