#!/usr/bin/env bash
# tp under mpirun of Open MPI: the arguments are those of tp. On one machine:
#   PROCESSES=4 examples/clusters/mpirun.sh train --languages de --steps 1000
# On several, with ssh to all of them and tp in the same folder:
#   PROCESSES=4 HOSTS=host1:2,host2:2 examples/clusters/mpirun.sh train --languages de --steps 1000
# They meet at MASTER_ADDR (the first host) and MASTER_PORT (29500), with TP_SECRET (drawn if it is not set).
# mpirun hands TP_SECRET on in clear: where others can read the network, set TP_SECRET_FILE to a file that is on all.
# Started again when a process dies, RESTARTS times, and going on from the last checkpoint (mpirun does not do that):
#   PROCESSES=4 RESTARTS=3 examples/clusters/mpirun.sh train ... --out DIR --checkpoint-steps 50 --resume
# To end it with a checkpoint: SIGTERM to this script, or Ctrl-C.
# GRACE: how many seconds (5) mpirun leaves the processes to end, after a signal or when one of them has died: then it sends
# SIGTERM, which lets tp write a checkpoint, and after as many seconds again SIGKILL. It waits all of them.
# TP: the command tp. MPIRUN: the command mpirun with options of your own.
set -uo pipefail
tp=${TP:-$(cd "$(dirname "$0")/../.." && pwd)/tp}
# shellcheck disable=SC2206 # words
mpirun=(${MPIRUN:-mpirun})

options=(-n "${PROCESSES:-2}" --bind-to none --oversubscribe --mca odls_base_sigkill_timeout "${GRACE:-5}")
if [ -n "${HOSTS:-}" ]; then
    options+=(--host "$HOSTS" -x MASTER_ADDR -x MASTER_PORT)
    export MASTER_ADDR=${MASTER_ADDR:-${HOSTS%%[:,]*}} MASTER_PORT=${MASTER_PORT:-29500}
    if [ -n "${TP_SECRET_FILE:-}" ]; then
        options+=(-x TP_SECRET_FILE)
        unset TP_SECRET # which would come first in the processes of this machine
    else
        options+=(-x TP_SECRET)
        export TP_SECRET=${TP_SECRET:-$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')}
    fi
    [ -z "${TP_ENCRYPT_DATA:-}" ] || options+=(-x TP_ENCRYPT_DATA)
fi
if [ "$(id -u)" = 0 ]; then
    options+=(--allow-run-as-root) # in a container
fi
left=${RESTARTS:-0}
child=
stopped=
trap 'stopped=143; [ -z "$child" ] || kill -TERM $child' TERM
trap 'stopped=130; [ -z "$child" ] || kill -TERM $child' INT
while true; do
    "${mpirun[@]}" "${options[@]}" "$tp" "$@" &
    child=$!
    while
        wait $child
        status=$?
        [ $status -gt 128 ] && kill -0 $child 2>/dev/null # a signal has ended the wait
    do :; done
    [ $status = 0 ] && exit
    [ -z "$stopped" ] || exit $stopped # mpirun makes 1 of it
    # 2: an option is wrong
    if [ $status = 2 ] || [ "$left" -le 0 ]; then
        exit $status
    fi
    left=$((left - 1))
    echo "mpirun.sh: the job has ended with $status: starting it again" >&2
done
