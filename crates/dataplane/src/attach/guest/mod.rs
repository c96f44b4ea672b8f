//! What the ports of virtual machines share, whichever protocol their front end speaks.

pub mod bells;
pub mod kept;
pub mod memory;
pub mod moderation;
pub mod vectors;
