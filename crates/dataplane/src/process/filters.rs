//! The rules between ports, as the supervisor has compiled them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric::{Connections, Filters, PortFilter};
use jail::strangers::Descriptor;
use port::Nanos;
use rules::{Bundle, Direction, Prefix, Prefixes, Quota, Tables};
use shmem::{Memfd, SharedSlice};

use super::Process;
use crate::config::PortId;
use crate::control::{Answer, ConnectionEntry, LoggedFrame, MAX_CONNECTIONS, MAX_HITS};

/// How many ports can use up all connections: a port has a fourth at most.
const SHARES: usize = 4;
/// Entries that are looked at each second to forget what has expired.
const SWEEP: usize = 8192;

/// The rules of the switch and its connections.
#[derive(Default)]
pub(super) struct Filtering {
    filters: Option<Arc<Filters>>,
    memory: Option<SharedSlice<AtomicU64>>,
    /// The file that the memory is of.
    file: Option<(u64, u64)>,
}

impl Process {
    /// Puts rules into use. Returns once no worker uses the earlier ones.
    pub(super) fn set_rules(&mut self, descriptors: Vec<Descriptor>) -> Result<Answer, String> {
        let mut files = descriptors.into_iter().map(Descriptor::into_ours);
        let (Some(bundle), Some(memory)) = (files.next(), files.next()) else {
            return Err("Rules come with two memory files".to_owned());
        };
        let bundle = Memfd::adopt(bundle).map_err(|e| format!("Cannot read the rules: {e}"))?;
        let memory = Memfd::adopt(memory).map_err(|e| format!("Cannot use the memory: {e}"))?;
        let bundle = read(&bundle).ok_or("The rules are damaged, or of another version")?;
        let filters = self.filtering.make(bundle, &memory)?;
        self.filtering.filters = Some(Arc::new(filters));
        self.publish();
        Ok(Answer::Done)
    }
}

fn read(file: &Memfd) -> Option<Bundle> {
    let mapping = file.map().ok()?;
    let mut bytes = vec![0; mapping.len()];
    let copied = mapping.all().copy_out(&mut bytes);
    Bundle::from_bytes(&bytes[..copied])
}

impl Filtering {
    /// The rules, for a table of ports.
    pub fn filters(&self) -> Option<Arc<Filters>> {
        self.filters.clone()
    }

    fn make(&mut self, bundle: Bundle, memory: &Memfd) -> Result<Filters, String> {
        let connections = self.connections_in(memory)?;
        let mut ports: Vec<Option<PortFilter>> = Vec::new();
        for port in bundle.ports {
            let at = usize::from(port.id);
            if ports.len() <= at {
                ports.resize(at + 1, None);
            }
            let (program, groups, ips) = (port.program, port.groups, port.ips);
            ports[at] = Some(PortFilter { program, groups, ips });
        }
        let tables = bundle.tables.into_iter().map(|prefixes| {
            let table = Prefixes::default();
            prefixes.into_iter().for_each(|prefix| {
                table.add(prefix);
            });
            Arc::new(table)
        });
        let (generation, tables) = (bundle.generation, Tables(tables.collect()));
        Ok(Filters::new(generation, bundle.programs, tables, connections, ports))
    }

    /// The connections in `memory`: those of a predecessor, or those that this process had in other
    /// memory.
    fn connections_in(&mut self, memory: &Memfd) -> Result<Arc<Connections>, String> {
        let wrong = || "The memory for connections cannot be used".to_owned();
        let mapping = memory.map().map_err(|_| wrong())?;
        let words: SharedSlice<AtomicU64> =
            mapping.shared_slice(0, mapping.len() / 8).ok_or_else(wrong)?;
        if let (Some(filters), Some(old)) = (&self.filters, &self.memory) {
            let connections = filters.connections();
            if self.file == memory.identity() {
                return Ok(Arc::clone(connections));
            }
            let _held = lock(connections);
            for (to, from) in words.iter().zip(old.iter()) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        let entries = words.len() / 8;
        let key = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), entries);
        (self.memory, self.file) = (Some(words.clone()), memory.identity());
        let quota = Quota((entries / SHARES).max(1));
        Ok(Arc::new(Mutex::new(rules::Connections::open(words, quota, key))))
    }

    /// Forgets the connections of a port that is gone.
    pub fn forget_port(&self, id: PortId) {
        let filters = self.filters.iter();
        filters.for_each(|filters| lock(filters.connections()).forget_port(id));
    }

    /// Forgets connections that have expired.
    pub fn sweep(&self, now: Nanos) {
        let seconds = (now.0 / Nanos::SECOND) as u32;
        if let Some(filters) = &self.filters {
            // Workers wait for the lock, so it is held for short times.
            for _ in 0..SWEEP / 256 {
                lock(filters.connections()).sweep(seconds, 256);
            }
        }
    }

    pub fn change_table(
        &self,
        table: u32,
        add: &[String],
        remove: &[String],
    ) -> Result<Answer, String> {
        let tables = self.filters.as_ref().map(|filters| filters.tables());
        let found = tables.and_then(|tables| tables.0.get(table as usize));
        let table = found.ok_or_else(|| format!("There is no table number {table}"))?;
        let parse =
            |text: &String| text.parse::<Prefix>().map_err(|()| format!("{text} is not a prefix"));
        let add = add.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let remove = remove.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        for prefix in remove {
            table.remove(prefix);
        }
        for prefix in add {
            table.add(prefix);
        }
        Ok(Answer::Done)
    }

    pub fn hits(&self, program: u16, from: u32) -> Answer {
        let hits = self.filters.as_ref().map(|filters| filters.hits(program));
        let hits = hits.into_iter().flatten().skip(from as usize).take(MAX_HITS).collect();
        Answer::Hits { hits }
    }

    pub fn zero(&self) -> Answer {
        self.filters.iter().for_each(|filters| filters.zero());
        Answer::Done
    }

    /// The frames of rules with `log` since the last call.
    pub fn log(&self) -> Answer {
        let taken = self.filters.as_ref().map(|filters| filters.take_log());
        let (list, others) = taken.unwrap_or_default();
        let list = list.into_iter().map(|frame| LoggedFrame {
            port: frame.port,
            rule: frame.rule,
            sent: frame.direction == Direction::Out,
            allowed: frame.allowed,
            ip: frame.ip,
            protocol: frame.protocol,
            ports: frame.ports,
            len: frame.len,
        });
        Answer::Logged { list: list.collect(), others }
    }

    pub fn list(&self, now: Nanos) -> Answer {
        let Some(filters) = &self.filters else {
            return Answer::Connections { all: 0, refused: 0, evicted: 0, list: Vec::new() };
        };
        let connections = lock(filters.connections());
        let seconds = (now.0 / Nanos::SECOND) as u32;
        let list = connections.list(seconds, MAX_CONNECTIONS).map(|connection| {
            let tuple = connection.tuple;
            ConnectionEntry {
                protocol: tuple.protocol().0,
                source: tuple.source(),
                destination: tuple.destination(),
                vlan: tuple.vlan(),
                from: connection.from,
                to: connection.to,
                state: connection.state.name().to_owned(),
                expires_s: connection.expires_in,
            }
        });
        let list = list.collect();
        let (refused, evicted) = (connections.refused, connections.evicted);
        Answer::Connections { all: connections.len() as u64, refused, evicted, list }
    }
}

fn lock(connections: &Connections) -> MutexGuard<'_, rules::Connections<SharedSlice<AtomicU64>>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}
