//! A line as words: whatever stands between blanks, or between quotes.

use super::{Problem, TextError};

/// A word and its place.
#[derive(Clone, Debug)]
pub(crate) struct Word<'t> {
    pub text: &'t str,
    /// In characters, from 1.
    pub column: usize,
    pub quoted: bool,
}

/// The words of a line, of which some are read.
#[derive(Clone, Debug)]
pub(crate) struct Words<'t> {
    words: Vec<Word<'t>>,
    next: usize,
    /// Where the line ends.
    end: usize,
    pub line: usize,
}

impl<'t> Words<'t> {
    pub fn of(text: &'t str, line: usize) -> Result<Self, TextError> {
        let mut words = Vec::new();
        let mut rest = text;
        let column = |rest: &str| text[..text.len() - rest.len()].chars().count() + 1;
        loop {
            rest = rest.trim_start();
            let Some(first) = rest.chars().next().filter(|first| *first != '#') else { break };
            let at = column(rest);
            if first == '"' {
                let Some((inside, after)) = rest[1..].split_once('"') else {
                    let problem = Problem::Invalid("the quotes do not end");
                    return Err(TextError {
                        line,
                        word: rest.into(),
                        column: at,
                        problem,
                        near: None,
                    });
                };
                words.push(Word { text: inside, column: at + 1, quoted: true });
                rest = after;
                continue;
            }
            let end = rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len());
            words.push(Word { text: &rest[..end], column: at, quoted: false });
            rest = &rest[end..];
        }
        Ok(Self { words, next: 0, end: text.trim_end().chars().count() + 1, line })
    }

    /// The next word, which stays the next one.
    pub fn peek(&self) -> Option<&Word<'t>> {
        self.words.get(self.next)
    }

    pub fn take(&mut self) -> Option<Word<'t>> {
        let word = self.words.get(self.next).cloned();
        self.next += usize::from(word.is_some());
        word
    }

    /// Takes the next word if it is this one.
    pub fn accept(&mut self, text: &str) -> bool {
        let is = self.peek().is_some_and(|word| !word.quoted && word.text == text);
        self.next += usize::from(is);
        is
    }

    /// The next word, which must be there.
    pub fn need(&mut self, what: &'static str) -> Result<Word<'t>, TextError> {
        self.take().ok_or_else(|| TextError {
            line: self.line,
            word: String::new(),
            column: self.end,
            problem: Problem::Expected(what),
            near: None,
        })
    }

    pub fn error(&self, word: &Word<'_>, problem: Problem) -> TextError {
        let (line, column) = (self.line, word.column);
        TextError { line, word: word.text.into(), column, problem, near: None }
    }

    /// An error with the near one of `known`.
    pub fn unknown(
        &self,
        word: &Word<'_>,
        what: &'static str,
        known: &[&'static str],
    ) -> TextError {
        let near = super::nearest(word.text, known);
        TextError { near, ..self.error(word, Problem::Expected(what)) }
    }
}
