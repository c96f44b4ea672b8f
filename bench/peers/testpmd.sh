#!/usr/bin/env bash
# testpmd forwarding between two vhost-user ports (io mode: no lookup): Mpps over both directions.
#   testpmd.sh [64] [1500]            it forwards on core 1, generator and sink are one process on core 0
set -uo pipefail
. "$(dirname "$0")/lib.sh"
need dpdk-testpmd
need_hugepages

for bytes in "${@:-64}"; do
    timeout -s INT -k 2 $((seconds + 9)) dpdk-testpmd --lcores '0@0,1@1' --no-pci --file-prefix=toklat-peer-fwd \
        --single-file-segments -m 512 \
        --vdev "net_vhost0,iface=$scratch/vh0.sock,queues=1,client=1" \
        --vdev "net_vhost1,iface=$scratch/vh1.sock,queues=1,client=1" \
        -- --no-lsc-interrupt --auto-start --forward-mode=io --stats-period=1 > "$scratch/fwd.log" 2>&1 &
    forwarder=$!
    mpps=$(closed_loop "$bytes" "$scratch/vh0.sock" "$scratch/vh1.sock")
    wait $forwarder
    rm -f "$scratch"/vh*.sock
    json testpmd "$bytes" "$mpps" Mpps
done
