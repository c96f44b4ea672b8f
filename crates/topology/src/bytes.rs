//! Numbers of bytes, as people write them: `4096`, `256MiB`, `4TiB`.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;

/// Text that is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a number of bytes; use one such as 4096, 256MiB or 4TiB")]
pub struct NoBytes(String);

/// Units of bytes. `M` is what QEMU, Docker and systemd mean by it: `MiB`.
const UNITS: [(&[&str], u64); 9] = [
    (&["", "B"], 1),
    (&["K", "k", "KiB"], 1 << 10),
    (&["M", "MiB"], 1 << 20),
    (&["G", "GiB"], 1 << 30),
    (&["T", "TiB"], 1 << 40),
    (&["kB", "KB"], 1_000),
    (&["MB"], 1_000_000),
    (&["GB"], 1_000_000_000),
    (&["TB"], 1_000_000_000_000),
];

/// Reads a number of bytes, with a unit or without.
///
/// # Errors
/// It is not a number of bytes, or exceeds TOML's integers.
pub fn parse_bytes(text: &str) -> Result<u64, NoBytes> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = UNITS.iter().find(|(units, _)| units.contains(&&text[digits.len()..]));
    let bytes = scale.and_then(|(_, scale)| {
        let number: u64 = digits.trim_end().parse().ok()?;
        number.checked_mul(*scale).filter(|bytes| i64::try_from(*bytes).is_ok())
    });
    bytes.ok_or_else(|| NoBytes(text.into()))
}

/// Writes the bytes as a number, for `#[serde(with)]`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(*bytes)
}

/// Reads bytes from a number or a text, for `#[serde(with)]`.
///
/// # Errors
/// It is not a number of bytes.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    struct Reader;

    impl Visitor<'_> for Reader {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number of bytes, such as 4096 or \"256MiB\"")
        }

        fn visit_u64<E: Error>(self, bytes: u64) -> Result<u64, E> {
            Ok(bytes)
        }

        fn visit_i64<E: Error>(self, bytes: i64) -> Result<u64, E> {
            u64::try_from(bytes).map_err(|_| E::custom("a number of bytes cannot be negative"))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            parse_bytes(text).map_err(E::custom)
        }
    }

    from.deserialize_any(Reader)
}

/// The schema of a number of bytes.
#[cfg(feature = "schemars")]
pub fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": ["integer", "string"], "minimum": 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SwitchConfig;

    #[test]
    fn bytes_have_units() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("256MiB"), Ok(256 << 20));
        assert_eq!(parse_bytes("4 TiB"), Ok(4 << 40));
        assert_eq!(parse_bytes("64M"), Ok(64 << 20));
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        assert_eq!(parse_bytes("2GB"), Ok(2_000_000_000));
        for bad in ["", "-1", "x", "2Gb", "2 X", "9223372036854775808", "9999999999TiB", "KiB", "M"]
        {
            assert_eq!(parse_bytes(bad), Err(NoBytes(bad.into())));
        }
        let config = |value: serde_json::Value| {
            let config = serde_json::json!({ "max_region_memory": value });
            serde_json::from_value::<SwitchConfig>(config).map(|config| config.max_region_memory)
        };
        assert_eq!(config("1GiB".into()).unwrap(), 1 << 30);
        assert_eq!(config(4096.into()).unwrap(), 4096);
        assert!(config((-1).into()).is_err() && config("much".into()).is_err());
    }
}
