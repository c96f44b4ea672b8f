//! What can be asked.

/// A route of the API. The router chooses the handler by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The daemon itself: replies `Status`.
    GetStatus,
    /// Everything as configured: replies `Topology`.
    GetTopology,
    /// Adds and changes objects: takes `Topology`, replies `Applied`. `?file=` names the file.
    /// `?prune=true` removes what that file made and does not name any more. `?dry_run=true`
    /// changes nothing. `If-Match` works as in HTTP.
    PutTopology,
    /// Replies a list of `SwitchInfo`.
    ListSwitches,
    /// Takes `NewSwitch`, replies `SwitchInfo`.
    AddSwitch,
    /// Replies `SwitchInfo`.
    GetSwitch,
    /// Changes a switch: takes the settings of a `SwitchSpec` that change, replies `SwitchInfo`.
    PatchSwitch,
    /// Removes a switch and its ports.
    DeleteSwitch,
    /// Replies a list of `PortInfo`.
    ListPorts,
    /// Takes `NewPort`, replies `PortInfo`.
    AddPort,
    /// Replies `PortInfo`.
    GetPort,
    /// Changes a port: takes the settings of a `PortSpec` that change, replies `PortInfo`.
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
    /// Frames dropped since `?since=`, or after this request: replies `Dropped`. Drops are recorded
    /// for five seconds after each such request.
    ListDrops,
    /// Counters of all switches, or of `?switch=`: replies `Stats`.
    GetStats,
    /// Replies a list of `PipeInfo`.
    ListPipes,
    /// The state of EVPN: replies `EvpnInfo`.
    GetEvpn,
    /// The stations that EVPN knows: replies a list of `MacInfo`.
    ListEvpnMacs,
    /// The routes of other hosts: replies a list of `RouteInfo`.
    ListEvpnRoutes,
    /// Lets a station of `?vni=` move again that moved too often.
    ReleaseEvpnMac,
    /// What each user holds, and its quotas: replies `QuotaInfo`.
    GetQuotas,
    /// Changes quotas: takes the fields of `Quotas` that change, replies `QuotaInfo`.
    PatchQuotas,
    /// Replaces data processes by the installed binary: takes `Upgrade`, replies `Upgraded`.
    Upgrade,
    /// Stops the daemon: takes `Stop`.
    Stop,
    /// Prometheus metrics, as text.
    GetMetrics,
    /// This API's OpenAPI description.
    GetOpenApi,
}

/// A row of the table of routes.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// HTTP method.
    pub method: &'static str,
    /// The path, with `{name}` for its parameters.
    pub path: &'static str,
    /// What it does.
    pub operation: Operation,
    /// Name of the request body's schema; empty if there is no body.
    pub takes: &'static str,
    /// Name of the reply body's schema; empty if there is no body.
    pub replies: &'static str,
    /// Whether the reply is a list of that type.
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
        "Frames that were dropped since a place (`?since=`), with the reason; recorded only while a client asks.";
    GET "/v1/stats" GetStats ("") -> "Stats" false "Counters of switches, ports and workers.";
    GET "/v1/pipes" ListPipes ("") -> "PipeInfo" true "All pipes.";
    GET "/v1/evpn" GetEvpn ("") -> "EvpnInfo" false "EVPN: its daemon, neighbours and hosts.";
    GET "/v1/evpn/macs" ListEvpnMacs ("") -> "MacInfo" true "The stations that EVPN knows.";
    GET "/v1/evpn/routes" ListEvpnRoutes ("") -> "RouteInfo" true "The routes of other hosts.";
    POST "/v1/evpn/macs/{mac}/release" ReleaseEvpnMac ("") -> "" false
        "Lets a station of a segment (`?vni=`) move again that moved too often.";
    GET "/v1/quotas" GetQuotas ("") -> "QuotaInfo" false "What users hold, and may hold.";
    PATCH "/v1/quotas" PatchQuotas ("Quotas") -> "QuotaInfo" false
        "Changes the limits that are named; null is as by default.";
    POST "/v1/upgrade" Upgrade ("Upgrade") -> "Upgraded" false
        "Replaces data processes by the binary that is installed now.";
    POST "/v1/stop" Stop ("Stop") -> "" false "Stops the daemon.";
    GET "/metrics" GetMetrics ("") -> "" false "Prometheus metrics, as text.";
    GET "/openapi.json" GetOpenApi ("") -> "" false "This description.";
}
