//! Persistent ports of netmap programs, for root: they stay when their programs end.

use netmap::broker::PersistentPort;
use rustix::io::Errno;

use crate::api::{ApiError, ErrorCode, NetmapPort};
use crate::daemon::shared::Whose;
use crate::daemon::supervisor::Supervisor;

impl Supervisor {
    /// The persistent ports of all users' programs.
    #[must_use]
    pub fn netmap_ports(&self) -> Vec<NetmapPort> {
        let ports = self.broker(|broker| broker.persistent_ports());
        let info = |PersistentPort { uid, name, switches, users }| NetmapPort {
            uid,
            name,
            switches,
            open: users > 0,
        };
        ports.into_iter().map(info).collect()
    }

    /// Removes a persistent port of a user's programs, also from the switches that it is in.
    ///
    /// # Errors
    /// There is none, or a program has it open.
    pub async fn delete_netmap_port(&self, uid: &str, name: &str) -> Result<(), ApiError> {
        let none = || {
            let reason = format!("User {uid} has no persistent netmap port {name}");
            ApiError::new(ErrorCode::NotFound, reason, "see toklat netmap show")
        };
        let number: u32 = uid.parse().map_err(|_| none())?;
        let user = self.netmap.user(&self.environment.ledger, number).map_err(|_| none())?;
        let turn = user.queue.lock().await;
        let removed = self.broker(|broker| broker.remove_persistent(number, name));
        let task = removed.map_err(|error| match error {
            Errno::BUSY => {
                let reason = format!("A program has port {name} of user {uid} open");
                ApiError::new(ErrorCode::Busy, reason, "end the program")
            }
            _ => none(),
        })?;
        self.run_task(Whose::Operators, task).await;
        drop(turn);
        drop(user);
        self.netmap.forget(number);
        tracing::info!(uid, name, "persistent netmap port removed");
        Ok(())
    }
}
