//! Tests of the rules as a whole.

extern crate toklat_rules as rules;

mod connections;
mod frames;
mod ipfw;
mod prefixes;
mod program;
mod text;
