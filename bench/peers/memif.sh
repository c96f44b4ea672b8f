#!/usr/bin/env bash
# The round trip of one 64-byte frame over DPDK's memif: asker on core 0, testpmd echoing on core 1; median in us.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
need dpdk-testpmd
need_hugepages
build_rtt

timeout -s INT -k 2 9 dpdk-testpmd --lcores '0@0,1@1' --no-pci --file-prefix=toklat-peer-echo --single-file-segments -m 256 \
    --vdev "net_memif0,role=server,id=0,socket=$scratch/memif.sock,rsize=10" \
    -- --total-num-mbufs=8192 --no-lsc-interrupt --stats-period=5 --auto-start --forward-mode=io --port-topology=loop \
    > "$scratch/echo.log" 2>&1 &
pids+=($!)
wait_for 5 grep -q "Checking link" "$scratch/echo.log" || fail 1 "testpmd did not start: $(tail -1 "$scratch/echo.log")"
json memif rtt "$(rtt "net_memif0,role=client,id=0,socket=$scratch/memif.sock,rsize=10")" us
