//! Settings of a port in words, and back.

use serde_json::{Map, Value};

use super::{RULES, Rule, Takes, Word, Words};

/// Replaces words among a port's settings by the fields that they mean. Other settings stay.
///
/// # Errors
/// Names a word with an invalid value, or two that contradict each other.
pub fn settle(settings: &mut Map<String, Value>) -> Result<(), String> {
    for rule in RULES {
        if let Some(value) = take(rule, settings)? {
            settings.insert(rule.field.to_owned(), value);
        }
    }
    Ok(())
}

/// Takes a rule's words out of the settings, and returns the field's value that they mean.
pub(super) fn take(
    rule: &Rule,
    settings: &mut Map<String, Value>,
) -> Result<Option<Value>, String> {
    let mut given = Vec::new();
    for word in rule.words {
        if let Some(values) = values_of(rule, word, settings)? {
            given.push((word.name, values));
        }
    }
    let Some((first, _)) = given.first() else { return Ok(None) };
    if settings.contains_key(rule.field) {
        return Err(format!("{first}: say it or {}, not both", rule.field));
    }
    agree(rule, &given.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
    Ok(Some((rule.make)(&given)))
}

/// Checks that words may stand together.
pub(super) fn agree(rule: &Rule, given: &[&'static str]) -> Result<(), String> {
    let words = || rule.words.iter().filter(|word| given.contains(&word.name));
    let mut exclusive = words().filter(|word| word.exclusive);
    if let (Some(one), Some(other)) = (exclusive.next(), exclusive.next()) {
        return Err(format!("{}: say it or {}, not both", other.name, one.name));
    }
    let alone = |word: &&Word| word.requires.is_some_and(|other| !given.contains(&other));
    match words().find(alone) {
        Some(word) => {
            Err(format!("{}: it goes with {}", word.name, word.requires.unwrap_or_default()))
        }
        None => Ok(()),
    }
}

/// Takes a word's values out of the settings; `None` if it is not there, or if the field of the
/// same name is there in its own form.
fn values_of(
    rule: &Rule,
    word: &Word,
    settings: &mut Map<String, Value>,
) -> Result<Option<Vec<Value>>, String> {
    let is_word = |value: &&Value| word.name != rule.field || value.is_string();
    let Some(value) = settings.get(word.name).filter(is_word).cloned() else { return Ok(None) };
    settings.remove(word.name);
    if word.takes == Takes::Nothing && value == Value::Bool(false) {
        return Ok(None);
    }
    let named = |why: String| format!("{}: {why}", word.name);
    let texts = texts(word, &value).map_err(named)?;
    let values: Result<Vec<Value>, String> = texts.iter().map(|text| (word.read)(text)).collect();
    values.map(Some).map_err(named)
}

/// Most characters of a word's value: the longest are lists of VLANs.
const LONGEST: usize = 32 << 10;

/// The texts of a value in a file.
fn texts(word: &Word, value: &Value) -> Result<Vec<String>, String> {
    match (value, word.takes) {
        (Value::String(text), _) if text.len() > LONGEST => {
            Err(format!("its value has more than {LONGEST} characters"))
        }
        (Value::String(text), Takes::List) => Ok(text.split(',').map(str::to_owned).collect()),
        (Value::String(text), _) => Ok(vec![text.clone()]),
        (Value::Number(number), _) => Ok(vec![number.to_string()]),
        (Value::Bool(on), _) => Ok(vec![if *on { "on" } else { "off" }.to_owned()]),
        (Value::Array(values), Takes::Each | Takes::List) => values
            .iter()
            .map(|value| texts(word, value))
            .collect::<Result<Vec<_>, _>>()
            .map(|texts| texts.into_iter().flatten().collect()),
        _ => Err(format!("{value} is not a text such as {:?}", word.value)),
    }
}

/// A port's settings with words where they say the same, in the order of rules; what is not a rule
/// comes first.
#[must_use]
pub fn in_words(mut settings: Map<String, Value>) -> Vec<(String, Value)> {
    let mut rules = Vec::new();
    for rule in RULES {
        let Some(value) = settings.remove(rule.field) else { continue };
        match rule.words_for(&value) {
            Some(words) => rules.extend(words.into_iter().map(|(name, v)| (name.to_owned(), v))),
            None => rules.push((rule.field.to_owned(), value)),
        }
    }
    let mut all: Vec<_> = settings.into_iter().chain(rules).collect();
    all.retain(|(_, value)| !value.is_null());
    all.iter_mut().for_each(|(_, value)| without_null(value));
    all
}

/// Leaves out what is null in tables: files have no word for it.
fn without_null(value: &mut Value) {
    if let Value::Object(table) = value {
        table.retain(|_, value| !value.is_null());
        table.values_mut().for_each(without_null);
    }
}

/// The rules in which settings differ from `usual` ones, as the command line says them:
/// `lossless`, `tx-limit 100Mb/s`. Those that tables have columns for are left out.
#[must_use]
pub fn shown(settings: &Map<String, Value>, usual: &Map<String, Value>) -> Vec<String> {
    let differs = |rule: &&Rule| settings.get(rule.field) != usual.get(rule.field);
    let rules = RULES.iter().filter(|rule| !rule.column).filter(differs);
    let words = rules.flat_map(|rule| {
        let value = settings.get(rule.field).cloned().unwrap_or_default();
        rule.said_about(&value).unwrap_or_else(|| without_words(rule, value))
    });
    words.map(|(name, value)| flag(name, &value)).collect()
}

/// What stands for a rule whose value no word says: its first word's name, with the value.
fn without_words(rule: &Rule, value: Value) -> Words {
    let name = rule.words.first().map_or(rule.field, |word| word.name);
    vec![(name, value)]
}

/// A word as on the command line, without dashes. Of several values, the first stands for all.
fn flag(name: &str, value: &Value) -> String {
    let name = name.replace('_', "-");
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Bool(true) => name,
        Value::Bool(false) => format!("{name} off"),
        Value::Null => format!("{name} none"),
        Value::Array(values) => match values.as_slice() {
            [] => format!("{name} none"),
            [one] => format!("{name} {}", plain(one)),
            [first, rest @ ..] => format!("{name} {} and {} more", plain(first), rest.len()),
        },
        value => format!("{name} {}", plain(value)),
    }
}
