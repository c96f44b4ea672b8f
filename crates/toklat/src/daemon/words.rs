//! The words of serde's errors, for people who do not know Rust's types.

/// What serde calls a type, and what belongs there.
const BELONGS: [(&str, &str); 22] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number"),
    ("usize", "a whole number"),
    ("i8", "a whole number from -128 to 127"),
    ("i16", "a whole number from -32768 to 32767"),
    ("i32", "a whole number from -2147483648 to 2147483647"),
    ("i64", "a whole number"),
    ("f32", "a number"),
    ("f64", "a number"),
    ("a nonzero u8", "a whole number from 1 to 255"),
    ("a nonzero u16", "a whole number from 1 to 65535"),
    ("a nonzero u32", "a whole number from 1 to 4294967295"),
    ("a nonzero u64", "a whole number from 1 on"),
    ("a boolean", "true or false"),
    ("a string", "a text in quotes"),
    ("a sequence", "a list"),
    ("a map", "a table of settings"),
    ("a borrowed string", "a text in quotes"),
    ("unit", "nothing"),
    ("string or table", "a word in quotes, or a table of settings"),
];

/// What serde says of a value, in words: `invalid type: string "x", expected u16` becomes `"x" (a
/// text) is given, and a whole number from 0 to 65535 belongs there`. What it says otherwise stays.
#[must_use]
pub fn plain(said: &str) -> String {
    let starts = ["invalid type: ", "invalid value: "];
    let Some((at, start)) =
        starts.iter().filter_map(|start| Some((said.find(start)?, *start))).min()
    else {
        return choices(said);
    };
    let (before, rest) = (&said[..at], &said[at + start.len()..]);
    let Some((given, rest)) = rest.rsplit_once(", expected ") else { return said.to_owned() };
    let (wanted, place) = match rest.find(" at line ") {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let known = BELONGS.iter().find(|(name, _)| *name == wanted).map(|(_, words)| *words);
    let belongs = match known {
        Some(words) => words.to_owned(),
        None if wanted.starts_with("struct ") => "a table of settings".into(),
        None => wanted.replace('`', ""),
    };
    format!("{before}{} is given, and {belongs} belongs there{place}", given_words(given))
}

/// A value as serde names it: `string "x"`, ``integer `3` ``, `map`.
fn given_words(given: &str) -> String {
    let value =
        |kind: &str| given.strip_prefix(kind).map(|value| value.trim_matches('`').to_owned());
    if let Some(text) = value("string ") {
        return format!("{text} (a text)");
    }
    let numbers = ["integer ", "floating point ", "boolean "];
    if let Some(number) = numbers.iter().find_map(|kind| value(kind)) {
        return number;
    }
    match given {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" | "unit" | "unit value" | "Option value" => "nothing".to_owned(),
        other => other.replace('`', ""),
    }
}

/// Choices without serde's words: ``unknown variant `x`, expected one of `a`, `b` `` becomes `x is
/// none of a, b`.
fn choices(said: &str) -> String {
    let Some((before, rest)) = said.split_once("unknown variant `") else {
        return fields(said);
    };
    let Some((given, known)) = rest.split_once('`') else { return said.to_owned() };
    let known = known.strip_prefix(", expected ").unwrap_or(known);
    let known = known.replace("` or `", ", ").replace('`', "");
    let known = known.strip_prefix("one of ").unwrap_or(&known);
    format!("{before}{given} is none of {known}")
}

/// A field that is missing, in words.
fn fields(said: &str) -> String {
    match said.split_once("missing field `") {
        Some((before, rest)) => format!("{before}{}", rest.replacen('`', " is missing", 1)),
        None => said.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Idle {
        Auto,
        Poll,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its errors matter")]
    struct Settings {
        batch: u16,
        #[serde(default)]
        on: bool,
        idle: Option<Idle>,
        list: Option<Vec<String>>,
        nested: Option<Box<Settings>>,
    }

    #[test]
    fn what_serde_says_of_rust_is_said_in_words() {
        for (json, said) in [
            (
                r#"{"batch": "x, expected u8"}"#,
                r#""x, expected u8" (a text) is given, and a whole number from 0 to 65535 belongs there at line 1 column 26"#,
            ),
            (
                r#"{"batch": 70000}"#,
                "70000 is given, and a whole number from 0 to 65535 belongs there at",
            ),
            (
                r#"{"batch": 1.5}"#,
                "1.5 is given, and a whole number from 0 to 65535 belongs there at",
            ),
            (
                r#"{"batch": null}"#,
                "nothing is given, and a whole number from 0 to 65535 belongs there at",
            ),
            (r#"{"batch": 1, "on": 1}"#, "1 is given, and true or false belongs there at"),
            (r#"{"batch": 1, "idle": "never"}"#, "never is none of auto, poll at"),
            (r#"{"batch": 1, "list": {}}"#, "a table is given, and a list belongs there at"),
            (
                r#"{"batch": 1, "nested": 7}"#,
                "7 is given, and a table of settings belongs there at",
            ),
            ("{}", "batch is missing at"),
            ("{", "EOF while parsing"),
        ] {
            let error = serde_json::from_str::<Settings>(json).unwrap_err().to_string();
            assert!(plain(&error).starts_with(said), "{json}: {}", plain(&error));
        }
        let error = toml::from_str::<Settings>("batch = 'x'").unwrap_err();
        let plain = plain(error.message());
        assert_eq!(
            plain,
            "\"x\" (a text) is given, and a whole number from 0 to 65535 belongs there"
        );
    }
}
