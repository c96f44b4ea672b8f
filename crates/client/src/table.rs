//! Aligned tables and the numbers in them.

use std::fmt::Write;

/// A table: a header, rows with one cell for each column, and which columns are numbers.
#[derive(Debug)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table with these columns. A column whose name starts with `>` is right-aligned.
    #[must_use]
    pub fn new(columns: &[&'static str]) -> Self {
        Self { header: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of cells differs from the header's.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.header.len(), "a row as wide as its table");
        self.rows.push(cells.into());
    }

    /// Returns true if the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> =
            self.header.iter().map(|name| name.trim_start_matches('>').len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

impl Table {
    /// Formats the table with columns at least as wide as `widths`, and stores the new widths
    /// there.
    #[must_use]
    pub fn at_least(&self, widths: &mut Vec<usize>) -> String {
        widths.resize(self.header.len(), 0);
        widths.iter_mut().zip(self.widths()).for_each(|(most, width)| *most = width.max(*most));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text, widths);
        text
    }

    fn write(&self, f: &mut dyn Write, widths: &[usize]) -> std::fmt::Result {
        let header: Vec<String> =
            self.header.iter().map(|name| name.trim_start_matches('>').to_uppercase()).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), name) in row.iter().zip(widths).zip(&self.header) {
                let width = *width;
                if name.starts_with('>') {
                    write!(line, "{cell:>width$}  ")?;
                } else {
                    write!(line, "{cell:<width$}  ")?;
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.write(f, &self.widths())
    }
}

/// A count in at most six characters: `999`, `12.3k`, `4.56M`.
#[must_use]
pub fn count(n: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    scaled(n as f64)
}

/// A number and its noun: `1 switch`, `2 switches`.
#[must_use]
pub fn counted(n: u64, what: &str, plural: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { plural })
}

/// A frequency or count with three significant digits and k, M, G, T.
#[must_use]
pub fn scaled(value: f64) -> String {
    let mut value = value;
    let mut unit = "";
    for next in ["k", "M", "G", "T", "P", "E"] {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    if unit.is_empty() && value.fract() == 0.0 {
        return format!("{value:.0}");
    }
    let digits = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{unit}")
}

/// Bytes, as `4.10 MB` (powers of 1000).
#[must_use]
pub fn bytes(n: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    unit(n as f64, "B")
}

/// Bytes, as `4.00 GiB` (powers of 1024).
#[must_use]
pub fn binary_bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (n.max(1).ilog2() / 10) as usize;
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let value = n as f64 / f64::from(1u32 << 10).powi(unit as i32);
    if unit == 0 { format!("{n} B") } else { format!("{value:.2} {}", units[unit]) }
}

/// Seconds, as `42s`, `3m05s`, `7h02m`, `12d07h`.
#[must_use]
pub fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Frames a second, as `14.9 Mpps`.
#[must_use]
pub fn pps(frames_per_second: f64) -> String {
    unit(frames_per_second, "pps")
}

/// Bits a second, as `9.87 Gb/s`.
#[must_use]
pub fn bps(bits_per_second: f64) -> String {
    unit(bits_per_second, "b/s")
}

fn unit(value: f64, name: &str) -> String {
    let number = scaled(value);
    match number.strip_suffix(|c: char| c.is_ascii_alphabetic()) {
        Some(digits) => format!("{digits} {}{name}", &number[digits.len()..]),
        None => format!("{number} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_numbers_stand_right() {
        let mut table = Table::new(&["port", ">in", "vlan"]);
        table.row(["vale0:p1".into(), "12".into(), "-".into()]);
        table.row(["v:é".into(), "1.50M".into(), "10".into()]);
        assert_eq!(
            table.to_string(),
            "PORT         IN  VLAN\nvale0:p1     12  -\nv:é       1.50M  10\n"
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        let table = [
            (0.0, "0"),
            (0.5, "0.50"),
            (7.0, "7"),
            (999.0, "999"),
            (999.9, "1.00k"),
            (1000.0, "1.00k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (999_499.0, "999k"),
            (999_500.0, "1.00M"),
            (35_000_000.0, "35.0M"),
            (195e9, "195G"),
        ];
        for (value, text) in table {
            assert_eq!(scaled(value), text, "{value}");
        }
        assert_eq!(pps(14_880_952.0), "14.9 Mpps");
        assert_eq!(bps(12.0), "12 b/s");
        assert_eq!(count(u64::MAX), "18.4E");
        assert_eq!(counted(1, "switch", "es"), "1 switch");
        assert_eq!(counted(0, "switch", "es"), "0 switches");
        assert_eq!(bytes(4_096_000), "4.10 MB");
    }

    #[test]
    fn durations_have_two_units() {
        let table =
            [(0, "0s"), (59, "59s"), (185, "3m05s"), (25_320, "7h02m"), (1_063_000, "12d07h")];
        for (seconds, text) in table {
            assert_eq!(duration(seconds), text);
        }
    }
}
