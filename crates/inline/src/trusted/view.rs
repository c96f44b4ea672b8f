//! What a process knows of a trusted switch: private copies of what the state memory says.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fabric::{Fdb, PortSpec, Ports, Rules};
use netring::layout::Geometry;
use port::{MapGuard, Nanos, PortId, SoleWorker};
use rustix::net::SendFlags;
use shmem::budget::Account;
use shmem::{LentWindow, Mapping, Memfd};
use topology::SwitchConfig;
use turn::attach::{self, Attached, Exit};
use turn::board::{Board, Entry};
use turn::serve::{Served, Switch, Tools};
use turn::state::State;

use super::Supply;

/// The maximum number of descriptors that a process keeps to wake owners of ports.
const MOST_BELLS: usize = 64;

/// A port.
struct Peer {
    entry: Entry,
    /// The epoch of its slot.
    changed: u64,
    /// The rings of the peer; `None` while their memory is not mapped.
    halves: Option<(Served, PortSpec<Exit>)>,
}

/// The process's copies.
pub(super) struct View {
    state: State,
    fdb: Fdb,
    tools: Tools,
    table: Ports<Exit>,
    peers: BTreeMap<PortId, Peer>,
    supply: Box<dyn Supply>,
    /// Mapped memory files, by inode.
    memory: HashMap<u64, Arc<Mapping>>,
    /// The switch's ends of tokens, by the instance of their port.
    bells: HashMap<u64, OwnedFd>,
    /// Ports that the daemon does not know any more.
    lost: HashSet<u64>,
    /// Ports that could not be had, and when they are asked for again.
    absent: HashMap<u64, Nanos>,
    /// Ports whose owners are to be woken.
    kicks: Vec<PortId>,
    /// The names of the ports whose bells are not kept.
    late: Vec<String>,
    /// The number of this process as a holder.
    holder: u64,
    epoch: u64,
    deaths: u64,
    /// The end of the table's journal at our last turn.
    journal: u64,
    /// The second in which the table's entries were counted last.
    counted: u64,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({} ports, epoch {})", self.peers.len(), self.epoch)
    }
}

impl View {
    /// An empty one. The caller holds the board's lock.
    pub fn new(
        state: State,
        board: &Board,
        config: &SwitchConfig,
        supply: Box<dyn Supply>,
    ) -> Option<Self> {
        // SAFETY: all processes deliver to the switch's egresses as holders of the board's lock, so
        // one thread at a time does.
        let sole = unsafe { SoleWorker::new() };
        let stall = u64::from(config.stall_timeout_ms) * Nanos::MILLI;
        Some(Self {
            fdb: state.open_fdb()?,
            tools: Tools::new(config.batch, stall, Some(sole), state.recorder().clone()),
            table: Ports::default(),
            peers: BTreeMap::new(),
            supply,
            memory: HashMap::new(),
            bells: HashMap::new(),
            lost: HashSet::new(),
            absent: HashMap::new(),
            kicks: Vec::new(),
            late: Vec::new(),
            holder: board.new_holder(),
            // The board's epoch is another one, unless it was never written.
            epoch: 0,
            deaths: board.deaths(),
            journal: state.journal().end(),
            counted: 0,
            state,
        })
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn lend(&mut self, file: u64, mapping: Arc<Mapping>) {
        self.memory.insert(file, mapping);
    }

    /// Repairs what a holder left that died: counts the frames it had, and wakes everyone, because
    /// it may have delivered and not woken. The caller holds the lock.
    #[cold]
    pub fn repair(&mut self, board: &Board) {
        board.count_death();
        self.state.count_lost();
        self.kicks.extend(self.peers.keys());
        self.wake();
    }

    /// Reads what others have changed. Returns the ports whose memory or bell is to be
    /// [fetched](Self::fetch). The caller holds the lock.
    #[inline]
    pub fn catch_up(&mut self, board: &Board, now: Nanos) -> Vec<PortId> {
        if !self.absent.is_empty() {
            self.ask_again(now);
        }
        if board.epoch() != self.epoch {
            let missing = self.read(board);
            if !missing.is_empty() {
                return missing;
            }
            self.epoch = board.epoch();
        }
        if board.enter(self.holder) || board.deaths() != self.deaths {
            self.refresh(board, now);
        }
        Vec::new()
    }

    /// Has ports looked for again that could not be had.
    #[cold]
    fn ask_again(&mut self, now: Nanos) {
        let before = self.absent.len();
        self.absent.retain(|_, again| now < *again);
        if self.absent.len() < before {
            // No epoch of the board: the slots are read again.
            self.epoch = u64::MAX;
        }
    }

    /// Another process was the switch meanwhile.
    #[inline(never)]
    fn refresh(&mut self, board: &Board, now: Nanos) {
        let served = self.peers.values_mut().filter_map(|peer| peer.halves.as_mut());
        served.for_each(|(served, _)| served.source.refresh());
        let died = std::mem::replace(&mut self.deaths, board.deaths()) != self.deaths;
        let moved = self.journal != self.state.journal().end();
        // Shares of the table are counted late rather than in each turn.
        if died || moved && self.counted != now.seconds() {
            self.counted = now.seconds();
            self.fdb.take_stock();
        } else if moved {
            self.fdb.note_moves();
        }
    }

    /// Reads the slots that have changed, and plugs the ports in.
    #[cold]
    fn read(&mut self, board: &Board) -> Vec<PortId> {
        let there: Vec<PortId> = self.state.ports().collect();
        self.peers.retain(|id, _| there.binary_search(id).is_ok());
        for id in there {
            let changed = board.changed(id);
            if self.peers.get(&id).is_some_and(|peer| peer.changed == changed) {
                continue;
            }
            self.peers.remove(&id);
            if let Some(entry) = board.read(id) {
                self.peers.insert(id, Peer { entry, changed, halves: None });
            }
        }
        let missing = self.peers.iter().filter(|(_, peer)| self.lacks(peer));
        let missing: Vec<_> = missing.map(|(id, _)| *id).collect();
        if missing.is_empty() {
            self.forget();
            self.plug_in();
        }
        missing
    }

    fn lacks(&self, peer: &Peer) -> bool {
        let Entry { instance, file, .. } = &peer.entry;
        let bell = self.bells.contains_key(instance) || self.bells.len() >= MOST_BELLS;
        let given_up = self.lost.contains(instance) || self.absent.contains_key(instance);
        !(given_up || bell && self.memory.contains_key(file))
    }

    /// Drops what belonged to ports that are gone.
    fn forget(&mut self) {
        let entries = || self.peers.values().map(|peer| &peer.entry);
        let files: HashSet<u64> = entries().map(|entry| entry.file).collect();
        let instances: HashSet<u64> = entries().map(|entry| entry.instance).collect();
        self.memory.retain(|file, _| files.contains(file));
        self.bells.retain(|instance, _| instances.contains(instance));
        self.lost.retain(|instance| instances.contains(instance));
        self.absent.retain(|instance, _| instances.contains(instance));
    }

    /// Attaches ports that are new, and builds the table.
    fn plug_in(&mut self) {
        for (id, peer) in &mut self.peers {
            if peer.halves.is_none() {
                let mapping = self.memory.get(&peer.entry.file);
                peer.halves = mapping.and_then(|map| halves(&self.state, *id, &peer.entry, map));
            }
        }
        let plugged = self.peers.values().filter_map(|peer| peer.halves.as_ref());
        let specs: Vec<_> = plugged.map(|(_, spec)| spec.clone()).collect();
        self.table = Ports::build(specs.iter());
    }

    /// Asks for what belongs to these ports. A port that the daemon does not know is given up until
    /// it changes; after another error it is asked for again, a second later.
    #[cold]
    pub fn fetch(&mut self, ids: &[PortId], now: Nanos) {
        // Not by their names: a peer may have written one name into several slots.
        for peer in ids.iter().filter_map(|id| self.peers.get(id)) {
            let Entry { name, instance, file, rings, .. } = &peer.entry;
            let found = self.supply.port(name).map(|(memory, bell)| {
                let known = self.memory.get(file).cloned();
                Some((known.or_else(|| map(&memory, *file, &rings.geometry))?, bell))
            });
            match found {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    self.absent.insert(*instance, now + Nanos::SECOND);
                }
                Ok(Some((memory, bell))) => {
                    self.memory.insert(*file, memory);
                    if self.bells.len() < MOST_BELLS {
                        self.bells.insert(*instance, bell);
                    }
                }
                Ok(None) | Err(_) => drop(self.lost.insert(*instance)),
            }
        }
    }

    /// Gives a port a turn. Returns true if it has more to forward; `None` if there is no such
    /// port. The caller holds the lock.
    #[inline]
    pub fn serve(&mut self, id: PortId, file: u64, now: Nanos) -> Option<bool> {
        let peer = self.peers.get_mut(&id).filter(|peer| peer.entry.file == file)?;
        let (served, _) = peer.halves.as_mut()?;
        // SAFETY: regions stay mapped by the ports' rings, which are dropped between turns only.
        // No frame outlives its turn, because no port of a trusted switch is lossless or has a bad
        // link.
        let map = unsafe { MapGuard::assume_mapped() }.at(now);
        let (ports, fdb) = (&self.table, &self.fdb);
        let switch = Switch { ports, fdb, map: &map, now, draining: false, sleepless: false };
        let kicks = &mut self.kicks;
        // A worker that is woken does the same, in the same order.
        served.disarm();
        served.turn(&mut self.tools, switch, |port, _, effects| {
            if effects.kick {
                kicks.push(port);
            }
        });
        let more = served.arm(now);
        self.journal = self.state.journal().end();
        if !self.kicks.is_empty() {
            self.wake();
        }
        Some(more)
    }

    /// Wakes owners that sleep. Before the lock is freed: a process that dies here is repaired.
    #[cold]
    fn wake(&mut self) {
        for id in std::mem::take(&mut self.kicks) {
            let Some(Peer { entry, .. }) = self.peers.get(&id) else { continue };
            match self.bells.get(&entry.instance) {
                Some(bell) => ring(bell),
                None => self.late.push(entry.name.clone()),
            }
        }
    }

    /// Wakes owners whose bells are not kept, with bells of the daemon's. The caller does not hold
    /// the lock.
    #[inline]
    pub fn wake_late(&mut self) {
        if !self.late.is_empty() {
            self.ask_for_late();
        }
    }

    #[cold]
    fn ask_for_late(&mut self) {
        let mut again = Vec::new();
        for name in std::mem::take(&mut self.late) {
            match self.supply.port(&name) {
                Ok((_, bell)) => ring(&bell),
                Err(error) if error.kind() == ErrorKind::NotFound => (),
                // Its owner sleeps: a later turn asks again.
                Err(_) if again.contains(&name) => (),
                Err(_) => again.push(name),
            }
        }
        self.late = again;
    }
}

/// Wakes an owner. A byte that is pending has the same effect.
fn ring(bell: &OwnedFd) {
    let _ = rustix::net::send(bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Maps the rings of a port's memory, if it is the file with this inode and has them.
fn map(memory: &OwnedFd, file: u64, geometry: &Geometry) -> Option<Arc<Mapping>> {
    let stat = rustix::fs::fstat(memory).ok()?;
    // Checked before its size is computed, because a peer may have written it.
    geometry.check(Memfd::sealed_len(memory.as_fd()).ok()?).ok()?;
    if stat.st_ino != file {
        return None;
    }
    let window = LentWindow::map(memory.as_fd(), 0, geometry.file_size(), &Account::unlimited());
    window.ok().map(|window| Arc::clone(window.mapping()))
}

/// Plugs in a port from the state memory; `None` if its slot or its memory is not valid.
fn halves(
    state: &State,
    id: PortId,
    entry: &Entry,
    map: &Arc<Mapping>,
) -> Option<(Served, PortSpec<Exit>)> {
    let of_port = state.port(id)?;
    let attached = attach::ring::attach_mapped(map, None, &entry.rings, &of_port, true).ok()?;
    let Attached { source, egresses, .. } = attached;
    let counters = of_port.ingress()?;
    let served = Served::new(id, source, counters.clone(), Nanos(0));
    let spec = PortSpec {
        id,
        instance: entry.instance as u32,
        name: entry.name.clone(),
        rules: Rules { lossless: false, ..entry.policy.clone() },
        send_queues: served.source.queues() as u16,
        counters,
        linked: Vec::new(),
        egresses,
        received: of_port.received(),
        monitor: entry.monitor(),
        tunnel: false,
    };
    Some((served, spec))
}
