#!/usr/bin/env bash
# OVS-DPDK with the NORMAL action (a learning switch) between two vhost-user ports: Mpps, and the round trip of one frame.
#   ovs.sh [64] [many] [1500] [rtt]          the PMD thread is on core 1, generator and sink are one process on core 0
set -uo pipefail
. "$(dirname "$0")/lib.sh"
vswitchd=/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
[ -x $vswitchd ] || fail 3 "OVS-DPDK is missing: run bench/peers/setup.sh as root"
need dpdk-testpmd
need_hugepages

export OVS_RUNDIR=$scratch OVS_LOGDIR=$scratch OVS_DBDIR=$scratch OVS_SYSCONFDIR=$scratch
db=unix:$scratch/db.sock
ovsdb-tool create "$scratch/conf.db" /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server "$scratch/conf.db" --remote=punix:"$scratch/db.sock" --unixctl="$scratch/db.ctl" > "$scratch/db.log" 2>&1 &
pids+=($!)
wait_for 5 test -S "$scratch/db.sock" || fail 1 "ovsdb-server did not start"
vsctl() { ovs-vsctl --timeout=20 --db="$db" "$@"; }
vsctl --no-wait init
vsctl --no-wait set Open_vSwitch . other_config:dpdk-init=true other_config:dpdk-lcore-mask=0x1 \
    other_config:pmd-cpu-mask=0x2 other_config:dpdk-socket-mem=512 \
    other_config:dpdk-extra="--no-pci --file-prefix=toklat-peer-ovs --single-file-segments"
taskset -c 0 $vswitchd "$db" --unixctl="$scratch/v.ctl" > "$scratch/vswitchd.log" 2>&1 &
pids+=($!)
vsctl add-br br0 -- set bridge br0 datapath_type=netdev || fail 1 "OVS did not start: $(tail -1 "$scratch/vswitchd.log")"
for i in 0 1; do
    vsctl add-port br0 vh$i -- set Interface vh$i type=dpdkvhostuserclient options:vhost-server-path="$scratch/vh$i.sock"
done

for what in "${@:-64}"; do
    if [ "$what" = rtt ]; then
        build_rtt
        # There and back again is twice the way through the switch: the asker holds both ports.
        way=$(rtt "net_virtio_user0,path=$scratch/vh0.sock,server=1,queues=1,queue_size=1024,mac=02:00:00:00:00:a0" \
            "net_virtio_user1,path=$scratch/vh1.sock,server=1,queues=1,queue_size=1024,mac=02:00:00:00:00:a1")
        json ovs rtt "$(awk -v way="$way" 'BEGIN { if (way) printf "%.3f", 2 * way }')" us
    elif [ "$what" = many ]; then
        json ovs many "$(closed_loop 64 "$scratch/vh0.sock" "$scratch/vh1.sock" many)" Mpps
    else
        json ovs "$what" "$(closed_loop "$what" "$scratch/vh0.sock" "$scratch/vh1.sock")" Mpps
    fi
done
