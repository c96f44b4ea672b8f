//! Who asks: the peer of a connection, what it may do, and a line for each of its commands.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;

use axum::http::{Method, Uri};
use serde_json::Value;

use super::caller::Caller;
use super::events::shown;
use super::log::ACTION;
use crate::api::{ApiError, Client, ErrorCode, Event, EventKind, Operation, PortInfo, SwitchInfo};

/// Bytes of a command in the log.
const LONGEST: usize = 400;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this host.
    Process(Client),
    /// A host that sent the token.
    Address(SocketAddr),
}

/// What of the daemon a reader sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Everything.
    All,
    /// The ports of this user, those of root and of the daemon's user, and what is about them.
    Of(u32),
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    /// Where the request comes from.
    pub peer: Peer,
    /// What of the host it may have.
    pub caller: Caller,
    /// It may only read, and this much; `None` if it may do everything.
    pub views: Option<Sight>,
}

impl Who {
    /// Checks that a request of this method may be made.
    ///
    /// # Errors
    /// It changes something, and the caller may only read.
    pub fn check_method(&self, method: &Method) -> Result<(), ApiError> {
        if self.views.is_none() || *method == Method::GET || *method == Method::HEAD {
            return Ok(());
        }
        let (reason, remedy) = match self.peer {
            Peer::Process(_) => (
                "view.sock is for reading; changes go to control.sock, which you may not use",
                "become a member of the group of control.sock (usermod -aG toklat-admin USER, then \
                 log in again), or run this as root",
            ),
            Peer::Address(_) => ("The view token is for reading", "send the token that may change"),
        };
        Err(ApiError::new(ErrorCode::Forbidden, reason, remedy))
    }

    /// Checks that a reader may see what an operation replies. What it replies to a user is
    /// filtered by [`Self::sees`].
    ///
    /// # Errors
    /// It cannot be filtered by users.
    pub fn check_operation(&self, operation: Operation) -> Result<(), ApiError> {
        let filtered = matches!(
            operation,
            Operation::GetStatus
                | Operation::ListSwitches
                | Operation::GetSwitch
                | Operation::ListPorts
                | Operation::GetPort
                | Operation::GetPortLink
                | Operation::ListFdb
                | Operation::GetEvents
                | Operation::GetStats
                | Operation::ListPipes
                | Operation::GetOpenApi
        );
        match self.views {
            Some(Sight::Of(_)) if !filtered => {
                let reason = "This is for those who may see all users' ports";
                let remedy = "become a member of the group toklat-view, or run this as root";
                Err(ApiError::new(ErrorCode::Forbidden, reason, remedy))
            }
            _ => Ok(()),
        }
    }

    /// True if the caller may see what belongs to these users; to none, it is the operator's.
    #[must_use]
    pub fn sees_users(&self, users: &[Option<u32>]) -> bool {
        let Some(Sight::Of(own)) = self.views else { return true };
        let daemon = rustix::process::geteuid().as_raw();
        users.iter().flatten().all(|user| [own, daemon, 0].contains(user))
    }

    /// True if the caller may see a port of a switch.
    #[must_use]
    pub fn sees(&self, switch: &SwitchInfo, port: &PortInfo) -> bool {
        let client = port.client.map(|client| client.uid);
        let owner = port.spec.owner.or(switch.owner).or(switch.user);
        self.sees_users(&[client, owner])
    }

    /// True if the caller may see an event: that of a port is its user's.
    #[must_use]
    pub fn sees_event(&self, event: &Event) -> bool {
        let Some(Sight::Of(own)) = self.views else { return true };
        match (event.kind, event.user) {
            (EventKind::Audit, user) => user == Some(own),
            (_, user @ Some(_)) => self.sees_users(&[user]),
            (_, None) => event.port.is_none(),
        }
    }

    /// What the caller may read, as a caller of the topology.
    #[must_use]
    pub fn reads_as(&self) -> Caller {
        if self.views.is_some() { Caller::Remote } else { self.caller }
    }

    /// Writes a line about a command that changes something, and how it ended.
    pub fn audit(&self, did: &str, ended: Result<&str, &ApiError>) {
        let ended = match ended {
            Ok(what) => what.to_owned(),
            Err(error) => format!("refused: {}", error.reason),
        };
        let did = shown(&format!("{did}: {ended}"), LONGEST);
        match self.peer {
            Peer::Process(Client { pid, uid }) => {
                tracing::info!(target: ACTION, event = "audit", uid, pid, %did, "command");
            }
            Peer::Address(peer) => {
                tracing::info!(target: ACTION, event = "audit", %peer, %did, "command");
            }
        }
    }
}

/// What a request asks for, as a command; `None` if it changes nothing.
#[must_use]
pub fn command(
    operation: Operation,
    params: &HashMap<String, String>,
    uri: &Uri,
    body: &[u8],
) -> Option<String> {
    let param = |name: &str| params.get(name).map_or("", String::as_str);
    let (switch, port, guest) = (param("switch"), param("port"), param("guest"));
    let sent: Value = serde_json::from_slice(body).unwrap_or_default();
    let name = sent["name"].as_str().unwrap_or("?");
    let with = settings(&sent);
    let query = uri.query().unwrap_or_default();
    Some(match operation {
        Operation::PutTopology if query.contains("dry_run=true") => return None,
        Operation::PutTopology => format!("apply {query}"),
        Operation::AddSwitch => format!("switch add {name}{with}"),
        Operation::PatchSwitch => format!("switch set {switch}{with}"),
        Operation::DeleteSwitch => format!("switch rm {switch}"),
        Operation::AddPort => format!("port add {switch}:{name}{with}"),
        Operation::PatchPort => format!("port set {switch}:{port}{with}"),
        Operation::DeletePort => format!("port rm {switch}:{port}"),
        Operation::AddFdb => format!("fdb add {switch}{with}"),
        Operation::FlushFdb => format!("fdb flush {switch}{with}"),
        Operation::DeleteFdb => format!("fdb rm {switch} {} {query}", param("mac")),
        Operation::DeleteNetmapPort => {
            format!("netmap rm {} {}", param("uid"), param("netmap_port"))
        }
        // A guest's arguments and environment may hold its secrets.
        Operation::PutGuest => {
            let app = Path::new(sent["app"].as_str().unwrap_or("?")).display();
            format!("guest run {guest} {app}")
        }
        Operation::DeleteGuest => format!("guest rm {guest}"),
        Operation::StopGuest => format!("guest stop {guest}"),
        Operation::ReleaseEvpnMac => format!("evpn release {} {query}", param("mac")),
        Operation::PatchQuotas => format!("quota set{with}"),
        Operation::Upgrade => format!("upgrade{with}"),
        Operation::Stop => format!("stop{with}"),
        // The rest reads.
        _ => return None,
    })
}

/// The settings of a request but the name, as ` name=value`.
fn settings(sent: &Value) -> String {
    let settings = sent.as_object().into_iter().flatten().filter(|(name, _)| *name != "name");
    settings.fold(String::new(), |all, (name, value)| match value {
        Value::String(text) => format!("{all} {name}={text}"),
        other => format!("{all} {name}={other}"),
    })
}
