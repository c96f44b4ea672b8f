//! The e1000 family as a driver and a switch see it.
#![allow(unsafe_code, dead_code, reason = "the guest's memory outlives what is lent of it")]

mod arbitrary;
mod bed;
mod block;
mod bringup;
#[path = "../carrier/mod.rs"]
mod carrier;
mod hostile;
mod l82574;
mod moderation;
mod offloads;
mod pages;
mod remote;
mod statistics;
mod threads;
#[cfg(debug_assertions)]
mod walks;
