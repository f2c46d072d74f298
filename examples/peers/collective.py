"""All-reduce of gloo between processes of one machine: this one is rank 0 and starts the others."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import worker

SERIES = 0.02  # seconds that a series of calls takes, as in the bench
MOST_CALLS = 2000


def join(rank, size, store):
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)


def series(array, calls):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(array)
    dist.barrier()
    return time.perf_counter() - begin


def measured(arrays, calls):
    """A series of each size; the slowest rank counts, and all agree how long the next series are."""
    seconds = torch.tensor([series(a, n) / n for a, n in zip(arrays, calls)], dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    calls[:] = [max(2, min(MOST_CALLS, int(SERIES / s))) for s in seconds.tolist()]
    return seconds.tolist()


def arrays_of(sizes):
    return [torch.zeros(size // 4) for size in sizes], [3] * len(sizes)


def follow(rank, size, store, sizes):
    join(rank, size, store)
    arrays, calls = arrays_of(sizes)
    go_on = torch.ones(1)
    while True:
        dist.broadcast(go_on, 0)
        if go_on.item() == 0:
            return
        measured(arrays, calls)


def lead():
    task = worker.read_task()
    size, sizes = task["ranks"], task["sizes"]
    store = os.path.join(tempfile.mkdtemp(), "store")
    others = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(size), store] + [str(s) for s in sizes],
            stdin=subprocess.DEVNULL,
        )
        for rank in range(1, size)
    ]
    join(0, size, store)
    arrays, calls = arrays_of(sizes)

    def step():
        dist.broadcast(torch.ones(1), 0)
        return measured(arrays, calls)

    worker.serve(step, lambda: worker.peak() + sum(worker.peak(p.pid) for p in others))
    dist.broadcast(torch.zeros(1), 0)
    for process in others:
        process.wait()
    shutil.rmtree(os.path.dirname(store))


if len(sys.argv) > 1:
    follow(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], [int(s) for s in sys.argv[4:]])
else:
    lead()
