//! The client library for programs in C: a thin layer over [`netring::Port`].
//!
//! `include/toklat.h` documents every function; its text is the contract. The comments here only
//! add to it.
//!
//! Each function takes a pointer to a [`Handle`](handle::Handle), and refuses null with `-EINVAL`.
//! Errors are negative errnos, with a message in the handle. Nothing unwinds into C: after a panic,
//! every call on the handle returns `-EIO`.
//!
//! | module | what it is |
//! |---|---|
//! | `handle` | what a `struct toklat_port` is, and how every function gets at it |
//! | `failure` | errors of the ring library as errnos and messages |
//! | `open` | open, close, reset, reopen |
//! | `frames` | reserve, commit, push, receive, flush |
//! | `wait` | wait, and the descriptor for epoll |
//! | `about` | names, sizes, statistics, messages, versions |
//!
//! `toklat.map` lists what the shared library exports. `cargo xtask capi` links and installs it.
#![allow(unsafe_code, reason = "programs in C pass raw pointers")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod about;
mod failure;
mod frames;
mod handle;
mod open;
mod wait;
