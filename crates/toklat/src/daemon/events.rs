//! What has happened, by number: the last events of each kind, for `GET /v1/events`.
//!
//! A line of the log that has the field `event` is an event of the kind that it names. Events are
//! kept whatever the log's level is, and its rate limiter leaves none out.

use std::collections::{HashMap, VecDeque};
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::locked;
use crate::api::{Event, EventKind, Events};

/// Events of a kind that are kept.
const KEPT: usize = 512;
/// Bytes of an event's text; the rest of a longer one is left out.
const LONGEST: usize = 480;
/// The most events of a reply.
const MOST: usize = 1000;
/// A daemon's first number is the millisecond of its start, shifted by this. So numbers grow over
/// a restart unless there were more than 1,024 events a millisecond.
const MILLISECOND: u32 = 10;
/// The field that makes a line of the log an event, and says its kind.
const FIELD: &str = "event";

/// The last events of each kind.
#[derive(Debug)]
pub struct Journal {
    kept: Mutex<Kept>,
    /// The number of the next event.
    next: watch::Sender<u64>,
}

/// Events that are kept, by kind.
#[derive(Debug)]
struct Kept {
    next: u64,
    kinds: [VecDeque<Event>; EventKind::ALL.len()],
    /// The highest number that is not kept any more; 0 if all are.
    lost: u64,
}

impl Default for Journal {
    fn default() -> Self {
        let next = milliseconds() << MILLISECOND;
        let kept = Kept { next, kinds: Default::default(), lost: 0 };
        Self { kept: Mutex::new(kept), next: watch::Sender::new(next) }
    }
}

impl Journal {
    /// Keeps an event, with the next number.
    pub fn add(&self, mut event: Event) {
        let mut kept = locked(&self.kept);
        event.number = kept.next;
        kept.next += 1;
        let kind = &mut kept.kinds[event.kind as usize];
        let oldest = if kind.len() >= KEPT { kind.pop_front() } else { None };
        kind.push_back(event);
        kept.lost = oldest.map_or(kept.lost, |oldest| kept.lost.max(oldest.number));
        // In order, because the events are locked.
        self.next.send_replace(kept.next);
    }

    /// The events from number `since` on that `is_wanted` chooses.
    #[must_use]
    pub fn since(&self, since: u64, is_wanted: impl Fn(&Event) -> bool) -> Events {
        let kept = locked(&self.kept);
        let from = |kind: &VecDeque<Event>| kind.partition_point(|event| event.number < since);
        let all = kept.kinds.iter().flat_map(|kind| kind.range(from(kind)..));
        let mut found: Vec<&Event> = all.filter(|event| is_wanted(event)).collect();
        found.sort_unstable_by_key(|event| event.number);
        let next = found.get(MOST).map_or(kept.next, |first_left| first_left.number);
        let events: Vec<_> = found.into_iter().take(MOST).cloned().collect();
        Events { next, missed: since > 0 && since <= kept.lost, events }
    }

    /// As [`Self::since`], after a wait for the first event that is wanted, at most this time.
    /// There is no wait for numbers after the next one: the reply says which that is.
    pub async fn wait(
        &self,
        since: u64,
        time: Duration,
        is_wanted: impl Fn(&Event) -> bool,
    ) -> Events {
        let mut next = self.next.subscribe();
        let look = async {
            loop {
                next.borrow_and_update();
                let found = self.since(since, &is_wanted);
                let is_over = !found.events.is_empty() || since > found.next;
                // The sender lives as long as self.
                if is_over || next.changed().await.is_err() {
                    return found;
                }
            }
        };
        let found = tokio::time::timeout(time, look).await;
        found.unwrap_or_else(|_| self.since(since, &is_wanted))
    }
}

/// The layer of the log that keeps events.
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(journal: Arc<Journal>) -> impl Layer<S> {
    let is_event = |metadata: &Metadata<'_>| metadata.fields().field(FIELD).is_some();
    Keeping(journal).with_filter(filter_fn(is_event))
}

struct Keeping(Arc<Journal>);

impl<S: Subscriber> Layer<S> for Keeping {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        let mut line = Fields::default();
        event.record(&mut line);
        if let Some(event) = line.into_event() {
            self.0.add(event);
        }
    }
}

/// The fields of a line.
#[derive(Default)]
struct Fields {
    named: HashMap<&'static str, String>,
    uid: Option<u32>,
    message: String,
    others: String,
}

impl Fields {
    fn into_event(mut self) -> Option<Event> {
        let kind = self.named.remove(FIELD)?;
        let kind = EventKind::ALL.into_iter().find(|known| known.name() == kind)?;
        let at_ms = milliseconds();
        let (switch, port) = (self.named.remove("switch"), self.named.remove("port"));
        let text = shown(&(self.message + &self.others), LONGEST);
        Some(Event { number: 0, at_ms, kind, switch, port, user: self.uid, text })
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "uid" => self.uid = u32::try_from(value).ok(),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            name @ (FIELD | "switch" | "port") => drop(self.named.insert(name, shown(value, 64))),
            // Writing to a string does not fail.
            name => drop(write!(self.others, " {name}={value}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name @ ("switch" | "port") => {
                self.named.insert(name, shown(&format!("{value:?}"), 64));
            }
            "did" => drop(write!(self.others, ": {value:?}")),
            name => drop(write!(self.others, " {name}={value:?}")),
        }
    }
}

/// A text that strangers may have chosen as it may be printed: what moves a terminal's cursor, or
/// changes the direction of what follows, is escaped. At most `longest` bytes of it.
#[must_use]
pub fn shown(text: &str, longest: usize) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let piece = match c {
            c if c.is_control() || turns => c.escape_default().to_string(),
            c => c.to_string(),
        };
        if shown.len() + piece.len() > longest {
            return shown + "...";
        }
        shown.push_str(&piece);
    }
    shown
}

/// Milliseconds since 1970.
fn milliseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn event(kind: EventKind, text: &str) -> Event {
        let text = text.to_owned();
        Event { number: 0, at_ms: 0, kind, switch: None, port: None, user: None, text }
    }

    fn texts(events: &Events) -> Vec<&str> {
        events.events.iter().map(|event| event.text.as_str()).collect()
    }

    /// A reader that is slow costs nothing but what the journal keeps, and learns what it missed.
    #[test]
    fn events_of_a_kind_are_bounded_and_push_out_no_other_kind() {
        let journal = Journal::default();
        let start = journal.since(0, |_| true).next;
        assert!(start >= 1 << 40, "numbers of an earlier daemon are lower");
        journal.add(event(EventKind::Audit, "first"));
        for i in 0..10_000 {
            journal.add(event(EventKind::Client, &i.to_string()));
        }
        let all = journal.since(0, |_| true);
        assert_eq!((all.events.len(), all.missed), (KEPT + 1, false));
        assert_eq!(texts(&all)[..2], ["first", "9488"]);
        assert!(all.events.is_sorted_by_key(|event| event.number));
        assert_eq!(all.next, start + 10_001);
        assert!(journal.since(start, |_| true).missed);
        assert!(!journal.since(all.next, |_| true).missed);
        let bytes: usize = locked(&journal.kept).kinds.iter().map(VecDeque::capacity).sum();
        assert!(bytes * size_of::<Event>() < 1 << 20);
        // What was not wanted is passed over.
        let few = journal.since(start, |event| event.kind == EventKind::Audit);
        assert_eq!((texts(&few), few.next), (vec!["first"], start + 10_001));
    }

    #[test]
    fn a_reply_has_a_thousand_events_at_most_and_the_next_goes_on_there() {
        let journal = Journal::default();
        for i in 0..KEPT {
            for kind in EventKind::ALL {
                journal.add(event(kind, &i.to_string()));
            }
        }
        let (mut since, mut read) = (0, 0);
        loop {
            let part = journal.since(since, |_| true);
            assert!(part.events.len() <= MOST);
            if part.events.is_empty() {
                break;
            }
            (since, read) = (part.next, read + part.events.len());
        }
        assert_eq!(read, KEPT * EventKind::ALL.len());
    }

    #[tokio::test]
    async fn a_wait_ends_with_the_first_event_that_is_wanted() {
        let journal = Arc::new(Journal::default());
        let since = journal.since(0, |_| true).next;
        let its = Arc::clone(&journal);
        let waits = tokio::spawn(async move {
            its.wait(since, Duration::from_secs(600), |event| event.kind == EventKind::Fault).await
        });
        tokio::task::yield_now().await;
        journal.add(event(EventKind::Client, "not this"));
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        journal.add(event(EventKind::Fault, "this"));
        assert_eq!(texts(&waits.await.unwrap()), ["this"]);
        for (from, time) in [(since + 2, Duration::from_millis(1)), (u64::MAX, Duration::MAX)] {
            let none = journal.wait(from, time, |_| true).await;
            assert_eq!((none.events.len(), none.next), (0, since + 2));
        }
    }

    #[test]
    fn lines_with_a_kind_are_events_and_what_strangers_chose_is_escaped() {
        let journal = Arc::new(Journal::default());
        let layers = tracing_subscriber::registry().with(layer(Arc::clone(&journal)));
        with_default(layers, || {
            let did = "port add \u{1b}[2Jvale0\nuid=0";
            tracing::info!(event = "audit", uid = 7u32, pid = 9, %did, "refused");
            tracing::debug!(event = "port", switch = "vale0", port = "a\u{202e}", "added");
            tracing::info!(switch = "vale0", "no event");
            tracing::info!(event = "no kind", "no event");
            tracing::info!(event = "quota", "{}", "long ".repeat(1000));
        });
        let all = journal.since(0, |_| true).events;
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].text, "refused pid=9: port add \\u{1b}[2Jvale0\\nuid=0");
        assert_eq!((all[0].kind, all[0].user), (EventKind::Audit, Some(7)));
        assert_eq!(all[1].port.as_deref(), Some("a\\u{202e}"));
        assert!(all[2].text.len() <= LONGEST + 3 && all[2].text.ends_with("..."));
    }
}
