//! Binds descriptors (`NETMAP_REQ_REGISTER`).

use netring::Monitor;
use netring::layout::RingSpec;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use shmem::Memfd;

use super::adapter::{Adapter, Choice, HostRings, Kind, Rings};
use super::effect::Place;
use super::key::Key;
use super::list::Owner;
use super::name::Name;
use super::region::{Direction, Fill, Interface, Region, Shape, global, identity_of};
use super::task::{Call, Step, Task};
use super::watch::monitor_shape;
use super::{Binding, Broker, part};
use crate::abi::{PoolsInfo, Register, flags, mode, option};
use crate::wire::CARD_BUFFERS;

/// Maximum number of extra buffers of a port of a switch, outside of its rings.
pub(super) const MOST_EXTRA: u32 = 128 * 4096;
/// The same of one descriptor of a user other than root: each buffer is written to, and read again
/// when the descriptor is closed.
const MOST_LISTED: u32 = 32_768;

/// Returns the rings that a request asks for.
pub(super) fn shape_of(request: &Register) -> Shape {
    let Register { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *request;
    Shape::asked((tx_rings, tx_slots), (rx_rings, rx_slots))
}

impl Broker {
    /// Binds a descriptor. On failure, nothing is changed.
    pub(super) fn register(&mut self, task: &mut Task) -> Result<(), Errno> {
        let mut request: Register = task.call.body()?;
        let opened = self.opened.get(&task.call.cookie).ok_or(Errno::NXIO)?;
        if opened.binding.is_some() {
            return Err(Errno::BUSY);
        }
        check_mode(request.mode)?;
        if request.flags & flags::ZCOPY_MON != 0 {
            request.flags |= flags::MONITOR_TX | flags::MONITOR_RX;
        }
        let memory = self.adopt_memory(&mut task.call)?;
        request.mem_id = memory.unwrap_or(request.mem_id);
        let done = self.register_in(task, &mut request, memory);
        if let (Some(memory), Err(_)) = (memory, done) {
            self.regions.drop_unused(memory);
        }
        done
    }

    /// Binds a descriptor to the named adapter. If the program passed memory, the adapter must use
    /// it.
    fn register_in(
        &mut self,
        task: &mut Task,
        request: &mut Register,
        memory: Option<u16>,
    ) -> Result<(), Errno> {
        let name = task.call.name()?.to_owned();
        let key = self.find_or_make(&task.call, &name, request)?;
        let region = self.adapters.get(&key).map(|adapter| adapter.region);
        let begun = match memory {
            Some(_) if region != memory => Err(Errno::BUSY),
            _ => self.bind(task, &key, &name, request),
        };
        // What was begun is undone by steps.
        if begun.is_err() && task.steps.is_empty() {
            self.collect(&key);
        }
        begun
    }

    /// Makes a region in the program's memory, if the request came with some.
    fn adopt_memory(&mut self, call: &mut Call) -> Result<Option<u16>, Errno> {
        if !call.options().has(option::EXTMEM) {
            return Ok(None);
        }
        let adopted = self.adopt(call);
        let errno = adopted.err().map_or(0, Errno::raw_os_error);
        call.options().status[option::EXTMEM as usize] = errno.unsigned_abs();
        adopted.map(Some)
    }

    fn adopt(&mut self, call: &mut Call) -> Result<u16, Errno> {
        let file = call.memory.take().ok_or(Errno::INVAL)?;
        Memfd::sealed_len(file.as_fd()).map_err(|_| Errno::INVAL)?;
        let identity = identity_of(file.as_fd())?;
        let known = self.regions.in_file(identity).map(|region| (region.id, region.uid));
        let id = match known {
            Some((_, uid)) if uid != call.uid => return Err(Errno::ACCESS),
            Some((id, _)) => id,
            None => {
                let geometry = crate::extmem::geometry(&call.options().extmem)?;
                let id = self.regions.free_id().ok_or(Errno::NOMEM)?;
                self.regions.admit(Region::adopt(id, call.uid, geometry, file)?)?;
                id
            }
        };
        if let Some(region) = self.regions.get(id) {
            let memsize = call.options().extmem.memsize;
            call.options().extmem = PoolsInfo { memsize, ..region.pools() };
        }
        Ok(id)
    }

    /// Returns the adapter that a request names. Makes it if its kind is made on request.
    fn find_or_make(
        &mut self,
        call: &Call,
        text: &str,
        request: &mut Register,
    ) -> Result<Key, Errno> {
        if request.mode == mode::NULL {
            return self.make_null(call, request);
        }
        let whose = self.whose(call, text, request.mem_id);
        let key = match Name::parse(text)? {
            Name::Pipe { base, brace, id } => {
                self.pipe(call, whose, (&base, brace, &id), request)?
            }
            Name::Vale { switch, port } => self.vale_port(call, whose, &switch, &port, request)?,
            // The interface is checked first, because root may have made a port of the same name.
            Name::Plain(name) => match call.interface() {
                Some(interface) => self.card_port(call, &interface.clone(), request)?,
                None if self.adapters.contains_key(&Key::new(whose, &*name)) => {
                    Key::new(whose, name)
                }
                // netmap's device that takes all that is sent.
                None if is_sink(&name) => {
                    let kind = Kind::Persistent { auto: true };
                    self.make_persistent(call.uid, &name, kind, request)?
                }
                None => return Err(Errno::NXIO),
            },
        };
        if request.flags & (flags::MONITOR_TX | flags::MONITOR_RX) != 0 {
            return self.make_monitor(call, &key, request);
        }
        Ok(key)
    }

    /// Whose name this is: the requesting user's. Only root may mean another user's, by the number
    /// of the region that this user's adapter is in.
    fn whose(&self, call: &Call, text: &str, mem_id: u16) -> u32 {
        let base = text.split(['{', '}']).next().unwrap_or(text);
        let region = self.regions.get(mem_id).filter(|_| call.uid == 0);
        let named = region.filter(|region| {
            let is_in = |key: Key| {
                self.adapters.get(&key).is_some_and(|adapter| adapter.region == region.id)
            };
            let port = base.split_once(':').map(|(_, port)| Key::new(region.uid, port));
            is_in(Key::new(region.uid, base)) || port.is_some_and(is_in)
        });
        named.map_or(call.uid, |region| region.uid)
    }

    fn vale_port(
        &mut self,
        call: &Call,
        whose: u32,
        switch: &str,
        port: &str,
        request: &Register,
    ) -> Result<Key, Errno> {
        if let Some(key) = self.find_vale(whose, switch, port)? {
            return Ok(key);
        }
        if request.flags & (flags::MONITOR_TX | flags::MONITOR_RX) != 0 {
            // The switch decides whether this user may have copies of another user's frames.
            let others = self.attached.get(&Place::new(switch, port));
            return others.cloned().ok_or(Errno::INVAL);
        }
        self.make_vale(call.uid, switch, port, request)
    }

    /// Returns a user's adapter that is this port of a switch. As in netmap, there is no such port
    /// beside a persistent one of the user's that is not in this switch.
    pub(super) fn find_vale(
        &self,
        uid: u32,
        switch: &str,
        port: &str,
    ) -> Result<Option<Key>, Errno> {
        let key = Key::new(uid, format!("{switch}:{port}"));
        if self.adapters.contains_key(&key) {
            return Ok(Some(key));
        }
        let key = key.beside(port);
        match self.adapters.get(&key) {
            Some(adapter) if adapter.is_at(switch, port) => Ok(Some(key)),
            Some(Adapter { kind: Kind::Persistent { auto: false }, .. }) => Err(Errno::INVAL),
            _ => Ok(None),
        }
    }

    fn make_vale(
        &mut self,
        uid: u32,
        switch: &str,
        port: &str,
        request: &Register,
    ) -> Result<Key, Errno> {
        let shape = shape_of(request);
        let extra = request.extra_bufs.min(MOST_EXTRA);
        let region = self.regions.for_port(uid, request.mem_id, || shape.geometry(extra))?;
        let place = Some(Place::new(switch, port));
        let key = Key::new(uid, format!("{switch}:{port}"));
        let adapter = Adapter::new(Kind::Ephemeral, region, shape, place);
        self.insert(uid, key.clone(), adapter, None)?;
        self.list.add(switch, port, Owner::User(uid));
        Ok(key)
    }

    fn make_null(&mut self, call: &Call, request: &Register) -> Result<Key, Errno> {
        if request.mem_id == 0 {
            return Err(Errno::INVAL);
        }
        let region = self.regions.for_port(call.uid, request.mem_id, global)?;
        let mut shape = shape_of(request);
        shape.tx_rings = shape.tx_rings.min(request.tx_rings.into());
        shape.rx_rings = shape.rx_rings.min(request.rx_rings.into());
        let key = Key::new(call.uid, format!("null#{}", call.cookie));
        let adapter = Adapter::new(Kind::Null, region, shape, None);
        self.insert(call.uid, key.clone(), adapter, None)?;
        Ok(key)
    }

    /// Makes a monitor of an adapter. Of another user's there are only copies, which the switch
    /// makes: its buffers are in that user's region.
    fn make_monitor(
        &mut self,
        call: &Call,
        parent: &Key,
        request: &mut Register,
    ) -> Result<Key, Errno> {
        let of = self.adapters.get(parent).ok_or(Errno::INVAL)?;
        if of.bindings == 0 {
            return Err(Errno::INVAL);
        }
        let asked = call.uid == 0 && request.mem_id == of.region;
        let is_own = parent.uid == call.uid || asked;
        // A switch copies what goes through its ports. Other rings are copied by their users.
        let is_switched = of.token.is_some() || of.host_token.is_some();
        let is_card = matches!(of.kind, Kind::Card { .. });
        let zero_copy = request.flags & flags::ZCOPY_MON != 0;
        if is_own && (zero_copy || !is_switched && !is_card) {
            return self.make_watcher(call, parent, request);
        }
        if of.token.is_none() {
            return Err(Errno::OPNOTSUPP);
        }
        request.flags &= !flags::ZCOPY_MON;
        let chosen = of.choose(request)?;
        let shape = monitor_shape(of, &chosen, request)?;
        let [tx, rx] = [flags::MONITOR_TX, flags::MONITOR_RX].map(|flag| request.flags & flag != 0);
        let monitor = Monitor::of(tx, rx).ok_or(Errno::INVAL)?;
        let kept = (parent.uid == call.uid).then(|| parent.clone());
        let kind = Kind::Monitor { parent: kept, of: monitor };
        // What goes through host rings goes through another port.
        let host_place = of.host_place.clone().filter(|_| chosen.has_host());
        let has_nic = !chosen.tx.is_empty() || !chosen.rx.is_empty();
        let place = of.place.clone().filter(|_| has_nic);
        let region = self.regions.for_port(call.uid, request.mem_id, || shape.geometry(0))?;
        let key = Key::new(call.uid, format!("monitor#{}", call.cookie));
        let mut adapter = Adapter::new(kind, region, shape, place);
        adapter.host_place = host_place;
        self.insert(call.uid, key.clone(), adapter, None)?;
        Ok(key)
    }

    /// Returns an end of a pipe. Both ends are made at once, with their parent port if there is
    /// none.
    fn pipe(
        &mut self,
        call: &Call,
        whose: u32,
        (base, brace, id): (&str, char, &str),
        request: &Register,
    ) -> Result<Key, Errno> {
        if !matches!(request.mode, mode::ALL_NIC | mode::ONE_NIC) {
            return Err(Errno::INVAL);
        }
        // Steps that can fail come first, so that a failure leaves nothing behind.
        let new_wake = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wakes = [new_wake()?, new_wake()?];
        let parent = self.pipe_parent(call, whose, base)?;
        let key = |brace: char| parent.beside(format!("{}{brace}{id}", parent.name));
        if self.adapters.contains_key(&key(brace)) {
            return Ok(key(brace));
        }
        let of = self.adapters.get(&parent).ok_or(Errno::NXIO)?;
        let slots = |asked: u32, parents: u32| if asked == 0 { parents } else { asked };
        let shape = Shape::asked(
            (request.tx_rings, slots(request.tx_slots, of.shape.tx_slots)),
            (request.rx_rings, slots(request.rx_slots, of.shape.rx_slots)),
        );
        let (region, header) = (of.region, of.header);
        let other = if brace == '{' { '}' } else { '{' };
        let ends = [(brace, other, shape), (other, brace, shape.twin())];
        for ((own, twin, shape), wake) in ends.into_iter().zip(wakes) {
            let kind = Kind::Pipe { parent: parent.clone(), twin: key(twin), wake };
            let mut end = Adapter::new(kind, region, shape, None);
            end.header = header;
            if let Err(error) = self.insert(call.uid, key(own), end, None) {
                self.collect(&key(brace));
                self.collect(&parent);
                return Err(error);
            }
        }
        Ok(key(brace))
    }

    /// Returns the parent port of pipes of this name.
    fn pipe_parent(&mut self, call: &Call, whose: u32, base: &str) -> Result<Key, Errno> {
        match Name::parse(base)? {
            Name::Pipe { .. } => Err(Errno::INVAL),
            Name::Vale { switch, port } => match self.find_vale(whose, &switch, &port)? {
                Some(key) => Ok(key),
                None => self.make_vale(call.uid, &switch, &port, &Register::default()),
            },
            // As in `REGISTER`, the interface comes first. It is not opened by its pipes.
            Name::Plain(name) => match call.interface() {
                Some(interface) => self.card_port(call, &interface.clone(), &Register::default()),
                None if self.adapters.contains_key(&Key::new(whose, &*name)) => {
                    Ok(Key::new(whose, name))
                }
                None => {
                    let kind = Kind::Persistent { auto: true };
                    self.make_persistent(call.uid, &name, kind, &Register::default())
                }
            },
        }
    }

    /// Binds a descriptor to an adapter, and fills in the request's reply fields. The adapter's
    /// entry into its switches is left to the task's steps.
    fn bind(
        &mut self,
        task: &mut Task,
        key: &Key,
        name: &str,
        request: &mut Register,
    ) -> Result<(), Errno> {
        let adapter = self.adapters.get_mut(key).ok_or(Errno::NXIO)?;
        let region = self.regions.get_mut(adapter.region).ok_or(Errno::INVAL)?;
        let asked = task.call.uid == 0 && request.mem_id == region.id;
        if region.uid != task.call.uid && !asked {
            return Err(Errno::ACCESS);
        }
        // Two drivers of one card in a process would take it from each other at every call.
        if matches!(adapter.kind, Kind::Card { .. }) && adapter.bindings > 0 {
            return Err(Errno::BUSY);
        }
        if adapter.header != 0 && request.flags & flags::ACCEPT_VNET_HDR == 0 {
            return Err(Errno::IO);
        }
        if adapter.second.is_some() {
            return Err(Errno::BUSY);
        }
        let choice = adapter.select(request)?;
        adapter.take(&choice)?;
        adapter.bindings += 1;
        region.join();
        let (interface, flags) = (u32::MAX, request.flags);
        let mut binding = Binding { adapter: key.clone(), interface, choice, flags };
        let placed = self.put_in_place(&mut task.call, &mut binding, name, request);
        task.binding = Some((binding, *request));
        match placed {
            Ok(steps) => task.steps.extend(steps.into_iter().chain([Step::Bound])),
            Err(error) => self.fail(task, error),
        }
        task.status
    }

    /// Writes what a new binding needs into the region. Returns the steps by which its adapter
    /// enters its switches.
    fn put_in_place(
        &mut self,
        call: &mut Call,
        binding: &mut Binding,
        name: &str,
        request: &mut Register,
    ) -> Result<Vec<Step>, Errno> {
        let key = binding.adapter.clone();
        self.lay_out(binding, name, request)?;
        self.watch(&key)?;
        self.set_offsets(call, binding)?;
        self.write_formats(&key)?;
        let mut steps = Vec::new();
        if self.is_attached(&key) && call.options().has(option::OFFSETS) {
            steps = self.have_format_read(&key);
        }
        steps.extend(self.enter(&key));
        Ok(steps)
    }

    /// Ends a binding: its adapter is in its switches.
    pub(super) fn finish_binding(&mut self, task: &mut Task) {
        let Some((binding, request)) = &mut task.binding else { return };
        let counted = self.count_host_rings(binding, request);
        let known = 1 << option::EXTMEM | 1 << option::OFFSETS;
        let unknown = task.call.answer.options.given & !known != 0;
        if let Err(error) = counted.and(if unknown { Err(Errno::OPNOTSUPP) } else { Ok(()) }) {
            return self.fail(task, error);
        }
        let Some((binding, request)) = task.binding.take() else { return };
        task.call.answer(&request);
        match self.opened.get_mut(&task.call.cookie) {
            Some(opened) => opened.binding = Some(binding),
            // Its last copy was closed meanwhile.
            None => task.steps = self.leave(binding),
        }
    }

    /// Writes the structures for a new binding into the region.
    fn lay_out(
        &mut self,
        binding: &mut Binding,
        name: &str,
        request: &mut Register,
    ) -> Result<(), Errno> {
        self.make_rings(&binding.adapter)?;
        let adapter = self.adapters.get(&binding.adapter).ok_or(Errno::NXIO)?;
        let region = self.regions.get_mut(adapter.region).ok_or(Errno::INVAL)?;
        let Rings { tx, rx, host } = adapter.rings.ok_or(Errno::NOMEM)?;
        let Choice { tx: some_tx, rx: some_rx, host_tx, host_rx, .. } = binding.choice.clone();
        let host = host.map_or_else(Default::default, |host| [host.tx, host.rx]);
        let (bound, bound_host) = ([some_tx, some_rx], [host_tx, host_rx]);
        let interface = Interface { name, tx, rx, host, bound, bound_host };
        let most = if region.uid == 0 { u32::MAX } else { MOST_LISTED };
        let (number, extra) = region.add_interface(&interface, request.extra_bufs.min(most))?;
        binding.interface = number;
        *request = Register {
            offset: region.interface_offset(number),
            memsize: region.geometry.region_size(),
            tx_slots: adapter.shape.tx_slots,
            rx_slots: adapter.shape.rx_slots,
            tx_rings: adapter.shape.tx_rings as u16,
            rx_rings: adapter.shape.rx_rings as u16,
            host_tx_rings: 0,
            host_rx_rings: 0,
            mem_id: region.id,
            extra_bufs: extra,
            ..*request
        };
        Ok(())
    }

    /// Makes the rings of an adapter, and of its twin if it is an end of a pipe, unless they exist.
    fn make_rings(&mut self, key: &Key) -> Result<(), Errno> {
        let adapter = self.adapters.get(key).ok_or(Errno::NXIO)?;
        if adapter.rings.is_some() {
            return Ok(());
        }
        let (shape, region) = (adapter.shape, adapter.region);
        let Kind::Pipe { twin, .. } = &adapter.kind else {
            let own = u32::from(adapter.ifname.is_some());
            let retired = self.retired_rings(key)?;
            let region = self.regions.get_mut(region).ok_or(Errno::INVAL)?;
            let rings = retired.map_or_else(|| rings_of(region, shape, own), Ok)?;
            let Some(adapter) = self.adapters.get_mut(key) else { return Ok(()) };
            adapter.rings = Some(rings);
            if let Kind::Card { descriptors, .. } = &mut adapter.kind {
                *descriptors = Some(region.add_run(CARD_BUFFERS)?);
            }
            return Ok(());
        };
        let twin = twin.clone();
        let region = self.regions.get_mut(region).ok_or(Errno::INVAL)?;
        let (ours, theirs) = twin_rings(region, shape)?;
        self.adapters.entry(key.clone()).and_modify(|adapter| adapter.rings = Some(ours));
        self.adapters.entry(twin).and_modify(|adapter| adapter.rings = Some(theirs));
        Ok(())
    }
}

/// Returns true for `nmsink` with a number.
fn is_sink(name: &str) -> bool {
    let number = name.strip_prefix("nmsink");
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Checks `nr_mode`; [`Adapter::choose`] checks the rest.
fn check_mode(mode: u32) -> Result<(), Errno> {
    match mode {
        mode::ALL_NIC..=mode::ONE_NIC | mode::NULL | mode::ONE_SW => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Makes the rings of an adapter, and with host rings `own` rings of transparent mode for each end.
/// Of what was made before a failure, nothing is left.
fn rings_of(region: &mut Region, shape: Shape, own: u32) -> Result<Rings, Errno> {
    let Shape { tx_rings, rx_rings, tx_slots, rx_slots, host } = shape;
    let mut made = Vec::new();
    let mut add = |way, earlier, rings, slots| -> Result<RingSpec, Errno> {
        let spec = region.add_rings_after(earlier, way, (rings, slots), Fill::Own)?;
        made.push(spec);
        Ok(spec)
    };
    let has_host = host != [0; 2];
    let mut all = || {
        let tx = add(Direction::Send, 0, tx_rings + own, tx_slots)?;
        let rx = add(Direction::Receive, 0, rx_rings, rx_slots)?;
        if !has_host {
            return Ok(Rings { tx, rx, host: None });
        }
        let [host_tx, host_rx] = host;
        let above_tx = add(Direction::Send, tx_rings, host_tx + own, tx_slots)?;
        let above_rx = add(Direction::Receive, rx_rings, host_rx, rx_slots)?;
        let host = HostRings {
            tx: part(above_tx, &(0..host_tx)),
            rx: above_rx,
            up: part(above_tx, &(host_tx..host_tx + own)),
            down: part(tx, &(tx_rings..tx_rings + own)),
        };
        Ok(Rings { tx: part(tx, &(0..tx_rings)), rx, host: Some(host) })
    };
    let rings = all();
    if rings.is_err() {
        made.into_iter().for_each(|spec| region.remove_rings(spec, true));
    }
    rings
}

/// Makes the rings of both ends of a pipe. `shape` is that of the first end.
fn twin_rings(region: &mut Region, shape: Shape) -> Result<(Rings, Rings), Errno> {
    let mut made = Vec::new();
    let mut twins = |rings, slots| -> Result<_, Errno> {
        let tx = region.add_rings(Direction::Send, (rings, slots), Fill::Own)?;
        made.push((tx, true));
        let rx = region.add_rings(Direction::Receive, (rings, slots), Fill::TwinOf(tx))?;
        made.push((rx, false));
        Ok((tx, rx))
    };
    let both = twins(shape.tx_rings, shape.tx_slots)
        .and_then(|ours| Ok((ours, twins(shape.rx_rings, shape.rx_slots)?)));
    match both {
        Ok(((tx, twin_rx), (twin_tx, rx))) => {
            let rings = |tx, rx| Rings { tx, rx, host: None };
            Ok((rings(tx, rx), rings(twin_tx, twin_rx)))
        }
        Err(error) => {
            made.into_iter().for_each(|(rings, own)| region.remove_rings(rings, own));
            Err(error)
        }
    }
}
