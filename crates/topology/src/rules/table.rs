//! The rules of ports, a row each, in the order of help texts.

use super::{Rule, Word, values as v};

/// All rules of a port, and its worker and owner.
pub const RULES: &[Rule] = &[
    Rule::new(
        "lossless",
        &[Word::switch(
            "lossless",
            "Senders wait for this port instead of losing frames, as long as it frees a slot \
             within the switch's stall time",
        )],
    ),
    Rule::new(
        "protected",
        &[Word::switch("protected", "Exchange frames only with ports that are not protected")],
    ),
    Rule::new(
        "vlan",
        &[
            Word::new("vlan_access", "VLAN", v::vlan_id)
                .help("Member of one VLAN; its frames carry no tag, or one with a priority only")
                .exclusive(),
            Word::new("vlan_trunk", "VLANS", v::vlan_ids)
                .help("Member of these VLANs, as in 10,20 or 10-20, or all; its frames carry tags")
                .exclusive(),
            Word::new("vlan_unaware", "", v::on_off)
                .help("Ignore VLANs: tags are payload (the default)")
                .alone()
                .exclusive(),
            Word::new("native", "VLAN", v::vlan_id)
                .help("On a trunk: the VLAN of frames without a tag [default: drop them]")
                .with("vlan_trunk"),
        ],
    )
    .made(v::vlan)
    .said(v::say_vlan)
    .column(),
    Rule::new(
        "macs",
        &[Word::new("mac", "MAC|none", v::mac)
            .help(
                "A static address of the port, never learned elsewhere; give the option once for \
                 each address",
            )
            .each()],
    )
    .made(v::list)
    .said(v::say_nothing),
    Rule::new(
        "locked",
        &[Word::switch(
            "locked",
            "Allow only the port's addresses (--mac, else the first one that it sends) as source \
             addresses",
        )],
    ),
    Rule::new(
        "guard",
        &[Word::switch(
            "guard",
            "Anti-spoofing: allow only the port's addresses (--mac) as sources, in ARP and \
             neighbour discovery too; drop what DHCP servers and routers send",
        )],
    ),
    Rule::new(
        "ips",
        &[Word::new("ip", "IP,...|none", v::ip)
            .help(
                "With --guard: allow only these IP addresses as sources and in ARP and neighbour \
                 discovery, as in 10.0.0.7,fd00::7",
            )
            .listed()],
    )
    .made(v::list)
    .said(v::say_nothing),
    Rule::new(
        "groups",
        &[Word::new("groups", "GROUP,...|none", v::name)
            .help("Rules: the port's groups, in order, as in web,admin (toklat fw)")
            .listed()],
    )
    .made(v::list)
    .said(v::say_groups),
    Rule::new(
        "mac_limit",
        &[Word::new("mac_limit", "N", v::number::<u32>)
            .help("Maximum number of addresses that are learned at the port [default: 4096]")],
    ),
    Rule::new(
        "flood_limit",
        &[Word::new("flood_limit", "N|off", v::limit)
            .help("Maximum flooded frames a second that the port may send [default: 100000]")],
    )
    .said(v::say_limit),
    Rule::new(
        "tx_rate_limiter",
        &[Word::new("tx_limit", "RATE|off", v::rates).help(
            "Rate limit for what the port sends, such as 1Gb/s or 500Mb/s,100kpps; frames beyond \
             it wait in the port's own ring",
        )],
    )
    .said(|value| v::say_rates("tx_limit", value)),
    Rule::new(
        "rx_rate_limiter",
        &[Word::new("rx_limit", "RATE|off", v::rates).help(
            "Rate limit for what the port receives; frames beyond it are dropped and counted, or \
             wait if the port is lossless",
        )],
    )
    .said(|value| v::say_rates("rx_limit", value)),
    Rule::new(
        "weight",
        &[Word::new("weight", "N", v::weight).help(
            "The port's share where ports of a worker send more than it can move, or senders more \
             than a lossless port takes: their bytes are in the proportion of their weights, 1 to \
             1000 [default: 1]",
        )],
    ),
    Rule::new(
        "tx_impairment",
        &[Word::new("tx_impair", "off|loss=P%,delay=T,...", v::impairment).help(
            "Impair the link for what the port sends, to test programs over a bad network, as in \
             loss=0.1%,delay=10ms,jitter=1ms,reorder=1%,duplicate=0.1%,seed=7",
        )],
    )
    .said(|value| v::say_impairment("tx_impair", value)),
    Rule::new(
        "rx_impairment",
        &[Word::new("rx_impair", "off|loss=P%,delay=T,...", v::impairment)
            .help("Impair the link for what the port receives")],
    )
    .said(|value| v::say_impairment("rx_impair", value)),
    Rule::new(
        "tx_link",
        &[Word::new("tx_link", "WORDS|NAME|off", v::line).help(
            "The line of what the port sends: rate, delay, queue and loss, as in \
             rate=10Mb/s,delay=25ms,queue=100kB,aqm=fq_codel,loss=1%,seed=7; or dsl, lte, \
             satellite; or a link of the topology",
        )],
    ),
    Rule::new(
        "rx_link",
        &[Word::new("rx_link", "WORDS|NAME|off", v::line).help(
            "The line of what the port receives; frames beyond its queue are dropped, or wait if \
             the port is lossless",
        )],
    ),
    Rule::new(
        "flap_guard",
        &[Word::new("flap_guard", "on|off", v::on_off)
            .help("Refuse to learn addresses that move too often [default: on]")],
    ),
    Rule::new(
        "mtu",
        &[Word::new("mtu", "BYTES", v::mtu)
            .help("Largest payload of a frame in bytes, up to 9216 [default: 1500]")],
    )
    .column(),
    Rule::new(
        "link",
        &[Word::new("link", "up|down", v::up_down).help(
            "A virtual machine's link: its guest sees a cable that is plugged in, or is not \
             [default: up]",
        )],
    )
    .said(v::say_link),
    Rule::new(
        "interrupts",
        &[Word::new("interrupts", "off|rate=N,delay=US,adaptive,sent=US", v::coalescing)
            .help(
                "Coalesce a virtual machine's interrupts: at most N a second (rate), or delayed \
                 by up to US microseconds (delay; adaptive: only under heavy traffic), or delay \
                 only those for sent frames (sent), as in rate=20000 or delay=50,adaptive or \
                 sent=1000",
            )
            .alias("itr")],
    )
    .said(v::say_coalescing),
    Rule::new(
        "worker",
        &[Word::new("worker", "N", v::number::<u16>).help(
            "The worker that serves the port, from 0; a running port moves there [default: least \
             loaded]",
        )],
    )
    .column(),
    Rule::new(
        "mirror_ingress",
        &[Word::new("mirror_in", "PORT|none", v::name)
            .help("Copy what this port sends to another port of the switch")],
    )
    .said(|value| v::say_name("mirror_in", value)),
    Rule::new(
        "mirror_egress",
        &[Word::new("mirror_out", "PORT|none", v::name)
            .help("Copy what this port receives to another port of the switch")],
    )
    .said(|value| v::say_name("mirror_out", value)),
    Rule::new(
        "owner",
        &[Word::new("owner", "USER|none", v::user).help(
            "The only user, by name or uid, that may open the port (besides root and the \
             daemon's user)",
        )],
    ),
];
