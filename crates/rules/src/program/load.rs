//! Checks the words of a program.

use core::fmt;
use std::sync::Arc;

use frame::bpf;

use super::{END, HEADER, MAGIC, NONE, Program, RULE, SECTION, Section, VERSION, code, sections};
use crate::cubes::{Family, kind};
use crate::tree::LANES;

/// The largest program, in words.
const WORDS: usize = 32 << 20;
/// The deepest tree.
const DEPTH: u32 = 64;

/// Why words are no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The header is wrong, or of another version.
    Header,
    /// A rule is wrong.
    Rule(usize),
    /// A tree is wrong.
    Tree(usize),
    /// A filter is wrong.
    Filter(usize),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => write!(f, "the program has another version, or another length"),
            Self::Rule(rule) => write!(f, "rule {rule} of the program is damaged"),
            Self::Filter(filter) => write!(f, "filter {filter} of the program is damaged"),
            Self::Tree(section) => write!(f, "tree {section} of the program is damaged"),
        }
    }
}

impl std::error::Error for LoadError {}

impl Program {
    /// Checks the words of a program, all indices included.
    ///
    /// # Errors
    /// If they are damaged, or of another version.
    pub fn load(words: Arc<[u32]>) -> Result<Self, LoadError> {
        let [MAGIC, VERSION, len, rules, ..] = words[..] else { return Err(LoadError::Header) };
        let (len, rules) = (len as usize, rules as usize);
        let first = HEADER + 6 * SECTION;
        if len != words.len() || len > WORDS || rules > 65_536 || len < first + rules * RULE {
            return Err(LoadError::Header);
        }
        let filters = load_filters(&words)?;
        for rule in 0..rules {
            let record = &words[first + rule * RULE..][..RULE];
            check_rule(&words, filters.len(), (rule, rules), record)
                .ok_or(LoadError::Rule(rule))?;
        }
        let mut decoded = [Section::default(); 6];
        for (i, (_, family)) in sections().enumerate() {
            let section = &words[HEADER + i * SECTION..][..SECTION];
            decoded[i] = check_section(&words, section, family, rules).ok_or(LoadError::Tree(i))?;
        }
        Ok(Self { words, rules, sections: decoded, filters })
    }
}

/// The filters of a program.
fn load_filters(words: &[u32]) -> Result<Arc<[bpf::Program]>, LoadError> {
    let [_, _, _, _, count, mut at, ..] = words[..] else { return Err(LoadError::Header) };
    let mut filters = Vec::new();
    for number in 0..count as usize {
        let filter = load_filter(words, &mut at).ok_or(LoadError::Filter(number))?;
        filters.push(filter);
    }
    Ok(filters.into())
}

/// The filter at `at`, which is its end afterwards.
fn load_filter(words: &[u32], at: &mut u32) -> Option<bpf::Program> {
    let from = *at as usize + 1;
    let len = count(words, *at as usize, 2)?;
    let code = words.get(from..)?.get(..len)?.as_chunks().0.iter().map(|[code, k]| {
        let [a, b, jt, jf] = code.to_le_bytes();
        bpf::Instruction { code: u16::from_le_bytes([a, b]), jt, jf, k: *k }
    });
    *at = u32::try_from(from + len).ok()?;
    bpf::Program::new(code.collect()).ok()
}

fn check_rule(
    words: &[u32],
    filters: usize,
    (rule, rules): (usize, usize),
    record: &[u32],
) -> Option<()> {
    let (action, next) = (record[0] & code::ACTION, record[1] as usize);
    let limited = record[3] == 0 || (record[4], record[5]) != (0, 0);
    if action > code::SKIP || next <= rule || next > rules || record[3] > 2 || !limited {
        return None;
    }
    record[6..]
        .iter()
        .filter(|at| **at != NONE)
        .try_for_each(|at| check_conditions(words, filters, *at))
}

/// Whether the conditions at `at` end within the words.
fn check_conditions(words: &[u32], filters: usize, at: u32) -> Option<()> {
    let mut at = at as usize;
    loop {
        let operands = match *words.get(at)? {
            END => return Some(()),
            kind::ME | kind::PROBABILITY => 1,
            kind::FLAGS | kind::SOURCE_MAC | kind::DESTINATION_MAC | kind::LENGTH => 2,
            kind::ICMP => 8,
            kind::FRAGMENT => 0,
            kind::VLAN => 1 + count(words, at + 1, 2)?,
            kind::PORTS => 2 + count(words, at + 2, 2)?,
            kind::SIDE => {
                let tables = count(words, at + 5, 1)?;
                let v4 = count(words, at + 6 + tables, 2)?;
                7 + tables + v4 + count(words, at + 7 + tables + v4, 5)?
            }
            kind::BPF => {
                let number = *words.get(at + 1)? as usize;
                (number < filters).then_some(1)?
            }
            _ => return None,
        };
        at += 1 + operands;
    }
}

/// The words of a counted list of elements of `size` words.
fn count(words: &[u32], at: usize, size: usize) -> Option<usize> {
    let count = *words.get(at)? as usize;
    (count <= words.len()).then_some(count * size)
}

fn check_section(words: &[u32], section: &[u32], family: Family, rules: usize) -> Option<Section> {
    let mut decoded = Section { trees: section[0] as usize, ..Section::default() };
    if decoded.trees > 4 {
        return None;
    }
    for tree in 0..decoded.trees {
        let [nodes, count, depth] = section[1 + 3 * tree..][..3] else { return None };
        let nodes_words = words.get(nodes as usize..)?.get(..(count as usize).checked_mul(4)?)?;
        check_tree(words, nodes_words.as_chunks().0, depth, family, rules)?;
        decoded.tree[tree] = (nodes, depth);
    }
    Some(decoded)
}

/// Children come after their parents, so a walk of `depth` steps ends at a leaf.
fn check_tree(
    words: &[u32],
    nodes: &[[u32; 4]],
    depth: u32,
    family: Family,
    rules: usize,
) -> Option<()> {
    let mut depths = vec![0; nodes.len()];
    if nodes.is_empty() || depth > DEPTH {
        return None;
    }
    for (at, [dim, threshold, below, beyond]) in nodes.iter().enumerate() {
        if depths[at] > depth || *dim as usize >= family.dims() {
            return None;
        }
        if *below as usize == at {
            let leaf = *dim == 0 && *threshold == u32::MAX;
            leaf.then(|| check_leaf(words, *beyond as usize, family, rules)).flatten()?;
            continue;
        }
        let deeper = depths[at] + 1;
        for child in [*below as usize, *beyond as usize] {
            let place = depths.get_mut(child).filter(|_| child > at)?;
            *place = deeper.max(*place);
        }
    }
    Some(())
}

fn check_leaf(words: &[u32], leaf: usize, family: Family, rules: usize) -> Option<()> {
    let block = LANES * (2 * family.dims() + 1);
    let steps = *words.get(leaf)? as usize;
    let blocks = words.get(leaf + 1..)?.get(..steps.checked_mul(block)?)?;
    let numbers = |block: &[u32]| {
        let numbers = &block[block.len() - LANES..];
        numbers.iter().all(|rule| *rule == NONE || (*rule as usize) < rules)
    };
    blocks.chunks_exact(block).all(numbers).then_some(())
}
