//! Watches the interfaces of ports: an interface that goes away is a state of its port, and the
//! port comes back with it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use host::tap::enter;
use tokio::io::Interest;
use tokio::sync::mpsc;

use super::super::descriptors;
use super::super::front_ends::{Trouble, Waiting};
use super::super::objects::{LOOK, Namespace, Notice, Seen};
use super::clsact::Sweeper;
use super::link::{self, Asker, Link};
use super::watched::Watched;

/// For how long changes are collected before the interface is looked at.
const SETTLE: Duration = Duration::from_millis(20);

/// What a port has of an interface.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The interface's number.
    pub index: u32,
    /// The name and number of the tap by which the port is the host's end.
    pub tap: Option<(String, u32)>,
    /// Filters have to be removed from the interface when the tap is gone.
    pub filters: bool,
}

/// Watches the interface of a port called `name`. `opened` is what the port has of it, and
/// `namespace` where. Without its namespace the port waits for that.
///
/// # Errors
/// Its namespace cannot be entered, or the kernel's error.
pub fn watch(
    name: (String, String),
    (ifname, netns): (&str, Option<&str>),
    (opened, namespace): (Option<Opened>, Namespace),
    to: mpsc::Sender<Notice>,
) -> io::Result<Waiting> {
    if namespace.gone().is_some() {
        return Ok(Waiting::watch(name, &to, move || namespace.gone()));
    }
    let filtered = opened.as_ref().filter(|opened| opened.filters);
    let open = || -> io::Result<(OwnedFd, Asker, Option<Sweeper>)> {
        netns.map_or(Ok(()), enter).map_err(|error| io::Error::other(error.to_string()))?;
        let sweeper = filtered.map(|_| Sweeper::open()).transpose()?;
        Ok((link::changes()?, Asker::open()?, sweeper))
    };
    // A thread that has entered a namespace does nothing else.
    let opening = std::thread::scope(|scope| scope.spawn(open).join());
    let (changes, asker, sweeper) = opening.map_err(|_| io::ErrorKind::Other)??;
    if let (Some(sweeper), Some(Opened { index, tap: Some(tap), .. })) = (sweeper, &opened) {
        sweeper.start(*index, tap.clone())?;
    }
    let changes = descriptors::register(changes, Interest::READABLE)?;
    let watched = Arc::new(Watched::new(ifname, asker));
    let interface = Arc::clone(&watched);
    let waiting = Waiting::new(None, |waiting, _, trouble| {
        tokio::spawn(async move {
            loop {
                let seen = match namespace.gone() {
                    Some(gone) => Seen::Gone(gone),
                    None => look(&interface, opened.as_ref(), &name, &trouble),
                };
                let is_fine = seen == Seen::Fine;
                if !is_fine && !Notice::tell(&to, &name, (waiting, seen)).await {
                    return;
                }
                // A port that was opened again has another task. No message tells that a namespace
                // lost its name.
                let change = changes.readable();
                let changed = match is_fine && !namespace.has_name() {
                    false => tokio::time::timeout(LOOK, change).await.ok(),
                    true => Some(change.await),
                };
                if let Some(Ok(mut ready)) = changed {
                    link::forget(ready.get_inner());
                    ready.clear_ready();
                }
                tokio::time::sleep(SETTLE).await;
            }
        })
    });
    Ok(waiting.of_interface(watched))
}

/// Checks an interface, and records what is wrong with it. The port has to be opened again if the
/// interface is not the one that it was opened for.
fn look(
    interface: &Watched,
    opened: Option<&Opened>,
    name: &(String, String),
    trouble: &Trouble,
) -> Seen {
    let ifname = &interface.ifname;
    match interface.asker.ask(ifname) {
        Err(error) => trouble.note(name, &format!("interface {ifname} cannot be seen: {error}")),
        Ok(None) => trouble.note(name, &format!("interface {ifname} is gone")),
        Ok(Some(link)) if opened.is_none_or(|opened| opened.index != link.index) => {
            return Seen::Back;
        }
        Ok(Some(link)) => match (fault_of(ifname, &link), opened.and_then(|o| o.tap.as_ref())) {
            (Some(fault), _) => trouble.note(name, &fault),
            (None, None) => trouble.end(),
            (None, Some((tap, index))) => match interface.asker.ask(tap) {
                Ok(Some(link)) if link.index == *index => match fault_of(tap, &link) {
                    Some(fault) => trouble.note(name, &fault),
                    None => trouble.end(),
                },
                Ok(_) => return Seen::Back,
                Err(error) => trouble.note(name, &format!("tap {tap} cannot be seen: {error}")),
            },
        },
    }
    Seen::Fine
}

/// The reason why no frames pass an interface.
fn fault_of(ifname: &str, link: &Link) -> Option<String> {
    match (link.up, link.carrier) {
        (false, _) => Some(format!("interface {ifname} is down (ip link set {ifname} up)")),
        (true, false) => Some(format!("interface {ifname} has no carrier")),
        (true, true) => None,
    }
}
