//! Single guests by the API: entries of the topology that are put, stopped and deleted.
//!
//! A client of the control socket starts programs as the daemon's user, so it is trusted as that
//! user is. Clients over TCP start programs that are built in ([`Caller::Remote`]).

use tokio::task::JoinSet;
use topology::{GuestSpec, check, check_each};

use super::apply::merged;
use super::caller::Caller;
use super::supervisor::Supervisor;
use super::{locked, mistake, system};
use crate::api::{ApiError, ErrorCode, GuestEntry, Topology};
use crate::guests;

impl Supervisor {
    /// All entries, as they are.
    pub async fn guest_entries(&self) -> Vec<GuestEntry> {
        let mut asked = JoinSet::new();
        for (index, (name, spec)) in self.specs().into_iter().enumerate() {
            let guests = std::sync::Arc::clone(&self.guests);
            asked.spawn(async move {
                let guests = guests.list(&name).await;
                (index, GuestEntry { name, spec, guests })
            });
        }
        let mut all = asked.join_all().await;
        all.sort_by_key(|(index, _)| *index);
        all.into_iter().map(|(_, entry)| entry).collect()
    }

    /// One entry, as it is.
    ///
    /// # Errors
    /// There is no such entry.
    pub async fn guest_entry(&self, name: &str) -> Result<GuestEntry, ApiError> {
        let spec = self.spec(name)?;
        Ok(GuestEntry { name: name.to_owned(), spec, guests: self.guests.list(name).await })
    }

    /// Starts the guests of an entry, or replaces them if their settings differ or one of them has
    /// ended. Returns true if the entry is new.
    ///
    /// # Errors
    /// A setting is wrong, another guest has the name, or the caller may not start the program.
    pub async fn put_guest(
        &self,
        name: &str,
        spec: GuestSpec,
        caller: Caller,
    ) -> Result<(bool, GuestEntry), ApiError> {
        let mut now = self.topology.lock().await;
        let guest = [(name.to_owned(), spec.clone())].into();
        let wanted = Topology { guest, ..Topology::default() };
        check_each(&wanted)?;
        caller.check(&now, &wanted, self.state_directory())?;
        let all = merged(&now, &wanted);
        check(&all)?;
        self.check_switches(&all, &wanted)?;
        let is_new = !now.guest.contains_key(name);
        let mut plan = Vec::new();
        self.plan_guests(&now, &wanted, &mut plan).await;
        if !plan.is_empty() {
            let changed = self.change_guest(&mut now, name, Some(&spec)).await;
            self.save(&mut now)?;
            changed?;
        }
        drop(now);
        Ok((is_new, self.guest_entry(name).await?))
    }

    /// Ends the guests of an entry, and removes it.
    ///
    /// # Errors
    /// There is no such entry.
    pub async fn delete_guest(&self, name: &str) -> Result<(), ApiError> {
        let mut now = self.topology.lock().await;
        if !now.guest.contains_key(name) {
            return Err(missing(&now, name));
        }
        self.change_guest(&mut now, name, None).await?;
        self.save(&mut now)
    }

    /// Ends the guests of an entry. They stay ended until it is put or applied again.
    ///
    /// # Errors
    /// There is no such entry, or its manager does not answer.
    pub async fn stop_guest(&self, name: &str) -> Result<(), ApiError> {
        self.spec(name)?;
        match self.guests.stop(name).await {
            true => Ok(()),
            false => {
                let reason = format!("The manager of guest.{name} does not answer");
                let remedy =
                    "it is started again by itself; repeat the command, or delete the guest";
                Err(ApiError::new(ErrorCode::Busy, reason, remedy))
            }
        }
    }

    /// What one of an entry's guests has printed: the one with the entry's name, or `which`.
    ///
    /// # Errors
    /// There is no such entry, or it has no such guest.
    pub async fn guest_log(&self, name: &str, which: Option<&str>) -> Result<String, ApiError> {
        let hosts = self.spec(name)?.hosts(name)?;
        let which = which.unwrap_or(name).to_owned();
        if which != name && hosts.iter().all(|(host, ..)| *host != which) {
            let reason = format!("guest.{name} has no guest {which}");
            let remedy = "see its list of guests: GET /v1/guests";
            return Err(ApiError::new(ErrorCode::NotFound, reason, remedy));
        }
        let directory = self.options.dir.clone();
        let read = tokio::task::spawn_blocking(move || guests::printed(&directory, &which));
        let read = read.await.unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        read.map_err(|error| system("The log cannot be read", error))
    }

    /// The entries of the topology as of the last change, which may go on.
    fn specs(&self) -> Vec<(String, GuestSpec)> {
        let last = std::sync::Arc::clone(&locked(&self.last));
        last.0.guest.iter().map(|(name, spec)| (name.clone(), spec.clone())).collect()
    }

    fn spec(&self, name: &str) -> Result<GuestSpec, ApiError> {
        let last = std::sync::Arc::clone(&locked(&self.last));
        last.0.guest.get(name).cloned().ok_or_else(|| missing(&last.0, name))
    }
}

fn missing(topology: &Topology, name: &str) -> ApiError {
    let reason = format!("There is no guest {name} in the topology");
    let remedy = match mistake::nearest(name, topology.guest.keys().map(String::as_str)) {
        Some(near) => format!("did you mean {near}? See GET /v1/guests"),
        None => "see GET /v1/guests".to_owned(),
    };
    ApiError::new(ErrorCode::NotFound, reason, remedy)
}
