//! What compiling may take, and why it may fail.

use core::fmt;

/// What compiling may take.
pub struct Budget<'s> {
    /// Nodes of trees.
    pub nodes: usize,
    /// Words of leaves, four bytes each.
    pub words: usize,
    /// Asked now and then: true to give up, because the time is over or nothing waits for it.
    pub stop: &'s (dyn Fn() -> bool + Sync),
}

/// Why a policy has no program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// It has too many of these.
    TooLarge(&'static str),
    /// [`Budget::stop`] said so.
    TooLong,
    /// A rule names a group that does not exist.
    Group(String),
    /// A rule names a table that does not exist.
    Table(String),
    /// The expression of a rule was not compiled.
    Bpf(String),
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(what) => write!(f, "the rules are too large: they need too many {what}"),
            Self::TooLong => write!(f, "the rules are too large: compiling them takes too long"),
            Self::Group(name) => write!(f, "there is no group `{name}`"),
            Self::Table(name) => write!(f, "there is no table `{name}`"),
            Self::Bpf(text) => write!(f, "the expression \"{text}\" is not compiled"),
        }
    }
}

impl std::error::Error for CompileError {}

impl fmt::Debug for Budget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({} nodes, {} words)", self.nodes, self.words)
    }
}

impl<'s> Budget<'s> {
    /// 400,000 nodes and 64 MiB, as long as `stop` is false.
    #[must_use]
    pub fn new(stop: &'s (dyn Fn() -> bool + Sync)) -> Self {
        Self { nodes: 400_000, words: 16 << 20, stop }
    }

    /// A part of what is left.
    pub(crate) fn share(&self, parts: usize) -> Self {
        Self { nodes: self.nodes / parts, words: self.words / parts, stop: self.stop }
    }

    pub(crate) fn go_on(&self) -> Result<(), CompileError> {
        if (self.stop)() { Err(CompileError::TooLong) } else { Ok(()) }
    }

    /// Fails if a tree of this size is too large.
    pub(crate) fn hold(&self, nodes: usize, words: usize) -> Result<(), CompileError> {
        match (nodes > self.nodes, words > self.words) {
            (true, _) => Err(CompileError::TooLarge("nodes of trees")),
            (_, true) => Err(CompileError::TooLarge("words of memory")),
            _ => Ok(()),
        }
    }
}
