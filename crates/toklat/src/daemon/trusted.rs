//! What processes of a trusted switch are given: its state memory, and the memory and tokens of its
//! ports. Each has all of them, so each must be of the switch's one user.

use dataplane::config::SwitchConfig;
use jail::strangers::Descriptor;

use super::supervisor::Supervisor;
use super::switch::Switch;
use super::system;
use crate::api::{ApiError, Client, ErrorCode};
use crate::users;

impl Supervisor {
    /// Checks that a client may open a port, if the switch is trusted: it is the switch's user.
    ///
    /// # Errors
    /// It is another user. Root is one, too: its memory would be the user's.
    pub(super) fn check_trusts(&self, client: Client, switch: &Switch) -> Result<(), ApiError> {
        let user = switch.access.trusted_user();
        if !switch.config.trusted || client.uid == user {
            return Ok(());
        }
        let (name, user) = (&switch.name, users::name(user));
        let reason = format!("{name} is a trusted switch, for processes of {user} only");
        let remedy = "use another switch: processes of a trusted one can read and write each other's \
                      memory of ports";
        Err(ApiError::new(ErrorCode::Forbidden, reason, remedy))
    }

    /// The settings and the state memory of a trusted switch.
    ///
    /// # Errors
    /// There is no such switch, it is not trusted, or the client is not its user.
    pub async fn join(
        &self,
        client: Client,
        name: &str,
    ) -> Result<(SwitchConfig, Descriptor), ApiError> {
        let switch = self.switch(name)?.lock_for(self.whose(client)).await;
        self.check_is_part(client, &switch)?;
        let state = switch.state_file().map_err(|e| system("Cannot hand out the state", e))?;
        self.check_descriptors(&state)?;
        Ok((switch.config.clone(), state))
    }

    /// The memory file and the switch's end of the token of an open port of a trusted switch.
    ///
    /// # Errors
    /// As for [`join`](Self::join), or the port is not open.
    pub async fn member(
        &self,
        client: Client,
        name: &str,
        port: &str,
    ) -> Result<[Descriptor; 2], ApiError> {
        let switch = self.switch(name)?.lock_for(self.whose(client)).await;
        self.check_is_part(client, &switch)?;
        switch.port(port)?.parts().ok_or_else(|| {
            let reason = format!("{name}:{port} is not open");
            ApiError::new(ErrorCode::NotFound, reason, "go on without it")
        })
    }

    /// The number of a port, if its switch is trusted.
    pub(super) async fn number_if_trusted(
        &self,
        client: Client,
        (switch, port): (&str, &str),
    ) -> Option<u16> {
        let switch = self.handle(switch)?.lock_for(self.whose(client)).await;
        switch.port(port).ok().filter(|_| switch.config.trusted).map(|port| port.id)
    }

    fn check_is_part(&self, client: Client, switch: &Switch) -> Result<(), ApiError> {
        if !switch.config.trusted {
            let reason = format!("{} is not a trusted switch", switch.name);
            let remedy = "open its ports as usual; they are served by its data process";
            return Err(ApiError::new(ErrorCode::BadRequest, reason, remedy));
        }
        self.check_trusts(client, switch)
    }
}
