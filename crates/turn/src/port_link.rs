//! The link between a port and its switch: its rate limits, and its lines.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fabric::PortSpec;
use link::{
    Impairment, Limited, Limiter, LinkConfig, LinkError, LinkStats, Linked, Meter, SharedMeter,
};
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

/// The content of files that links refer to, by name.
pub type Files = BTreeMap<String, Arc<str>>;

/// The lines of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lines {
    sending: Option<LinkConfig>,
    receiving: Option<LinkConfig>,
}

impl Lines {
    /// The lines of a policy, whose links are in words.
    fn of(policy: &Policy, files: &Files) -> Result<Self, LinkError> {
        let line = |link: &Option<String>, impairment: Option<Impairment>| {
            let mut line = match link {
                Some(words) => words.parse()?,
                None => impairment.map(LinkConfig::from).unwrap_or_default(),
            };
            line.read_files(|name| files.get(name).cloned())?;
            Ok(Some(line).filter(|line| !line.is_off()))
        };
        Ok(Self {
            sending: line(&policy.tx_link, policy.tx_impairment)?,
            receiving: line(&policy.rx_link, policy.rx_impairment)?,
        })
    }
}

/// The links of a port as the thread that configures it has them.
#[derive(Clone, Debug, Default)]
pub struct PortLinks {
    lines: Lines,
    /// The meters of its send queues, if they are behind a line.
    sending: Meters,
    /// Its receive queues, if they are behind a line.
    receiving: Vec<FarQueue>,
}

impl PortLinks {
    /// The links of a policy, whose words may name `files`.
    ///
    /// # Errors
    /// A word is invalid, or a file is missing.
    pub fn new(policy: &Policy, files: &Files) -> Result<Self, LinkError> {
        Ok(Self { lines: Lines::of(policy, files)?, ..Self::default() })
    }

    /// The counters of what the port sends and receives.
    #[must_use]
    pub fn stats(&self) -> [Option<LinkStats>; 2] {
        let receiving = self.receiving.iter().map(|far| far.meter().stats());
        [sum(self.sending.iter().map(|meter| meter.stats())), sum(receiving)]
    }

    /// The receive queues of a port behind its link. `received` has the counters of each. The rate
    /// limit comes first, as at the sender's end of a slow line.
    #[must_use]
    pub fn receiving(
        &mut self,
        queues: &[Exit],
        policy: &Policy,
        received: &[Shared<EgressCounters>],
    ) -> Receiving {
        let limiter = policy.rx_rate_limiter.as_ref().and_then(Limiter::new);
        let limiter = limiter.map(|limiter| Arc::new(Mutex::new(limiter)));
        let line = self.lines.receiving.as_ref();
        let mut receiving = Receiving::default();
        self.receiving.clear();
        if limiter.is_none() && line.is_none() {
            return receiving;
        }
        for (number, (queue, counters)) in queues.iter().zip(received).enumerate() {
            let mut exit = queue.clone();
            if let Some(line) = line.cloned() {
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
        self.receiving.clone_from(&receiving.far);
        receiving
    }

    /// The changes that a new port makes from a link that does nothing, for what it sends from
    /// `queues` queues.
    pub fn sending(&mut self, policy: &Policy, queues: usize) -> Vec<Change> {
        let lines = std::mem::take(&mut self.lines);
        let changes = self.change_sending(policy, &Policy::default(), &lines, queues);
        self.lines = lines;
        changes
    }

    /// Goes from one policy to another. Returns the changes for the port's worker. Changes the
    /// queues in `spec`, if they change.
    ///
    /// # Errors
    /// A word of the new policy is invalid, or a file is missing; nothing has changed.
    pub fn change(
        &mut self,
        (to, from): (&Policy, &Policy),
        files: &Files,
        spec: &mut PortSpec<Exit>,
    ) -> Result<Vec<Change>, LinkError> {
        let lines = Lines::of(to, files)?;
        let mut changes = self.change_sending(to, from, &lines, usize::from(spec.send_queues));
        let differs = lines.receiving != self.lines.receiving;
        self.lines = lines;
        let limited = to.rx_rate_limiter != from.rx_rate_limiter;
        match self.lines.receiving.as_ref().filter(|_| !limited && !self.receiving.is_empty()) {
            Some(line) if differs => self.receiving.iter().for_each(|far| far.set(line.clone())),
            _ if differs || limited => {
                let receiving = self.receiving(&spec.egresses, to, &spec.received);
                spec.linked = receiving.exits;
                changes.push(Change::Receiving(receiving.far));
            }
            _ => {}
        }
        Ok(changes)
    }

    fn change_sending(
        &mut self,
        to: &Policy,
        from: &Policy,
        lines: &Lines,
        queues: usize,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        if to.tx_rate_limiter != from.tx_rate_limiter {
            let limiter = to.tx_rate_limiter.as_ref().and_then(Limiter::new);
            changes.push(Change::Limiter(limiter.map(Box::new)));
        }
        if lines.sending != self.lines.sending {
            match lines.sending {
                None => self.sending.clear(),
                Some(_) => self.sending.resize_with(queues, || Arc::new(Meter::default())),
            }
            let line = lines.sending.clone();
            let line = line.map(|config| Line { config, meters: self.sending.clone() });
            changes.push(Change::Sending(line.map(Box::new)));
        }
        if to.weight != from.weight {
            changes.push(Change::Weight(to.weight));
        }
        changes
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
