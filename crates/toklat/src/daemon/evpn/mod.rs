//! The speaker of EVPN that runs, and its routing daemon.

pub(crate) mod gobgpd;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evpn::speaker::Order;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use self::gobgpd::Keeper;
use super::locked;
use crate::api::{ApiError, ErrorCode};

/// How long an answer of the speaker is waited for.
const ANSWER: Duration = Duration::from_secs(10);

/// A speaker that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub orders: mpsc::Sender<Order>,
    pub keeper: Arc<Keeper>,
    pub tasks: Vec<JoinHandle<()>>,
}

/// EVPN of this host.
#[derive(Debug, Default)]
pub struct Speaking {
    pub(super) running: Mutex<Option<Running>>,
}

impl Speaking {
    /// The channel for orders to the speaker, if one runs.
    pub(super) fn orders(&self) -> Option<mpsc::Sender<Order>> {
        locked(&self.running).as_ref().map(|running| running.orders.clone())
    }

    /// True if this host has EVPN.
    pub fn is_on(&self) -> bool {
        locked(&self.running).is_some()
    }
}

pub(super) fn no_evpn() -> ApiError {
    let remedy = "apply a topology with [evpn], see docs/many-hosts.md";
    ApiError::new(ErrorCode::NotFound, "This host has no EVPN", remedy)
}

/// Asks the speaker, and does not wait for ever.
pub(super) async fn ask<T>(
    orders: &mpsc::Sender<Order>,
    order: impl FnOnce(oneshot::Sender<T>) -> Order,
) -> Result<T, ApiError> {
    let (to, answer) = oneshot::channel();
    let asked = async {
        orders.send(order(to)).await.ok()?;
        answer.await.ok()
    };
    let silent = || {
        let reason = "EVPN does not answer";
        ApiError::new(ErrorCode::Busy, reason, "try again; see the daemon's log")
    };
    tokio::time::timeout(ANSWER, asked).await.ok().flatten().ok_or_else(silent)
}

/// The socket of the daemon's own gobgpd.
fn own_socket(dir: &Path) -> PathBuf {
    dir.join("evpn").join("gobgp.sock")
}
