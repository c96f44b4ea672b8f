//! Draws the stages as SVG: a panel for each direction, a stacked bar for each card and size.

use std::fmt::Write;

use super::report::{Column, Ticks};

/// The stages of one direction.
type Stages = fn(&Column) -> &[Ticks];

/// Sizes in pixels: of a panel, its margins, the legend.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const LEGEND: f64 = 140.0;
/// The stages in both directions, and their colours.
const COLOURS: [(&str, &str); 9] = [
    ("application", "#9aa0a6"),
    ("TCP/IP", "#7baaf7"),
    ("driver", "#fcc934"),
    ("kick", "#ee675c"),
    ("NIC model", "#5bb974"),
    ("switch", "#c58af9"),
    ("copy", "#24c1e0"),
    ("publish", "#fa903e"),
    ("wake-up", "#b06000"),
];

/// Draws all columns, with `words` below them.
pub fn draw(columns: &[Column], words: &str) -> String {
    let panel_height = HEIGHT + TOP + 40.0;
    let lines: Vec<&str> = words.lines().collect();
    let (width, height) =
        (LEFT + WIDTH + LEGEND, 2.0 * panel_height + 16.0 * lines.len() as f64 + 10.0);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' \
         font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
    );
    let ways: [(&str, Stages); 2] =
        [("transmit", |column| &column.transmit), ("receive", |column| &column.receive)];
    for (at, (way, stages)) in ways.into_iter().enumerate() {
        let top = at as f64 * panel_height + TOP;
        svg += &text(4.0, top - 16.0, &format!("{way}, ticks a datagram"));
        let stages: Vec<&[Ticks]> = columns.iter().map(stages).collect();
        svg += &panel(columns, &stages, top);
    }
    svg += &legend();
    for (at, line) in lines.iter().enumerate() {
        svg += &format!(
            "<text x='4' y='{:.1}' font-size='9'>{line}</text>\n",
            2.0 * panel_height + 16.0 * (at + 1) as f64
        );
    }
    svg + "</svg>\n"
}

/// Draws one panel, whose top is at `top`.
fn panel(columns: &[Column], stages: &[&[Ticks]], top: f64) -> String {
    let sum = |stages: &&[Ticks]| stages.iter().map(|stage| stage.1).sum::<f64>();
    let most = stages.iter().map(sum).fold(1.0, f64::max);
    let step = [100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 50_000.0];
    let step = step.into_iter().find(|step| most / step <= 8.0).unwrap_or(most);
    let y = |value: f64| top + HEIGHT * (1.0 - value / most);
    let mut svg = String::new();
    let mut line = 0.0;
    while line <= most {
        let (at, right) = (y(line), LEFT + WIDTH);
        svg +=
            &format!("<line x1='{LEFT}' x2='{right}' y1='{at:.1}' y2='{at:.1}' stroke='#ddd'/>\n");
        svg += &text(4.0, at + 4.0, &line.to_string());
        line += step;
    }
    let group = WIDTH / columns.len().max(1) as f64;
    for (at, (column, stages)) in columns.iter().zip(stages).enumerate() {
        let x = LEFT + at as f64 * group + 0.15 * group;
        svg += &text(x, top + HEIGHT + 18.0, &column.name);
        let mut below = 0.0;
        for (stage, ticks) in *stages {
            let (above, tall) = (below + ticks, HEIGHT * ticks / most);
            let _ = writeln!(
                svg,
                "<rect x='{x:.1}' y='{:.1}' width='{:.1}' height='{tall:.1}' fill='{}'>\
                 <title>{} {stage}: {ticks:.0}</title></rect>",
                y(above),
                0.7 * group,
                colour(stage),
                column.name
            );
            below = above;
        }
    }
    svg
}

fn colour(stage: &str) -> &'static str {
    COLOURS.iter().find(|(name, _)| *name == stage).map_or("#000", |(_, colour)| colour)
}

/// Draws the legend of the colours.
fn legend() -> String {
    let mut svg = String::new();
    for (i, (stage, colour)) in COLOURS.iter().enumerate() {
        let (x, y) = (LEFT + WIDTH + 10.0, TOP + 16.0 * i as f64);
        svg += &format!("<rect x='{x}' y='{y}' width='10' height='10' fill='{colour}'/>\n");
        svg += &text(x + 16.0, y + 10.0, stage);
    }
    svg
}

fn text(x: f64, y: f64, words: &str) -> String {
    format!("<text x='{x:.1}' y='{y:.1}'>{words}</text>\n")
}
