//! Draws the table over trap costs as SVG: a panel for each direction, bars on a logarithmic scale.

use std::fmt::Write;

use crate::bench::figure::Figure;

/// Sizes in pixels: of a panel, its margins, a bar.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const LEGEND: f64 = 140.0;
const COLOURS: [&str; 8] =
    ["#9aa0a6", "#7baaf7", "#fcc934", "#5bb974", "#c58af9", "#ee675c", "#24c1e0", "#fa903e"];

/// A bar: the result of a row `nic.table.COST.WAY.NAME`.
struct Bar<'f> {
    cost: &'f str,
    way: &'f str,
    name: &'f str,
    value: f64,
    unit: &'f str,
}

impl<'f> Bar<'f> {
    fn of(figure: &'f Figure) -> Option<Self> {
        // The cost in an id may contain a point.
        let (rest, name) = figure.id.strip_prefix("nic.table.")?.rsplit_once('.')?;
        let (cost, way) = rest.rsplit_once('.')?;
        let value = figure.value.filter(|value| *value > 0.0)?;
        Some(Self { cost, way, name, value, unit: figure.unit })
    }
}

/// Returns the distinct values of `of` over the bars, in order.
fn distinct<'f>(bars: &[&Bar<'f>], of: fn(&Bar<'f>) -> &'f str) -> Vec<&'f str> {
    let mut seen = Vec::new();
    for bar in bars {
        if !seen.contains(&of(bar)) {
            seen.push(of(bar));
        }
    }
    seen
}

/// Draws the table's rows among `figures`; `None` if there are none.
pub fn draw(figures: &[Figure]) -> Option<String> {
    let bars: Vec<Bar<'_>> = figures.iter().filter_map(Bar::of).collect();
    let all: Vec<&Bar<'_>> = bars.iter().collect();
    let ways = distinct(&all, |bar| bar.way);
    let (width, height) = (LEFT + WIDTH + LEGEND, (HEIGHT + TOP + 40.0) * ways.len() as f64);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' \
         font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
    );
    for (i, way) in ways.iter().enumerate() {
        let of_way: Vec<&Bar<'_>> = all.iter().copied().filter(|bar| bar.way == *way).collect();
        svg += &panel(&of_way, i as f64 * (HEIGHT + TOP + 40.0) + TOP);
    }
    svg += "</svg>\n";
    (!bars.is_empty()).then_some(svg)
}

/// Draws one panel, whose top is at `top`.
fn panel(bars: &[&Bar<'_>], top: f64) -> String {
    let (costs, names) = (distinct(bars, |bar| bar.cost), distinct(bars, |bar| bar.name));
    let (low, high) = bars.iter().fold((f64::MAX, f64::MIN), |(low, high), bar| {
        (low.min(bar.value.log10()), high.max(bar.value.log10()))
    });
    let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
    let y = |value: f64| top + HEIGHT * (high - value.log10()) / (high - low);
    let Some(first) = bars.first() else { return String::new() };
    let mut svg =
        text(4.0, top - 16.0, &format!("{}, {}, by cost of a trap", first.way, first.unit));
    for decade in low as i32..=high as i32 {
        let (value, at) = (10f64.powi(decade), y(10f64.powi(decade)));
        let right = LEFT + WIDTH;
        svg +=
            &format!("<line x1='{LEFT}' x2='{right}' y1='{at:.1}' y2='{at:.1}' stroke='#ddd'/>\n");
        svg += &text(4.0, at + 4.0, &value.to_string());
    }
    let group = WIDTH / costs.len() as f64;
    let wide = group / (names.len() as f64 + 1.0);
    for (at, cost) in costs.iter().enumerate() {
        svg += &text(LEFT + (at as f64 + 0.4) * group, top + HEIGHT + 18.0, cost);
    }
    for bar in bars {
        let place = |list: &[&str], what| list.iter().position(|x| *x == what).unwrap_or(0);
        let (cost, name) = (place(&costs, bar.cost), place(&names, bar.name));
        let x = LEFT + cost as f64 * group + (name as f64 + 0.5) * wide;
        let (y, colour) = (y(bar.value), COLOURS[name % COLOURS.len()]);
        let tall = top + HEIGHT - y;
        let _ = writeln!(
            svg,
            "<rect x='{x:.1}' y='{y:.1}' width='{wide:.1}' height='{tall:.1}' fill='{colour}'>\
             <title>{} {}: {:.3} {}</title></rect>",
            bar.cost, bar.name, bar.value, bar.unit
        );
    }
    svg + &legend(&names, top)
}

/// Draws the legend of the colours.
fn legend(names: &[&str], top: f64) -> String {
    let mut svg = String::new();
    for (i, name) in names.iter().enumerate() {
        let (x, y) = (LEFT + WIDTH + 10.0, top + 16.0 * i as f64);
        let colour = COLOURS[i % COLOURS.len()];
        svg += &format!("<rect x='{x}' y='{y}' width='10' height='10' fill='{colour}'/>\n");
        svg += &text(x + 16.0, y + 10.0, name);
    }
    svg
}

fn text(x: f64, y: f64, words: &str) -> String {
    format!("<text x='{x:.1}' y='{y:.1}'>{words}</text>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(id: &'static str, value: Option<f64>) -> Figure {
        Figure { id, value, unit: "Mpps", low: value, high: value, ..Figure::default() }
    }

    #[test]
    fn rows_of_the_table_become_bars_and_others_do_not() {
        let figures = [
            figure("nic.model.64.tx", Some(20.0)),
            figure("nic.table.0.1us.tx.baseline", Some(0.5)),
            figure("nic.table.0.1us.tx.csb2", Some(10.0)),
            figure("nic.table.10us.rx.csb2", None),
        ];
        let svg = draw(&figures).expect("there are bars");
        assert_eq!(svg.matches("<title>").count(), 2);
        assert!(svg.contains("0.1us csb2: 10.000 Mpps"));
        assert_eq!(draw(&figures[..1]), None);
    }

    #[test]
    fn ten_times_as_much_is_a_decade_higher() {
        let figures = [
            figure("nic.table.1us.tx.a", Some(1.0)),
            figure("nic.table.1us.tx.b", Some(10.0)),
            figure("nic.table.1us.tx.c", Some(100.0)),
        ];
        let svg = draw(&figures).expect("there are bars");
        let tall: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("<title>"))
            .map(|line| line.split("height='").nth(1).unwrap().split('\'').next().unwrap())
            .map(|tall| tall.parse().unwrap())
            .collect();
        assert_eq!(tall, [0.0, HEIGHT / 2.0, HEIGHT]);
    }
}
