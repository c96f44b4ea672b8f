//! Numbers of the vhost-user protocol (QEMU, `docs/interop/vhost-user.rst`), which front end and
//! back end share.
//!
//! ```text
//!   code u32 | flags u32 | size u32 | payload (size bytes)        all in the machine's byte order
//! ```

/// Bytes of a header.
pub const HEADER: usize = 12;
/// The protocol's version, in a header's flags.
pub const VERSION: u32 = 1;
/// The bits of a header's flags that hold the version.
pub const VERSION_MASK: u32 = 3;
/// Flag of a header: the message is a reply.
pub const REPLY: u32 = 1 << 2;
/// Flag of a header: the front end waits for an acknowledgement.
pub const NEED_REPLY: u32 = 1 << 3;
/// The bit in the features of a device by which both sides have protocol features.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Protocol features (`VHOST_USER_PROTOCOL_F_*`).
pub mod protocol {
    #![allow(missing_docs, reason = "names of the specification")]
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const RARP: u64 = 1 << 2;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const MTU: u64 = 1 << 4;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
}

/// The requests of a front end, by their numbers in the specification.
pub mod code {
    #![allow(missing_docs, reason = "names of the specification")]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
    /// Our only request, sent on the back end's channel: the configuration space has changed.
    pub const BACKEND_CONFIG_CHANGE: u32 = 2;
}
