//! A broker under test, with switches that carry its effects out.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

/// Accounts that count what is charged, and refuse large regions of users other than root.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted(pub(super) Arc<AtomicU64>);

/// One of the counted charges.
struct One(Counted);

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Accounts for Counted {
    fn charge(&self, uid: u32, held: Held<'_>) -> Result<Charge, Errno> {
        if let Held::Region(memory) = held
            && uid != 0
            && rustix::fs::fstat(memory)?.st_size > 100 << 20
        {
            return Err(Errno::NOMEM);
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(One(self.clone())))
    }
}

/// Fake switches that record what is done to them.
#[derive(Debug, Default)]
pub(super) struct Switches {
    pub(super) ports: Vec<String>,
    pub(super) refuse: bool,
    /// Refuse what is in switches of this name.
    pub(super) refused: Option<&'static str>,
    /// Interfaces that are ports of switches.
    pub(super) plugged: Vec<(String, String)>,
    /// What was said to be polled, with how many queues, or not any more.
    pub(super) polled: Vec<String>,
}

impl Switches {
    pub(super) fn carry_out(&mut self, effect: Effect) -> Outcome {
        match effect {
            Effect::Attach(port) => Outcome::Attached(self.attach(&port)),
            Effect::Detach(Place { switch, port }) => {
                let name = format!("{switch}:{port}");
                self.ports.retain(|known| *known != name);
                Outcome::Done(Ok(()))
            }
            Effect::Poll { place: Place { switch, port }, queues, .. } => {
                self.polled.push(format!("{switch}:{port} {queues:?}"));
                Outcome::Done(Ok(()))
            }
            Effect::OpenCard { .. } => Outcome::Card(Err(Errno::NXIO)),
            _ => Outcome::Done(Ok(())),
        }
    }

    /// A switch has one port of a name.
    fn attach(&mut self, port: &NewPort) -> Result<Attached, Errno> {
        let Place { switch, port: name } = &port.place;
        if self.refuse || self.refused == Some(switch) {
            return Err(Errno::NOMEM);
        }
        let name = match port.monitor {
            None => name.clone(),
            Some(_) => format!("{name}/#"),
        };
        let full = format!("{switch}:{name}");
        if port.monitor.is_none() && self.ports.contains(&full) {
            return Err(Errno::BUSY);
        }
        self.ports.push(full);
        let flags = SocketFlags::CLOEXEC;
        let (token, _) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok(Attached { token, name, number_if_trusted: None })
    }
}

/// A broker, and switches that carry its effects out.
pub(super) struct Tested {
    pub(super) broker: Broker,
    pub(super) switches: Switches,
    pub(super) charged: Counted,
}

impl Deref for Tested {
    type Target = Broker;

    fn deref(&self) -> &Broker {
        &self.broker
    }
}

impl DerefMut for Tested {
    fn deref_mut(&mut self) -> &mut Broker {
        &mut self.broker
    }
}

impl Tested {
    pub(super) fn new() -> Self {
        let charged = Counted::default();
        let broker = Broker::new(Box::new(charged.clone()));
        Self { broker, switches: Switches::default(), charged }
    }

    pub(super) fn open(&mut self, cookie: u64, uid: u32) {
        self.broker.open(cookie, uid).unwrap();
    }

    pub(super) fn finish(&mut self, mut task: Task) -> Reply {
        while let Some(effect) = self.broker.next(&mut task) {
            let outcome = self.switches.carry_out(effect);
            self.broker.told(&mut task, outcome);
        }
        self.broker.reply(&task)
    }

    pub(super) fn begin(&mut self, cookie: u64, ask: &Ask) -> Task {
        let places = self.switches.plugged.iter();
        let places: Vec<_> = places.map(|(switch, port)| Place::new(switch, port)).collect();
        self.broker.set_plugged(places);
        let is_root = self.broker.user_of(cookie) == Some(0);
        let name = interface_name(ask).filter(|_| is_root);
        let known = name.is_some_and(|name| matches!(name, "eth0" | "also-eth0"));
        let interface = known.then(|| Interface { name: "eth0".into(), is_card: false });
        self.broker.control(cookie, 1, ask, None, Facts { interface, cpus: 4 })
    }

    pub(super) fn control(&mut self, cookie: u64, ask: &Ask) -> Reply {
        let task = self.begin(cookie, ask);
        self.finish(task)
    }

    pub(super) fn close_later(&mut self, cookie: u64) -> Task {
        self.broker.close(cookie)
    }

    pub(super) fn close(&mut self, cookie: u64) {
        let task = self.close_later(cookie);
        self.finish(task);
    }

    /// True if a user has an adapter of this name.
    pub(super) fn has(&self, uid: u32, name: &str) -> bool {
        self.adapters.contains_key(&Key::new(uid, name))
    }

    /// Nothing is left but open descriptors, which are charged.
    pub(super) fn assert_empty(&self) {
        let Broker { adapters, attached, persistent, regions, opened, .. } = &self.broker;
        assert!(adapters.is_empty() && attached.is_empty() && persistent.is_empty());
        assert!(regions.is_empty() && self.switches.ports.is_empty());
        assert_eq!(self.charged.0.load(Ordering::Relaxed), opened.len() as u64);
        assert_eq!(self.list.next(0, 0, 0), None);
    }
}
