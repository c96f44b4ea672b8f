//! What a supervisor keeps of a session, so that a successor of this process continues it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jail::strangers::Descriptor;
use serde_json::Value;

/// What is kept for a successor, by name: a value and a descriptor.
pub type Kept = BTreeMap<String, (Value, Option<Arc<Descriptor>>)>;
