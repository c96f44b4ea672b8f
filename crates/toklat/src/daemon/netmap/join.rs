//! Two switches joined by a persistent port that is attached to both: each has a port of its name,
//! and datagram sockets between them carry the frames.

use dataplane::config::Policy;
use topology::Dgram;

use super::end::port_spec;
use crate::api::{ApiError, Client, ErrorCode, PortSpec};
use crate::daemon::attach::request::How;
use crate::daemon::shared::Whose;
use crate::daemon::supervisor::Supervisor;

impl Supervisor {
    /// Adds a port of this name to both switches, and makes the second one if there is none.
    ///
    /// # Errors
    /// The client may not, a switch has such a port, or is trusted. Then neither has it.
    pub(super) async fn join_switches(
        &self,
        client: Client,
        switches: [&str; 2],
        port: &str,
    ) -> Result<(), ApiError> {
        self.add_end(client, switches[0], (port, 0)).await?;
        let added = self.add_end(client, switches[1], (port, 1)).await;
        if added.is_err() {
            self.remove_end(self.whose(client), switches[0], port).await;
        }
        added
    }

    /// Removes the ports that [`join_switches`](Self::join_switches) has added.
    pub(super) async fn part_switches(&self, whose: Whose, switches: [&str; 2], port: &str) {
        for switch in switches {
            self.remove_end(whose, switch, port).await;
        }
    }

    async fn add_end(
        &self,
        client: Client,
        switch: &str,
        (port, end): (&str, usize),
    ) -> Result<(), ApiError> {
        let how = How { monitor: None, existing: false, netmap: true };
        let mut switch = self.enter(client, switch, port, how).await?;
        let added = match self.check_may_open(client, &switch, port) {
            Ok(()) if switch.config.trusted => {
                let reason = format!("{} is trusted: it has no ports but rings", switch.name);
                Err(ApiError::new(ErrorCode::BadRequest, reason, "attach to another switch"))
            }
            Ok(()) => switch.add_temporary_port(port, self.end_spec(port, end)).await,
            Err(error) => Err(error),
        };
        if added.is_err() {
            self.drop_if_unused(&mut switch).await;
        }
        added
    }

    /// One end of the sockets. Datagrams are not as long as a frame of netmap programs may be.
    fn end_spec(&self, port: &str, end: usize) -> PortSpec {
        let path = |end: usize| self.options.dir.join(format!("join-{port}.{end}"));
        let [local, remote] = [path(end), path(1 - end)].map(|path| path.display().to_string());
        let spec = port_spec();
        let policy = Policy { mtu: Policy::MAX_MTU, ..spec.policy };
        PortSpec { kind: Dgram { local, remote }.into(), policy, ..spec }
    }

    async fn remove_end(&self, whose: Whose, switch: &str, port: &str) {
        let Some(handle) = self.handle(switch) else { return };
        let mut switch = handle.lock_for(whose).await;
        // Others may have removed it.
        if let Err(error) = switch.remove_port(port).await {
            tracing::info!(switch = switch.name, port, %error, "joining port was not removed");
        }
        self.drop_if_unused(&mut switch).await;
    }
}
