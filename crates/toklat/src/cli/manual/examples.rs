//! Examples of commands whose help has none.

/// The examples of the command whose page has this name, as a help text has them.
pub fn of(page: &str) -> Option<&'static str> {
    EXAMPLES.iter().find(|(name, _)| *name == page).map(|(_, text)| *text)
}

const EXAMPLES: &[(&str, &str)] = &[
    (
        "toklat-daemon",
        "  toklat daemon\n\
         Let the group net open ports, and start with a topology:\n  \
         toklat daemon --group net --topology /etc/toklat/net.toml",
    ),
    ("toklat-status", "  toklat status"),
    (
        "toklat-events",
        "  toklat events\n\
         Who changed what, from now on, an object of JSON a line:\n  \
         toklat events --follow --json",
    ),
    ("toklat-logs", "  toklat logs\n  toklat logs -n 20 --follow"),
    (
        "toklat-service",
        "Let the packaged daemon use interfaces of the host, while traffic flows on:\n  \
         toklat service enable interfaces --restart\n  \
         toklat service list",
    ),
    ("toklat-service-list", "  toklat service list"),
    ("toklat-service-enable", "  toklat service enable interfaces containers --restart"),
    ("toklat-service-disable", "  toklat service disable interfaces --restart"),
    ("toklat-doctor", "  toklat doctor\n  toklat doctor --json"),
    ("toklat-switch", "  toklat switch add vale0\n  toklat switch show"),
    (
        "toklat-switch-set",
        "Larger batches, and senders that wait longer for lossless ports:\n  \
         toklat switch set vale0 --batch 128 --stall-timeout 500",
    ),
    ("toklat-switch-rm", "  toklat switch rm vale0"),
    ("toklat-switch-show", "  toklat switch show\n  toklat switch show vale0 --json"),
    ("toklat-port", "  toklat port add vale0:p1 --lossless\n  toklat port show vale0"),
    ("toklat-port-rm", "  toklat port rm vale0:p1 vale0:p2"),
    ("toklat-port-show", "  toklat port show\n  toklat port show vale0:p1"),
    (
        "toklat-link",
        "  toklat port set vale0:p1 --tx-link rate=10Mb/s,delay=25ms\n  \
         toklat link show vale0:p1",
    ),
    ("toklat-link-show", "  toklat link show vale0:p1\n  toklat link show vale0:p1 --json"),
    ("toklat-fdb", "  toklat fdb show vale0\n  toklat fdb add vale0:p1 02:00:00:00:00:01"),
    ("toklat-fdb-show", "  toklat fdb show vale0"),
    ("toklat-fdb-add", "  toklat fdb add vale0:p1 02:00:00:00:00:01"),
    ("toklat-fdb-rm", "  toklat fdb rm vale0 02:00:00:00:00:01"),
    ("toklat-fdb-flush", "  toklat fdb flush vale0"),
    (
        "toklat-fw",
        "  toklat fw set web 'allow tcp from any to me 80,443'\n  \
         toklat port set vale0:web --groups web\n  toklat fw show vale0",
    ),
    ("toklat-fw-add", "  toklat fw add web 'allow icmp from any to me limit 100pps'"),
    ("toklat-fw-set", "  toklat fw set web 'allow tcp from any to me 80,443' 'deny log all'"),
    ("toklat-fw-del", "  toklat fw del web"),
    (
        "toklat-fw-load",
        "  toklat fw load web.rules\n  toklat fw load ipfw.rules --ipfw --group web",
    ),
    ("toklat-fw-show", "  toklat fw show\n  toklat fw show web\n  toklat fw show vale0:p1"),
    ("toklat-fw-zero", "  toklat fw zero vale0"),
    ("toklat-fw-connections", "  toklat fw connections vale0"),
    ("toklat-fw-table", "  toklat fw table add bad 192.0.2.0/24\n  toklat fw table show"),
    ("toklat-fw-table-add", "  toklat fw table add bad 192.0.2.0/24 2001:db8:bad::/48"),
    ("toklat-fw-table-rm", "  toklat fw table rm bad 192.0.2.0/24"),
    ("toklat-fw-table-del", "  toklat fw table del bad"),
    ("toklat-fw-table-show", "  toklat fw table show\n  toklat fw table show bad"),
    ("toklat-evpn", "  toklat evpn show\n  toklat evpn show neighbors"),
    ("toklat-guest", "  toklat guest run -d httpd vale0:web 10.0.0.2/24\n  toklat guest list"),
    (
        "toklat-guest-run",
        "  toklat guest run httpd vale0:web 10.0.0.2/24\n\
         In the background, and never started again when it ends:\n  \
         toklat guest run -d httpd vale0:web 10.0.0.2/24 --restart never",
    ),
    ("toklat-guest-list", "  toklat guest list"),
    ("toklat-guest-show", "  toklat guest show web"),
    ("toklat-guest-logs", "  toklat guest logs web --follow"),
    ("toklat-guest-stop", "  toklat guest stop web\n  toklat guest stop --all"),
    ("toklat-guest-programs", "  toklat guest programs"),
    ("toklat-pipes", "  toklat pipes"),
    ("toklat-netmap", "  toklat netmap show\n  toklat netmap rm --user alice vi0"),
    ("toklat-netmap-show", "  toklat netmap show"),
    ("toklat-netmap-rm", "  toklat netmap rm --user alice vi0"),
    ("toklat-quota", "  toklat quota show\n  toklat quota set ports=100"),
    ("toklat-quota-show", "  toklat quota show"),
    (
        "toklat-quota-set",
        "What each user may hold, and what one may:\n  toklat quota set ports=100 memory=2GiB\n  \
         toklat quota set --user 1000 ports=none",
    ),
    ("toklat-stats", "  toklat stats vale0:p1\nRates, every second:\n  toklat stats vale0 --watch"),
    ("toklat-top", "  toklat top\n  toklat top vale0 --sort out"),
    (
        "toklat-apply",
        "What would be done, then do it:\n  toklat apply --dry-run net.toml\n  toklat apply net.toml\n\
         Remove what the file named before and does not any more, too:\n  toklat apply --prune --yes net.toml",
    ),
    ("toklat-export", "  toklat export > net.toml"),
    ("toklat-upgrade", "  toklat upgrade\n  toklat upgrade vale0"),
    (
        "toklat-stop",
        "  toklat stop\nThe switches forward on, and the next daemon finds them:\n  toklat stop --leave-data-processes",
    ),
    (
        "toklat-gen",
        "As fast as it goes, then a mix of sizes at a rate:\n  toklat gen vale0:a --size 64\n  \
         toklat gen vale0:a --size imix --rate 100kpps --duration 10",
    ),
    (
        "toklat-sink",
        "  toklat sink vale0:b\nCheck sequence and content:\n  toklat sink vale0:b --check",
    ),
    ("toklat-bridge", "  toklat bridge vale0:x vale1:y"),
    (
        "toklat-uplink",
        "  toklat uplink vale0\nForward port 8080 of this machine to port 80 of the first guest:\n  toklat uplink vale0 -p 8080:80",
    ),
    (
        "toklat-run",
        "A generator and a receiver of netmap's, unmodified:\n  toklat run -- pkt-gen -i vale0:1 -f tx\n  toklat run -- pkt-gen -i vale0:2 -f rx\n\
         Watch a port, and scan from another:\n  toklat run -- tcpdump -i vale0:1\n  \
         toklat run --port vale0:me=10.0.0.9/24 -- nmap --send-eth -sS 10.0.0.2\n\
         A static program, with a tap:\n  toklat run --netns --port vale0:me=10.0.0.9/24 -- ping 10.0.0.2",
    ),
    ("toklat-demo", "  toklat demo"),
    ("toklat-vm", "  toklat vm run --switch vale0 --image debian.qcow2 --uplink"),
    ("toklat-bench", "  toklat bench switch"),
    ("toklat-bench-switch", "  toklat bench switch\n  toklat bench switch --json"),
    ("toklat-bench-vm", "  toklat bench vm"),
    ("toklat-bench-netmap", "  toklat bench netmap"),
    ("toklat-bench-nic", "  toklat bench nic"),
    ("toklat-bench-guest", "  toklat bench guest --row guest.tcp"),
    ("toklat-bench-links", "  toklat bench links --row links.pipe"),
    ("toklat-bench-hosts", "  toklat bench hosts --row hosts.vxlan.cpu"),
    ("toklat-man", "  toklat man /usr/local/share/man/man1"),
];
