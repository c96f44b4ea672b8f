//! Data processes that an earlier supervisor left: taken over if they speak this version of the
//! control messages, replaced with their ports if they speak an earlier one.

use std::io;
use std::time::Duration;

use dataplane::control::{Command, OLDEST, VERSION};
use dataplane::state::State;
use shmem::Memfd;

use super::super::locked;
use super::super::process::{DataProcess, FoundPort};
use super::Switch;

impl Switch {
    /// Takes over a data process that an earlier supervisor left, with its ports. One of an earlier
    /// version is replaced: its ports go on in a new data process.
    ///
    /// # Errors
    /// There is no such process; it speaks a version that is not taken over, and was stopped in
    /// order; or it does not answer and is killed.
    pub async fn find(&mut self) -> io::Result<()> {
        let (process, memory) =
            DataProcess::find(&self.environment.dir, &self.name, &self.kept).await?;
        let version = process.version;
        let Some(memory) = memory else { return Err(self.turn_out(&process, None).await) };
        let found = match State::map(&memory, &self.config) {
            Ok(_) if memory.len() != self.memory.len() => {
                Err(io::Error::other("Its memory is of another shape"))
            }
            Ok(view) => process.ports().await.map(|ports| (view, ports)),
            Err(error) => Err(io::Error::other(error)),
        };
        match found {
            Ok((view, ports)) => self.take_over_all(process, (memory, view), ports)?,
            Err(error) if version != VERSION => {
                return Err(self.turn_out(&process, Some(error)).await);
            }
            Err(error) => {
                process.kill();
                process.ended().await?;
                locked(&self.kept).clear();
                return Err(error);
            }
        }
        if version != VERSION {
            return self.succeed(version).await;
        }
        self.send_limits().await;
        if let Err(error) = self.renew_rules().await {
            tracing::error!(switch = self.name, %error, "rules were not taken");
        }
        // The earlier supervisor may have ended before it sent changed settings.
        if let Err(error) = self.command(&Command::set_switch(&self.config), &[]).await {
            tracing::error!(switch = self.name, %error, "settings were not taken");
        }
        Ok(())
    }

    /// Records a data process that was found, and its ports.
    fn take_over_all(
        &mut self,
        process: DataProcess,
        (memory, view): (Memfd, State),
        ports: Vec<FoundPort>,
    ) -> io::Result<()> {
        (self.memory, self.view) = (memory, view);
        // Nothing is sampled until the topology says otherwise.
        self.view.recorder().set_rate(0);
        self.runs(process)?;
        ports.into_iter().try_for_each(|port| self.take_over(port))
    }

    /// Replaces a data process of an earlier version by one of this version, with all its ports and
    /// without losing a frame.
    async fn succeed(&mut self, version: u32) -> io::Result<()> {
        let from = std::time::Instant::now();
        self.stop().await;
        self.start().await?;
        let (switch, ports, gap) = (&self.name, self.ports.len(), from.elapsed());
        tracing::info!(
            switch,
            version,
            ports,
            ?gap,
            "a data process of an earlier version was replaced"
        );
        Ok(())
    }

    /// Stops a data process whose ports cannot be taken over, in order. Returns the reason.
    async fn turn_out(&self, process: &DataProcess, why: Option<io::Error>) -> io::Error {
        let version = process.version;
        let reason = match why {
            Some(error) => error.to_string(),
            None if version > VERSION => "install a toklat that is not older than its own".into(),
            None => "it is too old".into(),
        };
        let (switch, known) = (&self.name, format!("{OLDEST} to {VERSION}"));
        tracing::error!(switch, version, known, reason, "{LOST}");
        let stall_timeout = Duration::from_millis(self.config.stall_timeout_ms.into());
        if let Err(error) = process.stop(stall_timeout).await {
            tracing::warn!(switch, %error, "data process did not stop in order");
            process.kill();
        }
        if let Err(error) = process.ended().await {
            return error;
        }
        // What it has kept is for ports that are gone.
        locked(&self.kept).clear();
        io::Error::other(format!(
            "Its data process spoke version {version} of the control messages"
        ))
    }
}

/// What is lost with a data process that cannot be taken over.
const LOST: &str = "the ports of a data process of another version cannot be taken over: it is \
                    stopped, and clients open their ports anew";
