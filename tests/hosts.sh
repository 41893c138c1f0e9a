#!/bin/sh
# Proves what docs/cluster.md promises of several hosts. Namespaces of this machine stand for them: each has a network, a
# name, processes and folders of its own. Nothing is downloaded, and nothing is left behind.
#   tests/hosts.sh PYTHON -m tests.hosts [--only REGULAR EXPRESSION]
set -eu
missing() { echo "make hosts: $1" >&2; exit 2; }
command -v ip nsenter unshare >/dev/null || missing "ip, nsenter or unshare is missing: apt-get install iproute2 util-linux"
command -v sshfs >/dev/null || missing "sshfs is missing: apt-get install sshfs openssh-sftp-server"
[ "$(id -u)" = 0 ] || missing "namespaces need root: run it as root, or in a container with --privileged"
[ -c /dev/net/tun ] || missing "/dev/net/tun is missing: modprobe tun, or run the container with --device /dev/net/tun"
[ -c /dev/fuse ] || missing "/dev/fuse is missing: modprobe fuse, or run the container with --device /dev/fuse"
# When the first process of these namespaces ends, the kernel ends all others and removes the network.
spaces="unshare --net --mount --pid --fork --kill-child --mount-proc"
$spaces true || missing "this machine allows no namespaces: run the container with --privileged"
exec $spaces "$@"
