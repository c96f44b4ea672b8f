//! The recent history of ports in `top`: a bar for each reading.

use std::collections::{BTreeMap, VecDeque};

use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};

use super::super::super::rates::{PortRates, Rates};
use client::table::pps;

/// Readings kept of each port: more than a wide screen shows.
const READINGS: usize = 240;
/// Readings kept of all ports together.
const ALL_READINGS: usize = 1_000_000;

/// Frames a second: in, out, dropped.
type Reading = [f32; 3];

/// What ports did.
#[derive(Debug, Default)]
pub struct History(BTreeMap<(String, String), VecDeque<Reading>>);

impl History {
    /// A history of nothing.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a reading of every port, and forgets ports that are gone.
    #[expect(clippy::cast_possible_truncation, reason = "bars, not sums")]
    pub fn add(&mut self, rates: &Rates) {
        let most = (ALL_READINGS / rates.ports.len().max(1)).clamp(1, READINGS);
        let mut old = std::mem::take(&mut self.0);
        for port in &rates.ports {
            let name = (port.switch.clone(), port.name.clone());
            let mut readings = old.remove(&name).unwrap_or_default();
            let reading = [port.ingress.pps, port.egress.pps, port.dropped()];
            readings.push_back(reading.map(|pps| pps as f32));
            readings.drain(..readings.len().saturating_sub(most));
            self.0.insert(name, readings);
        }
    }

    /// A port's history in lines of this width: its name, and what it sent, received and lost, the
    /// newest at the right.
    pub fn lines(&self, port: &PortRates, width: u16) -> Vec<Line<'static>> {
        let name = (port.switch.clone(), port.name.clone());
        let none = VecDeque::new();
        let readings = self.0.get(&name).unwrap_or(&none);
        // A word and a number precede the bars.
        let room = usize::from(width.saturating_sub(26));
        let shown = readings.len().min(room);
        let title = format!(" {}:{} in the last {shown} readings", port.switch, port.name);
        let mut lines = vec![Line::from(title).bold()];
        for (at, what) in ["in", "out", "dropped"].into_iter().enumerate() {
            let values: Vec<f32> =
                readings.iter().skip(readings.len() - shown).map(|reading| reading[at]).collect();
            let most = values.iter().copied().fold(0.0, f32::max);
            let head = format!(" {what:<8}{:>15} ", format!("up to {}", pps(f64::from(most))));
            let bars = Span::from(bars(&values, most));
            let lost = at == 2 && most > 0.0;
            let style = if lost { Style::new().fg(Color::Red) } else { Style::new() };
            lines.push(Line::from(vec![head.into(), bars.style(style)]));
        }
        lines
    }
}

/// A bar for each value; the highest is `most`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 8")]
fn bars(values: &[f32], most: f32) -> String {
    let bar = |value: &f32| match value {
        // Any value above zero gets a visible bar.
        value if *value > 0.0 => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
            [((value / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
        _ => ' ',
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_for_parts_of_the_highest() {
        assert_eq!(bars(&[0.0, 0.001, 4.0, 8.0], 8.0), " ▁▄█");
        assert_eq!(bars(&[0.0; 3], 0.0), "   ");
    }
}
