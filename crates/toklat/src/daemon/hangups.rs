//! Detects peers that disconnected: the supervisor's own epoll set over tokens and channels. It has
//! EPOLLRDHUP only, so kicks on tokens never wake it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::pipes::end::End;
use super::{descriptors, locked};

/// The number of a watched descriptor; never reused.
pub type WatchId = u64;

/// The peer that disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The client of a port.
    Client {
        /// The switch.
        switch: String,
        /// The port's name.
        port: String,
        /// The user who has it.
        uid: u32,
    },
    /// A program's descriptor of netmap's interface.
    Netmap {
        /// The cookie of the program's end.
        cookie: u64,
    },
    /// A data process.
    DataProcess {
        /// Its switch.
        switch: String,
    },
    /// An end of a pipe.
    Pipe {
        /// The pipe.
        name: (String, String),
        /// Which end.
        end: End,
    },
}

/// The epoll set, and the peer behind each number.
#[derive(Debug)]
pub struct Hangups {
    epoll: AsyncFd<OwnedFd>,
    watched: Mutex<(WatchId, HashMap<WatchId, Gone>)>,
}

impl Hangups {
    /// Makes an empty set.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let epoll = descriptors::register(epoll, Interest::READABLE)?;
        Ok(Self { epoll, watched: Mutex::default() })
    }

    /// Has [`next`](Self::next) report `gone`, once, when the other end of `fd` is closed;
    /// immediately if it is closed already.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn watch(&self, fd: impl AsFd, gone: Gone) -> io::Result<WatchId> {
        let mut watched = locked(&self.watched);
        let id = watched.0;
        let flags = EventFlags::RDHUP | EventFlags::ONESHOT;
        epoll::add(self.epoll.get_ref(), fd, EventData::new_u64(id), flags)?;
        watched.0 += 1;
        watched.1.insert(id, gone);
        Ok(id)
    }

    /// Stops watching a descriptor. Call it before the descriptor is closed: a data process holds a
    /// duplicate, so the kernel would keep watching.
    pub fn unwatch(&self, id: WatchId, fd: impl AsFd) {
        if locked(&self.watched).1.remove(&id).is_some() {
            // Removing fails only if the descriptor is not in the set.
            let _ = epoll::delete(self.epoll.get_ref(), fd);
        }
    }

    /// Waits until a peer disconnects.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn next(&self) -> io::Result<Vec<(WatchId, Gone)>> {
        loop {
            let mut ready = self.epoll.readable().await?;
            let mut events: Vec<Event> = Vec::with_capacity(256);
            let no_wait = Duration::ZERO.try_into().ok();
            epoll::wait(
                self.epoll.get_ref(),
                rustix::buffer::spare_capacity(&mut events),
                no_wait.as_ref(),
            )?;
            if events.is_empty() {
                ready.clear_ready();
                continue;
            }
            let watched = locked(&self.watched);
            let known = |e: &Event| {
                let id = e.data.u64();
                watched.1.get(&id).map(|gone| (id, gone.clone()))
            };
            return Ok(events.iter().filter_map(known).collect());
        }
    }
}

/// Returns true if the other end of `fd` is closed, whether reported or not.
#[must_use]
pub fn has_hung_up(fd: impl AsFd) -> bool {
    let mut look = [PollFd::new(&fd, PollFlags::RDHUP)];
    let now = Duration::ZERO.try_into().ok();
    rustix::event::poll(&mut look, now.as_ref()).is_ok_and(|n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    fn token() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn gone(switch: &str) -> Gone {
        Gone::DataProcess { switch: switch.into() }
    }

    #[tokio::test]
    async fn only_the_last_close_counts_and_kicks_do_not() {
        let hangups = Hangups::new().unwrap();
        let (client, ours) = token();
        let second = client.try_clone().unwrap();
        let id = hangups.watch(&ours, gone("a")).unwrap();
        rustix::io::write(&client, b"k").unwrap();
        drop(client);
        let wait = tokio::time::timeout(Duration::from_millis(50), hangups.next());
        assert!(wait.await.is_err(), "a kick or a first close was taken for the end");
        drop(second);
        assert_eq!(hangups.next().await.unwrap(), [(id, gone("a"))]);
        let wait = tokio::time::timeout(Duration::from_millis(50), hangups.next());
        assert!(wait.await.is_err(), "told twice");
    }

    #[tokio::test]
    async fn the_end_is_seen_while_a_data_process_holds_a_duplicate() {
        let hangups = Hangups::new().unwrap();
        let (client, ours) = token();
        let _data_process = ours.try_clone().unwrap();
        let id = hangups.watch(&ours, gone("a")).unwrap();
        drop(client);
        assert_eq!(hangups.next().await.unwrap()[0].0, id);
        hangups.unwatch(id, &ours);
    }
}
