//! Which users may open a switch's ports, and how that changes while it runs.

use dataplane::config::PortId;

use super::super::open::{self, Written};
use super::{Port, Switch};
use crate::api::{ApiError, ErrorCode, SwitchSpec};
use crate::users;

/// The users that may open a switch's ports, besides root and the daemon's user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The only user who may open a port that names no owner; `None` for every user.
    pub owner: Option<u32>,
    /// The tenant that owns the switch: no other user may open any port of it.
    pub user: Option<u32>,
}

impl Access {
    /// The access that a switch's settings define.
    #[must_use]
    pub const fn of(spec: &SwitchSpec) -> Self {
        Self { owner: spec.owner, user: spec.user }
    }

    /// The only user who may open a port with this owner; `None` for every user.
    #[must_use]
    pub fn to(self, port_owner: Option<u32>) -> Option<u32> {
        self.user.or(port_owner).or(self.owner)
    }

    /// The user of a trusted switch: the only one who may open ports of it. All of its memory is
    /// that user's.
    #[must_use]
    pub fn trusted_user(self) -> u32 {
        self.to(None).unwrap_or_else(|| rustix::process::geteuid().as_raw())
    }
}

impl Switch {
    /// Changes the owners of the switch.
    ///
    /// # Errors
    /// The switch is trusted, an open port is not allowed to the new tenant, or a socket cannot be
    /// made.
    pub async fn set_access(&mut self, access: Access) -> Result<(), ApiError> {
        if self.config.trusted && access.to(None) != self.access.to(None) {
            let reason = format!("The processes of {} share its memory for good", self.name);
            let remedy = "a trusted switch keeps its user; remove it, and add it for another one";
            return Err(ApiError::new(ErrorCode::Busy, reason, remedy));
        }
        if let Some(user) = access.user.filter(|_| access != self.access) {
            self.check_tenant(user).await?;
        }
        let old = std::mem::replace(&mut self.access, access);
        let moved = self.ports.values().filter(|p| old.to(p.spec.owner) != access.to(p.spec.owner));
        let moved: Vec<PortId> = moved.map(|port| port.id).collect();
        for id in moved {
            self.remake_socket(id).await?;
        }
        Ok(())
    }

    /// Checks that a tenant's switch has no port of another user.
    async fn check_tenant(&mut self, user: u32) -> Result<(), ApiError> {
        let own = rustix::process::geteuid().as_raw();
        let stranger = |port: &Port| {
            let uid = port.client.map(|client| client.uid).or(port.user)?;
            (port.is_open() && ![user, 0, own].contains(&uid)).then_some(uid)
        };
        let strangers = self.ports.values().filter_map(|port| Some((stranger(port)?, port)));
        let strangers: Vec<_> = strangers.map(|(uid, port)| (uid, port.name.clone())).collect();
        for (uid, port) in strangers {
            self.drop_hung_up(&port).await?;
            if self.port(&port).is_ok_and(Port::is_open) {
                let reason = format!("{}:{port} is open, by user {}", self.name, users::name(uid));
                return Err(ApiError::new(ErrorCode::Busy, reason, "close or remove it first"));
            }
        }
        Ok(())
    }

    /// Makes the socket of a waiting port again, with permissions for its new users.
    pub(super) async fn remake_socket(&mut self, id: PortId) -> Result<(), ApiError> {
        let Some(port) = self.ports.get_mut(&id) else { return Ok(()) };
        if open::of(&port.spec.kind).is_for_users() {
            let spec = port.spec.clone();
            return self.replace_port(id, spec, None, Written::Kept).await;
        }
        // The new socket has the path of the old one.
        port.waiting = None;
        let occupied = port.is_open();
        let port = &self.ports[&id];
        let waiting = self.wait_for_front_end(port, occupied)?;
        self.ports.entry(id).and_modify(|port| port.waiting = waiting);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_comes_before_a_ports_owner_and_that_before_the_switchs() {
        let access = |user, owner| Access { user, owner };
        for (is, port_owner, expected) in [
            (access(None, None), None, None),
            (access(None, Some(1)), None, Some(1)),
            (access(None, Some(1)), Some(2), Some(2)),
            (access(Some(3), Some(1)), Some(2), Some(3)),
            (access(Some(3), None), None, Some(3)),
        ] {
            assert_eq!(is.to(port_owner), expected, "{is:?} {port_owner:?}");
        }
    }
}
