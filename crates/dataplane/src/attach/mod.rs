//! The kinds of ports beside rings.
//!
//! ```text
//!   buffered/  taps, sockets, capture files                vxlan/   tunnels
//!   interface/ network interfaces of the host
//!   virtio/, card/  guests, over what they share: guest/
//! ```

pub mod buffered;
pub mod card;
pub mod guest;
pub mod interface;
pub mod virtio;
pub mod vxlan;
