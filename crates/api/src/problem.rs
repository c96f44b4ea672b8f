//! How the API refuses.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::ApiError;

/// The type of refusals (RFC 9457).
pub const PROBLEM: &str = "application/problem+json";

/// A refusal in the format of RFC 9457, with members of our own: `error`, `reason`, `remedy`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct Problem<'a> {
    /// The type of problem. It is `about:blank`, which means that the status says it all.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The name of the status.
    title: &'static str,
    /// The status of HTTP.
    #[schemars(range(min = 400, max = 599))]
    status: u16,
    /// The reason and the remedy.
    detail: String,
    #[serde(flatten)]
    error: &'a ApiError,
}

impl<'a> Problem<'a> {
    /// The body of a refusal.
    #[must_use]
    pub fn of(status: StatusCode, error: &'a ApiError) -> Self {
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            detail: error.to_string(),
            error,
        }
    }
}
