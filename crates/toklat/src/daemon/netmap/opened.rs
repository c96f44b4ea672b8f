//! The descriptors that programs have of netmap's interface.

use std::collections::HashMap;
use std::sync::Mutex;

use jail::strangers::Descriptor;
use netmap::broker::Broker;
use tokio::sync::Mutex as AsyncMutex;

use crate::daemon::hangups::WatchId;

/// The daemon's end of the socket behind a program's descriptor.
#[derive(Debug)]
pub struct Token {
    pub(in crate::daemon) end: Descriptor,
    pub(in crate::daemon) watch: WatchId,
}

/// The daemon's state of programs that use netmap's interface.
#[derive(Debug)]
pub struct Netmap<S> {
    pub(in crate::daemon) broker: AsyncMutex<Option<Broker<S>>>,
    pub(in crate::daemon) tokens: Mutex<HashMap<u64, Token>>,
}

impl<S> Default for Netmap<S> {
    fn default() -> Self {
        Self { broker: AsyncMutex::default(), tokens: Mutex::default() }
    }
}
