//! The options of `toklat port add` and `port set`, and the API's words for them.
//!
//! Only what was given is sent, so that one list of options serves both: a new port takes defaults
//! for the rest, an old one keeps what it has.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use control::units::{Rate, interrupts};
use control::users::UserId;
use dataplane::config::{Combine, Doorbell, Interrupts, NicConfig, NicModel, Policy};
use fabric::VlanMode;
use frame::{Mac, VlanId, Vni};
use link::{Impairment, RateLimiter, TokenBucket};
use nic::kind::KINDS;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::ranges::numbers;
use crate::api::PortKind;
use control::Result;

/// `N`, or a word that means that there is none.
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
    const fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Nothing => None,
        }
    }
}

fn on_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err("say on or off"),
    }
}

/// What `--tx-limit` and `--rx-limit` say: bits a second, frames a second, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RateLimit(RateLimiter);

impl FromStr for RateLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut limiter = RateLimiter::default();
        for rate in text.split(',') {
            let (bucket, tokens) = match rate.parse() {
                Ok(Rate::Bits(bits)) => (&mut limiter.bandwidth, bits / 8),
                Ok(Rate::Frames(frames)) if rate.ends_with("pps") => (&mut limiter.ops, frames),
                _ => return Err(format!("{rate:?} is no rate such as 1Gb/s or 100kpps")),
            };
            if bucket.replace(TokenBucket::per_second(tokens)).is_some() {
                return Err("say one rate in bits and one in frames at most".into());
            }
        }
        limiter.check().map_err(|e| e.to_string())?;
        Ok(Self(limiter))
    }
}

/// What `--tx-impair` and `--rx-impair` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BadLink(Impairment);

impl FromStr for BadLink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut link = Impairment::default();
        for word in text.split(',') {
            let whole = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number"));
            match word.split_once('=') {
                Some(("loss", part)) => link.loss_ppm = share(part)?,
                Some(("duplicate", part)) => link.duplicate_ppm = share(part)?,
                Some(("reorder", part)) => link.reorder_ppm = share(part)?,
                Some(("delay", time)) => link.delay_us = microseconds(time)?,
                Some(("jitter", time)) => link.jitter_us = microseconds(time)?,
                Some(("limit", frames)) => {
                    link.limit = u32::try_from(whole(frames)?).unwrap_or(u32::MAX);
                }
                Some(("seed", seed)) => link.seed = whole(seed)?,
                _ => {
                    let known = "loss=, delay=, jitter=, reorder=, duplicate=, limit=, seed=";
                    return Err(format!("{word:?} is none of {known}"));
                }
            }
        }
        link.check().map_err(|e| e.to_string())?;
        Ok(Self(link))
    }
}

/// A share in percent, as in `0.1%`, in parts per million.
fn share(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let ppm = percent.filter(|percent| (0.0..=100.0).contains(percent));
    let ppm = ppm.map(|percent| (percent * 1e4).round() as u32);
    ppm.ok_or_else(|| format!("{text:?} is no share such as 0.1%"))
}

/// A time such as `10ms` or `250us`.
fn microseconds(text: &str) -> Result<u32, String> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let in_unit = |(unit, scale): &(&str, f64)| {
        let number = text.strip_suffix(unit)?.parse::<f64>().ok()?;
        Some(number * scale).filter(|us| (0.0..=4e9).contains(us))
    };
    let us = units.iter().find_map(in_unit).map(|us| us.round() as u32);
    us.ok_or_else(|| format!("{text:?} is no time such as 10ms or 250us"))
}

fn up_down(text: &str) -> Result<bool, &'static str> {
    match text {
        "up" => Ok(true),
        "down" => Ok(false),
        _ => Err("say up or down"),
    }
}

/// A port's rules and its worker.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Rules")]
pub struct PolicyOptions {
    /// Senders wait for this port while it frees any slot within the switch's stall time, instead of losing frames
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_name = "on|off", value_parser = on_off)]
    lossless: Option<bool>,
    /// Talks only to ports that are not protected
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_name = "on|off", value_parser = on_off)]
    protected: Option<bool>,
    /// Member of one VLAN; its frames carry no tag, or one with a priority only
    #[arg(long, value_name = "VLAN", group = "vlan")]
    vlan_access: Option<VlanId>,
    /// Member of these VLANs, as in 10,20 or 10-20, or all; its frames carry tags
    #[arg(long, value_name = "VLANS", group = "vlan", value_parser = vlans)]
    vlan_trunk: Option<Vlans>,
    /// Knows nothing of VLANs: tags are payload (the default)
    #[arg(long, group = "vlan")]
    vlan_unaware: bool,
    /// On a trunk: the VLAN of frames without a tag, which are dropped otherwise
    #[arg(long, value_name = "VLAN", requires = "vlan_trunk")]
    native: Option<VlanId>,
    /// An address that is always here and never learned elsewhere; give it once for each address
    #[arg(long = "mac", value_name = "MAC|none")]
    macs: Vec<Or<Mac>>,
    /// Only its addresses (--mac, or else the first one seen) may be source addresses
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_name = "on|off", value_parser = on_off)]
    locked: Option<bool>,
    /// Anti-spoofing: only its addresses (--mac) may send, also as senders of ARP and neighbour discovery, and
    /// no DHCP server or router is heard
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_name = "on|off", value_parser = on_off)]
    guard: Option<bool>,
    /// Most flooded frames a second that it may send [default: 100000]
    #[arg(long, value_name = "N|off")]
    flood_limit: Option<Or<u32>>,
    /// Most that it may send, in bits or frames a second, as in 1Gb/s or 500Mb/s,100kpps: its frames wait in its own ring
    #[arg(long, value_name = "RATE|off")]
    tx_limit: Option<Or<RateLimit>>,
    /// Most that it may receive: what is beyond is dropped and counted, or waits if the port is lossless
    #[arg(long, value_name = "RATE|off")]
    rx_limit: Option<Or<RateLimit>>,
    /// Make the link bad for what it sends, to test what must live with that, as in
    /// loss=0.1%,delay=10ms,jitter=1ms,reorder=1%,duplicate=0.1%,seed=7
    #[arg(long, value_name = "off|loss=P%,delay=T,...")]
    tx_impair: Option<Or<BadLink>>,
    /// Make the link bad for what it receives
    #[arg(long, value_name = "off|loss=P%,delay=T,...")]
    rx_impair: Option<Or<BadLink>>,
    /// Refuse to learn addresses that move too often [default: on]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    flap_guard: Option<bool>,
    /// Largest payload of a frame in bytes, up to 9216 [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16)
        .range(1..=Policy::MAX_MTU as i64))]
    mtu: Option<u16>,
    /// A virtual machine's link: its guest sees a cable that is plugged in, or is not [default: up]
    #[arg(long, value_name = "up|down", value_parser = up_down)]
    link: Option<bool>,
    /// Hold a virtual machine's interrupts back: at most N a second, or each waiting US microseconds for
    /// more frames (adaptive: only under heavy traffic), or only those (sent) that tell of frames that were
    /// sent, as in rate=20000 or delay=50,adaptive or sent=1000
    #[arg(long, visible_alias = "itr", value_name = "off|rate=N,delay=US,adaptive,sent=US", value_parser = interrupts)]
    interrupts: Option<Interrupts>,
    /// The worker that serves it, from 0; a running port moves there [default: least loaded]
    #[arg(long, value_name = "N")]
    worker: Option<u16>,
    /// Copies of what this port sends go to that port of the switch too
    #[arg(long, value_name = "PORT|none")]
    mirror_in: Option<Or<String>>,
    /// Copies of what this port receives go to that port of the switch too
    #[arg(long, value_name = "PORT|none")]
    mirror_out: Option<Or<String>>,
    /// The only user, by name or uid, who may open it (beside root and the daemon's user)
    #[arg(long, value_name = "USER|none")]
    owner: Option<Or<UserId>>,
}

/// VLANs of a trunk; empty for all.
#[derive(Clone, Debug)]
struct Vlans(Vec<VlanId>);

fn vlans(text: &str) -> Result<Vlans, String> {
    if text == "all" {
        return Ok(Vlans(Vec::new()));
    }
    let vlan = |id| VlanId::new(id).ok_or_else(|| format!("{id} is no VLAN: use 1 to 4094"));
    numbers(text)?.into_iter().map(vlan).collect::<Result<_, _>>().map(Vlans)
}

impl PolicyOptions {
    /// What was given, as the API names it.
    #[must_use]
    pub fn patch(&self) -> Map<String, Value> {
        let mut patch = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            patch.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("lossless", self.lossless.map(Value::from));
        put("protected", self.protected.map(Value::from));
        put("vlan", self.vlan().map(|mode| json!(mode)));
        put("locked", self.locked.map(Value::from));
        put("guard", self.guard.map(Value::from));
        put("flood_limit", self.flood_limit.as_ref().map(or_null));
        put("tx_rate_limiter", self.tx_limit.as_ref().map(or_null));
        put("rx_rate_limiter", self.rx_limit.as_ref().map(or_null));
        put("tx_impairment", self.tx_impair.as_ref().map(or_null));
        put("rx_impairment", self.rx_impair.as_ref().map(or_null));
        put("flap_guard", self.flap_guard.map(Value::from));
        put("mtu", self.mtu.map(Value::from));
        put("link", self.link.map(Value::from));
        put("interrupts", self.interrupts.map(|interrupts| json!(interrupts)));
        put("worker", self.worker.map(Value::from));
        put("mirror_ingress", self.mirror_in.as_ref().map(or_null));
        put("mirror_egress", self.mirror_out.as_ref().map(or_null));
        put("owner", self.owner.as_ref().map(or_null));
        if !self.macs.is_empty() {
            let macs: Vec<&Mac> = self.macs.iter().filter_map(Or::value).collect();
            put("macs", Some(json!(macs)));
        }
        patch
    }

    fn vlan(&self) -> Option<VlanMode> {
        if self.vlan_unaware {
            return Some(VlanMode::Unaware);
        }
        if let Some(vlan) = self.vlan_access {
            return Some(VlanMode::Access(vlan));
        }
        let Vlans(allowed) = self.vlan_trunk.clone()?;
        Some(VlanMode::Trunk { allowed, native: self.native })
    }
}

/// The value in JSON; null for `off` or `none`.
pub(super) fn or_null<T: Serialize>(value: &Or<T>) -> Value {
    json!(value.value())
}

/// What a port is attached to; none of these: whoever opens it by its name.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "What it is attached to (without any: whoever opens it by its name)")]
pub struct KindOptions {
    /// A tap interface, called as the port unless IFNAME is given; the daemon needs CAP_NET_ADMIN
    #[arg(long, num_args = 0..=1, value_name = "IFNAME", groups = ["kind", "queued", "placed"])]
    tap: Option<Option<String>>,
    /// The network namespace of the tap, or of the network between the hosts: a name in /run/netns, a
    /// process id, or an absolute path
    #[arg(long, value_name = "NAME", requires = "placed")]
    netns: Option<String>,
    /// Queues of the tap, 1 to 8 [default: 1]; most pairs of queues of the virtual machine, 1 to 16
    /// [default: 16], whose front end says how many it uses
    #[arg(long, value_name = "N", requires = "queued",
        value_parser = clap::value_parser!(u16).range(1..=dataplane::state::RINGS as i64))]
    queues: Option<u16>,
    /// Sends the frames of a pcap or pcapng file
    #[arg(long, value_name = "FILE", group = "kind")]
    pcap_read: Option<PathBuf>,
    /// Start the file again at its end
    #[arg(long = "loop", requires = "pcap_read")]
    repeat: bool,
    /// How many times as fast as recorded, as in 0.5; max for as fast as possible [default: 1]
    #[arg(long, value_name = "N|max", requires = "pcap_read", value_parser = speed_percent)]
    speed: Option<u32>,
    /// Writes what it receives into a pcapng file
    #[arg(long, value_name = "FILE", group = "kind")]
    pcap_write: Option<PathBuf>,
    /// Takes everything and sends nothing
    #[arg(long, group = "kind")]
    null: bool,
    /// A virtual machine's network card, whose front end (QEMU, ...) connects to this socket [default:
    /// SWITCH-PORT.sock in the runtime directory]
    #[arg(long, value_name = "SOCKET", groups = ["kind", "queued", "waits"], num_args = 0..=1)]
    vhost_user: Option<Option<PathBuf>>,
    /// A virtual machine's network card of this model, emulated: its front end (QEMU since 10.1: vfio-user-pci)
    /// connects to --socket
    #[arg(long, value_name = "MODEL", groups = ["kind", "nics"], value_parser = nic_model)]
    nic: Option<NicModel>,
    /// Where the front end of --nic connects [default: SWITCH-PORT.sock in the runtime directory]
    #[arg(long, value_name = "SOCKET", requires = "nics")]
    socket: Option<PathBuf>,
    /// The card offers a shared status block to drivers that know of it
    #[arg(long, requires = "nics")]
    csb: bool,
    /// Under heavy traffic, frames wait for others of their guest: until there are N, or for T microseconds
    #[arg(long, value_name = "N,T", requires = "nics", value_parser = combine)]
    combine: Option<Combine>,
    /// How doorbells reach the card: as messages, or by memory that its worker looks at, also when idle, once
    /// a millisecond; then all other writes wait for their end [default: trap]
    #[arg(long, value_name = "trap|shared", requires = "nics", value_parser = doorbell)]
    doorbell: Option<Doorbell>,
    /// Exchanges frames over a stream (QEMU's -netdev stream, passt): a path, or 127.0.0.1:PORT for TCP,
    /// to which the peer connects [default: as with --vhost-user]
    #[arg(long, value_name = "PLACE", groups = ["kind", "waits"], num_args = 0..=1)]
    stream: Option<Option<String>>,
    /// Connect to the front end or peer, which listens (QEMU: server=on)
    #[arg(long, requires = "waits")]
    client: bool,
    /// Exchanges frames in datagrams (QEMU's -netdev dgram): our end, a path or 127.0.0.1:PORT
    #[arg(long, value_name = "PLACE", group = "kind", requires = "remote")]
    dgram: Option<String>,
    /// A VXLAN tunnel of this segment to other hosts: toklat, the Linux kernel, or any other end of VXLAN
    #[arg(long, value_name = "VNI", groups = ["kind", "tunnels", "placed"],
        requires_all = ["local", "peers"])]
    vxlan: Option<Vni>,
    /// This host's address in the network between the hosts
    #[arg(long, value_name = "IP", requires = "tunnels")]
    local: Option<IpAddr>,
    /// Another host's address there; give it once for each host
    #[arg(long = "peer", value_name = "IP", requires = "tunnels")]
    peers: Vec<IpAddr>,
    /// The UDP port of all of them [default: 4789]
    #[arg(long, value_name = "PORT", requires = "tunnels",
        value_parser = clap::value_parser!(u16).range(1..))]
    vxlan_port: Option<u16>,
    /// The other end of --dgram
    #[arg(long, value_name = "PLACE", requires = "dgram")]
    remote: Option<String>,
}

/// `pcnet` is the one of them that QEMU has, too.
fn nic_model(text: &str) -> Result<NicModel, String> {
    let text = if text == "pcnet" { "am79c970a" } else { text };
    let known = || KINDS.map(|kind| kind.name).join(", ");
    serde_json::from_value(text.into()).map_err(|_| format!("say one of {}", known()))
}

fn doorbell(text: &str) -> Result<Doorbell, &'static str> {
    serde_json::from_value(text.into()).map_err(|_| "say trap or shared")
}

fn combine(text: &str) -> Result<Combine, &'static str> {
    let two = text.split_once(',').and_then(|(n, t)| Some((n.parse().ok()?, t.parse().ok()?)));
    let (frames, delay_us) = two.ok_or("say N,T: frames, and microseconds, as in 16,50")?;
    Ok(Combine { frames, delay_us })
}

fn speed_percent(text: &str) -> Result<u32, &'static str> {
    if text == "max" {
        return Ok(0);
    }
    let times: f64 = text.parse().map_err(|_| "say how many times as fast, as in 2, or max")?;
    if !(0.01..=1_000_000.0).contains(&times) {
        return Err("from 0.01 to 1000000 times, or max");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((times * 100.0).round() as u32)
}

/// True for an IP address with something after it that is no port, which would be a strange name of a file.
fn is_meant_as_an_address(text: &str) -> bool {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok() || host == "localhost"
}

impl KindOptions {
    /// What a port called `port` is attached to. Files get absolute paths: the daemon opens them.
    ///
    /// # Errors
    /// If a path is not UTF-8 or has no absolute form.
    pub fn kind(self, port: &str) -> Result<PortKind> {
        let absolute = |path: PathBuf| -> Result<String> {
            let path = std::path::absolute(&path)?;
            path.into_os_string()
                .into_string()
                .map_err(|path| anyhow::anyhow!("The path {path:?} is not UTF-8; rename the file"))
        };
        if let Some(ifname) = self.tap {
            let ifname = ifname.unwrap_or_else(|| port.to_owned());
            let queues = self.queues.unwrap_or(1);
            return Ok(PortKind::Tap { ifname, netns: self.netns, queues });
        }
        if let Some(path) = self.pcap_read {
            let speed_percent = self.speed.unwrap_or(100);
            let path = absolute(path)?;
            return Ok(PortKind::PcapRead { path, repeat: self.repeat, speed_percent });
        }
        if let Some(path) = self.pcap_write {
            return Ok(PortKind::PcapWrite { path: absolute(path)? });
        }
        let place = |text: String| match text.parse::<std::net::SocketAddr>() {
            Ok(_) => Ok(text),
            Err(_) if is_meant_as_an_address(&text) => {
                anyhow::bail!(
                    "{text} is no address with a port; use 127.0.0.1:PORT, or a path: ./{text}"
                )
            }
            Err(_) => absolute(text.into()),
        };
        if let Some(address) = self.stream {
            let address = address.map(place).transpose()?;
            return Ok(PortKind::Stream { address, client: self.client });
        }
        if let (Some(local), Some(remote)) = (self.dgram, self.remote) {
            return Ok(PortKind::Dgram { local: place(local)?, remote: place(remote)? });
        }
        if let (Some(vni), Some(local)) = (self.vxlan, self.local) {
            let port = self.vxlan_port.unwrap_or(frame::VXLAN_PORT);
            let (peers, netns) = (self.peers, self.netns);
            return Ok(PortKind::Vxlan { vni, local, peers, port, netns });
        }
        if let Some(path) = self.vhost_user {
            let path = path.map(absolute).transpose()?;
            let queues = self.queues.unwrap_or(dataplane::state::RINGS as u16);
            return Ok(PortKind::VhostUser { path, client: self.client, queues });
        }
        if let Some(model) = self.nic {
            let path = self.socket.map(absolute).transpose()?;
            let doorbell = self.doorbell.unwrap_or_default();
            let nic = NicConfig { model, csb: self.csb, combine: self.combine, doorbell };
            return Ok(PortKind::VfioUser { path, nic });
        }
        Ok(if self.null { PortKind::Null } else { PortKind::Ring })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::api::PortSpec;

    fn bucket(size: u64, refill_time: u64) -> TokenBucket {
        TokenBucket { size, one_time_burst: 0, refill_time }
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        policy: PolicyOptions,
        #[command(flatten)]
        kind: KindOptions,
    }

    fn parse(options: &[&str]) -> Result<Line, clap::Error> {
        Line::try_parse_from([&["x"], options].concat())
    }

    fn spec(options: &[&str]) -> PortSpec {
        let line = parse(options).unwrap();
        let mut body = line.policy.patch();
        body.insert("kind".into(), json!(line.kind.kind("p1").unwrap()));
        serde_json::from_value(body.into()).unwrap()
    }

    #[test]
    fn links_that_cannot_be_so_bad_are_refused() {
        for (wrong, why) in [
            ("loss=101%", "share"),
            ("loss=5", "share"),
            ("delay=10", "time"),
            ("delay=11s", "at most 10000000 us"),
            ("delay=1ms,jitter=2ms", "jitter"),
            ("reorder=1%", "needs a delay"),
            ("limit=0", "from 1"),
            ("limit=99999999999", "from 1"),
            ("seed=-1", "number"),
            ("colour=blue", "none of"),
        ] {
            let error = wrong.parse::<BadLink>().unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn options_become_the_policy() {
        assert_eq!(spec(&[]), PortSpec::default());
        let vlan = |id| VlanId::new(id).unwrap();
        let held = Interrupts {
            max_rate: Some(9),
            max_delay_us: 50,
            adaptive: true,
            max_sent_delay_us: 7,
        };
        let bad = Impairment {
            loss_ppm: 1000,
            delay_us: 10_000,
            jitter_us: 250,
            reorder_ppm: 10_000,
            duplicate_ppm: 1,
            limit: 9,
            seed: 7,
        };
        let table: [(&[&str], Policy); 17] = [
            (&["--interrupts=off"], Policy::default()),
            (
                &["--interrupts=rate=9,delay=50,adaptive,sent=7"],
                Policy { interrupts: held, ..Policy::default() },
            ),
            (
                &[
                    "--tx-impair=loss=0.1%,delay=10ms,jitter=250us,reorder=1%,duplicate=0.0001%,limit=9,seed=7",
                ],
                Policy { tx_impairment: Some(bad), ..Policy::default() },
            ),
            (
                &["--rx-impair=loss=100%"],
                Policy {
                    rx_impairment: Some(Impairment {
                        loss_ppm: 1_000_000,
                        ..Impairment::default()
                    }),
                    ..Policy::default()
                },
            ),
            (&["--link=down"], Policy { link: false, ..Policy::default() }),
            (
                &["--lossless", "--protected=on"],
                Policy { lossless: true, protected: true, ..Policy::default() },
            ),
            (
                &["--lossless=off", "--flap-guard", "off"],
                Policy { flap_guard: false, ..Policy::default() },
            ),
            (
                &["--vlan-access", "7"],
                Policy { vlan: VlanMode::Access(vlan(7)), ..Policy::default() },
            ),
            (
                &["--vlan-trunk", "10,20", "--native", "10"],
                Policy {
                    vlan: VlanMode::Trunk {
                        allowed: vec![vlan(10), vlan(20)],
                        native: Some(vlan(10)),
                    },
                    ..Policy::default()
                },
            ),
            (
                &["--vlan-trunk=all"],
                Policy {
                    vlan: VlanMode::Trunk { allowed: vec![], native: None },
                    ..Policy::default()
                },
            ),
            (
                &["--mac", "02:00:00:00:00:01", "--mac", "02:00:00:00:00:02", "--locked"],
                Policy {
                    macs: vec![Mac::local(1), Mac::local(2)],
                    locked: true,
                    ..Policy::default()
                },
            ),
            (&["--mac=none"], Policy::default()),
            (&["--flood-limit=off"], Policy { flood_limit: None, ..Policy::default() }),
            (&["--tx-limit=off", "--rx-limit", "none"], Policy::default()),
            (
                &["--tx-limit=1Gb/s,100kpps", "--rx-limit", "8kb/s"],
                Policy {
                    tx_rate_limiter: Some(RateLimiter {
                        bandwidth: Some(bucket(12_500_000, 100)),
                        ops: Some(bucket(10_000, 100)),
                    }),
                    rx_rate_limiter: Some(RateLimiter {
                        bandwidth: Some(bucket(1000, 1000)),
                        ops: None,
                    }),
                    ..Policy::default()
                },
            ),
            (
                &["--flood-limit", "5", "--mtu=9000"],
                Policy { flood_limit: Some(5), mtu: 9000, ..Policy::default() },
            ),
            (
                &["--mirror-in=p2", "--mirror-out", "none"],
                Policy { mirror_ingress: Some("p2".into()), ..Policy::default() },
            ),
        ];
        for (options, policy) in table {
            assert_eq!(spec(options).policy, policy, "{options:?}");
        }
        assert_eq!(spec(&["--worker=3", "--owner=1000"]).worker, Some(3));
    }

    #[test]
    fn options_become_the_kind() {
        let tap = |ifname: &str, netns: Option<&str>| PortKind::Tap {
            ifname: ifname.into(),
            netns: netns.map(Into::into),
            queues: 1,
        };
        let queues = PortKind::Tap { ifname: "p1".into(), netns: None, queues: 4 };
        let read = |repeat, speed_percent| PortKind::PcapRead {
            path: "/a.pcap".into(),
            repeat,
            speed_percent,
        };
        let guest = |path: Option<&str>, client, queues| {
            let path = path.map(Into::into);
            PortKind::VhostUser { path, client, queues }
        };
        let stream = |address: Option<&str>, client| {
            let address = address.map(Into::into);
            PortKind::Stream { address, client }
        };
        let dgram = |local: &str, remote: &str| {
            let (local, remote) = (local.into(), remote.into());
            PortKind::Dgram { local, remote }
        };
        let nic = |path: Option<&str>, model, csb, combine| PortKind::VfioUser {
            path: path.map(Into::into),
            nic: NicConfig { model, csb, combine, doorbell: Doorbell::Trap },
        };
        let some = Some(Combine { frames: 16, delay_us: 50 });
        let vxlan = |local: &str, peers: &[&str], port, netns: Option<&str>| PortKind::Vxlan {
            vni: Vni::new(100).unwrap(),
            local: local.parse().unwrap(),
            peers: peers.iter().map(|peer| peer.parse().unwrap()).collect(),
            port,
            netns: netns.map(Into::into),
        };
        let table: [(&[&str], PortKind); 22] = [
            (
                &["--vxlan=100", "--local=10.0.0.1", "--peer=10.0.0.2", "--peer=10.0.0.3"],
                vxlan("10.0.0.1", &["10.0.0.2", "10.0.0.3"], 4789, None),
            ),
            (
                &["--vxlan=100", "--local=::1", "--peer=::2", "--vxlan-port=8472", "--netns=n"],
                vxlan("::1", &["::2"], 8472, Some("n")),
            ),
            (&["--nic=82540em"], nic(None, NicModel::I82540em, false, None)),
            (&["--nic=one-access"], nic(None, NicModel::OneAccess, false, None)),
            (&["--nic=pcnet", "--socket=/s"], nic(Some("/s"), NicModel::Am79c970a, false, None)),
            (
                &["--nic=82574l", "--csb", "--combine=16,50"],
                nic(None, NicModel::I82574l, true, some),
            ),
            (&["--stream"], stream(None, false)),
            (
                &["--stream=/tmp/passt_1.socket", "--client"],
                stream(Some("/tmp/passt_1.socket"), true),
            ),
            (&["--stream=127.0.0.1:5000"], stream(Some("127.0.0.1:5000"), false)),
            (&["--dgram=/a", "--remote=/b"], dgram("/a", "/b")),
            (&["--dgram=[::1]:1", "--remote=[::1]:2"], dgram("[::1]:1", "[::1]:2")),
            (&["--vhost-user"], guest(None, false, 16)),
            (&["--vhost-user=/a", "--client", "--queues=2"], guest(Some("/a"), true, 2)),
            (&["--tap"], tap("p1", None)),
            (&["--tap", "--queues=4"], queues),
            (&["--tap", "tap0", "--netns=blue"], tap("tap0", Some("blue"))),
            (&["--pcap-read=/a.pcap"], read(false, 100)),
            (&["--pcap-read=/a.pcap", "--loop", "--speed=max"], read(true, 0)),
            (&["--pcap-read=/a.pcap", "--speed=0.5"], read(false, 50)),
            (&["--pcap-write=/b"], PortKind::PcapWrite { path: "/b".into() }),
            (&["--null"], PortKind::Null),
            (&["--lossless"], PortKind::Ring),
        ];
        for (options, kind) in table {
            assert_eq!(spec(options).kind, kind, "{options:?}");
        }
    }

    #[test]
    fn contradictions_are_usage_errors() {
        let table: [&[&str]; 37] = [
            &["--vxlan=100"],
            &["--vxlan=100", "--local=10.0.0.1"],
            &["--vxlan=0", "--local=10.0.0.1", "--peer=10.0.0.2"],
            &["--peer=10.0.0.2"],
            &["--vxlan=1", "--local=10.0.0.1", "--peer=10.0.0.2", "--tap"],
            &["--nic=e1000"],
            &["--csb"],
            &["--nic=82540em", "--combine=16"],
            &["--nic=82540em", "--vhost-user"],
            &["--tx-limit=fast"],
            &["--tx-limit=100"],
            &["--tx-limit=1Gb/s,2Gb/s"],
            &["--rx-limit=0.1b/s"],
            &["--rx-limit=900000Gb/s"],
            &["--interrupts=rate=0"],
            &["--interrupts=adaptive"],
            &["--interrupts=fast"],
            &["--client"],
            &["--dgram=/a"],
            &["--remote=/a"],
            &["--stream", "--vhost-user"],
            &["--stream", "--queues=2"],
            &["--vhost-user", "--queues=17"],
            &["--link=off"],
            &["--vlan-access=1", "--vlan-trunk=2"],
            &["--vlan-access=0"],
            &["--vlan-access=4095"],
            &["--vlan-trunk=1,,2"],
            &["--native=1"],
            &["--tap", "--null"],
            &["--netns=x"],
            &["--queues=2"],
            &["--loop"],
            &["--pcap-read=a", "--speed=-1"],
            &["--mtu=9217"],
            &["--mac=02:00"],
            &["--lossless=maybe"],
        ];
        for options in table {
            assert!(parse(options).is_err(), "{options:?}");
        }
    }

    #[test]
    fn what_is_not_given_is_not_changed() {
        assert!(parse(&[]).unwrap().policy.patch().is_empty());
        let patch = parse(&["--mirror-in=none", "--flood-limit=off"]).unwrap().policy.patch();
        assert_eq!(Value::from(patch), json!({ "mirror_ingress": null, "flood_limit": null }));
    }
}
