//! The e1000 family as a driver and a switch see it.
#![allow(unsafe_code, dead_code, reason = "the guest's memory outlives what is lent of it")]

mod bed;
mod block;
mod bringup;
mod l82574;
mod offloads;
