#!/usr/bin/env bash
# tp under Slurm, as a batch job: the arguments are those of tp. Two nodes, two processes on each:
#   sbatch examples/clusters/slurm.sh train --languages de --steps 1000
#   sbatch --nodes 4 --ntasks-per-node 1 --cpus-per-task 16 examples/clusters/slurm.sh train ...
# A step whose process dies is started again in the same allocation, RESTARTS times (3), and goes on from the last
# checkpoint: with the nodes that are left, when Slurm has given up one. Only a job whose first node is lost is requeued by
# Slurm (which takes about two minutes):
#   sbatch --requeue examples/clusters/slurm.sh train ... --out DIR --checkpoint-steps 50 --resume
# To end it with a checkpoint: scancel --batch --signal=TERM JOB, which the script hands on to the processes.
# TP: the command tp, where it is not in the folder in which sbatch was called.
#SBATCH --job-name=tp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --no-kill
#SBATCH --signal=B:TERM@60
set -uo pipefail
tp=${TP:-${SLURM_SUBMIT_DIR:-.}/tp}

# srun hands it on, in clear, and a job that is requeued draws another: TP_SECRET_FILE names a file instead
unset TP_SECRET
[ -n "${TP_SECRET_FILE:-}" ] || TP_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export TP_SECRET

# processes look for the first node by its name; where names do not resolve, Slurm knows the address
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
if [ -z "${MASTER_ADDR:-}" ] && ! getent hosts "$first" >/dev/null; then
    MASTER_ADDR=$(scontrol show node -o "$first" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
    export MASTER_ADDR
fi

# somebody or the time limit ends it, with a checkpoint. 143 alone does not say so: srun ends with it, too, when one
# process fails while others start, which srun then stops
stopped=
trap 'stopped=1; scancel --signal=TERM "$SLURM_JOB_ID"' TERM INT
left=${RESTARTS:-3}
nodes=() # all
while true; do
    # one process that dies ends the step, whatever the cluster's default is
    srun --kill-on-bad-exit=1 "${nodes[@]}" "$tp" "$@" &
    child=$!
    while
        wait $child
        status=$?
        [ $status -gt 128 ] && kill -0 $child 2>/dev/null # a signal has ended the wait
    do :; done
    # 2: an option is wrong
    if [ -n "$stopped" ] || [ $status = 0 ] || [ $status = 2 ] || [[ " $* " != *" --resume "* ]] || [ "$left" -le 0 ]; then
        exit $status
    fi
    left=$((left - 1))
    count=$(squeue -h -j "$SLURM_JOB_ID" -o %D)
    if [ "$count" != "$SLURM_NNODES" ]; then
        # the step that has lost a node may hold the processors of the others for long
        nodes=(--overlap --nodes="$count" --ntasks=$((count * ${SLURM_NTASKS_PER_NODE:-1})))
    fi
    echo "slurm.sh: the step has ended with $status: starting it again, nodes: $count" >&2
done
