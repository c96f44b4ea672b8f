//! The attach socket: how ring clients open ports and pipes. Clients are treated as hostile.
//!
//! Each connection has its own task and a time limit for each step, so a silent or slow client
//! delays no other. Connections are limited in total and per user.

pub mod request;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jail::strangers::{Descriptor, closer};
use netring::attach::{Reply, Request, VERSION, reply};
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use self::request::{Ask, bad, errno, parse_request};
use super::netmap;
use super::pipes::end::{End, PipeLayout};
use super::quota::{Item, Paced};
use super::seqpacket::{Listener, Message, Seqpacket};
use super::supervisor::Supervisor;
use crate::api::{ApiError, Client, ErrorCode};

/// Time limit for a client to send its request, and to take the reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// Serves clients until the task is dropped.
pub async fn serve(listener: Listener, supervisor: Arc<Supervisor>) {
    loop {
        let socket = match listener.accept().await {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(%error, "cannot accept attach connections");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // A user whose earlier descriptors are still being closed is not served.
        if let Err(refused) = closer().admits(socket.uid()) {
            tracing::debug!(%refused, "attach connection");
            continue;
        }
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { continue };
        let client = Client { pid: peer.pid.as_raw_nonzero().get() as u32, uid: peer.uid.as_raw() };
        let charge = match supervisor.environment.ledger.charge(client.uid, Item::Connection) {
            Ok(charge) => charge,
            Err(error) => {
                refuse_connection(socket, &error).await;
                continue;
            }
        };
        let supervisor = Arc::clone(&supervisor);
        tokio::spawn(async move {
            let _charge = charge;
            if let Err(error) = converse(socket, client, &supervisor).await {
                tracing::debug!(uid = client.uid, pid = client.pid, %error, "attach connection");
            }
        });
    }
}

async fn refuse_connection(socket: Descriptor, error: &ApiError) {
    let reply = Reply::refused(Errno::AGAIN.raw_os_error(), &error.to_string());
    if let Ok(socket) = Seqpacket::new(socket) {
        // The socket's buffer is empty, so this does not block. An error is ignored: the client is
        // gone.
        let _ = socket.send(reply.as_bytes(), &[]).await;
        // If a request were still queued, closing would reset the connection and lose the reply.
        socket.drain_and_hang_up();
    }
}

/// Answers requests until the client disconnects.
async fn converse(
    socket: Descriptor,
    client: Client,
    supervisor: &Arc<Supervisor>,
) -> io::Result<()> {
    let socket = Seqpacket::new(socket)?;
    let ledger = &supervisor.environment.ledger;
    loop {
        // Connecting is paced, too.
        let pause = ledger.pace(client.uid, Paced::Request, Instant::now());
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        closer().admits(client.uid).map_err(io::Error::other)?;
        let next = socket.receive(netmap::ASK.max(size_of::<Request>()) + 1);
        let Ok(message) = tokio::time::timeout(PATIENCE, next).await else { return Ok(()) };
        let message = message?;
        if message.bytes.is_empty() {
            return Ok(());
        }
        let (reply, fds) = reply_to(message, client, supervisor).await;
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // If the client does not take its token, the token is closed here, and the port goes.
        let sent = socket.send(&reply, &borrowed);
        tokio::time::timeout(PATIENCE, sent).await??;
    }
}

/// Carries out a message. Returns the bytes of the reply, and its descriptors.
async fn reply_to(
    message: Message,
    client: Client,
    supervisor: &Arc<Supervisor>,
) -> (Vec<u8>, Vec<Descriptor>) {
    if netmap::is_ours(&message.bytes) {
        let (answer, fds) = netmap::answer(message, client, supervisor).await;
        return (answer.as_bytes().to_vec(), fds);
    }
    match answer(message, client, supervisor).await {
        Ok((reply, fds)) => (reply.as_bytes().to_vec(), fds),
        Err(error) => {
            let Client { uid, pid } = client;
            let event = if error.code == ErrorCode::Limit { "quota" } else { "client" };
            tracing::info!(event, uid, pid, %error, "attach request refused");
            let reply = Reply::refused(errno(error.code), &error.to_string());
            (reply.as_bytes().to_vec(), Vec::new())
        }
    }
}

async fn answer(
    message: Message,
    client: Client,
    supervisor: &Arc<Supervisor>,
) -> Result<(Reply, Vec<Descriptor>), ApiError> {
    if message.truncated {
        return Err(bad("The request is too long or has too many descriptors", "send one request"));
    }
    let mut reply = Reply { version: VERSION, ..Reply::new_zeroed() };
    match parse_request(&message.bytes, message.fds)? {
        Ask::Open { switch, port, how, ring, memory } => {
            reply.offloads = ring.offloads.bits();
            let opened = supervisor.open_port(client, &switch, &port, how, ring, memory).await?;
            (reply.port, reply.max_frame) = (opened.port, opened.max_frame);
            reply.flags = if opened.trusted { reply::TRUSTED } else { 0 };
            Ok((reply, vec![opened.token]))
        }
        Ask::MakePipe { name, end, layout, memory } => {
            let opened = supervisor.make_pipe(client, name, end, layout, memory).await?;
            describe_pipe(&mut reply, &opened.layout, end);
            Ok((reply, opened.fds))
        }
        Ask::Next { after } => {
            let next = supervisor.environment.ledger.next_port(client.uid, &after);
            let none = || ApiError::new(ErrorCode::NotFound, "It was the last port", "stop here");
            Ok((Reply::named(&next.ok_or_else(none)?), Vec::new()))
        }
        Ask::Join { switch } => join(client, supervisor, &switch, reply).await,
        Ask::Member { switch, port } => {
            Ok((reply, supervisor.member(client, &switch, &port).await?.into()))
        }
        Ask::OpenPipe { name, end, offloads } => {
            let opened = supervisor.open_pipe(client, (name, end), offloads)?;
            describe_pipe(&mut reply, &opened.layout, end);
            Ok((reply, opened.fds))
        }
    }
}

async fn join(
    client: Client,
    supervisor: &Supervisor,
    switch: &str,
    mut reply: Reply,
) -> Result<(Reply, Vec<Descriptor>), ApiError> {
    let (config, state) = supervisor.join(client, switch).await?;
    (reply.port, reply.max_frame) = (config.max_ports.into(), config.fdb_entries);
    reply.buf_usable = config.batch.into();
    Ok((reply, vec![state]))
}

fn describe_pipe(reply: &mut Reply, layout: &PipeLayout, end: End) {
    let own = layout.of(end);
    reply.geometry = layout.geometry;
    reply.offloads = layout.offloads.bits();
    (reply.tx, reply.rx) = (own.tx, own.rx);
    reply.peer_rx = layout.of(end.other()).rx;
    (reply.buf_usable, reply.max_frame) = (layout.buf_usable, layout.buf_usable);
}
