#!/usr/bin/env bash
# Trains on two hosts that are none: two network namespaces of this machine, joined by a cable of the
# kernel's. Shows that the losses are those of one process; then pulls the cable.
#   examples/netns.sh [COMMAND...]     the tp command, if it is another than ./tp
# Needs root and iproute2; ends with status 77 where they are missing.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
timeout=5 # seconds, of the job whose cable is pulled
grace=10
a=tp-a-$$
b=tp-b-$$
work=$(mktemp -d)
pids=()

clean_up() {
    for pid in ${pids[@]+"${pids[@]}"}; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP # clean up after these too

skip() {
    echo "netns: skipped: $1" >&2
    exit 77
}

die() {
    echo "netns: FAILED: $1" >&2
    for file in "$work"/*.out "$work"/*.err; do
        [ -s "$file" ] && { echo "--- ${file##*/}"; tail -n 30 "$file"; } >&2
    done
    exit 1
}

seconds() {
    echo $(($(date +%s%N) / 1000000)) | sed 's/...$/.&/'
}

since() {
    awk -v from="$1" -v to="$(seconds)" 'BEGIN { printf "%.1f s", to - from }'
}

make_hosts() {
    command -v ip >/dev/null || skip "there is no ip: apt-get install iproute2"
    [ "$(id -u)" = 0 ] || skip "network namespaces need root"
    ip netns add "$a" 2>"$work/skip" || skip "no network namespaces: $(cat "$work/skip")"
    ip netns add "$b"
    ip link add tpa$$ netns "$a" type veth peer name tpb$$ netns "$b" 2>"$work/skip" ||
        skip "no virtual cable: $(cat "$work/skip")"
    ip -n "$a" address add 10.199.99.1/24 dev tpa$$
    ip -n "$b" address add 10.199.99.2/24 dev tpb$$
    for host in "$a" "$b"; do
        ip -n "$host" link set lo up
    done
    ip -n "$a" link set tpa$$ up
    ip -n "$b" link set tpb$$ up
}

# start NAME HOST RANK OPTION...: one process of the job, in the background
start() {
    local name=$1 host=$2 rank=$3
    shift 3
    ip netns exec "$host" env RANK="$rank" WORLD_SIZE=2 MASTER_ADDR=10.199.99.1 MASTER_PORT=29500 \
        TP_SECRET="$secret" "${tp[@]}" train --tp 4 --mode tensor --dim 8 --batch 32 --seed 7 \
        --out "$work/$name-$rank" --json "$work/$name-$rank.json" "$@" \
        >"$work/$name-$rank.out" 2>"$work/$name-$rank.err" &
    pids+=($!)
}

losses() {
    tr -d ' \n' <"$1" | grep -o '"loss":\[[^]]*\]'
}

train_on_two_hosts() {
    local from
    from=$(seconds)
    start two "$a" 0 --steps 5 --timeout 60
    start two "$b" 1 --steps 5 --timeout 60
    for pid in "${pids[@]}"; do
        wait "$pid" || die "a process ended with status $?"
    done
    pids=()
    echo "netns: two hosts with two ranks each have trained in $(since "$from")"
    from=$(seconds)
    "${tp[@]}" train --tp 4 --mode tensor --dim 8 --batch 32 --seed 7 --steps 5 \
        --out "$work/one" --json "$work/one.json" >"$work/one.out" 2>"$work/one.err" ||
        die "one process ended with status $?"
    echo "netns: one process with four ranks has trained in $(since "$from")"
    echo "netns: two hosts    $(losses "$work/two-0.json")"
    echo "netns: one process  $(losses "$work/one.json")"
    [ "$(losses "$work/two-0.json")" = "$(losses "$work/one.json")" ] || die "the losses differ"
}

pull_the_cable() {
    local from status i
    start cut "$a" 0 --minutes 5 --timeout $timeout
    start cut "$b" 1 --minutes 5 --timeout $timeout
    for ((i = 0; i < 600; i++)); do
        grep -q ' step [1-9]' "$work/cut-0.err" && break
        kill -0 "${pids[0]}" 2>/dev/null || die "the job ended before the cable was pulled"
        sleep 0.1
    done
    ip -n "$a" link set tpa$$ down
    from=$(seconds)
    for i in 0 1; do
        while kill -0 "${pids[$i]}" 2>/dev/null; do
            awk -v from="$from" -v to="$(seconds)" -v max=$((timeout + grace)) \
                'BEGIN { exit to - from > max }' || die "process $i hangs"
            sleep 0.05
        done
        status=0
        wait "${pids[$i]}" || status=$?
        [ $status != 0 ] || die "process $i ended with status 0"
        [ "$(grep -c '^tp: ' "$work/cut-$i.err")" = 1 ] || die "process $i has not one error"
        grep '^tp: ' "$work/cut-$i.err" | grep -Eq "process $((1 - i))|rank" ||
            die "process $i does not name what was lost"
        echo "netns: process $i ended with status $status $(since "$from") after the cable was pulled:"
        echo "netns:   $(grep '^tp: ' "$work/cut-$i.err")"
    done
    pids=()
}

tp=("$@")
if [ $# = 0 ]; then
    tp=("$here/tp")
    "${tp[@]}" --version >/dev/null # builds it, before two do that at once
fi
secret=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
make_hosts
train_on_two_hosts
pull_the_cable
echo "netns: good"
