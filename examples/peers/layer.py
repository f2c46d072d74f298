"""The blocks of `tp bench layer` of ordinary layers: Linear, ReLU, Linear, and a residual connection."""
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
data = torch.randn(batch, width)
labels = torch.randint(width, (batch,))
worker.train(task, network, data, labels)
