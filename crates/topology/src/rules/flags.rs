//! The flags for a port's rules, made from the rows of [`RULES`].

use std::collections::BTreeMap;
use std::sync::LazyLock;

use clap::builder::ValueParser;
use clap::error::{Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value};

use super::{RULES, Rule, Takes, Word};

/// A port's rules, its worker and its owner, from the command line. Only what was given is changed,
/// so that one list of flags serves `port add` and `port set`.
#[derive(Clone, Debug, Default)]
pub struct RuleOptions {
    patch: Map<String, Value>,
}

impl RuleOptions {
    /// The rules that were given, as JSON for the API.
    #[must_use]
    pub fn patch(&self) -> Map<String, Value> {
        self.patch.clone()
    }
}

/// The name of a word's flag. clap keeps names as long as the program runs: they are made once.
fn flag(word: &Word) -> &'static str {
    static FLAGS: LazyLock<BTreeMap<&'static str, &'static str>> = LazyLock::new(|| {
        let words = RULES.iter().flat_map(|rule| rule.words);
        words.map(|word| (word.name, &*word.flag().leak())).collect()
    });
    FLAGS.get(word.name).copied().unwrap_or(word.name)
}

/// A word's flag.
fn arg(rule: &Rule, word: &'static Word) -> Arg {
    let arg = Arg::new(word.name).long(flag(word)).help(word.help).help_heading("Rules");
    let read = word.read;
    let parser = ValueParser::from(move |text: &str| read(text).map(|_| text.to_owned()));
    let arg = match word.takes {
        Takes::Nothing => return exclusive(rule, word, arg.action(ArgAction::SetTrue)),
        Takes::Value => arg,
        Takes::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("on"),
        Takes::Each => arg.action(ArgAction::Append),
        Takes::List => arg.action(ArgAction::Append).value_delimiter(','),
    };
    let arg = arg.value_name(word.value).value_parser(parser);
    let arg = match word.alias {
        Some(alias) => arg.visible_alias(alias),
        None => arg,
    };
    exclusive(rule, word, arg)
}

fn exclusive(rule: &Rule, word: &'static Word, arg: Arg) -> Arg {
    let arg = if word.exclusive { arg.group(rule.field) } else { arg };
    match word.requires {
        Some(other) => arg.requires(other),
        None => arg,
    }
}

/// The values that were given for a word.
fn given(word: &Word, matches: &ArgMatches) -> Option<Vec<Value>> {
    (matches.value_source(word.name) == Some(ValueSource::CommandLine)).then_some(())?;
    if word.takes == Takes::Nothing {
        return Some(vec![true.into()]);
    }
    let texts = matches.get_many::<String>(word.name).into_iter().flatten();
    // The parser has read them once.
    Some(texts.filter_map(|text| (word.read)(text).ok()).collect())
}

impl Args for RuleOptions {
    fn augment_args(to: Command) -> Command {
        let words =
            RULES.iter().flat_map(|rule| rule.words.iter().map(move |word| arg(rule, word)));
        to.args(words)
    }

    fn augment_args_for_update(to: Command) -> Command {
        Self::augment_args(to)
    }
}

impl FromArgMatches for RuleOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut patch = Map::new();
        for rule in RULES {
            let words = rule.words.iter();
            let words: Vec<_> =
                words.filter_map(|word| Some((word.name, given(word, matches)?))).collect();
            if words.is_empty() {
                continue;
            }
            super::said::agree(rule, &words.iter().map(|(name, _)| *name).collect::<Vec<_>>())
                .map_err(|why| Error::raw(ErrorKind::ArgumentConflict, why))?;
            patch.insert(rule.field.to_owned(), (rule.make)(&words));
        }
        // Without the guard, its addresses have no meaning.
        if patch.get("guard") == Some(&Value::Bool(false)) {
            patch.entry("ips").or_insert_with(|| Value::Array(Vec::new()));
        }
        Ok(Self { patch })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
