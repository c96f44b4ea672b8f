//! The link between a port and its switch: its rate limits and impairments.

use std::sync::{Arc, Mutex};

use link::{Impaired, Impairment, Limited, Limiter};
use port::{Egress, EgressCounters};
use shmem::Shared;
use topology::Policy;

use crate::attach::Exit;
use crate::user::Payer;

/// A receive queue behind a bad link. The port's worker flushes it.
pub type FarQueue = Arc<Impaired<Exit>>;

/// A change of a link, for the worker of its port.
#[derive(Debug)]
pub enum Change {
    /// The rate limit of frames that the port sends.
    Limiter(Option<Box<Limiter>>),
    /// The impairment of frames that the port sends.
    Sending(Option<Impairment>),
    /// The port's weight among those of its worker.
    Weight(u16),
    /// The payer for touches of the owner's memory, if these are timed.
    Watch(Option<Payer>),
    /// The port's receive queues, if the link impairs frames. The previous queues deliver all that
    /// they hold at once.
    Receiving(Vec<FarQueue>),
}

/// The receive queues that the switch calls in place of a port's own; empty if the link does
/// nothing.
#[derive(Debug, Default)]
pub struct Receiving {
    /// The receive queues behind the link.
    pub exits: Vec<Exit>,
    /// The receive queues behind an impaired link.
    pub far: Vec<FarQueue>,
}

/// True if the two policies differ in the link for what the port receives.
pub fn receives_differently(policy: &Policy, earlier: &Policy) -> bool {
    policy.rx_rate_limiter != earlier.rx_rate_limiter
        || policy.rx_impairment != earlier.rx_impairment
}

/// The changes from one policy to another in the link for what the port sends.
pub fn changes(policy: &Policy, earlier: &Policy) -> Vec<Change> {
    let mut changes = Vec::new();
    if policy.tx_rate_limiter != earlier.tx_rate_limiter {
        let limiter = policy.tx_rate_limiter.as_ref().and_then(Limiter::new);
        changes.push(Change::Limiter(limiter.map(Box::new)));
    }
    if policy.tx_impairment != earlier.tx_impairment {
        changes.push(Change::Sending(bad(policy.tx_impairment)));
    }
    if policy.weight != earlier.weight {
        changes.push(Change::Weight(policy.weight));
    }
    changes
}

fn bad(impairment: Option<Impairment>) -> Option<Impairment> {
    impairment.filter(|impairment| !impairment.is_off())
}

/// The receive queues of a port behind its link. `received` has the counters of each. The rate
/// limit comes first, as at the sender's end of a slow line.
pub fn receiving(
    queues: &[Exit],
    policy: &Policy,
    received: &[Shared<EgressCounters>],
) -> Receiving {
    let limiter = policy.rx_rate_limiter.as_ref().and_then(Limiter::new);
    let limiter = limiter.map(|limiter| Arc::new(Mutex::new(limiter)));
    let impairment = bad(policy.rx_impairment);
    let mut receiving = Receiving::default();
    if limiter.is_none() && impairment.is_none() {
        return receiving;
    }
    for (number, (queue, counters)) in queues.iter().zip(received).enumerate() {
        let mut exit = queue.clone();
        if let Some(impairment) = impairment {
            let far = Arc::new(Impaired::new(exit, number, impairment, counters.clone()));
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
