#!/usr/bin/env bash
# What the peers need, on Debian, as root: packages, and 2 GiB of hugepages.    setup.sh [undo]
# `toklat bench switch` never calls this: a peer that is not there is a row without a ratio.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "setup.sh: run me as root" >&2; exit 1; }

pages=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
if [ "${1:-}" = undo ]; then
    rm -f /dev/hugepages/toklat-peer*
    echo 0 > $pages
    exit
fi
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    dpdk-dev libdpdk-dev openvswitch-switch-dpdk pkg-config libnuma-dev gcc
[ "$(cat $pages)" -ge 1024 ] || echo 1024 > $pages
mkdir -p /dev/hugepages
mountpoint -q /dev/hugepages || mount -t hugetlbfs none /dev/hugepages
echo "hugepages free: $(cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages) (undo: $0 undo)"
