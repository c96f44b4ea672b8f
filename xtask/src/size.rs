//! A report of long files and functions. It names them; people decide.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::tool::{command, root};

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 50;

pub fn report() -> Result<()> {
    let listed = command("git", &["ls-files", "*.rs"]).output().context("git ls-files")?;
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut lengths = Vec::new();
    for name in names.lines().map(PathBuf::from) {
        let Ok(text) = std::fs::read_to_string(root().join(&name)) else { continue };
        let lines = text.lines().take_while(|l| !is_test_module(l)).count();
        if lines > FILE_LINES {
            println!("long file: {} ({lines} lines without tests)", name.display());
        }
        functions(&name, &text, &mut lengths);
    }
    lengths.sort_unstable();
    let at = |percent: usize| lengths.get(lengths.len() * percent / 100).copied().unwrap_or(0);
    println!("functions: {}, median {} lines, p90 {}", lengths.len(), at(50), at(90));
    Ok(())
}

fn is_test_module(line: &str) -> bool {
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test")
}

/// Measures functions by indentation, which rustfmt guarantees, and names the long ones.
fn functions(name: &Path, text: &str, lengths: &mut Vec<usize>) {
    let mut open: Option<(usize, usize, &str)> = None;
    for (at, line) in text.lines().enumerate().take_while(|(_, l)| !is_test_module(l)) {
        let indent = line.len() - line.trim_start().len();
        match open {
            None if starts_function(line) => open = Some((at, indent, line.trim())),
            Some((start, depth, what)) if indent == depth && line.trim_start().starts_with('}') => {
                let lines = at - start + 1;
                lengths.push(lines);
                if lines > FUNCTION_LINES {
                    println!(
                        "long function: {}:{} ({lines} lines) {what}",
                        name.display(),
                        start + 1
                    );
                }
                open = None;
            }
            _ => {}
        }
    }
}

fn starts_function(line: &str) -> bool {
    let line = line.trim_start();
    let body = !line.ends_with('}') && !line.ends_with(';') && !line.starts_with("//");
    body && (line.starts_with("fn ") || line.contains(" fn ")) && line.contains('(')
}
