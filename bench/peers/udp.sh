#!/usr/bin/env bash
# The round trip of a 10-byte UDP datagram over loopback with blocking sockets: asker on core 0, echo on core 1; median in us.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
need cc
cc -O2 -o "$scratch/udp" "$here/udp.c" || fail 1 "udp.c does not compile"
json udp rtt "$("$scratch/udp" 10 "$seconds")" us
