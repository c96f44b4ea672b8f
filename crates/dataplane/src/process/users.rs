//! What the control thread does about slow calls of users.

use std::sync::Arc;

use netring::layout::Fault;
use turn::clock;
use turn::user::{Standing, StandingChange, Trouble, User};

use super::Process;
use crate::config::PortId;
use crate::log;

impl Process {
    /// The user of this number.
    ///
    /// # Errors
    /// An error that says why, if the user's ports are at fault.
    pub(super) fn user_of(&self, uid: u32) -> Result<Arc<User>, String> {
        let user = self.users.of(uid);
        if user.is_at_fault() {
            return Err(match user.trouble() {
                Trouble::Calls => format!(
                    "User {uid} is at fault: it took too long to wake the owners of its ports. Close what watches \
                     their sockets and eventfds, and try again in some minutes"
                ),
                Trouble::Memory => format!(
                    "User {uid} is at fault: memory of its ports held the switch up. Punch no holes in it, keep it \
                     from being swapped out, and try again in some minutes"
                ),
            });
        }
        Ok(user)
    }

    /// Records and logs changes in the standing of users, and takes ports of users at fault out of
    /// service.
    pub(super) fn look_after_users(&mut self) {
        for StandingChange { user, standing, why, took } in self.users.expire(clock()) {
            let theirs = |port: &&super::Record| port.config.uid == user.uid;
            let ids: Vec<PortId> =
                self.ports.iter().flatten().filter(theirs).map(|port| port.spec.id).collect();
            let states = ids.iter().filter_map(|id| self.state.port(*id));
            states.for_each(|state| state.set_standing(standing));
            let about = format!("{}: user {}", self.switch, user.uid);
            let (what, ms) = (what_took(why), took / 1_000_000);
            match standing {
                Standing::Good => log::say(&about, "good", "is served as all others again"),
                Standing::Helped => log::say(
                    &about,
                    "helped",
                    format_args!("is woken by a thread of its own: {what} took {ms} ms"),
                ),
                Standing::AtFault => {
                    log::say(
                        &about,
                        "at fault",
                        format_args!("is at fault, with {} ports: {what} took {ms} ms", ids.len()),
                    );
                    self.give_up(&ids, why);
                }
            }
        }
    }

    /// Takes ports out of service.
    fn give_up(&mut self, ids: &[PortId], why: Trouble) {
        let fault = match why {
            Trouble::Calls => Fault::SlowBell,
            Trouble::Memory => Fault::SlowMemory,
        };
        let release = |id: &PortId| {
            let worker = self.ports[usize::from(*id)].as_ref()?.worker;
            self.release(*id, worker)
        };
        let served: Vec<_> = ids.iter().filter_map(release).collect();
        self.take_out(ids);
        // No worker uses the ports' rings any more.
        for mut served in served {
            served.abandon();
            served.source.give_up(fault);
        }
    }
}

/// The cause of the delay, for the log.
fn what_took(why: Trouble) -> &'static str {
    match why {
        Trouble::Calls => "a call for it",
        Trouble::Memory => "to touch its memory",
    }
}
