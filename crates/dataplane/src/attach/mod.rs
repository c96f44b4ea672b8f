//! The kinds of ports beside rings.
//!
//! ```text
//!   buffered/  taps, sockets, capture files                vxlan/   tunnels
//!   virtio/, card/  guests, over what they share: guest/
//! ```

pub mod buffered;
pub mod card;
pub mod guest;
pub mod virtio;
pub mod vxlan;
