//! The socket for reading, `view.sock`: who is let in, and how much each sees.
//!
//! A file has one group, and this socket two kinds of them: members of some see everything, and
//! those who may open ports see their own. So an access control list of the file names the groups,
//! and the kernel says which of them a peer is in.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use tokio::net::{UnixListener, UnixStream};

use super::api_server::{router, talk};
use super::bound::BoundFile;
use super::caller::Caller;
use super::supervisor::Supervisor;
use super::who::{Peer, Sight, Who};
use super::{DaemonOptions, group_number, listen_stream, locked};
use crate::api::{self, Client};

/// Connections of all readers.
const MAX_READERS: usize = 128;
/// Connections of a user who is not root or the daemon's.
const MAX_OF_A_USER: usize = 16;
/// How long a reader may take for the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The groups that are let in.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Their members see everything.
    see_all: Vec<u32>,
    /// Their members may open ports, and see their own.
    see_own: Vec<u32>,
}

impl Groups {
    /// The groups that the options name, and those of the sockets that systemd has made.
    ///
    /// # Errors
    /// There is no such group.
    pub fn of(options: &DaemonOptions) -> anyhow::Result<Self> {
        let named = |group: &Option<String>| group.as_deref().map(group_number).transpose();
        let control = group_of(&options.dir.join(api::SOCKET));
        let attach = group_of(&options.dir.join(netring::attach::SOCKET));
        let view = named(&options.view_group)?;
        let see_all = view.into_iter().chain(named(&options.control_group)?).chain(control);
        let see_own = named(&options.group)?.into_iter().chain(attach);
        Ok(Self { see_all: see_all.collect(), see_own: see_own.collect() })
    }

    /// Lets the groups connect to a socket, by an access control list (acl(5)).
    fn open_up(&self, socket: &BoundFile) -> std::io::Result<()> {
        let groups: BTreeSet<u32> = self.see_all.iter().chain(&self.see_own).copied().collect();
        if groups.is_empty() { Ok(()) } else { socket.set_access(&access_list(groups)) }
    }

    /// What a user in these groups sees; `None` if nothing.
    fn sight(&self, uid: u32, of_daemon: u32, groups: &[u32]) -> Option<Sight> {
        let is_in = |these: &[u32]| groups.iter().any(|group| these.contains(group));
        if uid == 0 || uid == of_daemon || is_in(&self.see_all) {
            return Some(Sight::All);
        }
        is_in(&self.see_own).then_some(Sight::Of(uid))
    }

    /// A reader that has connected; `None` for strangers.
    fn admit(&self, stream: &UnixStream, of_daemon: u32) -> Option<Who> {
        let peer = jail::peer::of(stream).ok()?;
        let groups = jail::peer::groups(stream).ok()?;
        let sight = self.sight(peer.uid, of_daemon, &groups)?;
        let pid = peer.pid.map_or(0, i32::cast_unsigned);
        let peer = Peer::Process(Client { pid, uid: peer.uid });
        Some(Who { peer, caller: Caller::Local, views: Some(sight) })
    }
}

/// An access control list as the kernel takes it (`linux/posix_acl_xattr.h`): the owner and these
/// groups may read and write.
fn access_list(groups: BTreeSet<u32>) -> Vec<u8> {
    const VERSION: u32 = 2;
    const OWNER: u16 = 0x01;
    const OWNING_GROUP: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHERS: u16 = 0x20;
    /// In entries that name no user or group.
    const NONE: u32 = u32::MAX;
    let named = groups.into_iter().map(|group| (GROUP, 6, group));
    let first = [(OWNER, 6, NONE), (OWNING_GROUP, 0, NONE)];
    let entries = first.into_iter().chain(named).chain([(MASK, 6, NONE), (OTHERS, 0, NONE)]);
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(rights));
        list.extend(u32::to_le_bytes(id));
    }
    list
}

/// The group that may use a socket.
fn group_of(socket: &Path) -> Option<u32> {
    let file =
        std::fs::symlink_metadata(socket).ok().filter(|file| file.file_type().is_socket())?;
    (file.permissions().mode() & 0o060 == 0o060).then(|| file.gid())
}

/// Listens at the socket, for the daemon's user and these groups.
///
/// # Errors
/// It cannot be made.
pub fn listen(dir: &Path, groups: &Groups) -> anyhow::Result<UnixListener> {
    let path = dir.join(api::VIEW_SOCKET);
    let listened = || -> std::io::Result<UnixListener> {
        let socket = listen_stream(&path)?;
        let file = BoundFile::of(&socket, &path)?;
        if let Err(error) = groups.open_up(&file)
            && let Some(group) = groups.see_all.first()
        {
            tracing::warn!(%error, group, "view.sock has no access control list: one group may use it");
            file.share(None, Some(*group))?;
        }
        let listener = std::os::unix::net::UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    };
    listened().with_context(|| format!("Cannot listen on {}", path.display()))
}

/// Serves readers until the daemon is to stop.
pub async fn serve(mut listener: UnixListener, to: Arc<Supervisor>, groups: Groups) {
    let router = router(Arc::clone(&to));
    let places = Arc::new(Places::default());
    loop {
        let stream = tokio::select! {
            next = Listener::accept(&mut listener) => next.0,
            _ = to.asked_to_stop() => return,
        };
        // Strangers, and those without a place, are disconnected.
        let Some(who) = groups.admit(&stream, to.uid()) else { continue };
        let Some(place) = Places::take(&places, who.peer, to.uid()) else { continue };
        let (router, to) = (router.clone(), Arc::clone(&to));
        tokio::spawn(async move {
            let _place = place;
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
            talk(http, stream, who, router, to).await;
        });
    }
}

/// How many connections each user has.
#[derive(Debug, Default)]
struct Places(Mutex<HashMap<u32, usize>>);

/// A connection's place, until it is dropped.
#[derive(Debug)]
struct Place {
    uid: u32,
    of: Arc<Places>,
}

impl Places {
    fn take(this: &Arc<Self>, peer: Peer, of_daemon: u32) -> Option<Place> {
        let Peer::Process(Client { uid, .. }) = peer else { return None };
        let mut taken = locked(&this.0);
        let all: usize = taken.values().sum();
        let its = taken.entry(uid).or_default();
        let is_operator = uid == 0 || uid == of_daemon;
        if all >= MAX_READERS || (*its >= MAX_OF_A_USER && !is_operator) {
            return None;
        }
        *its += 1;
        Some(Place { uid, of: Arc::clone(this) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = locked(&self.of.0);
        if let Some(its) = taken.get_mut(&self.uid) {
            *its -= 1;
        }
        taken.retain(|_, its| *its > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_decide_how_much_a_reader_sees() {
        let groups = Groups { see_all: vec![10, 11], see_own: vec![20] };
        for (uid, of, sees) in [
            (0, &[][..], Some(Sight::All)),
            (7, &[], Some(Sight::All)),
            (8, &[1, 10], Some(Sight::All)),
            (8, &[20, 11], Some(Sight::All)),
            (8, &[1, 20], Some(Sight::Of(8))),
            (8, &[1], None),
            (8, &[], None),
        ] {
            assert_eq!(groups.sight(uid, 7, of), sees, "{uid} {of:?}");
        }
    }

    #[test]
    fn a_user_takes_few_of_the_places() {
        let places = Arc::new(Places::default());
        let take = |uid| Places::take(&places, Peer::Process(Client { pid: 1, uid }), 7);
        let mine: Vec<_> = (0..100).filter_map(|_| take(1000)).collect();
        assert_eq!(mine.len(), MAX_OF_A_USER);
        assert!(take(1001).is_some());
        let operators: Vec<_> = (0..1000).filter_map(|_| take(0)).collect();
        assert_eq!(operators.len(), MAX_READERS - MAX_OF_A_USER);
        drop((mine, operators));
        assert!(locked(&places.0).is_empty());
        assert!(take(1000).is_some());
    }
}
