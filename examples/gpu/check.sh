#!/usr/bin/env bash
# Checks this library on the GPUs of a machine, and writes one file that can be sent back: what is there; whether layers,
# heads and a transformer compute on 1, 2, ... GPUs what they compute on the CPU; how fast NCCL is; which processes take
# memory of which GPU; how long a step of a head and of a transformer takes, beside PyTorch where python3 has it.
#   examples/gpu/check.sh [FILE]        gpu-check.txt; half an hour. A part that fails is said to, and the next one runs
# RANKS: numbers of GPUs (1, 2, 4, ... of those that there are). TP: the command tp. LIMIT: seconds of a part (900).
# HEADS, TRANSFORMERS, BENCH: shapes and options of tp bench. MEGABYTES: of the largest message (256).
# DEVICE, BACKEND: cpu and nccl, say, to try the script itself without GPUs.
set -uo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
file=${1:-gpu-check.txt}
# shellcheck disable=SC2206 # words
tp=(${TP:-$here/tp})
device=${DEVICE:-gpu}
where=(--device "$device" --backend "${BACKEND:-auto}")
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
if [ -z "${RANKS:-}" ]; then
    RANKS=1
    for ((n = 2; n <= gpus; n *= 2)); do RANKS="$RANKS $n"; done
fi
most=${RANKS%% *}
for n in $RANKS; do [ "$n" -gt "$most" ] && most=$n; done
failed=()

# part NAME COMMAND...: its output in the file, how it ended there and here
part() {
    local name=$1 begin=$SECONDS status how=good
    shift
    printf '\n==== %s\n$ %s\n' "$name" "$*" >>"$file"
    timeout --kill-after=10 "${LIMIT:-900}" "$@" >>"$file" 2>&1 </dev/null
    status=$?
    if [ $status != 0 ]; then
        how="FAILED with status $status"
        failed+=("$name")
    fi
    printf '==== %s: %s, %d s\n' "$name" "$how" $((SECONDS - begin)) | tee -a "$file"
}

# One process for each GPU: nvidia-smi must see as many pairs of a process and a GPU.
contexts() {
    local seen pairs status=0
    seen=$(mktemp)
    for ((i = 0; i < most; i++)); do
        WORLD_SIZE=$most RANK=$i LOCAL_RANK=$i LOCAL_WORLD_SIZE=$most MASTER_ADDR=127.0.0.1 \
            MASTER_PORT=${MASTER_PORT:-29531} "${tp[@]}" doctor --megabytes 64 &
    done
    while [ -n "$(jobs -pr)" ]; do
        nvidia-smi --query-compute-apps=gpu_bus_id,pid,used_memory --format=csv,noheader >>"$seen"
        sleep 0.3
    done
    for job in $(jobs -p); do wait "$job" || status=1; done
    sort -u "$seen"
    pairs=$(cut -d, -f1,2 "$seen" | sort -u | wc -l)
    rm "$seen"
    echo "$most processes have memory of a GPU $pairs times"
    return $((status || pairs != most))
}

: >"$file" || exit 2
part machine bash -c 'date -u; uname -a; lscpu | head -20; free -g; git -C "$0" log -1 --format=%H' "$here"
if [ "$gpus" != 0 ]; then
    part gpus bash -c 'nvidia-smi; nvidia-smi topo -m'
    export -f contexts
    part contexts env most="$most" bash -c 'tp=("$@"); contexts' contexts "${tp[@]}"
fi
part "NCCL on $most" "${tp[@]}" doctor --tp "$most" --megabytes "${MEGABYTES:-256}"
for n in $RANKS; do
    part "exactness on $n" "${tp[@]}" verify --tp "$n" "${where[@]}"
done
if command -v all_reduce_perf >/dev/null; then
    part nccl-tests all_reduce_perf -b 8 -e "${MEGABYTES:-256}M" -f 8 -g "$most"
fi
# shellcheck disable=SC2086 # words
for shape in ${HEADS-64x128x1000000 1024x512x1000000}; do
    part "head $shape" "${tp[@]}" bench head --shapes "$shape" --ranks "${RANKS// /,}" --device "$device" ${BENCH---peers all}
done
# shellcheck disable=SC2086 # words
for shape in ${TRANSFORMERS-32x512x1024x4096}; do
    part "transformer $shape" "${tp[@]}" bench transformer --shapes "$shape" --heads 16 --ranks "${RANKS// /,}" \
        --device "$device" ${BENCH---peers all}
done
if [ ${#failed[@]} = 0 ]; then
    echo "All parts are good: $file" | tee -a "$file"
else
    printf 'Failed: %s; please send %s with a report\n' "$(IFS=,; echo "${failed[*]}")" "$file" | tee -a "$file"
    exit 1
fi
