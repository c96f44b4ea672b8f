//! The changes that `toklat apply` made, step by step.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One step of an [`Applied`](super::Applied).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Change {
    /// What was done.
    pub action: Action,
    /// The object that changed: `vale0`, `vale0:p1`, `[guest.web]`, `quota` or `[evpn]`.
    pub name: String,
    /// The settings that differ, if the object is changed or replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<Setting>,
    /// Whose traffic the change interrupts, in words; `None` if it interrupts none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts: Option<String>,
}

/// A setting that is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Setting {
    /// Its place: `workers`, `policy.mtu`.
    pub name: String,
    /// The old value; null if there was none.
    pub old: Value,
    /// The new value; null if the setting is removed.
    pub new: Value,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |value: &Value| match value {
            Value::Null => "none".to_owned(),
            value => value.to_string(),
        };
        write!(f, "{}: {} -> {}", self.name, word(&self.old), word(&self.new))
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is new.
    Added,
    /// The object's settings were changed while it ran.
    Changed,
    /// The object was removed and added again, because these settings cannot change while it runs.
    Replaced,
    /// It is gone.
    Removed,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Replaced => "replaced",
            Self::Removed => "removed",
        })
    }
}

impl Change {
    /// Makes a change without settings that interrupts no traffic.
    #[must_use]
    pub fn new(action: Action, name: &str) -> Self {
        Self { action, name: name.to_owned(), settings: Vec::new(), interrupts: None }
    }

    /// Says whose traffic it interrupts.
    #[must_use]
    pub fn interrupting(self, interrupts: Option<String>) -> Self {
        Self { interrupts, ..self }
    }

    /// Notes which settings differ.
    #[must_use]
    pub fn with(mut self, old: &impl Serialize, new: &impl Serialize) -> Self {
        let value = |of: Result<Value, _>| of.unwrap_or_default();
        differ(
            "",
            &value(serde_json::to_value(old)),
            &value(serde_json::to_value(new)),
            &mut self.settings,
        );
        self
    }
}

/// Lists the settings in which two objects differ, by their paths.
fn differ(path: &str, old: &Value, new: &Value, settings: &mut Vec<Setting>) {
    match (old, new) {
        (Value::Object(from), Value::Object(to)) => {
            let keys: BTreeSet<_> = from.keys().chain(to.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |object: &serde_json::Map<_, _>| object.get(key).cloned();
                let (from, to) = (of(from).unwrap_or_default(), of(to).unwrap_or_default());
                differ(&path, &from, &to, settings);
            }
        }
        (old, new) if old == new => {}
        _ => {
            settings.push(Setting { name: path.to_owned(), old: old.clone(), new: new.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_that_differ_are_named_by_their_paths() {
        let (old, new) =
            (json!({"a": 1, "b": {"c": [1], "d": 2}}), json!({"a": 1, "b": {"c": [2], "e": 3}}));
        let change = Change::new(Action::Changed, "v").with(&old, &new);
        let said: Vec<_> = change.settings.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["b.c: [1] -> [2]", "b.d: 2 -> none", "b.e: none -> 3"]);
    }
}
