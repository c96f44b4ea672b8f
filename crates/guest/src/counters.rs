//! Counters: each dropped frame by reason. [`tcp::Counters`] has the drops of TCP.

macro_rules! drops {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// The reason why a frame, or its content, was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Drop {
            $(#[doc = $doc] $variant,)*
        }

        impl Drop {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The reason's name in statistics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

drops! {
    Truncated "truncated" "A header is cut short or contradicts itself, or the frame is longer than a slot.",
    NotForUs "not-for-us" "The frame or the packet has another destination.",
    UnknownType "unknown-type" "The frame carries none of IPv4, IPv6 and ARP, or the host has no IPv6.",
    UnknownProtocol "unknown-protocol" "The packet carries none of ICMP, TCP and UDP.",
    BadExtension "bad-extension" "An extension header of IPv6 that is not passed over, or too many.",
    Fragment "fragment" "The packet is a fragment of IPv6, or of a packet that did not become whole.",
    BadChecksum "bad-checksum" "A checksum of IP, ICMP or UDP is wrong.",
    BadSource "bad-source" "A source address that no peer has.",
    BadArp "bad-arp" "An ARP message that makes no sense.",
    BadDiscovery "bad-discovery" "A message of neighbour discovery that makes no sense, or came from another link.",
    Duplicate "duplicate" "Another host has an address of this one.",
    BadQuery "bad-query" "A query for multicast listeners that makes no sense, or came from another link.",
    Redirect "redirect" "A redirect to another router. The host does not follow any.",
    OtherIcmp "other-icmp" "An ICMP message that the stack does not use.",
    NoSocket "no-socket" "No UDP socket has the port.",
    SocketFull "socket-full" "The receive queue of the UDP socket is full.",
    NoRoute "no-route" "The destination is in another network, and there is no router, or no address to send from.",
    TooLong "too-long" "The packet that was to be sent is longer than IP allows.",
    NeighbourFull "neighbour-full" "Too many packets wait for the address of their next hop.",
    NoNeighbour "no-neighbour" "The next hop did not answer requests for its address.",
    OutboxFull "outbox-full" "Too many answers wait for free slots.",
}

/// What a stack has counted since it was made.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    drops: [u64; Drop::ALL.len()],
    /// How many frames were received.
    pub frames_in: u64,
    /// How many frames were sent.
    pub frames_out: u64,
    /// ARP requests that were sent.
    pub arp_requests: u64,
    /// How often a DHCP server has lent the address, or renewed the lease.
    pub leases: u64,
    /// Neighbour solicitations that were sent, without probes for duplicates.
    pub solicitations: u64,
    /// Reports of the groups that the host listens to (MLD).
    pub reports: u64,
    /// IPv4 packets that were put together from fragments.
    pub reassembled: u64,
    /// ICMP errors that were sent: no socket has the port.
    pub unreachables: u64,
    /// Echo requests that were answered.
    pub echoes: u64,
    /// UDP datagrams that were queued for the application.
    pub datagrams_in: u64,
    /// UDP datagrams that were sent.
    pub datagrams_out: u64,
}

impl Counters {
    /// Returns how many frames were dropped for a reason.
    #[must_use]
    pub const fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }

    /// Returns each reason with a count above 0.
    pub fn drops(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL.iter().map(|reason| (*reason, self.dropped(*reason))).filter(|(_, n)| *n > 0)
    }

    pub(crate) const fn count(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }

    pub(crate) const fn count_many(&mut self, reason: Drop, n: usize) {
        self.drops[reason as usize] += n as u64;
    }
}
