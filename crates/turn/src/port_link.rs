//! The link between a port and its switch: its rate limits, and its lines.

use std::sync::{Arc, Mutex};

use link::{Limited, Limiter, LinkConfig, LinkStats, Linked, Meter, SharedMeter};
use port::{Egress, EgressCounters};
use shmem::Shared;
use topology::Policy;

use crate::attach::Exit;
use crate::user::Payer;

/// A receive queue behind a link. The port's worker flushes it.
pub type FarQueue = Arc<Linked<Exit>>;

/// A change of a link, for the worker of its port.
#[derive(Debug)]
pub enum Change {
    /// The rate limit of frames that the port sends.
    Limiter(Option<Box<Limiter>>),
    /// The link of frames that the port sends.
    Sending(Option<Box<Line>>),
    /// The port's weight among those of its worker.
    Weight(u16),
    /// The payer for touches of the owner's memory, if these are timed.
    Watch(Option<Payer>),
    /// The port's receive queues, if they are behind a link. The previous queues deliver all that
    /// they hold at once.
    Receiving(Vec<FarQueue>),
}

/// The link of what a port sends.
#[derive(Debug)]
pub struct Line {
    /// Its configuration.
    pub config: LinkConfig,
    /// The meter of each send queue.
    pub meters: Meters,
}

/// The meters of a port's queues in one direction.
pub type Meters = Vec<SharedMeter>;

/// The links of a port in both directions, for those who look.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// The meters of its send queues, if they are behind a link.
    pub sending: Meters,
    /// Its receive queues, if they are behind a link.
    pub receiving: Vec<FarQueue>,
}

impl Watched {
    /// The counters of what the port sends and receives.
    #[must_use]
    pub fn stats(&self) -> [Option<LinkStats>; 2] {
        let receiving = self.receiving.iter().map(|far| far.meter().stats());
        [sum(self.sending.iter().map(|meter| meter.stats())), sum(receiving)]
    }
}

fn sum(queues: impl Iterator<Item = LinkStats>) -> Option<LinkStats> {
    queues.reduce(|mut sum, more| {
        sum.add(&more);
        sum
    })
}

/// The receive queues that the switch calls in place of a port's own; empty if the link does
/// nothing.
#[derive(Debug, Default)]
pub struct Receiving {
    /// The receive queues behind the link.
    pub exits: Vec<Exit>,
    /// The receive queues behind a line.
    pub far: Vec<FarQueue>,
}

/// The line of what a port sends; `None` if it has none.
fn sending_line(policy: &Policy) -> Option<LinkConfig> {
    policy.tx_impairment.map(LinkConfig::from).filter(|line| !line.is_off())
}

/// The line of what a port receives; `None` if it has none.
fn receiving_line(policy: &Policy) -> Option<LinkConfig> {
    policy.rx_impairment.map(LinkConfig::from).filter(|line| !line.is_off())
}

/// True if the two policies differ in the link for what the port receives.
#[must_use]
pub fn receives_differently(policy: &Policy, earlier: &Policy) -> bool {
    policy.rx_rate_limiter != earlier.rx_rate_limiter
        || receiving_line(policy) != receiving_line(earlier)
}

/// Changes the lines of `far`, if that is all in which the two policies differ for what the port
/// receives. Returns false if its queues must be replaced.
#[must_use]
pub fn changes_in_place(policy: &Policy, earlier: &Policy, far: &[FarQueue]) -> bool {
    let Some(line) = receiving_line(policy).filter(|_| !far.is_empty()) else { return false };
    if policy.rx_rate_limiter != earlier.rx_rate_limiter {
        return false;
    }
    far.iter().for_each(|far| far.set(line.clone()));
    true
}

/// The changes from one policy to another in the link for what the port sends from `queues` queues.
/// Sets `meters` to those of its queues.
pub fn changes(
    policy: &Policy,
    earlier: &Policy,
    queues: usize,
    meters: &mut Meters,
) -> Vec<Change> {
    let mut changes = Vec::new();
    if policy.tx_rate_limiter != earlier.tx_rate_limiter {
        let limiter = policy.tx_rate_limiter.as_ref().and_then(Limiter::new);
        changes.push(Change::Limiter(limiter.map(Box::new)));
    }
    let line = sending_line(policy);
    if line != sending_line(earlier) {
        match line {
            None => meters.clear(),
            Some(_) => meters.resize_with(queues, || Arc::new(Meter::default())),
        }
        let meters = meters.clone();
        changes.push(Change::Sending(line.map(|config| Box::new(Line { config, meters }))));
    }
    if policy.weight != earlier.weight {
        changes.push(Change::Weight(policy.weight));
    }
    changes
}

/// The receive queues of a port behind its link. `received` has the counters of each. The rate
/// limit comes first, as at the sender's end of a slow line.
#[must_use]
pub fn receiving(
    queues: &[Exit],
    policy: &Policy,
    received: &[Shared<EgressCounters>],
) -> Receiving {
    let limiter = policy.rx_rate_limiter.as_ref().and_then(Limiter::new);
    let limiter = limiter.map(|limiter| Arc::new(Mutex::new(limiter)));
    let line = receiving_line(policy);
    let mut receiving = Receiving::default();
    if limiter.is_none() && line.is_none() {
        return receiving;
    }
    for (number, (queue, counters)) in queues.iter().zip(received).enumerate() {
        let mut exit = queue.clone();
        if let Some(line) = line.clone() {
            let linked = Linked::new(exit, number, line, Arc::default(), counters.clone());
            let far = Arc::new(linked);
            receiving.far.push(Arc::clone(&far));
            exit = Exit::from(far as Arc<dyn Egress>);
        }
        if let Some(limiter) = &limiter {
            let limited = Limited::new(exit, Arc::clone(limiter), counters.clone());
            exit = Exit::from(Arc::new(limited));
        }
        receiving.exits.push(exit);
    }
    receiving
}
