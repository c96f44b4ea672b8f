//! The link between a port and its switch: its limits, and how bad it is.

use std::sync::{Arc, Mutex};

use link::{Impaired, Impairment, Limited, Limiter};
use port::{Egress, EgressCounters};
use shmem::Shared;

use crate::attach::Exit;
use crate::config::Policy;
use crate::user::Payer;

/// A receive queue behind a bad link, which its port's worker flushes.
pub(crate) type FarQueue = Arc<Impaired<Exit>>;

/// What changes at a link, for the worker of its port.
pub(crate) enum Change {
    /// How much the port may send.
    Limiter(Option<Box<Limiter>>),
    /// How bad the link is for what it sends.
    Sending(Option<Impairment>),
    /// Who pays for touches of its owner's memory, which are timed.
    Watch(Option<Payer>),
    /// Its receive queues, if the link is bad for them. Those before give what they hold away at once.
    Receiving(Vec<FarQueue>),
}

/// What the switch calls instead of a port's receive queues; none if nothing is between.
#[derive(Default)]
pub(crate) struct Receiving {
    pub exits: Vec<Exit>,
    /// Those behind a bad link.
    pub far: Vec<FarQueue>,
}

/// True if a port that gets these rules has another link for what it receives.
pub(crate) fn receives_differently(policy: &Policy, earlier: &Policy) -> bool {
    policy.rx_rate_limiter != earlier.rx_rate_limiter
        || policy.rx_impairment != earlier.rx_impairment
}

/// What a port with these rules changes at its link for what it sends.
pub(crate) fn changes(policy: &Policy, earlier: &Policy) -> Vec<Change> {
    let mut changes = Vec::new();
    if policy.tx_rate_limiter != earlier.tx_rate_limiter {
        let limiter = policy.tx_rate_limiter.as_ref().and_then(Limiter::new);
        changes.push(Change::Limiter(limiter.map(Box::new)));
    }
    if policy.tx_impairment != earlier.tx_impairment {
        changes.push(Change::Sending(bad(policy.tx_impairment)));
    }
    changes
}

fn bad(impairment: Option<Impairment>) -> Option<Impairment> {
    impairment.filter(|impairment| !impairment.is_off())
}

/// The receive queues of a port behind its link. What each counts is in `received`. A limit comes first, as at the
/// sender's end of a slow line.
pub(crate) fn receiving(
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
