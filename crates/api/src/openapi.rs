//! The API's OpenAPI 3.1 description, drawn from the table of routes and from the types that it
//! names.
//!
//! The schemas of requests describe what is accepted, so fields with a default are optional. Those
//! of replies describe what is sent. A type that is used in both is described as for requests.

use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};
use topology::schema::{self, Contract};
use topology::{PORT_PATTERN, SWITCH_PATTERN};

use crate::{Draw, Operation, PROBLEM, Problem, ROUTES, Route};

const PLACE: &str = "#/components/schemas";

/// The schemas of requests and of replies.
struct Schemas {
    asked: SchemaGenerator,
    replied: SchemaGenerator,
}

/// The description.
#[must_use]
pub fn document() -> Value {
    let mut schemas = Schemas {
        asked: schema::generator(PLACE, Contract::Deserialize),
        replied: schema::generator(PLACE, Contract::Serialize),
    };
    let mut paths = Map::new();
    for route in ROUTES {
        let operation = schemas.operation(route);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_lowercase()] = operation;
    }
    let mut all = schema::definitions(schemas.replied);
    all.extend(schema::definitions(schemas.asked));
    all.values_mut().for_each(name_values);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "toklat control API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "JSON over HTTP on control.sock in the daemon's runtime directory.",
        },
        "servers": [
            { "url": "http://localhost", "description": "By the Unix socket: its permissions decide which users may connect; at view.sock, GET only" },
            {
                "url": "http://{address}",
                "description": "With --listen-tcp: clients need the token, or the view token for GET",
                "variables": { "address": { "default": "127.0.0.1:9000" } },
            },
        ],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": all,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// Writes each choice between strings as a plain `enum`, which all generators of clients know. What
/// each means goes into the description.
fn name_values(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(name_values),
        Value::Object(object) => {
            object.values_mut().for_each(name_values);
            if let Some(value) = object.remove("const") {
                object.insert("enum".to_owned(), json!([value]));
                object.insert("type".to_owned(), "string".into());
            }
            let choices = object.get("oneOf").and_then(Value::as_array);
            let single = |choice: &Value| {
                let value =
                    choice["enum"].as_array().filter(|values| values.len() == 1)?[0].clone();
                Some((value, choice["description"].as_str().unwrap_or_default().to_owned()))
            };
            let values = choices.and_then(|all| all.iter().map(single).collect::<Option<Vec<_>>>());
            if let Some(values) = values {
                let about = object.get("description").and_then(Value::as_str).unwrap_or_default();
                let lines = values.iter().map(|(value, text)| {
                    format!("- `{}`: {text}", value.as_str().unwrap_or_default())
                });
                let text: Vec<_> = std::iter::once(about.to_owned()).chain(lines).collect();
                object.insert("description".to_owned(), text.join("\n").trim().into());
                let values: Vec<_> = values.into_iter().map(|(value, _)| value).collect();
                object.insert("enum".to_owned(), values.into());
                object.insert("type".to_owned(), "string".into());
                object.remove("oneOf");
            }
        }
        _ => (),
    }
}

impl Schemas {
    fn operation(&mut self, route: &Route) -> Value {
        let refused = self.replied.subschema_for::<Problem<'_>>();
        let mut responses = self.good(route);
        responses["default"] =
            json!({ "description": "Refused", "content": { PROBLEM: { "schema": refused } } });
        let mut operation = json!({
            "operationId": format!("{:?}", route.operation),
            "summary": route.summary,
            "parameters": self.parameters(route),
            "responses": responses,
        });
        if let Some(body) = route.takes {
            let schema = (body.draw)(&mut self.asked);
            operation["requestBody"] = json!({
                "required": !body.optional,
                "content": { "application/json": { "schema": schema } },
            });
        }
        operation
    }

    /// The replies that are not refusals.
    fn good(&mut self, route: &Route) -> Value {
        match (route.replies, route.operation) {
            (Some(draw), operation) => {
                let statuses: &[&str] = match operation {
                    Operation::AddSwitch | Operation::AddPort => &["201"],
                    Operation::PutGuest => &["200", "201"],
                    _ => &["200"],
                };
                let content = json!({ "application/json": { "schema": draw(&mut self.replied) } });
                let done = json!({ "description": "Done", "content": content });
                statuses.iter().map(|status| ((*status).to_owned(), done.clone())).collect()
            }
            (None, Operation::GetMetrics) => {
                let content = json!({ "text/plain": { "schema": { "type": "string" } } });
                json!({ "200": { "description": "Metrics", "content": content } })
            }
            (None, Operation::GetGuestLog) => {
                let content = json!({ "text/plain": { "schema": { "type": "string" } } });
                json!({ "200": { "description": "Printed lines", "content": content } })
            }
            (None, Operation::GetOpenApi) => {
                let content = json!({ "application/json": { "schema": { "type": "object" } } });
                json!({ "200": { "description": "This description", "content": content } })
            }
            (None, _) => json!({ "204": { "description": "Done" } }),
        }
    }

    fn parameters(&mut self, route: &Route) -> Vec<Value> {
        let in_path =
            route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let mut all: Vec<Value> = in_path
            .map(|name| {
                let schema = self.in_path(name);
                json!({ "name": name, "in": "path", "required": true, "schema": schema })
            })
            .collect();
        all.extend(route.asks.into_iter().flat_map(|draw| self.in_query(draw)));
        if route.operation == Operation::PutTopology {
            let description =
                "The tag of the topology that is to be changed, as GET /v1/topology replies it";
            let schema = json!({ "type": "string" });
            all.push(json!({ "name": "If-Match", "in": "header", "description": description, "schema": schema }));
        }
        all
    }

    /// The schema of a path's parameter.
    fn in_path(&mut self, name: &str) -> Value {
        match name {
            "switch" => json!({ "type": "string", "pattern": SWITCH_PATTERN }),
            "port" | "guest" => json!({ "type": "string", "pattern": PORT_PATTERN }),
            "mac" => self.asked.subschema_for::<frame::Mac>().into(),
            "uid" => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
            "netmap_port" => json!({ "type": "string", "pattern": "^[^/:]{1,15}$" }),
            _ => json!({ "type": "string" }),
        }
    }

    /// The fields of a query as parameters. Each may be left out, and then none of them is null.
    fn in_query(&mut self, draw: Draw) -> Vec<Value> {
        let mut generator = self.asked.settings().clone().into_generator();
        let _ = draw(&mut generator);
        let mut drawn = schema::definitions(generator);
        let fields =
            drawn.values_mut().filter_map(|schema| Some(schema.get_mut("properties")?.take()));
        let fields = fields.filter_map(|fields| Some(fields.as_object()?.clone())).flatten();
        let parameter = |(name, mut schema): (String, Value)| {
            without_null(&mut schema);
            let description =
                schema.as_object_mut().and_then(|schema| schema.remove("description"));
            json!({ "name": name, "in": "query", "description": description, "schema": schema })
        };
        fields.map(parameter).collect()
    }
}

/// Takes null out of what a schema allows.
fn without_null(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    if let Some([kind, Value::String(null)]) =
        object.get("type").and_then(|kinds| kinds.as_array()?.get(..2))
        && null == "null"
    {
        let kind = kind.clone();
        object.insert("type".into(), kind);
    }
    let first = object.get("anyOf").and_then(|any| any.get(0)).and_then(Value::as_object).cloned();
    if let Some(first) = first {
        object.remove("anyOf");
        object.extend(first);
    }
    if object.get("default").is_some_and(Value::is_null) {
        object.remove("default");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        GuestSpec, NewFdbEntry, NewPort, NewSwitch, PortSpec, Quotas, SwitchSpec, Topology,
    };

    #[test]
    fn every_reference_leads_to_a_type_and_every_type_is_closed() {
        let document = document();
        let schemas = &document["components"]["schemas"];
        for reference in document.to_string().split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas[name].is_object(), "{name} is not there");
        }
        for (name, schema) in schemas.as_object().unwrap() {
            assert!(!name.ends_with('2'), "two types have one name: {name}");
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                let described = property["description"].is_string();
                assert!(described, "{name}.{field}: {property}");
            }
            let open = schema["properties"].is_object() && schema["additionalProperties"] != false;
            assert!(!open, "{name} takes any field");
        }
    }

    /// Generators refuse schemas that allow everything, and choices between constants.
    #[test]
    fn clients_can_be_generated_from_every_schema() {
        fn look(at: &str, value: &Value) {
            let Value::Object(object) = value else {
                value.as_array().into_iter().flatten().for_each(|value| look(at, value));
                return;
            };
            // Values, not schemas.
            let is_value = |name: &String| matches!(name.as_str(), "default" | "examples");
            for (name, value) in object.iter().filter(|(name, _)| !is_value(name)) {
                let is_schema = matches!(name.as_str(), "schema" | "items") || at == "properties";
                assert!(!is_schema || value.is_object(), "{at} {name}: {value}");
                assert!(name != "const" && value != &json!({}), "{at} {name}");
                look(name, value);
            }
        }
        let document = document();
        look("paths", &document["paths"]);
        look("schemas", &document["components"]["schemas"]);
        let state = &document["components"]["schemas"]["PortState"];
        assert!(state["enum"].as_array().unwrap().contains(&json!("attached")), "{state}");
        assert!(state["description"].as_str().unwrap().contains("- `attached`: "), "{state}");
    }

    #[test]
    fn what_is_written_is_required_in_replies_and_what_has_a_default_is_not_in_requests() {
        let document = document();
        let required = |name: &str| document["components"]["schemas"][name]["required"].clone();
        assert_eq!(required("Client"), json!(["pid", "uid"]));
        assert!(required("PortInfo").as_array().unwrap().contains(&json!("unconnected")));
        assert_eq!(required("NewPort"), json!(["name"]));
        assert_eq!(required("PortSpec"), Value::Null);
        assert_eq!(required("NewFdbEntry"), json!(["mac", "port"]));
    }

    #[test]
    fn queries_are_parameters_of_their_types() {
        let document = document();
        let parameters =
            |method: &str, path: &str| document["paths"][path][method]["parameters"].clone();
        let apply = parameters("put", "/v1/topology");
        let names: Vec<_> = apply.as_array().unwrap().iter().map(|p| p["name"].clone()).collect();
        assert_eq!(names, ["dry_run", "file", "prune", "If-Match"]);
        assert_eq!(apply[0]["schema"]["type"], "boolean");
        let fdb = parameters("delete", "/v1/switches/{switch}/fdb/{mac}");
        assert_eq!(fdb[2]["schema"], json!({ "type": "integer", "minimum": 1, "maximum": 4094 }));
        assert!(fdb[1]["schema"]["pattern"].is_string(), "{fdb}");
        assert_eq!(parameters("get", "/v1/stats")[0]["schema"]["type"], "string");
    }

    #[test]
    fn examples_are_what_the_types_take() {
        fn are<T: serde::de::DeserializeOwned>(schemas: &Value, name: &str) {
            let examples = schemas[name]["examples"].as_array();
            for example in examples.unwrap_or_else(|| panic!("{name} has no example")) {
                serde_json::from_value::<T>(example.clone())
                    .unwrap_or_else(|e| panic!("{example}: {e}"));
            }
        }
        let document = document();
        let schemas = &document["components"]["schemas"];
        are::<NewSwitch>(schemas, "NewSwitch");
        are::<NewPort>(schemas, "NewPort");
        are::<SwitchSpec>(schemas, "SwitchSpec");
        are::<PortSpec>(schemas, "PortSpec");
        are::<Topology>(schemas, "Topology");
        are::<Quotas>(schemas, "Quotas");
        are::<NewFdbEntry>(schemas, "NewFdbEntry");
        are::<GuestSpec>(schemas, "GuestSpec");
    }

    #[test]
    fn every_route_is_listed_once() {
        let routes: std::collections::HashSet<_> =
            ROUTES.iter().map(|r| (r.method, r.path)).collect();
        let operations: std::collections::HashSet<_> = ROUTES.iter().map(|r| r.operation).collect();
        assert_eq!((routes.len(), operations.len()), (ROUTES.len(), ROUTES.len()));
    }
}
