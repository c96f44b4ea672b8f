//! What clients of the attach socket can open: ports, monitors, pipes, and the switches that they
//! name.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::config::{Attachment, RingAttach, SwitchConfig};
use frame::OffloadSet;
use jail::strangers::Descriptor;
use netmap::broker::End as InterfaceEnd;
use netring::Monitor;

use super::attach::request::{How, Lent};
use super::hangups::Gone;
use super::netmap::end::{port_spec, wire_spec};
use super::netmap::hung_up;
use super::pipes::Opened;
use super::pipes::end::{End, PipeLayout, PipeName};
use super::quota::{Charge, File, Item, Paced};
use super::shared::{Handle, Locked, Whose};
use super::supervisor::{Claimed, Supervisor};
use super::switch::{Access, Attach, Port, Switch};
use super::{system, token_pair};
use crate::api::{ApiError, Client, ErrorCode, PortSpec};

/// How long a client at its limit waits until what it has just closed is released.
const CLOSING: Duration = Duration::from_millis(50);
/// Descriptors reserved from ports: for restarting data processes, and for the most connections
/// there may be. If the limit is too small for that, half of all descriptors.
const SPARE_DESCRIPTORS: u64 = 64
    + super::quota::MAX_CONNECTIONS
    + 2 * super::api_server::MAX_CONNECTIONS as u64
    + super::tcp_server::MAX_STRANGERS as u64;

/// A port for a client.
#[derive(Debug)]
pub struct OpenedPort {
    /// The port's number in its switch.
    pub port: u32,
    /// The largest frame of the port, in bytes.
    pub max_frame: u32,
    /// The client's end of the token.
    pub token: Descriptor,
    /// The port's owner forwards what it sends.
    pub trusted: bool,
    /// The port's name. A monitor's differs from the one that was asked for.
    pub name: String,
}

impl Supervisor {
    /// Handles hang-ups forever.
    ///
    /// # Errors
    /// The kernel's error while waiting.
    pub async fn watch_hangups(self: Arc<Self>) -> io::Result<()> {
        loop {
            let mut clients = BTreeMap::<(String, u32), Vec<_>>::new();
            for (watch, gone) in self.environment.hangups.next().await? {
                let this = Arc::clone(&self);
                match gone {
                    Gone::Pipe { name, end } => {
                        self.pipes.closed(&self.environment.hangups, &name, end, watch);
                    }
                    Gone::Netmap { cookie } => {
                        tokio::spawn(async move { hung_up(&this, cookie, watch).await });
                    }
                    Gone::Client { switch, port, uid } => {
                        clients.entry((switch, uid)).or_default().push((port, watch));
                    }
                    Gone::DataProcess { switch } => {
                        tokio::spawn(async move { this.data_process_gone(&switch, watch).await });
                    }
                }
            }
            for ((switch, uid), gone) in clients {
                let this = Arc::clone(&self);
                tokio::spawn(async move { this.clients_gone(&switch, uid, gone).await });
            }
        }
    }

    /// Charges a client. A client at its limit may have closed something just now, so it waits a
    /// moment.
    async fn charge(&self, client: Client, item: Item) -> Result<Charge, ApiError> {
        let ledger = &self.environment.ledger;
        if !ledger.allows(client.uid, &item) {
            tokio::time::sleep(CLOSING).await;
        }
        ledger.charge(client.uid, item)
    }

    async fn charge_memory(&self, client: Client, memory: &Lent) -> Result<Charge, ApiError> {
        let file =
            File::of(memory.file.as_fd()).map_err(|e| system("Cannot measure the region", e))?;
        self.charge(client, Item::Memory(file)).await
    }

    /// Finds the switch of this name. If a client names one that does not exist, it is made and
    /// charged to the client.
    async fn find_or_make(
        &self,
        client: Client,
        name: &str,
        port: &str,
    ) -> Result<Handle, ApiError> {
        if let Some(handle) = self.handle(name) {
            return Ok(handle);
        }
        // The switches of interfaces are made for netmap programs alone.
        if !self.options.auto_switch || InterfaceEnd::of(name).is_some() {
            return self.switch(name);
        }
        let config = SwitchConfig::default();
        // The check comes first, so that no process is started for a client that gets no port.
        let of = config.max_ports.into();
        let item = Item::Port { switch: name.into(), port: port.into(), of, own: false };
        let port = self.charge(client, item).await;
        let switch = self.charge(client, Item::Switch).await;
        tokio::time::sleep(self.environment.ledger.pace(client.uid, Paced::Switch, Instant::now()))
            .await;
        let _claim = match self.claim_name(name).await {
            Claimed::Exists(handle) => return Ok(handle),
            Claimed::ToMake(claim) => claim,
        };
        self.check_goes_on()?;
        let (_port, switch) = (port?, switch?);
        let handle = self.create(name, config, Access::default(), true).await?;
        handle.lock().await.charge = Some(switch);
        Ok(handle)
    }

    /// Finds and locks the switch that a client wants a port of.
    pub(super) async fn enter(
        &self,
        client: Client,
        name: &str,
        port: &str,
        how: How,
    ) -> Result<Locked, ApiError> {
        let mut waited = false;
        loop {
            let is_monitor = how.monitor.is_some();
            let handle = if is_monitor || how.existing {
                self.switch(name)?
            } else {
                self.find_or_make(client, name, port).await?
            };
            let switch = handle.lock_for(self.whose(client)).await;
            // A switch that was removed during the wait is out of the map by now.
            if switch.removed {
                continue;
            }
            let is_card = switch.ephemeral && InterfaceEnd::of(name).is_some();
            let is_driver = how.existing && switch.port(port).is_ok_and(Port::is_driven);
            if is_card && !is_monitor && !how.netmap && !is_driver {
                let reason = format!("{name} is an interface that a netmap program has open");
                return Err(ApiError::new(ErrorCode::Busy, reason, "end the program"));
            }
            let item = switch.item_for(if is_monitor { None } else { Some(port) }, client.uid);
            let allowed = item.is_none_or(|item| self.environment.ledger.allows(client.uid, &item));
            if allowed || std::mem::replace(&mut waited, true) {
                return Ok(switch);
            }
            // Ports that were closed just now are removed meanwhile.
            drop(switch);
            tokio::time::sleep(CLOSING).await;
        }
    }

    /// Opens a port or a monitor for a client. Must not be cancelled.
    ///
    /// # Errors
    /// The client may not, the port is in use, or a limit is reached.
    pub async fn open_port(
        &self,
        client: Client,
        switch: &str,
        port: &str,
        how: How,
        ring: RingAttach,
        memory: Lent,
    ) -> Result<OpenedPort, ApiError> {
        let (theirs, token) =
            token_pair(client.uid).map_err(|e| system("Cannot make a token for the port", e))?;
        self.check_descriptors(&token)?;
        let lent = self.charge_memory(client, &memory).await?;
        let mut switch = self.enter(client, switch, port, how).await?;
        self.check_may_open(client, &switch, port)?;
        self.check_trusts(client, &switch)?;
        let (name, attachment) = match how.monitor {
            None => (port.to_owned(), Attachment::Ring(ring)),
            Some(monitor) => self.monitor(client, &switch, port, ring, monitor)?,
        };
        let spec = match how.netmap {
            true if InterfaceEnd::of(&switch.name).is_some() => wire_spec(),
            true => port_spec(),
            false => PortSpec::default(),
        };
        let attach = Attach { attachment, memory: memory.file, token, client, lent, spec };
        let attached = match self.check_region(client, &switch, &ring) {
            Ok(()) => switch.attach(&name, attach).await,
            Err(error) => Err(error),
        };
        if attached.is_err() {
            self.drop_if_unused(&mut switch).await;
        }
        let (port, max_frame) = attached?;
        let (uid, pid) = (client.uid, client.pid);
        tracing::info!(
            event = "client",
            switch = switch.name,
            port = name,
            uid,
            pid,
            "port opened"
        );
        let (token, trusted) = (Descriptor::ours(theirs), switch.config.trusted);
        Ok(OpenedPort { port, max_frame, token, trusted, name })
    }

    /// Has a switch read what the slots of a port's rings hold besides frames. A data process that
    /// is started reads it anyway.
    pub(super) async fn read_format(&self, whose: Whose, switch: &str, port: &str) {
        let Some(handle) = self.handle(switch) else { return };
        let mut switch = handle.lock_for(whose).await;
        if let Err(error) = switch.read_format(port).await {
            tracing::warn!(switch = switch.name, port, %error, "port's format was not read");
        }
    }

    /// Takes a port from its client, as if the client had closed it.
    pub(super) async fn close_port(&self, whose: Whose, switch: &str, port: &str) {
        let Some(handle) = self.handle(switch) else { return };
        let mut switch = handle.lock_for(whose).await;
        if let Some(lost) = switch.losses(port) {
            tracing::warn!(switch = switch.name, port, lost, "frames of a netmap port were lost");
        }
        if let Err(error) = switch.close_port(port).await {
            tracing::error!(switch = switch.name, port, %error, "port was not detached in order");
        }
        self.drop_if_unused(&mut switch).await;
    }

    fn monitor(
        &self,
        client: Client,
        switch: &Switch,
        port: &str,
        ring: RingAttach,
        monitor: Monitor,
    ) -> Result<(String, Attachment), ApiError> {
        let parent = switch.port(port)?;
        let owns = parent.client.is_some_and(|c| c.uid == client.uid)
            || switch.access.to(parent.spec.owner) == Some(client.uid);
        if !owns && !self.is_trusted(client) {
            let reason = format!("{}:{port} is another user's", switch.name);
            return Err(ApiError::new(ErrorCode::Forbidden, reason, "ask its owner, or root"));
        }
        let (tx, rx) = (monitor.sent(), monitor.received());
        let attachment = Attachment::Monitor { ring, of: parent.id, tx, rx };
        Ok((switch.monitor_name(port, monitor), attachment))
    }

    /// In which queue a client's tasks stand.
    pub(super) fn whose(&self, client: Client) -> Whose {
        self.whose_are(client.uid)
    }

    /// In which queue a user's tasks stand.
    pub(super) fn whose_are(&self, uid: u32) -> Whose {
        let is_trusted = self.is_trusted(Client { uid, pid: 0 });
        if is_trusted { Whose::Operators } else { Whose::User(uid) }
    }

    pub(super) fn is_trusted(&self, client: Client) -> bool {
        client.uid == 0 || client.uid == self.uid()
    }

    pub(super) fn check_may_open(
        &self,
        client: Client,
        switch: &Switch,
        port: &str,
    ) -> Result<(), ApiError> {
        let owner = switch.access.to(switch.port(port).ok().and_then(|p| p.spec.owner));
        match owner {
            Some(owner) if owner != client.uid && !self.is_trusted(client) => {
                let name = &switch.name;
                let tenant = switch.access.user.is_some();
                let what = if tenant { name.clone() } else { format!("{name}:{port}") };
                let reason = format!("{what} belongs to user {owner}");
                let remedy = "open a port of your own, or have its owner changed (toklat port set)";
                Err(ApiError::new(ErrorCode::Forbidden, reason, remedy))
            }
            _ => Ok(()),
        }
    }

    /// Waits until pages that an untrusted user frees are gone; the time limit grows with the
    /// region.
    fn check_region(&self, client: Client, at: &Switch, ring: &RingAttach) -> Result<(), ApiError> {
        let (bytes, most) = (ring.geometry.file_size(), at.config.max_region_memory);
        if bytes <= most || self.is_trusted(client) {
            return Ok(());
        }
        let reason = format!("A region of {bytes} bytes is larger than the {most} that may be");
        let remedy = "use fewer rings, slots or buffers, or raise max_region_memory of the switch";
        Err(ApiError::new(ErrorCode::Limit, reason, remedy))
    }

    /// The kernel gives out the lowest free descriptor, so a high number means few are left.
    pub(super) fn check_descriptors(&self, newest: &impl AsRawFd) -> Result<(), ApiError> {
        let newest = u64::try_from(newest.as_raw_fd()).unwrap_or(0);
        let spare = SPARE_DESCRIPTORS.min(self.descriptor_limit / 2);
        if newest.saturating_add(spare) < self.descriptor_limit {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::Limit,
            format!("The daemon's {} descriptors are used up", self.descriptor_limit),
            "close ports, or raise its limit (ulimit -n; systemd: LimitNOFILE=)",
        ))
    }

    /// Makes a pipe for a client.
    ///
    /// # Errors
    /// As [`super::pipes::Pipes::make`].
    pub async fn make_pipe(
        &self,
        client: Client,
        name: PipeName,
        end: End,
        layout: PipeLayout,
        memory: Lent,
    ) -> Result<Opened, ApiError> {
        let lent = self.charge_memory(client, &memory).await?;
        let charges = [self.charge(client, Item::Pipe).await?, lent];
        let hangups = &self.environment.hangups;
        self.with_descriptors(self.pipes.make(
            hangups,
            (name, end),
            client,
            ((layout, memory), charges),
        )?)
    }

    /// If descriptors are short, the end is closed again by dropping its token.
    fn with_descriptors(&self, opened: Opened) -> Result<Opened, ApiError> {
        opened.fds.last().map_or(Ok(()), |newest| self.check_descriptors(newest))?;
        Ok(opened)
    }

    /// Opens an end of a pipe for a client.
    ///
    /// # Errors
    /// As [`super::pipes::Pipes::open`].
    pub fn open_pipe(
        &self,
        client: Client,
        end: (PipeName, End),
        offloads: OffloadSet,
    ) -> Result<Opened, ApiError> {
        self.with_descriptors(self.pipes.open(&self.environment.hangups, end, client, offloads)?)
    }
}
