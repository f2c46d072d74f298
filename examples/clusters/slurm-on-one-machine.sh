#!/usr/bin/env bash
# One machine as a Slurm cluster of several nodes, to try examples/clusters/slurm.sh: as root, without systemd.
#   apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge
#   examples/clusters/slurm-on-one-machine.sh start DIR [NODES [CPUS]]    prints: export SLURM_CONF=DIR/slurm.conf
#   examples/clusters/slurm-on-one-machine.sh stop DIR
# PORT: that of the controller (16817); the nodes n1, n2, ... have the ports after it.
# MinJobAge: with less than 6 sbatch -W asks every 2 seconds whether the job has ended; else after 2, 8, 32, ...
set -euo pipefail
command=${1:?start or stop}
mkdir -p "${2:?a folder}"
dir=$(cd "$2" && pwd)

stop() {
    local pids=()
    for pidfile in "$dir"/slurmd.*.pid "$dir"/slurmctld.pid "$dir"/munged.pid; do
        [ ! -f "$pidfile" ] || pids+=("$(cat "$pidfile")")
    done
    [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
    for pid in "${pids[@]}"; do # they write what they know, and delete some files, before they end
        for _ in $(seq 1 150); do
            kill -0 "$pid" 2>/dev/null || continue 2
            sleep 0.2
        done
        echo "slurm-on-one-machine.sh: process $pid has not ended within 30 s" >&2
    done
}

if [ "$command" = stop ]; then
    stop
    exit
fi
nodes=${3:-2}
cpus=${4:-$(nproc)}
port=${PORT:-16817}
host=$(hostname -s)
mkdir -p "$dir/state" "$dir/log" "$dir/munge"
if [ ! -S "$dir/munge/socket" ]; then
    chown munge:munge "$dir/munge"
    chmod 711 "$dir" "$dir/munge"
    runuser -u munge -- /usr/sbin/munged --socket "$dir/munge/socket" --pid-file "$dir/munge/munged.pid" \
        --log-file "$dir/munge/munged.log" --seed-file "$dir/munge/munged.seed" --force
    ln -sf munge/munged.pid "$dir/munged.pid"
fi
cat >"$dir/slurm.conf" <<C
ClusterName=tp
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
SlurmctldPort=$port
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=requeue_delay=5
ReturnToService=2
KillWait=5
MinJobAge=5
SlurmdParameters=config_overrides
InactiveLimit=0
SlurmdTimeout=30
MpiDefault=none
NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=$cpus State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
C
export SLURM_CONF=$dir/slurm.conf
/usr/sbin/slurmctld -c
for i in $(seq 1 "$nodes"); do
    mkdir -p "$dir/spool.n$i"
    /usr/sbin/slurmd -N "n$i" -c
done
for _ in $(seq 1 60); do
    [ "$(sinfo -h -o %A | cut -d/ -f2)" = "$nodes" ] && break
    sleep 0.5
done
sinfo -N -l >&2
echo "export SLURM_CONF=$SLURM_CONF"
