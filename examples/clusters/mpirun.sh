#!/usr/bin/env bash
# tp under mpirun of Open MPI: the arguments are those of tp. On one machine:
#   PROCESSES=4 examples/clusters/mpirun.sh train --languages de --steps 1000
# On several, with ssh to all of them and tp in the same folder:
#   PROCESSES=4 HOSTS=host1:2,host2:2 examples/clusters/mpirun.sh train --languages de --steps 1000
# Started again when a process dies, RESTARTS times, and going on from the last checkpoint (mpirun does not do that):
#   PROCESSES=4 RESTARTS=3 examples/clusters/mpirun.sh train ... --out DIR --checkpoint-steps 50 --resume
# TP: the command tp. MPIRUN: the command mpirun with options of your own.
set -uo pipefail
tp=${TP:-$(cd "$(dirname "$0")/../.." && pwd)/tp}
# shellcheck disable=SC2206 # words
mpirun=(${MPIRUN:-mpirun})

options=(-n "${PROCESSES:-2}" --bind-to none --oversubscribe)
[ -n "${HOSTS:-}" ] && options+=(--host "$HOSTS")
if [ "$(id -u)" = 0 ]; then
    options+=(--allow-run-as-root) # in a container
fi
left=${RESTARTS:-0}
while true; do
    "${mpirun[@]}" "${options[@]}" "$tp" "$@" &
    child=$!
    trap 'kill -TERM $child' TERM INT # which ends tp with a checkpoint
    wait $child
    status=$?
    if ! trap - TERM INT || kill -0 $child 2>/dev/null; then
        wait $child # a signal has ended the first wait
        status=$?
    fi
    # 2: an option is wrong; 130, 143: a signal has ended it, with a checkpoint
    case $status in
        0 | 2 | 130 | 143) exit $status ;;
    esac
    [ "$left" -gt 0 ] || exit $status
    left=$((left - 1))
    echo "mpirun.sh: the job has ended with $status: starting it again" >&2
done
