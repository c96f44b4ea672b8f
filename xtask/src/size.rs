//! Long files and functions: a file that is too long fails, and so do too many long functions.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::tool::{command, root};

const FILE_LINES: usize = 600;
/// The limit that 99 of 100 functions of programs and libraries keep. A test may be longer.
const FUNCTION_LINES: usize = 40;
/// Functions that are longer are named.
const NAMED_LINES: usize = 50;
/// Files that are one table each, or generated.
const TABLES: &[&str] = &[
    "crates/evpn/src/gobgp.rs",
    "crates/evpn/tests/fake/gobgp.rs",
    "crates/nic/src/e1000/table.rs",
];

/// Measures all of them, and names what is too long.
pub fn check() -> Result<()> {
    let kinds = ["ls-files", "*.rs", "*.c", "*.h", "*.py", "*.sh"];
    let listed = command("git", &kinds).output().context("git ls-files")?;
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let (mut lengths, mut long) = (Vec::new(), Vec::new());
    for name in names.lines().map(PathBuf::from) {
        let Ok(text) = std::fs::read_to_string(root().join(&name)) else { continue };
        let lines = text.lines().take_while(|l| !is_test_module(l)).count();
        if lines > most_lines(&name) {
            long.push(format!("{} has {lines} lines without tests", name.display()));
        }
        if name.extension().is_some_and(|end| end == "rs") && is_program(&name) {
            functions(&name, &text, &mut lengths);
        }
    }
    lengths.sort_unstable();
    let at = |percent: usize| lengths.get(lengths.len() * percent / 100).copied().unwrap_or(0);
    let [median, p90, p99] = [50, 90, 99].map(at);
    println!("functions: {}, median {median} lines, p90 {p90}, p99 {p99}", lengths.len());
    if p99 > FUNCTION_LINES {
        long.push(format!(
            "of 100 functions, one has more than {p99} lines; {FUNCTION_LINES} are enough"
        ));
    }
    if long.is_empty() { Ok(()) } else { bail!("{}", long.join("\n")) }
}

/// How long a file may be.
fn most_lines(name: &Path) -> usize {
    let is_table = TABLES.iter().any(|table| name == Path::new(table));
    if is_table { usize::MAX } else { FILE_LINES }
}

/// Whether a file belongs to a program or a library, not to a test.
fn is_program(name: &Path) -> bool {
    let of_tests = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs" || part == "fuzz";
    !name.iter().any(of_tests)
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
                if lines > NAMED_LINES {
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
