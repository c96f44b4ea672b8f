//! `toklat link`: the lines of ports.

use clap::Subcommand;
use client::name::PortName;
use client::table::{Table, binary_bytes};
use client::{Client, Global, Result};
use link::LinkStats;

use crate::api::{Line, PortLink};

/// What can be done with links.
#[derive(Debug, Subcommand)]
pub enum LinkCommand {
    /// Show the lines of a port: queue, drops by cause, marks, times in the queue
    Show {
        /// The port, as in vale0:p1
        port: PortName,
    },
}

impl LinkCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If the daemon does not run or refuses.
    pub fn run(self, global: &Global) -> Result {
        let Self::Show { port } = self;
        let mut client = Client::connect(global)?;
        let link: PortLink = client.get(&format!("{}/link", port.path()))?;
        let nothing = format!("{port} has no link; see toklat port set --tx-link, --rx-link");
        global.print_list(&link, || table(&link), &nothing)
    }
}

/// A row for each figure, a column for each direction; no row without a link.
fn table(link: &PortLink) -> Table {
    let mut table = Table::new(&["", "sends", "receives"]);
    if link.sends.is_none() && link.receives.is_none() {
        return table;
    }
    let mut row = |name: &str, value: &dyn Fn(&Line) -> String| {
        let of = |line: &Option<Line>| line.as_ref().map_or_else(|| "-".to_owned(), value);
        table.row([name.to_owned(), of(&link.sends), of(&link.receives)]);
    };
    row("link", &|line| line.words.clone());
    row("queue now", &|line| {
        let LinkStats { queue_frames, queue_bytes, .. } = line.stats;
        format!("{queue_frames} frames, {}", binary_bytes(queue_bytes))
    });
    row("queue at most", &|line| binary_bytes(line.stats.queue_most_bytes));
    row("on the way", &|line| format!("{} frames", line.stats.flight_frames));
    row("memory", &|line| {
        format!("{} of {}", binary_bytes(line.stats.memory), binary_bytes(line.most_memory))
    });
    row("carried", &|line| {
        format!("{} frames, {}", line.stats.sent_frames, binary_bytes(line.stats.sent_bytes))
    });
    row("dropped", &|line| drops(&line.stats));
    row("marked", &|line| line.stats.marked.to_string());
    row("changed", &|line| {
        let LinkStats { duplicated, reordered, corrupted, .. } = line.stats;
        format!("{duplicated} doubled, {reordered} overtook, {corrupted} corrupt")
    });
    row("in the queue", &|line| {
        let LinkStats { sojourn_p50_ns, sojourn_p90_ns, sojourn_p99_ns, sojourn_max_ns, .. } =
            line.stats;
        let times = [
            ("p50", sojourn_p50_ns),
            ("p90", sojourn_p90_ns),
            ("p99", sojourn_p99_ns),
            ("max", sojourn_max_ns),
        ];
        times.map(|(name, ns)| format!("{name} {}", milliseconds(ns))).join(", ")
    });
    table
}

/// Drops by cause.
fn drops(stats: &LinkStats) -> String {
    let causes = [
        (stats.dropped_full, "queue full"),
        (stats.dropped_early, "early"),
        (stats.dropped_lost, "lost"),
        (stats.dropped_memory, "no memory"),
    ];
    let said = causes.into_iter().filter(|(frames, _)| *frames > 0);
    let said: Vec<_> = said.map(|(frames, cause)| format!("{frames} {cause}")).collect();
    if said.is_empty() { "0".into() } else { said.join(", ") }
}

fn milliseconds(ns: u64) -> String {
    format!("{:.2} ms", ns as f64 / 1e6)
}
