//! Refuses lists in place of tables.
//!
//! serde accepts a list for a struct, with the fields in their order. That is never intended: `[]`
//! would be a topology without switches.

use serde::Serialize;
use serde_json::Value;
use topology::schema::tables;

use crate::api::{ApiError, ErrorCode};

/// Compares the input with what was parsed from it.
///
/// # Errors
/// Names the first list where a table belongs.
pub fn check(given: &Value, understood: &impl Serialize) -> Result<(), ApiError> {
    let understood = serde_json::to_value(understood).unwrap_or_default();
    match list_for_table(given, &understood, String::new()) {
        None => Ok(()),
        Some(place) => {
            let what = if place.is_empty() { "All of it".to_owned() } else { place };
            let reason = format!("{what} is a list, and a table (a JSON object) belongs there");
            Err(ApiError::new(ErrorCode::BadRequest, reason, "name each setting"))
        }
    }
}

fn list_for_table(given: &Value, understood: &Value, place: String) -> Option<String> {
    match (given, understood) {
        (Value::Array(_), Value::Object(_)) => Some(place),
        (Value::Object(given), Value::Object(understood)) => {
            given.iter().find_map(|(key, given)| {
                let dot = if place.is_empty() { "" } else { "." };
                let place = format!("{place}{dot}{key}");
                match understood.get(key) {
                    Some(understood) => list_for_table(given, understood, place),
                    // Tables are not written while all of their values are the default.
                    None => (given.is_array() && tables().contains(key)).then_some(place),
                }
            })
        }
        (Value::Array(given), Value::Array(understood)) => {
            given.iter().zip(understood).enumerate().find_map(|(at, (given, understood))| {
                list_for_table(given, understood, format!("{place}[{at}]"))
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Topology;
    use serde_json::json;

    #[test]
    fn a_list_is_no_table_anywhere() {
        let port = json!({"switch": {"v": {"port": {"p": []}}}});
        assert!(serde_json::from_value::<Topology>(port).is_err());
        let quota = json!({"quota": [], "switch": {}});
        assert!(serde_json::from_value::<Topology>(quota).is_err());
        for (given, place) in [
            (json!([]), "All of it"),
            (json!({"switch": {"v": {"workers": [[]]}}}), "switch.v.workers[0]"),
            (
                json!({"switch": {"v": {"port": {"p": {"interrupts": []}}}}}),
                "switch.v.port.p.interrupts",
            ),
        ] {
            let topology: Topology = serde_json::from_value(given.clone()).unwrap();
            let error = check(&given, &topology).unwrap_err();
            assert!(error.reason.starts_with(place), "{given}: {error}");
        }
        let good =
            json!({"switch": {"v": {"workers": [{"cpu": null}], "port": {"p": {"macs": []}}}}});
        check(&good, &serde_json::from_value::<Topology>(good.clone()).unwrap()).unwrap();
    }
}
