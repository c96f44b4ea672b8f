//! A request under way: its steps are carried out one after the other. Those that concern switches
//! are [`Effect`]s, for which the daemon takes as long as it needs; other users' requests go on
//! meanwhile.

use std::collections::VecDeque;

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::adapter::Kind;
use super::effect::{Attached, Effect, Facts, Interface, Outcome, Place, Requester};
use super::end::{End, host_of};
use super::key::{Key, ifname_of};
use super::list::{NO_PORT, Owner};
use super::region::File;
use super::{Binding, Broker};
use crate::abi::{Register, ValeAttach, ValeDetach, text};
use crate::wire::{Answer, Options};

/// A request: its input, and its answer.
pub(super) struct Call {
    pub(super) cookie: u64,
    /// The user who opened the descriptor.
    pub(super) uid: u32,
    pub(super) pid: u32,
    pub(super) facts: Facts,
    pub(super) answer: Answer,
    /// Memory of the program's.
    pub(super) memory: Option<File>,
}

impl Call {
    pub(super) const fn who(&self) -> Requester {
        Requester { uid: self.uid, pid: self.pid }
    }

    pub(super) fn name(&self) -> Result<&str, Errno> {
        text(&self.answer.name[..]).ok_or(Errno::INVAL)
    }

    pub(super) fn body<T: FromBytes>(&self) -> Result<T, Errno> {
        T::read_from_prefix(&self.answer.body[..]).map(|(body, _)| body).map_err(|_| Errno::INVAL)
    }

    pub(super) fn answer<T: IntoBytes + zerocopy::Immutable>(&mut self, body: &T) {
        self.answer.body[..size_of::<T>()].copy_from_slice(body.as_bytes());
    }

    pub(super) const fn options(&mut self) -> &mut Options {
        &mut self.answer.options
    }

    /// The interface of the host that the request names, if this user's programs may open it.
    pub(super) const fn interface(&self) -> Option<&Interface> {
        self.facts.interface.as_ref()
    }
}

/// One step of a request.
#[derive(Debug)]
pub(super) enum Step {
    /// An effect whose outcome does not matter.
    Tell(Effect),
    /// An effect whose success changes what is known.
    Ask(Effect, Then),
    /// Opens the card of an adapter.
    OpenCard(Key),
    /// Attaches an adapter, or its host rings.
    Attach(Key, End),
    /// Ends a binding that was made.
    Bound,
    /// Ends an unbinding. It was of the adapter's last descriptor, or not.
    Left(Binding, bool),
}

/// What is noted after an effect that succeeded.
#[derive(Debug)]
pub(super) enum Then {
    /// An interface is in a switch; its host is, too, or not.
    Plugged(ValeAttach, Place, bool),
    /// An interface left its switch.
    Unplugged(Place),
    /// A persistent port joins its switch and this one.
    Joined(ValeAttach, Key, String),
    /// An interface is polled, or not any more.
    Polled(Place, bool),
}

/// What an effect that is being carried out is for.
#[derive(Debug)]
enum Waiting {
    Nothing,
    Card(Key),
    Attached(Key, End),
    Then(Then),
}

/// A request under way. [`Broker::next`] returns its next effect.
pub struct Task {
    pub(super) call: Call,
    pub(super) steps: VecDeque<Step>,
    waiting: Waiting,
    pub(super) status: Result<(), Errno>,
    /// The binding that is being made, and the request's reply fields.
    pub(super) binding: Option<(Binding, Register)>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task of user {}, steps {:?}", self.call.uid, self.steps)
    }
}

impl Task {
    pub(super) fn new(call: Call) -> Self {
        let (steps, waiting) = (VecDeque::new(), Waiting::Nothing);
        Self { call, steps, waiting, status: Ok(()), binding: None }
    }
}

impl Broker {
    /// Goes on with a request up to its next effect, which the caller carries out, and whose
    /// outcome it passes to [`told`](Self::told). Returns `None` when the request is done.
    pub fn next(&mut self, task: &mut Task) -> Option<Effect> {
        while let Some(step) = task.steps.pop_front() {
            let (effect, waiting) = match step {
                Step::Tell(effect) => (effect, Waiting::Nothing),
                Step::Ask(effect, then) => (effect, Waiting::Then(then)),
                Step::OpenCard(key) => {
                    let ifname = ifname_of(&key).to_owned();
                    (Effect::OpenCard { who: task.call.who(), ifname }, Waiting::Card(key))
                }
                Step::Attach(key, end) => match self.new_port(task.call.who(), &key, end) {
                    Ok(Some(port)) => (Effect::Attach(port), Waiting::Attached(key, end)),
                    Ok(None) => continue,
                    Err(error) => {
                        self.fail(task, error);
                        continue;
                    }
                },
                Step::Bound => {
                    self.finish_binding(task);
                    continue;
                }
                Step::Left(binding, last) => {
                    self.left(&binding, last);
                    continue;
                }
            };
            task.waiting = waiting;
            return Some(effect);
        }
        None
    }

    /// Notes what came of the effect that [`next`](Self::next) returned last.
    pub fn told(&mut self, task: &mut Task, outcome: Outcome) {
        let waiting = std::mem::replace(&mut task.waiting, Waiting::Nothing);
        let is_interface = |key| self.adapters.get(key).is_some_and(|of| of.ifname.is_some());
        match (waiting, outcome) {
            (Waiting::Nothing, _) => {}
            (Waiting::Card(key), Outcome::Card(Ok(opened))) => {
                if let Some(Kind::Card { files, .. }) =
                    self.adapters.get_mut(&key).map(|adapter| &mut adapter.kind)
                {
                    *files = Some(opened);
                }
            }
            (Waiting::Attached(key, end), Outcome::Attached(Ok(attached))) => {
                self.attached(&key, end, attached);
            }
            // If the host cannot have a port, the interface has no host rings.
            (Waiting::Attached(key, End::Host), Outcome::Attached(Err(_)))
                if is_interface(&key) => {}
            (Waiting::Then(then), Outcome::Done(Ok(()))) => self.note(task, then),
            (_, outcome) => self.fail(task, outcome.error().unwrap_or(Errno::IO)),
        }
    }

    /// Ends a request with an error; a binding that was begun is undone.
    pub(super) fn fail(&mut self, task: &mut Task, error: Errno) {
        task.status = Err(error);
        task.steps.clear();
        if let Some((binding, _)) = task.binding.take() {
            task.steps = self.leave(binding);
        }
    }

    /// Notes what an effect has changed, and answers.
    fn note(&mut self, task: &mut Task, then: Then) {
        match then {
            Then::Plugged(mut asked, Place { switch, port }, host) => {
                asked.port_index = self.list.add(&switch, &port, Owner::Host);
                let ports = [Some(port.clone()), host.then(|| host_of(&port))];
                for port in ports.into_iter().flatten() {
                    self.list.add(&switch, &port, Owner::Host);
                    self.plugged.insert(Place::new(&switch, port));
                }
                task.call.answer(&asked);
            }
            Then::Unplugged(Place { switch, port }) => {
                let ports = [host_of(&port), port];
                let mut port_index = NO_PORT;
                for port in ports {
                    port_index = self.list.remove(&switch, &port, Owner::Host).unwrap_or(NO_PORT);
                    self.plugged.remove(&Place::new(&switch, port));
                }
                task.call.answer(&ValeDetach { port_index, pad: 0 });
            }
            Then::Joined(asked, key, switch) => self.note_attached(task, asked, &key, switch),
            Then::Polled(place, true) => _ = self.polled.insert(place),
            Then::Polled(place, false) => _ = self.polled.remove(&place),
        }
    }

    /// Notes that an adapter, or its host rings, are in a switch.
    fn attached(&mut self, key: &Key, end: End, attached: Attached) {
        let Some(adapter) = self.adapters.get_mut(key) else { return };
        let Attached { token, name, number_if_trusted } = attached;
        let is_monitor = matches!(adapter.kind, Kind::Monitor { .. });
        let place = match end {
            End::Card => &mut adapter.place,
            End::Host => &mut adapter.host_place,
        };
        if let Some(place) = place {
            place.port = name;
            if !is_monitor {
                self.attached.insert(place.clone(), key.clone());
            }
        }
        match end {
            End::Card => {
                (adapter.token, adapter.number_if_trusted) = (Some(token), number_if_trusted)
            }
            End::Host => adapter.host_token = Some(token),
        }
    }
}
