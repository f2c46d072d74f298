"""The blocks of `tp bench layer` of ordinary layers: Linear, ReLU, Linear, and a residual connection."""
import time

import torch
from torch import nn

import worker

BLOCKS = 4


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.two = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, rows):
        return self.two(rows) + rows


task = worker.read_task()
workload = task["workload"]
batch, width, hidden = workload["batch"], workload["dim"], workload["units"]
network = nn.Sequential(*[Block(width, hidden) for _ in range(BLOCKS)])
loss = nn.CrossEntropyLoss()
optimizer = worker.optimizer(task, network.parameters())
data = torch.randn(batch, width)
labels = torch.randint(width, (batch,))


def step():
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss(network(data), labels).backward()
    optimizer.step()
    return [time.perf_counter() - begin]


worker.serve(step)
