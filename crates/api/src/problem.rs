//! How the API refuses.

use serde::Serialize;

use crate::ApiError;

/// The type of refusals (RFC 9457).
pub const PROBLEM: &str = "application/problem+json";

/// A refusal in the format of RFC 9457, with members of our own: `error`, `reason`, `remedy`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(rename = "Error"))]
pub struct Problem<'a> {
    /// The type of problem. It is `about:blank`, which means that the status says it all.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The name of the status.
    title: &'static str,
    /// The status of HTTP.
    #[cfg_attr(feature = "schemars", schemars(range(min = 400, max = 599)))]
    status: u16,
    /// The reason and the remedy.
    detail: String,
    #[serde(flatten)]
    error: &'a ApiError,
}

impl<'a> Problem<'a> {
    /// The body of a refusal with a status of HTTP: its number and its name.
    #[must_use]
    pub fn of((status, title): (u16, &'static str), error: &'a ApiError) -> Self {
        Self { kind: "about:blank", title, status, detail: error.to_string(), error }
    }
}
