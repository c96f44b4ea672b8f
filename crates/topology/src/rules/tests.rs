use std::cell::Cell;

use serde::Deserialize;
use serde::de::value::Error;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::json;

use super::*;
use crate::{Policy, PortSpec};

/// Notes which fields a struct asks for.
struct Fields<'f>(&'f Cell<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("only structs have fields"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.0.set(fields);
        Err(Error::custom("the fields are known"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The fields of the struct of rules.
fn fields() -> &'static [&'static str] {
    let fields = Cell::new(&[][..]);
    let read = Policy::deserialize(Fields(&fields));
    assert!(read.is_err() && !fields.get().is_empty());
    fields.get()
}

/// Objective: a rule that is added to the struct has a flag, words, help and documentation.
#[test]
fn every_rule_has_words_and_help() {
    for field in fields() {
        assert!(RULES.iter().any(|rule| rule.field == *field), "no row of RULES is for {field}");
    }
    for rule in RULES {
        let is_field = fields().contains(&rule.field) || ["worker", "owner"].contains(&rule.field);
        assert!(is_field, "{} is no field of the struct", rule.field);
        assert!(!rule.words.is_empty(), "{} has no word", rule.field);
        for word in rule.words {
            assert!(word.help.len() > 10, "{} has no help", word.name);
            assert_eq!(word.value.is_empty(), word.takes == Takes::Nothing, "{}", word.name);
            let same = RULES.iter().flat_map(|rule| rule.words).filter(|w| w.name == word.name);
            assert_eq!(same.count(), 1, "{} stands twice", word.name);
            // A word in the place of another rule's field would be taken for that.
            let others = RULES.iter().filter(|other| other.field != rule.field);
            assert!(others.into_iter().all(|other| other.field != word.name), "{}", word.name);
        }
        // Words of the default mean the default, where it has any.
        let usual = json!(PortSpec::default())[rule.field].clone();
        let said = rule.say.map_or_else(|| Some(Vec::new()), |say| say(&usual));
        assert!(
            said.is_none() || rule.words_for(&usual).is_some() || usual.is_null(),
            "{}",
            rule.field
        );
    }
}

#[cfg(feature = "schemars")]
#[test]
fn every_rule_is_documented() {
    let mut generator = crate::schema::generator("#/x", schemars::generate::Contract::Deserialize);
    let _ = generator.subschema_for::<PortSpec>();
    let schema = &crate::schema::definitions(generator)["PortSpec"]["properties"];
    for rule in RULES {
        let names = [rule.field].into_iter().chain(rule.words.iter().map(|word| word.name));
        for name in names {
            assert!(schema[name]["description"].is_string(), "{name}: {}", schema[name]);
        }
    }
}

fn spec(settings: &Value) -> Result<PortSpec, serde_json::Error> {
    serde_json::from_value(settings.clone())
}

#[test]
fn words_mean_what_the_structured_settings_mean() {
    for (words, settings) in [
        (
            json!({"tx_limit": "100Mb/s,100kpps"}),
            json!({"tx_rate_limiter": {
            "bandwidth": {"size": 1_250_000, "refill_time": 100},
            "ops": {"size": 10_000, "refill_time": 100}}}),
        ),
        (json!({"rx_limit": "off"}), json!({"rx_rate_limiter": null})),
        (
            json!({"rx_impair": "loss=1%,delay=10ms"}),
            json!({"rx_impairment": {
            "loss_ppm": 10_000, "delay_us": 10_000}}),
        ),
        (json!({"vlan_access": 10}), json!({"vlan": {"access": 10}})),
        (json!({"vlan_access": "10"}), json!({"vlan": {"access": 10}})),
        (
            json!({"vlan_trunk": "10-12,20", "native": 10}),
            json!({"vlan": {"trunk": {"allowed": [10, 11, 12, 20], "native": 10}}}),
        ),
        (json!({"vlan_trunk": "all"}), json!({"vlan": {"trunk": {"allowed": [], "native": null}}})),
        (json!({"vlan_unaware": true}), json!({"vlan": "unaware"})),
        (json!({"vlan_unaware": false}), json!({})),
        (json!({"mac": "02:00:00:00:00:01"}), json!({"macs": ["02:00:00:00:00:01"]})),
        (
            json!({"mac": ["02:00:00:00:00:01", "02:00:00:00:00:02"]}),
            json!({"macs": ["02:00:00:00:00:01", "02:00:00:00:00:02"]}),
        ),
        (
            json!({"ip": "10.0.0.7,fd00::7", "guard": "on"}),
            json!({"ips": ["10.0.0.7", "fd00::7"], "guard": true}),
        ),
        (json!({"flood_limit": "off"}), json!({"flood_limit": null})),
        (json!({"link": "down", "mtu": "9000"}), json!({"link": false, "mtu": 9000})),
        (
            json!({"interrupts": "rate=9,sent=7"}),
            json!({"interrupts": {"max_rate": 9, "max_sent_delay_us": 7}}),
        ),
        (json!({"mirror_in": "spy", "mirror_out": "none"}), json!({"mirror_ingress": "spy"})),
        (json!({"owner": "root", "worker": "1"}), json!({"owner": 0, "worker": 1})),
    ] {
        assert_eq!(spec(&words).unwrap(), spec(&settings).unwrap(), "{words}");
    }
}

#[test]
fn wrong_words_are_named() {
    for (words, why) in [
        (json!({"tx_limit": "fast"}), "tx_limit: \"fast\" is not a rate"),
        (json!({"tx_limit": {"ops": 1}}), "tx_limit: "),
        (
            json!({"tx_limit": "1Gb/s", "tx_rate_limiter": {}}),
            "tx_limit: say it or tx_rate_limiter",
        ),
        (json!({"vlan_access": 1, "vlan_trunk": "2"}), "vlan_trunk: say it or vlan_access"),
        (json!({"native": 1}), "native: it goes with vlan_trunk"),
        (json!({"rx_impair": ["loss=1%"]}), "rx_impair: "),
        (json!({"tx_link": "rat=1Mb/s"}), "did you mean rate?"),
        (json!({"owner": "no such user"}), "owner: There is no user"),
        (json!({"txlimit": "1Gb/s"}), "unknown field `txlimit`"),
        (json!({"lossless": 7}), "invalid type"),
        // What a stranger sends takes no more memory and time than its length.
        (json!({"vlan_trunk": "0-65535,".repeat(99)}), "more than 4094 numbers"),
        (json!({"tx_limit": "9".repeat(1 << 20)}), "more than 32768 characters"),
        (json!({"weight": "1001"}), "weight: 1001 is not in 1..=1000"),
    ] {
        let error = spec(&words).unwrap_err().to_string();
        assert!(error.contains(why), "{words}: {error}");
    }
}

/// Objective: an exported port is what was applied, and words stand wherever they say the same.
#[test]
fn words_are_said_where_they_say_the_same() {
    for (settings, words) in [
        (
            json!({"tx_rate_limiter": {"ops": {"size": 2000, "refill_time": 100}}}),
            json!({"tx_limit": "20kpps"}),
        ),
        (
            json!({"tx_rate_limiter": {"bandwidth": {"size": 3, "refill_time": 1000}}}),
            json!({"tx_limit": "24b/s"}),
        ),
        // Words have no bursts, and no other time to fill.
        (
            json!({"rx_rate_limiter": {"ops": {"size": 9, "refill_time": 7}}}),
            json!({"rx_rate_limiter": {"ops": {"size": 9, "refill_time": 7}}}),
        ),
        (json!({"tx_rate_limiter": {}}), json!({"tx_rate_limiter": {}})),
        (
            json!({"rx_impairment": {"loss_ppm": 1, "delay_us": 1500, "seed": 7}}),
            json!({"rx_impair": "loss=0.0001%,delay=1500us,seed=7"}),
        ),
        (json!({"vlan": {"access": 7}}), json!({"vlan_access": 7})),
        (
            json!({"vlan": {"trunk": {"allowed": [1, 2, 3], "native": 2}}}),
            json!({"vlan_trunk": "1-3", "native": 2}),
        ),
        (
            json!({"vlan": {"trunk": {"allowed": [3, 1], "native": null}}}),
            json!({"vlan_trunk": "3,1"}),
        ),
        (
            json!({"flood_limit": null, "link": false}),
            json!({"flood_limit": "off", "link": "down"}),
        ),
        (
            json!({"interrupts": {"max_delay_us": 50, "adaptive": true}}),
            json!({"interrupts": "delay=50,adaptive"}),
        ),
        (json!({"mirror_egress": "none"}), json!({"mirror_egress": "none"})),
        (json!({"tx_link": "dsl,rate=1Mb/s"}), json!({"tx_link": "dsl,rate=1Mb/s"})),
        (json!({"rx_link": "office"}), json!({"rx_link": "office"})),
    ] {
        let spec = spec(&settings).unwrap();
        let said: Map<String, Value> = spec.in_words().into_iter().collect();
        for (name, value) in words.as_object().unwrap() {
            assert_eq!(said.get(name), Some(value), "{settings}: {said:?}");
        }
        assert_eq!(super::tests::spec(&Value::Object(said)).unwrap(), spec, "{settings}");
    }
}

#[test]
fn tables_show_what_is_special_as_flags_say_it() {
    let settings = json!({
        "lossless": true, "flap_guard": false, "flood_limit": null, "link": false, "mtu": 9000,
        "vlan": {"access": 7}, "macs": ["02:00:00:00:00:01", "02:00:00:00:00:02"],
        "tx_rate_limiter": {"ops": {"size": 100, "refill_time": 100}}, "owner": 0,
    });
    assert_eq!(
        spec(&settings).unwrap().special_rules(),
        [
            "lossless",
            "mac 02:00:00:00:00:01 and 1 more",
            "flood-limit off",
            "tx-limit 1kpps",
            "flap-guard off",
            "link down",
            "owner root",
        ]
    );
    assert_eq!(PortSpec::default().special_rules(), [""; 0]);
}
