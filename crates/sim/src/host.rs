//! Hosts: what runs on a port of a simulated switch.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use fabric::Rules;
use frame::OffloadSet;
use guest::sockets::Net;
use guest::{App, Config, Guest, HostError, Nanos, Stack};
use netring::PortError;

use crate::nic::SimNic;
use crate::trace::HostId;

/// Where a host is: its name, its addresses, the rules of its port.
#[derive(Clone, Debug)]
pub struct Place {
    /// The name of the host and of its port, with or without the switch's (`vale0:web`).
    pub name: String,
    /// The settings of its stack. The secret is the world's to choose.
    pub config: Config,
    /// The rules of its port. Without MAC addresses, they get the host's.
    pub rules: Rules,
    /// The offload requests that its frames may carry.
    pub offloads: OffloadSet,
    /// Slots of its rings.
    pub slots: u32,
}

impl Place {
    /// A host at `addresses`: a list as `toklat guest run` takes it, such as `10.0.0.2/24`,
    /// `fd00::2/64`, `dhcp`, `slaac`. Its MAC address follows from its name, and its port has no
    /// special rules.
    ///
    /// # Errors
    /// The list is wrong.
    pub fn new(name: &str, addresses: &str) -> Result<Self, HostError> {
        let config = guest::Place::new(name, addresses)?.config();
        let (rules, offloads) = (Rules::default(), OffloadSet::NONE);
        Ok(Self { name: name.to_owned(), config, rules, offloads, slots: 256 })
    }

    /// A port without a host of the stack's.
    pub(crate) fn bare(name: &str, rules: Rules) -> Self {
        let config = Config::new(frame::Mac::of_name(name), std::net::Ipv4Addr::UNSPECIFIED, 0);
        Self { name: name.to_owned(), config, rules, offloads: OffloadSet::NONE, slots: 1024 }
    }

    /// The same with these rules of the port.
    #[must_use]
    pub fn rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// The same, with checksums and segmentation left to the switch and to receivers.
    #[must_use]
    pub fn offloads(self) -> Self {
        Self { offloads: OffloadSet::ALL, ..self }
    }
}

/// What runs on a host.
pub trait Machine {
    /// Runs a turn: receives, works, sends. Returns when it is to be called again if no frame
    /// arrives before.
    ///
    /// # Errors
    /// The port failed. The host is dead from then on.
    fn poll(&mut self, now: Nanos) -> Result<Option<Nanos>, PortError>;

    /// What it has done, in words, for summaries.
    fn says(&self) -> String {
        String::new()
    }
}

impl<A: App> Machine for Guest<SimNic, A> {
    fn poll(&mut self, now: Nanos) -> Result<Option<Nanos>, PortError> {
        Guest::poll(self, now)
    }
}

impl Machine for Stack<SimNic> {
    fn poll(&mut self, now: Nanos) -> Result<Option<Nanos>, PortError> {
        Stack::poll(self, now)
    }
}

/// A host that runs tasks over async sockets.
pub struct Tasks {
    net: Net<SimNic>,
    ended: Rc<Cell<bool>>,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({:?})", self.net)
    }
}

impl Tasks {
    /// Starts `main` on a stack.
    pub(crate) fn start<F: Future<Output = ()> + 'static>(
        stack: Stack<SimNic>,
        main: impl FnOnce(Net<SimNic>) -> F,
    ) -> Self {
        let (net, ended) = (Net::new(stack), Rc::new(Cell::new(false)));
        let (task, flag) = (main(net.clone()), Rc::clone(&ended));
        net.spawn(async move {
            task.await;
            flag.set(true);
        });
        Self { net, ended }
    }

    /// The sockets.
    #[must_use]
    pub fn net(&self) -> &Net<SimNic> {
        &self.net
    }
}

impl Machine for Tasks {
    fn poll(&mut self, now: Nanos) -> Result<Option<Nanos>, PortError> {
        self.net.poll(now)
    }
}

impl Drop for Tasks {
    /// Tasks hold the sockets, and the sockets the tasks.
    fn drop(&mut self) {
        self.net.end();
    }
}

type Start<M> = Box<dyn FnMut(Stack<SimNic>) -> M>;

/// A host's machine while it runs, and how it is started.
struct Life<M> {
    machine: RefCell<Option<M>>,
    start: RefCell<Start<M>>,
}

/// A host of any kind, as its world sees it.
pub(crate) trait Living {
    /// Starts the machine on a stack.
    fn start(&self, stack: Stack<SimNic>);
    /// Ends it at once: the memory is gone, nothing is sent.
    fn kill(&self);
    /// As [`Machine::poll`]; a dead host has nothing to do.
    fn poll(&self, now: Nanos) -> Result<Option<Nanos>, PortError>;
    /// As [`Machine::says`].
    fn says(&self) -> String;
}

impl<M: Machine> Living for Life<M> {
    fn start(&self, stack: Stack<SimNic>) {
        let machine = (self.start.borrow_mut())(stack);
        *self.machine.borrow_mut() = Some(machine);
    }

    fn kill(&self) {
        *self.machine.borrow_mut() = None;
    }

    fn poll(&self, now: Nanos) -> Result<Option<Nanos>, PortError> {
        self.machine.borrow_mut().as_mut().map_or(Ok(None), |machine| machine.poll(now))
    }

    fn says(&self) -> String {
        self.machine.borrow().as_ref().map_or_else(|| "dead".to_owned(), Machine::says)
    }
}

/// A host, for the test that has added it.
pub struct Host<M> {
    id: HostId,
    life: Rc<Life<M>>,
}

impl<M> fmt::Debug for Host<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.id.0)
    }
}

impl<M: Machine + 'static> Host<M> {
    pub(crate) fn new(
        id: HostId,
        start: impl FnMut(Stack<SimNic>) -> M + 'static,
    ) -> (Self, Rc<dyn Living>) {
        let (machine, start) = (RefCell::new(None), RefCell::new(Box::new(start) as Start<M>));
        let life = Rc::new(Life { machine, start });
        (Self { id, life: Rc::clone(&life) }, life)
    }

    /// Its number, for faults.
    #[must_use]
    pub const fn id(&self) -> HostId {
        self.id
    }

    /// Lets `look` see the machine; `None` while the host is dead. Use it between turns.
    pub fn with<R>(&self, look: impl FnOnce(&mut M) -> R) -> Option<R> {
        self.life.machine.borrow_mut().as_mut().map(look)
    }
}

impl Host<Tasks> {
    /// Whether the host's main task has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.with(|tasks| tasks.ended.get()).unwrap_or(false)
    }
}
