//! Guests of the topology: a manager for each entry, which runs what `toklat guest run` would.
//!
//! Managers outlive this daemon, as data processes do: the next one finds them by their sockets,
//! and keeps those whose entry is still the same. One that ends is started again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jail::child::{Backoff, ChildSetup, Pipes, Supervised};
use jail::{Wall, Walls};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{Mutex as AsyncMutex, watch};
use topology::GuestSpec;

use super::{children, locked, system};
use crate::api::{ApiError, ChildInfo, ErrorCode};
use crate::guests::kept::{ADDED, Kept};
use crate::guests::talk::{self, Request};
use crate::guests::{GuestInfo, State};

/// How long a manager may take to take its entry, and to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pauses before a manager is started again.
const PAUSES: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(30), Duration::from_secs(10));
/// The maximum number of bytes of a manager's first line.
const MAX_LINE: u64 = 4096;

/// All entries.
#[derive(Debug)]
pub struct Guests {
    dir: PathBuf,
    exe: PathBuf,
    /// Locked for look-ups only, and changed while `serving` is locked.
    all: Mutex<BTreeMap<String, Arc<Entry>>>,
    /// Managers that an earlier daemon left were looked for. Locked while entries start and end.
    serving: AsyncMutex<bool>,
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    manager: Mutex<Option<Arc<Process>>>,
    /// True when the entry's manager is to end.
    leaving: watch::Sender<bool>,
    /// True when the entry's manager has ended for good.
    gone: watch::Sender<bool>,
}

/// The states of the entry's guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// There is no such entry.
    Absent,
    /// The guests run, or have completed their work.
    Good,
    /// A guest was stopped or has failed for good, or the manager does not run.
    Bad,
}

impl Guests {
    pub fn new(dir: &Path, exe: &Path) -> Self {
        let (dir, exe) = (dir.to_owned(), exe.to_owned());
        Self { dir, exe, all: Mutex::default(), serving: AsyncMutex::default() }
    }

    /// Notes the entries of a saved topology. They start with [`serve`](Self::serve).
    pub fn begin(&self, entries: &BTreeMap<String, GuestSpec>) {
        let entry = |(name, spec): (&String, &GuestSpec)| (name.clone(), Entry::new(name, spec));
        *locked(&self.all) = entries.iter().map(entry).collect();
    }

    /// The managers. They are trusted, and have the walls of every child only.
    pub fn children(&self) -> Vec<ChildInfo> {
        let mut walls = Walls::default();
        walls.note(Wall::NoNewPrivileges, Ok(()));
        walls.note(Wall::Descriptors, Ok(()));
        let child = |(name, entry): (&String, &Arc<Entry>)| ChildInfo {
            name: format!("manager of guest.{name}"),
            pid: entry.manager().map(|manager| manager.0.id()),
            walls: walls.clone(),
        };
        locked(&self.all).iter().map(child).collect()
    }

    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        locked(&self.all).get(name).cloned()
    }

    /// Takes over managers that an earlier daemon left, ends those without an entry, and starts the
    /// others. From now on entries start at once.
    pub async fn serve(self: Arc<Self>) {
        let mut serving = self.serving.lock().await;
        *serving = true;
        let all = locked(&self.all).clone();
        for (kept, process) in self.find().await {
            let entry = all.get(&kept.name).filter(|entry| entry.kept == kept);
            match entry.filter(|entry| locked(&entry.manager).is_none()) {
                Some(entry) => {
                    tracing::info!(guest = kept.name, pid = process.0.id(), "found its manager");
                    *locked(&entry.manager) = Some(Arc::new(process));
                }
                None => process.end().await,
            }
        }
        for entry in all.values() {
            let process = match entry.manager() {
                Some(process) => Ok(process),
                None => self.start_manager(&entry.kept).await.map(Arc::new),
            };
            if let Err(error) = &process {
                tracing::error!(guest = entry.kept.name, %error, "guest was not started");
            }
            self.keep_up(entry, process.ok());
        }
    }

    /// Adds an entry, and starts its manager.
    ///
    /// # Errors
    /// The manager cannot be started, or refuses the entry.
    pub async fn start(self: &Arc<Self>, name: &str, spec: &GuestSpec) -> Result<(), ApiError> {
        let serving = self.serving.lock().await;
        let entry = Entry::new(name, spec);
        if *serving {
            let process = self.start_manager(&entry.kept).await?;
            self.keep_up(&entry, Some(Arc::new(process)));
        }
        locked(&self.all).insert(name.to_owned(), entry);
        Ok(())
    }

    /// Ends the guests of an entry, and forgets it.
    pub async fn end(&self, name: &str) {
        let serving = self.serving.lock().await;
        let entry = locked(&self.all).remove(name);
        if let (Some(entry), true) = (entry, *serving) {
            entry.end().await;
        }
    }

    /// Ends all guests, before their switches end.
    pub async fn end_all(&self) {
        let mut serving = self.serving.lock().await;
        if !std::mem::take(&mut *serving) {
            return;
        }
        let all = std::mem::take(&mut *locked(&self.all));
        // All entries are told to end before any is waited for.
        all.values().for_each(|entry| drop(entry.leave()));
        for entry in all.values() {
            entry.end().await;
        }
    }

    /// The states of an entry's guests.
    pub async fn health(&self, name: &str) -> Health {
        let Some(entry) = self.entry(name) else { return Health::Absent };
        if !*self.serving.lock().await {
            return Health::Good;
        }
        let Some(manager) = entry.manager() else { return Health::Bad };
        let all = self.ask::<Vec<GuestInfo>>(manager.0.id(), Request::List).await;
        let is_bad = |info: &GuestInfo| {
            info.state == State::Ended && info.last_end.as_deref() != Some("ended")
        };
        // One that does not answer now is busy with a start.
        match all.is_some_and(|all| all.iter().any(is_bad)) {
            true => Health::Bad,
            false => Health::Good,
        }
    }

    /// The guests of an entry; none if it has no manager that answers.
    pub async fn list(&self, name: &str) -> Vec<GuestInfo> {
        self.ask_entry(name, Request::List).await.unwrap_or_default()
    }

    /// Ends the guests of an entry, and keeps their manager. False if it does not answer.
    pub async fn stop(&self, name: &str) -> bool {
        let all = Request::Stop { names: Vec::new() };
        self.ask_entry::<Vec<GuestInfo>>(name, all).await.is_some()
    }

    async fn ask_entry<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        name: &str,
        request: Request,
    ) -> Option<T> {
        let manager = self.entry(name)?.manager()?;
        self.ask(manager.0.id(), request).await
    }

    /// Asks a manager, in a thread that may wait.
    async fn ask<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        manager: u32,
        request: Request,
    ) -> Option<T> {
        let path = talk::socket(&self.home(), manager);
        let ask = move || talk::ask_at::<T>(&path, &request).ok();
        tokio::task::spawn_blocking(ask).await.ok().flatten()
    }

    fn home(&self) -> PathBuf {
        self.dir.join("guests")
    }

    /// Finds the managers that an earlier daemon has left.
    async fn find(&self) -> Vec<(Kept, Process)> {
        let mut found = Vec::new();
        for number in talk::managers(&self.home()) {
            // The descriptor is opened before the question, so it names the process that answers.
            let process =
                Pid::from_raw(number.cast_signed()).and_then(|pid| Supervised::found(pid).ok());
            let Some(process) = process.map(Process) else { continue };
            if let Some(Some(kept)) = self.ask::<Option<Kept>>(number, Request::Kept).await {
                found.push((kept, process));
            }
        }
        found
    }

    /// Starts the task that keeps an entry's manager running.
    fn keep_up(self: &Arc<Self>, entry: &Arc<Entry>, process: Option<Arc<Process>>) {
        locked(&entry.manager).clone_from(&process);
        tokio::spawn(Arc::clone(self).keep(Arc::clone(entry), process));
    }

    /// Keeps the manager of an entry running until the entry ends.
    async fn keep(self: Arc<Self>, entry: Arc<Entry>, mut first: Option<Arc<Process>>) {
        let mut pauses = PAUSES;
        loop {
            let process = match first.take() {
                Some(process) => Ok(process),
                None => self.start_manager(&entry.kept).await.map(Arc::new),
            };
            let began = Instant::now();
            let trouble = match process {
                Ok(process) => {
                    entry.enter(&process);
                    process.ended().await;
                    "its manager has ended".to_owned()
                }
                Err(error) => error.to_string(),
            };
            *locked(&entry.manager) = None;
            if *entry.leaving.borrow() {
                break;
            }
            let pause = pauses.after(began.elapsed());
            tracing::error!(
                event = "restart",
                guest = entry.kept.name,
                trouble,
                ?pause,
                "guest is started again"
            );
            let mut leaving = entry.leaving.subscribe();
            if tokio::time::timeout(pause, leaving.wait_for(|leaving| *leaving)).await.is_ok() {
                break;
            }
        }
        entry.gone.send_replace(true);
    }

    /// Starts a manager, and waits until it has taken its entry.
    async fn start_manager(&self, kept: &Kept) -> Result<Process, ApiError> {
        let cannot =
            |error| system(&format!("Cannot start the manager of guest.{}", kept.name), error);
        let (process, stdin, stdout) = self.spawn().map_err(cannot)?;
        let text = serde_json::to_vec(kept).map_err(|error| cannot(error.into()))?;
        let mut line = String::new();
        let talk = async {
            let mut stdin = ChildStdin::from_std(stdin)?;
            stdin.write_all(&text).await?;
            drop(stdin);
            let stdout = BufReader::new(ChildStdout::from_std(stdout)?);
            stdout.take(MAX_LINE).read_line(&mut line).await
        };
        let talked = tokio::time::timeout(PATIENCE, talk).await;
        match talked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(_) if line.trim() == ADDED => Ok(process),
            said => {
                process.end().await;
                said.map_err(cannot)?;
                let reason = format!("guest.{} cannot be: {}", kept.name, line.trim());
                Err(ApiError::new(
                    ErrorCode::BadRequest,
                    reason,
                    "correct the entry, and repeat the command",
                ))
            }
        }
    }

    fn spawn(&self) -> io::Result<(Process, std::process::ChildStdin, std::process::ChildStdout)> {
        let mut command = Command::new(&self.exe);
        command.arg("--dir").arg(&self.dir).args(["guest", "run", "--kept"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        jail::parent_death::in_its_own_session(&mut command);
        let (process, pipes) = Supervised::start(&mut command, &ChildSetup::new())?;
        let Pipes { stdin: Some(stdin), stdout: Some(stdout), .. } = pipes else {
            process.kill();
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok((Process(process), stdin, stdout))
    }
}

impl Entry {
    fn new(name: &str, spec: &GuestSpec) -> Arc<Self> {
        let kept = Kept { name: name.to_owned(), spec: spec.clone() };
        let [leaving, gone] = [(); 2].map(|()| watch::Sender::new(false));
        Arc::new(Self { kept, manager: Mutex::default(), leaving, gone })
    }

    fn manager(&self) -> Option<Arc<Process>> {
        locked(&self.manager).clone()
    }

    /// Notes the entry's manager, which ends at once if the entry has ended meanwhile.
    fn enter(&self, process: &Arc<Process>) {
        *locked(&self.manager) = Some(Arc::clone(process));
        if *self.leaving.borrow() {
            process.send(Signal::TERM);
        }
    }

    /// Tells the entry's manager to end.
    fn leave(&self) -> Option<Arc<Process>> {
        self.leaving.send_replace(true);
        locked(&self.manager).as_ref().inspect(|manager| manager.send(Signal::TERM)).cloned()
    }

    /// Ends the entry's manager, and waits until it has ended.
    async fn end(&self) {
        if let Some(manager) = self.leave() {
            manager.end().await;
        }
        let mut gone = self.gone.subscribe();
        // One that was being started ends now.
        let _ = tokio::time::timeout(2 * PATIENCE, gone.wait_for(|gone| *gone)).await;
    }
}

/// A manager's process.
#[derive(Debug)]
struct Process(Supervised);

impl Process {
    fn send(&self, signal: Signal) {
        self.0.send(signal);
    }

    /// Ends the manager, which ends its guests first.
    async fn end(&self) {
        children::end(&self.0, PATIENCE).await;
        self.ended().await;
    }

    /// Waits for the end of the manager, and of the guests that it has left.
    async fn ended(&self) {
        if let Err(error) = children::gone(&self.0).await {
            return tracing::error!(%error, "cannot wait for a guest's manager");
        }
        // If this fails, the manager is another process's child.
        let _ = self.0.ended();
        // Guests of a manager that was killed are killed too, and are this process's children then.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while rustix::process::waitid(WaitId::Pgid(Some(self.0.pid())), options).is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
