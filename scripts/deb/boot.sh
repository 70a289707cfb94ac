#!/usr/bin/env bash
# boot.sh TOOLS LOWER WORK: boots the root LOWER with a real systemd, in the foreground. Nothing
# is written to TOOLS and LOWER: changes go to WORK/upper. WORK/share is /share inside.
# nspawn runs from a root of its own (pivot_root) with a fresh cgroup2, so that a machine without
# systemd, or with cgroup v1, boots it as well.
set -euo pipefail
TOOLS=$1 LOWER=$2 WORK=$3
export TOOLS LOWER WORK
exec unshare -m -C --propagation private bash -ec '
    cd "$WORK"
    mkdir -p upper share boot tools .work .tools-upper .tools-work
    mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=upper,workdir=.work" boot
    mount -t overlay overlay -o "lowerdir=$TOOLS,upperdir=.tools-upper,workdir=.tools-work" tools
    mount -t proc proc tools/proc
    mount -t sysfs sysfs tools/sys
    mount --rbind /dev tools/dev
    mount -t tmpfs tmpfs tools/run
    mount -t cgroup2 cgroup2 tools/sys/fs/cgroup
    mkdir -p tools/mnt/boot tools/mnt/share tools/.old
    mount --rbind boot tools/mnt/boot
    mount --bind share tools/mnt/share
    cd tools
    pivot_root . .old
    umount -l /.old
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8 \
        SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 \
        systemd-nspawn -q --keep-unit --register=no -M roomscribe-test --console=read-only \
        --link-journal=no --private-network --bind=/mnt/share:/share -b -D /mnt/boot'
