"""The layer of `tp bench transformer`, on something that needs its gradient, and the mean over its tokens."""
import torch
from torch import nn

import worker


class Mean(nn.Module):
    def forward(self, rows):
        return rows.mean(1)


task = worker.read_task()
workload = task["workload"]
batch, tokens, width, hidden = (workload[name] for name in ("batch", "tokens", "dim", "units"))
layer = nn.TransformerEncoderLayer(
    width, workload["heads"], hidden, dropout=0, activation="gelu", batch_first=True
)
network = nn.Sequential(nn.LayerNorm(width), layer, Mean())
worker.train(task, network, torch.randn(batch, tokens, width), torch.randint(width, (batch,)))
