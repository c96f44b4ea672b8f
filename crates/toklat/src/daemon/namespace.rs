//! Network namespaces.

use std::io;

use host::tap::enter;

use super::system;
use crate::api::ApiError;

/// Does something in a network namespace. A thread that has entered one cannot be trusted with
/// anything else, so this one ends with it.
///
/// # Errors
/// What it says, or the namespace cannot be entered.
pub async fn in_namespace<T: Send + 'static>(
    netns: Option<String>,
    what: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (done, result) = tokio::sync::oneshot::channel();
    let run = move || {
        let entered = netns.as_deref().map_or(Ok(()), enter);
        // The receiver is gone only when the daemon stops.
        let _ = done.send(entered.and_then(|()| what()));
    };
    let thread = std::thread::Builder::new().name("network namespace".into()).spawn(run);
    thread.map_err(|e| system("Cannot start a thread", e))?;
    result.await.unwrap_or_else(|_| Err(system("Cannot use tap", io::ErrorKind::Other.into())))
}
