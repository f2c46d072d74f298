"""A large last layer as one writes it in PyTorch: all logits, the gradient of the weight, an optimizer."""
import torch
from torch import nn

import worker

task = worker.read_task()
workload = task["workload"]
batch, dim, classes = workload["batch"], workload["dim"], workload["units"]
# below any head there is something that needs the gradient of the features
network = nn.Sequential(nn.Linear(dim, dim, bias=False), nn.Linear(dim, classes, bias=False))
data = torch.randn(batch, dim)
labels = torch.randint(classes, (batch,))
worker.train(task, network, data, labels)
