//! The live view: readings, keys, and when to draw.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::rates::Rates;
use super::super::stats::read;
use super::view::View;
use super::{Sort, TopArgs};
use crate::api::Stats;
use client::name::Name;
use client::{Client, Global, Result};

/// Shows the view in the terminal until `q`.
pub fn run(args: &TopArgs, global: &Global) -> Result {
    let mut source = Source { global, name: args.name.as_ref(), client: None };
    let first = source.read()?;
    let mut terminal = ratatui::try_init()?;
    let end = watch(args, &mut source, first, &mut terminal);
    ratatui::try_restore()?;
    end
}

/// The source of readings. If the daemon is gone, each reading tries to connect again.
struct Source<'a> {
    global: &'a Global,
    name: Option<&'a Name>,
    client: Option<Client>,
}

impl Source<'_> {
    fn read(&mut self) -> Result<Stats> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(self.global)?.without_progress(),
        };
        let stats = read(&mut client, self.name)?;
        self.client = Some(client);
        Ok(stats)
    }
}

fn watch(
    args: &TopArgs,
    source: &mut Source<'_>,
    mut last: Stats,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result {
    let mut view = View::new(args.sort, args.interval);
    // The first rates come early, the others at the interval.
    let mut due = Instant::now() + args.interval.min(Duration::from_millis(250));
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        if event::poll(due.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && !press(&mut view, key)
            {
                return Ok(());
            }
            continue;
        }
        due = Instant::now() + args.interval;
        match source.read() {
            Ok(stats) => {
                view.update(Rates::between(&last, &stats));
                last = stats;
            }
            Err(error) => view.fail(format!("{error:#}")),
        }
    }
}

/// Handles a key; returns false if the key ends the program.
fn press(view: &mut View, key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        _ if view.is_help() => view.help(),
        _ if view.is_typing() => type_filter(view, key.code),
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('?' | 'h') => view.help(),
        KeyCode::Char('/') => view.edit_filter(),
        KeyCode::Char('r') => view.sort_by(Sort::Rate),
        KeyCode::Char('s') => view.sort_next(),
        KeyCode::Char('g') | KeyCode::Enter => view.graph(),
        KeyCode::Char('p' | ' ') => view.pause(),
        KeyCode::Up | KeyCode::Char('k') => view.scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => view.scroll(1),
        KeyCode::PageUp => view.scroll(-view.page()),
        KeyCode::PageDown => view.scroll(view.page()),
        KeyCode::Home => view.scroll(isize::MIN),
        KeyCode::End => view.scroll(isize::MAX),
        _ => {}
    }
    true
}

/// Handles a key while a filter is typed.
fn type_filter(view: &mut View, key: KeyCode) {
    match key {
        KeyCode::Char(typed) => view.filter(Some(typed)),
        KeyCode::Backspace => view.filter(None),
        KeyCode::Enter => view.end_filter(true),
        KeyCode::Esc => view.end_filter(false),
        _ => {}
    }
}
