//! The words for a port's rules: flags of the command line, settings of topology files and of CNI,
//! what tables and changes show.
//!
//! ```text
//!   --tx-limit 100Mb/s      tx_limit = "100Mb/s"      "port": {"tx_limit": "100Mb/s"}
//!             \                      |                      /
//!              +---------->  a row of RULES  <-------------+
//!                                    |
//!          the field of fabric::Rules, in JSON: {"bandwidth": {"size": ..}}
//! ```
//!
//! A rule is a field of [`Policy`](crate::Policy) and a row of [`RULES`], which says the words for
//! it. Where words cannot say a value, its structured form stands. `docs/adding-a-rule.md`
//! describes how to add a rule.

#[cfg(feature = "clap")]
pub mod flags;
mod said;
mod table;
mod values;

use serde_json::{Map, Value};

pub use self::said::{in_words, settle, shown};
pub use self::table::RULES;

/// What was given for the words of a rule: each word's name, and its values in JSON.
pub type Given = [(&'static str, Vec<Value>)];

/// How often a word stands, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// With a value, once.
    Value,
    /// With a value or, for `on`, without.
    Switch,
    /// With a value, once for each value.
    Each,
    /// With values that commas separate.
    List,
    /// Alone.
    Nothing,
}

/// A word that sets a rule: the flag `--tx-limit`, the setting `tx_limit` of files.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// Its name in files. The flag has `-` in place of `_`.
    pub name: &'static str,
    /// What stands for its value in help texts.
    pub value: &'static str,
    /// Its help text.
    pub help: &'static str,
    /// How often it stands, and with what.
    pub takes: Takes,
    /// A further name of the flag.
    pub alias: Option<&'static str>,
    /// Of a rule's words that have this, only one may be given.
    pub exclusive: bool,
    /// The word that it goes with.
    pub requires: Option<&'static str>,
    /// Reads a value into JSON; null for none.
    read: fn(&str) -> Result<Value, String>,
}

/// A rule of a port, and the words for it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its field in the API and in files.
    pub field: &'static str,
    /// Its words.
    pub words: &'static [Word],
    /// True if tables of ports have a column for it.
    pub column: bool,
    /// Makes the field's value of what was given.
    make: fn(&Given) -> Value,
    /// Says a value in words, with values as files have them; `None` if the value is the word's.
    say: Option<fn(&Value) -> Option<Words>>,
}

/// Words and their values, as files have them.
pub type Words = Vec<(&'static str, Value)>;

impl Word {
    /// A word with a value.
    const fn new(
        name: &'static str,
        value: &'static str,
        read: fn(&str) -> Result<Value, String>,
    ) -> Self {
        let (takes, exclusive) = (Takes::Value, false);
        Self { name, value, help: "", takes, alias: None, exclusive, requires: None, read }
    }

    /// A word for on and off.
    const fn switch(name: &'static str, help: &'static str) -> Self {
        let word = Self::new(name, "on|off", values::on_off);
        Self { takes: Takes::Switch, help, ..word }
    }

    const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    const fn each(self) -> Self {
        Self { takes: Takes::Each, ..self }
    }

    const fn listed(self) -> Self {
        Self { takes: Takes::List, ..self }
    }

    const fn alone(self) -> Self {
        Self { takes: Takes::Nothing, ..self }
    }

    const fn alias(self, alias: &'static str) -> Self {
        Self { alias: Some(alias), ..self }
    }

    const fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }

    const fn with(self, other: &'static str) -> Self {
        Self { requires: Some(other), ..self }
    }

    /// The flag's name, without its dashes.
    #[must_use]
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }
}

impl Rule {
    /// A rule whose last value is the field's, and which is the same in words.
    const fn new(field: &'static str, words: &'static [Word]) -> Self {
        Self { field, words, column: false, make: values::single, say: None }
    }

    const fn made(self, make: fn(&Given) -> Value) -> Self {
        Self { make, ..self }
    }

    const fn said(self, say: fn(&Value) -> Option<Words>) -> Self {
        Self { say: Some(say), ..self }
    }

    const fn column(self) -> Self {
        Self { column: true, ..self }
    }

    /// Says a value in words, perhaps not all of it; `None` if words cannot.
    fn said_about(&self, value: &Value) -> Option<Words> {
        match self.say {
            Some(say) => say(value),
            None => values::say_itself(self.field, value),
        }
    }

    /// The words that mean exactly this value; `None` if its structured form has to stand.
    fn words_for(&self, value: &Value) -> Option<Words> {
        let words = self.said_about(value)?;
        let mut given: Map<String, Value> =
            words.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let made = said::take(self, &mut given).ok().flatten();
        let same = made.map_or_else(|| given.get(self.field) == Some(value), |made| made == *value);
        same.then_some(words)
    }
}

/// The settings that are read at once with this one: the words for the same rule, and its field.
#[must_use]
pub fn together(setting: &str) -> Vec<&'static str> {
    let is_of =
        |rule: &&Rule| rule.field == setting || rule.words.iter().any(|word| word.name == setting);
    let rule = RULES.iter().find(is_of);
    let names =
        |rule: &Rule| [rule.field].into_iter().chain(rule.words.iter().map(|word| word.name));
    rule.into_iter().flat_map(names).collect()
}

#[cfg(test)]
mod tests;
