"""What a peer of `tp bench` speaks.

The first line of standard input is the task, as JSON. Then each line asks for a step or for the peak of the
memory; the answers are lists of numbers, in lines that begin with @. It ends when its input does.
"""
import json
import sys
import time

import torch

RATE = 1e-5  # as the bench: hardly any, see docs/performance.md


def read_task():
    task = json.loads(sys.stdin.readline())
    torch.set_num_threads(task["threads"])
    if task["gpu"]:
        torch.set_default_device("cuda")
    torch.manual_seed(7)
    return task


def optimizer(task, parameters):
    name = task["optimizer"]
    # the fastest, which is not the default; for all of these optimizers since 2.4
    fused = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)
    options = {"lr": RATE, "fused": True} if fused else {"lr": RATE}
    if name == "SGD":
        return torch.optim.SGD(parameters, **options)
    if name == "MOMENTUM":
        return torch.optim.SGD(parameters, momentum=0.9, **options)
    if name == "ADAM":
        return torch.optim.Adam(parameters, **options)
    if name == "ADAMW":
        return torch.optim.AdamW(parameters, **options)
    raise SystemExit("PyTorch has no optimizer " + name)


def peak(process="self"):
    """The largest resident memory of a process, in bytes."""
    with open("/proc/%s/status" % process) as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def answer(text):
    print("@" + text, flush=True)


def serve(step, memory=peak):
    """Answers until nobody asks any more; step returns the list of what it has measured."""
    answer("ready")
    for line in sys.stdin:
        answer(json.dumps(step() if line.strip() == "step" else [memory()]))


def train(task, network, data, labels, update_only=False):
    """Serves steps of a training of the network with the cross entropy of its outputs."""

    def now():
        if task["gpu"]:
            torch.cuda.synchronize()
        return time.perf_counter()

    loss = torch.nn.CrossEntropyLoss()
    update = optimizer(task, network.parameters())

    def step():
        begin = now()
        update.zero_grad(set_to_none=True)
        loss(network(data), labels).backward()
        if update_only:
            begin = now()
        update.step()
        return [now() - begin]

    serve(step)
