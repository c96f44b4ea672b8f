//! Sums of ticks, by stage and direction, of packet dispatch.

use port::stamp::{self, Spent, Stage};

/// The stages of sending, in order.
pub const TRANSMIT: [Stage; 6] =
    [Stage::Application, Stage::Stack, Stage::Driver, Stage::Kick, Stage::Gather, Stage::Switch];
/// The stages of receiving, in order.
pub const RECEIVE: [Stage; 8] = [
    Stage::Deliver,
    Stage::Copy,
    Stage::Publish,
    Stage::WakeUp,
    Stage::Driver,
    Stage::Stack,
    Stage::Application,
    Stage::Kick,
];

/// Datagrams of a block.
pub const DATAGRAMS: u32 = 32;

/// The sums over a block of datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    /// Ticks in all.
    pub total: u64,
    /// What the stages have taken until the switch has decided, and from then on. Zero without
    /// stamps.
    pub transmit: Spent,
    pub receive: Spent,
    /// Register accesses of the sender and of the receiver.
    pub accesses: [u64; 2],
}

impl Block {
    /// Adds a datagram: what was spent until the guest had sent it, in the switch, and until the
    /// other guest had received it.
    pub fn add(&mut self, sent: Option<Spent>, switched: Option<Spent>, received: Option<Spent>) {
        for (spent, to) in [(sent, &mut self.transmit), (received, &mut self.receive)] {
            if let Some(spent) = spent {
                add(to, &spent, |_| true);
            }
        }
        if let Some(spent) = switched {
            add(&mut self.transmit, &spent, |stage| !receives(stage));
            add(&mut self.receive, &spent, receives);
        }
    }
}

/// True for the stages of the switch that belong to the receiver.
fn receives(stage: usize) -> bool {
    [Stage::Deliver, Stage::Copy, Stage::Publish].iter().any(|of| *of as usize == stage)
}

fn add(to: &mut Spent, spent: &Spent, belongs: impl Fn(usize) -> bool) {
    for stage in (0..Stage::COUNT).filter(|stage| belongs(*stage)) {
        to.ticks[stage] += spent.ticks[stage];
        to.stamps[stage] += spent.stamps[stage];
    }
}

/// What the runs of a row have measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The guests' NICs.
    pub nic: &'static str,
    /// Bytes of the datagrams.
    pub len: usize,
    pub blocks: Vec<Block>,
}

impl Measured {
    /// True if the other is of the same row.
    pub fn is_of(&self, other: &Self) -> bool {
        (self.nic, self.len) == (other.nic, other.len)
    }

    /// Adds another run.
    pub fn add(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
    }
}

/// The middle half of the blocks, by their totals: the others were interrupted, or ran ahead.
pub fn middle(blocks: &[Block]) -> Vec<Block> {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable_by_key(|block| block.total);
    let quarter = sorted.len() / 4;
    sorted[quarter..sorted.len() - quarter].to_vec()
}

/// What a stamp costs, in ticks: from one to the next with nothing between them. 0 without stamps.
pub fn cost_of_stamp() -> f64 {
    const SCOPES: usize = 100_000;
    let costs = (0..5).map(|_| {
        let _ = stamp::take();
        (0..SCOPES).for_each(|_| drop(stamp::scope(Stage::Outside)));
        let Some(spent) = stamp::take() else { return 0.0 };
        let outside = Stage::Outside as usize;
        spent.ticks[outside] as f64 / spent.stamps[outside].max(1) as f64
    });
    costs.fold(f64::INFINITY, f64::min)
}

/// Ticks of a stage for one datagram, without its stamps.
pub fn ticks(spent: impl Iterator<Item = Spent>, stage: Stage, cost: f64) -> f64 {
    let (mut ticks, mut stamps, mut blocks) = (0, 0, 0);
    for spent in spent {
        ticks += spent.ticks[stage as usize];
        stamps += spent.stamps[stage as usize];
        blocks += 1;
    }
    let datagrams = f64::from(blocks * DATAGRAMS).max(1.0);
    ((ticks as f64 - stamps as f64 * cost) / datagrams).max(0.0)
}

/// Ticks of a datagram in all: with stamps, of all its stages.
pub fn total(blocks: &[Block]) -> f64 {
    let middle = middle(blocks);
    let datagrams = (middle.len() as f64 * f64::from(DATAGRAMS)).max(1.0);
    if !port::stamp::STAMPED {
        return middle.iter().map(|block| block.total as f64).sum::<f64>() / datagrams;
    }
    let cost = cost_of_stamp();
    let sent = TRANSMIT.map(|stage| ticks(middle.iter().map(|b| b.transmit), stage, cost));
    let received = RECEIVE.map(|stage| ticks(middle.iter().map(|b| b.receive), stage, cost));
    sent.iter().chain(&received).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(stage: Stage, ticks: u64, stamps: u64) -> Spent {
        let mut spent = Spent::default();
        (spent.ticks[stage as usize], spent.stamps[stage as usize]) = (ticks, stamps);
        spent
    }

    #[test]
    fn the_switchs_stages_are_the_senders_until_it_has_decided() {
        let mut block = Block::default();
        let mut switched = spent(Stage::Switch, 100, 1);
        add(&mut switched, &spent(Stage::Copy, 40, 2), |_| true);
        block.add(Some(spent(Stage::Stack, 7, 1)), Some(switched), Some(spent(Stage::Stack, 9, 1)));
        let of = |spent: &Spent, stage| ticks(std::iter::once(*spent), stage, 2.0);
        let datagrams = f64::from(DATAGRAMS);
        assert_eq!(of(&block.transmit, Stage::Switch) * datagrams, 98.0);
        assert_eq!(of(&block.transmit, Stage::Copy), 0.0);
        assert_eq!(of(&block.receive, Stage::Copy) * datagrams, 36.0);
        assert_eq!(of(&block.receive, Stage::Stack) * datagrams, 7.0);
    }

    #[test]
    fn interrupted_blocks_do_not_count() {
        let block = |total| Block { total, ..Block::default() };
        let totals: Vec<u64> =
            middle(&[1_000_000, 320, 321, 5].map(block)).iter().map(|block| block.total).collect();
        assert_eq!(totals, [320, 321]);
    }
}
