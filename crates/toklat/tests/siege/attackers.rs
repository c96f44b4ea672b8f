//! All kinds of attackers. Each runs in a process of its own, as a user of its own, until it is
//! killed.

use std::path::PathBuf;

use super::acts::{Act, Step};
use super::{blows, directory, guests, processes};
use harness::frames::frame;

/// The phase in which an attacker attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In the long phase: these attacks may not lengthen a turn.
    Always,
    /// In the last phase: the first attack cannot be predicted, and is charged to its user.
    Unforeseen,
}

/// One kind of attack.
#[derive(Debug)]
pub struct Attacker {
    /// The name of the attack, and of the part that its process plays.
    pub name: &'static str,
    /// The phase in which the attacker attacks.
    pub when: When,
    /// The ports that the attack needs, in the syntax of the topology file; `UID` stands for its
    /// user, `OWN` for a directory of that user's.
    pub ports: &'static str,
    /// What it does.
    pub act: Act,
}

/// The attacker that claims addresses of others.
pub const FORGER: &str = "forged addresses";

/// The attacker whose files answer no close.
pub const SLOW_FILES: &str = "slow files";

const fn always(name: &'static str, ports: &'static str, act: Act) -> Attacker {
    Attacker { name, when: When::Always, ports, act }
}

const fn unforeseen(name: &'static str, act: Act) -> Attacker {
    Attacker { name, when: When::Unforeseen, ports: "", act }
}

/// All kinds of attackers. The number of each one's user depends on the place in this list.
pub const ATTACKERS: &[Attacker] = &[
    always(
        "lingering descriptors",
        "[switch.vale0.port.linger]\nowner = UID\nkind = { vhost_user = {} }\n",
        Act::Run(blows::linger),
    ),
    always(
        SLOW_FILES,
        "[switch.vale0.port.slow]\nowner = UID\nkind = { vhost_user = {} }\n",
        Act::Run(blows::slow_files),
    ),
    always(
        "address space",
        "[switch.vale0.port.space]\nowner = UID\nkind = { vhost_user = {} }\n",
        Act::Run(blows::space),
    ),
    always(
        "chains of nothing",
        "[switch.vale0.port.chains]\nowner = UID\nkind = { vhost_user = {} }\n",
        Act::Run(guests::chains),
    ),
    always(
        "rings on and off",
        "[switch.vale0.port.rings]\nowner = UID\nkind = { vhost_user = {} }\n",
        Act::Run(guests::rings),
    ),
    always(
        "e1000 rings",
        "[switch.vale0.port.card]\nowner = UID\n\
         kind = { vfio_user = { nic = { model = '82540em' } } }\n",
        Act::Run(guests::e1000),
    ),
    always("hoarded ports", "", Act::Run(blows::exhaust_quotas)),
    always("switches that come and go", "", Act::Run(processes::switches)),
    always("programs that crash", "", Act::Run(processes::crash)),
    always("memory", "", Act::Run(processes::memory)),
    always(
        "links in place of sockets",
        "[switch.vale0.port.link]\nowner = UID\nkind = { stream = { address = 'OWN/a.sock' } }\n\
         [switch.vale0.port.links]\nowner = UID\n\
         kind = { dgram = { local = 'OWN/d.sock', remote = 'OWN/r.sock' } }\n",
        Act::Run(processes::links),
    ),
    always("log lines", "", Act::Run(blows::log_lines)),
    always("strangers over TCP", "", Act::Run(blows::strangers)),
    always(
        "double tags",
        "[switch.vale0.port.tags]\nowner = UID\n",
        Act::Frames { port: "vale0:tags", slots: 64, burst: 1, make: double_tagged },
    ),
    always(
        FORGER,
        "[switch.vale0.port.forger]\nowner = UID\nguard = true\nmacs = [\"02:00:00:00:00:66\"]\n\
         ips = [\"10.0.0.7\"]\n",
        Act::Frames { port: "vale0:forger", slots: 64, burst: 2, make: forged },
    ),
    always(
        "source addresses",
        "",
        Act::Frames { port: "vale0:addresses", slots: 64, burst: 64, make: of_new_source },
    ),
    always(
        "VLANs of a trunk",
        "[switch.vale0.port.trunk]\nowner = UID\nvlan = { trunk = { allowed = [] } }\n",
        Act::Frames { port: "vale0:trunk", slots: 64, burst: 64, make: tagged },
    ),
    always(
        "rings of 32,768 slots",
        "",
        Act::Frames { port: "vale0:long", slots: 32_768, burst: 1024, make: to_nobody },
    ),
    always(
        "persistent ports",
        "",
        Act::Netmap(&[Step::New("p#"), Step::Attach("vale0:p#"), Step::List]),
    ),
    always("lent regions", "", Act::Netmap(&[Step::Lend("vale0:l#", "kept#")])),
    always(
        "names that others want",
        "",
        Act::Netmap(&[Step::New("visitor"), Step::Bind("vale0:1"), Step::Bind("vale0:visitor2")]),
    ),
    always(
        "netmap requests",
        "",
        Act::Netmap(&[Step::Bind("own#:a"), Step::Bind("own#:p{1"), Step::List]),
    ),
    always(
        "holder of the token",
        "",
        Act::Token(&[
            ("POST", "/v1/switches", r#"{"name":"t#"}"#, 201),
            ("DELETE", "/v1/switches/t#", "", 204),
            ("POST", "/v1/switches/vale0/ports", PCAP_OF_THE_HOST, 403),
            ("POST", "/v1/switches/vale0/ports", INTERFACE_OF_THE_HOST, 403),
        ]),
    ),
    unforeseen("watched tokens", Act::Run(blows::watches)),
    unforeseen("punched holes", Act::Run(blows::holes)),
];

const PCAP_OF_THE_HOST: &str =
    r#"{"name":"t#","kind":{"pcap_write":{"path":"DIR/topology.json"}}}"#;
const INTERFACE_OF_THE_HOST: &str = r#"{"name":"t#","kind":{"interface":{"ifname":"lo"}}}"#;

/// The directory of the user with this number.
pub fn own_directory(uid: u32) -> PathBuf {
    directory().join(format!("user{uid}"))
}

/// The attacker hopes that a receiver strips the first tag and obeys the second (VLAN hopping).
fn double_tagged(_: u32) -> Vec<u8> {
    let mut tagged = frame(8, 2, 0);
    tagged[12..20].copy_from_slice(&[0x81, 0, 0, 0, 0x81, 0, 0, 9]);
    tagged.to_vec()
}

/// What the guard must stop: "10.0.0.1 is at me", to the honest receiver and to all.
fn forged(n: u32) -> Vec<u8> {
    let arp = [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 0x66, 10, 0, 0, 1];
    let mut reply = frame(0x66, if n.is_multiple_of(2) { 2 } else { 0xff }, 0);
    reply[12..14].copy_from_slice(&[8, 6]);
    reply[14..32].copy_from_slice(&arp);
    reply.to_vec()
}

fn of_new_source(n: u32) -> Vec<u8> {
    let mut new = frame(9, 9, 0);
    new[7..11].copy_from_slice(&n.to_be_bytes());
    new.to_vec()
}

/// A frame of another source in each VLAN, so that each is one to learn.
fn tagged(n: u32) -> Vec<u8> {
    let mut tagged = of_new_source(n / 4094);
    let [high, low] = (1 + (n % 4094) as u16).to_be_bytes();
    tagged[12..16].copy_from_slice(&[0x81, 0, high, low]);
    tagged
}

/// A frame that goes to all ports, as no port has its address.
fn to_nobody(n: u32) -> Vec<u8> {
    frame(14, 0x70 + (n % 16) as u8, 0).to_vec()
}
