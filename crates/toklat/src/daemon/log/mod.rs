//! The daemon's log: logging never blocks, and a rate limiter bounds what peers cause.

mod journald;
mod json;

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use dataplane::log::{Limiter, Line, Repeated};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use super::events::{self, Journal};

/// The target of the rate limiter's own lines, which are not limited.
const REPEATED: &str = "toklat::repeated";
/// The target of lines about what an administrator asked for. Each is written that says something
/// new: all its fields identify it.
pub(super) const ACTION: &str = "toklat::daemon::action";
/// The fields that identify what a line is about. Strangers cannot choose many values of them.
const ABOUT: [&str; 6] = ["switch", "port", "name", "uid", "guest", "vni"];

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for people, on standard error.
    #[default]
    Text,
    /// A JSON object a line, on standard error.
    Json,
    /// Entries with fields, to the system's journal.
    Journald,
}

/// Sends log lines to standard error, or to the journal, at most one a second for each place in the
/// program and port. Returns where events are kept.
///
/// # Errors
/// The log's thread cannot be started, or there is no journal.
pub fn start(format: Format) -> anyhow::Result<Arc<Journal>> {
    let limit = Limit::default();
    let ticking = limit.clone();
    if format == Format::Json {
        dataplane::log::write_json();
    }
    dataplane::log::start(move || ticking.tick()).context("Cannot start a thread for the log")?;
    let wanted = wanted(std::env::var("TOKLAT_LOG").ok().as_deref());
    let lines = match format {
        Format::Text => tracing_subscriber::fmt::layer()
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(Line::default)
            .boxed(),
        Format::Json => tracing_subscriber::fmt::layer()
            .event_format(json::Objects)
            .with_writer(Line::default)
            .boxed(),
        Format::Journald => journald::Entries::to(Path::new(journald::SOCKET))
            .with_context(|| format!("Cannot write to {}; use --log text", journald::SOCKET))?
            .boxed(),
    };
    let journal = Arc::new(Journal::default());
    let events = events::layer(Arc::clone(&journal));
    let lines = lines.with_filter(wanted.and(limit));
    tracing_subscriber::registry().with(lines).with(events).init();
    dataplane::log::catch_panics();
    Ok(journal)
}

/// The levels that `TOKLAT_LOG` asks for, as in `debug` or `info,toklat::daemon=trace`; `info` if
/// it is absent or wrong.
fn wanted(asked: Option<&str>) -> Targets {
    let default = || Targets::new().with_default(LevelFilter::INFO);
    let targets: Targets = asked.and_then(|asked| asked.parse().ok()).unwrap_or_else(default);
    // These crates write a line for each message to the routing daemon.
    let chatty = ["h2", "hyper", "tower", "tonic"];
    targets.with_targets(chatty.map(|name| (name, LevelFilter::WARN)))
}

/// Limits lines of the same key to one a second.
#[derive(Clone, Default)]
struct Limit(Arc<Mutex<Limiter<Identifier>>>);

impl Limit {
    fn lock(&self) -> MutexGuard<'_, Limiter<Identifier>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) {
        let repeated = self.lock().tick();
        for Repeated { what, times } in repeated {
            tracing::warn!(target: REPEATED, "{what} (repeated {times} times)");
        }
    }
}

impl<S: Subscriber> Filter<S> for Limit {
    fn enabled(&self, _metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == REPEATED {
            return true;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let about = match metadata.target() {
            ACTION => fields.all(),
            _ => fields.about(),
        };
        let what = || fields.0.get("message").cloned().unwrap_or_default() + &about;
        self.lock().admit(metadata.callsite(), &about, what)
    }
}

/// An event's fields.
#[derive(Default)]
struct Fields(HashMap<&'static str, String>);

impl Fields {
    /// The subject of the event, as its fields name it.
    fn about(&self) -> String {
        self.written(&ABOUT)
    }

    /// All fields but the message.
    fn all(&self) -> String {
        let mut names: Vec<_> = self.0.keys().copied().filter(|name| *name != "message").collect();
        names.sort_unstable();
        self.written(&names)
    }

    fn written(&self, names: &[&str]) -> String {
        names.iter().fold(String::new(), |mut about, name| {
            if let Some(value) = self.0.get(name) {
                let _ = write!(about, " {name}={value}");
            }
            about
        })
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;

    use super::*;

    /// Returns the output while `lines` are logged and then a second passes.
    fn written(lines: impl FnOnce()) -> Vec<String> {
        #[derive(Clone, Default)]
        struct Buffer(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Buffer {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (limit, buffer) = (Limit::default(), Buffer::default());
        let to = buffer.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || to.clone())
            .with_filter(wanted(None).and(limit.clone()));
        with_default(tracing_subscriber::registry().with(layer), || {
            lines();
            limit.tick();
        });
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn levels_are_asked_for_as_a_whole_and_by_part_of_the_program() {
        let debug = tracing::Level::DEBUG;
        for (asked, ours, theirs) in [
            (None, false, false),
            (Some("debug"), true, false),
            (Some("warn,toklat::daemon=trace"), true, false),
            (Some("no=such=level"), false, false),
        ] {
            let wanted = wanted(asked);
            assert_eq!(wanted.would_enable("toklat::daemon::open", &debug), ours, "{asked:?}");
            assert_eq!(wanted.would_enable("h2::codec", &debug), theirs, "{asked:?}");
        }
    }

    #[test]
    fn a_line_that_is_repeated_for_a_port_is_written_once_and_counted() {
        let lines = written(|| {
            for round in 0..1000 {
                for port in ["p1", "p2"] {
                    tracing::error!(switch = "vale0", port, round, "turned away");
                }
                tracing::debug!("not wanted");
            }
            tracing::info!("another");
        });
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert_eq!(lines[0], r#"ERROR turned away switch="vale0" port="p1" round=0"#);
        assert_eq!(lines[2], "INFO another");
        let repeated = "WARN turned away switch=\"vale0\" port=\"p1\" (repeated 999 times)";
        assert!(lines[3..].iter().any(|line| line == repeated), "{lines:?}");
    }

    /// Lines of an administrator's actions differ in any field, and those of strangers in few.
    #[test]
    fn regression_lines_of_actions_that_differ_in_a_field_are_all_written() {
        let lines = written(|| {
            for what in ["vale0:a", "vale0:b", "vale0:b"] {
                tracing::warn!(target: ACTION, what, "in use: it stays");
                tracing::info!(uid = 7, ifname = what, "card refused");
            }
        });
        let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
        assert_eq!(count(r#"in use: it stays what="vale0:a""#), 1, "{lines:?}");
        assert_eq!(count(r#"in use: it stays what="vale0:b""#), 2, "once, and repeated: {lines:?}");
        assert_eq!(count("card refused"), 2, "{lines:?}");
        assert_eq!(count(r#"ifname="vale0:b""#), 0, "a stranger chooses it: {lines:?}");
    }
}
