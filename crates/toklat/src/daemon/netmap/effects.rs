//! What the broker wants done to switches, interfaces and cards, carried out.

use std::fmt::Debug;
use std::os::fd::AsFd;

use ::card::vfio::Files;
use dataplane::config::RingAttach;
use frame::OffloadSet;
use jail::strangers::Descriptor;
use netmap::broker::{self, Attached, CardFiles, Effect, End, NewPort, Outcome, Place, Requester};
use rustix::io::Errno;

use super::card;
use crate::api::{ApiError, Client, ErrorCode};
use crate::daemon::attach::request::{How, Lent, errno};
use crate::daemon::shared::Whose;
use crate::daemon::supervisor::Supervisor;

impl Supervisor {
    /// Carries out one effect, as a task of these.
    pub(super) async fn effect(&self, whose: Whose, effect: Effect) -> Outcome {
        match effect {
            Effect::Attach(new) => return Outcome::Attached(self.attach_netmap(new).await),
            Effect::OpenCard { who, ifname } => {
                return Outcome::Card(open_card(who, &ifname).await);
            }
            Effect::CloseCard { ifname, files, lost } => close_card(&ifname, &files, lost),
            Effect::Detach(Place { switch, port }) => {
                self.detach_netmap(whose, &switch, &port).await
            }
            Effect::ReadFormat(Place { switch, port }) => {
                self.read_format(whose, &switch, &port).await
            }
            Effect::Part { switches: [first, second], port } => {
                self.part_switches(whose, [&first, &second], &port).await;
            }
            effect => return Outcome::Done(self.change(effect).await),
        }
        Outcome::Done(Ok(()))
    }

    /// Carries out an effect that may be refused.
    async fn change(&self, effect: Effect) -> Result<(), Errno> {
        match effect {
            Effect::Plug { who, place: Place { switch, port }, host } => {
                let done = self.plug(client(who), &switch, &port, host).await;
                told(done, "interface was not attached", who, &(switch, port))
            }
            Effect::Unplug { who, place: Place { switch, port } } => {
                let done = self.unplug(client(who), &switch, &port).await;
                let is_none = done.as_ref().is_err_and(|error| error.code == ErrorCode::NotFound);
                let done = told(done, "interface was not detached", who, &(switch, port));
                if is_none { Err(Errno::NXIO) } else { done }
            }
            Effect::Join { who, switches, port } => {
                let [first, second] = &switches;
                let done = self.join_switches(client(who), [first, second], &port).await;
                told(done, "switches are not joined", who, &(&switches, port))
            }
            Effect::Poll { who, place: Place { switch, port }, queues } => {
                let done = self.set_polling(client(who), &switch, &port, queues).await;
                told(done, "interface is not polled", who, &(switch, port))
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Attaches a port of a program to a switch.
    async fn attach_netmap(&self, new: NewPort) -> Result<Attached, Errno> {
        let NewPort { who, place, interface, monitor, memory, geometry, tx, rx } = new;
        let (client, Place { switch, port }) = (client(who), place);
        let file = Descriptor::of(who.uid, memory);
        let memory = Lent { file, len: geometry.file_size() as usize };
        let (buf_usable, offloads) = (geometry.buf_size, OffloadSet::NONE);
        let ring = RingAttach { geometry, tx, rx, buf_usable, supervised: true, offloads };
        let how = How { monitor, existing: false, netmap: true };
        let joined = match &interface {
            Some((end, ifname)) => self.join_end(client, *end, ifname).await,
            None => Ok(()),
        };
        let opened = match joined {
            Ok(()) => self.open_port(client, &switch, &port, how, ring, memory).await,
            Err(error) => Err(error),
        };
        if opened.is_err() && End::of(&switch).is_some() {
            self.leave_card(&switch).await;
        }
        let opened = opened.map_err(|error| {
            tracing::info!(uid = who.uid, switch, port, %error, "netmap port refused");
            match Errno::from_raw_os_error(errno(error.code)) {
                Errno::NOSPC => Errno::NOMEM,
                errno => errno,
            }
        })?;
        let port = (&*switch, &*opened.name);
        let number_if_trusted = self.number_if_trusted(client, port).await;
        let (token, name) = (opened.token.into_ours(), opened.name);
        Ok(Attached { token, name, number_if_trusted })
    }

    async fn detach_netmap(&self, whose: Whose, switch: &str, port: &str) {
        self.close_port(whose, switch, port).await;
        if End::of(switch).is_some() {
            self.leave_card(switch).await;
        }
    }
}

const fn client(who: Requester) -> Client {
    Client { uid: who.uid, pid: who.pid }
}

/// The error number for a program whose request was refused.
fn told(
    done: Result<(), ApiError>,
    what: &str,
    who: Requester,
    of: &impl Debug,
) -> Result<(), Errno> {
    done.map_err(|error| {
        tracing::info!(uid = who.uid, ?of, %error, "{what}");
        match error.code {
            ErrorCode::Exists => Errno::BUSY,
            code => Errno::from_raw_os_error(errno(code)),
        }
    })
}

async fn open_card(who: Requester, ifname: &str) -> Result<CardFiles, Errno> {
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

fn close_card(ifname: &str, files: &CardFiles, [unsendable, damaged]: [u32; 2]) {
    if let Err(error) = ::card::vfio::stop(files.0[0].as_fd()) {
        tracing::warn!(ifname, %error, "card was not stopped");
    }
    if unsendable > 0 || damaged > 0 {
        tracing::warn!(ifname, unsendable, damaged, "frames of a netmap program's card were lost");
    }
}

/// The number of CPUs of the machine.
pub(super) fn cpus() -> u32 {
    // The daemon's own affinity says nothing of the machine.
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let is_cpu = |line: &&str| {
        let number = line.strip_prefix("cpu");
        number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    (stat.lines().filter(is_cpu).count() as u32).max(1)
}
