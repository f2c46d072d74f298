#!/usr/bin/env bash
# tp under torchrun: the arguments are those of tp. On one machine:
#   examples/clusters/torchrun.sh train --languages de --steps 1000
# On several, the same command on each, with the host of the first and any free port of it:
#   NODES=2 RDZV=host1:29400 TP_SECRET=... examples/clusters/torchrun.sh train --languages de --steps 1000
# Started again when a process dies, and going on from the last checkpoint (with 1 machine while the other is away,
# unless that is the one of RDZV):
#   NODES=1:2 RESTARTS=3 RDZV=host1:29400 TP_SECRET=... \
#       examples/clusters/torchrun.sh train --languages de --steps 1000 --out DIR --checkpoint-steps 50 --resume
# PROCESSES: on each machine (2). TORCHRUN: the command, where it is not torchrun. TP: the command tp.
set -euo pipefail
tp=${TP:-$(cd "$(dirname "$0")/../.." && pwd)/tp}
nodes=${NODES:-1}
# shellcheck disable=SC2206 # words
torchrun=(${TORCHRUN:-torchrun})

options=(--no_python --nproc_per_node "${PROCESSES:-2}" --nnodes "$nodes" --max_restarts "${RESTARTS:-0}")
if [ -n "${RDZV:-}" ]; then
    options+=(--rdzv_backend c10d --rdzv_endpoint "$RDZV" --rdzv_id "${RDZV_ID:-tp}")
    # a machine that has gone is given up after 10 s, and one that may still come is awaited as long
    options+=(--rdzv_conf "last_call_timeout=10,keep_alive_interval=2,keep_alive_max_attempt=5")
elif [ "$nodes" != 1 ]; then
    echo "torchrun.sh: NODES=$nodes needs RDZV=HOST:PORT, where the agents of torchrun meet" >&2
    exit 2
else
    options+=(--master_port "${MASTER_PORT:-29500}")
fi
if [ "${RESTARTS:-0}" != 0 ]; then
    options+=(--monitor_interval 1) # in seconds; torchrun looks after its processes every 5 otherwise
fi
if ! found=$(command -v "${torchrun[0]}"); then
    echo "torchrun.sh: there is no ${torchrun[0]}: install PyTorch, or set TORCHRUN to the command" >&2
    exit 127
fi
case ${found##*/} in
    python*) python=$found ;;
    *) python=$(sed -n '1s/^#! *\(.*python.*\)/\1/p;1q' "$found") ;; # torchrun's own, from its first line
esac
# PyTorch 1 under Python 3.11 and later fails without: it does not know its own default
# shellcheck disable=SC2086 # may be: env python3
if ${PYTHON:-${python:-python3}} -c 'import sys; from importlib.metadata import version
sys.exit(not (sys.version_info >= (3, 11) and version("torch").startswith("1.")))' 2>/dev/null; then
    options+=(-r 1 -t 1)
fi
exec "${torchrun[@]}" "${options[@]}" "$tp" "$@"
