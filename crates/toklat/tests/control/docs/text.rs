//! The commands in a document: the lines of its indented and fenced blocks.

/// A command as it stands in a document: a line of an indented block, with the lines that continue
/// it, or a fenced block.
#[derive(Clone, Debug)]
pub struct Command {
    /// The number of its first line.
    pub line: usize,
    /// What stands there, without indentation, fence and prompt.
    pub text: String,
    /// The number of its block. Blank lines end an indented block.
    pub block: usize,
}

/// Returns all commands of a document, and whatever else is in its blocks.
pub fn commands(document: &str) -> Vec<Command> {
    let mut all: Vec<Command> = Vec::new();
    let (mut fenced, mut block, mut after_blank) = (false, 0, true);
    for (line, text) in (1..).zip(document.lines()) {
        if text.starts_with("```") {
            fenced = !fenced;
            block += 1;
            if fenced {
                all.push(Command { line: line + 1, text: String::new(), block });
            }
        } else if fenced {
            all.last_mut().unwrap().text += &format!("{text}\n");
        } else if let Some(text) = text.strip_prefix("    ") {
            match all.last_mut().filter(|last| last.block == block && !after_blank) {
                Some(last) if last.text.ends_with('\\') => last.text += &format!("\n{text}"),
                Some(_) => all.push(command(line, text, block)),
                // An indented line that goes on with a paragraph is no block.
                None if after_blank => {
                    block += 1;
                    all.push(command(line, text, block));
                }
                None => {}
            }
            after_blank = false;
        } else {
            after_blank = text.trim().is_empty();
            block += usize::from(!after_blank);
        }
    }
    all
}

fn command(line: usize, text: &str, block: usize) -> Command {
    Command { line, text: text.strip_prefix("$ ").unwrap_or(text).to_owned(), block }
}

/// Returns what stands between backticks in a document's text, outside of its blocks.
pub fn spans(document: &str) -> Vec<Command> {
    let (mut all, mut line, mut fenced) = (Vec::new(), 1, false);
    for paragraph in document.split("\n\n") {
        let starts_or_ends =
            paragraph.lines().filter(|line| line.starts_with("```")).count() % 2 == 1;
        if !fenced && !starts_or_ends && !paragraph.starts_with("    ") {
            let mut at = line;
            for (part, text) in paragraph.split('`').enumerate() {
                if part % 2 == 1 {
                    all.push(command(at, &text.replace('\n', " "), at));
                }
                at += text.matches('\n').count();
            }
        }
        fenced ^= starts_or_ends;
        line += paragraph.matches('\n').count() + 2;
    }
    all
}

/// Returns the commands in a document's text: the spans that begin with one of these programs.
pub fn inline(document: &str, programs: &[&str]) -> Vec<Command> {
    let begins = |span: &Command| {
        span.text.split_once(' ').is_some_and(|(program, _)| programs.contains(&program))
    };
    spans(document).into_iter().filter(begins).collect()
}

#[test]
fn blocks_are_told_from_text() {
    let document =
        "Text:\n\n    $ a 1 \\\n        2\n    b\n\n    c\n\ngoes\n    on\n\n```sh\nd\ne\n```\n";
    let found = commands(document);
    let found: Vec<_> = found.iter().map(|c| (c.line, c.text.as_str(), c.block)).collect();
    let [a, b, c, d] = found[..] else { panic!("{found:?}") };
    assert_eq!((a.0, a.1, b.0, b.1), (3, "a 1 \\\n    2", 5, "b"));
    assert_eq!((c.0, c.1, d.0, d.1), (7, "c", 13, "d\ne\n"));
    assert!(a.2 == b.2 && b.2 != c.2 && c.2 != d.2);
    let spans = inline("a\n\n```\n`b` c\n\nd\n```\n\nSee `x y`, `z`\nand `z\n1`.", &["z"]);
    assert!(
        spans.len() == 1 && (spans[0].line, spans[0].text.as_str()) == (10, "z 1"),
        "{spans:?}"
    );
}
