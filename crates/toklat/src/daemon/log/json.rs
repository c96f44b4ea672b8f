//! The log as JSON: an object a line.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Bytes of a line. The log cuts off longer ones, which would be no JSON then.
const LONGEST: usize = 2000;

/// Writes each event as an object: `at_ms` (since 1970), `level`, `target`, `message`, its fields.
#[derive(Debug)]
pub struct Objects;

impl<S, N> FormatEvent<S, N> for Objects
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writeln!(to, "{}", object(event))
    }
}

/// The line of an event. The longest values of one that would be too long are left out.
fn object(event: &Event<'_>) -> String {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut line = fields.0;
    line.insert("at_ms".into(), u64::try_from(now.as_millis()).unwrap_or(u64::MAX).into());
    line.insert("level".into(), event.metadata().level().as_str().into());
    line.insert("target".into(), event.metadata().target().into());
    loop {
        let text = Value::Object(line.clone()).to_string();
        let longest = line.iter().max_by_key(|(_, value)| value.to_string().len());
        let Some(name) = longest.map(|(name, _)| name.clone()) else { return text };
        if text.len() <= LONGEST {
            return text;
        }
        line.insert(name, "(too long)".into());
    }
}

/// The fields of an event. A field's number is a number, and anything else a string.
#[derive(Default)]
pub struct Fields(pub Map<String, Value>);

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::with_default;
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt as _};

    use super::*;

    #[test]
    fn each_line_is_an_object_of_bounded_length() {
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<String>>>);
        impl<S: Subscriber> Layer<S> for Lines {
            fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
                self.0.lock().unwrap().push(object(event));
            }
        }
        let lines = Lines::default();
        with_default(tracing_subscriber::registry().with(lines.clone()), || {
            tracing::info!(switch = "vale0", uid = 7, up = true, "a \"quoted\"\nline");
            tracing::warn!(long = "\n".repeat(5000), port = "p1", "short");
        });
        let lines: Vec<Value> = lines
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[0]["message"], "a \"quoted\"\nline");
        assert_eq!((&lines[0]["uid"], &lines[0]["up"]), (&7.into(), &true.into()));
        assert_eq!((&lines[0]["level"], &lines[0]["switch"]), (&"INFO".into(), &"vale0".into()));
        assert!(lines[0]["at_ms"].as_u64().unwrap() > 1 << 40);
        assert_eq!((&lines[1]["long"], &lines[1]["port"]), (&"(too long)".into(), &"p1".into()));
        assert!(lines[1].to_string().len() <= LONGEST);
    }
}
