//! netmap's interface on the attach socket: descriptors that programs have for `/dev/netmap`, and
//! the [`Broker`] that knows what they are bound to.
//!
//! Each user's requests stand in a queue of their own, one after the other. The broker's lock is
//! held for its own steps only; what it wants done to switches is done without it, so a user whose
//! switch does not answer holds up no other.

mod accounts;
pub mod card;
mod effects;
pub mod end;
mod join;
pub mod opened;
mod persistent;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jail::strangers::Descriptor;
use netmap::broker::{self, Broker, Facts, Interface, Place, Task, interface_name};
use netmap::wire::{Answer, Ask, kind};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use zerocopy::FromBytes;

use self::opened::{Token, User};
use super::hangups::{Gone, WatchId};
use super::seqpacket::Message;
use super::shared::Whose;
use super::supervisor::Supervisor;
use super::{locked, token_pair};
use crate::api::Client;

/// How long an answer waits for a close.
const CLOSING: Duration = Duration::from_secs(5);
/// Bytes of a question.
pub const ASK: usize = size_of::<Ask>();

/// Returns true if [`answer`] handles this message of the attach socket.
#[must_use]
pub fn is_ours(message: &[u8]) -> bool {
    message.get(2..4) == Some(&netmap::wire::OP.to_ne_bytes()[..])
}

/// Answers one question.
pub async fn answer(
    message: Message,
    client: Client,
    supervisor: &Arc<Supervisor>,
) -> (Answer, Vec<Descriptor>) {
    let refused = |errno: Errno| {
        let mut answer = Answer::to(&Ask::new(0, 0));
        answer.status = errno.raw_os_error();
        (answer, Vec::new())
    };
    let Ok(ask) = Ask::read_from_bytes(&message.bytes) else { return refused(Errno::INVAL) };
    if ask.version != netmap::wire::VERSION || message.truncated {
        return refused(Errno::INVAL);
    }
    let mut fds = message.fds.into_iter();
    let done = match (ask.kind, fds.next(), fds.next(), fds.next()) {
        (kind::OPEN, None, None, None) => open(&ask, client, supervisor).await,
        (kind::CONTROL | kind::IDENTIFY, Some(token), memory, None) => {
            let done = control(&ask, &token, memory, client, supervisor).await;
            closed(token).await;
            done
        }
        _ => Err(Errno::INVAL),
    };
    done.unwrap_or_else(refused)
}

/// Closes our copy of a program's descriptor before the program gets its answer. Otherwise, a
/// program that closed its own copy at once would find its port still there.
async fn closed(token: Descriptor) {
    let (sender, done) = tokio::sync::oneshot::channel();
    // If the program is gone by now, the receiver is gone, too.
    token.close_then(move || _ = sender.send(()));
    // A slower close delays only the program that asked, and for at most this time.
    let _ = tokio::time::timeout(CLOSING, done).await;
}

/// A new descriptor for a program.
async fn open(
    ask: &Ask,
    client: Client,
    supervisor: &Arc<Supervisor>,
) -> Result<(Answer, Vec<Descriptor>), Errno> {
    let (theirs, ours) = token_pair(client.uid).map_err(|_| Errno::NFILE)?;
    supervisor.check_descriptors(&theirs).map_err(|_| Errno::NFILE)?;
    let cookie = socket_cookie(&theirs)?;
    let user = supervisor.netmap.user(&supervisor.environment.ledger, client.uid)?;
    let _turn = user.queue.lock().await;
    // What the user's programs have closed just now counts no more.
    supervisor.close_hung_up(&user, client.uid).await;
    supervisor.broker(|broker| broker.open(cookie, client.uid))?;
    let watched = user.closed.add(&ours, cookie).map_err(io::Error::from);
    let watched =
        watched.and_then(|()| supervisor.environment.hangups.watch(&ours, Gone::Netmap { cookie }));
    match watched {
        Ok(watch) => {
            let token = Token { end: ours, watch };
            locked(&supervisor.netmap.tokens).insert((client.uid, cookie), token);
            Ok((Answer::to(ask), vec![Descriptor::ours(theirs)]))
        }
        Err(_) => {
            user.closed.remove(&ours);
            supervisor.broker(|broker| broker.close(cookie));
            Err(Errno::NFILE)
        }
    }
}

/// Carries out a request on a descriptor.
async fn control(
    ask: &Ask,
    token: &Descriptor,
    memory: Option<Descriptor>,
    client: Client,
    supervisor: &Arc<Supervisor>,
) -> Result<(Answer, Vec<Descriptor>), Errno> {
    let cookie = socket_cookie(token).map_err(|_| Errno::BADF)?;
    let uid = supervisor.broker(|broker| broker.user_of(cookie)).ok_or(Errno::NXIO)?;
    let user = supervisor.netmap.user(&supervisor.environment.ledger, uid)?;
    let _turn = user.queue.lock().await;
    supervisor.close_hung_up(&user, uid).await;
    let (answer, fds) = match ask.kind {
        kind::IDENTIFY => supervisor.broker(|broker| broker.identify(cookie, ask)),
        _ => {
            let memory = memory.map(|memory| Box::new(memory) as broker::File);
            supervisor.request(cookie, (uid, client.pid), ask, memory).await?
        }
    };
    let Client { uid, pid } = client;
    tracing::debug!(uid, pid, request = ask.reqtype, status = answer.status, "netmap request");
    Ok((answer, fds.into_iter().map(|fd| Descriptor::of(client.uid, fd)).collect()))
}

/// Handles that the last copy of a descriptor was closed.
pub async fn hung_up(supervisor: &Supervisor, cookie: u64, watch: WatchId) {
    let Some(uid) = supervisor.broker(|broker| broker.user_of(cookie)) else { return };
    let Ok(user) = supervisor.netmap.user(&supervisor.environment.ledger, uid) else { return };
    let turn = user.queue.lock().await;
    let is_known =
        locked(&supervisor.netmap.tokens).get(&(uid, cookie)).is_some_and(|of| of.watch == watch);
    if is_known {
        supervisor.close_netmap(&user, uid, cookie).await;
    }
    drop(turn);
    drop(user);
    supervisor.netmap.forget(uid);
}

impl Supervisor {
    /// Carries out a step of the broker.
    fn broker<T>(&self, step: impl FnOnce(&mut Broker) -> T) -> T {
        let make = || Broker::new(Box::new(accounts::Accounts::of(&self.environment.ledger)));
        step(locked(&self.netmap.broker).get_or_insert_with(make))
    }

    /// Carries out a request of a user whose turn it is.
    async fn request(
        &self,
        cookie: u64,
        (uid, pid): (u32, u32),
        ask: &Ask,
        memory: Option<broker::File>,
    ) -> Result<broker::Reply, Errno> {
        let facts = self.facts(uid, ask);
        // Root may ask for another user's memory: then that user's turn is waited for, too.
        let other = self.broker(|broker| broker.concerns(cookie, Some(ask)));
        let other = other.map(|uid| self.netmap.user(&self.environment.ledger, uid)).transpose()?;
        let _other = match &other {
            Some(other) => Some(other.queue.lock().await),
            None => None,
        };
        self.note_plugged();
        let task = self.broker(|broker| broker.control(cookie, pid, ask, memory, facts));
        let task = self.run_task(self.whose_are(uid), task).await;
        Ok(self.broker(|broker| broker.reply(&task)))
    }

    /// Carries out the effects of a request or a close, as a task of these.
    async fn run_task(&self, whose: Whose, mut task: Task) -> Task {
        while let Some(effect) = self.broker(|broker| broker.next(&mut task)) {
            let outcome = self.effect(whose, effect).await;
            self.broker(|broker| broker.told(&mut task, outcome));
        }
        task
    }

    /// Closes a user's descriptors whose last copies were closed just now, so that this request can
    /// use what they had.
    async fn close_hung_up(&self, user: &User, uid: u32) {
        while let Some(cookie) = user.closed.next()
            && self.close_netmap(user, uid, cookie).await
        {}
    }

    /// Closes a user's descriptor. Returns false if it is not known.
    async fn close_netmap(&self, user: &User, uid: u32, cookie: u64) -> bool {
        let token = locked(&self.netmap.tokens).remove(&(uid, cookie));
        let Some(Token { end, watch }) = token else { return false };
        user.closed.remove(&end);
        self.environment.hangups.unwatch(watch, &end);
        let other = self.broker(|broker| broker.concerns(cookie, None));
        let other = other.and_then(|uid| self.netmap.user(&self.environment.ledger, uid).ok());
        let _other = match &other {
            Some(other) => Some(other.queue.lock().await),
            None => None,
        };
        let task = self.broker(|broker| broker.close(cookie));
        self.run_task(self.whose_are(uid), task).await;
        true
    }

    /// Tells the broker which interfaces are ports of switches, if that has changed.
    fn note_plugged(&self) {
        let last = Arc::clone(&*locked(&self.last));
        let mut told = locked(&self.netmap.told);
        if told.as_ref().is_none_or(|told| !Arc::ptr_eq(told, &last)) {
            let plugged = card::plugged(&last.0).into_iter();
            let places = plugged.map(|(switch, port)| Place::new(switch, port));
            self.broker(|broker| broker.set_plugged(places));
            *told = Some(last);
        }
    }

    /// What the broker has to know of the machine for a request.
    fn facts(&self, uid: u32, ask: &Ask) -> Facts {
        // The kernel is asked only on behalf of users that may open interfaces.
        if !self.is_trusted(Client { uid, pid: 0 }) {
            return Facts { interface: None, cpus: 1 };
        }
        let name = interface_name(ask).and_then(card::called);
        let interface = name.map(|name| {
            let is_card = card::driven_card(&name).is_some();
            Interface { name, is_card }
        });
        Facts { interface, cpus: effects::cpus() }
    }
}
