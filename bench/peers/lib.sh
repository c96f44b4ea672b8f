# Sourced by the runners. Each prints one JSON object a line, {"peer", "what", "value", "unit"}, and on failure nothing but
# the reason, on standard error, with status 3 if the peer is not installed.
# Cores: what forwards or echoes is on core 1, what generates or asks on core 0.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${SECONDS_PER_RUN:-2}
scratch=$(mktemp -d /tmp/toklat-peer.XXXXXX)
pids=()
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
    rm -rf "$scratch" /dev/hugepages/toklat-peer*
}
trap finish EXIT

fail() { echo "$(basename "$0"): $2" >&2; exit "$1"; }
need() { command -v "$1" >/dev/null || fail 3 "$1 is missing: run bench/peers/setup.sh as root"; }
need_hugepages() {
    [ "$(cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages)" -ge 700 ] ||
        fail 3 "hugepages are missing: run bench/peers/setup.sh as root"
}
json() { # PEER WHAT VALUE UNIT
    [ -n "$3" ] || fail 1 "nothing was measured for $2"
    printf '{"peer": "%s", "what": "%s", "value": %s, "unit": "%s"}\n' "$@"
}
wait_for() { # SECONDS COMMAND...
    local tries=$(($1 * 20)); shift
    while ! "$@" >/dev/null 2>&1; do tries=$((tries - 1)); [ $tries -gt 0 ] || return 1; sleep 0.05; done
}

# One testpmd process on core 0 with two virtio-user ports, which sends back every frame it gets: 2 x 1024 frames in
# flight, so that what arrives is what was forwarded. With `many`, it generates 1,024 flows and throws away what arrives.
# Prints Mpps over both directions.
closed_loop() { # FRAME-BYTES SOCKET0 SOCKET1 [one|many] [OPTION-OF-PORTS]
    local port="queues=1,queue_size=1024,server=1${5:+,$5}" mode="io" start="start tx_first 32"
    [ "${4:-one}" = one ] || { mode="flowgen"; start="start"; }
    {
        sleep 3; echo "set txpkts $1"; echo "set fwd $mode"; echo "$start"
        sleep 1; echo "show port stats all"; sleep "$seconds"; echo "show port stats all"
        echo stop; echo quit; sleep 0.5
    } | timeout -k 2 $((seconds + 20)) dpdk-testpmd --lcores '0@1,1@0' --no-pci --file-prefix=toklat-peer-gen \
        --single-file-segments -m 512 \
        --vdev "net_virtio_user0,path=$2,mac=02:00:00:00:00:a0,$port" \
        --vdev "net_virtio_user1,path=$3,mac=02:00:00:00:00:a1,$port" \
        -- -i --no-lsc-interrupt --eth-peer=0,02:00:00:00:00:a1 --eth-peer=1,02:00:00:00:00:a0 > "$scratch/gen.log" 2>&1
    # The second report covers the time between the two.
    grep -E 'Rx-pps' "$scratch/gen.log" | tail -2 | awk '{ sum += $2 } END { if (sum) printf "%.3f", sum / 1e6 }'
}

build_rtt() {
    need pkg-config
    pkg-config --exists libdpdk || fail 3 "libdpdk-dev is missing: run bench/peers/setup.sh as root"
    # shellcheck disable=SC2046
    cc -O2 -march=native -o "$scratch/rtt" "$here/rtt.c" $(pkg-config --cflags --libs libdpdk) || fail 1 "rtt.c does not compile"
}
rtt() { # VDEV...: sends on the first, receives on the last; prints the median in us
    timeout -k 2 30 "$scratch/rtt" --lcores '0@0' --no-pci --file-prefix=toklat-peer-ask --single-file-segments -m 256 \
        "${@/#/--vdev=}" -- 64 200000 2> "$scratch/ask.log" | tail -1
}
