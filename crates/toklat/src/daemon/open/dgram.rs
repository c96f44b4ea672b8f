//! Frames in datagrams. A datagram socket gets no connection, so it is pointed at its peer every
//! second.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use dataplane::attach::buffered::dgram::DgramConfig;
use dataplane::config::Attachment;
use jail::strangers::Descriptor;
use rustix::net::SocketType;
use tokio::sync::mpsc;
use topology::{Dgram, Place};

use super::super::bound::BoundFile;
use super::super::front_ends::{RETRY, Rights, Waiting, check_place, make_room, point_at, share};
use super::super::objects::{self, Notice, Seen};
use super::super::system;
use super::{Following, Future, Open, Opened, Opening, Reach, Users, blocking};
use crate::api::ApiError;

impl Open for Dgram {
    fn reach(&self) -> Reach<'_> {
        Reach::Host("it names sockets")
    }

    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        let socket = datagrams(&Place::of(&self.local), &Place::of(&self.remote), at.users);
        Box::pin(async move {
            // The receive queue holds what the peer sends.
            let fds = vec![Descriptor::from(socket?)];
            Ok(Opened { attachment: DgramConfig {}.into(), fds, tunnel: None })
        })
    }

    fn probe(&self, _: u16) -> Future<'_, ()> {
        let local = Place::of(&self.local);
        blocking(move || check_place(&local, SocketType::DGRAM))
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::Dgram(_))
    }

    fn follow(
        &self,
        name: (String, String),
        Following { fds, notices, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        match (Place::of(&self.local), Place::of(&self.remote), fds.first()) {
            (Place::Path(local), Place::Path(remote), Some(socket)) => {
                let waiting = redirect(name, (socket, &local), remote, notices.clone());
                waiting.map(Some).map_err(|e| system(&format!("Cannot use {}", local.display()), e))
            }
            (_, _, None) => Ok(Some(Waiting::watch(name, notices, || None))),
            _ => Ok(None),
        }
    }

    fn is_for_users(&self) -> bool {
        true
    }
}

/// Points a datagram socket at the peer at `remote`, and again every second, because another peer
/// may have taken its place, until the socket file at `local`, to which this socket is bound, is
/// gone. Afterwards removes that file.
///
/// # Errors
/// The kernel's error.
fn redirect(
    name: (String, String),
    (socket, local): (&Descriptor, &Path),
    remote: PathBuf,
    notices: mpsc::Sender<Notice>,
) -> io::Result<Waiting> {
    // The file may have gone before this: an earlier daemon may have made the socket.
    let made = (local.to_owned(), inode(socket, local)?);
    let socket = socket.try_clone()?;
    Ok(Waiting::new(Some(made.clone()), |waiting, _, trouble| {
        tokio::spawn(async move {
            loop {
                if let Some(why) = objects::gone_socket(made.clone()).await {
                    Notice::tell(&notices, &name, (waiting, Seen::Gone(why))).await;
                }
                match point_at(&socket, &remote) {
                    Ok(()) => trouble.end(),
                    Err(error) => trouble.meet(&remote.display(), &name, &error),
                }
                tokio::time::sleep(RETRY.1).await;
            }
        })
    }))
}

/// The inode of the file that a socket is bound to. If the kernel does not tell, that of the file
/// at `local`; of none, a number that no file has.
fn inode(socket: &Descriptor, local: &Path) -> io::Result<u64> {
    const NONE: u64 = 0;
    match BoundFile::of(socket, local) {
        Ok(file) => Ok(file.inode()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NONE),
        Err(error) => match std::fs::symlink_metadata(local) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(NONE),
            // Another file has its name.
            Ok(_) if error.kind() == io::ErrorKind::AlreadyExists => Ok(NONE),
            _ => Err(error),
        },
    }
}

/// Makes a datagram socket at `local` for the frames of a peer at `remote`. If both are Unix
/// sockets, the peer need not exist yet. The same users as in [`Waiting::listen`] may use it.
///
/// # Errors
/// The socket cannot be made there.
fn datagrams(
    local: &Place,
    remote: &Place,
    (owner, group): Users<'_>,
) -> Result<OwnedFd, ApiError> {
    let failed = |e| system(&format!("Cannot use datagrams from {local} to {remote}"), e);
    match (local, remote) {
        (Place::Path(local), Place::Path(remote)) => {
            make_room(local, SocketType::DGRAM)?;
            let socket = std::os::unix::net::UnixDatagram::bind(local).map_err(failed)?;
            Rights::Refused.make(&socket);
            share(&socket, local, owner, group)?;
            // A failure is retried after a pause.
            let _ = point_at(&socket, remote);
            Ok(socket.into())
        }
        (Place::Inet(local), Place::Inet(remote)) => {
            let socket = std::net::UdpSocket::bind(local).map_err(failed)?;
            socket.connect(remote).map_err(failed)?;
            Ok(socket.into())
        }
        _ => Err(failed(io::Error::other("one is a path, the other is not"))),
    }
}
