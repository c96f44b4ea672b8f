//! What can be asked.

/// Something that can be asked: its handler is chosen by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The daemon itself: replies `Status`.
    GetStatus,
    /// Everything as configured: replies `Topology`.
    GetTopology,
    /// Adds and changes: takes `Topology`, replies `Applied`. `?file=` is what it is called, `?prune=true` removes what
    /// was made under that name and is not named any more, `?dry_run=true` does nothing; `If-Match` as HTTP has it.
    PutTopology,
    /// Replies a list of `SwitchInfo`.
    ListSwitches,
    /// Takes `NewSwitch`, replies `SwitchInfo`.
    AddSwitch,
    /// Replies `SwitchInfo`.
    GetSwitch,
    /// Takes the settings of a `SwitchSpec` to change, replies `SwitchInfo`.
    PatchSwitch,
    /// Removes a switch and its ports.
    DeleteSwitch,
    /// Replies a list of `PortInfo`.
    ListPorts,
    /// Takes `NewPort`, replies `PortInfo`.
    AddPort,
    /// Replies `PortInfo`.
    GetPort,
    /// Takes the settings of a `PortSpec` to change, replies `PortInfo`.
    PatchPort,
    /// Removes a port; its client sees its token close.
    DeletePort,
    /// Replies a list of `FdbEntry`.
    ListFdb,
    /// Takes `NewFdbEntry`.
    AddFdb,
    /// Takes `FdbFlush`.
    FlushFdb,
    /// Removes one address; `?vlan=` names its VLAN.
    DeleteFdb,
    /// Frames that were dropped since `?since=`, or from now on: replies `Dropped`. They are recorded for five seconds after
    /// each such question.
    ListDrops,
    /// Counters of all switches, or of `?switch=`: replies `Stats`.
    GetStats,
    /// Replies a list of `PipeInfo`.
    ListPipes,
    /// How much each user holds, and may hold: replies `QuotaInfo`.
    GetQuotas,
    /// Takes what of `Quotas` is to change, replies `QuotaInfo`.
    PatchQuotas,
    /// Replaces data processes by the binary that is installed now: takes `Upgrade`, replies
    /// `Upgraded`.
    Upgrade,
    /// Stops the daemon: takes `Stop`.
    Stop,
    /// Prometheus metrics, as text.
    GetMetrics,
    /// This API's OpenAPI description.
    GetOpenApi,
}

/// A line of the table of routes.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// HTTP method.
    pub method: &'static str,
    /// Path, with `{name}` for its parameters.
    pub path: &'static str,
    /// What it does.
    pub operation: Operation,
    /// Schema of the request's body; empty for none.
    pub takes: &'static str,
    /// Schema of the reply's body; empty for none.
    pub replies: &'static str,
    /// Whether the reply is a list of that.
    pub list: bool,
    /// One line about it.
    pub summary: &'static str,
}

macro_rules! routes {
    ($($method:ident $path:literal $op:ident ($takes:literal) -> $replies:literal $list:literal $summary:literal;)*) => {
        /// Everything that can be asked.
        pub const ROUTES: &[Route] = &[$(Route {
            method: stringify!($method), path: $path, operation: Operation::$op,
            takes: $takes, replies: $replies, list: $list, summary: $summary,
        }),*];
    };
}

routes! {
    GET "/v1/status" GetStatus ("") -> "Status" false "The daemon itself.";
    GET "/v1/topology" GetTopology ("") -> "Topology" false "Everything as configured.";
    PUT "/v1/topology" PutTopology ("Topology") -> "Applied" false
        "Adds and changes what is named, and, pruned, removes what the same file made and does not name.";
    GET "/v1/switches" ListSwitches ("") -> "SwitchInfo" true "All switches.";
    POST "/v1/switches" AddSwitch ("NewSwitch") -> "SwitchInfo" false "Adds a switch.";
    GET "/v1/switches/{switch}" GetSwitch ("") -> "SwitchInfo" false "One switch.";
    PATCH "/v1/switches/{switch}" PatchSwitch ("SwitchSpec") -> "SwitchInfo" false
        "Changes the settings that are named; ports have their own paths.";
    DELETE "/v1/switches/{switch}" DeleteSwitch ("") -> "" false "Removes a switch and its ports.";
    GET "/v1/switches/{switch}/ports" ListPorts ("") -> "PortInfo" true "All ports of a switch.";
    POST "/v1/switches/{switch}/ports" AddPort ("NewPort") -> "PortInfo" false "Adds a port.";
    GET "/v1/switches/{switch}/ports/{port}" GetPort ("") -> "PortInfo" false "One port.";
    PATCH "/v1/switches/{switch}/ports/{port}" PatchPort ("PortSpec") -> "PortInfo" false
        "Changes the settings that are named.";
    DELETE "/v1/switches/{switch}/ports/{port}" DeletePort ("") -> "" false "Removes a port.";
    GET "/v1/switches/{switch}/fdb" ListFdb ("") -> "FdbEntry" true "The forwarding table.";
    POST "/v1/switches/{switch}/fdb" AddFdb ("NewFdbEntry") -> "" false
        "Adds an address that stays.";
    POST "/v1/switches/{switch}/fdb/flush" FlushFdb ("FdbFlush") -> "" false
        "Forgets learned addresses.";
    DELETE "/v1/switches/{switch}/fdb/{mac}" DeleteFdb ("") -> "" false "Removes an address.";
    GET "/v1/switches/{switch}/drops" ListDrops ("") -> "Dropped" false
        "Frames that were dropped since a place (`?since=`), with the reason; recorded while somebody asks.";
    GET "/v1/stats" GetStats ("") -> "Stats" false "Counters of switches, ports and workers.";
    GET "/v1/pipes" ListPipes ("") -> "PipeInfo" true "All pipes.";
    GET "/v1/quotas" GetQuotas ("") -> "QuotaInfo" false "What users hold, and may hold.";
    PATCH "/v1/quotas" PatchQuotas ("Quotas") -> "QuotaInfo" false
        "Changes the limits that are named; null is as by default.";
    POST "/v1/upgrade" Upgrade ("Upgrade") -> "Upgraded" false
        "Replaces data processes by the binary that is installed now.";
    POST "/v1/stop" Stop ("Stop") -> "" false "Stops the daemon.";
    GET "/metrics" GetMetrics ("") -> "" false "Prometheus metrics, as text.";
    GET "/openapi.json" GetOpenApi ("") -> "" false "This description.";
}
