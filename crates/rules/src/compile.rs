//! From a policy to a program: a flat array of words.

use crate::budget::{Budget, CompileError};
use crate::cubes::{Cube, Family, shape};
use crate::packet::Direction;
use crate::policy::Policy;
use crate::program::{self, HEADER, MAGIC, NONE, Program, RULE, SECTION, VERSION, code};
use crate::rule::{Action, Rate, Rule};
use crate::tree::{self, Tree};

/// The most rules of a policy.
const RULES: usize = 65_536;
/// The most boxes of a policy in one direction and family.
const BOXES: usize = 262_144;

/// Compiles a policy.
///
/// # Errors
/// If it needs more than the budget, or names what does not exist.
pub fn compile(policy: &Policy, budget: &Budget<'_>) -> Result<Program, CompileError> {
    let rules = &policy.rules;
    if rules.len() > RULES {
        return Err(CompileError::TooLarge("rules"));
    }
    let at_rules = HEADER + 6 * SECTION;
    let mut words = vec![0u32; at_rules + rules.len() * RULE];
    words[..4].copy_from_slice(&[MAGIC, VERSION, 0, rules.len() as u32]);
    let mut mirrors: Vec<&str> = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let record = record(policy, at, rule, &mut mirrors);
        words[at_rules + at * RULE..][..RULE].copy_from_slice(&record);
    }
    put_filters(policy, &mut words);
    let mut left = budget.share(1);
    for (i, (direction, family)) in program::sections().enumerate() {
        let cubes = cubes(policy, direction, family, &mut words, budget)?;
        let trees = tree::build(family, &cubes, &mut left)?;
        let section = section(&mut words, &trees, cubes.is_empty());
        words[HEADER + i * SECTION..][..SECTION].copy_from_slice(&section);
        budget.hold(0, words.len())?;
    }
    words[2] = words.len() as u32;
    Program::load(words.into()).map_err(|_| CompileError::TooLarge("words of memory"))
}

/// The boxes of all rules there. Conditions are appended to `words`; they are the same for all
/// directions and IP families of a rule, except that a list of hosts or ports may be in one alone.
fn cubes(
    policy: &Policy,
    direction: Direction,
    family: Family,
    words: &mut Vec<u32>,
    budget: &Budget<'_>,
) -> Result<Vec<Cube>, CompileError> {
    let at_rules = HEADER + 6 * SECTION;
    let slot = program::condition_slot(direction, family);
    let mut all = Vec::new();
    let jumped = jumped_over(policy);
    for at in 0..policy.rules.len() {
        budget.go_on()?;
        let Some(mut shape) = shape(policy, at, direction, family)? else { continue };
        if !shape.conditions.is_empty() {
            words[at_rules + at * RULE + slot] = words.len() as u32;
            words.append(&mut shape.conditions);
            words.push(program::END);
        }
        for cube in &mut shape.cubes {
            cube.sure &= !jumped[at];
        }
        all.append(&mut shape.cubes);
        if all.len() > BOXES {
            return Err(CompileError::TooLarge("combinations of addresses and ports"));
        }
    }
    Ok(all)
}

/// Appends the filters, and says in the header where they are.
fn put_filters(policy: &Policy, words: &mut Vec<u32>) {
    (words[4], words[5]) = (policy.filters.len() as u32, words.len() as u32);
    for filter in policy.filters.values() {
        let code = filter.instructions();
        words.push(code.len() as u32);
        words.extend(code.iter().flat_map(|instruction| {
            let [a, b] = instruction.code.to_le_bytes();
            [u32::from_le_bytes([a, b, instruction.jt, instruction.jf]), instruction.k]
        }));
    }
}

/// The rules that a `skipto` may pass by.
fn jumped_over(policy: &Policy) -> Vec<bool> {
    let mut jumped = vec![false; policy.rules.len()];
    let mut until = 0;
    for (at, is_jumped) in jumped.iter_mut().enumerate() {
        *is_jumped = at < until;
        if matches!(policy.rules[at].action, Action::Skip(_)) {
            until = until.max(policy.target(at));
        }
    }
    jumped
}

fn record<'p>(
    policy: &'p Policy,
    at: usize,
    rule: &'p Rule,
    mirrors: &mut Vec<&'p str>,
) -> [u32; RULE] {
    let action = match rule.action {
        Action::Next => code::NEXT,
        Action::Allow => code::ALLOW,
        Action::Deny => code::DENY,
        Action::Reset => code::RESET,
        Action::Skip(_) => code::SKIP,
    };
    let mirror = rule.mirror.as_deref().map_or(NONE, |name| {
        let known = mirrors.iter().position(|known| *known == name);
        known.unwrap_or_else(|| {
            mirrors.push(name);
            mirrors.len() - 1
        }) as u32
    });
    let (unit, rate) = match rule.limit {
        None => (0, 0),
        Some(Rate::Frames(rate)) => (1, rate),
        Some(Rate::Bits(rate)) => (2, rate),
    };
    let flags = u32::from(rule.stateless) * code::STATELESS + u32::from(rule.log) * code::LOG;
    let (low, high) = (rate as u32, (rate >> 32) as u32);
    let mut record = [NONE; RULE];
    record[..6].copy_from_slice(&[
        action | flags,
        policy.target(at) as u32,
        mirror,
        unit,
        low,
        high,
    ]);
    record
}

/// Appends the trees, and returns what describes them.
fn section(words: &mut Vec<u32>, trees: &[Tree], empty: bool) -> [u32; SECTION] {
    let mut section = [0; SECTION];
    if empty {
        return section;
    }
    section[0] = trees.len() as u32;
    for (tree, slot) in trees.iter().zip(section[1..].chunks_exact_mut(3)) {
        let leaves = words.len() as u32;
        words.extend_from_slice(&tree.leaves);
        let nodes = words.len() as u32;
        for node in &tree.nodes {
            let is_leaf = node[0] == 0 && node[1] == u32::MAX;
            let last = if is_leaf { node[3] + leaves } else { node[3] };
            words.extend([node[0], node[1], node[2], last]);
        }
        slot.copy_from_slice(&[nodes, tree.nodes.len() as u32, tree.depth]);
    }
    section
}
