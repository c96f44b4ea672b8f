//! JSON schemas, derived from the types.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use abi::nic::NAMES;
pub use schemars::generate::Contract;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::rules::{RULES, Takes};
use crate::{Limit, NicModel, PortKind};

/// A generator of schemas that refer to each other at `place`, as in `#/components/schemas`.
/// [`definitions`] takes them out.
#[must_use]
pub fn generator(place: &str, contract: Contract) -> SchemaGenerator {
    let place = Cow::Owned(place.trim_start_matches('#').to_owned());
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = place;
        settings.meta_schema = None;
        settings.contract = contract;
    });
    settings.into_generator()
}

/// The schemas that were generated, by name. No object has other fields than those that are named.
#[must_use]
pub fn definitions(mut generator: SchemaGenerator) -> Map<String, Value> {
    let place = generator.settings().definitions_path.trim_matches('/').to_owned();
    let mut all = generator.take_definitions(true);
    name_trunk(&mut all, &format!("#/{place}/Trunk"));
    for schema in all.values_mut() {
        let Some(object) = schema.as_object_mut() else { continue };
        // Flattened fields are inlined, so `additionalProperties` below replaces this property.
        object.remove("unevaluatedProperties");
        if object.contains_key("properties") {
            object.insert("additionalProperties".into(), false.into());
        }
    }
    all
}

/// The schemas of a type and of all that it consists of, by name.
fn schemas_of<T: JsonSchema>() -> Map<String, Value> {
    let mut generator = generator("#/all", Contract::Deserialize);
    let _ = generator.subschema_for::<T>();
    definitions(generator)
}

/// The names of all settings of a type.
#[must_use]
pub fn settings<T: JsonSchema>() -> Vec<String> {
    let all = schemas_of::<T>();
    let properties =
        all.get(&*T::schema_name()).and_then(|schema| schema["properties"].as_object());
    properties.into_iter().flat_map(|properties| properties.keys().cloned()).collect()
}

/// The names of settings of a topology that are tables, and lists nowhere.
#[must_use]
pub fn tables() -> &'static BTreeSet<String> {
    static TABLES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let all = schemas_of::<crate::Topology>();
        let properties = all.values().filter_map(|schema| schema["properties"].as_object());
        let (mut tables, mut lists) = (BTreeSet::new(), BTreeSet::new());
        for (name, schema) in properties.flatten() {
            if is_of(schema, "object", &all) {
                tables.insert(name.clone());
            }
            if is_of(schema, "array", &all) {
                lists.insert(name.clone());
            }
        }
        &tables - &lists
    });
    &TABLES
}

/// Whether a schema takes values of this type.
fn is_of(schema: &Value, kind: &str, all: &Map<String, Value>) -> bool {
    let referred = schema["$ref"].as_str().and_then(|to| all.get(to.rsplit('/').next()?));
    let parts = ["anyOf", "oneOf", "allOf"].map(|word| schema[word].as_array());
    let mut parts = parts.into_iter().flatten().flatten().chain(referred);
    let types = &schema["type"];
    let has = types == kind || types.as_array().is_some_and(|all| all.contains(&kind.into()));
    has || parts.any(|part| is_of(part, kind, all))
}

/// Names the schema of a trunk's settings, which belongs to an enum variant.
fn name_trunk(all: &mut Map<String, Value>, reference: &str) {
    let modes = all.get_mut("VlanMode").and_then(|schema| schema["oneOf"].as_array_mut());
    let mut places =
        modes.into_iter().flatten().filter_map(|mode| mode.pointer_mut("/properties/trunk"));
    let trunk = places.next().map(|place| std::mem::replace(place, json!({ "$ref": reference })));
    all.extend(trunk.map(|trunk| ("Trunk".to_owned(), trunk)));
}

/// A user, or null.
pub(crate) fn user(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["integer", "string", "null"], "minimum": 0 })
}

/// Adds the words for rules to a port's settings.
pub(crate) fn add_words(schema: &mut Schema) {
    let object = schema.ensure_object();
    let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for word in RULES.iter().flat_map(|rule| rule.words) {
        let kinds: &[&str] = match word.takes {
            Takes::Value | Takes::Switch => &["string", "integer"],
            Takes::Each | Takes::List => &["string", "array"],
            Takes::Nothing => &["boolean"],
        };
        let described = json!({ "description": word.help, "type": kinds });
        properties.entry(word.name).or_insert(described);
    }
}

impl JsonSchema for Limit {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Limit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let description = "A number such as 100 or 2GiB, or none";
        json_schema!({ "type": ["integer", "string"], "minimum": 0, "description": description })
    }
}

impl JsonSchema for NicModel {
    fn schema_name() -> Cow<'static, str> {
        "NicModel".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = NAMES.map(|known| known.name);
        json_schema!({ "type": "string", "enum": names })
    }
}

macro_rules! define {
    (
        plain { $(#[doc = $about:literal] $(#[$default:meta])? $Plain:ident $plain:literal,)* }
        set { $($Set:ident $set:literal,)* }
    ) => {
        impl JsonSchema for PortKind {
            fn schema_name() -> Cow<'static, str> {
                "PortKind".into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let plain = [$(json!({ "const": $plain, "description": $about }),)*];
                let set = [$({
                    let settings = generator.subschema_for::<crate::$Set>();
                    json!({
                        "type": "object",
                        "properties": { $set: settings },
                        "required": [$set],
                        "additionalProperties": false,
                    })
                },)*];
                let all: Vec<Value> = plain.into_iter().chain(set).collect();
                json_schema!({ "description": "What a port is attached to.", "oneOf": all })
            }
        }

        /// The kinds in the manual's order: the word, and the schema of its settings if it has any.
        #[must_use]
        pub fn kinds() -> Vec<(&'static str, Schema)> {
            vec![
                $(($plain, json_schema!({ "description": $about })),)*
                $(($set, schemars::schema_for!(crate::$Set)),)*
            ]
        }
    };
}
crate::with_kinds!(define);

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of kinds and settings, for the manual page and the documents.
    fn table() -> String {
        let mut text = String::from("| kind | what it is | settings |\n|---|---|---|\n");
        for (word, schema) in kinds() {
            let about = schema.get("description").and_then(Value::as_str).unwrap_or_default();
            let names = schema.get("properties").and_then(Value::as_object);
            let names: Vec<String> = names
                .into_iter()
                .flat_map(|names| names.keys())
                .map(|n| format!("`{n}`"))
                .collect();
            let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
            text += &format!("| `{word}` | {about} | {} |\n", names.join(", "));
        }
        text
    }

    #[test]
    fn the_table_of_kinds_in_the_documents_is_what_the_types_say() {
        let page = std::fs::read_to_string("../../docs/adding-a-port-kind.md").unwrap();
        assert!(
            page.contains(&table()),
            "docs/adding-a-port-kind.md has not this table:\n{}",
            table()
        );
    }

    #[test]
    fn every_setting_is_described_and_nothing_else_is_taken() {
        let mut generator = generator("#/components/schemas", Contract::Deserialize);
        let _ = generator.subschema_for::<crate::Topology>();
        let all = definitions(generator);
        for (word, _) in kinds() {
            assert!(all["PortKind"].to_string().contains(word), "{word}");
        }
        for (name, schema) in &all {
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                assert!(property["description"].is_string(), "{name}.{field}: {property}");
            }
            let is_open =
                schema["properties"].is_object() && schema["additionalProperties"] != false;
            assert!(!is_open, "{name}");
        }
        assert_eq!(all["Trunk"]["properties"]["native"]["maximum"], 4094);
        assert_eq!(all["Tap"]["properties"]["queues"]["maximum"], 8);
        assert_eq!(all["PortSpec"]["properties"]["mtu"]["maximum"], 9216);
        assert!(all["Vxlan"]["required"].is_null(), "a VNI or VLANs; EVPN gives the rest");
        assert!(all["Topology"].to_string().contains("#/components/schemas/SwitchSpec"));
    }
}
