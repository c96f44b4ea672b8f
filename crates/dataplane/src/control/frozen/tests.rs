//! Version 7 as it was: each message of it is in `version_7.json`, as that version sends it.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::*;
use crate::control::{Answer, Command};

const MESSAGES: &str = include_str!("../version_7.json");

/// What a supervisor sends to a data process of another version.
const ASKED: [&str; 3] = ["hello", "list_ports", "stop"];
/// What it understands from there.
const ANSWERED: [&str; 6] = ["hello", "port", "keep", "forget", "done", "failed"];

/// All commands, or answers, with the word that names each.
fn messages(of: &str, tag: &str) -> Vec<(String, Value)> {
    let all: Value = serde_json::from_str(MESSAGES).unwrap();
    let all = all[of].as_array().unwrap().clone();
    all.into_iter().map(|message| (message[tag].as_str().unwrap().to_owned(), message)).collect()
}

/// The message as today's code understands it, said again.
fn again<T: DeserializeOwned + Serialize>(message: &Value) -> Value {
    let read = serde_json::from_value::<T>(message.clone());
    serde_json::to_value(read.unwrap_or_else(|error| panic!("{error}: {message}"))).unwrap()
}

/// True if `now` says all that `then` said. Fields may have been added.
fn says_as_much(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            then.iter().all(|(key, then)| now.get(key).is_some_and(|now| says_as_much(now, then)))
        }
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len()
                && now.iter().zip(then).all(|(now, then)| says_as_much(now, then))
        }
        _ => now == then,
    }
}

/// What is asked of version 7 is said as version 7 reads it, to the letter.
#[test]
fn what_a_data_process_of_version_7_is_asked_is_as_it_was() {
    let commands = messages("commands", "command");
    for word in ASKED {
        let (_, then) = commands.iter().find(|(name, _)| name == word).unwrap();
        assert_eq!(again::<Command>(then), *then);
    }
}

/// What version 7 answers is understood, and nothing of it is lost.
#[test]
fn what_a_data_process_of_version_7_answers_is_understood() {
    for (word, then) in messages("answers", "answer") {
        if ANSWERED.contains(&&*word) {
            let now = again::<Answer>(&then);
            assert!(says_as_much(&now, &then), "{then} became {now}");
        }
    }
    let (_, hello) = &messages("answers", "answer")[0];
    let greeting: Greeting = serde_json::from_value(hello.clone()).unwrap();
    assert_eq!((greeting.version, &*greeting.switch), (7, "vale0"));
    assert!(is_taken_over(greeting.version));
}

/// Nothing else has changed so far, either: a message that does has its own test of why it may.
#[test]
fn all_messages_of_version_7_are_still_read() {
    let words =
        |of, tag| messages(of, tag).into_iter().map(|(word, _)| word).collect::<BTreeSet<_>>();
    for (_, then) in messages("commands", "command") {
        let now = again::<Command>(&then);
        assert!(says_as_much(&now, &then), "{then} became {now}");
    }
    for (_, then) in messages("answers", "answer") {
        let now = again::<Answer>(&then);
        assert!(says_as_much(&now, &then), "{then} became {now}");
    }
    assert_eq!((words("commands", "command").len(), words("answers", "answer").len()), (19, 9));
}

#[test]
fn a_greeting_of_an_unknown_version_says_which_and_is_not_taken_over() {
    let text = r#"{"answer":"hello","version":99,"switch":"v","walls":["new"],"more":{"a":1}}"#;
    let greeting: Greeting = serde_json::from_str(text).unwrap();
    assert_eq!((greeting.version, &*greeting.switch), (99, "v"));
    for (version, taken) in [(6, false), (7, true), (VERSION, true), (VERSION + 1, false)] {
        assert_eq!(is_taken_over(version), taken, "{version}");
    }
    let other = r#"{"answer":"done","version":7,"switch":"v"}"#;
    serde_json::from_str::<Greeting>(other).unwrap_err();
}
