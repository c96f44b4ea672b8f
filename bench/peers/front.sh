#!/usr/bin/env bash
# virtio-user front ends for a switch whose vhost-user ports connect to these sockets: Mpps over both directions.
#   front.sh SOCKET0 SOCKET1 BYTES split|packed one|many      generator and sink are one process on core 0
set -uo pipefail
. "$(dirname "$0")/lib.sh"
need dpdk-testpmd
need_hugepages

packed=0
[ "$4" = split ] || packed=1
json front "$3" "$(closed_loop "$3" "$1" "$2" "$5" "packed_vq=$packed")" Mpps
