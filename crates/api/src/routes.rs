//! What can be asked.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{
    Applied, ApplyQuery, ConnectionsInfo, Dropped, DropsQuery, Events, EventsQuery, EvpnInfo,
    EvpnQuery, EvpnRoute, EvpnStation, FdbEntry, FdbFlush, FdbQuery, Group, GroupInfo, GuestEntry,
    GuestLogQuery, GuestSpec, NetmapPort, NewFdbEntry, NewPort, NewSwitch, PipeInfo, PolicyInfo,
    PortInfo, PortLink, PortSpec, QuotaInfo, Quotas, Stats, StatsQuery, Status, SwitchInfo,
    SwitchSpec, Table, TableChange, TableInfo, Topology, Upgraded,
};

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
    /// The lines of a port and their counters: replies `PortLink`.
    GetPortLink,
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
    /// All groups of rules: replies a list of `GroupInfo`.
    ListGroups,
    /// Adds a group, or replaces its rules on all switches: takes `Group`, replies `GroupInfo`.
    PutGroup,
    /// Removes a group that no port names.
    DeleteGroup,
    /// All tables of addresses: replies a list of `TableInfo`.
    ListTables,
    /// Adds or replaces a table: takes `Table`.
    PutTable,
    /// Adds prefixes to a table and removes others: takes `TableChange`.
    PatchTable,
    /// Removes a table that no rule names.
    DeleteTable,
    /// The rules of a switch's ports, with counters: replies a list of `PolicyInfo`.
    ListRules,
    /// Lets the rules of a switch count from 0.
    ZeroRules,
    /// The connections that rules have admitted: replies `ConnectionsInfo`.
    ListConnections,
    /// Frames dropped since `?since=`, or after this request: replies `Dropped`. Drops are recorded
    /// for five seconds after each such request.
    ListDrops,
    /// What has happened from number `?since=` on: replies `Events`. `?wait=` waits for the first
    /// one that many seconds, at most until the daemon stops.
    GetEvents,
    /// Counters of all switches, or of `?switch=`: replies `Stats`.
    GetStats,
    /// Replies a list of `PipeInfo`.
    ListPipes,
    /// The persistent ports of netmap programs: replies a list of `NetmapPort`.
    ListNetmapPorts,
    /// Removes a persistent port of a user's netmap programs.
    DeleteNetmapPort,
    /// The topology's guests: replies a list of `GuestEntry`.
    ListGuests,
    /// Replies `GuestEntry`.
    GetGuest,
    /// Starts guests, or replaces them: takes `GuestSpec`, replies `GuestEntry`. Over TCP, programs
    /// are those that are built in.
    PutGuest,
    /// Ends the guests of an entry, and removes it.
    DeleteGuest,
    /// Ends the guests of an entry, which stay ended until the entry is put again.
    StopGuest,
    /// What a guest has printed, as text: the last one to two MiB. `?guest=` names one of several.
    GetGuestLog,
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

/// Draws the schema of a type, by a generator that keeps the definitions.
pub type Draw = fn(&mut SchemaGenerator) -> Schema;

/// A request's body.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    /// Its schema.
    pub draw: Draw,
    /// It may be left out, and is as by default then.
    pub optional: bool,
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
    /// The request's query; `None` if there is none.
    pub asks: Option<Draw>,
    /// The request's body; `None` if there is none.
    pub takes: Option<Body>,
    /// The reply's body; `None` if there is none, or if it is not of the API's types.
    pub replies: Option<Draw>,
    /// One line about it.
    pub summary: &'static str,
}

fn drawn<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

macro_rules! draw {
    () => {
        None
    };
    ($kind:ty) => {
        Some(drawn::<$kind> as Draw)
    };
}

macro_rules! body {
    () => {
        None
    };
    (optional $kind:ty) => {
        Some(Body { draw: drawn::<$kind>, optional: true })
    };
    ($kind:ty) => {
        Some(Body { draw: drawn::<$kind>, optional: false })
    };
}

macro_rules! routes {
    ($($method:ident $path:literal $op:ident ($($asks:tt)*) ($($takes:tt)*) -> ($($replies:tt)*) $summary:literal;)*) => {
        /// Everything that can be asked.
        pub const ROUTES: &[Route] = &[$(Route {
            method: stringify!($method), path: $path, operation: Operation::$op,
            asks: draw!($($asks)*), takes: body!($($takes)*), replies: draw!($($replies)*),
            summary: $summary,
        }),*];
    };
}

routes! {
    GET "/v1/status" GetStatus () () -> (Status) "The daemon itself.";
    GET "/v1/topology" GetTopology () () -> (Topology) "Everything as configured.";
    PUT "/v1/topology" PutTopology (ApplyQuery) (Topology) -> (Applied)
        "Adds and changes what is named, and, pruned, removes what the same file made and does not name.";
    GET "/v1/switches" ListSwitches () () -> (Vec<SwitchInfo>) "All switches.";
    POST "/v1/switches" AddSwitch () (NewSwitch) -> (SwitchInfo) "Adds a switch.";
    GET "/v1/switches/{switch}" GetSwitch () () -> (SwitchInfo) "One switch.";
    PATCH "/v1/switches/{switch}" PatchSwitch () (SwitchSpec) -> (SwitchInfo)
        "Changes the settings that are named; ports have their own paths.";
    DELETE "/v1/switches/{switch}" DeleteSwitch () () -> () "Removes a switch and its ports.";
    GET "/v1/switches/{switch}/ports" ListPorts () () -> (Vec<PortInfo>) "All ports of a switch.";
    POST "/v1/switches/{switch}/ports" AddPort () (NewPort) -> (PortInfo) "Adds a port.";
    GET "/v1/switches/{switch}/ports/{port}" GetPort () () -> (PortInfo) "One port.";
    GET "/v1/switches/{switch}/ports/{port}/link" GetPortLink () () -> (PortLink)
        "The lines of a port's link: queue, drops, times in the queue.";
    PATCH "/v1/switches/{switch}/ports/{port}" PatchPort () (PortSpec) -> (PortInfo)
        "Changes the settings that are named.";
    DELETE "/v1/switches/{switch}/ports/{port}" DeletePort () () -> () "Removes a port.";
    GET "/v1/switches/{switch}/fdb" ListFdb () () -> (Vec<FdbEntry>) "The forwarding table.";
    POST "/v1/switches/{switch}/fdb" AddFdb () (NewFdbEntry) -> ()
        "Adds an address that stays.";
    POST "/v1/switches/{switch}/fdb/flush" FlushFdb () (optional FdbFlush) -> ()
        "Forgets learned addresses.";
    DELETE "/v1/switches/{switch}/fdb/{mac}" DeleteFdb (FdbQuery) () -> () "Removes an address.";
    GET "/v1/switches/{switch}/drops" ListDrops (DropsQuery) () -> (Dropped)
        "Frames that were dropped since a place (`?since=`), with the reason; recorded only while a client asks.";
    GET "/v1/switches/{switch}/rules" ListRules () () -> (Vec<PolicyInfo>)
        "The rules of a switch's ports, with counters.";
    POST "/v1/switches/{switch}/rules/zero" ZeroRules () () -> ()
        "Lets the rules of a switch count from 0.";
    GET "/v1/switches/{switch}/connections" ListConnections () () -> (ConnectionsInfo)
        "The connections that the rules of a switch have admitted.";
    GET "/v1/groups" ListGroups () () -> (Vec<GroupInfo>) "Groups of rules.";
    PUT "/v1/groups/{group}" PutGroup () (Group) -> (GroupInfo)
        "Adds a group, or replaces its rules on all switches.";
    DELETE "/v1/groups/{group}" DeleteGroup () () -> () "Removes a group that no port names.";
    GET "/v1/tables" ListTables () () -> (Vec<TableInfo>) "Tables of addresses.";
    PUT "/v1/tables/{table}" PutTable () (Table) -> () "Adds or replaces a table.";
    PATCH "/v1/tables/{table}" PatchTable () (TableChange) -> ()
        "Adds prefixes to a table and removes others.";
    DELETE "/v1/tables/{table}" DeleteTable () () -> () "Removes a table that no rule names.";
    GET "/v1/events" GetEvents (EventsQuery) () -> (Events)
        "What has happened since a number (`?since=`), if need be after a wait (`?wait=` seconds).";
    GET "/v1/stats" GetStats (StatsQuery) () -> (Stats) "Counters of switches, ports and workers.";
    GET "/v1/pipes" ListPipes () () -> (Vec<PipeInfo>) "All pipes.";
    GET "/v1/netmap/ports" ListNetmapPorts () () -> (Vec<NetmapPort>)
        "The ports that netmap programs of all users made to stay.";
    DELETE "/v1/netmap/ports/{uid}/{netmap_port}" DeleteNetmapPort () () -> ()
        "Removes such a port of a user, also from its switches.";
    GET "/v1/guests" ListGuests () () -> (Vec<GuestEntry>) "The topology's guests.";
    GET "/v1/guests/{guest}" GetGuest () () -> (GuestEntry) "The guests of one entry.";
    PUT "/v1/guests/{guest}" PutGuest () (GuestSpec) -> (GuestEntry)
        "Starts guests, or replaces them if their settings differ or one has ended.";
    DELETE "/v1/guests/{guest}" DeleteGuest () () -> () "Ends guests, and removes their entry.";
    POST "/v1/guests/{guest}/stop" StopGuest () () -> () "Ends guests; their entry stays.";
    GET "/v1/guests/{guest}/log" GetGuestLog (GuestLogQuery) () -> ()
        "What a guest has printed, as text.";
    GET "/v1/evpn" GetEvpn () () -> (EvpnInfo) "EVPN: its daemon, neighbours and hosts.";
    GET "/v1/evpn/macs" ListEvpnMacs () () -> (Vec<EvpnStation>) "The stations that EVPN knows.";
    GET "/v1/evpn/routes" ListEvpnRoutes () () -> (Vec<EvpnRoute>) "The routes of other hosts.";
    POST "/v1/evpn/macs/{mac}/release" ReleaseEvpnMac (EvpnQuery) () -> ()
        "Lets a station of a segment (`?vni=`) move again that moved too often.";
    GET "/v1/quotas" GetQuotas () () -> (QuotaInfo) "What users hold, and may hold.";
    PATCH "/v1/quotas" PatchQuotas () (Quotas) -> (QuotaInfo)
        "Changes the limits that are named; null is as by default.";
    POST "/v1/upgrade" Upgrade () (optional super::Upgrade) -> (Upgraded)
        "Replaces data processes by the binary that is installed now.";
    POST "/v1/stop" Stop () (optional super::Stop) -> () "Stops the daemon.";
    GET "/metrics" GetMetrics () () -> () "Prometheus metrics, as text.";
    GET "/openapi.json" GetOpenApi () () -> () "This description.";
}
