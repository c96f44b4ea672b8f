//! Watches the interfaces of ports: an interface that goes away is a state of its port, and the
//! port comes back with it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use control::tap::enter;
use tokio::io::Interest;
use tokio::sync::mpsc;

use super::super::descriptors;
use super::super::front_ends::{Trouble, Waiting};
use super::link::{self, Asker, Link};
use super::watched::{Returned, Watched};

/// For how long changes are collected before the interface is looked at.
const SETTLE: Duration = Duration::from_millis(20);
/// The pause between attempts to open an interface again.
const AGAIN: Duration = Duration::from_secs(1);
/// Watches the interface of a port called `name`. `opened` is what the port has of it.
///
/// # Errors
/// Its namespace cannot be entered, or the kernel's error.
pub fn watch(
    name: (String, String),
    ifname: &str,
    netns: Option<&str>,
    opened: Option<u32>,
    to: mpsc::Sender<Returned>,
) -> io::Result<Waiting> {
    let open = || -> io::Result<(OwnedFd, Asker)> {
        netns.map_or(Ok(()), enter).map_err(|error| io::Error::other(error.to_string()))?;
        Ok((link::changes()?, Asker::open()?))
    };
    // A thread that has entered a namespace does nothing else.
    let opening = std::thread::scope(|scope| scope.spawn(open).join());
    let (changes, asker) = opening.map_err(|_| io::ErrorKind::Other)??;
    let changes = descriptors::register(changes, Interest::READABLE)?;
    let watched = Arc::new(Watched::new(ifname, asker));
    let interface = Arc::clone(&watched);
    let waiting = Waiting::new(None, |waiting, _, trouble| {
        let (switch, port) = name.clone();
        let back = move || {
            let (switch, port) = (switch.clone(), port.clone());
            Returned { switch, port, waiting }
        };
        tokio::spawn(async move {
            loop {
                let is_back = look(&interface, opened, &name, &trouble);
                if is_back && to.send(back()).await.is_err() {
                    return;
                }
                // A port that was opened again has another task.
                let change = changes.readable();
                let changed = match is_back {
                    true => tokio::time::timeout(AGAIN, change).await.ok(),
                    false => Some(change.await),
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

/// Checks an interface, and records what is wrong with it. Returns true if the port has to be
/// opened again, because the interface is not the one that it was opened for.
fn look(
    interface: &Watched,
    opened: Option<u32>,
    name: &(String, String),
    trouble: &Trouble,
) -> bool {
    let ifname = &interface.ifname;
    match interface.asker.ask(ifname) {
        Err(error) => trouble.note(name, &format!("interface {ifname} cannot be seen: {error}")),
        Ok(None) => trouble.note(name, &format!("interface {ifname} is gone")),
        Ok(Some(link)) if Some(link.index) != opened => return true,
        Ok(Some(Link { up: false, .. })) => {
            trouble.note(name, &format!("interface {ifname} is down (ip link set {ifname} up)"));
        }
        Ok(Some(Link { carrier: false, .. })) => {
            trouble.note(name, &format!("interface {ifname} has no carrier"));
        }
        Ok(Some(_)) => trouble.end(),
    }
    false
}
