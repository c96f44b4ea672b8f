//! The table of all rows in `docs/performance.md`, from what `toklat --json bench ...` printed.
//!
//! The table lies between two marks at the end of the page. Beneath it, each row that misses its
//! bar has a sentence that says what limits it: sentences are written by hand, and kept.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::tool;

const PAGE: &str = "docs/performance.md";
const BEGIN: &str = "<!-- begin: cargo xtask performance -->\n";
const END: &str = "<!-- end: cargo xtask performance -->\n";

/// Writes the table of the rows in `files`. Rows of a later file replace those of an earlier one.
pub fn write(files: &[&str]) -> Result<()> {
    ensure!(!files.is_empty(), "cargo xtask performance FILE...: what toklat --json bench printed");
    let mut rows = Vec::new();
    for file in files {
        let said = fs::read_to_string(file).with_context(|| format!("Cannot read {file}"))?;
        add(&mut rows, &said).with_context(|| format!("{file} is not of toklat --json bench"))?;
    }
    let path = tool::root().join(PAGE);
    let page = fs::read_to_string(&path)?;
    fs::write(&path, page_with(&page, &rows)?)
        .with_context(|| format!("Cannot write {}", path.display()))
}

/// Adds the rows of a run's lines. Lines of other kinds, such as stages, have no ratio.
fn add(rows: &mut Vec<Value>, said: &str) -> Result<()> {
    for row in serde_json::Deserializer::from_str(said).into_iter::<Value>() {
        let row = row?;
        if row.get("distance").is_none() {
            continue;
        }
        match rows.iter_mut().find(|it| it["id"] == row["id"]) {
            Some(before) => *before = row,
            None => rows.push(row),
        }
    }
    Ok(())
}

/// The page with the table of these rows in place of the one that it has.
fn page_with(page: &str, rows: &[Value]) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).unwrap_or((page, ""));
    let (old, after) = rest.split_once(END).unwrap_or((rest, ""));
    let limits = sentences(old);
    let missed = || rows.iter().filter(|row| row["missed"] == true);
    let silent =
        missed().filter_map(|row| row["id"].as_str()).filter(|id| !limits.contains_key(id));
    let silent: Vec<&str> = silent.collect();
    let mut made = format!("{}\n\n{BEGIN}\n## All rows\n\n{}", before.trim_end(), table(rows));
    if missed().next().is_some() {
        made += "\nWhat limits the rows that miss their bars:\n\n";
    }
    for row in missed() {
        let id = row["id"].as_str().unwrap_or_default();
        let _ = writeln!(made, "- `{id}`: {}", limits.get(id).unwrap_or(&""));
    }
    if silent.is_empty() {
        return Ok(made + "\n" + END + after);
    }
    bail!(
        "These rows miss their bars, and {PAGE} does not say why: {}. Write a line `- `ID`: SENTENCE` for each between \
         the marks {} and {}",
        silent.join(", "),
        BEGIN.trim(),
        END.trim()
    )
}

/// The sentences of the list beneath the table, by row.
fn sentences(section: &str) -> BTreeMap<&str, &str> {
    let lines = section.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("`: "));
    lines.filter(|(_, sentence)| !sentence.trim().is_empty()).collect()
}

fn table(rows: &[Value]) -> String {
    let mut table =
        "| row | ours | beside | ratio | cores | bar |\n|---|---|---|---|---|---|\n".to_owned();
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        let peer = match row["peer_value"].as_f64() {
            Some(value) => format!("{} {}", text("peer"), number(Some(value))),
            None => String::new(),
        };
        let ours = format!("{} {}", number(row["value"].as_f64()), text("unit"));
        let (ratio, id) = (number(row["ratio"].as_f64()), text("id"));
        let mark = if row["missed"] == true { "**" } else { "" };
        let (state, bar) = (row["distance"]["state"].as_str().unwrap_or("-"), text("bar"));
        let _ =
            writeln!(table, "| `{id}` | {mark}{ours}{mark} | {peer} | {ratio} | {state} | {bar} |");
        for other in ["near", "far"].into_iter().filter(|other| *other != state) {
            let part = &row["distance"][other];
            if part.is_null() {
                continue;
            }
            let ours = format!("{} {}", number(part["value"].as_f64()), text("unit"));
            let (peer, ratio) =
                (number(part["peer_value"].as_f64()), number(part["ratio"].as_f64()));
            let mark = if part["missed"] == true { "**" } else { "" };
            let _ = writeln!(table, "| | {mark}{ours}{mark} | {peer} | {ratio} | {other} | |");
        }
    }
    table
}

/// Three digits that count.
fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let size = value.abs();
    let decimals = if size == 0.0 { 0.0 } else { (2.0 - size.log10().floor()).clamp(0.0, 12.0) };
    format!("{value:.0$}", decimals as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, value: f64, missed: bool) -> String {
        serde_json::json!({
            "id": id, "value": value, "unit": "Mpps", "peer": "floor", "peer_value": 100.0, "ratio": value / 100.0,
            "bar": "ratio >= 0.7", "missed": missed,
            "distance": { "state": "near", "near": null, "far": { "value": 20.0, "ratio": 0.5, "missed": true } },
        })
        .to_string()
    }

    fn rows(lines: &[String]) -> Vec<Value> {
        let mut rows = Vec::new();
        add(&mut rows, &lines.join("\n")).unwrap();
        rows
    }

    #[test]
    fn rows_become_a_table_with_both_states_and_later_ones_replace_earlier_ones() {
        let rows =
            rows(&[row("a", 1.0, false), r#"{"stage":"copy"}"#.into(), row("a", 75.2, false)]);
        let page = page_with("# Page\n", &rows).unwrap();
        assert!(
            page.contains("| `a` | 75.2 Mpps | floor 100 | 0.752 | near | ratio >= 0.7 |\n"),
            "{page}"
        );
        assert!(page.contains("| | **20.0 Mpps** | - | 0.500 | far | |\n"), "{page}");
        assert_eq!(page_with(&page, &rows).unwrap(), page, "made anew, it is the same");
    }

    #[test]
    fn a_row_that_misses_its_bar_needs_a_sentence_which_is_kept() {
        let rows = rows(&[row("a", 10.0, true)]);
        let error = page_with("# Page\n", &rows).unwrap_err().to_string();
        assert!(error.contains("does not say why: a."), "{error}");
        let said = format!("# Page\n\n{BEGIN}- `a`: Lines cross twice.\n{END}## Rest\n");
        let page = page_with(&said, &rows).unwrap();
        assert!(page.contains("| `a` | **10.0 Mpps** |") && page.ends_with("## Rest\n"), "{page}");
        assert_eq!(page.matches("- `a`: Lines cross twice.\n").count(), 1);
        assert_eq!(page_with(&page, &rows).unwrap(), page);
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let said = [0.0, 0.001_234, 0.5, 12.34, 1234.5].map(|value| number(Some(value)));
        assert_eq!(said, ["0", "0.00123", "0.500", "12.3", "1234"]);
    }
}
