# two_hosts.sh: two hosts on one machine, for scripts that have sourced tests/harness/support.sh. Each host is a network namespace with an
# address of its own. tests/tools/cable.py connects them and can delay and lose packets. Needs root, `ip` and /dev/net/tun.
#   hosts_open            makes the hosts a (10.77.0.1) and b (10.77.0.2), which are removed at exit; returns 1 where that is not possible
#   on HOST COMMAND...    runs a command there
#   cable 'delay 0.05'    changes the cable: see cable.py
#   start HOST RANK ...   starts `cresnet train net.ini -q -o run-RANK ...` there as rank RANK of 2; its output is in err-RANK, its pid in pid
#                         PER_HOST=n: a host has n ranks, and there are 2 n ranks
host_tag=cresnet$$

hosts_close() {
    local host
    for host in a b; do
        ip netns pids $host_tag$host 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del $host_tag$host 2>/dev/null
    done
    rm -rf "$work"
}
hosts_open() {
    local said
    [ "$(id -u)" = 0 ] && there ip && there unshare && there python3 && [ -c /dev/net/tun ] && ip netns add ${host_tag}a 2>/dev/null || return 1
    trap hosts_close EXIT
    ip netns add ${host_tag}b && mkfifo said || return 1
    exec 8> >(exec python3 "$source_dir/tests/tools/cable.py" ${host_tag}a 10.77.0.1 ${host_tag}b 10.77.0.2 >said) 9<said
    read -r -t 20 said <&9 && [ "$said" = ready ]
}
on() {
    local host=$1
    shift
    ip netns exec $host_tag"$host" "$@" 8>&- 9<&-
}
cable() {
    local said
    echo "$1" >&8
    read -r -t 20 said <&9 && [ "$said" = ok ]
}
start() {
    local host=$1 rank=$2 ranks=${PER_HOST:-1}
    shift 2
    # shellcheck disable=SC2016
    on "$host" unshare --uts sh -c 'hostname "$0" && exec "$@"' "host-$host" env RANK="$rank" WORLD_SIZE=$((2 * ranks)) \
        GROUP_RANK=$((rank / ranks)) LOCAL_RANK=$((rank % ranks)) LOCAL_WORLD_SIZE="$ranks" MASTER_ADDR="${ADDRESS:-10.77.0.1}" MASTER_PORT="${PORT:-29500}" "$bin" train net.ini -q -o "$work/run-$rank" "$@" 2>"err-$rank" &
    pid=$!
}
