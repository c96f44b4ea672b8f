//! What the supervisor keeps of a session, so that a successor of this process can continue it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jail::strangers::Descriptor;
use serde_json::Value;

/// Persistent state of a session: a value and a descriptor for each name.
pub type Kept = BTreeMap<String, (Value, Option<Arc<Descriptor>>)>;
