//! Binary cuts through the space of keys (HyperSplit): each node compares one number with a
//! threshold, each leaf holds the boxes that remain, in the order of their rules.

use crate::budget::{Budget, CompileError};
use crate::cubes::{Cube, Family};

/// A leaf has no more boxes than this, if a cut can divide them.
const LEAF: usize = 8;
/// The deepest tree.
const DEPTH: u32 = 28;
/// Boxes in one step of a leaf.
pub(crate) const LANES: usize = 8;
/// Lists of up to this many boxes need no tree.
const LIST: usize = 32;
/// Longer lists are not walked, however large their trees would be.
const LONG_LIST: usize = 1024;
/// Nodes for each box, beyond which other divisions are better.
const NODES: usize = 24;
/// Set in a child that is a leaf, while a tree is built.
const IS_LEAF: u32 = 1 << 31;

/// A tree, in the words in which a program holds it.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Dimension, threshold, child up to it, child beyond it. A leaf's node leads to itself; its
    /// last word says where the leaf is in `leaves`.
    pub nodes: Vec<[u32; 4]>,
    /// A count of steps, then for each of them lowest values and spans of eight boxes for each
    /// dimension, and their rules.
    pub leaves: Vec<u32>,
    pub depth: u32,
    /// Steps in the leaves, and how many leaves there are.
    steps: (usize, usize),
}

struct Builder<'b> {
    family: Family,
    tree: Tree,
    budget: &'b Budget<'b>,
}

/// The trees that judge by these boxes at the least cost: one, or one for each combination of wide
/// and narrow sources and destinations.
pub(crate) fn build(
    family: Family,
    cubes: &[Cube],
    budget: &mut Budget<'_>,
) -> Result<Vec<Tree>, CompileError> {
    if cubes.len() <= LIST {
        return Ok(vec![one(family, cubes, DEPTH, budget)?]);
    }
    let mut best: Option<(usize, Vec<Tree>)> = None;
    if cubes.len() <= LONG_LIST {
        let list = one(family, cubes, DEPTH, budget)?;
        best = Some((list.cost(), vec![list]));
    }
    let mut failure = CompileError::TooLarge("nodes");
    for (by_source, by_destination) in [(false, false), (true, false), (false, true), (true, true)]
    {
        let class = |cube: &Cube| {
            usize::from(by_source && is_wide(family, cube, 0)) * 2
                + usize::from(by_destination && is_wide(family, cube, 1))
        };
        let parts = (0..4).map(|want| {
            cubes.iter().copied().filter(|cube| class(cube) == want).collect::<Vec<_>>()
        });
        let parts: Vec<Vec<Cube>> = parts.filter(|part| !part.is_empty()).collect();
        if parts.len() == 1 && (by_source || by_destination) {
            continue;
        }
        let mut share = budget.share(4);
        share.nodes = share.nodes.min(1024 + NODES * cubes.len());
        let trees: Result<Vec<Tree>, _> =
            parts.iter().map(|part| one(family, part, 0, &share)).collect();
        match trees {
            Ok(trees) => {
                let cost = trees.iter().map(Tree::cost).sum();
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, trees));
                }
            }
            Err(CompileError::TooLong) => return Err(CompileError::TooLong),
            Err(error) => failure = error,
        }
    }
    let (_, trees) = best.ok_or(failure)?;
    budget.nodes = budget.nodes.saturating_sub(trees.iter().map(|tree| tree.nodes.len()).sum());
    budget.words = budget.words.saturating_sub(trees.iter().map(|tree| tree.leaves.len()).sum());
    Ok(trees)
}

/// True if the source (end 0) or destination (end 1) covers 2^16 addresses of IPv4, or a /48.
fn is_wide(family: Family, cube: &Cube, end: usize) -> bool {
    let at = if family == Family::V4 { end } else { end * 4 + 1 };
    cube.hi[at] - cube.lo[at] >= 0xffff
}

fn one(
    family: Family,
    cubes: &[Cube],
    depth: u32,
    budget: &Budget<'_>,
) -> Result<Tree, CompileError> {
    let mut builder = Builder { family, tree: Tree::default(), budget };
    let mut cubes = cubes.to_vec();
    cubes.sort_by_key(|cube| cube.rule);
    builder.node(cubes, &mut family.space(), depth)?;
    Ok(builder.tree)
}

impl Tree {
    /// What a walk costs: a step of a leaf costs about as much as four nodes.
    fn cost(&self) -> usize {
        8 + self.depth as usize + 8 * self.steps.0 / self.steps.1.max(1)
    }
}

impl Builder<'_> {
    /// Adds the tree of these boxes in `region`, and returns its node.
    fn node(
        &mut self,
        mut cubes: Vec<Cube>,
        region: &mut Cube,
        depth: u32,
    ) -> Result<u32, CompileError> {
        self.budget.go_on()?;
        let dims = self.family.dims();
        let covers = |cube: &Cube| {
            (0..dims).all(|d| cube.lo[d] <= region.lo[d] && cube.hi[d] >= region.hi[d])
        };
        if let Some(last) = cubes.iter().position(|cube| cube.sure && covers(cube)) {
            cubes.truncate(last + 1);
        }
        let at = self.tree.nodes.len() as u32;
        let cut =
            if cubes.len() <= LEAF || depth >= DEPTH { None } else { cut(dims, &cubes, region) };
        let Some((dim, threshold)) = cut else {
            // A list is a tree of one leaf.
            self.tree.depth = self.tree.depth.max(if at == 0 { 0 } else { depth });
            let leaf = self.leaf(&cubes)?;
            self.tree.nodes.push([0, u32::MAX, at, leaf]);
            return Ok(at);
        };
        self.tree.nodes.push([dim as u32, threshold, IS_LEAF, IS_LEAF]);
        let (left, right): (Vec<Cube>, Vec<Cube>) = (
            cubes.iter().copied().filter(|cube| cube.lo[dim] <= threshold).collect(),
            cubes.iter().copied().filter(|cube| cube.hi[dim] > threshold).collect(),
        );
        drop(cubes);
        let whole = (region.lo[dim], region.hi[dim]);
        region.hi[dim] = threshold;
        let below = self.node(left, region, depth + 1)?;
        (region.lo[dim], region.hi[dim]) = (threshold + 1, whole.1);
        let beyond = self.node(right, region, depth + 1)?;
        (region.lo[dim], region.hi[dim]) = whole;
        self.tree.nodes[at as usize][2..].copy_from_slice(&[below, beyond]);
        Ok(at)
    }

    fn leaf(&mut self, cubes: &[Cube]) -> Result<u32, CompileError> {
        let at = self.tree.leaves.len();
        let steps = cubes.chunks(LANES);
        self.tree.steps.0 += steps.len();
        self.tree.steps.1 += 1;
        self.tree.leaves.push(steps.len() as u32);
        for step in steps {
            for dim in 0..self.family.dims() {
                let lane = |i: usize| step.get(i);
                // The empty lanes have no rule.
                self.tree.leaves.extend((0..LANES).map(|i| lane(i).map_or(0, |c| c.lo[dim])));
                self.tree
                    .leaves
                    .extend((0..LANES).map(|i| lane(i).map_or(0, |c| c.hi[dim] - c.lo[dim])));
            }
            self.tree.leaves.extend((0..LANES).map(|i| step.get(i).map_or(u32::MAX, |c| c.rule)));
        }
        self.budget.hold(self.tree.nodes.len(), self.tree.leaves.len())?;
        Ok(at as u32)
    }
}

/// The dimension and threshold that divide the boxes best; `None` if no cut is worth a node.
fn cut(dims: usize, cubes: &[Cube], region: &Cube) -> Option<(usize, u32)> {
    let n = cubes.len();
    let mut best: Option<(usize, (usize, u32))> = None;
    let (mut los, mut his) = (Vec::with_capacity(n), Vec::with_capacity(n));
    for dim in 0..dims {
        los.clear();
        his.clear();
        los.extend(cubes.iter().map(|cube| cube.lo[dim]));
        his.extend(cubes.iter().map(|cube| cube.hi[dim]));
        los.sort_unstable();
        his.sort_unstable();
        let ends = his.iter().copied().chain(los.iter().filter_map(|lo| lo.checked_sub(1)));
        let mut ends: Vec<u32> =
            ends.filter(|end| (region.lo[dim]..region.hi[dim]).contains(end)).collect();
        ends.sort_unstable();
        ends.dedup();
        let (mut below, mut ended) = (0, 0);
        for end in ends {
            below += los[below..].iter().take_while(|lo| **lo <= end).count();
            ended += his[ended..].iter().take_while(|hi| **hi <= end).count();
            let (left, right) = (below, n - ended);
            let cost = left * left + right * right;
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, (dim, end)));
            }
        }
    }
    best.filter(|(cost, _)| 20 * cost < 39 * n * n).map(|(_, cut)| cut)
}
