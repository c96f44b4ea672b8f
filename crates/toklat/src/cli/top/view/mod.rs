//! The screen of `top`, made of rates. It needs no terminal, no daemon and no clock.

mod history;

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use self::history::History;
use super::super::rates::{Flow, PortRates, Rates, WorkerRates};
use super::super::stats::drop_rates;
use super::Sort;
use crate::api::PortState;
use client::table::{bps, pps, scaled};

impl Sort {
    const fn next(self) -> Self {
        match self {
            Self::In => Self::Out,
            Self::Out => Self::Drops,
            Self::Drops => Self::Name,
            Self::Name => Self::Rate,
            Self::Rate => Self::In,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::In => "in",
            Self::Out => "out",
            Self::Drops => "drops",
            Self::Name => "name",
        }
    }

    fn sort(self, ports: &mut [PortRates]) {
        let by_name = |a: &PortRates, b: &PortRates| {
            (&a.switch, natural(&a.name)).cmp(&(&b.switch, natural(&b.name)))
        };
        let key = |port: &PortRates| match self {
            Self::Rate => port.ingress.pps + port.egress.pps,
            Self::In => port.ingress.pps,
            Self::Out => port.egress.pps,
            Self::Drops => port.dropped(),
            Self::Name => 0.0,
        };
        ports.sort_by(|a, b| key(b).total_cmp(&key(a)).then_with(|| by_name(a, b)));
    }
}

/// Sort key that puts `p2` before `p10`: the text before a trailing number, and the number.
fn natural(name: &str) -> (&str, u64, &str) {
    let text = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (text, name[text.len()..].parse().unwrap_or(0), name)
}

/// The screen's state.
#[derive(Debug)]
pub struct View {
    rates: Option<Rates>,
    sort: Sort,
    interval: Duration,
    paused: bool,
    failure: Option<String>,
    first_row: usize,
    rows: usize,
    /// Only ports whose names contain this are shown; case is ignored.
    filter: String,
    /// The filter is being typed.
    typing: bool,
    /// The keys are shown.
    help: bool,
    /// What ports did.
    history: History,
    /// Shows the history of the first port in the list.
    graphs: bool,
}

/// What keys do.
const HELP: [(&str, &str); 10] = [
    ("q, Esc", "quit"),
    ("s", "sort by the next of: in, out, drops, name, rate (in and out)"),
    ("r", "sort by rate"),
    ("/", "show only ports with this in their names; Esc shows all"),
    ("g, enter", "the history of the first port of the list; always there if only one is shown"),
    ("p, space", "pause, and go on"),
    ("arrows, j, k", "move the list of ports"),
    ("PgUp, PgDn", "move it by a page"),
    ("Home, End", "move it to its ends"),
    ("?, h", "this help; any key leaves it"),
];

impl View {
    /// Makes a screen that waits for its first rates.
    pub const fn new(sort: Sort, interval: Duration) -> Self {
        Self {
            rates: None,
            sort,
            interval,
            paused: false,
            failure: None,
            first_row: 0,
            rows: 0,
            filter: String::new(),
            typing: false,
            help: false,
            history: History::new(),
            graphs: false,
        }
    }

    /// Shows these rates, unless it is paused.
    pub fn update(&mut self, mut rates: Rates) {
        self.failure = None;
        self.history.add(&rates);
        if !self.paused {
            self.sort.sort(&mut rates.ports);
            self.rates = Some(rates);
        }
    }

    /// Keeps the screen, and says why there are no new rates.
    pub fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }

    /// Changes to the next order of the rows.
    pub fn sort_next(&mut self) {
        self.sort_by(self.sort.next());
    }

    /// Sorts the rows by `sort`.
    pub fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        if let Some(rates) = &mut self.rates {
            self.sort.sort(&mut rates.ports);
        }
    }

    /// Shows or hides the help.
    pub const fn help(&mut self) {
        self.help = !self.help;
    }

    /// Shows or hides the history of the first port in the list.
    pub const fn graph(&mut self) {
        self.graphs = !self.graphs;
    }

    /// Returns true while the help is shown.
    pub const fn is_help(&self) -> bool {
        self.help
    }

    /// Returns true while a filter is typed.
    pub const fn is_typing(&self) -> bool {
        self.typing
    }

    /// Begins to type a filter.
    pub fn edit_filter(&mut self) {
        self.filter.clear();
        self.typing = true;
    }

    /// Adds a character to the filter, or removes its last one.
    pub fn filter(&mut self, typed: Option<char>) {
        match typed {
            Some(typed) => self.filter.push(typed),
            None => drop(self.filter.pop()),
        }
        self.first_row = 0;
    }

    /// Ends typing. Without `keep` the filter is cleared.
    pub fn end_filter(&mut self, keep: bool) {
        self.typing = false;
        if !keep {
            self.filter.clear();
        }
    }

    /// Whether a port passes the filter.
    fn shows(&self, port: &PortRates) -> bool {
        let name = format!("{}:{}", port.switch, port.name).to_lowercase();
        name.contains(&self.filter.to_lowercase())
    }

    /// How many ports pass the filter.
    fn count(&self, rates: &Rates) -> usize {
        rates.ports.iter().filter(|port| self.shows(port)).count()
    }

    /// Stops or goes on.
    pub const fn pause(&mut self) {
        self.paused = !self.paused;
    }

    /// Scrolls the list of ports; it stops at its ends.
    pub fn scroll(&mut self, lines: isize) {
        let ports = self.rates.as_ref().map_or(0, |rates| self.count(rates));
        let last = ports.saturating_sub(self.rows.max(1));
        self.first_row = self.first_row.saturating_add_signed(lines).min(last);
    }

    /// Lines of a page.
    pub fn page(&self) -> isize {
        isize::try_from(self.rows.max(1)).unwrap_or(1)
    }

    /// Draws everything.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let rates = self.rates.take();
        let area = frame.area();
        let none = Rates::default();
        let shown = rates.as_ref().unwrap_or(&none);
        let workers = worker_lines(shown, area.height);
        let graphs = (self.graphs || self.count(shown) == 1) && area.height >= 14 && !self.help;
        let [head, worker_area, port_area, graph_area, foot] = Layout::vertical([
            Constraint::Length(if area.height >= 6 { 2 } else { 1 }),
            Constraint::Length(workers),
            Constraint::Fill(1),
            Constraint::Length(if graphs { 5 } else { 0 }),
            Constraint::Length(u16::from(area.height >= 4)),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(self.headline(rates.as_ref(), area.width)), head);
        if workers > 0 {
            frame.render_widget(worker_table(&shown.workers, worker_area), worker_area);
        }
        self.rows = usize::from(port_area.height.saturating_sub(1));
        self.first_row = self.first_row.min(self.count(shown).saturating_sub(self.rows.max(1)));
        if self.help {
            frame.render_widget(Paragraph::new(help_lines()), port_area);
        } else {
            let ports = shown.ports.iter().filter(|port| self.shows(port));
            let ports = ports.skip(self.first_row).take(self.rows);
            frame.render_widget(port_table(ports.clone(), port_area), port_area);
            if let Some(port) = ports.clone().next().filter(|_| graphs) {
                let lines = self.history.lines(port, graph_area.width);
                frame.render_widget(Paragraph::new(lines), graph_area);
            }
        }
        frame.render_widget(Paragraph::new(self.footline(shown)), foot);
        self.rates = rates;
    }

    /// All switches in one line, and the problem, if there is one.
    fn headline(&self, rates: Option<&Rates>, width: u16) -> Line<'static> {
        if let Some(why) = &self.failure {
            return Line::from(format!(" {why}")).style(Style::new().fg(Color::Red));
        }
        let Some(rates) = rates else { return Line::from(" reading the counters ...") };
        if rates.ports.is_empty() {
            return Line::from(" no ports; add one: toklat port add vale0:p1");
        }
        let sum = |flow: fn(&PortRates) -> Flow| -> (f64, f64) {
            rates.ports.iter().map(flow).fold((0.0, 0.0), |a, b| (a.0 + b.pps, a.1 + b.bps))
        };
        let (ingress, egress) = (sum(|port| port.ingress), sum(|port| port.egress));
        let dropped = rates.ports.iter().fold(0.0, |sum, port| sum + port.dropped());
        let drops = Span::from(format!("dropped {}", pps(dropped)));
        let bits = |flow: f64| if width < 76 { "".into() } else { format!("{}  ", bps(flow)) };
        Line::from(vec![
            Span::from(format!(" in {}  {} ", pps(ingress.0), bits(ingress.1))),
            Span::from(format!("out {}  {} ", pps(egress.0), bits(egress.1))),
            if dropped > 0.0 { drops.fg(Color::Red) } else { drops },
            Span::from(if self.paused { "   paused" } else { "" }).bold(),
        ])
    }

    fn footline(&self, rates: &Rates) -> Line<'static> {
        let key = |name: &'static str| Span::from(name).bold();
        if self.typing {
            let filter = format!(" filter: {}_   ", self.filter);
            return Line::from(vec![
                filter.into(),
                key("enter"),
                " keep  ".into(),
                key("esc"),
                " all".into(),
            ]);
        }
        let count = self.count(rates);
        let shown = self.rows.min(count);
        let from = if shown == 0 { 0 } else { self.first_row + 1 };
        let until = self.first_row + shown;
        let filter = match self.filter.as_str() {
            "" => " filter  ".to_owned(),
            filter => format!(" {filter}  "),
        };
        Line::from(vec![
            key(" q"),
            " quit  ".into(),
            key("?"),
            " help  ".into(),
            key("s"),
            format!(" sort ({})  ", self.sort.name()).into(),
            key("/"),
            filter.into(),
            key("p"),
            if self.paused { " go on  " } else { " pause  " }.into(),
            key("arrows"),
            format!(" ports {from}-{until} of {count}  ").into(),
            format!("every {}s", self.interval.as_secs_f64()).dim(),
        ])
    }
}

fn help_lines() -> Vec<Line<'static>> {
    let line = |(keys, what): &(&'static str, &'static str)| {
        Line::from(vec![Span::from(format!(" {keys:<14}")).bold(), (*what).into()])
    };
    HELP.iter().map(line).collect()
}

/// Lines for workers: none on a very small screen, at most a third of it, a blank one at the end.
fn worker_lines(rates: &Rates, height: u16) -> u16 {
    let wanted = u16::try_from(rates.workers.len()).unwrap_or(u16::MAX).saturating_add(2);
    if height < 12 || rates.workers.is_empty() { 0 } else { wanted.min(height / 3) }
}

/// A column: its title, its width, and the screen width at which it appears.
type Column = (&'static str, u16, u16);

const WORKER_COLUMNS: [Column; 8] = [
    ("", 16, 0),
    ("LOAD", 4, 0),
    ("FRAMES", 9, 46),
    ("NS/FRAME", 8, 55),
    ("BATCH", 6, 62),
    ("SLEEPS", 9, 72),
    ("KICKS", 9, 82),
    ("CPU", 4, 88),
];

const PORT_COLUMNS: [Column; 7] = [
    ("IN", 9, 0),
    ("", 9, 60),
    ("OUT", 9, 36),
    ("", 9, 60),
    ("BATCH", 6, 68),
    ("DROPPED", 9, 48),
    ("", 0, 90),
];

/// The columns that the screen is wide enough for, after a column of names.
fn columns(all: &[Column], names: u16, width: u16) -> (Vec<bool>, Vec<Constraint>) {
    // The limits assume names of up to 12 characters.
    let width = width.saturating_sub(names.saturating_sub(12));
    let shown: Vec<bool> = all.iter().map(|(_, _, from)| width >= *from).collect();
    let widths = all.iter().zip(&shown).filter(|(_, shown)| **shown).map(|((_, width, _), _)| {
        if *width == 0 { Constraint::Fill(1) } else { Constraint::Length(*width) }
    });
    let constraints = std::iter::once(Constraint::Length(names)).chain(widths).collect();
    (shown, constraints)
}

/// Right-aligned cells, of visible columns only.
fn cells<'a, const N: usize>(
    name: String,
    cells: [Cell<'a>; N],
    shown: &[bool],
) -> impl Iterator<Item = Cell<'a>> {
    let cells = cells.into_iter().zip(shown.to_vec()).filter(|(_, shown)| *shown);
    std::iter::once(Cell::from(name)).chain(cells.map(|(cell, _)| cell))
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

const HEADER: Style = Style::new().add_modifier(ratatui::style::Modifier::REVERSED);

fn header<const N: usize>(first: &'static str, all: &[Column; N], shown: &[bool]) -> Row<'static> {
    let titles = all.map(
        |(title, width, _)| {
            if width == 0 { Cell::from(title) } else { right(title.to_owned()) }
        },
    );
    Row::new(cells(first.to_owned(), titles, shown)).style(HEADER)
}

fn worker_table(workers: &[WorkerRates], area: Rect) -> Table<'_> {
    let mut busiest: Vec<&WorkerRates> = workers.iter().collect();
    let room = usize::from(area.height.saturating_sub(2));
    if busiest.len() > room {
        busiest.sort_by(|a, b| b.load.total_cmp(&a.load));
    }
    let names = busiest.iter().map(|w| w.switch.len() + 3).max().unwrap_or(0).max(12);
    let names = u16::try_from(names).unwrap_or(u16::MAX);
    let (shown, widths) = columns(&WORKER_COLUMNS, names, area.width);
    let rows = busiest.into_iter().take(room).map(|w| {
        let or_dash = |n: f64| if n > 0.0 { format!("{n:.1}") } else { "-".into() };
        let load = [
            Cell::from(bar(w.load, 16)).style(Style::new().fg(load_color(w.load))),
            right(format!("{:.0}%", w.load * 100.0)),
            right(pps(w.pps)),
            right(or_dash(w.ns_per_frame)),
            right(or_dash(w.batch)),
            right(format!("{}/s", scaled(w.sleeps.round()))),
            right(format!("{}/s", scaled(w.kicks.round()))),
            right(w.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string())),
        ];
        Row::new(cells(format!("{}/{}", w.switch, w.worker), load, &shown))
    });
    let rows: Vec<Row<'_>> = rows.collect();
    Table::new(rows, widths).header(header("WORKER", &WORKER_COLUMNS, &shown)).column_spacing(1)
}

/// A bar of `width` characters, in eighths.
fn bar(part: f64, width: usize) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a small number, clamped"
    )]
    let eighths = (part.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let mut text = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        text.extend(" ▏▎▍▌▋▊▉".chars().nth(eighths % 8));
    }
    text
}

const fn load_color(load: f64) -> Color {
    match load {
        0.9.. => Color::Red,
        0.6.. => Color::Yellow,
        _ => Color::Green,
    }
}

fn port_table<'a>(ports: impl Iterator<Item = &'a PortRates> + Clone, area: Rect) -> Table<'a> {
    let names = ports.clone().map(|p| p.switch.len() + 1 + p.name.len()).max().unwrap_or(0);
    let names = u16::try_from(names.max(12)).unwrap_or(u16::MAX);
    let (shown, widths) = columns(&PORT_COLUMNS, names, area.width);
    let rows = ports.map(|port| {
        let dropped = port.dropped();
        let lost = if dropped > 0.0 { Style::new().fg(Color::Red) } else { Style::new() };
        let why = if port.state == PortState::Failed { "failed".into() } else { drop_rates(port) };
        let rates = [
            right(pps(port.ingress.pps)),
            right(bps(port.ingress.bps)),
            right(pps(port.egress.pps)),
            right(bps(port.egress.bps)),
            right(if port.batch > 0.0 { format!("{:.1}", port.batch) } else { "-".into() }),
            right(if dropped > 0.0 { pps(dropped) } else { "-".into() }).style(lost),
            Cell::from(why).style(lost),
        ];
        let row = Row::new(cells(format!("{}:{}", port.switch, port.name), rates, &shown));
        if port.is_idle() && port.state != PortState::Failed { row.dim() } else { row }
    });
    let rows: Vec<Row<'_>> = rows.collect();
    Table::new(rows, widths).header(header("PORT", &PORT_COLUMNS, &shown)).column_spacing(1)
}

#[cfg(test)]
mod tests;
