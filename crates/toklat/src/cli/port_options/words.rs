//! Values of options that may be left empty.

use std::str::FromStr;

use serde::Serialize;
use serde_json::{Value, json};

/// `N`, or a word that stands for no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Or<T> {
    /// A value.
    Value(T),
    /// `off` or `none`.
    Nothing,
}

impl<T: FromStr> FromStr for Or<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if ["off", "none"].contains(&text) {
            Ok(Self::Nothing)
        } else {
            text.parse().map(Self::Value)
        }
    }
}

impl<T> Or<T> {
    pub(super) const fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Nothing => None,
        }
    }
}

/// The value in JSON; null for `off` or `none`.
pub fn or_null<T: Serialize>(value: &Or<T>) -> Value {
    json!(value.value())
}
