//! The log to systemd's journal, each entry with its fields (systemd's "Native Journal Protocol").

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::json::Fields;

/// Where the journal listens.
pub const SOCKET: &str = "/run/systemd/journal/socket";
/// Bytes of a value; the rest of a longer one is left out.
const LONGEST: usize = 2000;

/// Sends an entry for each event. It never waits: entries that the journal does not take are
/// counted, and the next one says how many.
#[derive(Debug)]
pub struct Entries {
    journal: UnixDatagram,
    lost: AtomicU64,
}

impl Entries {
    /// Sends entries to a socket.
    ///
    /// # Errors
    /// Nothing listens there.
    pub fn to(socket: &Path) -> io::Result<Self> {
        let journal = UnixDatagram::unbound()?;
        journal.connect(socket)?;
        journal.set_nonblocking(true)?;
        Ok(Self { journal, lost: AtomicU64::new(0) })
    }
}

impl<S: Subscriber> Layer<S> for Entries {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.0.remove("message").map(text).unwrap_or_default();
        let priority = match *event.metadata().level() {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            _ => "7",
        };
        let mut entry = Vec::new();
        put(&mut entry, "PRIORITY", priority);
        put(&mut entry, "SYSLOG_IDENTIFIER", "toklat");
        put(&mut entry, "TARGET", event.metadata().target());
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let mut message = match lost {
            0 => message,
            lost => format!("{message} ({lost} entries before this one were not taken)"),
        };
        for (name, value) in fields.0 {
            let value = text(value);
            message += &format!(" {name}={value}");
            put(&mut entry, &format!("TOKLAT_{}", name.to_uppercase()), &value);
        }
        put(&mut entry, "MESSAGE", &message);
        if self.journal.send(&entry).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }
}

fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Adds a field. Its length stands before the value, which may have more than one line.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    let value = &value.as_bytes()[..value.len().min(LONGEST)];
    entry.extend(name.bytes().map(|byte| if byte.is_ascii_alphanumeric() { byte } else { b'_' }));
    entry.push(b'\n');
    entry.extend((value.len() as u64).to_le_bytes());
    entry.extend(value);
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tracing::subscriber::with_default;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// The fields of an entry, as the journal reads them.
    fn read(mut entry: &[u8]) -> HashMap<String, String> {
        let mut fields = HashMap::new();
        while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
            let (name, rest) =
                (String::from_utf8(entry[..end].to_vec()).unwrap(), &entry[end + 1..]);
            let len = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            fields.insert(name, String::from_utf8_lossy(&rest[8..8 + len]).into_owned());
            assert_eq!(rest[8 + len], b'\n');
            entry = &rest[9 + len..];
        }
        fields
    }

    #[test]
    fn an_entry_has_fields_and_a_full_journal_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("socket");
        let journal = UnixDatagram::bind(&at).unwrap();
        let entries = Entries::to(&at).unwrap();
        let next = || {
            let mut bytes = vec![0; 1 << 16];
            let len = journal.recv(&mut bytes).unwrap();
            read(&bytes[..len])
        };
        let flood = 10_000;
        with_default(tracing_subscriber::registry().with(entries), || {
            tracing::warn!(switch = "vale0", uid = 7, "line\nPRIORITY=0");
            let first = next();
            assert_eq!((&first["PRIORITY"][..], &first["TOKLAT_SWITCH"][..]), ("4", "vale0"));
            assert_eq!(first["MESSAGE"], "line\nPRIORITY=0 switch=vale0 uid=7");
            (0..flood).for_each(|i| tracing::info!(i, "flood"));
            journal.set_nonblocking(true).unwrap();
            let taken = std::iter::from_fn(|| journal.recv(&mut [0; 1 << 10]).ok()).count();
            assert!(taken < flood, "nothing was lost");
            tracing::error!(long = "x".repeat(100_000), "after");
            let last = next();
            let lost = format!("after ({} entries before this one were not taken)", flood - taken);
            assert!(last["MESSAGE"].starts_with(&lost), "{}", &last["MESSAGE"][..100]);
            assert_eq!((last["MESSAGE"].len(), last["TOKLAT_LONG"].len()), (LONGEST, LONGEST));
        });
    }
}
