#!/usr/bin/env bash
# tp under Slurm, as a batch job: the arguments are those of tp. Two nodes, two processes on each:
#   sbatch examples/clusters/slurm.sh train --languages de --steps 1000
#   sbatch --nodes 4 --ntasks-per-node 1 --cpus-per-task 16 examples/clusters/slurm.sh train ...
# A job that a node takes with it is requeued by Slurm, one whose process dies requeues itself, RESTARTS times (3); both
# go on from the last checkpoint, with as many processes as they get:
#   sbatch --requeue --nodes 1-2 examples/clusters/slurm.sh train ... --out DIR --checkpoint-steps 50 --resume
# TP: the command tp, where it is not in the folder in which sbatch was called.
#SBATCH --job-name=tp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --signal=TERM@60
set -uo pipefail
tp=${TP:-${SLURM_SUBMIT_DIR:-.}/tp}

TP_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export TP_SECRET # srun hands it on, and a job that is requeued draws another

# processes look for the first node by its name; where names do not resolve, Slurm knows the address
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
if [ -z "${MASTER_ADDR:-}" ] && ! getent hosts "$first" >/dev/null; then
    MASTER_ADDR=$(scontrol show node -o "$first" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
    export MASTER_ADDR
fi

# one process that dies ends the step, whatever the cluster's default is
srun --kill-on-bad-exit=1 "$tp" "$@"
status=$?

# 2: an option is wrong; 130, 143: somebody or the time limit has ended it, with a checkpoint
case $status in
    0 | 2 | 130 | 143) exit $status ;;
esac
if [[ " $* " == *" --resume "* ]] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${RESTARTS:-3}" ]; then
    echo "slurm.sh: the step has ended with $status: requeueing job $SLURM_JOB_ID" >&2
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60 # Slurm ends this script
fi
exit $status
