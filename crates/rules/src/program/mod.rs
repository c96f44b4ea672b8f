//! A compiled policy, as all workers of a switch read it.
//!
//! ```text
//!   header   magic, version, words in all, rules, filters and where they are
//!   sections one for each direction and family: trees, then root, nodes and depth of each
//!   rules    what each does, and where its conditions are
//!   filters  of each, how many instructions, and two words for each
//!   the rest conditions, leaves, nodes
//! ```
//!
//! [`Program::load`] checks every index, so judging never looks outside.

mod conditions;
mod judge;
mod load;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use frame::bpf;

pub use self::load::LoadError;
use crate::cubes::Family;
use crate::packet::Direction;
use crate::prefixes::Tables;

pub(crate) const MAGIC: u32 = 0x544b_5255;
/// The version of the layout.
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER: usize = 8;
/// Words of a section: a count, and three for each of up to four trees.
pub(crate) const SECTION: usize = 13;
/// Words of a rule: action and flags, next rule, mirror, unit and rate of its limit; then where its
/// conditions are, for each section.
pub(crate) const RULE: usize = 12;
/// No conditions, no mirror.
pub(crate) const NONE: u32 = u32::MAX;
/// The end of conditions.
pub(crate) const END: u32 = 0;
/// The number of no rule: the default decided.
pub const NO_RULE: u32 = u32::MAX;

/// The first word of a rule.
pub(crate) mod code {
    pub const NEXT: u32 = 0;
    pub const ALLOW: u32 = 1;
    pub const DENY: u32 = 2;
    pub const RESET: u32 = 3;
    pub const SKIP: u32 = 4;
    pub const ACTION: u32 = 0xff;
    pub const STATELESS: u32 = 0x100;
    pub const LOG: u32 = 0x200;
}

/// A compiled policy.
#[derive(Clone, Debug)]
pub struct Program {
    words: Arc<[u32]>,
    rules: usize,
    sections: [Section; 6],
    filters: Arc<[bpf::Program]>,
}

/// Trees of a direction and a family.
#[derive(Clone, Copy, Debug, Default)]
struct Section {
    trees: usize,
    /// First word of the nodes, and the depth.
    tree: [(u32, u32); 4],
}

/// What a packet meets at the end of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// No rule decides: the default of the port does.
    Default,
    /// It passes.
    Allow,
    /// It is dropped.
    Deny,
    /// It is dropped, and its sender is told.
    Reset,
}

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What happens to it.
    pub stop: Stop,
    /// It makes no connection.
    pub stateless: bool,
    /// The rule that decided, or [`NO_RULE`].
    pub rule: u32,
    /// The last rule that asks to log it, or [`NO_RULE`].
    pub log: u32,
    /// The port that gets a copy, as a number in order of first mention, or [`NO_RULE`].
    pub mirror: u32,
}

/// What judging needs and changes.
#[derive(Clone, Copy, Debug)]
pub struct Context<'c> {
    /// The tables that rules name.
    pub tables: &'c Tables,
    /// The time in nanoseconds.
    pub now: u64,
    /// Matching frames of each rule.
    pub hits: &'c [AtomicU64],
    /// For each rule, until when its limit is used up, in nanoseconds. Workers share them.
    pub limits: &'c [AtomicU64],
}

impl Outcome {
    /// No rule has matched yet.
    pub const DEFAULT: Self = Self {
        stop: Stop::Default,
        stateless: false,
        rule: NO_RULE,
        log: NO_RULE,
        mirror: NO_RULE,
    };
}

/// The sections of a program, in order.
pub(crate) fn sections() -> impl Iterator<Item = (Direction, Family)> {
    [Direction::In, Direction::Out].into_iter().flat_map(|d| Family::ALL.map(|f| (d, f)))
}

/// Where a rule says where its conditions are.
pub(crate) fn condition_slot(direction: Direction, family: Family) -> usize {
    6 + section_of(direction, family)
}

/// The direction of a section.
fn direction_of(section: usize) -> Direction {
    if section < 3 { Direction::In } else { Direction::Out }
}

fn section_of(direction: Direction, family: Family) -> usize {
    let first = if direction == Direction::In { 0 } else { 3 };
    first + family as usize
}

impl Program {
    /// The words, to be loaded elsewhere.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// How many rules it has.
    #[must_use]
    pub fn rules(&self) -> usize {
        self.rules
    }

    /// True if it has no rule at all for frames in this direction.
    #[must_use]
    pub fn is_empty(&self, direction: Direction) -> bool {
        Family::ALL.iter().all(|f| self.sections[section_of(direction, *f)].trees == 0)
    }

    fn record(&self, rule: u32) -> &[u32] {
        let at = HEADER + 6 * SECTION + rule as usize * RULE;
        &self.words[at..at + RULE]
    }
}
