"""Trains sums of rows of a table, and a linear layer on them, in PyTorch's float64.

python3 bags.py < cases > results     (PyTorch 1.13 or newer)

A line of the cases has the learning rate, the parameters as [shape, values] (table, weight, bias),
and the batches of each step: ids, weights or null, and labels; a line of the results has the values
of the parameters after the last step.
"""
import json
import sys

import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
for line in sys.stdin:
    case = json.loads(line)
    table, weight, bias = parameters = [
        torch.tensor(values).reshape(shape).requires_grad_() for shape, values in case["parameters"]
    ]
    optimizer = torch.optim.SGD(parameters, case["rate"])
    for step in case["steps"]:
        optimizer.zero_grad()
        for ids, weights, labels in step:
            sums = torch.nn.functional.embedding_bag(
                torch.tensor(ids),
                table,
                mode="sum",
                per_sample_weights=None if weights is None else torch.tensor(weights),
                padding_idx=0,
            )
            torch.nn.functional.cross_entropy(
                sums @ weight.T + bias, torch.tensor(labels)
            ).backward()
        optimizer.step()
    print(json.dumps([each.flatten().tolist() for each in parameters]))
