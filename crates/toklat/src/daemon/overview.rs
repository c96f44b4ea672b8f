//! What readers of counters need to know of a switch, without its lock.
//!
//! A switch is locked during requests to its data process, which may take long. Counters lie in
//! state memory, which needs no lock; only names and states of ports are the switch's. While a
//! switch is locked, readers use the last copy from when it was free.

use dataplane::config::PortId;
use dataplane::state::State;

use crate::api::{PortState, PortStats, SwitchStats};

/// A copy of a switch's state from when it was last free.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Its name.
    pub name: String,
    /// Its counters, as they are.
    pub view: State,
    /// Its ports.
    pub ports: Vec<(String, PortId, PortState)>,
    /// How many workers it has.
    pub workers: usize,
}

impl Overview {
    /// What is counted.
    pub fn stats(&self) -> SwitchStats {
        let ports = self.ports.iter().map(|(name, id, state)| PortStats {
            name: name.clone(),
            id: *id,
            state: *state,
            counters: self.view.port(*id).map(|port| port.snapshot()).unwrap_or_default(),
        });
        SwitchStats {
            name: self.name.clone(),
            totals: self.view.switch().snapshot(),
            ports: ports.collect(),
            workers: self.view.workers(self.workers),
        }
    }
}
