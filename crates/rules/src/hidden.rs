//! Rules that no frame reaches, because an earlier one decides about all that they match.

use crate::cubes::{Cube, Family, shape};
use crate::packet::Direction;
use crate::policy::Policy;
use crate::rule::Action;

/// Policies with more rules are not looked through.
const RULES: usize = 4096;

/// A rule that no frame reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Its number in the policy.
    pub rule: usize,
    /// The rule that decides instead.
    pub by: usize,
}

/// The rules that another one hides. Rules with conditions beside addresses, ports and protocol
/// hide none, and so do rules that several others hide together.
#[must_use]
pub fn hidden(policy: &Policy) -> Vec<Hidden> {
    let count = policy.rules.len();
    if count > RULES || policy.rules.iter().any(|rule| matches!(rule.action, Action::Skip(_))) {
        return Vec::new();
    }
    let sections = || {
        let directions = [Direction::In, Direction::Out].into_iter();
        directions.flat_map(|d| Family::ALL.map(|f| (d, f)))
    };
    let shapes: Vec<Vec<Option<Vec<Cube>>>> = (0..count)
        .map(|at| {
            let shape = |(d, f)| shape(policy, at, d, f).ok().flatten().map(|shape| shape.cubes);
            sections().map(shape).collect()
        })
        .collect();
    let dims: Vec<usize> = sections().map(|(_, family)| family.dims()).collect();
    let mut found = Vec::new();
    for rule in 1..count {
        let hides = |by: &usize| {
            let each = shapes[rule].iter().zip(&shapes[*by]).zip(&dims);
            let mut each = each.filter(|((rule, _), _)| rule.is_some());
            each.clone().count() > 0
                && each.all(|((rule, by), dims)| {
                    let covered = |cube: &Cube| {
                        by.iter().flatten().any(|by| by.sure && contains(by, cube, *dims))
                    };
                    rule.iter().flatten().all(covered)
                })
        };
        if let Some(by) = (0..rule).find(hides) {
            found.push(Hidden { rule, by });
        }
    }
    found
}

fn contains(outer: &Cube, inner: &Cube, dims: usize) -> bool {
    (0..dims).all(|d| outer.lo[d] <= inner.lo[d] && outer.hi[d] >= inner.hi[d])
}
