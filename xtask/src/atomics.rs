//! `docs/atomics.md`, from the documentation of the atomics themselves.
//!
//! A field's documentation may have sections `# Protocol: NAME`, each a list of who writes and
//! reads it, in which order, with which partner, what breaks without that, and what shows it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::tool;

const PAGE: &str = "docs/atomics.md";
const HEADING: &str = "# Protocol: ";
const INTRODUCTION: &str = "# Atomics

Every hand-over has the same shape: *publish; full fence; look at the peer's wake flag* on the side that makes work, and
*arm; full fence; look for work again; sleep* on the side that waits (`shmem::wake`).

`cargo xtask atomics` makes this page from the documentation of the fields; `cargo xtask check` compares them.
";

/// Writes the page.
pub fn write() -> Result<()> {
    let page = tool::root().join(PAGE);
    fs::write(&page, generate()?).with_context(|| format!("Cannot write {}", page.display()))
}

/// Fails if the page is not what the fields say.
pub fn check() -> Result<()> {
    let there = fs::read_to_string(tool::root().join(PAGE)).unwrap_or_default();
    if there != generate()? {
        bail!("{PAGE} is not what the fields' documentation says: cargo xtask atomics");
    }
    Ok(())
}

fn generate() -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    let mut crates: Vec<_> = fs::read_dir(tool::root().join("crates"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    crates.sort();
    for krate in crates {
        let mut sections = String::new();
        for file in tool::rust_files(&krate.join("src"))? {
            let text = fs::read_to_string(&file)?;
            let name = file.strip_prefix(tool::root()).unwrap_or(&file);
            protocols(&text, name, &mut sections);
        }
        if !sections.is_empty() {
            let name = krate.file_name().unwrap_or_default().to_string_lossy();
            let _ = write!(page, "\n## {name}\n{sections}");
        }
    }
    Ok(page)
}

/// Appends the protocols of a file.
fn protocols(text: &str, file: &Path, page: &mut String) {
    let (mut of, mut pending) = ("", Vec::<String>::new());
    for line in text.lines() {
        let code = line.trim();
        if let Some(doc) = code.strip_prefix("///") {
            let doc = doc.strip_prefix(' ').unwrap_or(doc);
            if let Some(name) = doc.strip_prefix(HEADING) {
                pending.push(format!("\n### {name}\n"));
            } else if let Some(section) = pending.last_mut() {
                match doc.strip_prefix("  ") {
                    Some(more) => *section += &format!(" {more}"),
                    None if doc.is_empty() => {}
                    None => *section += &format!("\n{doc}"),
                }
            }
            continue;
        }
        if let Some((_, name)) = code.split_once("struct ") {
            of = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or(name);
        }
        if !pending.is_empty() && !code.starts_with('#') {
            let field = code.trim_start_matches("pub ").split(':').next().unwrap_or(code);
            let field = field.rsplit(' ').next().unwrap_or(field);
            let place = match code.contains("struct ") {
                true => format!("`{of}` in `{}`", file.display()),
                false => format!("`{of}::{field}` in `{}`", file.display()),
            };
            for section in pending.drain(..) {
                let _ = writeln!(page, "{section}\n- Where: {place}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fields_protocols_become_sections() {
        let text = "pub struct Ring {\n    /// The cursor.\n    ///\n    /// # Protocol: `Ring.head`\n    \
                    /// - Writer: the client, which\n    ///   owns it\n    /// - Reader: the worker\n    \
                    #[cfg(all())]\n    pub(crate) head: Cursor,\n    tail: Cursor,\n}\n";
        let mut page = String::new();
        protocols(text, Path::new("crates/x/src/lib.rs"), &mut page);
        assert_eq!(
            page,
            "\n### `Ring.head`\n\n- Writer: the client, which owns it\n- Reader: the worker\n\
             - Where: `Ring::head` in `crates/x/src/lib.rs`\n"
        );
    }
}
