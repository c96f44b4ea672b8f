//! How the control thread adds, changes and removes ports.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use fabric::{Monitor, PortSpec, Ports, Rules};
use jail::strangers::Descriptor;
use shmem::budget::Account;
use turn::attach::{AttachError, Attached, Exit};
use turn::clock;
use turn::port_link::PortLinks;
use turn::serve::Served;
use turn::set_addresses;
use turn::state::PortState;

use super::guests::Guest;
use super::remakes::Remakes;
use super::{Process, Record};
use crate::attach::Place;
use crate::attach::vxlan::{self, Handle, VxlanConfig};
use crate::config::{Attachment, Policy, PortConfig, PortId};
use crate::control::Answer;
use crate::worker::{Job, Table};

/// The worker a port will be served by and what it serves, or why the port was not added.
pub(super) type AddedPort = Result<(u16, Box<Served>), String>;

/// The parts of a new port.
struct Halves {
    attached: Attached,
    /// The port that this one monitors.
    monitor: Option<Monitor>,
    /// The port's front end.
    guest: Option<Guest>,
    /// The tunnel of the port, if the port is a tunnel.
    tunnel: Option<Handle>,
}

impl Halves {
    fn new(attached: Attached) -> Self {
        Self { attached, monitor: None, guest: None, tunnel: None }
    }
}

/// Development builds read these environment variables. Each names a port, and what happens when
/// that port hands in a frame. Tests use them.
#[cfg(debug_assertions)]
const TEST_FAULTS: [(&str, fn()); 2] = [
    ("TOKLAT_TEST_CRASH", || std::process::abort()),
    ("TOKLAT_TEST_HANG", || std::thread::sleep(std::time::Duration::MAX)),
];

/// The remains of a removed port. Its worker returned `served`, unless the port failed.
pub(super) struct RemovedPort {
    id: PortId,
    served: Option<Box<Served>>,
    record: Option<Record>,
}

impl Process {
    pub(super) fn record(&mut self, id: PortId) -> Result<&mut Record, String> {
        let record = self.ports.get_mut(usize::from(id)).and_then(Option::as_mut);
        record.ok_or_else(|| format!("There is no port number {id}"))
    }

    pub(super) fn add_port(
        &mut self,
        id: PortId,
        config: PortConfig,
        descriptors: Vec<Descriptor>,
        resume: bool,
    ) -> AddedPort {
        let whose = |fd: Descriptor| match config.attachment.has_stranger() {
            true => fd.charged_to(config.uid),
            false => Descriptor::ours(fd.into_ours()),
        };
        let descriptors: Vec<_> = descriptors.into_iter().map(whose).collect();
        if self.ports.get(usize::from(id)).is_some_and(Option::is_some) {
            return Err(format!("Port number {id} is in use"));
        }
        self.check_trusted(&config)?;
        let mut links = PortLinks::new(&config.policy, &self.files).map_err(|e| e.to_string())?;
        let state =
            self.state.port(id).ok_or_else(|| format!("The switch has no port number {id}"))?;
        let user = self.user_of(config.uid)?;
        let standing = user.standing();
        let state = state.paid_by(user);
        if !resume {
            // Removes entries of the number's last holder, which may have gone while no data
            // process ran.
            self.common.fdb.detach(id);
            self.filtering.forget_port(id);
            if self.state.switch().has_port(id) {
                state.retire(self.state.switch());
                self.state.switch().set_port(id, false);
            }
        }
        self.common.fdb.set_user(id, config.uid, self.limits.of(config.uid).addresses);
        let kept =
            duplicate(&descriptors).map_err(|e| format!("Cannot duplicate descriptors: {e}"))?;
        let account = self.open_account(config.uid);
        let halves = self.attach(id, &account, &config, descriptors, &state, resume);
        let Halves { attached, monitor, guest, tunnel } = halves.map_err(|e| explain(&e))?;
        let Attached { source, egresses, bells } = attached;
        let counters = state.ingress().ok_or("The port's counters are missing")?;
        let worker = self.choose_worker(config.worker);
        self.instances += 1;
        let received = state.received();
        let receiving = links.receiving(&egresses, &config.policy, &received);
        let spec = PortSpec {
            id,
            instance: self.instances,
            name: config.name.clone(),
            rules: rules_of(&config.policy, &config.attachment),
            send_queues: source.queues() as u16,
            counters: counters.clone(),
            linked: receiving.exits,
            egresses,
            received,
            monitor,
            tunnel: config.attachment.is_tunnel(),
        };
        if self.ports.len() <= usize::from(id) {
            self.ports.resize_with(usize::from(id) + 1, || None);
        }
        match self.set_addresses(id, &config.policy, &Policy::default()) {
            // A restored port is added all the same: its addresses are learned as usual.
            Err(reason) if !resume => return Err(reason),
            _ => (),
        }
        self.state.switch().set_port(id, true);
        state.set_failed(false);
        state.set_standing(standing);
        let served = Served::new(id, source, counters, clock());
        let watch = self.watch_of_new(config.attachment.lends_memory(), &state);
        let served = served.linked(&config.policy, receiving.far, &mut links).watched(watch);
        #[cfg(debug_assertions)]
        let served = {
            let is_named = |key: &&(&str, fn())| std::env::var(key.0).as_ref() == Ok(&config.name);
            served.with_mishap(TEST_FAULTS.iter().find(is_named).map(|(_, happens)| *happens))
        };
        let descriptors = kept;
        let remakes = Remakes::default();
        let idle = None;
        let record = Record {
            config,
            spec,
            descriptors,
            bells,
            worker,
            account,
            remakes,
            guest,
            tunnel,
            idle,
            links,
        };
        self.ports[usize::from(id)] = Some(record);
        self.note_memory(id);
        Ok((worker, Box::new(served)))
    }

    /// Makes a port's halves from an attachment and its descriptors.
    fn attach(
        &mut self,
        id: PortId,
        account: &Arc<Account>,
        config: &PortConfig,
        descriptors: Vec<Descriptor>,
        state: &PortState,
        resume: bool,
    ) -> Result<Halves, AttachError> {
        if let Attachment::VhostUser(_) | Attachment::VfioUser(_) = config.attachment {
            let (attached, guest) = self.attach_guest(id, account, config, descriptors, resume)?;
            return Ok(Halves { guest: Some(guest), ..Halves::new(attached) });
        }
        if let Attachment::Vxlan(tunnel) = &config.attachment {
            let descriptors = descriptors.into_iter().map(Descriptor::into_ours).collect();
            let (table, vlans) = (self.common.fdb.entries().clone(), &config.policy.vlan);
            let (attached, handle) = vxlan::attach(tunnel, descriptors, id, state, table, vlans)?;
            return Ok(Halves { tunnel: Some(handle), ..Halves::new(attached) });
        }
        let place = Place { name: &config.name, state, account, resume };
        let (attached, monitor) = config.attachment.attach(descriptors, place)?;
        Ok(Halves { monitor, ..Halves::new(attached) })
    }

    /// The requested worker, or the one with the fewest ports.
    fn choose_worker(&self, wanted: Option<u16>) -> u16 {
        let workers = self.common.workers.len() as u16;
        let ports =
            |worker: &u16| self.ports.iter().flatten().filter(|p| p.worker == *worker).count();
        wanted.filter(|w| *w < workers).or_else(|| (0..workers).min_by_key(ports)).unwrap_or(0)
    }

    /// Enters a port's configured addresses into the table, and removes earlier ones.
    fn set_addresses(&self, id: PortId, policy: &Policy, earlier: &Policy) -> Result<(), String> {
        set_addresses(&self.common.fdb, id, policy, earlier, clock()).map_err(|e| explain(&e))
    }

    /// Swaps in a table of the current ports. Returns once no worker uses the old one.
    pub(super) fn publish(&self) {
        let bells = |port: &Option<Record>| port.as_ref().map(|port| port.bells.clone());
        let bells = self.ports.iter().map(|port| bells(port).unwrap_or_default()).collect();
        let ports = match self.watched_specs() {
            Some(specs) => Ports::build(specs.iter()),
            None => Ports::build(self.ports.iter().flatten().map(|record| &record.spec)),
        };
        let ports = ports.with_filters(self.filtering.filters());
        self.common.replace_table(Table { ports, bells });
    }

    /// Takes a port from its worker.
    pub(super) fn release(&self, id: PortId, worker: u16) -> Option<Box<Served>> {
        let (reply, answer) = sync_channel(1);
        self.common.workers[usize::from(worker)].send(Job::Release(id, reply));
        answer.recv().ok().flatten()
    }

    /// Takes a port from its worker and out of the record. Workers still have it in their table.
    pub(super) fn take_port(&mut self, id: PortId) -> Result<RemovedPort, String> {
        let record = self.record(id)?;
        let (worker, idle) = (record.worker, record.idle.take());
        let served = idle.or_else(|| self.release(id, worker));
        // Handles reports of the worker first, so that they do not hit the next port with this
        // number.
        self.take_out_failed();
        Ok(RemovedPort { id, served, record: self.ports[usize::from(id)].take() })
    }

    /// Drops a port that no worker uses any more.
    pub(super) fn retire_port(&self, RemovedPort { id, served, record }: RemovedPort) {
        self.common.fdb.detach(id);
        self.filtering.forget_port(id);
        if let Some(mut served) = served {
            if self.trusted.is_some() {
                hang_up(&mut served, record.as_ref());
            }
            served.abandon();
        }
        if let Some(Record { spec, config, .. }) = &record
            && config.attachment.rings().is_some_and(|rings| rings.supervised)
        {
            spec.egresses.iter().for_each(Exit::return_buffers);
        }
        // The port's memory is unmapped only here, when no worker is in its rings.
        if let Some(mut guest) = record.and_then(|record| record.guest) {
            guest.front_end_mut().lost_worker();
        }
        if let Some(state) = self.state.port(id) {
            state.retire(self.state.switch());
            self.state.switch().set_port(id, false);
        }
    }

    pub(super) fn set_policy(&mut self, id: PortId, policy: &Policy) -> Result<Answer, String> {
        self.check_rules(policy)?;
        let files = self.files.clone();
        PortLinks::new(policy, &files).map_err(|error| error.to_string())?;
        let earlier = self.record(id)?.config.policy.clone();
        self.set_addresses(id, policy, &earlier)?;
        let record = self.record(id)?;
        let worker = usize::from(record.worker);
        let changes = record.links.change((policy, &earlier), &files, &mut record.spec);
        let changes = changes.map_err(|error| error.to_string())?;
        if let Some(tunnel) = &record.tunnel {
            tunnel.set_vlans(&policy.vlan);
        }
        record.spec.rules = rules_of(policy, &record.config.attachment);
        record.config.policy = policy.clone();
        self.publish();
        self.write_board();
        for change in changes {
            self.common.workers[worker].send(Job::Link(id, change));
        }
        // A link that was changed in place may have frames due earlier.
        self.common.workers[worker].send(Job::Wake(id));
        if policy.vlan != earlier.vlan {
            self.common.fdb.flush(Some(id), None);
        }
        self.announce_policy(id);
        Ok(Answer::Done)
    }

    pub(super) fn read_format(&mut self, id: PortId) -> Result<Answer, String> {
        self.record(id)?.spec.egresses.iter().for_each(Exit::read_format);
        Ok(Answer::Done)
    }

    pub(super) fn move_port(&mut self, id: PortId, worker: u16) -> Result<Answer, String> {
        let workers = self.common.workers.len();
        if self.trusted.is_some() {
            return Err("No worker serves the ports of a trusted switch".to_owned());
        }
        if usize::from(worker) >= workers {
            return Err(format!("The switch has workers 0 to {}", workers - 1));
        }
        let from = std::mem::replace(&mut self.record(id)?.worker, worker);
        self.record(id)?.config.worker = Some(worker);
        match self.release(id, from) {
            Some(served) => self.common.workers[usize::from(worker)].send(Job::Serve(served)),
            None => return Err(format!("Port number {id} failed and is not served; remove it")),
        }
        Ok(Answer::Done)
    }

    pub(super) fn add_fdb(
        &mut self,
        mac: frame::Mac,
        vlan: Option<frame::VlanId>,
        port: PortId,
    ) -> Result<Answer, String> {
        self.record(port)?;
        if mac.is_group() || mac.word() == 0 {
            return Err(format!("{mac} is not a unicast address; only those are at a port"));
        }
        let filter = vlan.map_or(0, frame::VlanId::get);
        let added = self.common.fdb.add_static(filter, mac, port, clock());
        added.then_some(Answer::Done).ok_or_else(|| "The forwarding table is full".to_owned())
    }
}

/// Ends a port of a trusted switch: others may have filled its rings, and have its token.
fn hang_up(served: &mut Served, record: Option<&Record>) {
    served.source.refresh();
    if let Some(token) = record.and_then(|record| record.descriptors.get(1)) {
        let _ = rustix::net::shutdown(token, rustix::net::Shutdown::Both);
    }
}

/// A port's rules. Where routes say which stations are behind a tunnel, frames do not.
fn rules_of(policy: &Policy, attachment: &Attachment) -> Rules {
    let mut rules = policy.clone();
    if let Attachment::Vxlan(VxlanConfig { flooded: Some(_), .. }) = attachment {
        rules.mac_limit = 0;
    }
    rules
}

fn duplicate(descriptors: &[Descriptor]) -> std::io::Result<Vec<Descriptor>> {
    descriptors.iter().map(Descriptor::try_clone).collect()
}

/// An error with its causes, in one line.
fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
