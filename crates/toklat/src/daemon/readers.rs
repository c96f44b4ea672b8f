//! Copies of a switch for readers, left by the task that holds it while it waits.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::watch;

use crate::daemon::overview::Overview;

/// Where the holder of a switch leaves a copy, and readers wait for it.
#[derive(Debug)]
pub struct Readers {
    /// How many readers wait.
    waiting: watch::Sender<usize>,
    copy: watch::Sender<Option<Arc<Overview>>>,
}

impl Default for Readers {
    fn default() -> Self {
        Self { waiting: watch::Sender::new(0), copy: watch::Sender::new(None) }
    }
}

impl Readers {
    /// Waits for `what` as the holder of a switch. Readers that wait meanwhile read what `copy`
    /// makes, until this wait is over.
    pub async fn serve_during<T>(
        &self,
        what: impl Future<Output = T>,
        copy: impl FnOnce() -> Overview,
    ) -> T {
        let mut what = pin!(what);
        let mut waiting = self.waiting.subscribe();
        tokio::select! {
            biased;
            done = what.as_mut() => return done,
            // The sender lives as long as self.
            _ = waiting.wait_for(|readers| *readers > 0) => {}
        }
        self.copy.send_replace(Some(Arc::new(copy())));
        // The copy goes even if this task is dropped meanwhile.
        let _left = Left(self);
        what.await
    }

    /// Waits for a copy.
    pub async fn copy(&self) -> Arc<Overview> {
        self.waiting.send_modify(|readers| *readers += 1);
        let _waits = Waits(self);
        let mut copy = self.copy.subscribe();
        loop {
            if let Some(copy) = &*copy.borrow_and_update() {
                return Arc::clone(copy);
            }
            // The sender lives as long as self.
            let _ = copy.changed().await;
        }
    }
}

/// A copy that is there for readers, until this is dropped.
struct Left<'a>(&'a Readers);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.copy.send_replace(None);
    }
}

/// A reader that waits, until this is dropped.
struct Waits<'a>(&'a Readers);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|readers| *readers -= 1);
    }
}
