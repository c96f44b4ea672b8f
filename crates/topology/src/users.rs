//! Users and groups of this machine, by name or number.
//!
//! Names are looked up where they are read: on the command line, in a topology file, in a request
//! of the operator's. What is stored, compared and sent on is a number.

use std::fmt;
use std::str::FromStr;

use nix::unistd::{Group, Uid, User};
use serde::Serialize;
use serde::de::{Deserializer, Error, Visitor};

/// A name that no user or group has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("There is no {kind} {name:?}; give a name that `getent {database}` lists, or a number")]
pub struct Unknown {
    kind: &'static str,
    database: &'static str,
    name: String,
}

impl Unknown {
    fn user(name: &str) -> Self {
        Self { kind: "user", database: "passwd", name: name.into() }
    }

    fn group(name: &str) -> Self {
        Self { kind: "group", database: "group", name: name.into() }
    }
}

/// A user: read from a name or a number, written as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UserId(pub u32);

impl FromStr for UserId {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        uid(text).map(Self)
    }
}

/// A number that the kernel takes for a user or group: -1 means "leave it" there.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}

/// The uid of a user who is named, or whose number is given.
///
/// # Errors
/// There is no user of this name.
pub fn uid(text: &str) -> Result<u32, Unknown> {
    let named = || User::from_name(text).ok().flatten().map(|user| user.uid.as_raw());
    number(text).or_else(named).ok_or_else(|| Unknown::user(text))
}

/// The gid of a group that is named, or whose number is given.
///
/// # Errors
/// There is no group of this name.
pub fn gid(text: &str) -> Result<u32, Unknown> {
    let named = || Group::from_name(text).ok().flatten().map(|group| group.gid.as_raw());
    number(text).or_else(named).ok_or_else(|| Unknown::group(text))
}

/// The name of a user, or the number of one who has none.
#[must_use]
pub fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Reads a user: a number, a name, or nothing.
///
/// # Errors
/// There is no user of this name.
pub fn optional_uid<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    struct Reader;

    impl<'de> Visitor<'de> for Reader {
        type Value = Option<u32>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a user's name or number")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
            let number = u32::try_from(number).ok().filter(|number| *number != u32::MAX);
            number.map(Some).ok_or_else(|| E::custom("a uid is below 4294967295"))
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
            self.visit_u64(u64::try_from(number).unwrap_or(u64::MAX))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            uid(text).map(Some).map_err(E::custom)
        }

        fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
            from.deserialize_any(self)
        }
    }

    from.deserialize_option(Reader)
}

/// A table whose keys are users: read by name or number, written by number.
pub mod by_uid {
    use std::collections::BTreeMap;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<T: Serialize, S: Serializer>(
        table: &BTreeMap<u32, T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(table.iter().map(|(uid, value)| (uid.to_string(), value)))
    }

    /// Reads it.
    ///
    /// # Errors
    /// There is no user of a name, or one is there twice.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<u32, T>, D::Error> {
        let mut table = BTreeMap::new();
        for (name, value) in BTreeMap::<String, T>::deserialize(from)? {
            let uid = super::uid(&name).map_err(D::Error::custom)?;
            if table.insert(uid, value).is_some() {
                return Err(D::Error::custom(format!("user {name} is there twice")));
            }
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct Spec {
        #[serde(default, deserialize_with = "optional_uid")]
        owner: Option<u32>,
    }

    #[test]
    fn users_and_groups_have_names_and_numbers() {
        assert_eq!((uid("root"), uid("0"), uid("12345")), (Ok(0), Ok(0), Ok(12345)));
        assert_eq!((gid("root"), gid("7")), (Ok(0), Ok(7)));
        assert_eq!((name(0).as_str(), name(u32::MAX - 9).as_str()), ("root", "4294967286"));
        let error = uid("no such user").unwrap_err().to_string();
        assert!(error.contains("\"no such user\"; give a name"), "{error}");
        // chown(2) and setuid(2) take it for "no change".
        assert!(uid("4294967295").is_err() && gid("-1").is_err());
    }

    #[test]
    fn a_setting_names_a_user_either_way() {
        let json = |text: &str| serde_json::from_str::<Spec>(text).map(|spec| spec.owner);
        let toml = |text: &str| toml::from_str::<Spec>(text).map(|spec| spec.owner);
        assert_eq!(json(r#"{"owner": "root"}"#).unwrap(), Some(0));
        assert_eq!(json(r#"{"owner": 1000}"#).unwrap(), Some(1000));
        assert_eq!(json(r#"{"owner": null}"#).unwrap(), None);
        assert_eq!(json("{}").unwrap(), None);
        assert_eq!(toml("owner = 'root'").unwrap(), Some(0));
        assert_eq!(toml("owner = 1000").unwrap(), Some(1000));
        for bad in [r#"{"owner": "no such user"}"#, r#"{"owner": -1}"#, r#"{"owner": 4294967295}"#]
        {
            assert!(json(bad).is_err(), "{bad}");
        }
    }
}
