//! The first messages on a connection to a data process, which may be of another version.

use std::io;
use std::path::Path;

use dataplane::control::{Command, Greeting, VERSION};
use jail::Walls;
use jail::strangers::Descriptor;

use super::super::seqpacket::Seqpacket;
use super::{ANSWER_TIMEOUT, receive_as, send, unexpected};

/// Greets the data process that listens at `path`, in this version. One of another version says so
/// and disconnects; it is then greeted in its own, over the connection that is returned.
///
/// # Errors
/// It does not answer, or with something else.
pub async fn exchange(
    channel: Seqpacket,
    path: &Path,
) -> io::Result<(Seqpacket, Greeting, Vec<Descriptor>)> {
    let (greeting, fds) = greet(&channel, VERSION).await?;
    if greeting.version == VERSION {
        return Ok((channel, greeting, fds));
    }
    let channel = Seqpacket::connect(path)?;
    let (again, fds) = greet(&channel, greeting.version).await?;
    if again.version != greeting.version {
        return Err(unexpected(&format!("version {}, then {}", greeting.version, again.version)));
    }
    Ok((channel, again, fds))
}

async fn greet(channel: &Seqpacket, version: u32) -> io::Result<(Greeting, Vec<Descriptor>)> {
    send(channel, &Command::Hello { version }, &[], ANSWER_TIMEOUT).await?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, receive_as(channel)).await;
    answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// How the data process is confined. That of another version may be confined by walls that this one
/// does not know, and is about to be replaced.
pub fn walls(greeting: &Greeting) -> io::Result<Walls> {
    match serde_json::from_value(greeting.walls.clone()) {
        Err(_) if greeting.version != VERSION => Ok(Walls::default()),
        walls => Ok(walls?),
    }
}
