//! netmap's interface on the attach socket: descriptors that programs have for `/dev/netmap`, and
//! the [`Broker`] that knows what they are bound to.

pub mod card;
pub mod end;
mod join;
pub mod opened;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ::card::vfio::Files;
use dataplane::config::RingAttach;
use frame::OffloadSet;
use jail::strangers::Descriptor;
use netmap::broker::{self, Broker, CardFiles, Charge, End, NewPort, Reply, Requester, Switches};
use netmap::wire::{Answer, Ask, kind};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use zerocopy::FromBytes;

use self::opened::Token;
use super::attach::request::{How, Lent, errno};
use super::hangups::{Gone, WatchId};
use super::quota::{File, Item};
use super::seqpacket::Message;
use super::supervisor::{Ports, Supervisor};
use super::{locked, token_pair};
use crate::api::{Client, ErrorCode};

/// The maximum number of descriptors of one user's programs.
const MOST_OPENED: usize = 4096;
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
    let mut broker = supervisor.netmap.broker.lock().await;
    let broker = broker.get_or_insert_with(|| Broker::new(Ports(Arc::downgrade(supervisor))));
    if broker.opened_by(client.uid) >= MOST_OPENED {
        return Err(Errno::MFILE);
    }
    let hangups = &supervisor.environment.hangups;
    let watch = hangups.watch(&ours, Gone::Netmap { cookie }).map_err(|_| Errno::NFILE)?;
    locked(&supervisor.netmap.tokens).insert(cookie, Token { end: ours, watch });
    broker.open(cookie, client.uid);
    Ok((Answer::to(ask), vec![Descriptor::ours(theirs)]))
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
    let mut broker = supervisor.netmap.broker.lock().await;
    let broker = broker.as_mut().ok_or(Errno::NXIO)?;
    close_hung_up(broker, supervisor).await;
    let (answer, fds): Reply = match ask.kind {
        kind::IDENTIFY => broker.identify(cookie, ask),
        _ => {
            broker
                .control(
                    cookie,
                    client.pid,
                    ask,
                    memory.map(|memory| Box::new(memory) as broker::File),
                )
                .await
        }
    };
    let Client { uid, pid } = client;
    tracing::debug!(uid, pid, request = ask.reqtype, status = answer.status, "netmap request");
    Ok((answer, fds.into_iter().map(|fd| Descriptor::of(client.uid, fd)).collect()))
}

/// Closes descriptors whose last copy was closed just now, so that this request can use what they
/// had.
async fn close_hung_up(broker: &mut Broker<Ports>, supervisor: &Supervisor) {
    let gone: Vec<u64> = {
        let tokens = locked(&supervisor.netmap.tokens);
        let mut look: Vec<_> =
            tokens.values().map(|token| PollFd::new(&token.end, PollFlags::RDHUP)).collect();
        let now = Duration::ZERO.try_into().ok();
        if !rustix::event::poll(&mut look, now.as_ref()).is_ok_and(|ready| ready > 0) {
            return;
        }
        let ready = look.iter().map(|fd| !fd.revents().is_empty());
        tokens.keys().zip(ready).filter(|(_, ready)| *ready).map(|(cookie, _)| *cookie).collect()
    };
    for cookie in gone {
        close(broker, supervisor, cookie).await;
    }
}

async fn close(broker: &mut Broker<Ports>, supervisor: &Supervisor, cookie: u64) {
    let token = locked(&supervisor.netmap.tokens).remove(&cookie);
    if let Some(Token { end, watch }) = token {
        supervisor.environment.hangups.unwatch(watch, &end);
    }
    broker.close(cookie).await;
}

/// Handles that the last copy of a descriptor was closed.
pub async fn hung_up(supervisor: &Supervisor, cookie: u64, watch: WatchId) {
    let mut broker = supervisor.netmap.broker.lock().await;
    let is_known =
        locked(&supervisor.netmap.tokens).get(&cookie).is_some_and(|token| token.watch == watch);
    if let (Some(broker), true) = (broker.as_mut(), is_known) {
        close(broker, supervisor, cookie).await;
    }
}

impl Switches for Ports {
    fn charge(&self, uid: u32, memory: BorrowedFd<'_>) -> Result<Charge, Errno> {
        let supervisor = self.0.upgrade().ok_or(Errno::NXIO)?;
        let file = File::of(memory).map_err(|_| Errno::IO)?;
        let charge = supervisor.environment.ledger.charge(uid, Item::Memory(file));
        charge.map(|charge| Box::new(charge) as Charge).map_err(|error| {
            tracing::info!(uid, %error, "netmap region refused");
            Errno::NOMEM
        })
    }

    fn interface(&self, uid: u32, ifname: &str) -> Option<String> {
        // The kernel is asked only on behalf of users that may open interfaces.
        let of = Client { uid, pid: 0 };
        let may = self.0.upgrade().is_some_and(|supervisor| supervisor.is_trusted(of));
        if may { card::called(ifname) } else { None }
    }

    fn is_card(&self, ifname: &str) -> bool {
        card::driven_card(ifname).is_some()
    }

    async fn open_card(&self, who: Requester, ifname: &str) -> Result<CardFiles, Errno> {
        let address = card::driven_card(ifname).ok_or(Errno::NXIO)?;
        let opened = tokio::task::spawn_blocking(move || card::open(&address)).await;
        let opened = opened.map_err(|_| Errno::IO)?;
        let Files { device, group, container } = opened.map_err(|error| {
            tracing::info!(uid = who.uid, ifname, %error, "card refused");
            card::errno_of(&error)
        })?;
        // The kernel may take long to close a card.
        let file = |fd| Box::new(Descriptor::of(who.uid, fd)) as broker::File;
        Ok(CardFiles([device.into(), group, container].map(file)))
    }

    async fn close_card(&self, ifname: &str, files: CardFiles, [unsendable, damaged]: [u32; 2]) {
        if let Err(error) = ::card::vfio::stop(files.0[0].as_fd()) {
            tracing::warn!(ifname, %error, "card was not stopped");
        }
        if unsendable > 0 || damaged > 0 {
            tracing::warn!(
                ifname,
                unsendable,
                damaged,
                "frames of a netmap program's card were lost"
            );
        }
    }

    async fn attach(&self, new: NewPort<'_>) -> Result<(OwnedFd, String), Errno> {
        let supervisor = self.0.upgrade().ok_or(Errno::NXIO)?;
        let NewPort {
            who: Requester { uid, pid },
            switch,
            interface,
            port,
            monitor,
            memory,
            geometry,
            tx,
            rx,
        } = new;
        let client = Client { uid, pid };
        let file = Descriptor::of(uid, memory.try_clone_to_owned().map_err(|_| Errno::NFILE)?);
        let memory = Lent { file, len: geometry.file_size() as usize };
        let ring = RingAttach {
            geometry,
            tx,
            rx,
            buf_usable: geometry.buf_size,
            supervised: true,
            offloads: OffloadSet::NONE,
        };
        let how = How { monitor, existing: false, netmap: true };
        let joined = match interface {
            Some((end, ifname)) => supervisor.join_end(client, end, ifname).await,
            None => Ok(()),
        };
        let opened = match joined {
            Ok(()) => supervisor.open_port(client, switch, port, how, ring, memory).await,
            Err(error) => Err(error),
        };
        if opened.is_err() && End::of(switch).is_some() {
            supervisor.leave_card(switch).await;
        }
        let opened = opened.map_err(|error| {
            tracing::info!(uid, switch, port, %error, "netmap port refused");
            match Errno::from_raw_os_error(errno(error.code)) {
                Errno::NOSPC => Errno::NOMEM,
                errno => errno,
            }
        })?;
        Ok((opened.token.into_ours(), opened.name))
    }

    async fn number_if_trusted(&self, switch: &str, port: &str) -> Option<u16> {
        self.0.upgrade()?.number_if_trusted(switch, port).await
    }

    async fn plug(
        &self,
        who: Requester,
        switch: &str,
        ifname: &str,
        host: bool,
    ) -> Result<(), Errno> {
        let Requester { uid, pid } = who;
        let supervisor = self.0.upgrade().ok_or(Errno::NXIO)?;
        supervisor.plug(Client { uid, pid }, switch, ifname, host).await.map_err(|error| {
            tracing::info!(uid, switch, ifname, %error, "interface was not attached");
            match error.code {
                ErrorCode::Exists => Errno::BUSY,
                code => Errno::from_raw_os_error(errno(code)),
            }
        })
    }

    async fn unplug(&self, who: Requester, switch: &str, ifname: &str) -> Result<(), Errno> {
        let Requester { uid, pid } = who;
        let supervisor = self.0.upgrade().ok_or(Errno::NXIO)?;
        supervisor.unplug(Client { uid, pid }, switch, ifname).await.map_err(|error| {
            tracing::info!(uid, switch, ifname, %error, "interface was not detached");
            match error.code {
                ErrorCode::NotFound => Errno::NXIO,
                code => Errno::from_raw_os_error(errno(code)),
            }
        })
    }

    async fn plugged(&self) -> Vec<(String, String)> {
        match self.0.upgrade() {
            Some(supervisor) => supervisor.plugged().await,
            None => Vec::new(),
        }
    }

    async fn join(&self, who: Requester, switches: [&str; 2], port: &str) -> Result<(), Errno> {
        let Requester { uid, pid } = who;
        let supervisor = self.0.upgrade().ok_or(Errno::NXIO)?;
        supervisor.join_switches(Client { uid, pid }, switches, port).await.map_err(|error| {
            tracing::info!(uid, ?switches, port, %error, "switches are not joined");
            match error.code {
                ErrorCode::Exists => Errno::BUSY,
                code => Errno::from_raw_os_error(errno(code)),
            }
        })
    }

    async fn part(&self, switches: [&str; 2], port: &str) {
        if let Some(supervisor) = self.0.upgrade() {
            supervisor.part_switches(switches, port).await;
        }
    }

    async fn poll(
        &self,
        who: Requester,
        switch: &str,
        ifname: &str,
        queues: Option<u32>,
    ) -> Result<(), Errno> {
        let Requester { uid, pid } = who;
        let supervisor = self.0.upgrade().ok_or(Errno::NXIO)?;
        supervisor.set_polling(Client { uid, pid }, switch, ifname, queues).await.map_err(|error| {
            tracing::info!(uid, switch, ifname, %error, "interface is not polled");
            Errno::from_raw_os_error(errno(error.code))
        })
    }

    fn cpus(&self) -> u32 {
        // The daemon's own affinity says nothing of the machine.
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let is_cpu = |line: &&str| {
            let number = line.strip_prefix("cpu");
            number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        (stat.lines().filter(is_cpu).count() as u32).max(1)
    }

    async fn read_format(&self, switch: &str, port: &str) {
        if let Some(supervisor) = self.0.upgrade() {
            supervisor.read_format(switch, port).await;
        }
    }

    async fn detach(&self, switch: &str, port: &str) {
        if let Some(supervisor) = self.0.upgrade() {
            supervisor.close_port(switch, port).await;
            if End::of(switch).is_some() {
                supervisor.leave_card(switch).await;
            }
        }
    }
}
