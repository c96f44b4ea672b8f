//! Rules as people write them, one a line.
//!
//! ```text
//!   [LABEL:] ACTION... [PROTOCOL] [from HOSTS [PORTS]] [to HOSTS [PORTS]] [OPTION...]
//! ```

mod line;
mod near;
mod values;
mod words;
mod write;

use core::fmt;

use crate::rule::{Action, Rule};
pub(crate) use near::nearest;
pub(crate) use values::{flags, hosts, icmp_types, number, port_ranges, ranges, rate, share};
pub(crate) use words::{Word, Words};

/// The longest line, in bytes.
const LINE: usize = 4096;

/// Why a line is no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The line, from 1.
    pub line: usize,
    /// The word that is wrong; empty if one is missing at the end.
    pub word: String,
    /// Where the word begins in its line, in characters from 1.
    pub column: usize,
    /// What is wrong with it.
    pub problem: Problem,
    /// The word that was probably meant.
    pub near: Option<&'static str>,
}

/// What is wrong with a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Something else is expected here.
    Expected(&'static str),
    /// A value is out of range, or contradicts another word.
    Invalid(&'static str),
    /// The word may appear once.
    Twice,
    /// The line is too long.
    Long,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, word, column, problem, near } = self;
        write!(f, "line {line}, column {column}: ")?;
        match (problem, word.is_empty()) {
            (Problem::Expected(what), true) => write!(f, "the line ends where {what} is expected")?,
            (Problem::Expected(what), false) => write!(f, "`{word}` is not {what}")?,
            (Problem::Invalid(why), _) => write!(f, "`{word}`: {why}")?,
            (Problem::Twice, _) => write!(f, "`{word}` stands twice")?,
            (Problem::Long, _) => write!(f, "a rule has at most {LINE} bytes")?,
        }
        near.map_or(Ok(()), |near| write!(f, "; did you mean `{near}`?"))
    }
}

impl std::error::Error for TextError {}

/// Reads one rule, which stands on line `number`.
///
/// # Errors
/// Names the word that is wrong.
pub fn parse_line(text: &str, number: usize) -> Result<Rule, TextError> {
    if text.len() > LINE {
        let (word, problem) = (String::new(), Problem::Long);
        return Err(TextError { line: number, word, column: 1, problem, near: None });
    }
    line::Line::new(text, number)?.rule()
}

/// Reads the rules of a group, one a line. Empty lines and comments are left out. Labels that
/// `skipto` names must follow it.
///
/// # Errors
/// Names the line and the word that are wrong.
pub fn parse_lines<'t>(lines: impl IntoIterator<Item = &'t str>) -> Result<Vec<Rule>, TextError> {
    let mut rules = Vec::new();
    for (text, number) in lines.into_iter().zip(1..) {
        let bare = text.trim_start();
        if !bare.is_empty() && !bare.starts_with('#') {
            rules.push(parse_line(text, number)?);
        }
    }
    check_labels(&rules)?;
    Ok(rules)
}

fn check_labels(rules: &[Rule]) -> Result<(), TextError> {
    for (at, rule) in rules.iter().enumerate() {
        let wrong = |word: &String, problem| {
            Err(TextError { line: rule.line, word: word.clone(), column: 1, problem, near: None })
        };
        if let Action::Skip(label) = &rule.action
            && !rules[at + 1..].iter().any(|later| later.label.as_ref() == Some(label))
        {
            return wrong(label, Problem::Invalid("no later rule of the group has this label"));
        }
        if let Some(label) = &rule.label
            && rules[..at].iter().any(|earlier| earlier.label.as_ref() == Some(label))
        {
            return wrong(label, Problem::Invalid("another rule of the group has this label"));
        }
    }
    Ok(())
}
